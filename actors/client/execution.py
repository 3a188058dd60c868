"""Execution handles: a run, wherever it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from typing import Any

from turnwise.actors.client.arguments import Number, Patience, Text, checked, json_object
from turnwise.actors.client.cluster_client import ClusterClient
from turnwise.actors.client.requests import Request, carry_out, carry_out_async
from turnwise.actors.cluster.wire import Ended
from turnwise.actors.session.approvals import ApprovalDecision
from turnwise.errors import (
    OutputCutError,
    OutputInvalidError,
    OutputRefusedError,
    RunCancelledError,
    RunEndedError,
    RunFailedError,
    RunInterruptedError,
    RunLimitError,
    WaitTimeoutError,
)
from turnwise.memory.conversation.events import AnyEvent
from turnwise.memory.conversation.ids import public_id
from turnwise.memory.conversation.partial_output import Partials
from turnwise.memory.conversation.runs import RunRecord, RunState
from turnwise.memory.conversation.steps import Step, steps_of
from turnwise.memory.conversation.tool_calls import PendingCall
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
"""How many events are fetched at once."""


class _Handle:
    """What both handles are: the ids of a run and the requests about it."""

    __slots__ = ("_client", "_outcome", "_output", "_stored_id", "run_id", "session_id", "turn_index")

    def __init__(
        self,
        client: ClusterClient,
        session_id: str,
        run_id: str,
        turn_index: int,
        outcome: Ended | None = None,
        *,
        output: Any = None,
    ) -> None:
        self._client = client
        self._output = output
        """The class of the run's answer; it does not travel with the handle."""
        self._outcome = outcome
        """How the run ended, if that came with the start's answer."""
        self._stored_id = session_id
        self.session_id = public_id(session_id)
        self.run_id = run_id
        self.turn_index = turn_index

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.run_id} of {self.session_id}#{self.turn_index}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handle) and (self._stored_id, self.run_id) == (other._stored_id, other.run_id)

    def __hash__(self) -> int:
        return hash((self._stored_id, self.run_id))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._client, self._stored_id, self.run_id, self.turn_index)

    @checked
    def _wait(self, timeout_s: Patience | None) -> Request[Turn]:
        outcome = self._outcome
        try:
            if outcome is None:
                outcome = yield from self._client.wait(self._stored_id, self.run_id, timeout_s)
        except TimeoutError as error:
            raise WaitTimeoutError(self.session_id, self.run_id, timeout_s) from error
        if outcome is None:
            raise WaitTimeoutError(self.session_id, self.run_id, timeout_s)
        if outcome.state == "completed" and outcome.turn:
            return outcome.turn if self._output is None else outcome.turn.typed(self._output)
        kind = _ERRORS_BY_CODE.get(outcome.code) or _ERRORS[outcome.state]
        raise kind(self.session_id, self.run_id, outcome.why, outcome.turn)

    @checked
    def _cancel(self, reason: Text) -> Request[bool]:
        return self._client.cancel(self._stored_id, reason, self.run_id)

    @checked
    def _approve(self, call_id: Text, input: Any) -> Request[None]:
        edited = None if input is None else json_object("input", input)
        return self._decide(call_id, ApprovalDecision(verdict="approved", input=edited))

    @checked
    def _reject(self, call_id: Text, reason: Text) -> Request[None]:
        return self._decide(call_id, ApprovalDecision(verdict="rejected", text=reason))

    @checked
    def _provide(self, call_id: Text, result: Text, is_error: bool) -> Request[None]:
        return self._decide(call_id, ApprovalDecision(verdict="provided", text=result, is_error=is_error))

    def _decide(self, call_id: str, decision: ApprovalDecision) -> Request[None]:
        yield from self._client.ask(self._stored_id, "decide", self.run_id, call_id, decision)

    def _pending(self) -> Request[list[PendingCall]]:
        pending: list[PendingCall] = yield from self._client.ask(self._stored_id, "pending", self.run_id)
        return pending

    def _record(self) -> Request[RunRecord]:
        record: RunRecord = yield from self._client.ask(self._stored_id, "run", self.run_id)
        return record

    def _steps(self) -> Request[list[Step]]:
        events: list[AnyEvent] = []
        after, done, more = 0, False, True
        while more and not done:
            ask = self._client.ask(self._stored_id, "events", after, PAGE, self.run_id, 0.0)
            page, later, done = yield from ask
            events += page
            after, more = later, later > after
        return steps_of(events)

    @checked
    def _page(self, after: Number) -> Request[tuple[list[AnyEvent], int, bool]]:
        return self._client.follow(self._stored_id, after, PAGE, self.run_id)


class ExecutionHandle(_Handle):
    """A run: wait for it, follow it, cancel it, from any process; it goes on without any, as long as its Ray does.

    Pickles as its ids. In another process of the cluster it works as long as the session is live, or a manager of the
    same store is open there.
    """

    __slots__ = ("_portal",)

    def __init__(
        self,
        client: ClusterClient,
        session_id: str,
        run_id: str,
        turn_index: int,
        outcome: Ended | None = None,
        *,
        output: Any = None,
    ) -> None:
        super().__init__(client, session_id, run_id, turn_index, outcome, output=output)
        self._portal = client.portal

    def wait(self, timeout_s: float | None = None) -> Turn:
        """Return the finished turn, or raise the run's error. Any number may wait, as often and as late as they like.

        One Ray call every ten seconds, or none if the run had ended when its start was acknowledged. Ends at the run's
        end, which is durable by then and has freed the session. Leaving or cancelling the wait does not cancel the run.

        Args:
            timeout_s: give up after so many seconds; the run goes on.

        Raises:
            RunCancelledError, RunFailedError, RunInterruptedError: `.turn` is what was kept.
            OutputInvalidError, OutputRefusedError, OutputCutError: likewise, of a run with `output=` (RunFailedError).
            WaitTimeoutError: the run has not ended.
            OverloadedError: likewise, and too many others wait: for all of `timeout_s`, or for a minute without one.
        """
        return carry_out(self._wait(timeout_s), self._portal)

    def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Cancel the run; return whether it ended as cancelled. When this returns, the session is free.

        Idempotent; a run that has ended is left as it is.
        """
        return carry_out(self._cancel(reason), self._portal)

    def pending(self) -> list[PendingCall]:
        """Return the calls of the run that wait for a decision, in the order in which they were made."""
        return carry_out(self._pending(), self._portal)

    def approve(self, call_id: str, *, input: Mapping[str, Any] | None = None) -> None:
        """Let a call be made, with other arguments if `input` is given; durable on return.

        The model's call is replaced by the edited one in the history. The run goes on when nothing is left to decide.
        The same decision again changes nothing; a call is made at most once for it.

        Raises:
            CallNotFoundError: no such call waits or waited.
            CallDecidedError: it was decided otherwise, or the run has ended.
            InvalidInputError: the tool does not take such arguments; says where. Nothing was stored: correct them.
            EngineError: they cannot be checked, since the engine cannot be built. Nothing was stored.
        """
        carry_out(self._approve(call_id, input), self._portal)

    def reject(self, call_id: str, reason: str = "") -> None:
        """Let the model know that the call was not made, and why; durable on return. Otherwise like `approve`."""
        carry_out(self._reject(call_id, reason), self._portal)

    def provide(self, call_id: str, result: str, *, is_error: bool = False) -> None:
        """Give the result of a call that was made outside; durable on return. Otherwise like `approve`."""
        carry_out(self._provide(call_id, result, is_error), self._portal)

    def is_running(self) -> bool:
        """Return whether the run has the session's claim now."""
        return self.status() == "running"

    def status(self) -> RunState:
        """Return the state of the run."""
        return self.info().state

    def info(self) -> RunRecord:
        """Return the run's record: state, finish class, labels, times, what it has spent up to now."""
        return carry_out(self._record(), self._portal)

    def steps(self) -> list[Step]:
        """Return the run's calls of the model and of tools up to now, with their times, in order."""
        return carry_out(self._steps(), self._portal)

    def events(self, after: int = 0) -> Iterator[AnyEvent]:
        """Yield the run's events with a number above `after`, live and to its terminal event, without gap or duplicate.

        After the run, what is stored is replayed: all but the deltas, and the terminal event carries the text. Deltas
        are replayed too until the run after the next one starts. Leaving the iteration cancels nothing.

        Raises:
            OverloadedError: there is nothing new, and for a minute too many others wait.
        """
        done = False
        while not done:
            events, after, done = carry_out(self._page(after), self._portal)
            yield from events

    def partials(self) -> Iterator[dict[str, Any]]:
        """Yield the object that the model answers with, as far as it has come, whenever it has grown; at last, whole.

        For runs with `output=`. A text at the end of the object may be cut short; other values are there when they are
        whole, and nothing is checked. An answer that was sent back begins anew. Ends with the run, however that ends:
        `wait()` says how. Raises as `events`, which it reads; parsing happens here, for those who ask only.
        """
        yield from Partials().add(self.events())


class AsyncExecutionHandle(_Handle):
    """`ExecutionHandle` with its verbs as coroutines; `await handle` is `await handle.wait()`.

    Pickles as its ids. In another process of the cluster it works as long as the session is live, or a manager of the
    same store is open there.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Turn]:
        return self.wait().__await__()

    async def wait(self, timeout_s: float | None = None) -> Turn:
        """Return the finished turn, or raise the run's error. Any number may wait, as often and as late as they like.

        One Ray call every ten seconds, or none if the run had ended when its start was acknowledged. Ends at the run's
        end, which is durable by then and has freed the session. Leaving or cancelling the wait does not cancel the run.

        Args:
            timeout_s: give up after so many seconds; the run goes on.

        Raises:
            RunCancelledError, RunFailedError, RunInterruptedError: `.turn` is what was kept.
            OutputInvalidError, OutputRefusedError, OutputCutError: likewise, of a run with `output=` (RunFailedError).
            WaitTimeoutError: the run has not ended.
            OverloadedError: likewise, and too many others wait: for all of `timeout_s`, or for a minute without one.
        """
        return await carry_out_async(self._wait(timeout_s))

    async def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Cancel the run; return whether it ended as cancelled. When this returns, the session is free.

        Idempotent; a run that has ended is left as it is.
        """
        return await carry_out_async(self._cancel(reason))

    async def pending(self) -> list[PendingCall]:
        """Return the calls of the run that wait for a decision, in the order in which they were made."""
        return await carry_out_async(self._pending())

    async def approve(self, call_id: str, *, input: Mapping[str, Any] | None = None) -> None:
        """Let a call be made, with other arguments if `input` is given; durable on return.

        The model's call is replaced by the edited one in the history. The run goes on when nothing is left to decide.
        The same decision again changes nothing; a call is made at most once for it.

        Raises:
            CallNotFoundError: no such call waits or waited.
            CallDecidedError: it was decided otherwise, or the run has ended.
            InvalidInputError: the tool does not take such arguments; says where. Nothing was stored: correct them.
            EngineError: they cannot be checked, since the engine cannot be built. Nothing was stored.
        """
        await carry_out_async(self._approve(call_id, input))

    async def reject(self, call_id: str, reason: str = "") -> None:
        """Let the model know that the call was not made, and why; durable on return. Otherwise like `approve`."""
        await carry_out_async(self._reject(call_id, reason))

    async def provide(self, call_id: str, result: str, *, is_error: bool = False) -> None:
        """Give the result of a call that was made outside; durable on return. Otherwise like `approve`."""
        await carry_out_async(self._provide(call_id, result, is_error))

    async def is_running(self) -> bool:
        """Return whether the run has the session's claim now."""
        return await self.status() == "running"

    async def status(self) -> RunState:
        """Return the state of the run."""
        return (await self.info()).state

    async def info(self) -> RunRecord:
        """Return the run's record: state, finish class, labels, times, what it has spent up to now."""
        return await carry_out_async(self._record())

    async def steps(self) -> list[Step]:
        """Return the run's calls of the model and of tools up to now, with their times, in order."""
        return await carry_out_async(self._steps())

    async def events(self, after: int = 0) -> AsyncIterator[AnyEvent]:
        """Yield the run's events with a number above `after`, live and to its terminal event, without gap or duplicate.

        After the run, what is stored is replayed: all but the deltas, and the terminal event carries the text. Deltas
        are replayed too until the run after the next one starts. Leaving the iteration cancels nothing.

        Raises:
            OverloadedError: there is nothing new, and for a minute too many others wait.
        """
        done = False
        while not done:
            events, after, done = await carry_out_async(self._page(after))
            for event in events:
                yield event

    async def partials(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the object that the model answers with, as far as it has come, whenever it has grown; at last, whole.

        For runs with `output=`. A text at the end of the object may be cut short; other values are there when they are
        whole, and nothing is checked. An answer that was sent back begins anew. Ends with the run, however that ends:
        `wait()` says how. Raises as `events`, which it reads; parsing happens here, for those who ask only.
        """
        partials = Partials()
        async for event in self.events():
            for found in partials.add((event,)):
                yield found
