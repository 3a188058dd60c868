# Made from actors/client/execution.py by `make blocking`: change that file.
"""`ExecutionHandle`: waits for, follows, cancels and inspects a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from turnwise.actors.client.blocking.event_push import EventPush
from turnwise.actors.client.blocking.session_host import SessionHost
from turnwise.actors.client.shared.arguments import (
    EventSink,
    Labels,
    Limit,
    Number,
    Text,
    WaitSeconds,
    checked,
    json_object,
)
from turnwise.actors.client.shared.event_page import EventPage
from turnwise.actors.client.shared.provided_result import provided
from turnwise.actors.client.shared.run_handle import RunHandle
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.wire import ClientOutcome, PackedTurn, SessionRef
from turnwise.actors.inference.timeline import MAX_EVENT_BYTES, custom_event
from turnwise.errors import CallNotFoundError, RunEndedError, TurnNotFoundError, WaitTimeoutError
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision, PendingCall, decode_calls
from turnwise.memory.conversation.events import AnyEvent, Phase
from turnwise.memory.conversation.runs import RunRecord, RunState, Until
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.views.notebook_display import Rows
from turnwise.memory.conversation.views.partial_typed_answer import Partials
from turnwise.memory.conversation.views.phases import Phases, phase_of
from turnwise.memory.conversation.views.steps import Step, steps_of
from turnwise.memory.values.ids import new_id

PAGE = 1000
"""How many events one call fetches at most."""


class ExecutionHandle(RunHandle):
    """A run: wait for it, follow it or cancel it, from any process. The run needs no handle; it lives in Ray.

    A handle is pickled as its ids. In another process of the cluster it works while the session is live, or while a
    manager of the same store is open in that process.
    """

    __slots__ = ("_host", "_push")

    def __init__(
        self,
        client: SessionsClient,
        ref: SessionRef,
        run_id: str,
        turn_index: int,
        outcome: ClientOutcome | None = None,
        *,
        dropped: bool = False,
        output: Any = None,
        on_event: EventSink | None = None,
    ) -> None:
        super().__init__(client, ref, run_id, turn_index, outcome, dropped=dropped, output=output)
        self._host = SessionHost(client, ref)
        self._push = EventPush(on_event, self._page, run_id) if on_event else None
        """Calls `on_event` with the run's events; it is not pickled with the handle."""

    @checked(timeout_s=WaitSeconds | None, until=Until)
    def wait(self, timeout_s: float | None = None, *, until: Until = "ended") -> Turn:
        """Return the finished turn, or raise the run's error. Any number of callers may wait, also after the run.

        Costs one request every ten seconds, or none if the run had ended when its start was acknowledged. On return
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
        outcome = self._outcome
        try:
            if outcome is None:
                outcome = self._host.wait(self.run_id, timeout_s, until)
        except TimeoutError as error:
            raise WaitTimeoutError(self.session_id, self.run_id, timeout_s, "unknown") from error
        try:
            turn = self._turn_of(outcome, timeout_s, until)
        except RunEndedError:
            self._drain()
            raise
        if turn.status == "completed":
            self._drain()
        return turn

    def _drain(self) -> None:
        if self._push:
            self._push.drain()

    @checked(reason=Text)
    def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Cancel the run and wait for its end; return whether it ended as cancelled.

        On return the run's end is durable, and the next queued run has started, if one is due. Idempotent; cancelling
        a run that has ended changes nothing.
        """
        return self._host.cancel(reason, self.run_id)

    @checked(name=Text, labels=Labels | None)
    def add_event(
        self, name: str, data: Mapping[str, Any] | None = None, *, labels: Mapping[str, str] | None = None
    ) -> int:
        """Add an event of your own to the run, at the end of its events so far; return its number. Durable on return.

        Readers of the run's events get a `CustomEvent` with this name and data. Tools and engines call
        `context.event` instead. If the run has ended, the event is of the run all the same: those who follow the run
        stop before it, and get it by `events(after=...)` with the number of the run's last event. Readers of the
        session's events and subscriptions get it as any other.

        Args:
            name: 1 to 256 characters.
            data: a JSON object of at most 1 MB.
            labels: labels of this event, beside those of the run: `Session.events(labels=...)` finds it by them.

        Raises:
            InvalidInputError: the name, the data or the labels cannot be stored; nothing was stored.
            SessionEndedError: the run and its session have ended; nothing was stored.
        """
        plain = None if data is None else json_object("data", data, MAX_EVENT_BYTES)
        custom_event(name, plain, labels)
        return self._host.ask(verbs.add_event(name, plain, new_id(), run_id=self.run_id, labels=labels))

    def pending(self) -> list[PendingCall]:
        """Return the run's tool calls that wait for a decision, in the order in which the model made them.

        Calls of its agents are among them, and of those below. Their ids are paths: the id of the call of the agent, a
        slash, the id in the agent's run; `approve`, `reject` and `provide` take them. A call of an agent itself waits
        for no decision.
        """
        return Rows(self._host.ask(verbs.pending(self.run_id)))

    def children(self) -> list[ExecutionHandle]:
        """Return the runs of the agents that this run has called, in the order of the calls; see `agent_tool`.

        Each is the run of a session of its own, `session_id`, whose first turn it is. It begins shortly after the call;
        until then its methods raise SessionNotFoundError or RunNotFoundError. Agents whose sessions were deleted are
        among them.
        """
        calls = decode_calls((self._host.ask(verbs.run(self.run_id))).calls)
        agents = [state.agent["session"] for state in calls.values() if state.agent]
        return [self._of_agent(agent) for agent in agents]

    def _of_agent(self, agent: str) -> ExecutionHandle:
        ref = SessionRef(SessionKey(agent, self._ref.key.user_id), as_user=self._ref.as_user)
        return ExecutionHandle(self._client, ref, agent, 0)

    @checked(call_id=Text)
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
        edited = None if input is None else json_object("input", input)
        self._decide(call_id, ApprovalDecision(verdict="approved", input=edited))

    @checked(call_id=Text, reason=Text)
    def reject(self, call_id: str, reason: str = "") -> None:
        """Reject a tool call and tell the model why; durable on return. Repetition and errors: see `approve`."""
        self._decide(call_id, ApprovalDecision(verdict="rejected", text=reason))

    @checked(call_id=Text, is_error=bool)
    def provide(self, call_id: str, result: Any, *, is_error: bool = False) -> None:
        """Supply the result of a tool call that was made elsewhere; durable on return. Errors: see `approve`.

        Args:
            result: a text; another JSON value, which the model gets as JSON and `ToolResult.data` has as a payload; a
                `Text`, `Image` or `Document`, or a list with some; or what `ToolResult.of` made of a value and blocks.
        """
        self._decide(call_id, provided(result, is_error))

    def _decide(self, call_id: str, decision: ApprovalDecision) -> None:
        try:
            self._host.ask(verbs.decide(self.run_id, call_id, decision))
        except CallNotFoundError:
            record = self._host.ask(verbs.run(self.run_id))
            calls = decode_calls(record.calls).items()
            paths = {f"{agent_call}/": state for agent_call, state in calls if state.agent}
            path = next((path for path in paths if call_id.startswith(path)), None)
            if path is None:
                raise
            child = self._of_agent(paths[path].agent["session"])
            child._decide(call_id.removeprefix(path), decision)  # noqa: SLF001 - of the same class
            self._host.ask(verbs.hear(record.run_id, child.session_id))

    def input(self) -> Turn:
        """Return the turn as it was started: what the model was given, without what it answered.

        If an overflow strategy shortened the run's context, the shortened one. A run that is still queued is shown
        with the prompts that wait before it.

        Raises:
            TurnNotFoundError: the run was rolled back or discarded, and its turn with it.
        """
        cache = self._client.cache(self._ref)
        packed: PackedTurn
        run_id, index = self.run_id, self.turn_index
        while True:
            try:
                packed = self._host.ask(verbs.turn(index, cache.held))
                if packed.record.run_id == run_id:
                    return self._client.unpack(packed, cache).as_started()
            except TurnNotFoundError:
                pass
            record = self.info()
            if record.run_id == run_id:
                raise TurnNotFoundError(self.session_id, self.turn_index)
            run_id, index = record.run_id, record.turn_index  # it was merged

    def is_running(self) -> bool:
        """Return whether the run has not ended: it is queued, runs, or waits for approval; see `status`."""
        return not self.is_done()

    def is_done(self) -> bool:
        """Return whether the run has ended, however it ended; then `wait` returns or raises at once."""
        record = self.info()
        return not record.is_open

    def status(self) -> RunState:
        """Return the state of the run."""
        record = self.info()
        return record.state

    def phase(self) -> Phase:
        """Return the run's phase, derived from its events up to now: see `events(phases=True)`. Fetches all of them."""
        return phase_of(self._events_now()) or "prompted"

    def info(self) -> RunRecord:
        """Return the run's record: state, finish class, labels, times, and usage up to now."""
        return self._host.ask(verbs.run(self.run_id))

    def steps(self) -> list[Step]:
        """Return the run's model calls and tool calls up to now, with their times, in order. Fetches all its events."""
        return Rows(steps_of(self._events_now()))

    def _events_now(self) -> list[AnyEvent]:
        """Return the run's events up to now."""
        events: list[AnyEvent] = []
        after, done, more = 0, False, True
        while more and not done:
            page, later, done = self._host.follow(after, PAGE, self.run_id, 0.0)
            events += page
            after, more = later, later > after
        return events

    @checked(after=Number, phases=bool)
    def events(self, after: int = 0, *, phases: bool = False) -> Iterator[AnyEvent]:
        """Yield the run's events with a number above `after`, live, up to its terminal event; no gaps or duplicates.

        After the run has ended, the stored events are replayed: all except the deltas; the terminal event has the
        text of the last model call, and `model_call_ended` that of an earlier one. Deltas are replayed too until the
        run after the next one starts. Stopping the iteration does not cancel the run.

        Args:
            phases: also yield a `PhaseChanged` where the run's phase changes: `prompted`, `planning`,
                `executing_tools`, `synthesizing`, `suspended`, `completed`, `failed`, `cancelled`. They are derived
                from the events, so a replay has them too; the last one comes right before the terminal event.

        Raises:
            OverloadedError: no event arrived for a minute in which too many other callers were waiting.
        """
        done, derived = False, Phases()
        while not done:
            events, after, done = self._page(after)
            for event in derived.add(events) if phases else events:
                yield event

    def _page(self, after: int) -> tuple[list[AnyEvent], int, bool]:
        return self._host.follow(after, PAGE, self.run_id)

    @checked(after=Number, limit=Limit, wait_s=WaitSeconds)
    def event_page(self, after: int = 0, limit: int = 1000, *, wait_s: float = 0.0) -> EventPage:
        """Return up to `limit` of the run's events with a number above `after`, as `events` yields them.

        The result is a list whose `next` is the `after` of the next page; None if the run has no more events. A page
        may be empty and have a `next`: then there are no more events yet, or those that were read are of other runs.

        Args:
            wait_s: wait up to so many seconds for the first event.

        Raises:
            OverloadedError: too many other callers have been waiting for all of `wait_s`.
        """
        events, later, done = self._host.follow(after, limit, self.run_id, wait_s)
        return EventPage(events, None if done else later)

    def partials(self) -> Iterator[dict[str, Any]]:
        """Yield the model's answer object each time it has grown; the last one is complete. For runs with `output=`.

        A string at the end of a partial object may be incomplete; other values appear once they are complete. An object
        of more than 4,096 characters comes each time that it has grown by a sixteenth. Partial objects are not
        validated. When an answer is returned to the model for correction, the object starts again empty. The iteration
        ends when the run ends, however it ends; `wait()` says how. Reads `events`, and raises the same errors; the
        parsing happens in this process.
        """
        partials = Partials()
        for event in self.events():
            for answer in partials.add((event,)):
                yield answer
