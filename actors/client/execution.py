"""`ExecutionHandle` and `AsyncExecutionHandle`: wait for, follow, cancel and inspect a run."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping
from typing import Any

from pydantic import InstanceOf

from turnwise.actors.client.arguments import MAX_JSON_BYTES, Limit, Number, Text, WaitSeconds, checked, json_object
from turnwise.actors.client.cluster_client import ClusterClient
from turnwise.actors.client.event_sinks import EventSink, TaskSink, ThreadSink
from turnwise.actors.client.requests import Request, carry_out, carry_out_async
from turnwise.actors.cluster.wire import ClientOutcome, PackedTurn, SessionRef
from turnwise.actors.inference.timeline import MAX_EVENT_BYTES, custom_event
from turnwise.errors import (
    InvalidInputError,
    OutputCutError,
    OutputInvalidError,
    OutputRefusedError,
    RunCancelledError,
    RunEndedError,
    RunFailedError,
    RunInterruptedError,
    RunLimitError,
    RunReplacedError,
    TurnNotFoundError,
    WaitTimeoutError,
    shown,
)
from turnwise.memory.conversation.blocks import ToolResult, encode
from turnwise.memory.conversation.codec import encode_json
from turnwise.memory.conversation.events import AnyEvent, Phase
from turnwise.memory.conversation.frozen_json import plain_json
from turnwise.memory.conversation.ids import new_id
from turnwise.memory.conversation.limits import MAX_VALUES, check_count, count_values
from turnwise.memory.conversation.notebook_display import Rows, facts_html
from turnwise.memory.conversation.partial_output import Partials
from turnwise.memory.conversation.phases import Phases, phase_of
from turnwise.memory.conversation.runs import OPEN_STATES, REPLACED, RunRecord, RunState, Until, has_reached
from turnwise.memory.conversation.steps import Step, steps_of
from turnwise.memory.conversation.tool_calls import ApprovalDecision, PendingCall
from turnwise.memory.conversation.tool_results import result_of
from turnwise.memory.conversation.turns import Turn

_ERRORS: dict[str, type[RunEndedError]] = {
    "cancelled": RunCancelledError,
    "failed": RunFailedError,
    "interrupted": RunInterruptedError,
}

_ERRORS_BY_CODE: dict[str | None, type[RunFailedError]] = {
    "step_limit": RunLimitError,
    "budget": RunLimitError,
    "timeout": RunLimitError,
    "output_invalid": OutputInvalidError,
    "output_refused": OutputRefusedError,
    "output_cut": OutputCutError,
}

PAGE = 1000
"""How many events one call fetches at most."""


class EventPage(Rows[AnyEvent]):
    """A list of events."""

    def __init__(self, events: Iterable[AnyEvent] = (), next: int | None = None) -> None:
        super().__init__(events)
        self.next = next
        """Pass it as `after` to get the next page. None has two meanings: from `event_page` of a handle, the run has no
        more events; from `events` of a session, there are no more events now."""


class _Handle:
    """Common base of both handle classes: the ids of a run and the requests about it."""

    __slots__ = (
        *("_client", "_outcome", "_output", "_ref", "_sink"),
        *("dropped", "run_id", "session_id", "turn_index"),
    )

    def __init__(
        self,
        client: ClusterClient,
        ref: SessionRef,
        run_id: str,
        turn_index: int,
        outcome: ClientOutcome | None = None,
        *,
        dropped: bool = False,
        output: Any = None,
        on_event: EventSink | None = None,
    ) -> None:
        self._client = client
        self._output = dict if isinstance(output, Mapping) else output
        """The class of the run's answer; it is not pickled with the handle."""
        self._outcome = outcome
        """How the run ended, if it had ended when its start was acknowledged."""
        self._ref = ref
        self.session_id = ref.session_id
        self.run_id = run_id
        self.turn_index = turn_index
        self.dropped = dropped
        """Whether `run(if_busy="drop")` stored nothing, since a run was active: then this is that run's handle."""
        self._sink = self._push(on_event) if on_event else None
        """Calls `on_event` with the run's events; it is not pickled with the handle."""

    def _push(self, on_event: EventSink) -> Any:
        """Start to call a function with the run's events."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.run_id} of {self.session_id}#{self.turn_index}>"

    def _repr_html_(self) -> str:
        facts = {"run_id": self.run_id, "session_id": self.session_id, "turn_index": self.turn_index}
        ended = {"state": self._outcome.state, "why": self._outcome.why} if self._outcome else {}
        return facts_html(type(self).__name__, {**facts, **ended})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handle) and (self._ref, self.run_id) == (other._ref, other.run_id)

    def __hash__(self) -> int:
        return hash((self._ref, self.run_id))

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(
            type(self), client=self._client, ref=self._ref, run_id=self.run_id, turn_index=self.turn_index
        ), ()

    @checked
    def _wait(self, timeout_s: WaitSeconds | None, until: Until = "ended") -> Request[Turn]:
        outcome = self._outcome
        try:
            if outcome is None:
                outcome = yield from self._client.wait(self._ref, self.run_id, timeout_s, until)
        except TimeoutError as error:
            raise WaitTimeoutError(self.session_id, self.run_id, timeout_s, "unknown") from error
        if not has_reached(outcome.state, until):
            raise WaitTimeoutError(self.session_id, self.run_id, timeout_s, outcome.state)
        if outcome.state in (*OPEN_STATES, "completed"):
            if outcome.turn is None:
                raise TurnNotFoundError(self.session_id, self.turn_index)  # it was cleared
            return outcome.turn if self._output is None else outcome.turn.typed(self._output)
        if outcome.code == REPLACED:
            raise RunReplacedError(self.session_id, self.run_id, outcome.why, outcome.turn, outcome.successor)
        kind = _ERRORS_BY_CODE.get(outcome.code) or _ERRORS[outcome.state]
        raise kind(self.session_id, self.run_id, outcome.why, outcome.turn)

    @checked
    def _cancel(self, reason: Text) -> Request[bool]:
        return self._client.cancel(self._ref, reason, self.run_id)

    @checked
    def _approve(self, call_id: Text, input: Any) -> Request[None]:
        edited = None if input is None else json_object("input", input)
        return self._decide(call_id, ApprovalDecision(verdict="approved", input=edited))

    @checked
    def _reject(self, call_id: Text, reason: Text) -> Request[None]:
        return self._decide(call_id, ApprovalDecision(verdict="rejected", text=reason))

    @checked
    def _provide(self, call_id: Text, result: Any, is_error: bool) -> Request[None]:
        return self._decide(call_id, _provided(result, is_error))

    def _decide(self, call_id: str, decision: ApprovalDecision) -> Request[None]:
        yield from self._client.ask(self._ref, "decide", self.run_id, call_id, decision)

    def _input(self) -> Request[Turn]:
        cache = self._client.cache(self._ref)
        packed: PackedTurn
        run_id, index = self.run_id, self.turn_index
        while True:
            try:
                packed = yield from self._client.ask(self._ref, "turn", index, cache.held)
                if packed.record.run_id == run_id:
                    return self._client.unpack(packed, cache).as_started()
            except TurnNotFoundError:
                pass
            record = yield from self._record()
            if record.run_id == run_id:
                raise TurnNotFoundError(self.session_id, self.turn_index)
            run_id, index = record.run_id, record.turn_index  # it was merged

    @checked
    def _add_event(self, name: Text, data: Any) -> Request[int]:
        plain = None if data is None else json_object("data", data, MAX_EVENT_BYTES)
        custom_event(name, plain)
        seq: int = yield from self._client.ask(self._ref, "add_event", name, plain, new_id(), self.run_id)
        return seq

    def _pending(self) -> Request[list[PendingCall]]:
        return Rows((yield from self._client.ask(self._ref, "pending", self.run_id)))

    def _record(self) -> Request[RunRecord]:
        record: RunRecord = yield from self._client.ask(self._ref, "run", self.run_id)
        return record

    def _steps(self) -> Request[list[Step]]:
        return Rows(steps_of((yield from self._events_now())))

    def _phase(self) -> Request[Phase]:
        return phase_of((yield from self._events_now())) or "prompted"

    def _events_now(self) -> Request[list[AnyEvent]]:
        """Return the run's events up to now."""
        events: list[AnyEvent] = []
        after, done, more = 0, False, True
        while more and not done:
            ask = self._client.ask(self._ref, "events", after, PAGE, self.run_id, 0.0)
            page, later, done = yield from ask
            events += page
            after, more = later, later > after
        return events

    @checked
    def _event_page(self, after: Number, limit: Limit, wait_s: WaitSeconds) -> Request[EventPage]:
        events, later, done = yield from self._client.follow(self._ref, after, limit, self.run_id, wait_s)
        return EventPage(events, None if done else later)

    @checked
    def _page(
        self, after: Number, phases: bool = False, derived: InstanceOf[Phases] | None = None
    ) -> Request[tuple[list[AnyEvent], int, bool]]:
        events, after, done = yield from self._client.follow(self._ref, after, PAGE, self.run_id)
        return list(derived.add(events)) if phases and derived else events, after, done


class ExecutionHandle(_Handle):
    """A run: wait for it, follow it or cancel it, from any process. The run needs no handle; it lives in Ray.

    A handle is pickled as its ids. In another process of the cluster it works while the session is live, or while a
    manager of the same store is open in that process.
    """

    __slots__ = ()

    def _push(self, on_event: EventSink) -> ThreadSink:
        return ThreadSink(on_event, self._page, self._client.portal, self.run_id)

    def wait(self, timeout_s: float | None = None, *, until: Until = "ended") -> Turn:
        """Return the finished turn, or raise the run's error. Any number of callers may wait, also after the run.

        Costs one Ray call every ten seconds, or none if the run had ended when its start was acknowledged. On return
        the run's end is durable, and the next queued run has started, if one is due. The `on_event` that `run` was
        given has had all events, unless it needs more than ten seconds for the rest. Leaving or cancelling the wait
        does not cancel the run.

        Args:
            timeout_s: give up after so many seconds; the run continues.
            until: with "settled", also return when the run waits for a decision about a tool call, at once if it does
                so already: the turn as it is then, whose `status` is "running". `pending` has the calls.

        Raises:
            RunCancelledError, RunFailedError, RunInterruptedError: how the run ended; `.turn` is what was kept of it.
            RunReplacedError: `if_busy="latest"` of the run `.replaced_by` came while this one was queued; it is a
                RunCancelledError.
            OutputInvalidError, OutputRefusedError, OutputCutError: the run had `output=` and got no such answer; these
                are RunFailedErrors, so they have `.turn` too.
            WaitTimeoutError: the run has not ended after `timeout_s`; `.state` is its state then.
            TurnNotFoundError: the run completed, but its turn was cleared.
            SessionNotFoundError: the session was deleted.
            SessionLostError: no process of the session could be reached for a minute.
            OverloadedError: the run has not ended, and too many other callers have been waiting for all of `timeout_s`
                (one minute without a `timeout_s`).
        """
        try:
            turn = carry_out(self._wait(timeout_s, until), self._client.portal)
        except RunEndedError:
            self._drain()
            raise
        if turn.status == "completed":
            self._drain()
        return turn

    def _drain(self) -> None:
        if self._sink:
            self._sink.drain()

    def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Cancel the run and wait for its end; return whether it ended as cancelled.

        On return the run's end is durable, and the next queued run has started, if one is due. Idempotent; cancelling
        a run that has ended changes nothing.
        """
        return carry_out(self._cancel(reason), self._client.portal)

    def add_event(self, name: str, data: Mapping[str, Any] | None = None) -> int:
        """Add an event of your own to the run, at the end of its events so far; return its number. Durable on return.

        Readers of the run's events get a `CustomEvent` with this name and data. Tools and engines call
        `context.event` instead.

        Args:
            name: 1 to 256 characters.
            data: a JSON object of at most 1 MB.

        Raises:
            InvalidInputError: the run has ended, or the name or the data cannot be stored; nothing was stored.
        """
        return carry_out(self._add_event(name, data), self._client.portal)

    def pending(self) -> list[PendingCall]:
        """Return the run's tool calls that wait for a decision, in the order in which the model made them."""
        return carry_out(self._pending(), self._client.portal)

    def approve(self, call_id: str, *, input: Mapping[str, Any] | None = None) -> None:
        """Approve a tool call, with other arguments if `input` is given; durable on return.

        In the history, the edited call replaces the model's. The run continues when no call is left to decide.
        Repeating a decision changes nothing: an approved call is made at most once.

        Raises:
            CallNotFoundError: no such call waits, or has waited, for a decision.
            CallDecidedError: the call was decided differently, or the run has ended.
            InvalidInputError: the tool does not accept these arguments; the error says where. Nothing was stored:
                correct them and repeat the call.
            EngineError: the arguments cannot be checked, since the engine cannot be built. Nothing was stored.
        """
        carry_out(self._approve(call_id, input), self._client.portal)

    def reject(self, call_id: str, reason: str = "") -> None:
        """Reject a tool call and tell the model why; durable on return. Repetition and errors: see `approve`."""
        carry_out(self._reject(call_id, reason), self._client.portal)

    def provide(self, call_id: str, result: Any, *, is_error: bool = False) -> None:
        """Supply the result of a tool call that was made elsewhere; durable on return. Errors: see `approve`.

        Args:
            result: a text; another JSON value, which the model gets as JSON and `ToolResult.data` has as a payload; a
                `Text`, `Image` or `Document`, or a list with some; or what `ToolResult.of` made of a value and blocks.
        """
        carry_out(self._provide(call_id, result, is_error), self._client.portal)

    def input(self) -> Turn:
        """Return the turn as it was started: what the model was given, without what it answered.

        If an overflow strategy shortened the run's context, the shortened one. A run that is still queued is shown
        with the prompts that wait before it.

        Raises:
            TurnNotFoundError: the run was rolled back or discarded, and its turn with it.
        """
        return carry_out(self._input(), self._client.portal)

    def is_running(self) -> bool:
        """Return whether the run has not ended: it is queued, runs, or waits for approval; see `status`."""
        return not self.is_done()

    def is_done(self) -> bool:
        """Return whether the run has ended, however it ended; then `wait` returns or raises at once."""
        return not (self.info()).is_open

    def status(self) -> RunState:
        """Return the state of the run."""
        return self.info().state

    def phase(self) -> Phase:
        """Return the run's phase, derived from its events up to now: see `events(phases=True)`. Fetches all of them."""
        return carry_out(self._phase(), self._client.portal)

    def info(self) -> RunRecord:
        """Return the run's record: state, finish class, labels, times, and usage up to now."""
        return carry_out(self._record(), self._client.portal)

    def steps(self) -> list[Step]:
        """Return the run's model calls and tool calls up to now, with their times, in order. Fetches all its events."""
        return carry_out(self._steps(), self._client.portal)

    def events(self, after: int = 0, *, phases: bool = False) -> Iterator[AnyEvent]:
        """Yield the run's events with a number above `after`, live, up to its terminal event; no gaps or duplicates.

        After the run has ended, the stored events are replayed: all except the deltas; the terminal event has the
        text. Deltas are replayed too until the run after the next one starts. Stopping the iteration does not cancel
        the run.

        Args:
            phases: also yield a `PhaseChanged` where the run's phase changes: `prompted`, `planning`,
                `executing_tools`, `synthesizing`, `suspended`, `completed`, `failed`, `cancelled`. They are derived
                from the events, so a replay has them too; the last one comes right before the terminal event.

        Raises:
            OverloadedError: no event arrived for a minute in which too many other callers were waiting.
        """
        done, derived = False, Phases()
        while not done:
            events, after, done = carry_out(self._page(after, phases, derived), self._client.portal)
            yield from events

    def event_page(self, after: int = 0, limit: int = 1000, *, wait_s: float = 0.0) -> EventPage:
        """Return up to `limit` of the run's events with a number above `after`, as `events` yields them.

        The result is a list whose `next` is the `after` of the next page; None if the run has no more events. A page
        may be empty and have a `next`: then there are no more events yet, or those that were read are of other runs.

        Args:
            wait_s: wait up to so many seconds for the first event.

        Raises:
            OverloadedError: too many other callers have been waiting for all of `wait_s`.
        """
        return carry_out(self._event_page(after, limit, wait_s), self._client.portal)

    def partials(self) -> Iterator[dict[str, Any]]:
        """Yield the model's answer object each time it has grown; the last one is complete. For runs with `output=`.

        A string at the end of a partial object may be incomplete; other values appear once they are complete. An object
        of more than 4,096 characters comes each time that it has grown by a sixteenth. Partial objects are not
        validated. When an answer is returned to the model for correction, the object starts again empty. The iteration
        ends when the run ends, however it ends; `wait()` says how. Reads `events`, and raises the same errors; the
        parsing happens in this process.
        """
        yield from Partials().add(self.events())


class AsyncExecutionHandle(_Handle):
    """`ExecutionHandle` with its verbs as coroutines; `await handle` is `await handle.wait()`.

    Pickles as its ids. In another process of the cluster it works as long as the session is live, or a manager of the
    same store is open there.
    """

    __slots__ = ()

    def _push(self, on_event: EventSink) -> TaskSink:
        return TaskSink(on_event, self._page, self.run_id)

    def __await__(self) -> Generator[Any, None, Turn]:
        return self.wait().__await__()

    async def wait(self, timeout_s: float | None = None, *, until: Until = "ended") -> Turn:
        """Return the finished turn, or raise the run's error. Any number of callers may wait, also after the run.

        Costs one Ray call every ten seconds, or none if the run had ended when its start was acknowledged. On return
        the run's end is durable, and the next queued run has started, if one is due. The `on_event` that `run` was
        given has had all events, unless it needs more than ten seconds for the rest. Leaving or cancelling the wait
        does not cancel the run.

        Args:
            timeout_s: give up after so many seconds; the run continues.
            until: with "settled", also return when the run waits for a decision about a tool call, at once if it does
                so already: the turn as it is then, whose `status` is "running". `pending` has the calls.

        Raises:
            RunCancelledError, RunFailedError, RunInterruptedError: how the run ended; `.turn` is what was kept of it.
            RunReplacedError: `if_busy="latest"` of the run `.replaced_by` came while this one was queued; it is a
                RunCancelledError.
            OutputInvalidError, OutputRefusedError, OutputCutError: the run had `output=` and got no such answer; these
                are RunFailedErrors, so they have `.turn` too.
            WaitTimeoutError: the run has not ended after `timeout_s`; `.state` is its state then.
            TurnNotFoundError: the run completed, but its turn was cleared.
            SessionNotFoundError: the session was deleted.
            SessionLostError: no process of the session could be reached for a minute.
            OverloadedError: the run has not ended, and too many other callers have been waiting for all of `timeout_s`
                (one minute without a `timeout_s`).
        """
        try:
            turn = await carry_out_async(self._wait(timeout_s, until))
        except RunEndedError:
            await self._drain()
            raise
        if turn.status == "completed":
            await self._drain()
        return turn

    async def _drain(self) -> None:
        if self._sink:
            await self._sink.drain()

    async def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Cancel the run and wait for its end; return whether it ended as cancelled.

        On return the run's end is durable, and the next queued run has started, if one is due. Idempotent; cancelling
        a run that has ended changes nothing.
        """
        return await carry_out_async(self._cancel(reason))

    async def add_event(self, name: str, data: Mapping[str, Any] | None = None) -> int:
        """Add an event of your own to the run, at the end of its events so far; return its number. Durable on return.

        Readers of the run's events get a `CustomEvent` with this name and data. Tools and engines call
        `context.event` instead.

        Args:
            name: 1 to 256 characters.
            data: a JSON object of at most 1 MB.

        Raises:
            InvalidInputError: the run has ended, or the name or the data cannot be stored; nothing was stored.
        """
        return await carry_out_async(self._add_event(name, data))

    async def pending(self) -> list[PendingCall]:
        """Return the run's tool calls that wait for a decision, in the order in which the model made them."""
        return await carry_out_async(self._pending())

    async def approve(self, call_id: str, *, input: Mapping[str, Any] | None = None) -> None:
        """Approve a tool call, with other arguments if `input` is given; durable on return.

        In the history, the edited call replaces the model's. The run continues when no call is left to decide.
        Repeating a decision changes nothing: an approved call is made at most once.

        Raises:
            CallNotFoundError: no such call waits, or has waited, for a decision.
            CallDecidedError: the call was decided differently, or the run has ended.
            InvalidInputError: the tool does not accept these arguments; the error says where. Nothing was stored:
                correct them and repeat the call.
            EngineError: the arguments cannot be checked, since the engine cannot be built. Nothing was stored.
        """
        await carry_out_async(self._approve(call_id, input))

    async def reject(self, call_id: str, reason: str = "") -> None:
        """Reject a tool call and tell the model why; durable on return. Repetition and errors: see `approve`."""
        await carry_out_async(self._reject(call_id, reason))

    async def provide(self, call_id: str, result: Any, *, is_error: bool = False) -> None:
        """Supply the result of a tool call that was made elsewhere; durable on return. Errors: see `approve`.

        Args:
            result: a text; another JSON value, which the model gets as JSON and `ToolResult.data` has as a payload; a
                `Text`, `Image` or `Document`, or a list with some; or what `ToolResult.of` made of a value and blocks.
        """
        await carry_out_async(self._provide(call_id, result, is_error))

    async def input(self) -> Turn:
        """Return the turn as it was started: what the model was given, without what it answered.

        If an overflow strategy shortened the run's context, the shortened one. A run that is still queued is shown
        with the prompts that wait before it.

        Raises:
            TurnNotFoundError: the run was rolled back or discarded, and its turn with it.
        """
        return await carry_out_async(self._input())

    async def is_running(self) -> bool:
        """Return whether the run has not ended: it is queued, runs, or waits for approval; see `status`."""
        return not await self.is_done()

    async def is_done(self) -> bool:
        """Return whether the run has ended, however it ended; then `wait` returns or raises at once."""
        return not (await self.info()).is_open

    async def status(self) -> RunState:
        """Return the state of the run."""
        return (await self.info()).state

    async def phase(self) -> Phase:
        """Return the run's phase, derived from its events up to now: see `events(phases=True)`. Fetches all of them."""
        return await carry_out_async(self._phase())

    async def info(self) -> RunRecord:
        """Return the run's record: state, finish class, labels, times, and usage up to now."""
        return await carry_out_async(self._record())

    async def steps(self) -> list[Step]:
        """Return the run's model calls and tool calls up to now, with their times, in order. Fetches all its events."""
        return await carry_out_async(self._steps())

    async def events(self, after: int = 0, *, phases: bool = False) -> AsyncIterator[AnyEvent]:
        """Yield the run's events with a number above `after`, live, up to its terminal event; no gaps or duplicates.

        After the run has ended, the stored events are replayed: all except the deltas; the terminal event has the
        text. Deltas are replayed too until the run after the next one starts. Stopping the iteration does not cancel
        the run.

        Args:
            phases: also yield a `PhaseChanged` where the run's phase changes: `prompted`, `planning`,
                `executing_tools`, `synthesizing`, `suspended`, `completed`, `failed`, `cancelled`. They are derived
                from the events, so a replay has them too; the last one comes right before the terminal event.

        Raises:
            OverloadedError: no event arrived for a minute in which too many other callers were waiting.
        """
        done, derived = False, Phases()
        while not done:
            events, after, done = await carry_out_async(self._page(after, phases, derived))
            for event in events:
                yield event

    async def event_page(self, after: int = 0, limit: int = 1000, *, wait_s: float = 0.0) -> EventPage:
        """Return up to `limit` of the run's events with a number above `after`, as `events` yields them.

        The result is a list whose `next` is the `after` of the next page; None if the run has no more events. A page
        may be empty and have a `next`: then there are no more events yet, or those that were read are of other runs.

        Args:
            wait_s: wait up to so many seconds for the first event.

        Raises:
            OverloadedError: too many other callers have been waiting for all of `wait_s`.
        """
        return await carry_out_async(self._event_page(after, limit, wait_s))

    async def partials(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the model's answer object each time it has grown; the last one is complete. For runs with `output=`.

        A string at the end of a partial object may be incomplete; other values appear once they are complete. An object
        of more than 4,096 characters comes each time that it has grown by a sixteenth. Partial objects are not
        validated. When an answer is returned to the model for correction, the object starts again empty. The iteration
        ends when the run ends, however it ends; `wait()` says how. Reads `events`, and raises the same errors; the
        parsing happens in this process.
        """
        partials = Partials()
        async for event in self.events():
            for found in partials.add((event,)):
                yield found


def _provided(given: Any, is_error: bool) -> ApprovalDecision:
    """Return the decision that provides a result; see `ExecutionHandle.provide`."""
    check_count("result", count_values([given], MAX_VALUES), "MAX_VALUES", MAX_VALUES)
    try:
        result = result_of("", given)
    except ValueError as error:
        raise InvalidInputError("result", shown(given), str(error)) from None
    if result is None:
        plain = plain_json("result", given, MAX_JSON_BYTES)
        is_json = not isinstance(plain, str)
        result = ToolResult(call_id="", text=encode_json(plain) if is_json else plain, is_json=is_json)
    elif (size := len(encode(result).encode())) > MAX_JSON_BYTES:
        raise InvalidInputError("result", shown(given), f"must take at most {MAX_JSON_BYTES} bytes as JSON, not {size}")
    return ApprovalDecision(
        verdict="provided",
        text=result.text,
        is_error=is_error or result.is_error,
        is_json=result.is_json,
        blocks=result.blocks,
    )
