"""`RunQueue`: a session's queued runs, and the appended prompts that no run has used yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from turnwise.actors.session.state.active_run import ActiveRun
from turnwise.memory.conversation.spans import Spans, join
from turnwise.memory.conversation.turns import TurnRecord


class RunQueue:
    """The queued runs of a session in order of arrival, and its pending turn.

    Prompts that were stored by `append` are never dropped: when the run that used them is discarded, or is cancelled
    while queued, they move to the next queued run, or become pending again.
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
        """The turn of the appended prompts that no run has used yet, or None."""
        return self._pending

    @property
    def turns(self) -> list[TurnRecord]:
        """The turns of the queued runs and the pending turn, in order."""
        return [run.turn for run in self.queue] + ([self.pending] if self.pending else [])

    def find(self, run_id: str) -> ActiveRun | None:
        """Return the queued run with this id, or None."""
        return next((run for run in self.queue if run.run_id == run_id), None)

    def next_turn(self, index: int, now: float) -> TurnRecord:
        """Return the turn to which the next prompts are added: the pending one, or a new one at `index`."""
        return self.pending or TurnRecord(index=index, created_at=now)

    def requeue_prompts(self, runs: Sequence[ActiveRun], *, discard: bool, index: int, now: float) -> list[TurnRecord]:
        """Return a list with the turn that gets the prompts of cancelled `runs`; empty if there are no such prompts.

        Args:
            runs: the active run, or consecutive runs of the queue.
            discard: move only prompts that were stored by `append`; otherwise all prompts.
            index: the index of a new turn, which is created if no turn waits behind the runs.
        """
        prompts = kept_prompts(runs, discard=discard)
        if not prompts:
            return []
        behind = (run.turn for run in self.queue if run.turn.index > runs[-1].turn.index)
        return [with_earlier_prompts(next(behind, None) or self.next_turn(index, now), prompts)]

    def add(self, run: ActiveRun) -> None:
        """Add a run to the end of the queue."""
        self._queue.append(run)

    def remove(self, run: ActiveRun) -> None:
        """Remove a queued run that has begun or ended."""
        self._queue.remove(run)

    def clear_pending(self) -> None:
        """Clear the pending turn, since a run uses its prompts now."""
        self._pending = None

    def apply(self, turns: Iterable[TurnRecord], ended: Iterable[ActiveRun] = ()) -> None:
        """Apply a commit: update the waiting turns that it stored, and remove the runs that it ended."""
        for run in ended:
            self.remove(run)
        for turn in turns:
            if turn.status == "pending":
                self._pending = turn
            for run in self.queue:
                if run.turn.index == turn.index:
                    run.turn = turn


def kept_prompts(runs: Iterable[ActiveRun], *, discard: bool) -> Spans:
    """Return the prompts of `runs` that move to another turn: all, or with `discard` only those stored by `append`."""
    return join(*(run.turn.appended if discard else run.turn.prompt for run in runs))


def with_earlier_prompts(turn: TurnRecord, prompts: Spans) -> TurnRecord:
    """Return `turn` with `prompts` inserted before its own prompts, and marked as appended."""
    if not prompts:
        return turn
    return replace(turn, prompt=join(prompts, turn.prompt), appended=join(prompts, turn.appended))
