"""What a session's process knows of it: the journal, and the runs and turns that the next changes start from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from turnwise.actors.inference.engine import SessionView
from turnwise.actors.session.active_run import ActiveRun
from turnwise.actors.session.journal import Journal
from turnwise.actors.session.run_events import about
from turnwise.actors.session.run_queue import RunQueue
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.spans import Spans
from turnwise.memory.conversation.turns import TurnRecord

REMEMBERED = 128
"""How many ended runs are kept in memory, for waits that come late."""


class SessionState:
    """A session as of its last commit. Each field is written by one method, after the commit that it follows from.

    Reads take no lock: nothing here is in a state between two commits while something is awaited.
    """

    def __init__(self, session_id: str, journal: Journal) -> None:
        self.session_id = session_id
        self.journal = journal
        self.head: TurnRecord | None = None
        """The last turn that has ended and was kept: what the next one continues."""
        self.active: ActiveRun | None = None
        """The run that has the session's claim: it runs, or waits for a decision."""
        self.run_queue = RunQueue()
        """The queued runs, and the prompts that no run has taken up."""
        self._unsettled: Sequence[ActiveRun] = ()
        self._ended: OrderedDict[str, tuple[RunRecord, TurnRecord | None]] = OrderedDict()

    # What there is

    @property
    def known_runs(self) -> list[ActiveRun]:
        """All runs that somebody may wait for."""
        return [*([self.active] if self.active else []), *self.run_queue.queue, *self._unsettled]

    @property
    def open_runs(self) -> list[ActiveRun]:
        """Those of them that have not ended."""
        return [run for run in self.known_runs if not run.done.done()]

    def open_run(self, run_id: str) -> ActiveRun | None:
        """Return the active or queued run of this id."""
        if self.active and self.active.run_id == run_id:
            return self.active
        return self.run_queue.find(run_id)

    def ended_run(self, run_id: str) -> tuple[RunRecord, TurnRecord | None] | None:
        """Return a run that ended not long ago, and what was kept of it."""
        return self._ended.get(run_id)

    @property
    def shown_spans(self) -> list[Spans]:
        """The blocks that the next request or an open turn shows."""
        turns = [turn for turn in (self.head, self.active and self.active.turn, *self.run_queue.turns) if turn]
        return [part for turn in turns for part in (turn.prompt, turn.spans, turn.base)]

    def view(self) -> SessionView:
        """Return the session as engines see it."""
        session = self.journal.session
        return SessionView(
            session_id=self.session_id, user_id=session.user_id, agent=session.agent, metadata=session.metadata
        )

    # Its writers

    def continue_from(self, head: TurnRecord | None) -> None:
        """Let the next turn continue `head`."""
        self.head = head

    def set_active(self, run: ActiveRun | None) -> None:
        """Give the session's claim to a run, or free it."""
        self.active = run

    def replace_backlog(self, turns: Iterable[TurnRecord] = ()) -> None:
        """Begin with an empty queue, and the pending turn if there is one among `turns`."""
        self.run_queue = RunQueue()
        self.run_queue.apply(turn for turn in turns if turn.status == "pending")

    def set_unsettled(self, runs: Sequence[ActiveRun]) -> None:
        """Note the runs that an activation has found to be lost, until a commit has ended or resumed them."""
        self._unsettled = runs

    def add_ended(self, run: ActiveRun, end: RunRecord, turn: TurnRecord | None) -> None:
        """Note how a run has ended whose claim is free."""
        run.record = end
        self._ended[run.run_id] = (end, turn)
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    def clear(self, why: Exception) -> None:
        """Stop all runs and answer all who wait for one with `why`: this process has the session no more."""
        for run in self.known_runs:
            run.request_cancel("the session was taken over", discard=False)
            run.close()
            run.fail(why)
        self.set_active(None)
        self.replace_backlog()
        self.set_unsettled(())
        if self.journal.feed:
            self.journal.feed.stop()

    # Live events, which no commit stores

    def trim_events(self, next_run: ActiveRun) -> None:
        """Let go of the events before the run that comes before `next_run`: for readers who are behind."""
        before = next(reversed(self._ended.values()), None)
        first = next_run.record.first_seq
        self.journal.log.trim(min(first, before[0].first_seq if before else first))

    def publish_live(self, run: ActiveRun, kind: type[Event], values: Mapping[str, Any]) -> None:
        """Publish a live event of the run."""
        whose = {"session_id": self.session_id, **about(run.record), "at": self.journal.clock()}

        def make(seq: int) -> Event | None:
            # While it waited for a commit, the run may have been found to have ended elsewhere.
            return None if run.done.done() else kind(seq=seq, **whose, **values)

        self.journal.log.publish_live(make)
