"""`OutputStream`: writes the output of a response as events, each with a number that follows from what is stored.

The sequence number of an event is its position in the response. A delta takes as many numbers as it has characters, and
has the last of them. So the numbers do not depend on how an answer was cut into deltas: a stream of the stored answer,
whose deltas are gone, goes on exactly where a live stream was cut. After text that is not stored as it was streamed,
such as an answer that was lost with its process, the numbers jump to one that does not depend on that text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.http.openai.ids import output_item_id
from turnwise.http.openai.items import Item, message, output_text, reasoning, said_items
from turnwise.memory.conversation.blocks import Block
from turnwise.memory.values.growing_text import GrowingText

STRIDE, LONG_STRIDE = 1 << 32, 1 << 42
"""Numbers go on at the next multiple of STRIDE after thoughts, and at the next multiple of LONG_STRIDE after text that
is not stored as it was streamed. All numbers are exact in a double."""


@dataclass(frozen=True)
class Sent:
    """An event of a response. `body` has its fields, except the type and the number.

    The body of an event about the whole response is empty: `Answer.sent` adds the response.
    """

    kind: str
    number: int
    body: dict[str, Any] = field(default_factory=dict)

    def after(self, number: int) -> Sent | None:
        """Return what of the event comes after this number: all, the rest of a delta, or nothing."""
        if self.number <= number:
            return None
        delta = self.body.get("delta")
        if not isinstance(delta, str) or self.number - len(delta) >= number:
            return self
        return Sent(self.kind, self.number, {**self.body, "delta": delta[number - self.number :]})


@dataclass(slots=True)
class _OpenItem:
    """A message or a reasoning that is being streamed."""

    item: Item
    index: int
    text: GrowingText = field(default_factory=GrowingText)
    """The text so far: of the message, or of the open section of the reasoning."""
    section: int | None = None
    """The `index` that the deltas of the open section have; None if no section is open."""
    ended_sections: list[str] = field(default_factory=list)
    """The texts of the sections that have ended."""

    @property
    def is_message(self) -> bool:
        return bool(self.item["type"] == "message")


class OutputStream:
    """The items of a response's output, and the numbers of its events. At most one message or reasoning is open.

    The `output_index` of an item counts all items before it. An item of an answer that is void has an index, but is not
    in `items`.

    Args:
        encrypted: whether reasoning is shown such that it can be sent back.
    """

    def __init__(self, run_id: str, *, encrypted: bool = False) -> None:
        self.items: list[Item] = []
        """The output. An item that has not begun, and whose index is reserved, is empty."""
        self.answer = 0
        """The number of the model's answer in the run, also counting those in earlier parts. Ids of items have it."""
        self._run_id = run_id
        self._encrypted = encrypted
        self._number = -1
        self._open: _OpenItem | None = None
        self._next_index = 0
        self._void_count = 0
        """How many items have an index, but are not in the output."""

    def event(self, kind: str, /, size: int = 1, **body: Any) -> Sent:
        """Return the next event.

        Args:
            size: how many numbers the event takes.
        """
        self._number += size
        return Sent(kind, self._number, body)

    def skip_numbers(self, stride: int) -> None:
        """Let the next number be a multiple of `stride`."""
        self._number = (self._number // stride + 1) * stride - 1

    # Text

    def think(self, text: str, section: int) -> Iterator[Sent]:
        """Stream a piece of a section of the reasoning.

        Args:
            section: another number than the last one's begins a new section.
        """
        if self._open is None:
            item_id = output_item_id("rs", self._run_id, self.answer)
            yield from self._open_item(reasoning(item_id, (), encrypted=False, status="in_progress"))
        if self._open is None or self._open.is_message:
            return  # `end_text` shows thoughts that come after the text
        if self._open.section != section:
            yield from self._end_section()
            self._open.section = section
            yield self._of_open("response.reasoning_summary_part.added", part={"type": "summary_text", "text": ""})
        if text:
            yield self._of_open("response.reasoning_summary_text.delta", len(text), delta=text)
            self._open.text.add(text)

    def say(self, text: str) -> Iterator[Sent]:
        """Stream a piece of the text."""
        yield from self._open_message()
        if self._open:
            yield self._of_open("response.output_text.delta", len(text), delta=text, logprobs=[])
            self._open.text.add(text)

    def end_text(self, blocks: Sequence[Block]) -> Iterator[Sent]:
        """Stream what is missing of an answer's thoughts and text, and end them."""
        items = {
            item["type"]: item for item in said_items(self._run_id, self.answer, blocks, encrypted=self._encrypted)
        }
        thoughts, text = items.get("reasoning"), items.get("message")
        if thoughts and thoughts["summary"] and not (self._open and self._open.is_message):
            yield from self._complete_sections([section["text"] for section in thoughts["summary"]])
            yield from self._end_reasoning(thoughts)
        if text:
            yield from self._open_message()
            whole, streamed = text["content"][0]["text"], str(self._open.text) if self._open else ""
            if whole.startswith(streamed) and whole != streamed:
                yield from self.say(whole[len(streamed) :])
            yield from self._end_message(text)
        yield from self.void_open_item()
        if thoughts is None:
            return
        ids = [item.get("id") for item in self.items]
        if thoughts["id"] in ids:
            self.items[ids.index(thoughts["id"])] = thoughts
        else:  # thoughts without a text that can be shown, or that came after the text
            yield from self.show_item(self.reserve_indexes(), thoughts)

    def void_open_item(self) -> Iterator[Sent]:
        """End the open item, if there is one, and leave it out of the output: its answer is void."""
        if self._open is None:
            return
        item = {**self._open.item, "status": "incomplete"}
        if self._open.is_message:
            yield from self._end_message({**item, "content": [output_text(str(self._open.text))]})
        else:
            yield from self._end_section()
            yield from self._close_item(item)
        self.items.pop()  # the open item is always the last
        self._void_count += 1

    def _end_section(self) -> Iterator[Sent]:
        """End the open section of the reasoning, if one is open."""
        if self._open is None or self._open.section is None:
            return
        text = str(self._open.text)
        yield self._of_open("response.reasoning_summary_text.done", text=text)
        yield self._of_open("response.reasoning_summary_part.done", part={"type": "summary_text", "text": text})
        self._open.ended_sections.append(text)
        self._open.text, self._open.section = GrowingText(), None

    def _complete_sections(self, texts: Sequence[str]) -> Iterator[Sent]:
        """Stream what is missing of the sections of the reasoning."""
        for number, text in enumerate(texts):
            ended_count = len(self._open.ended_sections) if self._open else 0
            if number == ended_count and self._open and self._open.section is not None:
                yield from self.think(text[len(self._open.text) :], self._open.section)
            elif number >= ended_count:
                # No delta has a negative number, so a new section begins.
                yield from self.think(text, -1 - number)

    def _end_reasoning(self, whole: Item | None = None) -> Iterator[Sent]:
        """End the reasoning. The numbers of the text after it do not depend on how long the reasoning was."""
        yield from self._end_section()
        if self._open:
            summary = [{"type": "summary_text", "text": text} for text in self._open.ended_sections]
            yield from self._close_item(whole or {**self._open.item, "summary": summary, "status": "completed"})
            self.skip_numbers(STRIDE)

    def _open_message(self) -> Iterator[Sent]:
        """Begin the message, if it has not begun; end the reasoning before it."""
        if self._open and not self._open.is_message:
            yield from self._end_reasoning()
        if self._open is None:
            yield from self._open_item(message(output_item_id("msg", self._run_id, self.answer), "", "in_progress"))
            yield self._of_open("response.content_part.added", part=output_text(""))

    def _end_message(self, whole: Item) -> Iterator[Sent]:
        content_part = whole["content"][0]
        yield self._of_open("response.output_text.done", text=content_part["text"], logprobs=[])
        yield self._of_open("response.content_part.done", part=content_part)
        yield from self._close_item(whole)

    def _open_item(self, item: Item) -> Iterator[Sent]:
        index = self.reserve_indexes()
        self._put(index, item)
        self._open = _OpenItem(item, index)
        begun = {**item, "content": []} if item["type"] == "message" else {**item}
        yield self.event("response.output_item.added", output_index=index, item=begun)

    def _close_item(self, whole: Item) -> Iterator[Sent]:
        if self._open:
            index, self._open = self._open.index, None
            self._put(index, whole)
            yield self.event("response.output_item.done", output_index=index, item=whole)

    def _of_open(self, kind: str, /, size: int = 1, **body: Any) -> Sent:
        """Return an event about what is streamed of the open item: the content of a message, or an open section."""
        item = self._open
        if item is None:
            raise RuntimeError(f"{kind} needs an open item")
        streamed = {"content_index": 0} if item.is_message else {"summary_index": len(item.ended_sections)}
        return self.event(kind, size, **_fields_of(item.item, item.index), **streamed, **body)

    # Items that are not streamed

    def reserve_indexes(self, count: int = 1) -> int:
        """Return the first of the next `count` indexes. Their items may begin in any order."""
        first, self._next_index = self._next_index, self._next_index + count
        self.items += [{} for _ in range(count)]
        return first

    def has_begun(self, index: int) -> bool:
        """Return whether the item with this index has begun."""
        return bool(self.items[index - self._void_count])

    def show_item(self, index: int, item: Item) -> Iterator[Sent]:
        """Begin and end an item at once."""
        self._put(index, item)
        yield self.event("response.output_item.added", output_index=index, item=item)
        yield self.event("response.output_item.done", output_index=index, item=item)

    def show_function_call(self, index: int, item: Item) -> Iterator[Sent]:
        """Begin and end a call that the client makes."""
        self._put(index, item)
        fields, arguments = _fields_of(item, index), item["arguments"]
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield self.event("response.output_item.added", output_index=index, item=begun)
        yield self.event("response.function_call_arguments.delta", len(arguments), **fields, delta=arguments)
        yield self.event("response.function_call_arguments.done", **fields, arguments=arguments, name=item["name"])
        yield self.event("response.output_item.done", output_index=index, item=item)

    def begin_server_call(self, index: int, item: Item) -> Iterator[Sent]:
        """Begin a call of a tool of the service."""
        self._put(index, item)
        fields = _fields_of(item, index)
        yield self.event("response.output_item.added", output_index=index, item=item)
        yield self.event("response.mcp_call.in_progress", **fields)
        yield self.event("response.mcp_call_arguments.done", **fields, arguments=item["arguments"])

    def end_server_call(self, index: int, item: Item) -> Iterator[Sent]:
        """End a call of a tool of the service."""
        self._put(index, item)
        kind = "response.mcp_call.failed" if item["status"] == "failed" else "response.mcp_call.completed"
        yield self.event(kind, **_fields_of(item, index))
        yield self.event("response.output_item.done", output_index=index, item=item)

    def end_early(self) -> None:
        """End the output: leave out items that have not begun, and mark calls without a result as incomplete."""
        self.items = [
            {**item, "status": "incomplete"} if item.get("status") == "in_progress" else item
            for item in self.items
            if item
        ]

    def _put(self, index: int, item: Item) -> None:
        self.items[index - self._void_count] = item


def _fields_of(item: Item, index: int) -> dict[str, Any]:
    """Return the fields by which events name an item."""
    return {"item_id": item["id"], "output_index": index}
