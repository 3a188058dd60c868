"""The Responses API: builds its requests. Requests have the whole conversation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from turnwise.actors.inference.openai.fields import definition, mentions
from turnwise.actors.inference.openai.request import CACHE_KEY, RequestSettings
from turnwise.actors.inference.openai.responses_answer import ResponsesAnswer
from turnwise.actors.inference.openai.structured_output import Form, choose_tool
from turnwise.actors.inference.tools.tool import ToolDefinition
from turnwise.memory.conversation.blocks import Block
from turnwise.memory.providers.endpoints import lessons_of
from turnwise.memory.providers.openai_responses import encode
from turnwise.memory.providers.validation import RESPONSES

if TYPE_CHECKING:
    import openai

    from turnwise.actors.inference.openai.engine import OpenAIEngine


class ResponsesAPI:
    """Implements `API` of runner.py, which documents the methods, by requests for responses.

    Encrypted reasoning is sent back, unchanged, to the model that made it.
    """

    rules = RESPONSES
    key_setting = "api_key= or OPENAI_API_KEY"

    def __init__(self, settings: RequestSettings[OpenAIEngine]) -> None:
        self.settings = settings

    def of_run(self, settings: RequestSettings[OpenAIEngine]) -> ResponsesAPI:
        return ResponsesAPI(settings)

    @property
    def fields(self) -> dict[str, Any]:
        settings = self.settings
        own: dict[str, Any] = {"store": bool(settings.engine.store), **settings.cache_key}
        if "include" not in settings.refused:
            own["include"] = ["reasoning.encrypted_content"]
        fields = settings.fields(own, "max_output_tokens", map(_declared, settings.tools))
        for name, value in settings.params.items():
            outer, inner = _INNER.get(name, (name, ""))
            value = _CONVERTERS[name](value) if name in _CONVERTERS else value  # noqa: PLW2901
            fields[outer] = {**fields.get(outer, {}), inner: value} if inner else value
        return settings.of_step(fields)

    def request(self, blocks: Sequence[Block], form: Form | None) -> dict[str, Any]:
        profile = self.settings.profile
        rules = replace(self.rules, id_limit=sys.maxsize) if profile.has_long_ids else self.rules
        instructions, items_sent = encode(blocks, self.settings.model, rules, apart=not profile.alternates, checks=True)
        fields: dict[str, Any] = {"input": items_sent, **self.fields, **self._answer_fields(form)}
        if instructions:
            fields["instructions"] = instructions
        return fields

    def _answer_fields(self, form: Form | None) -> dict[str, Any]:
        """Return the fields that request an answer in this form."""
        fields = self.fields
        if form and form.tool:
            tools = [*fields.get("tools", ()), _declared(form.definition)]
            return {"tools": tools, **{name: _flat(choice) for name, choice in choose_tool(fields, form).items()}}
        text_format: dict[str, Any] = {}
        if form and form.json_schema:
            text_format = {"type": "json_schema", **form.json_schema}
        elif form and form.way == "json_object":
            text_format = {"type": "json_object"}
        return {"text": {**fields.get("text", {}), "format": text_format}} if text_format else {}

    def adapt(self, message: str, form: Form | None) -> bool:
        refused_fields = self.settings.refused
        if new := lessons_of(message) - refused_fields:
            refused_fields.update(new)
            return True
        # OpenAI's models without reasoning refuse `include` with a message that does not name the field.
        refuses_include = mentions(message, "include") or "encrypted content" in message.lower()
        refuses_choice = form and choose_tool(self.fields, form) and mentions(message, "tool_choice")
        refuses_key = self.settings.cache_key and mentions(message, CACHE_KEY)
        refusals = {"include": refuses_include, "tool_choice": refuses_choice, CACHE_KEY: refuses_key}
        known = {*(self.settings.engine.extra or ()), *refused_fields}
        fields = [name for name, is_refused in refusals.items() if is_refused and name not in known]
        if not fields and form:
            fields = form.refused_as(message)
        refused_fields.update(fields)
        return bool(fields)

    def blamed(self, error: openai.APIStatusError) -> tuple[str | None, str | None]:
        return error.code, error.param

    def without_thoughts(self, request: Mapping[str, Any], message: str) -> Mapping[str, Any] | None:
        if "encrypted" not in message:
            return None
        remaining = [item for item in request["input"] if item["type"] != "reasoning"]
        return None if len(remaining) == len(request["input"]) else {**request, "input": remaining}

    async def open(self, client: openai.AsyncOpenAI, request: Mapping[str, Any]) -> openai.AsyncStream[Any]:
        # `extra_body` is sent as it is; the client would take up to half a millisecond to inspect each item.
        return await client.responses.create(model=self.settings.model, stream=True, extra_body=request)

    def answer(self, form: Form | None) -> ResponsesAnswer:
        return ResponsesAnswer(self.settings.model, form.tool if form else None)


def _declared(tool: ToolDefinition) -> dict[str, Any]:
    return {"type": "function", **definition(tool), "strict": False}


def _flat(choice: Any) -> Any:
    """Return a tool choice of Chat Completions, which nests the function's name, in the format of this API."""
    return choice if isinstance(choice, str) else {"type": "function", **choice["function"]}


def _text_format(response_format: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `response_format` of Chat Completions, which nests the schema, in the format of this API."""
    return {"type": response_format["type"], **response_format.get("json_schema", {})}


_INNER = {
    "reasoning_effort": ("reasoning", "effort"),
    "verbosity": ("text", "verbosity"),
    "response_format": ("text", "format"),
}
"""Parameters that are sent inside another field: the field, and the name in it."""

_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {"tool_choice": _flat, "response_format": _text_format}
"""Converters for parameters that have another format in this API."""
