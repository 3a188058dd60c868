"""`Projection`: a run's events as the events of a response.

A response is a part of a run. A part ends with the run, or where all calls of an answer are made or wait, and one of
them waits for the client: it provides the result, or approves. The next part begins where the run resumes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from turnwise.http.openai.ids import output_item_id
from turnwise.http.openai.items import Item, approval_request, function_call, server_call, uses_of
from turnwise.http.openai.output_stream import LONG_STRIDE, OutputStream, Sent
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

CONTINUES = "openai.response"
"""The name of the event with which a request that continues a run begins."""

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


@dataclass(slots=True)
class _Call:
    """A call of the model's last answer."""

    use: ToolUse
    use_id: tuple[str, int, int]
    """The run's id, the number of the answer in the run, and the number of the call in the answer."""
    index: int | None
    """The index of its item in the output. None if the call is of an earlier part and has not begun in this one."""

    def item_id(self, prefix: str) -> str:
        return output_item_id(prefix, *self.use_id)


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
        self.usage: Usage | None = None
        self.stop_reason: str | None = None
        self.why: str | None = None
        """Why it failed."""
        self.code: str | None = None
        self.created_at: float | None = None
        self.completed_at: float | None = None
        self.waiting: list[str] = []
        """The ids of the calls whose results the client provides, if the response ended with such calls."""
        self.requests: dict[str, str] = {}
        """The ids of the calls that the client approves or rejects, by the id of the request."""
        self.part_of: dict[str, int] = {}
        """The part that ended with each call that the client provides or approves, by the id of the call or request."""
        self.change: Mapping[str, Any] = {}
        """What the request that continued the run said about this part."""
        self.current_part = 0
        """The part that the last event was in."""
        self._output = OutputStream(run_id, encrypted=encrypted)
        self._calls: dict[str, _Call] = {}
        """The calls of the last answer, by id."""
        self._not_begun: set[str] = set()
        """Ids of calls of the last answer that have not begun, and have asked nothing of the client so far."""
        self._running: set[str] = set()
        """Ids of calls that have begun and have no result."""
        self._client_calls: dict[str, str] = {}
        """What each call that waits, or has waited, for the client in the current part wants: a result or an
        approval."""
        self._decided: set[str] = set()
        """Ids of calls of the last answer that the client has provided, approved or rejected."""
        self._approvals: dict[str, str] = {}
        """The ids of the requests by which the client approved calls, by the id of the call."""
        self._spent = Usage()
        """The usage of the run so far."""
        self._spent_before = Usage()
        """The usage of the parts before this one."""

    @property
    def items(self) -> list[Item]:
        """The output. Items that have not begun are empty."""
        return self._output.items

    @property
    def is_done(self) -> bool:
        """Whether the response has ended."""
        return self.status not in (None, "queued", "in_progress")

    @property
    def newest(self) -> int:
        """The last part of the run: the next one, once the client has decided all calls that the current one asked."""
        is_decided = self._is_boundary and self._client_calls.keys() <= self._decided
        return self.current_part + 1 if is_decided else self.current_part

    def add(self, event: AnyEvent) -> Iterator[Sent]:  # noqa: PLR0912 - a table of events
        """Take the run's next event; yield the events of the response that follow from it."""
        if self.is_done or event.run_id != self.run_id:
            return
        if self.part == 0 and self.status is None:
            yield from self._begin(event)
        match event:
            case RunStarted() if self._is_current:
                self.status = "in_progress"
            case ThinkingDelta(text=text, index=index) if text and self._is_current:
                yield from self._output.think(text, index)
            case TextDelta(text=text) if text and self._is_current:
                yield from self._output.say(text)
            case ModelCallStarted():
                yield from self._enter_next_part(event)
                yield from self._output.void_open_item()
            case ModelCallEnded(blocks=blocks, usage=usage):
                yield from self._enter_next_part(event)
                self._spent += usage or Usage()
                yield from self._take_answer(blocks)
            case ApprovalRequested(call_id=call_id, wants=wants) if call_id in self._calls and wants != "budget":
                self._not_begun.discard(call_id)
                self._client_calls[call_id] = wants
                yield from self._show_request(call_id, wants)
            case ToolStarted(call_id=call_id):
                self._not_begun.discard(call_id)
                self._running.add(call_id)
                yield from self._begin_call(call_id)
            case ToolEnded(call_id=call_id, blocks=blocks):
                self._not_begun.discard(call_id)
                self._running.discard(call_id)
                yield from self._end_call(call_id, blocks)
            case CallDecided(call_id=call_id, verdict=verdict, blocks=blocks):
                self._take_decision(call_id, verdict, blocks)
            case RunResumed():
                yield from self._resume(event)
            case CustomEvent(name=name, data=data) if name == CONTINUES and self.current_part == self.part - 1:
                self.change = data
            case RunEnded():
                yield from self._end_run(event)
            case _:
                pass
        if self._is_boundary and self._is_current and not self.is_done:
            self.waiting = [call_id for call_id, wants in self._client_calls.items() if wants == "result"]
            yield from self._end("completed", event)

    # Parts of the run

    @property
    def _is_current(self) -> bool:
        """Whether the run is in the part that the response is."""
        return self.current_part == self.part

    @property
    def _is_boundary(self) -> bool:
        """Whether each call of the last answer is made or waits, and one waits, or has waited, for the client."""
        return bool(self._client_calls) and not self._not_begun and not self._running

    def _enter_next_part(self, event: Event) -> Iterator[Sent]:
        """Begin the next part, if the current one has ended."""
        if self._is_boundary:
            self._client_calls, self.current_part = {}, self.current_part + 1
            if self._is_current:
                self._spent_before = self._spent
                yield from self._begin(event)

    def _begin(self, event: Event) -> Iterator[Sent]:
        self.status = "in_progress" if event.kind != "run_queued" else "queued"
        self.created_at = event.at
        yield self._output.event("response.created")
        yield self._output.event("response.in_progress")

    def _resume(self, event: Event) -> Iterator[Sent]:
        if self._is_boundary:
            yield from self._enter_next_part(event)
        else:  # another process has taken over the run
            yield from self._output.void_open_item()
            self._output.skip_numbers(LONG_STRIDE)

    def _end_run(self, event: RunEnded) -> Iterator[Sent]:
        if isinstance(event, RunCompleted):  # a run that ends otherwise may end while it waits for the client
            yield from self._enter_next_part(event)
        if not self._is_current:
            self._client_calls = {}  # nothing waits any more, so `newest` is the current part
            return
        yield from self._take_answer(event.blocks)
        self._output.end_early()
        if isinstance(event, RunCompleted):
            self.stop_reason = event.stop_reason
            self.usage = event.usage - self._spent_before if event.usage else None
            is_cut = event.stop_reason in (*CUT_SHORT, "content_filter")
            yield from self._end("incomplete" if is_cut else "completed", event)
        elif isinstance(event, RunCancelled):
            yield from self._end("cancelled", event)
        else:
            self.why = getattr(event, "why", None)
            self.code = event.code if isinstance(event, RunFailed) else "interrupted"
            yield from self._end("failed", event)

    def _end(self, status: Status, event: Event) -> Iterator[Sent]:
        self.status, self.completed_at = status, event.at
        if self.usage is None:
            self.usage = self._spent - self._spent_before
        kinds = {"completed": "response.completed", "failed": "response.failed"}
        yield self._output.event(kinds.get(status, "response.incomplete"))

    # Answers of the model, and their calls

    def _take_answer(self, blocks: Sequence[Block]) -> Iterator[Sent]:
        """End what was streamed of an answer, and take over its calls."""
        spoken = [block for block in blocks if not isinstance(block, ToolResult)]
        uses = uses_of(spoken)
        first = None
        if self._is_current:
            yield from self._output.end_text(spoken)
            first = self._output.reserve_indexes(len(uses))
        self._calls = {}
        for number, use in enumerate(uses):
            index = None if first is None else first + number
            self._calls[use.call_id] = _Call(use, (self.run_id, self._output.answer, number), index)
        self._client_calls, self._decided, self._not_begun = {}, set(), set(self._calls)
        if len(uses) < sum(isinstance(block, ToolUse) for block in spoken):
            # A typed answer that was sent back to the model is streamed as text, but stored as a call.
            self._output.skip_numbers(LONG_STRIDE)
        self._output.answer += 1

    def _show_request(self, call_id: str, wants: str) -> Iterator[Sent]:
        """Show a call that the client makes, or the request to approve a call."""
        call = self._calls[call_id]
        request_id = call.item_id("mcpr")
        self.part_of[request_id if wants == "approval" else call_id] = self.current_part
        if not self._is_current or call.index is None:
            return
        if wants == "approval":
            self.requests[request_id] = call_id
            yield from self._output.show_item(call.index, approval_request(request_id, call.use))
        else:
            yield from self._output.show_function_call(call.index, function_call(call.item_id("fc"), call.use))

    def _begin_call(self, call_id: str) -> Iterator[Sent]:
        """Show that a tool of the service is called."""
        call = self._calls.get(call_id)
        if call is None or not self._is_current:
            return
        if call.index is None:  # the client approved it in the part before
            call.index = self._output.reserve_indexes()
        if not self._output.has_begun(call.index):  # else another process makes the call again
            yield from self._output.begin_server_call(call.index, self._server_call(call))

    def _end_call(self, call_id: str, blocks: Sequence[Block]) -> Iterator[Sent]:
        """Show the result of a call of the service."""
        yield from self._begin_call(call_id)  # a call that is refused has a result, but no start
        call = self._calls.get(call_id)
        if call is not None and call.index is not None and self._is_current:
            result = next((block for block in blocks if isinstance(block, ToolResult)), None)
            yield from self._output.end_server_call(call.index, self._server_call(call, result))

    def _server_call(self, call: _Call, result: ToolResult | None = None) -> Item:
        approval = self._approvals.get(call.use.call_id)
        return server_call(call.item_id("mcp"), call.use, result, approval=approval)

    def _take_decision(self, call_id: str, verdict: str, blocks: Sequence[Block]) -> None:
        call = self._calls.get(call_id)
        if call is None:
            return
        self._decided.add(call_id)
        call.use = next((block for block in blocks if isinstance(block, ToolUse)), call.use)
        if verdict == "approved":
            self._approvals[call_id] = call.item_id("mcpr")
