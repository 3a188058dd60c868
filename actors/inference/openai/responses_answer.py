"""`ResponsesAnswer`: assembles an answer of the Responses API from its events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.actors.inference.openai.fields import (
    arguments_of,
    broken_off,
    grown,
    items,
    part,
    piece,
    string,
    tool_use,
    usage_of,
)
from turnwise.memory.conversation.blocks import AnyBlock, Block, Text, Thinking
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.providers.openai_responses import pack_reasoning
from turnwise.memory.values.growing_text import GrowingText, whole

_TEXTS: Mapping[str, str] = {
    "response.output_text.delta": "delta",
    "response.output_text.done": "text",
    "response.refusal.delta": "delta",
    "response.refusal.done": "refusal",
    "response.reasoning_summary_text.delta": "delta",
    "response.reasoning_summary_text.done": "text",
    "response.reasoning_text.delta": "delta",
    "response.reasoning_text.done": "text",
}
"""The events about a text, a refusal or a thought, and the field in which they have it or a piece of it."""

_PARTS = ("response.content_part.done", "response.reasoning_summary_part.done")
_ARGUMENTS = "response.function_call_arguments."
_END = ("response.completed", "response.incomplete", "response.failed")

_BETWEEN = "\n\n"
"""Separates two messages of one answer, and two parts of one thought."""

_Key = tuple[str, int]
"""A part of an item: its type, as the events call it, and its number."""


class ResponsesAnswer:
    """A response, assembled from its events: a `Thinking` for each reasoning item, at most one `Text`, then tool calls.

    An event with a whole text (`...done`, an item, the response) completes the text that was streamed, since some
    servers send no pieces, or leave some out.

    Args:
        model: the model that makes the reasoning; stored in its signature.
        answer_tool: the tool whose arguments are the answer; they are emitted as text.
    """

    def __init__(self, model: str = "", answer_tool: str | None = None) -> None:
        self.usage = Usage(calls=1)
        self.stop_reason: str | None = None
        self._model = model
        self._answer_tool = answer_tool
        self._counts: dict[str, Any] = {}
        self._refusal = GrowingText()
        self._items: list[_Item] = []
        self._by_id: dict[str, _Item] = {}
        """The items by the ids of items, and of calls."""
        self._newest: dict[tuple[Any, str], _Item] = {}
        """The newest item at a place, of a kind."""
        self._text = GrowingText()
        self._text_item: _Item | None = None
        """The last item with text."""

    @property
    def is_cut(self) -> bool:
        return self.stop_reason == "max_output_tokens"

    @property
    def refusal(self) -> str:
        return str(self._refusal)

    def add(self, event: Mapping[str, Any]) -> list[str | Block]:
        kind = string(event, "type")
        if counted := part(event, "response").get("usage") or event.get("usage"):
            self._counts = grown(self._counts, counted)
            self.usage = usage_of(self._counts, "input", "output")
        if kind in _TEXTS or kind in _PARTS:
            return self._add_part(event, kind)
        if kind.startswith(_ARGUMENTS):
            return self._add_arguments(event, is_whole=kind.endswith("done"))
        if kind in ("response.output_item.added", "response.output_item.done"):
            return self._update(part(event, "item"), event.get("output_index"), is_done=kind.endswith("done"))[1]
        if kind == "error":
            raise broken_off(event)
        if kind in _END:
            return list(self._end(kind, part(event, "response")))
        if event.get("object") == "response":  # the whole response, although a stream was requested
            return list(self._end(f"response.{string(event, 'status') or 'completed'}", event))
        return []

    def end(self) -> list[str | Block]:
        texts = [(item, key, text) for item in self._items for key, text in item.texts.items()]
        pieces = [new for item, key, text in texts for new in self._say(item, key, text.end())]
        return pieces + [new for item in self._items for new in self._shown(item, item.end_arguments())]

    def blocks(self) -> list[AnyBlock]:
        self.end()
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
                arguments = str(item.arguments)
                calls.append(tool_use(len(calls), item.call_id, item.name, arguments, is_cut=self.is_cut))
            elif item.kind == "message" and not has_spoken:
                before, has_spoken = before + 1, True
        texts = [Text(text=str(self._text))] if self._text else []
        return [*thoughts, *texts, *calls]

    # Texts and thoughts

    def _add_part(self, event: Mapping[str, Any], kind: str) -> list[str | Block]:
        """Add a piece of a text, a refusal or a thought, or the whole of it."""
        content = part(event, "part")
        if kind in _TEXTS:
            name, text = kind.removeprefix("response.").rpartition(".")[0], piece(event, _TEXTS[kind])
        else:
            name = _NAMES.get(string(content, "type"), "")
            text = piece(content, "refusal" if name == "refusal" else "text")
        if not name:
            return []
        number = _number(event.get("summary_index" if name == "reasoning_summary_text" else "content_index")) or 0
        item = self._item(event, "reasoning" if name.startswith("reasoning") else "message")
        return self._grow(item, (name, number), text, is_whole=not kind.endswith("delta"))

    def _add_arguments(self, event: Mapping[str, Any], *, is_whole: bool) -> list[str | Block]:
        item = self._item(event, "function_call")
        item.name = item.name or string(event, "name")
        text = arguments_of(event) if is_whole else piece(event, "delta")
        return self._shown(item, item.add_arguments(text, is_whole=is_whole))

    def _grow(self, item: _Item, key: _Key, text: str, *, is_whole: bool) -> list[str | Block]:
        """Add a piece of a part, or the whole part; return what is new of it."""
        if is_whole and item.kind == "reasoning":
            # A thought that was streamed as its text may be summarised at the end, or the other way round; one that is
            # only known behind the text is in the whole answer.
            text = "" if self._text or any(name != key[0] for name, _ in item.texts) else text
        if not text:
            return []
        growing = item.texts.setdefault(key, GrowingText())
        return self._say(item, key, growing.complete(text) if is_whole else growing.add(text))

    def _say(self, item: _Item, key: _Key, text: str) -> list[str | Block]:
        """Return new text of a part as it is shown."""
        if not text:
            return []
        if item.kind == "reasoning":
            text = _BETWEEN * (item.last not in (None, key)) + text
            item.last = key
            return [Thinking(text=text)]
        if key[0] == "refusal":
            self._refusal.add(text)
        text = _BETWEEN * (self._text_item not in (None, item)) + text
        self._text_item = item
        self._text.add(text)
        return [text]

    def _shown(self, item: _Item, arguments: str) -> list[str | Block]:
        """Return new arguments as they are shown, if they are the answer."""
        if item.name != self._answer_tool:
            return []
        shown, item.shown = item.shown, len(item.arguments)
        new = arguments if shown + len(arguments) == item.shown else str(item.arguments)[shown:]
        return [new] if new else []

    # Items

    def _item(self, event: Mapping[str, Any], kind: str) -> _Item:
        """Return the item of an event: the one with its id, else the newest at its place, else a new one."""
        item_id, place = string(event, "item_id"), _number(event.get("output_index"))
        if item_id in self._by_id:
            return self._by_id[item_id]
        newest = self._newest.get((place, kind))
        return self._item_for(newest if newest and not (item_id and newest.id) else None, kind, item_id, place)

    def _item_for(self, item: _Item | None, kind: str, item_id: str, place: int | None) -> _Item:
        """Return the item, with this id if it had none; a new one if there is none."""
        if item is None:
            item = _Item(kind, place=place)
            self._items.append(item)
            self._newest[place, kind] = item
        item.id = item.id or item_id
        if item_id:
            self._by_id[item_id] = item
        return item

    def _update(
        self, received: Mapping[str, Any], place: Any, *, is_done: bool, excluded: Sequence[_Item] = ()
    ) -> tuple[_Item, list[str | Block]]:
        """Take over an item, whole or as it begins; return it, and what is new of it.

        Args:
            excluded: items that it cannot be.
        """
        kind, item_id, call_id = string(received, "type"), string(received, "id"), string(received, "call_id")
        place = _number(place)
        item = self._by_id.get(call_id) or self._by_id.get(item_id)
        if item is None:
            like = [item for item in self._items if item.kind == kind and item not in excluded]
            near = [candidate for candidate in reversed(like) if candidate.place == place]
            near += [candidate for candidate in like if is_done and None in (candidate.place, place)]
            item = next((candidate for candidate in near if candidate.may_be(received, is_done=is_done)), None)
        item = self._item_for(item, kind, item_id, place)
        if call_id:
            self._by_id[call_id] = item
        item.update(received, is_done=is_done)
        if not is_done:
            return item, []
        if kind == "function_call":
            return item, self._shown(item, item.add_arguments(arguments_of(received), is_whole=True))
        return item, [new for key, text in _texts_of(received) for new in self._grow(item, key, text, is_whole=True)]

    def _end(self, kind: str, response: Mapping[str, Any]) -> Iterator[str | Block]:
        """Process the final state of the response; yield what was not streamed of it."""
        items_done: list[_Item] = []
        for place, received in enumerate(items(response, "output")):
            item, new = self._update(received, place, is_done=True, excluded=items_done)
            items_done.append(item)
            yield from new
        if kind == "response.completed":
            called = any(item.kind == "function_call" for item in self._items)
            self.stop_reason = "tool_calls" if called else "stop"
        elif kind == "response.incomplete":
            self.stop_reason = string(part(response, "incomplete_details"), "reason") or "incomplete"
        else:
            raise broken_off(response.get("error") or f"the response is {string(response, 'status') or kind}")


_NAMES = {
    "output_text": "output_text",
    "text": "output_text",
    "refusal": "refusal",
    "summary_text": "reasoning_summary_text",
    "reasoning_text": "reasoning_text",
}
"""The types of parts of an item, and what the events call them."""


def _texts_of(received: Mapping[str, Any]) -> Iterator[tuple[_Key, str]]:
    """Yield the texts of a whole item, each with its key."""
    for number, content in enumerate(items(received, "summary") or items(received, "content")):
        if name := _NAMES.get(string(content, "type")):
            yield (name, number), piece(content, "refusal" if name == "refusal" else "text")


def _number(place: Any) -> int | None:
    return place if isinstance(place, int) else None


@dataclass(slots=True, eq=False)
class _Item:
    """An item of the output, first as it is streamed, then in its final state."""

    kind: str
    id: str = ""
    place: int | None = None
    encrypted_content: str = ""
    call_id: str = ""
    name: str = ""
    arguments: GrowingText = field(default_factory=GrowingText)
    full_arguments: str = ""
    """The arguments with which the item began; those that are streamed count."""
    shown: int = 0
    """How many characters of the arguments were emitted."""
    texts: dict[_Key, GrowingText] = field(default_factory=dict)
    """The parts of the message, or of the reasoning."""
    last: _Key | None = None
    """The part of the reasoning that was shown last."""
    final: list[str] | None = None
    """The parts of the reasoning in its final state."""

    def add_arguments(self, text: str, *, is_whole: bool) -> str:
        """Add a piece of the arguments, or all of them; return what is new and whole characters."""
        if not is_whole:
            return self.arguments.add(text)
        new = self.arguments.complete(text) if text else self.arguments.end()
        if text and str(self.arguments) != whole(text):
            self.arguments = GrowingText(text)  # the server has the last word
        return new

    def end_arguments(self) -> str:
        """End the arguments; return what is new, such as those with which the item began if none came later."""
        return self.arguments.end() if self.arguments else self.arguments.complete(self.full_arguments)

    def may_be(self, received: Mapping[str, Any], *, is_done: bool) -> bool:
        """Return whether this is the received item. Some servers give the whole item an id of its own."""
        if self.call_id and string(received, "call_id"):
            return False
        return not (self.id and string(received, "id")) or (is_done and self._begins(received))

    def _begins(self, received: Mapping[str, Any]) -> bool:
        """Return whether what was streamed is the beginning of a whole item."""
        if self.kind == "function_call":
            is_same = self.name in ("", string(received, "name"))
            return is_same and whole(arguments_of(received)).startswith(str(self.arguments))
        texts = dict(_texts_of(received))
        return all(whole(texts.get(key, "")).startswith(str(text)) for key, text in self.texts.items())

    def update(self, item: Mapping[str, Any], *, is_done: bool) -> None:
        if self.kind == "function_call":
            self.call_id, self.name = string(item, "call_id") or self.call_id, string(item, "name") or self.name
            self.full_arguments = self.full_arguments or whole(arguments_of(item))
        elif self.kind == "reasoning" and is_done:
            self.id = string(item, "id") or self.id
            self.encrypted_content = string(item, "encrypted_content") or self.encrypted_content
            if parts := items(item, "summary") or items(item, "content"):
                self.final = [string(part, "text") for part in parts]

    def thought(self, model: str, before: int) -> Thinking | None:
        """Return the reasoning; None if there is nothing to show and nothing to send back."""
        parts = [str(text) for text in self.texts.values()] if self.final is None else self.final
        signature = None
        if self.id and self.encrypted_content:
            signature = pack_reasoning(self.id, self.encrypted_content, model, before, tuple(map(len, parts)))
        text = _BETWEEN.join(parts)
        return Thinking(text=text, signature=signature) if text or signature else None
