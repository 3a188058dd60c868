"""The Responses API, with nothing stored there: what the model said and thought is sent along each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from turnwise.actors.inference.openai_fields import BrokenOffError, count, definition, items, string, tool_use
from turnwise.actors.inference.tools import ToolDefinition
from turnwise.memory.blocks import Block, Text, Thinking
from turnwise.memory.responses import encode, pack_reasoning
from turnwise.memory.rules import RESPONSES, check
from turnwise.memory.transcript import messages_of
from turnwise.memory.usage import Usage

if TYPE_CHECKING:
    import openai

    from turnwise.actors.inference.openai import OpenAIEngine

_TEXT = ("response.output_text.delta", "response.refusal.delta")
_THOUGHT = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
_END = ("response.completed", "response.incomplete", "response.failed")

_BETWEEN = "\n\n"
"""Stands between two messages of one answer, and between two parts of one thought."""


class ResponsesAPI:
    """Asks for responses. Reasoning comes encrypted, and goes back as it came."""

    rules = RESPONSES

    def __init__(self, settings: OpenAIEngine, tools: Sequence[ToolDefinition]) -> None:
        self._settings = settings
        self.fields: dict[str, Any] = {}
        """What each request holds beside the conversation: the settings, and what the model is told of tools."""
        if settings.temperature is not None:
            self.fields["temperature"] = settings.temperature
        if settings.max_output_tokens is not None:
            self.fields["max_output_tokens"] = settings.max_output_tokens
        self.fields.update(settings.extra or {})
        if functions := [{"type": "function", **definition(tool), "strict": False} for tool in tools]:
            self.fields["tools"] = [*functions, *self.fields.get("tools", ())]

    def request(self, blocks: Sequence[Block]) -> dict[str, Any]:
        check(messages_of(blocks), self.rules)
        instructions, given = encode(blocks)
        fields: dict[str, Any] = {"input": given}
        if instructions:
            fields["instructions"] = instructions
        return fields

    async def open(self, client: openai.AsyncOpenAI, request: Mapping[str, Any]) -> openai.AsyncStream[Any]:
        stream: openai.AsyncStream[Any] = await client.responses.create(
            model=self._settings.model,
            stream=True,
            store=False,
            include=["reasoning.encrypted_content"],
            # What is given here goes out as it is: the client takes up to half a millisecond to look at one item.
            extra_body={**request, **self.fields},
        )
        return stream

    def answer(self) -> ResponsesAnswer:
        return ResponsesAnswer()


class ResponsesAnswer:
    """A response, put together from its events: a `Thinking` for each reasoning item, at most one `Text`, the calls."""

    def __init__(self) -> None:
        self.usage = Usage(calls=1)
        self.stop_reason: str | None = None
        self._items: dict[Any, _Item] = {}
        """By their place in the output."""
        self._texts: list[str] = []
        self._spoke: Any = None
        """The place of the last item with text."""

    @property
    def is_cut(self) -> bool:
        return self.stop_reason == "max_output_tokens"

    def add(self, event: Any) -> list[str | Block]:
        kind, place = string(event, "type"), getattr(event, "output_index", None)
        if kind in _TEXT and (text := string(event, "delta")):
            text = _BETWEEN * (self._spoke not in (None, place)) + text
            self._spoke = place
            self._texts.append(text)
            return [text]
        if kind in _THOUGHT and (text := string(event, "delta")):
            return [Thinking(text=self._item(place, "reasoning").think(text, getattr(event, "summary_index", None)))]
        if kind == "response.function_call_arguments.delta":
            self._item(place, "function_call").arguments += string(event, "delta")
        elif kind in ("response.output_item.added", "response.output_item.done"):
            item = getattr(event, "item", None)
            self._item(place, string(item, "type")).learn(item, is_done=kind.endswith("done"))
        elif kind in _END:
            self._end(kind, getattr(event, "response", None))
        elif kind == "error":
            raise BrokenOffError(string(event, "message"), string(event, "code"))
        return []

    def blocks(self) -> list[Block]:
        placed = list(self._items.values())
        thoughts = [thought for item in placed if item.kind == "reasoning" and (thought := item.thought())]
        texts = [Text(text="".join(self._texts))] if self._texts else []
        calls = [
            tool_use(item.call_id, item.name, item.arguments, is_cut=self.is_cut)
            for item in placed
            if item.kind == "function_call"
        ]
        return [*thoughts, *texts, *calls]

    def _item(self, place: Any, kind: str) -> _Item:
        return self._items.setdefault(place, _Item(kind))

    def _end(self, kind: str, response: Any) -> None:
        if counted := getattr(response, "usage", None):
            self.usage = _usage(counted)
        if kind == "response.completed":
            called = any(item.kind == "function_call" for item in self._items.values())
            self.stop_reason = "tool_calls" if called else "stop"
        elif kind == "response.incomplete":
            self.stop_reason = string(getattr(response, "incomplete_details", None), "reason") or "incomplete"
        else:
            error = getattr(response, "error", None)
            raise BrokenOffError(string(error, "message") or "it does not say why", string(error, "code"))


@dataclass(slots=True)
class _Item:
    """An item of the output: what was streamed of it, in whose place comes what it is in the end."""

    kind: str
    id: str = ""
    encrypted_content: str = ""
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    thoughts: list[str] = field(default_factory=list)
    part: Any = None
    """The index of the part of the thought that is being streamed."""

    def think(self, text: str, part: Any) -> str:
        """Add to the thought; return what was added."""
        text = _BETWEEN * (bool(self.thoughts) and part != self.part) + text
        self.part = part
        self.thoughts.append(text)
        return text

    def learn(self, item: Any, *, is_done: bool) -> None:
        if self.kind == "function_call":
            self.call_id, self.name = string(item, "call_id"), string(item, "name")
            self.arguments = string(item, "arguments") or self.arguments
        elif self.kind == "reasoning" and is_done:
            self.id, self.encrypted_content = string(item, "id"), string(item, "encrypted_content")
            if parts := items(item, "summary") or items(item, "content"):
                self.thoughts = [_BETWEEN.join(string(part, "text") for part in parts)]

    def thought(self) -> Thinking | None:
        """Return the thought if there is anything to show or to send back."""
        signature = pack_reasoning(self.id, self.encrypted_content) if self.id and self.encrypted_content else None
        text = "".join(self.thoughts)
        return Thinking(text=text, signature=signature) if text or signature else None


def _usage(counted: Any) -> Usage:
    given, made = (getattr(counted, f"{side}_tokens_details", None) for side in ("input", "output"))
    return Usage(
        input_tokens=count(counted, "input_tokens"),
        output_tokens=count(counted, "output_tokens"),
        cached_tokens=count(given, "cached_tokens"),
        reasoning_tokens=count(made, "reasoning_tokens"),
        calls=1,
    )
