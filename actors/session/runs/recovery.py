"""`Recovery`: loads what an activation found: ends or resumes interrupted runs, reloads waiting runs and the queue."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

from turnwise.actors.inference.engine import NewEvent
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.memory.memory_ingestion import MemoryIngestion
from turnwise.actors.session.runs.run_driver import RunDriver
from turnwise.actors.session.state.active_run import ActiveRun
from turnwise.actors.session.state.recorded_output import RecordedOutput
from turnwise.actors.session.state.run_events import about, end_event
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.errors import RunNotFoundError
from turnwise.memory.conversation.blocks import Block
from turnwise.memory.conversation.events import RunResumed
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.transcript import Ledger
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.stores.base import Activation

LOST = "the session's process was lost, or another process took over the session, during the run"
GIVEN_UP = "; the run has already been resumed as often as max_resumes allows"


class Recovery:
    """Loads the state that an activation found in the store.

    The activation is the first one in this process, or one after a store error.

    While a recovery awaits the following, other work may run, and the process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | the store, to read | reads, streaming; live events wait | the session as the last owner left it |
    | the commit | reads, streaming; live events wait | the same, or each lost run ended or resumed |

    A run is lost only if it was active in a process that died, or if its end could not be stored. A run that a commit
    of this process has made active, whose answer was lost, has not begun yet: it begins now.

    If recovery fails at any await, the next change activates the session again.
    """

    def __init__(
        self,
        state: SessionState,
        transactor: Transactor,
        engines: SessionEngines,
        driver: RunDriver,
        ingestion: MemoryIngestion,
    ) -> None:
        self._state = state
        self._journal = state.journal
        self._transactor = transactor
        self._engines = engines
        self._driver = driver
        self._ingestion = ingestion

    async def recover(self, activation: Activation, begun: set[str]) -> None:
        """Load the state, and end or resume the runs of a lost process. Call it within a change.

        Args:
            begun: the runs that this process has made active by commits without an answer; those launched are removed.
        """
        self._state.continue_from(activation.head)
        self._ingestion.load()
        known_runs = {run.run_id: run for run in self._state.known_runs}
        await self._drop_ended(known_runs.values(), {record.run_id for record in activation.open_runs})
        turns = {turn.index: turn for turn in activation.open_turns}
        self._engines.keep_resources(known_runs.values())
        self._state.replace_backlog(activation.open_turns)
        lost_runs: list[ActiveRun] = []
        launched: list[ActiveRun] = []
        for record in activation.open_runs:
            turn = turns[record.turn_index]
            run = self._open(record, turn, known_runs.get(record.run_id))
            if run.record.state != record.state:
                run.restart_clock()
            if record.usage != run.record.usage:
                run.billed(record)  # by a commit that was stored while only the store's answer was lost
            run.record, run.turn = record, turn
            run.output = RecordedOutput.read(run.turn.output, self._journal.blocks.cache)
            if run.is_waiting:
                run.decided.clear()
            else:
                run.decided.set()
            if run is self._state.active:
                continue
            if record.state == "queued":
                self._state.run_queue.add(run)
            elif record.state == "awaiting_approval" or record.run_id in begun:
                launched.append(run)
            else:
                lost_runs.append(run)
        self._state.set_interrupted(lost_runs)
        for run in launched:
            self._driver.launch(run)
            begun.discard(run.run_id)
        if lost_runs or self._state.run_queue.queue or self._state.active:
            await self._repair(lost_runs)
        else:
            self._journal.log.publish(is_live=False)
        self._engines.drop_kept()

    def _open(self, record: RunRecord, turn: TurnRecord, known_run: ActiveRun | None) -> ActiveRun:
        """Return the known run, or a new one if it is not known, or if callers were told that it cannot be ended."""
        run_resources = self._engines.of_run(record)
        if known_run and not known_run.done.done():
            return known_run
        record = known_run.record if known_run else record
        return ActiveRun(self._state.view(), record, turn, run_resources, before=known_run)

    async def _drop_ended(self, known_runs: Iterable[ActiveRun], open_runs: Container[str]) -> None:
        """Remove the runs whose end was stored although the store's answer was lost."""
        for run in known_runs:
            if run.run_id in open_runs or run.done.done():
                continue
            try:
                record = await self._journal.records.find_run(run.run_id)
            except RunNotFoundError:
                await self._journal.revert()
                raise
            turn = await self._journal.records.find_turn_of(record)
            await self._journal.blocks.load(turn.spans if turn else ())
            self._driver.note_end(run, record, turn)
            run.request_cancel("the run has ended", discard=False)
            run.close()
        if self._state.active and self._state.active.done.done():
            self._state.set_active(None)

    async def _repair(self, lost_runs: Sequence[ActiveRun]) -> None:
        """In one commit, resume or end the runs whose process was lost, and begin the next queued run.

        `on_lost` decides which runs resume; the others end as interrupted. A run that says a text always resumes, as it
        has only its end to store. In an ended session, queued runs are cancelled. If a run is still active, this
        commits even without any change, since the commit reserves the numbers of the run's next live events.
        """
        session, now = self._journal.session, self._journal.clock()
        is_active = session.status == "active"
        resumed = [run for run in lost_runs if run.record.says is not None or (is_active and _resumes(run))]
        ending = [run for run in lost_runs if run not in resumed]
        reasons = [_end_reason(run) if is_active else _why_lost(run) for run in ending]
        ends = [
            run.ended("interrupted", reason, now, **run.left_to_bill())
            for run, reason in zip(ending, reasons, strict=True)
        ]
        events: list[NewEvent] = []
        blocks: list[Block] = []
        turns: list[TurnRecord] = []
        for run, end in zip(ending, ends, strict=True):
            repaired = Ledger(run.output.blocks).repaired(LOST, interrupted=True)
            session = run.charged(session, end)
            turn, new, session = run.with_output(repaired, session, status="interrupted")
            turns.append(run.restored(turn, self._state.head))
            blocks += new
            events.append(end_event(end, new, session))
        head = turns[-1] if turns else self._state.head
        cancelled_runs = [] if is_active else list(self._state.run_queue.queue)
        requeued = self._driver.requeue_prompts(cancelled_runs, discard=False)
        cancelled = [run.ended("cancelled", "session ended", now) for run in cancelled_runs]
        begun = self._driver.begin_next(head) if is_active and self._state.active is None and not resumed else []
        resumed_records = [replace(run.record, resumes=run.record.resumes + 1, why=None) for run in resumed]
        events += [*map(end_event, cancelled), *self._driver.start_events(begun, head, session)]
        events += [
            (RunResumed, {**about(record), "why": _why_lost(run)})
            for run, record in zip(resumed, resumed_records, strict=True)
        ]
        await self._transactor.commit(
            session,
            events,
            blocks=blocks,
            turns=[*turns, *requeued, *(turn for _, _, turn in begun)],
            dropped_turns=[run.turn.index for run in cancelled_runs],
            runs=[*ends, *cancelled, *resumed_records, *(record for _, record, _ in begun)],
            live=bool(begun or resumed or self._state.active),
        )
        self._state.continue_from(head)
        self._state.set_interrupted(())
        self._state.run_queue.apply(requeued, cancelled_runs)
        for run, end, turn in zip(ending, ends, turns, strict=True):
            self._driver.note_end(run, end, turn)
        for run, end in zip(cancelled_runs, cancelled, strict=True):
            self._driver.note_end(run, end, None)
        for run, record in zip(resumed, resumed_records, strict=True):
            run.record = record
            self._driver.launch(run)
        self._driver.launch_next(begun)
        self._driver.watch_queue()
        self._ingestion.save_soon()


def _end_reason(run: ActiveRun) -> str:
    """Return why a run that is not resumed has ended, although its session goes on."""
    return _why_lost(run) + GIVEN_UP if run.run_resources.config.on_lost == "resume" else _why_lost(run)


def _why_lost(run: ActiveRun) -> str:
    """Return why the run has no process, in the words of its last one if that had the time to say so."""
    return run.record.why or LOST


def _resumes(run: ActiveRun) -> bool:
    config = run.run_resources.config
    return config.on_lost == "resume" and run.record.resumes < config.max_resumes
