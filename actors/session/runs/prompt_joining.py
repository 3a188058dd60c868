"""`PromptJoining`: adds the prompts of queued runs to the active run, with commits that this run makes anyway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from turnwise.actors.inference.engine import NewEvent, Suspend, takes_prompts
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.engines.spending import Spending
from turnwise.actors.session.state.active_run import ActiveRun
from turnwise.actors.session.state.run_events import end_event, joined_events, merged_into
from turnwise.actors.session.state.state import SessionState
from turnwise.errors import LimitError
from turnwise.memory.conversation.blocks import Block, User
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.spans import Spans, join, size
from turnwise.memory.conversation.turns import TurnRecord

NoteEnd = Callable[[ActiveRun, RunRecord, TurnRecord | None], None]
"""Remembers the end of a run: see `RunDriver.note_end`."""


@dataclass(frozen=True)
class Joining:
    """Queued runs that end as merged into the active one, with their ends and the events of both."""

    runs: Sequence[ActiveRun] = ()
    ends: Sequence[RunRecord] = ()
    events: Sequence[NewEvent] = ()

    @property
    def prompts(self) -> Spans:
        """The prompts, in order of arrival."""
        return join(*(run.turn.prompt for run in self.runs))

    @property
    def indices(self) -> list[int]:
        """The indices of the turns that the runs do not get."""
        return [run.turn.index for run in self.runs]

    def grown(self, turn: TurnRecord) -> TurnRecord:
        """Return the active run's turn with the prompts behind its output."""
        return replace(turn, output=join(turn.output, self.prompts)) if self.runs else turn

    def added(self, output: Sequence[Block]) -> Sequence[Block]:
        """Return those blocks of the active run's stored output that joined it."""
        return output[len(output) - size(self.prompts) :] if self.runs else ()


class PromptJoining:
    """Decides which prompts join the active run at its next model call.

    They are those of the first queued runs, up to the first one that was not started with `if_busy="inject"` or cannot
    join, so that prompts stay in order of arrival. A run with prompts that were stored by `append` cannot join: if the
    active run is discarded, prompts that joined it are dropped, but appended prompts must stay. A run that takes too
    much of the window (see `Compactor.may_join`) cannot join either: it would fail the active run, so it waits and runs
    alone. Nothing is awaited here: the prompts join with the commit of the step or of the decision before the model
    call, and a crash leaves all of it or nothing.
    """

    def __init__(self, state: SessionState, engines: SessionEngines, spending: Spending) -> None:
        self._state = state
        self._engines = engines
        self._spending = spending

    async def prepare(self, run_id: str) -> None:
        """Build the engine of a run that waits for a decision, if prompts wait to join it. Raises nothing."""
        run, queue = self._state.active, self._state.run_queue.queue
        if run and run.run_id == run_id and queue and queue[0].record.joins and run.takes_prompts is None:
            with suppress(Exception):  # the run itself will fail with it
                run.takes_prompts = takes_prompts(await self._engines.runner(run))

    def of(self, run: ActiveRun, new: Sequence[Block]) -> Joining:
        """Return the runs that join the active run with its last commit before a model call. Call it within a change.

        Args:
            new: the blocks that the commit adds to the run's turn.
        """
        runs = list(self._runs(run, new))
        if not runs:
            return Joining()
        now, cache = self._state.journal.clock(), self._state.journal.blocks.cache
        ends = [joining_run.ended(now=now, **merged_into(run.run_id)) for joining_run in runs]
        events: list[NewEvent] = []
        for joining_run, end in zip(runs, ends, strict=True):
            prompt = joining_run.turn.prompt
            events += joined_events(run.record, joining_run.run_id, prompt, cache.read(prompt))
            events.append(end_event(end))
        return Joining(runs, ends, events)

    def after_commit(self, joining: Joining, note_end: NoteEnd) -> None:
        """Remove the runs from the queue and wake their waiters. Call it after the commit that stored their ends."""
        self._state.run_queue.apply((), joining.runs)
        for run, end in zip(joining.runs, joining.ends, strict=True):
            note_end(run, end, None)

    def _runs(self, run: ActiveRun, new: Sequence[Block]) -> Sequence[ActiveRun]:
        queue = self._state.run_queue.queue
        if not (queue and queue[0].record.joins and self._calls_again(run)):
            return ()
        cache, compactor = self._state.journal.blocks.cache, run.compactor
        runs, prompts = list[ActiveRun](), join()
        for queued_run in queue:
            record, queued = run.record, queued_run.record
            # A picture that the provider refuses can be left out of a prompt only, not of the middle of a run.
            is_text = all(isinstance(block, User) for block in cache.read(queued_run.turn.prompt))
            asks_alike = all(getattr(queued, name) == getattr(record, name) for name in ("author", "memory", "engine"))
            if queued_run.turn.appended or not (queued.joins and is_text and asks_alike):
                break
            prompts = join(prompts, queued_run.turn.prompt)
            if compactor and not compactor.may_join(record, run.turn, new, prompts, cache):
                break
            runs.append(queued_run)
        return runs

    def _calls_again(self, run: ActiveRun) -> bool:
        """Return whether the run's engine takes prompts, and nothing forbids another call of the model."""
        is_over = run.cancelled.done() or (run.closed and run.record.state == "running")
        if is_over or not run.takes_prompts or (run.attempt and not run.attempt.has_calls_left):
            return False
        try:
            self._spending.check_run(run)
        except (LimitError, Suspend):
            return False
        return True
