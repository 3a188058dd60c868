"""`Projection`: a run's events as the events of a response, each at a place that follows from what is stored.

A response is a part of a run. A part ends with the run, or where all calls of an answer are made or wait, and one of
them waits for the client: it provides the result, or approves. The next part begins where the run resumes.

The sequence number of an event is its place in the response. A delta takes as many places as it has characters, and has
the number of its last one. So the numbers do not depend on how an answer was cut into deltas: a stream of the stored
answer, whose deltas are gone, goes on exactly where a live stream was cut. After text that may not be stored as it was
streamed, such as an answer that was lost with its process, the numbers jump to one that does not depend on that text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from turnwise.http.openai.ids import output_item_id
from turnwise.http.openai.items import (
    Item,
    approval_request,
    function_call,
    message,
    output_text,
    reasoning,
    said_items,
    server_call,
    uses_of,
)
from turnwise.memory.conversation.blocks import Block, ToolResult, ToolUse
from turnwise.memory.conversation.events import (
    AnyEvent,
    ApprovalRequested,
    CallDecided,
    CustomEvent,
    Event,
    ModelCallEnded,
    ModelCallStarted,
    RunCancelled,
    RunCompleted,
    RunEnded,
    RunFailed,
    RunResumed,
    RunStarted,
    TextDelta,
    ThinkingDelta,
    ToolEnded,
    ToolStarted,
)
from turnwise.memory.conversation.runs import CUT_SHORT
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.providers.openai_chat import arguments_of
from turnwise.memory.values.growing_text import GrowingText

STRIDE, LONG_STRIDE = 1 << 32, 1 << 42
"""The distance of a text from the thoughts before it, and of what follows an answer that is not stored as it was
streamed. All numbers are exact in a double."""

CONTINUES = "openai.response"
"""The name of the event with which a request that continues a run begins."""

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


@dataclass(frozen=True)
class Sent:
    """An event of a response. `body` lacks its number; one about the response itself lacks that, too."""

    kind: str
    number: int
    body: dict[str, Any] = field(default_factory=dict)

    def after(self, number: int) -> Sent | None:
        """Return what of it comes after this number: all, the rest of a delta, or nothing."""
        if self.number <= number:
            return None
        delta = self.body.get("delta")
        if not isinstance(delta, str) or self.number - len(delta) >= number:
            return self
        return Sent(self.kind, self.number, {**self.body, "delta": delta[number - self.number :]})


@dataclass(slots=True)
class _Open:
    """An item of text that is being streamed."""

    item: Item
    index: int
    text: GrowingText = field(default_factory=GrowingText)
    """The text so far: of a message, or of the open part of a reasoning."""
    part: int | None = None
    """Which part of a reasoning is open."""
    parts: list[str] = field(default_factory=list)
    """The texts of the parts before."""

    @property
    def is_message(self) -> bool:
        return bool(self.item["type"] == "message")


class Projection:
    """The state of one response, as of the events that were added. Pure: it waits for nothing and reads nothing.

    Args:
        part: which part of the run the response is.
        encrypted: whether reasoning is shown such that it can be sent back.
    """

    def __init__(self, run_id: str, part: int, *, encrypted: bool = False) -> None:
        self.run_id = run_id
        self.part = part
        self.status: Status | None = None
        """None as long as the response has not begun."""
        self.items: list[Item] = []
        """Its output."""
        self.usage: Usage | None = None
        self.stop_reason: str | None = None
        self.why: str | None = None
        """Why it failed."""
        self.code: str | None = None
        self.created_at: float | None = None
        self.completed_at: float | None = None
        self.waiting: list[str] = []
        """The ids of the calls whose results the client provides, if it ended with such."""
        self.requests: dict[str, str] = {}
        """The ids of the calls that the client approves or rejects, by the id of the request."""
        self.parts: dict[str, int] = {}
        """The part that ended with each call that the client provides or approves, by the id of the call or request."""
        self.change: Mapping[str, Any] = {}
        """What the request that continued the run said about this part."""
        self._encrypted = encrypted
        self.at = 0
        """The part that the last event was in."""
        self._answer = 0
        """How many answers of the model the run has recorded."""
        self._number = -1
        self._open: _Open | None = None
        self._uses: dict[str, tuple[ToolUse, tuple[str, int, int], int]] = {}
        """The calls of the last answer: each with its place, and its index in the output."""
        self._undecided: set[str] = set()
        """Those of which it is not known whether they are made or wait."""
        self._running: set[str] = set()
        self._open_requests: dict[str, str] = {}
        """Those that the client provides or approves."""
        self._provided: set[str] = set()
        """Those about which the client has said what it had to."""
        self._approved: dict[str, str] = {}
        """The ids of the requests to approve the calls that were approved."""
        self._before = Usage()
        """The usage of the parts before."""
        self._spent = Usage()
        self._indexes = 0
        """How many items were begun."""
        self._dropped_items = 0
        """How many of them are not in the output, since their answers are void."""

    @property
    def is_done(self) -> bool:
        """Whether the response has ended."""
        return self.status not in (None, "queued", "in_progress")

    @property
    def newest(self) -> int:
        """The last part of the run: the one behind `at`, if all that `at` waits for was brought."""
        return self.at + 1 if self._is_boundary and self._open_requests.keys() <= self._provided else self.at

    def add(self, event: AnyEvent) -> Iterator[Sent]:  # noqa: PLR0912 - a table of events
        """Take the run's next event; yield the events of the response that follow from it."""
        if self.is_done or event.run_id != self.run_id:
            return
        if self.part == 0 and self.status is None:
            yield from self._begin(event)
        match event:
            case RunStarted() if self.at == self.part:
                self.status = "in_progress"
            case ThinkingDelta(text=text, index=index) if text and self.at == self.part:
                yield from self._think(text, index)
            case TextDelta(text=text) if text and self.at == self.part:
                yield from self._say(text)
            case ModelCallStarted():
                yield from self._pass(event)
                yield from self._drop()
            case ModelCallEnded(blocks=blocks, usage=usage):
                yield from self._pass(event)
                self._spent += usage or Usage()
                yield from self._answered(blocks)
            case ApprovalRequested(call_id=call_id, wants=wants) if call_id in self._uses and wants != "budget":
                self._undecided.discard(call_id)
                self._open_requests[call_id] = wants
                yield from self._ask(call_id, wants)
            case ToolStarted(call_id=call_id):
                self._undecided.discard(call_id)
                self._running.add(call_id)
                yield from self._call(call_id)
            case ToolEnded(call_id=call_id, blocks=blocks):
                self._undecided.discard(call_id)
                self._running.discard(call_id)
                yield from self._called(call_id, blocks)
            case CallDecided(call_id=call_id, verdict=verdict, blocks=blocks):
                self._decided(call_id, verdict, blocks)
            case RunResumed():
                yield from self._resumed(event)
            case CustomEvent(name=name, data=data) if name == CONTINUES and self.at == self.part - 1:
                self.change = data
            case RunEnded():
                yield from self._ended(event)
            case _:
                pass
        if self._is_boundary and self.at == self.part and not self.is_done:
            self.waiting = [call_id for call_id, wants in self._open_requests.items() if wants == "result"]
            yield from self._finish("completed", event)

    # The response

    def _begin(self, event: Event) -> Iterator[Sent]:
        self.status = "in_progress" if event.kind != "run_queued" else "queued"
        self.created_at = event.at
        yield self._send("response.created")
        yield self._send("response.in_progress")

    def _finish(self, status: Status, event: Event) -> Iterator[Sent]:
        self.status, self.completed_at = status, event.at
        if self.usage is None:
            self.usage = self._spent - self._before
        kinds = {"completed": "response.completed", "failed": "response.failed"}
        yield self._send(kinds.get(status, "response.incomplete"))

    @property
    def _is_boundary(self) -> bool:
        """Whether each call of the last answer is made or waits, and one waits, or has waited, for the client."""
        return bool(self._open_requests) and not self._undecided and not self._running

    def _pass(self, event: Event) -> Iterator[Sent]:
        """Begin the next part, if the last one has ended."""
        if self._is_boundary:
            self._open_requests, self.at = {}, self.at + 1
            if self.at == self.part:
                self._before = self._spent
                yield from self._begin(event)

    def _resumed(self, event: Event) -> Iterator[Sent]:
        if self._is_boundary:
            yield from self._pass(event)
        else:  # another process has taken over the run
            yield from self._drop()
            self._skip_numbers(LONG_STRIDE)

    def _ended(self, event: RunEnded) -> Iterator[Sent]:
        if isinstance(event, RunCompleted):
            yield from self._pass(event)
        if self.at != self.part:
            self._open_requests = {}  # nothing waits any more
            return
        yield from self._answered(event.blocks, is_last=True)
        if isinstance(event, RunCompleted):
            self.stop_reason = event.stop_reason
            self.usage = event.usage - self._before if event.usage else None
            is_cut = event.stop_reason in (*CUT_SHORT, "content_filter")
            yield from self._finish("incomplete" if is_cut else "completed", event)
        elif isinstance(event, RunCancelled):
            yield from self._finish("cancelled", event)
        else:
            self.why = getattr(event, "why", None)
            self.code = event.code if isinstance(event, RunFailed) else "interrupted"
            yield from self._finish("failed", event)

    # Text

    def _think(self, text: str, part: int) -> Iterator[Sent]:
        """Stream a piece of a part of the reasoning."""
        if self._open is None:
            item = reasoning(output_item_id("rs", self.run_id, self._answer), (), encrypted=False, status="in_progress")
            yield from self._add(item)
        if self._open is None or self._open.is_message:
            return  # what comes after the text is in the whole answer
        if self._open.part != part:
            yield from self._end_part()
            self._open.part = part
            yield self._of_item("response.reasoning_summary_part.added", part={"type": "summary_text", "text": ""})
        if text:
            yield self._of_item("response.reasoning_summary_text.delta", len(text), delta=text)
            self._open.text.add(text)

    def _end_part(self) -> Iterator[Sent]:
        """End the open part of the reasoning, if one is open."""
        if self._open is None or self._open.part is None:
            return
        text = str(self._open.text)
        yield self._of_item("response.reasoning_summary_text.done", text=text)
        yield self._of_item("response.reasoning_summary_part.done", part={"type": "summary_text", "text": text})
        self._open.parts.append(text)
        self._open.text, self._open.part = GrowingText(), None

    def _end_reasoning(self, whole: Item | None = None) -> Iterator[Sent]:
        """End the reasoning. The text after it has places that do not depend on how long it was."""
        yield from self._end_part()
        if self._open:
            summary = [{"type": "summary_text", "text": text} for text in self._open.parts]
            yield from self._done(whole or {**self._open.item, "summary": summary, "status": "completed"})
            self._skip_numbers(STRIDE)

    def _say(self, text: str) -> Iterator[Sent]:
        """Stream a piece of the text."""
        if self._open and not self._open.is_message:
            yield from self._end_reasoning()
        if self._open is None:
            yield from self._add(message(output_item_id("msg", self.run_id, self._answer), "", "in_progress"))
            yield self._of_item("response.content_part.added", part=output_text(""))
        if self._open and text:
            yield self._of_item("response.output_text.delta", len(text), delta=text, logprobs=[])
            self._open.text.add(text)

    def _end_message(self, whole: Item) -> Iterator[Sent]:
        part = whole["content"][0]
        yield self._of_item("response.output_text.done", text=part["text"], logprobs=[])
        yield self._of_item("response.content_part.done", part=part)
        yield from self._done(whole)

    def _drop(self) -> Iterator[Sent]:
        """End an item that was streamed, and whose answer is void."""
        if self._open is None:
            return
        item = {**self._open.item, "status": "incomplete"}
        if self._open.is_message:
            yield from self._end_message({**item, "content": [output_text(str(self._open.text))]})
        else:
            yield from self._end_part()
            yield from self._done(item)
        self.items.pop()
        self._dropped_items += 1

    # Answers of the model, and their calls

    def _answered(self, blocks: Sequence[Block], *, is_last: bool = False) -> Iterator[Sent]:
        """End what was streamed of an answer, and take over its calls."""
        spoken = [block for block in blocks if not isinstance(block, ToolResult)]
        uses = uses_of(spoken)
        if self.at == self.part:
            yield from self._end_text(spoken)
        self._uses = {
            use.call_id: (use, (self.run_id, self._answer, number), self._indexes + number)
            for number, use in enumerate(uses)
        }
        self._open_requests, self._provided, self._undecided = {}, set(), set(self._uses)
        if self.at == self.part:
            self._indexes += len(uses)
            self.items += [{} for _ in uses]
        if len(uses) < sum(isinstance(block, ToolUse) for block in spoken):
            self._skip_numbers(LONG_STRIDE)  # over the text of an answer that was sent back to the model
        if is_last:
            self.items = [_ended_early(item) for item in self.items if item]
        self._answer += 1

    def _end_text(self, spoken: Sequence[Block]) -> Iterator[Sent]:
        """Stream what is missing of an answer's thoughts and text, and end them."""
        items = {
            item["type"]: item for item in said_items(self.run_id, self._answer, spoken, encrypted=self._encrypted)
        }
        thoughts, text = items.get("reasoning"), items.get("message")
        if thoughts and thoughts["summary"] and not (self._open and self._open.is_message):
            yield from self._correct_thoughts([part["text"] for part in thoughts["summary"]])
            yield from self._end_reasoning(thoughts)
        if text:
            whole = text["content"][0]["text"]
            streamed = str(self._open.text) if self._open and self._open.is_message else ""
            yield from self._say(whole[len(streamed) :] if whole.startswith(streamed) else "")
            yield from self._end_message(text)
        yield from self._drop()
        if thoughts is None:
            return
        ids = [item.get("id") for item in self.items]
        if thoughts["id"] in ids:
            self.items[ids.index(thoughts["id"])] = thoughts
        else:  # thoughts without a text that can be shown, or that came after the text
            index, self._indexes = self._indexes, self._indexes + 1
            self.items.append({})
            yield from self._whole(index, thoughts, thoughts)

    def _correct_thoughts(self, texts: Sequence[str]) -> Iterator[Sent]:
        """Stream what is missing of the parts of the reasoning."""
        for number, text in enumerate(texts):
            done = len(self._open.parts) if self._open else 0
            if number == done and self._open and self._open.part is not None:
                yield from self._think(text[len(self._open.text) :], self._open.part)
            elif number >= done:
                yield from self._think(text, -1 - number)

    def _ask(self, call_id: str, wants: str) -> Iterator[Sent]:
        use, place, index = self._uses[call_id]
        self.parts[output_item_id("mcpr", *place) if wants == "approval" else call_id] = self.at
        if self.at != self.part:
            return
        if wants == "approval":
            self.requests[output_item_id("mcpr", *place)] = call_id
            item = approval_request(output_item_id("mcpr", *place), use)
            yield from self._whole(index, item, item)
            return
        item = function_call(output_item_id("fc", *place), use)
        yield from self._whole(index, {**item, "arguments": "", "status": "in_progress"}, item, use)

    def _call(self, call_id: str) -> Iterator[Sent]:
        """Show that a tool of the service is called."""
        if call_id not in self._uses or self.at != self.part:
            return
        use, place, index = self._uses[call_id]
        if call_id in self._approved:  # it was asked for in the part before
            index = self._indexes
            self._indexes += 1
            self.items.append({})
            self._uses[call_id] = use, place, index
        item = server_call(output_item_id("mcp", *place), use, approval=self._approved.get(call_id))
        self._put(index, item)
        yield self._send("response.output_item.added", output_index=index, item=item)
        place_of = {"item_id": item["id"], "output_index": index}
        yield self._send("response.mcp_call.in_progress", **place_of)
        yield self._send("response.mcp_call_arguments.done", **place_of, arguments=item["arguments"])

    def _called(self, call_id: str, blocks: Sequence[Block]) -> Iterator[Sent]:
        if call_id not in self._uses or self.at != self.part:
            return
        use, place, index = self._uses[call_id]
        result = next((block for block in blocks if isinstance(block, ToolResult)), None)
        if not self.items[index - self._dropped_items]:  # it was refused before it was called
            yield from self._call(call_id)
        item = server_call(output_item_id("mcp", *place), use, result, approval=self._approved.get(call_id))
        self._put(index, item)
        kind = "response.mcp_call.failed" if item["status"] == "failed" else "response.mcp_call.completed"
        yield self._send(kind, item_id=item["id"], output_index=index)
        yield self._send("response.output_item.done", output_index=index, item=item)

    def _decided(self, call_id: str, verdict: str, blocks: Sequence[Block]) -> None:
        if call_id not in self._uses:
            return
        self._provided.add(call_id)
        use, place, index = self._uses[call_id]
        edited = next((block for block in blocks if isinstance(block, ToolUse)), use)
        self._uses[call_id] = edited, place, index
        if verdict == "approved":
            self._approved[call_id] = output_item_id("mcpr", *place)

    # Places

    def _send(self, kind: str, /, places: int = 1, **body: Any) -> Sent:
        self._number += places
        return Sent(kind, self._number, body)

    def _skip_numbers(self, stride: int) -> None:
        self._number = (self._number // stride + 1) * stride - 1

    def _of_item(self, kind: str, /, places: int = 1, **body: Any) -> Sent:
        """Return an event about the part of the open item that is streamed."""
        item = self._open
        if item is None:
            raise RuntimeError(f"{kind} needs an item")
        part = {"content_index": 0} if item.is_message else {"summary_index": len(item.parts)}
        return self._send(kind, places, item_id=item.item["id"], output_index=item.index, **part, **body)

    def _add(self, item: Item) -> Iterator[Sent]:
        """Begin an item that is streamed."""
        self._open = _Open(item, self._indexes)
        shown = {**item, "content": []} if item["type"] == "message" else {**item}
        self.items.append(item)
        self._indexes += 1
        yield self._send("response.output_item.added", output_index=self._open.index, item=shown)

    def _done(self, item: Item) -> Iterator[Sent]:
        """End the item that is streamed."""
        if self._open:
            self.items[-1] = item
            index, self._open = self._open.index, None
            yield self._send("response.output_item.done", output_index=index, item=item)

    def _whole(self, index: int, begun: Item, item: Item, use: ToolUse | None = None) -> Iterator[Sent]:
        """Show an item that is not streamed."""
        self._put(index, item)
        yield self._send("response.output_item.added", output_index=index, item=begun)
        if use:
            place, text = {"item_id": item["id"], "output_index": index}, arguments_of(use)
            yield self._send("response.function_call_arguments.delta", len(text), **place, delta=text)
            yield self._send("response.function_call_arguments.done", **place, arguments=text, name=use.name)
        yield self._send("response.output_item.done", output_index=index, item=item)

    def _put(self, index: int, item: Item) -> None:
        """Put an item at its index in the output."""
        self.items[index - self._dropped_items] = item


def _ended_early(item: Item) -> Item:
    """Return an item of a run that has ended: a call that has not is incomplete."""
    return {**item, "status": "incomplete"} if item.get("status") == "in_progress" else item
