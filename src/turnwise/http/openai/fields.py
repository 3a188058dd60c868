"""`CreateResponse`: the fields of a request for a response. Each is supported, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from turnwise.http.bounded import Bounds, within_bounds
from turnwise.http.openai.errors import OpenAIError, invalid, unsupported
from turnwise.http.openai.items import ENCRYPTED
from turnwise.memory.conversation.calls.run_tools import MAX_TOOLS
from turnwise.memory.conversation.model_params import ModelParams, check_params
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.values.limits import MAX_BLOCKS, MAX_NAMES

MAX_METADATA, MAX_KEY, MAX_VALUE = 16, 64, 512
"""OpenAI's limits of metadata: entries, characters of a key, characters of a value."""

Metadata = Annotated[
    dict[Annotated[str, Field(max_length=MAX_KEY)], Annotated[str, Field(max_length=MAX_VALUE)]],
    Field(max_length=MAX_METADATA),
]

_MOST_PARTS = 2
"""In how many labels a value of metadata is stored at most."""

_LABEL_CHARS = 256

_REFUSED: Mapping[str, str] = {
    "access_programs": "this service does not support it: leave it out",
    "context_management": "the service keeps conversations within the model's window itself: leave it out",
    "image": "this service does not support it: leave it out",
    "max_tool_calls": "this service does not support it: leave it out",
    "moderation": "this service does not support it: leave it out",
    "prompt": "this service keeps no prompt templates: send instructions and input",
    "prompt_cache_options": "this service does not support it: leave it out, or send prompt_cache_key",
    "prompt_cache_retention": "this service does not support it: leave it out",
}
"""Fields that are refused whatever they say, except null, with the remedy."""

_INCLUDES = {
    ENCRYPTED,
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
}
"""What may be included. The service has none of the tools that some of these are about, so they add nothing."""


def check_include(include: list[str] | None) -> None:
    """Refuse what a request cannot include.

    Raises:
        OpenAIError: names it.
    """
    for index, name in enumerate(include or ()):
        if name not in _INCLUDES:
            raise unsupported(f"include[{index}]", f"{name!r:.99} is not supported")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    _within_bounds = within_bounds


class ConversationRef(_Strict):
    """Names a conversation."""

    id: str


class Reasoning(_Strict):
    """How much the model reasons, and whether it shows a summary of that."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto"] | None = None
    generate_summary: None = None


class TextConfig(_Strict):
    """The form and the length of answers."""

    format: dict[str, JsonValue] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class StreamOptions(_Strict):
    """How the answer is streamed."""

    include_obfuscation: Literal[False] | None = None


class FunctionTool(_Strict):
    """A function that the client calls."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None
    """Whether the arguments fit the schema. They always do: a call with others is returned to the model."""


class CreateResponse(_Strict):
    """A request for a response."""

    bounds: ClassVar[Bounds] = {
        "input": ("MAX_BLOCKS", MAX_BLOCKS),
        "tools": ("MAX_TOOLS", MAX_TOOLS),
        "include": ("MAX_NAMES", MAX_NAMES),
        "metadata": ("MAX_METADATA", MAX_METADATA),
    }

    input: str | list[JsonValue] = Field(default_factory=list)
    model: str | None = None
    instructions: str | None = None
    conversation: str | ConversationRef | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include: list[str] | None = None
    metadata: Metadata | None = None
    tools: list[dict[str, JsonValue]] | None = None
    tool_choice: str | dict[str, JsonValue] | None = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Literal[0] | None = None
    max_output_tokens: int | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    truncation: Literal["auto", "disabled"] | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    access_programs: JsonValue = None
    context_management: JsonValue = None
    image: JsonValue = None
    max_tool_calls: JsonValue = None
    moderation: JsonValue = None
    prompt: JsonValue = None
    prompt_cache_options: JsonValue = None
    prompt_cache_retention: JsonValue = None

    def check(self) -> None:
        """Refuse what the service does not support, and fields that contradict each other.

        Raises:
            OpenAIError: names the field.
        """
        for name, reason in _REFUSED.items():
            if getattr(self, name) is not None:
                raise unsupported(name, reason)
        if self.truncation == "disabled":
            reason = "the service keeps conversations within the model's window itself: leave it out, or send 'auto'"
            raise unsupported("truncation", reason)
        check_include(self.include)
        if self.conversation is not None and self.previous_response_id is not None:
            reason = "Mutually exclusive parameters: 'conversation' and 'previous_response_id'."
            raise invalid("conversation", reason, "mutually_exclusive_parameters")
        if self.store is False and self.background:
            raise invalid("background", "A response in the background is stored: leave out store, or background.")
        if self.store is False and self.conversation is not None:
            raise invalid("store", "What is said in a conversation is stored: leave out store, or conversation.")

    @property
    def conversation_id(self) -> str | None:
        """The conversation that the response belongs to."""
        return self.conversation.id if isinstance(self.conversation, ConversationRef) else self.conversation

    @property
    def encrypted(self) -> bool:
        """Whether reasoning is shown such that it can be sent back."""
        return ENCRYPTED in (self.include or ())

    def functions(self) -> list[FunctionTool]:
        """Return the client's functions.

        Raises:
            OpenAIError: a tool is not a function, or is not valid.
        """
        functions: list[FunctionTool] = []
        for index, tool in enumerate(self.tools or ()):
            if tool.get("type") != "function":
                kind = tool.get("type")
                raise unsupported(
                    f"tools[{index}].type", f"only functions are supported, not tools of type {kind!r:.99}"
                )
            extra = [name for name in tool if name not in FunctionTool.model_fields]
            if extra and tool[extra[0]] not in (None, False):
                raise unsupported(f"tools[{index}].{extra[0]}")
            functions.append(_function({name: value for name, value in tool.items() if name not in extra}, index))
        return functions

    def params(self) -> ModelParams:
        """Return the parameters of the model."""
        text, reasoning = self.text or TextConfig(), self.reasoning or Reasoning()
        params: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_output_tokens": self.max_output_tokens,
            "reasoning_effort": reasoning.effort,
            "verbosity": text.verbosity,
            "parallel_tool_calls": self.parallel_tool_calls if self.tools or not self.parallel_tool_calls else None,
            "service_tier": self.service_tier,
            "prompt_cache_key": self.prompt_cache_key,
            "safety_identifier": self.safety_identifier or self.user,
            "tool_choice": self._tool_choice(),
        }
        if text.format and text.format != {"type": "text"}:
            params["response_format"] = {name: value for name, value in text.format.items() if value is not None}
        return cast(ModelParams, {name: value for name, value in params.items() if value is not None})

    def _tool_choice(self) -> Any:
        choice = self.tool_choice
        if isinstance(choice, dict) and choice.get("type") != "function":
            raise unsupported("tool_choice", "it may be 'auto', 'none', 'required' or a function")
        return None if choice in ("auto", "none") and not self.tools else choice

    def labels(self) -> dict[str, str]:
        """Return what is stored with the run: see `said_labels`."""
        return said_labels(
            metadata=self.metadata or {},
            background=bool(self.background),
            conversation=self.conversation_id is not None,
            previous=self.previous_response_id,
            encrypted=self.encrypted,
            user=self.user,
        )


def _function(tool: Mapping[str, Any], index: int) -> FunctionTool:
    for name, kind in (("name", str), ("description", str), ("parameters", dict), ("strict", bool)):
        value = tool.get(name)
        if not isinstance(value, kind) and (value is not None or name == "name"):
            raise invalid(f"tools[{index}].{name}", f"Invalid type for 'tools[{index}].{name}'.", "invalid_type")
    return FunctionTool.model_validate(tool)


_METADATA = "openai.metadata"


def said_labels(
    *,
    metadata: Mapping[str, str],
    background: bool = False,
    conversation: bool = False,
    previous: str | None = None,
    encrypted: bool = False,
    user: str | None = None,
) -> dict[str, str]:
    """Return a run's labels for what its record has no field for."""
    labels = {"openai.background": "1"} if background else {}
    labels |= {"openai.conversation": "1"} if conversation else {}
    labels |= {"openai.previous": previous} if previous else {}
    labels |= {"openai.encrypted": "1"} if encrypted else {}
    labels |= {"openai.user": user} if user else {}
    for name, value in metadata.items():
        for part in range(_MOST_PARTS):
            if text := value[part * _LABEL_CHARS : (part + 1) * _LABEL_CHARS]:
                labels[f"{_METADATA}{part}.{name}"] = text
            elif part == 0:
                labels[f"{_METADATA}0.{name}"] = ""
    return labels


def metadata_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata that `said_labels` has stored."""
    metadata: dict[str, str] = {}
    for part in range(_MOST_PARTS):
        prefix = f"{_METADATA}{part}."
        for name, text in labels.items():
            if name.startswith(prefix):
                metadata[name[len(prefix) :]] = metadata.get(name[len(prefix) :], "") + text
    return metadata


def check_same(body: CreateResponse, run: RunRecord, model: str, tools: Mapping[str, Any]) -> None:
    """Refuse a request that continues a run and asks for something else than the run was started with.

    Args:
        tools: those of the request, as a run's record has them.

    Raises:
        OpenAIError: names the field.
    """
    if body.user is not None and body.user != run.labels.get("openai.user"):
        raise _differs("user")
    params = dict(check_params("params", body.params()))
    if params.get("tool_choice") == "auto":  # so the model is asked once it has the outputs of a call
        params.pop("tool_choice")
    if body.tool_choice == "none":
        params["tool_choice"] = "none"
    for name, value in params.items():
        if run.params.get(name) != value:
            raise _differs(name)
    if body.model not in (None, model, run.engine):
        raise _differs("model")
    if (instructions := (body.instructions or "").strip()) and run.instructions != instructions:
        raise _differs("instructions")
    if body.tools and tools != run.tools:
        raise _differs("tools")
    if body.store is False:
        raise _differs("store")
    if body.include is not None and body.encrypted != ("openai.encrypted" in run.labels):
        raise _differs("include")


def _differs(name: str) -> OpenAIError:
    reason = (
        "the outputs continue the response that called the functions, with its own settings: send the same, or none"
    )
    return unsupported(name, reason)
