"""Anthropic's Messages API: builds its requests and reads its answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from turnwise.actors.inference.openai.fields import (
    count,
    definition,
    grown,
    items,
    mentions,
    part,
    piece,
    string,
    tool_use,
)
from turnwise.actors.inference.openai.request import RequestSettings
from turnwise.actors.inference.openai.structured_output import Form, choose_tool
from turnwise.actors.inference.tools.tool import ToolDefinition
from turnwise.memory.conversation.blocks import AnyBlock, Block, Citations, Text, Thinking
from turnwise.memory.conversation.model_params import forces_call
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.providers.anthropic import MAX_MARKS, encode
from turnwise.memory.providers.validation import ANTHROPIC
from turnwise.memory.values.frozen_json import freeze
from turnwise.memory.values.growing_text import GrowingText, whole_json

if TYPE_CHECKING:
    import anthropic

    from turnwise.adapters.anthropic.engine import AnthropicEngine

LIMIT = "max_tokens"
"""The field for the maximum length of an answer, which each request must have."""

MARK = "cache_control"
"""The field of a part of a request up to which the provider keeps the request for the next one."""

_MOST_TOKENS = 8192
"""The maximum length of an answer, beside its thoughts, if the engine has none."""

_THOUGHTS = ("thinking", "redacted_thinking")

_NOT_TAKEN = {
    "frequency_penalty": "Anthropic has no such parameter: omit it",
    "presence_penalty": "Anthropic has no such parameter: omit it",
    "seed": "Anthropic has no such parameter: omit it",
    "verbosity": "Anthropic has no such parameter: say in the system prompt how long answers are",
    "prompt_cache_key": "Anthropic has no such parameter: use AnthropicEngine(cache=...)",
}

_SERVICE_TIERS = {"auto": "auto", "default": "standard_only"}


WITH_SAMPLING = "2023-06-01"
"""The last version of the API that takes `temperature`, `top_p`, `top_k`. The official client asks for a later one."""


def not_taken(name: str, value: Any, thinking: object, version: str | None) -> str | None:
    """Return why the API does not support a parameter of a run with this value; None if it does.

    Args:
        thinking: the engine's `thinking`.
        version: the version of the API that the engine's headers ask for; None for the official client's.
    """
    match name:
        case "temperature" | "top_p" | "top_k" if version != WITH_SAMPLING:
            reason = f"Anthropic's API takes it up to version {WITH_SAMPLING} only: omit it, or pin that version with "
            reason += f"default_headers={{'anthropic-version': '{WITH_SAMPLING}'}}"
        case "temperature" if value > 1:
            reason = "Anthropic takes 0 to 1"
        case "temperature" if thinking:
            reason = "Anthropic refuses it beside thinking=: omit one of them"
        case "tool_choice" if thinking and forces_call(value):
            reason = "Anthropic refuses a forced call beside thinking=: pass 'auto' or 'none'"
        case "max_output_tokens" if isinstance(thinking, int) and value <= thinking:
            reason = f"must be more than the {thinking} tokens of thinking="
        case "reasoning_effort" if value == "minimal":
            reason = "Anthropic takes none, low, medium, high, xhigh and max"
        case "service_tier" if value not in _SERVICE_TIERS:
            reason = f"Anthropic takes {' and '.join(_SERVICE_TIERS)}"
        case "metadata" if value.keys() != {"user_id"}:
            reason = "Anthropic takes only user_id"
        case "response_format" if value["type"] == "json_object":
            reason = "Anthropic takes schemas only: pass a json_schema"
        case _:
            return _NOT_TAKEN.get(name)
    return reason


class MessagesAPI:
    """Implements `API` of openai/runner.py, which documents the methods, by requests for messages.

    Signed and redacted thoughts are sent back unchanged.
    """

    rules = ANTHROPIC
    key_setting = "the variable of api_key_variable=, in the session's process"

    def __init__(self, settings: RequestSettings[AnthropicEngine]) -> None:
        self.settings = settings

    def of_run(self, settings: RequestSettings[AnthropicEngine]) -> MessagesAPI:
        return MessagesAPI(settings)

    @property
    def fields(self) -> dict[str, Any]:
        return _on_wire(self._fields)

    @property
    def _fields(self) -> dict[str, Any]:
        """The fields of a request, with the choice of tools in OpenAI's format."""
        settings, thinking = self.settings, self.settings.engine.thinking
        own: dict[str, Any] = {}
        if thinking == "adaptive":
            own["thinking"] = {"type": "adaptive"}
        elif thinking:
            own["thinking"] = {"type": "enabled", "budget_tokens": thinking}
        fields = settings.fields(own, LIMIT, map(_declared, settings.tools))
        fields.setdefault(LIMIT, _MOST_TOKENS + (thinking if isinstance(thinking, int) else 0))
        for name, value in settings.params.items():
            _set_param(fields, name, value)
        return settings.of_step(fields)

    def request(self, blocks: Sequence[Block], form: Form | None) -> dict[str, Any]:
        fields = _on_wire(self._with_answer_fields(self._fields, form))
        marks = 0 if MARK in self.settings.refused else max(0, MAX_MARKS - _mark_count(fields))
        system, messages = encode(blocks, self.rules, cache=self.settings.engine.cache, marks=marks, checks=True)
        request = {"messages": messages, **fields}
        if system:
            request["system"] = system
        return request if _may_think(messages) else _without_thinking(request)

    def _with_answer_fields(self, fields: dict[str, Any], form: Form | None) -> dict[str, Any]:
        """Return the fields of a request for an answer in this form."""
        if form and form.tool:
            tools = [*fields.get("tools", ()), _declared(form.definition)]
            return {**fields, "tools": tools, **choose_tool(fields, form)}
        if form and form.json_schema:
            answer_format = {"type": "json_schema", "schema": form.json_schema["schema"]}
            return {**fields, "output_config": {**fields.get("output_config", {}), "format": answer_format}}
        return fields

    def adapt(self, message: str, form: Form | None) -> bool:
        refused_fields = self.settings.refused
        if mentions(message, MARK) and MARK not in refused_fields:  # not every gateway knows it
            refused_fields.add(MARK)
            return True
        new = set(form.refused_as(message) if form else ()) - refused_fields
        if form and form.is_forced and mentions(message, "tool_choice"):
            new = {"tool_choice"} - refused_fields
        refused_fields.update(new)
        return bool(new)

    def blamed(self, error: anthropic.APIStatusError) -> tuple[str | None, str | None]:
        # Such as "thinking.budget_tokens: Input should be greater than or equal to 1024".
        match = re.match(r"([a-z_]+)[\w.]*:", error.api_message or "")
        return error.error_code, match[1] if match else None

    def without_thoughts(self, request: Mapping[str, Any], message: str) -> Mapping[str, Any] | None:
        if not (mentions(message, "signature") and "thinking" in message):
            return None
        messages = [
            {**message, "content": [part for part in message["content"] if part["type"] not in _THOUGHTS]}
            for message in request["messages"]
        ]
        shorter = {**request, "messages": messages}
        return (
            None if messages == request["messages"] else shorter if _may_think(messages) else _without_thinking(shorter)
        )

    async def open(self, client: anthropic.AsyncAnthropic, request: Mapping[str, Any]) -> Any:
        # `extra_body` is sent as it is, and the client warns of no model: its name is none of the client's.
        body = {"model": self.settings.model, **request}
        return await client.messages.create(model="", max_tokens=1, messages=[], stream=True, extra_body=body)

    def answer(self, form: Form | None) -> MessagesAnswer:
        return MessagesAnswer(form.tool if form else None)


def _mark_count(value: Any) -> int:
    """Return how many parts of a field are marked for the cache."""
    if isinstance(value, Mapping):
        return (MARK in value) + sum(map(_mark_count, value.values()))
    return sum(map(_mark_count, value)) if isinstance(value, list | tuple) else 0


def _declared(tool: ToolDefinition) -> dict[str, Any]:
    declared = definition(tool)
    return {"name": declared["name"], "description": declared["description"], "input_schema": declared["parameters"]}


def _set_param(fields: dict[str, Any], name: str, value: Any) -> None:
    """Add a parameter of a run to the fields of a request; see `not_taken`."""
    match name:
        case "max_output_tokens":
            fields[LIMIT] = value
        case "stop":
            fields["stop_sequences"] = [value] if isinstance(value, str) else list(value)
        case "reasoning_effort" if value == "none":
            fields["thinking"] = {"type": "disabled"}
        case "reasoning_effort":
            fields["output_config"] = {**fields.get("output_config", {}), "effort": value}
        case "response_format" if value["type"] == "json_schema":
            answer_format = {"type": "json_schema", "schema": value["json_schema"].get("schema") or {}}
            fields["output_config"] = {**fields.get("output_config", {}), "format": answer_format}
        case "response_format":
            pass
        case "service_tier":
            fields[name] = _SERVICE_TIERS[value]
        case "safety_identifier":
            fields["metadata"] = {"user_id": value}
        case _:
            fields[name] = value


def _on_wire(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with the choice of tools in the format of this API."""
    fields = dict(fields)
    choice, is_parallel = fields.pop("tool_choice", None), fields.pop("parallel_tool_calls", True)
    if isinstance(choice, str):
        choice = {"type": "any" if choice == "required" else choice}
    elif choice and choice.get("type") == "function":
        choice = {"type": "tool", "name": choice["function"]["name"]}
    if not is_parallel and (choice or {}).get("type") != "none":
        choice = {**(choice or {"type": "auto"}), "disable_parallel_tool_use": True}
    return {**fields, "tool_choice": choice} if choice else fields


def _may_think(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a request with these messages may enable thinking.

    If it ends in tool results, the calls must follow a thought. Calls of other models have none.
    """
    if len(messages) < 2 or messages[-1]["content"][0]["type"] != "tool_result":  # noqa: PLR2004 - calls and results
        return True
    return messages[-2]["content"][0]["type"] in _THOUGHTS


def _without_thinking(request: Mapping[str, Any]) -> dict[str, Any]:
    is_budget = part(request, "thinking").get("type") == "enabled"
    return {name: value for name, value in request.items() if name != "thinking" or not is_budget}


@dataclass(slots=True)
class _Part:
    """A part of the answer: a text, a thought or a call, joined from its deltas."""

    kind: str
    text: GrowingText = field(default_factory=GrowingText)
    """The text, the thought, or the JSON of the arguments."""
    signature: GrowingText = field(default_factory=GrowingText)
    data: str = ""
    """The data of a redacted thought."""
    call_id: str = ""
    name: str = ""
    full_input: str = ""
    """The JSON of the arguments with which the call began, if it has some; those of its deltas count."""
    citations: list[Any] = field(default_factory=list)


class MessagesAnswer:
    """A message, assembled from its events: thoughts, texts and tool calls in the order in which the model made them.

    Args:
        answer_tool: the tool whose arguments are the answer; they are emitted as text.
    """

    def __init__(self, answer_tool: str | None = None) -> None:
        self.usage = Usage(calls=1)
        self.stop_reason: str | None = None
        self.refusal = ""
        self._answer_tool = answer_tool
        self._counts: dict[str, Any] = {}
        self._parts: dict[int, _Part] = {}

    @property
    def is_cut(self) -> bool:
        return self.stop_reason in (LIMIT, "model_context_window_exceeded")

    def add(self, event: Mapping[str, Any]) -> list[str | Block]:
        match event.get("type"):
            case "message_start":
                self._count(part(event, "message").get("usage"))
            case "message":  # a server that does not stream
                self._end(event)
                self._count(event.get("usage"))
                contents = enumerate(items(event, "content"))
                return [
                    new for index, content in contents for new in (*self._begin(index, content), *self._finish(index))
                ]
            case "content_block_start":
                return self._begin(count(event, "index"), part(event, "content_block"))
            case "content_block_delta":
                return self._continue(count(event, "index"), part(event, "delta"))
            case "content_block_stop":
                return self._finish(count(event, "index"))
            case "message_delta":
                self._end(part(event, "delta"))
                self._count(event.get("usage"))
        return []

    def end(self) -> list[str | Block]:
        return [new for index in sorted(self._parts) for new in self._finish(index)]

    def blocks(self) -> list[AnyBlock]:
        self.end()
        blocks: list[AnyBlock] = []
        for index, answer_part in sorted(self._parts.items()):
            text = str(answer_part.text)
            match answer_part.kind:
                case "text" if text:
                    blocks.append(Text(text=text))
                    if answer_part.citations:
                        blocks.append(Citations(items=freeze(whole_json(answer_part.citations))))
                case "thinking":
                    blocks.append(Thinking(text=text, signature=str(answer_part.signature) or None))
                case "redacted_thinking":
                    blocks.append(Thinking(redacted=answer_part.data))
                case "tool_use":
                    blocks.append(
                        tool_use(
                            index,
                            answer_part.call_id,
                            answer_part.name,
                            text or answer_part.full_input,
                            is_cut=self.is_cut,
                        )
                    )
        return blocks

    def _begin(self, index: int, content: Any) -> list[str | Block]:
        kind = string(content, "type")
        begun = self._parts[index] = _Part(kind)
        match kind:
            case "text":
                return self._continue(index, {"type": "text_delta", "text": content.get("text")})
            case "thinking":
                pieces = self._continue(index, {"type": "thinking_delta", "thinking": content.get("thinking")})
                signature = string(content, "signature")
                return [*pieces, *self._continue(index, {"type": "signature_delta", "signature": signature})]
            case "redacted_thinking":
                begun.data = string(content, "data")
                return [Thinking(redacted=begun.data)] if begun.data else []
            case "tool_use":
                begun.call_id, begun.name = string(content, "id"), string(content, "name")
                call_input = content.get("input")  # filled only by servers that do not stream
                begun.full_input = (
                    call_input if isinstance(call_input, str) else json.dumps(call_input) if call_input else ""
                )
        return []

    def _continue(self, index: int, delta: Mapping[str, Any]) -> list[str | Block]:
        begun = self._parts.get(index) or self._parts.setdefault(index, _Part("text"))
        match string(delta, "type"):
            case "text_delta" if text := begun.text.add(piece(delta, "text")):
                return [text]
            case "thinking_delta" if text := begun.text.add(piece(delta, "thinking")):
                return [Thinking(text=text)]
            case "signature_delta" if signature := begun.signature.add(string(delta, "signature")):
                rest = begun.text.end()
                return [Thinking(text=rest, signature=signature)]
            case "input_json_delta" if text := begun.text.add(piece(delta, "partial_json")):
                return [text] if begun.name == self._answer_tool else []
            case "citations_delta" if cited := part(delta, "citation"):
                begun.citations.append(cited)
        return []

    def _finish(self, index: int) -> list[str | Block]:
        """Return the rest of a part that has ended."""
        ended = self._parts.get(index, _Part(""))
        text = ended.text.end()
        if ended.kind == "tool_use":
            text = text or ("" if ended.text else ended.text.add(ended.full_input))
            return [text] if text and ended.name == self._answer_tool else []
        return [Thinking(text=text) if ended.kind == "thinking" else text] if text else []

    def _end(self, ended: Mapping[str, Any]) -> None:
        self.stop_reason = string(ended, "stop_reason") or self.stop_reason
        if self.stop_reason == "refusal":
            self.refusal = string(part(ended, "stop_details"), "explanation") or "without an explanation"

    def _count(self, counted: Any) -> None:
        """Take over the counts of tokens, which grow. The input includes what was read from the cache."""
        self._counts = grown(self._counts, counted)
        cached = count(self._counts, "cache_read_input_tokens")
        written = count(self._counts, "cache_creation_input_tokens")
        self.usage = Usage(
            input_tokens=count(self._counts, "input_tokens") + cached + written,
            output_tokens=count(self._counts, "output_tokens"),
            cached_tokens=cached,
            reasoning_tokens=count(self._counts, "output_tokens_details", "thinking_tokens"),
            calls=1,
        )
