"""The Responses API: builds its requests and reads its answers. Requests have the whole conversation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from turnwise.actors.inference.openai.fields import (
    arguments_of,
    broken_off,
    definition,
    items,
    names,
    part,
    string,
    tool_use,
    usage_of,
)
from turnwise.actors.inference.openai.request import RequestSettings
from turnwise.actors.inference.openai.structured_output import Form, choose_tool
from turnwise.actors.inference.tools.tool import ToolDefinition
from turnwise.memory.conversation.blocks import AnyBlock, Block, Text, Thinking
from turnwise.memory.conversation.transcript import messages_of
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.providers.endpoints import lessons_of
from turnwise.memory.providers.openai_responses import encode, pack_reasoning
from turnwise.memory.providers.validation import RESPONSES, check

if TYPE_CHECKING:
    import openai

    from turnwise.actors.inference.openai.engine import OpenAIEngine

_REFUSAL = "response.refusal.delta"
_TEXT = ("response.output_text.delta", _REFUSAL)
_THOUGHT = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
_END = ("response.completed", "response.incomplete", "response.failed")

_BETWEEN = "\n\n"
"""Separates two messages of one answer, and two parts of one thought."""


class ResponsesAPI:
    """Makes requests for responses. Encrypted reasoning is sent back, unchanged, to the model that made it."""

    rules = RESPONSES
    key_setting = "api_key= or OPENAI_API_KEY"

    def __init__(self, settings: RequestSettings[OpenAIEngine]) -> None:
        self.settings = settings

    def of_run(self, settings: RequestSettings[OpenAIEngine]) -> ResponsesAPI:
        return ResponsesAPI(settings)

    @property
    def fields(self) -> dict[str, Any]:
        settings = self.settings
        own: dict[str, Any] = {"store": bool(settings.engine.store)}
        if "include" not in settings.refused:
            own["include"] = ["reasoning.encrypted_content"]
        fields = settings.fields(own, "max_output_tokens", map(_declared, settings.tools))
        for name, value in settings.params.items():
            outer, inner = _INNER.get(name, (name, ""))
            value = _FORMS[name](value) if name in _FORMS else value  # noqa: PLW2901
            fields[outer] = {**fields.get(outer, {}), inner: value} if inner else value
        return settings.of_step(fields)

    def request(self, blocks: Sequence[Block], form: Form | None) -> dict[str, Any]:
        check(messages_of(blocks), self.rules)
        has_long_ids = self.settings.profile.has_long_ids
        rules = replace(self.rules, id_limit=sys.maxsize) if has_long_ids else self.rules
        instructions, items_sent = encode(blocks, self.settings.model, rules)
        fields: dict[str, Any] = {"input": items_sent, **self.fields, **self._formed(form)}
        if instructions:
            fields["instructions"] = instructions
        return fields

    def _formed(self, form: Form | None) -> dict[str, Any]:
        """Return the fields that request an answer in this form."""
        fields = self.fields
        if form and form.tool:
            tools = [*fields.get("tools", ()), _declared(form.definition)]
            return {"tools": tools, **{name: _flat(choice) for name, choice in choose_tool(fields, form).items()}}
        kind: dict[str, Any] = {}
        if form and form.json_schema:
            kind = {"type": "json_schema", **form.json_schema}
        elif form and form.way == "json_object":
            kind = {"type": "json_object"}
        return {"text": {**fields.get("text", {}), "format": kind}} if kind else {}

    def adapt(self, refused: str, form: Form | None) -> bool:
        known = self.settings.refused
        if new := lessons_of(refused) - known:
            known.update(new)
            return True
        # OpenAI's models without reasoning refuse `include` with a message that does not name the field.
        is_include = names(refused, "include") or "encrypted content" in refused.lower()
        is_choice = form and choose_tool(self.fields, form) and names(refused, "tool_choice")
        found = [name for name, is_named in {"include": is_include, "tool_choice": is_choice}.items() if is_named]
        found = [name for name in found if name not in (self.settings.engine.extra or ()) and name not in known]
        if not found and form:
            found = form.refused_as(refused)
        known.update(found)
        return bool(found)

    def blamed(self, error: openai.APIStatusError) -> tuple[str | None, str | None]:
        return error.code, error.param

    def without_thoughts(self, request: Mapping[str, Any], refused: str) -> Mapping[str, Any] | None:
        if "encrypted" not in refused:
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


def _format(form: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": form["type"], **form.get("json_schema", {})}


_INNER = {
    "reasoning_effort": ("reasoning", "effort"),
    "verbosity": ("text", "verbosity"),
    "response_format": ("text", "format"),
}
"""Parameters that are sent inside another field: the field, and the name in it."""

_FORMS: Mapping[str, Callable[[Any], Any]] = {"tool_choice": _flat, "response_format": _format}
"""Converters for parameters that have another format in this API."""


class ResponsesAnswer:
    """A response, assembled from its events: a `Thinking` for each reasoning item, at most one `Text`, then tool calls.

    Args:
        model: the model that makes the reasoning; stored in its signature.
        answer_tool: the tool whose arguments are the answer; they are emitted as text.
    """

    def __init__(self, model: str = "", answer_tool: str | None = None) -> None:
        self.usage = Usage(calls=1)
        self.stop_reason: str | None = None
        self.refusal = ""
        self._model = model
        self._answer_tool = answer_tool
        self._has_answered = False
        """Whether arguments of the answer tool were emitted."""
        self._items: list[_Item] = []
        self._texts: list[str] = []
        self._text_item: _Item | None = None
        """The last item with text."""

    @property
    def is_cut(self) -> bool:
        return self.stop_reason == "max_output_tokens"

    def add(self, event: Mapping[str, Any]) -> list[str | Block]:
        kind = string(event, "type")
        if kind in _TEXT and (text := string(event, "delta")):
            self.refusal += text * (kind == _REFUSAL)
            return [self._add_text(self._item(event, "message"), text)]
        if kind in _THOUGHT and (text := string(event, "delta")):
            return [Thinking(text=self._item(event, "reasoning").add_thought(text, event.get("summary_index")))]
        if kind == "response.function_call_arguments.delta":
            return list(self._add_arguments(self._item(event, "function_call"), string(event, "delta")))
        if kind in ("response.output_item.added", "response.output_item.done"):
            self._update(part(event, "item"), event.get("output_index"), is_done=kind.endswith("done"))
        elif kind in _END:
            return list(self._end(kind, part(event, "response")))
        elif kind == "error":
            raise broken_off(event)
        elif event.get("object") == "response":  # the whole response, although a stream was requested
            return list(self._end(f"response.{string(event, 'status') or 'completed'}", event))
        return []

    def blocks(self) -> list[AnyBlock]:
        thoughts: list[AnyBlock] = []
        calls: list[AnyBlock] = []
        before = 0
        """How many items before this one are not reasoning."""
        has_spoken = False
        for item in self._items:
            if item.kind == "reasoning":
                if thought := item.thought(self._model, before):
                    thoughts.append(thought)
            elif item.kind == "function_call":
                before += 1
                calls.append(tool_use(len(calls), item.call_id, item.name, item.arguments, is_cut=self.is_cut))
            elif item.kind == "message" and not has_spoken:
                before, has_spoken = before + 1, True
        texts = [Text(text="".join(self._texts))] if self._texts else []
        return [*thoughts, *texts, *calls]

    def _add_arguments(self, item: _Item, arguments: str) -> Iterator[str]:
        item.arguments += arguments
        if arguments and item.name == self._answer_tool:
            self._has_answered = True
            yield arguments

    def _add_text(self, item: _Item, text: str) -> str:
        text = _BETWEEN * (self._text_item not in (None, item)) + text
        self._text_item = item
        self._texts.append(text)
        return text

    def _item(self, event: Mapping[str, Any], kind: str) -> _Item:
        """Return the item of an event: the one with its id, else the newest at its place, else a new one."""
        return self._find(string(event, "item_id"), event.get("output_index"), kind)

    def _find(self, item_id: str, place: Any, kind: str) -> _Item:
        for item in reversed(self._items):
            if item_id and item.id == item_id:
                return item
        for item in reversed(self._items):
            if item.place == place and item.kind == kind and not (item_id and item.id):
                item.id = item.id or item_id
                return item
        self._items.append(_Item(kind, item_id, place))
        return self._items[-1]

    def _update(self, given: Mapping[str, Any], place: Any, *, is_done: bool) -> _Item:
        kind, item_id, call_id = string(given, "type"), string(given, "id"), string(given, "call_id")
        same = [item for item in self._items if call_id and item.call_id == call_id]
        item = same[0] if same else self._find(item_id, place, kind)
        item.update(given, is_done=is_done)
        return item

    def _end(self, kind: str, response: Mapping[str, Any]) -> Iterator[str | Block]:
        """Process the final state of the response; yield its text, if none was streamed."""
        if counted := response.get("usage"):
            self.usage = usage_of(counted, "input", "output")
        has_text = bool(self._texts)
        for place, given in enumerate(items(response, "output")):
            item = self._update(given, place, is_done=True)
            if item.kind == "function_call" and item.name == self._answer_tool and not self._has_answered:
                self._has_answered = True
                yield item.arguments
            if item.kind == "message" and not has_text:
                for content in items(given, "content"):
                    refusal = string(content, "refusal")
                    self.refusal += refusal
                    if text := string(content, "text") or refusal:
                        yield self._add_text(item, text)
        if kind == "response.completed":
            called = any(item.kind == "function_call" for item in self._items)
            self.stop_reason = "tool_calls" if called else "stop"
        elif kind == "response.incomplete":
            self.stop_reason = string(part(response, "incomplete_details"), "reason") or "incomplete"
        else:
            raise broken_off(response.get("error") or f"the response is {string(response, 'status') or kind}")


@dataclass(slots=True, eq=False)
class _Item:
    """An item of the output, first as it is streamed, then in its final state."""

    kind: str
    id: str = ""
    place: Any = None
    encrypted_content: str = ""
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    thoughts: list[str] = field(default_factory=list)
    """The parts of the reasoning."""
    part: Any = None
    """The index of the part of the reasoning that is being streamed."""

    def add_thought(self, text: str, at: Any) -> str:
        """Add text to the reasoning; return it, with a separator if it begins a new part."""
        if not self.thoughts:
            self.thoughts.append(text)
        elif at != self.part:
            self.thoughts.append(text)
            text = _BETWEEN + text
        else:
            self.thoughts[-1] += text
        self.part = at
        return text

    def update(self, item: Mapping[str, Any], *, is_done: bool) -> None:
        if self.kind == "function_call":
            self.call_id, self.name = string(item, "call_id") or self.call_id, string(item, "name") or self.name
            self.arguments = arguments_of(item) or self.arguments
        elif self.kind == "reasoning" and is_done:
            self.id = string(item, "id") or self.id
            self.encrypted_content = string(item, "encrypted_content") or self.encrypted_content
            if parts := items(item, "summary") or items(item, "content"):
                self.thoughts = [string(part, "text") for part in parts]

    def thought(self, model: str, before: int) -> Thinking | None:
        """Return the reasoning; None if there is nothing to show and nothing to send back."""
        signature = None
        if self.id and self.encrypted_content:
            signature = pack_reasoning(self.id, self.encrypted_content, model, before, tuple(map(len, self.thoughts)))
        text = _BETWEEN.join(self.thoughts)
        return Thinking(text=text, signature=signature) if text or signature else None
