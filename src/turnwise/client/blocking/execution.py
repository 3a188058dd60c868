# Made from src/turnwise/client/execution.py by `make blocking`: change that file.
"""`RemoteExecutionHandle`: waits for, follows, cancels and inspects a run of a service."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from turnwise.actors.client.blocking.event_push import EventPush
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
from turnwise.actors.inference.timeline import MAX_EVENT_BYTES, custom_event
from turnwise.client.blocking.connection import Connection
from turnwise.client.shared.answers import Request, Whose, given, path_of
from turnwise.client.shared.problems import run_error
from turnwise.client.shared.reading import event_page_of, pending_of, run_of, step_of
from turnwise.client.shared.sending import block_body
from turnwise.errors import RunReplacedError, TurnNotFoundError, WaitTimeoutError
from turnwise.memory.conversation.calls.tool_calls import PendingCall
from turnwise.memory.conversation.events import AnyEvent, Phase
from turnwise.memory.conversation.runs import OPEN_STATES, RunRecord, RunState, Until
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.views.notebook_display import Rows
from turnwise.memory.conversation.views.partial_typed_answer import Partials
from turnwise.memory.conversation.views.phases import Phases
from turnwise.memory.conversation.views.steps import Step

WAIT_S = 25.0
"""How long one request waits for a run."""

PAGE = 1000
"""How many events one request fetches at most."""


class RemoteExecutionHandle:
    """A run of a service: wait for it, follow it or cancel it, from any process.

    The run needs no handle, and no connection: `execution(run_id)` of a manager, in any process, returns it again. The
    verbs are those of `ExecutionHandle`, which says more; each may also raise ServiceAwayError and UnauthorizedError.
    """

    def __init__(
        self,
        connection: Connection,
        whose: Whose,
        session_id: str,
        run_id: str,
        turn_index: int,
        *,
        dropped: bool = False,
        output: Any = None,
        on_event: EventSink | None = None,
    ) -> None:
        self._connection = connection
        self._whose = whose
        self._output = dict if isinstance(output, Mapping) else output
        self.session_id = session_id
        """The session whose run it is."""
        self.run_id = run_id
        """By which `manager.execution` finds it."""
        self.turn_index = turn_index
        """The index of the turn that it makes."""
        self.dropped = dropped
        """Whether `run(if_busy="drop")` stored nothing, since a run was active: then this is that run's handle."""
        self._push = EventPush(on_event, self._page, run_id) if on_event else None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.run_id} of {self.session_id}#{self.turn_index}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteExecutionHandle) and (self._whose, self.run_id) == (
            other._whose,
            other.run_id,
        )

    def __hash__(self) -> int:
        return hash((self._whose, self.run_id))

    @checked(timeout_s=WaitSeconds | None, until=Until)
    def wait(self, timeout_s: float | None = None, *, until: Until = "ended") -> Turn:
        """Return the finished turn, or raise the run's error. Any number of callers may wait, also after the run.

        Costs one request every 25 seconds. A service that restarts meanwhile is waited for, too.

        Args:
            timeout_s: give up after so many seconds; the run continues.
            until: with "settled", also return when the run waits for a decision about a tool call.

        Raises:
            RunEndedError: how the run ended, by its class; `.turn` is what was kept of it.
            WaitTimeoutError: the run has not ended after `timeout_s`; `.state` is its state then.
            TurnNotFoundError: the run completed, but its turn was cleared.
            RunNotFoundError, SessionNotFoundError: the session was deleted.
        """
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            wait_s = WAIT_S if end_s is None else max(0.0, min(WAIT_S, end_s - time.monotonic()))
            cache, held = self._connection.caches.held(self._owner, self.session_id)
            data = self._get("wait", wait_s=wait_s, timeout_s=wait_s, until=until, held=held)
            state: RunState = data["state"]
            snapshot = data["snapshot"]
            turn = self._connection.caches.turn_of(self._owner, cache, snapshot) if snapshot else None
            if state not in OPEN_STATES or turn is not None:
                return self._ended(data, turn)
            if end_s is not None and time.monotonic() >= end_s:
                raise WaitTimeoutError(self.session_id, self.run_id, timeout_s, state)

    def _ended(self, data: Mapping[str, Any], turn: Turn | None) -> Turn:
        if data["state"] not in OPEN_STATES and self._push:
            self._push.drain()
        if error := data["error"]:
            cls = run_error(error["error"])
            ids = self.session_id, self.run_id, error["why"], turn
            raise cls(*ids, error["successor"]) if cls is RunReplacedError else cls(*ids)
        if turn is None:
            raise TurnNotFoundError(self.session_id, self.turn_index)  # it was cleared
        return turn if self._output is None else turn.typed(self._output)

    @checked(reason=Text)
    def cancel(self, reason: str = "cancelled by the caller") -> bool:
        """Cancel the run and wait for its end; return whether it ended as cancelled. May be repeated."""
        return bool((self._post("cancel", {"reason": reason}))["cancelled"])

    @checked(name=Text, labels=Labels | None)
    def add_event(
        self, name: str, data: Mapping[str, Any] | None = None, *, labels: Mapping[str, str] | None = None
    ) -> int:
        """Add an event of your own to the run; return its number. Durable on return.

        Raises:
            InvalidInputError: the name, the data or the labels cannot be stored; nothing was stored.
            ServiceAwayError: if its `word` is "unknown", the event may have been added.
        """
        plain = None if data is None else json_object("data", data, MAX_EVENT_BYTES)
        custom_event(name, plain, labels)
        body = given(name=name, data=plain, labels=labels and dict(labels))
        return int((self._post("events", body, is_repeatable=False))["seq"])

    def pending(self) -> list[PendingCall]:
        """Return the run's tool calls that wait for a decision, those of its agents included."""
        return Rows(map(pending_of, (self._get("pending"))["items"]))

    def children(self) -> list[RemoteExecutionHandle]:
        """Return the runs of the agents that this run has called, in the order of the calls."""
        agents = [agent for agent in (self._get("children"))["items"] if agent["depth"] == 1]
        return [
            RemoteExecutionHandle(self._connection, self._whose, agent["session_id"], agent["id"], 0)
            for agent in agents
        ]

    @checked(call_id=Text)
    def approve(self, call_id: str, *, input: Mapping[str, Any] | None = None) -> None:
        """Approve a tool call, with other arguments if `input` is given; durable on return. May be repeated.

        Raises:
            CallNotFoundError: no such call waits, or has waited, for a decision.
            CallDecidedError: the call was decided differently, or the run has ended.
            OperatorsOnlyError: the call asks to exceed a quota.
            InvalidInputError: the tool does not accept these arguments; nothing was stored.
        """
        edited = None if input is None else json_object("input", input)
        self._post("approve", given(call_id=call_id, input=edited))

    @checked(call_id=Text, reason=Text)
    def reject(self, call_id: str, reason: str = "") -> None:
        """Reject a tool call and tell the model why; durable on return. Repetition and errors: see `approve`."""
        self._post("reject", {"call_id": call_id, "reason": reason})

    @checked(call_id=Text, is_error=bool)
    def provide(self, call_id: str, result: Any, *, is_error: bool = False) -> None:
        """Supply the result of a tool call that was made elsewhere; durable on return. Errors: see `approve`.

        Args:
            result: see `ExecutionHandle.provide`.
        """
        decision = provided(result, is_error)
        body: dict[str, Any] = {"call_id": call_id, "is_error": decision.is_error}
        if decision.text or not decision.blocks:
            body["result"] = json.loads(decision.text) if decision.is_json else decision.text
        if decision.blocks:
            body["blocks"] = list(map(block_body, decision.blocks))
        self._post("provide", body)

    def input(self) -> Turn:
        """Return the turn as it was started: what the model was given, without what it answered.

        Raises:
            TurnNotFoundError: the run was rolled back or discarded, and its turn with it.
        """
        cache, held = self._connection.caches.held(self._owner, self.session_id)
        return self._connection.caches.turn_of(self._owner, cache, self._get("snapshot", held=held))

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
        """Return the run's phase, derived from its events up to now: see `events(phases=True)`."""
        phase: Phase = (self._get("phase"))["phase"]
        return phase

    def info(self) -> RunRecord:
        """Return the run's record: state, finish class, labels, times, and usage up to now."""
        return run_of(self._get())

    def steps(self) -> list[Step]:
        """Return the run's model calls and tool calls up to now, with their times, in order."""
        return Rows(map(step_of, (self._get("steps"))["items"]))

    @checked(after=Number, phases=bool)
    def events(self, after: int = 0, *, phases: bool = False) -> Iterator[AnyEvent]:
        """Yield the run's events with a number above `after`, live, up to its terminal event; no gaps or duplicates.

        A connection that breaks, or a service that restarts, is not noticed: the events go on behind the last one.
        Stopping the iteration does not cancel the run.

        Args:
            phases: also yield a `PhaseChanged` where the run's phase changes; see `ExecutionHandle.events`.

        Raises:
            ServiceAwayError: the service was away for the manager's `retry_s`. Go on later with `after`, the number of
                the last event.
        """
        derived = Phases()
        for event in self._connection.follow(self._path("events"), after, self._whose):
            for shown in derived.add((event,)) if phases else (event,):
                yield shown

    @checked(after=Number, limit=Limit, wait_s=WaitSeconds)
    def event_page(self, after: int = 0, limit: int = 1000, *, wait_s: float = 0.0) -> EventPage:
        """Return up to `limit` of the run's events with a number above `after`, as `events` yields them.

        The result is a list whose `next` is the `after` of the next page; None if the run has no more events.

        Args:
            wait_s: wait up to so many seconds for the first event, but no longer than the service lets requests wait.
        """
        return event_page_of(self._get("events", wait_s=wait_s, after=after, limit=limit))

    def partials(self) -> Iterator[dict[str, Any]]:
        """Yield the model's answer object each time it has grown; the last one is complete. For runs with `output=`.

        See `ExecutionHandle.partials`. The parsing happens in this process.
        """
        partials = Partials()
        for event in self.events():
            for answer in partials.add((event,)):
                yield answer

    def _page(self, after: int) -> tuple[list[AnyEvent], int, bool]:
        page = self.event_page(after, PAGE, wait_s=WAIT_S)
        return list(page), after if page.next is None else page.next, page.next is None

    @property
    def _owner(self) -> str | None:
        return self._whose.owner or self._whose.user_id

    def _path(self, *parts: str) -> str:
        return path_of("runs", self.run_id, *parts)

    def _get(self, *parts: str, wait_s: float = 0.0, **query: Any) -> Any:
        query |= {"wait_s": wait_s} if parts == ("events",) else {}
        request = Request(method="GET", path=self._path(*parts), query=query, wait_s=wait_s)
        return (self._connection.ask(request, self._whose)).data

    def _post(self, part: str, body: Any, *, is_repeatable: bool = True) -> Any:
        request = Request(method="POST", path=self._path(part), body=body, is_repeatable=is_repeatable)
        return (self._connection.ask(request, self._whose)).data
