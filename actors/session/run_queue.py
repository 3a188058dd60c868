"""What waits for its turn: queued runs, and prompts that no run has taken up."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from turnwise.actors.session.active_run import ActiveRun
from turnwise.memory.conversation.spans import Spans, join
from turnwise.memory.conversation.turns import TurnRecord


class RunQueue:
    """The queued runs of a session in order of arrival, and its pending turn.

    Prompts that were appended on their own are never dropped: when a run that took them up is discarded, or cancelled
    while queued, they go on to the run behind it, or wait as pending again.
    """

    def __init__(self) -> None:
        self._queue: deque[ActiveRun] = deque()
        self._pending: TurnRecord | None = None

    @property
    def queue(self) -> Sequence[ActiveRun]:
        """The queued runs, in order of arrival."""
        return self._queue

    @property
    def pending(self) -> TurnRecord | None:
        """The turn of the prompts that no run has taken up."""
        return self._pending

    @property
    def turns(self) -> list[TurnRecord]:
        """The turns that wait, in order."""
        return [run.turn for run in self.queue] + ([self.pending] if self.pending else [])

    def find(self, run_id: str) -> ActiveRun | None:
        """Return the queued run of this id."""
        return next((run for run in self.queue if run.run_id == run_id), None)

    def next_turn(self, index: int, now: float) -> TurnRecord:
        """Return the turn that takes the next prompts: the pending one, or a new one at `index`."""
        return self.pending or TurnRecord(index=index, created_at=now)

    def hand_back(self, runs: Sequence[ActiveRun], *, discard: bool, index: int, now: float) -> list[TurnRecord]:
        """Return the turn, in a list, that gets what queued `runs` leave when they are cancelled; none if nothing.

        Args:
            runs: next to each other in the queue.
            discard: whether they leave only what was appended on its own, or all their prompts.
            index: of a turn to make if none waits behind them.
        """
        given = left_by(runs, discard=discard)
        if not given:
            return []
        behind = (run.turn for run in self.queue if run.turn.index > runs[-1].turn.index)
        return [with_given(next(behind, None) or self.next_turn(index, now), given)]

    def add(self, run: ActiveRun) -> None:
        """Queue a run behind those that there are."""
        self._queue.append(run)

    def remove(self, run: ActiveRun) -> None:
        """Let go of a queued run: it was begun, or has ended."""
        self._queue.remove(run)

    def take_pending(self) -> None:
        """A run has taken up the pending prompts."""
        self._pending = None

    def apply(self, turns: Iterable[TurnRecord], gone: Iterable[ActiveRun] = ()) -> None:
        """Take over what a commit stored of waiting turns, and let go of the runs that it ended."""
        for run in gone:
            self.remove(run)
        for turn in turns:
            if turn.status == "pending":
                self._pending = turn
            for run in self.queue:
                if run.turn.index == turn.index:
                    run.turn = turn


def left_by(runs: Iterable[ActiveRun], *, discard: bool) -> Spans:
    """Return the prompts that queued runs leave: all of them, or those that were appended on their own."""
    return join(*(run.turn.appended if discard else run.turn.prompt for run in runs))


def with_given(turn: TurnRecord, given: Spans) -> TurnRecord:
    """Return a waiting turn with appended prompts ahead of its own."""
    if not given:
        return turn
    return replace(turn, prompt=join(given, turn.prompt), appended=join(given, turn.appended))
