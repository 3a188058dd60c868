"""`SessionState`: a session in memory as of its last commit: journal, newest ended turn, active run and queue."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from turnwise.actors.inference.engine import SessionView
from turnwise.actors.session.state.active_run import ActiveRun
from turnwise.actors.session.state.journal import Journal
from turnwise.actors.session.state.run_events import about
from turnwise.actors.session.state.run_queue import RunQueue
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Spans, join
from turnwise.memory.conversation.turns import TurnRecord, turn_id
from turnwise.memory.values.records import replace

REMEMBERED = 128
"""How many ended runs are kept in memory, for callers that wait for them later."""


class SessionState:
    """A session as of its last commit. Each field is written by one method, after the commit that it reflects.

    Reads take no lock: at every await, all fields reflect the same commit.
    """

    def __init__(self, key: SessionKey, journal: Journal) -> None:
        self.key = key
        self.session_id = key.session_id
        self.journal = journal
        self.head: TurnRecord | None = None
        """The newest turn that has ended and was kept; the next turn continues it."""
        self.active: ActiveRun | None = None
        """The active run: it runs, or waits for a decision about a tool call."""
        self.run_queue = RunQueue()
        """The queued runs, and the appended prompts that no run has used yet."""
        self.holds_queue = False
        """Whether no queued run begins here, since this process gives the session up once the active run has ended."""
        self._timer: asyncio.TimerHandle | None = None
        """Fires when the first queued run is to begin, if that run waits for silence."""
        self._interrupted: Sequence[ActiveRun] = ()
        self._ended: OrderedDict[str, tuple[RunRecord, TurnRecord | None]] = OrderedDict()

    # Reads

    @property
    def known_runs(self) -> list[ActiveRun]:
        """All runs for which a caller may be waiting: active, queued, and interrupted ones not yet recovered.

        Interrupted runs may be `done` with an error, since their end could not be stored.
        """
        return [*([self.active] if self.active else []), *self.run_queue.queue, *self._interrupted]

    @property
    def open_runs(self) -> list[ActiveRun]:
        """The known runs that have not ended."""
        return [run for run in self.known_runs if not run.done.done()]

    @property
    def busy(self) -> ActiveRun | None:
        """The active run, or the first queued one, if that waits for silence; None if a new run can begin."""
        return self.active or next(iter(self.run_queue.queue), None)

    def open_run(self, run_id: str) -> ActiveRun | None:
        """Return the active or queued run with this id, or None."""
        if self.active and self.active.run_id == run_id:
            return self.active
        return self.run_queue.find(run_id)

    def ended_run(self, run_id: str) -> tuple[RunRecord, TurnRecord | None] | None:
        """Return a run that ended recently, and its turn (None if the turn was dropped); None for other runs."""
        return self._ended.get(run_id)

    @property
    def open_turns(self) -> list[TurnRecord]:
        """The turns that have not ended, by index, as callers see them.

        A queued or pending turn is shown with what it would continue now: the active turn or the newest ended one, and
        the prompts of all turns that wait before it.
        """
        before = self.active.turn if self.active else self.head
        turns = [self.active.turn] if self.active else []
        continued = before.input if before and self.active else before.base if before else ()
        for turn in self.run_queue.turns:
            continued = join(continued, turn.prompt)
            parent = turn_id(self.session_id, before.index) if before else None
            before = replace(turn, parent=parent, input=continued)
            turns.append(before)
        return turns

    @property
    def shown_spans(self) -> list[Spans]:
        """The spans of blocks that the next request or an open turn contains."""
        turns = [turn for turn in (self.head, self.active and self.active.turn, *self.run_queue.turns) if turn]
        return [part for turn in turns for part in (turn.prompt, turn.spans, turn.base)]

    def view(self) -> SessionView:
        """Return the session's ids and metadata, as engines get them."""
        session = self.journal.session
        return SessionView(
            session_id=self.key.session_id,
            user_id=self.key.user_id,
            agent=session.agent,
            metadata=session.metadata,
            depth=session.depth,
            key=session.log,
            inherited_prefix_key=session.inherited.prefix_key,
            members=session.members,
        )

    # Writes

    def continue_from(self, head: TurnRecord | None) -> None:
        """Set the turn that the next turn continues."""
        self.head = head

    def hold_queue(self) -> None:
        """Begin no queued run from now on; see `holds_queue`."""
        self.holds_queue = True

    def set_active(self, run: ActiveRun | None) -> None:
        """Make a run the active one; None if no run is active."""
        self.active = run

    def replace_backlog(self, turns: Iterable[TurnRecord] = ()) -> None:
        """Empty the queue; keep the pending turn among `turns`, if there is one."""
        self.run_queue = RunQueue()
        self.run_queue.apply(turn for turn in turns if turn.status == "pending")

    @property
    def interrupted(self) -> Sequence[ActiveRun]:
        """The runs whose end could not be stored, until a commit has ended or resumed them."""
        return self._interrupted

    def set_interrupted(self, runs: Sequence[ActiveRun]) -> None:
        """Set the runs whose end could not be stored; the next activation ends or resumes them."""
        self._interrupted = runs

    def set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        """Set the timer of the first queued run, in place of an earlier one."""
        if self._timer:
            self._timer.cancel()
        self._timer = timer

    def add_ended(self, run: ActiveRun, end: RunRecord, turn: TurnRecord | None) -> None:
        """Remember the end of a run that is no longer active."""
        self._ended[run.run_id] = (end, turn)
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    def update_ended(self, turns: Iterable[TurnRecord]) -> None:
        """Replace turns of ended runs that a commit has changed."""
        changed = {turn.index: turn for turn in turns}
        for run_id, (record, turn) in self._ended.items():
            if turn and turn.index in changed:
                self._ended[run_id] = (record, changed[turn.index])

    def drop_turns(self, indices: Container[int]) -> None:
        """Forget the turns of ended runs that were removed from the store."""
        for run_id, (record, turn) in self._ended.items():
            if turn and turn.index in indices:
                self._ended[run_id] = (record, None)

    def clear(self, error: Exception) -> None:
        """Stop all runs and make all callers that wait for them raise `error`.

        Called when this process no longer owns the session.
        """
        for run in self.known_runs:
            run.request_cancel("the session was taken over", discard=False)
            run.close()
            run.fail(error)
        self.set_active(None)
        self.set_timer(None)
        self.replace_backlog()
        self.set_interrupted(())
        if self.journal.forwarder:
            self.journal.forwarder.stop()
        self.journal.log.abandon()  # wakes readers, who find the session elsewhere

    # Live events, which are not stored

    def trim_events(self, next_run: ActiveRun) -> None:
        """Drop old events from memory.

        Those of `next_run` and of the run before it are kept for readers that lag behind.
        """
        before = next((record for record, _ in reversed(self._ended.values()) if not record.leads_to), None)
        first = next_run.record.first_seq
        self.journal.log.trim(min(first, before.first_seq if before else first))

    def publish_live(
        self, run: ActiveRun, kind: type[Event], values: Mapping[str, Any], *, quietly: bool = False
    ) -> None:
        """Publish a live event of the run; see `EventLog.publish_live`."""
        fields = {**self.key._asdict(), **about(run.record), "turn_id": run.turn.turn_id, "at": self.journal.clock()}

        def make(seq: int) -> Event | None:
            # While this event waited for a commit, an activation may have found that the run ended elsewhere.
            return None if run.done.done() else kind(seq=seq, **fields, **values)

        self.journal.log.publish_live(make, quietly=quietly)
