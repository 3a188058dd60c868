"""`CreateCompletion`: the fields of a request for a chat completion. Each is supported, or refused by name."""

from __future__ import annotations

import asyncio
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from turnwise.actors.inference.tools.signature import check_safe
from turnwise.actors.inference.tools.tool import Tool, external_tool, record_of_tools
from turnwise.errors import ConfigError, EmptyTurnError, InvalidIdError, InvalidInputError, InvalidPromptError
from turnwise.http.bounded import Bounds, within_bounds
from turnwise.http.openai.errors import OpenAIError, invalid, unsupported
from turnwise.memory.conversation.calls.run_tools import MAX_TOOLS
from turnwise.memory.conversation.model_params import MAX_STOPS, ModelParams, check_params
from turnwise.memory.values.limits import MAX_BLOCKS

_REMEDIES = {
    "functions": "it is deprecated: send tools",
    "function_call": "it is deprecated: send tool_choice",
    "store": "nothing is stored without a session: leave it out, and send X-Session-Id",
    "metadata": "completions are not kept: leave it out",
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    _within_bounds = within_bounds


class StreamOptions(_Strict):
    """How the answer is streamed."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Function(_Strict):
    """A function that the client calls. Arguments always fit its schema, with and without `strict`."""

    name: str
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None


class FunctionTool(_Strict):
    """A tool."""

    type: Literal["function"]
    function: Function


class CreateCompletion(_Strict):
    """A request for a chat completion. Each field is supported, or refused by name."""

    bounds: ClassVar[Bounds] = {
        "messages": ("MAX_BLOCKS", MAX_BLOCKS),
        "tools": ("MAX_TOOLS", MAX_TOOLS),
        "stop": ("MAX_STOPS", MAX_STOPS),
    }

    messages: Annotated[list[JsonValue], Field(min_length=1)]
    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: JsonValue = None
    parallel_tool_calls: bool | None = None
    response_format: JsonValue = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None
    top_logprobs: Literal[0] | None = None
    modalities: list[Literal["text"]] | None = None
    audio: JsonValue = None
    function_call: JsonValue = None
    functions: JsonValue = None
    logit_bias: JsonValue = None
    metadata: JsonValue = None
    moderation: JsonValue = None
    prediction: JsonValue = None
    prompt_cache_options: JsonValue = None
    prompt_cache_retention: JsonValue = None
    store: JsonValue = None
    web_search_options: JsonValue = None

    def check(self) -> None:
        """Refuse what is not supported, and fields that contradict each other.

        Raises:
            OpenAIError: names the field.
        """
        for name in _REFUSED:
            if getattr(self, name) not in (None, False, {}, []):
                raise unsupported(name, _REMEDIES.get(name, "this service does not support it: leave it out"))
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "'stream_options' is only allowed when 'stream' is set.")
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise invalid("max_tokens", "'max_tokens' and 'max_completion_tokens' mean the same: send one of them.")

    def params(self) -> ModelParams:
        """Return the parameters of the model, validated.

        Raises:
            OpenAIError: names the field.
        """
        params = {name: getattr(self, name) for name in _PARAMS}
        params["max_output_tokens"] = self.max_completion_tokens or self.max_tokens
        params["safety_identifier"] = self.safety_identifier or self.user
        if self.tool_choice in ("auto", "none") and not self.tools:
            params["tool_choice"] = None
        if self.response_format == {"type": "text"}:
            params["response_format"] = None
        if isinstance(self.response_format, dict) and isinstance(form := self.response_format.get("json_schema"), dict):
            named = {name: value for name, value in form.items() if value is not None}
            params["response_format"] = {**self.response_format, "json_schema": named}
        try:
            checked: ModelParams = check_params("params", {k: v for k, v in params.items() if v is not None})  # type: ignore[assignment]
        except InvalidInputError as error:
            raise self.refusal(error) from None
        return checked

    async def functions_given(self) -> list[Tool]:
        """Return the client's tools. They are checked by a thread, since that may take long.

        Raises:
            OpenAIError: names the tool.
        """
        return await asyncio.to_thread(self._functions) if self.tools else []

    def _functions(self) -> list[Tool]:
        tools: list[Tool] = []
        for index, entry in enumerate(self.tools or ()):
            function = entry.function
            schema = function.parameters or {"type": "object", "properties": {}}
            try:
                check_safe(schema)
                tools.append(external_tool(function.name, function.description or "", schema))
            except ValueError as error:
                param = f"tools[{index}].function.parameters"
                raise invalid(param, f"{param}: {error}", "invalid_function_parameters") from None
            except ConfigError as error:
                raise invalid(f"tools[{index}].function", str(error)) from None
        try:
            record_of_tools(tools)
        except InvalidInputError as error:
            raise self.refusal(error) from None
        return tools

    def refusal(self, error: InvalidInputError) -> OpenAIError:
        """Return one of turnwise's refusals with the name of the field that it is about."""
        if isinstance(error, EmptyTurnError | InvalidPromptError):
            return invalid("messages", str(error))
        if isinstance(error, InvalidIdError):
            return invalid("X-Session-Id", str(error))
        field = str(getattr(error, "field", ""))
        name = field.removeprefix("params['").removesuffix("']")
        if name == "max_output_tokens":
            name = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        if name == "safety_identifier" and self.safety_identifier is None:
            name = "user"
        name = {"instructions": "messages"}.get(name, name)
        return invalid(name if name.partition("[")[0] in type(self).model_fields else "messages", str(error))

    @property
    def is_json(self) -> bool:
        """Whether the answer is to be JSON."""
        return isinstance(self.response_format, dict) and self.response_format.get("type") != "text"


_PARAMS = (
    *("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "stop", "reasoning_effort"),
    *("verbosity", "tool_choice", "parallel_tool_calls", "response_format", "service_tier", "prompt_cache_key"),
)

_REFUSED = (
    *("audio", "function_call", "functions", "logit_bias", "metadata", "moderation", "prediction"),
    *("prompt_cache_options", "prompt_cache_retention", "store", "web_search_options"),
)
