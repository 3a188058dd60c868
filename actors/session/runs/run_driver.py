"""`RunDriver`: begins a session's runs, records what their engines produce, suspends and ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from turnwise.actors.inference.attempt import REFUSED, Attempt, Ending
from turnwise.actors.inference.engine import NewEvent, ToolStandIn, takes_prompts
from turnwise.actors.inference.observing import within
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.engines.spending import Spending
from turnwise.actors.session.history.pruning import Pruning
from turnwise.actors.session.history.titles import Titles
from turnwise.actors.session.memory.memory_ingestion import MemoryIngestion
from turnwise.actors.session.memory.memory_retrieval import MemoryRetrieval
from turnwise.actors.session.memory.unsaved_turns import SavingProgress
from turnwise.actors.session.runs.agents import AgentCalls
from turnwise.actors.session.runs.prompt_joining import Joining, PromptJoining
from turnwise.actors.session.runs.quota_checks import QuotaChecks
from turnwise.actors.session.runs.refused_media import leave_out
from turnwise.actors.session.runs.shadows import Shadows
from turnwise.actors.session.runs.stored_input import with_input
from turnwise.actors.session.session_files import SessionFiles
from turnwise.actors.session.state.active_run import ActiveRun
from turnwise.actors.session.state.recorded_output import RecordedOutput
from turnwise.actors.session.state.run_events import about, end_event, placed, request_event, start_event
from turnwise.actors.session.state.session_tasks import SessionTasks
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor, UnknownOutcome
from turnwise.actors.session.window.request_fitting import RequestFitting
from turnwise.actors.session.window.window_compaction import WindowCompaction
from turnwise.errors import EngineError, QuotaExceededError, StoreError, TurnwiseError
from turnwise.memory.background import log_failure, retry
from turnwise.memory.conversation.blocks import Block, Text, ToolResult
from turnwise.memory.conversation.branches import first_change, without_version
from turnwise.memory.conversation.calls.tool_calls import CallState, encode_calls
from turnwise.memory.conversation.events import Event, InputReplaced, TurnReplaced
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import join, to_places, union
from turnwise.memory.conversation.transcript import Ledger
from turnwise.memory.conversation.turns import Turn, TurnRecord, turn_id
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.deliveries.schedule_access import ScheduleAccess
from turnwise.memory.files.owned import OwnedFiles
from turnwise.memory.values.records import replace

Begun = tuple[ActiveRun, RunRecord, TurnRecord]
"""A run, with its record and turn as they are once it is active."""


@dataclass(frozen=True)
class Ended:
    """The end of a run, and what the commit that ends it stores."""

    record: RunRecord
    turn: TurnRecord
    event: NewEvent
    blocks: list[Block]
    """The blocks that the turn adds to the session's log, the last ones of it."""
    session: SessionRecord


class RunDriver:
    """Drives a session's active run: begins it, records its output, ends it, and begins the next run of the queue.

    The run's engine works concurrently with the session's changes, in a task that is never cancelled (`_drive`). Each
    time the engine records output, that is one change (see `Transactor` and `inference.attempt.RunCallbacks`).

    While a run awaits the following, other work may run, and the process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | building the engine, memories, room in the window | everything | an interrupted run |
    | the engine | everything; each record is a change | an interrupted run, with what it recorded |
    | a decision about a tool call | everything | a run that waits |
    | the commit of the run's end, and of the next one's start | reads, streaming | all of it or nothing |
    """

    def __init__(
        self,
        state: SessionState,
        transactor: Transactor,
        engines: SessionEngines,
        tasks: SessionTasks,
        *,
        spending: Spending,
        joining: PromptJoining,
        compaction: WindowCompaction,
        fitting: RequestFitting,
        retrieval: MemoryRetrieval,
        ingestion: MemoryIngestion,
        progress: SavingProgress,
        agents: AgentCalls,
        titles: Titles,
        shadows: Shadows,
        quotas: QuotaChecks,
        pruning: Pruning,
        files: SessionFiles,
    ) -> None:
        self._state = state
        self._journal = state.journal
        self._transactor = transactor
        self._engines = engines
        self._tasks = tasks
        self._spending = spending
        self._joining = joining
        self._compaction = compaction
        self._fitting = fitting
        self._retrieval = retrieval
        self._ingestion = ingestion
        self._progress = progress
        self._agents = agents
        self._titles = titles
        self._shadows = shadows
        self._quotas = quotas
        self._pruning = pruning
        self._files = files
        self.schedules: ScheduleAccess | None = None
        """See `RunContext.schedules`. Set it once; it refers to this driver, so pass a weak reference."""
        self.stand_in: ToolStandIn | None = None
        """See `StepContext.stand_in`: the tools are called."""

    # Beginning

    def begin(self, record: RunRecord, turn: TurnRecord, head: TurnRecord | None) -> tuple[RunRecord, TurnRecord]:
        """Return a run's record and turn in state `running`; the turn continues `head`."""
        turn = replace(
            turn,
            status="running",
            parent=turn_id(self._state.session_id, head.index) if head else None,
            input=join(head.base if head else (), turn.prompt),
        )
        return replace(record, state="running", started_at=self._journal.clock(), code=None), turn

    def begin_next(self, head: TurnRecord | None, requeued: Sequence[TurnRecord] = ()) -> list[Begun]:
        """Return a list with the first queued run as running, whose turn is the first of `requeued`, if any.

        The list is empty if no run is queued, if the next process is to begin them, or if the first one waits for
        silence or for a quota: whether that one may begin, the store says to a commit that does nothing else.
        """
        first = [] if self._state.holds_queue else list(self._state.run_queue.queue)[:1]
        queue = [run for run in first if self._silence_s(run) <= 0 and not run.record.waits_for_quota]
        return [(run, *self.begin(run.record, next(iter(requeued), run.turn), head)) for run in queue]

    def _silence_s(self, run: ActiveRun) -> float:
        """Return how many more seconds a queued run waits for silence: until its `started_at`, the earliest time."""
        return (run.record.started_at or 0.0) - self._journal.clock()

    def watch_queue(self) -> None:
        """Set the timer that begins the first queued run. Call it after each commit that changes the queue."""
        first = next(iter(self._state.run_queue.queue), None)
        if self._state.active or first is None or self._state.holds_queue:
            self._state.set_timer(None)
            return
        loop = asyncio.get_running_loop()
        self._state.set_timer(loop.call_later(max(0.0, self._silence_s(first)), self._timer_fired))

    def _timer_fired(self) -> None:
        if self._journal.lost is None:
            self._tasks.spawn_logged(self._begin_in_time(), "beginning a run that waited for silence")

    async def _begin_in_time(self) -> None:
        try:
            await self._transactor.run_until_stored(self._begin_first)
        except StoreError:
            if self._journal.lost is None:  # else another process begins it
                raise

    async def _begin_first(self) -> None:
        """Begin the first queued run, if no run is active and it has waited long enough."""
        if self._state.holds_queue:
            return
        head, first = self._state.head, next(iter(self._state.run_queue.queue), None)
        begun = [] if self._state.active else self.begin_next(head)
        if begun:
            await self._commit_begun(begun, head)
        elif first and first.record.waits_for_quota and not self._state.active and self._silence_s(first) <= 0:
            await self._begin_within_quotas(first, head)
        self.watch_queue()

    async def _commit_begun(self, begun: Sequence[Begun], head: TurnRecord | None) -> None:
        session = self._journal.session
        await self._transactor.commit(
            session,
            self.start_events(begun, head, session),
            turns=[turn for _, _, turn in begun],
            runs=[record for _, record, _ in begun],
            live=True,
        )
        self.launch_next(begun)

    async def _begin_within_quotas(self, run: ActiveRun, head: TurnRecord | None) -> None:
        """Begin a run that has waited for a quota, or have it wait for the quota's next period."""
        record = run.record
        while True:
            try:
                await self._commit_begun([(run, *self.begin(record, run.turn, head))], head)
            except QuotaExceededError as error:
                admitted = await self._quotas.admitted(record, error)
            else:
                return
            if admitted.calls == record.calls:  # else somebody is asked, and it may begin
                break
            record = admitted
        await self._transactor.commit(self._journal.session, runs=[admitted])
        run.record = admitted

    def start_events(self, begun: Sequence[Begun], head: TurnRecord | None, session: SessionRecord) -> list[NewEvent]:
        """Return the events of runs that begin with the next commit, and continue `head`."""
        cache = self._journal.blocks.cache
        return [start_event(record, turn, head, session, cache.read(turn.prompt)) for _, record, turn in begun]

    def launch_next(self, begun: Sequence[Begun]) -> None:
        """Make the first queued run active, after the commit that stored it as running."""
        for run, record, turn in begun:
            self._state.run_queue.remove(run)
            run.record, run.turn = record, turn
            self.launch(run)

    def launch(self, run: ActiveRun, *, is_accepted_now: bool = False) -> None:
        """Make a run the active one, after the commit that stored it as running or waiting, and start its engine.

        Args:
            is_accepted_now: whether that commit has found all its quotas not used up.
        """
        run.is_accepted_now = is_accepted_now
        self._state.trim_events(run)
        self._state.set_active(run)
        self._drop_old_blocks()
        run.restart_clock()
        self._tasks.spawn_logged(self._drive(run), f"run {run.run_id!r}")

    def _drop_old_blocks(self) -> None:
        """Drop blocks from memory that neither the next request nor an open turn contains.

        Does nothing until enough blocks have accumulated.
        """
        if self._journal.stale:
            return  # an activation is recovering the session, and may need the blocks
        if self._journal.blocks.has_doubled:
            self._journal.blocks.trim(union(*self._state.shown_spans))
            if compactor := self._engines.current.compactor:
                compactor.recount()

    # Running

    async def _drive(self, run: ActiveRun) -> None:
        """Run the engine, again after each suspension, and store how the run ended, with retries after store errors.

        This task is never cancelled.
        """
        try:
            while not run.done.done():
                calls = run.record.calls
                if run.record.state == "awaiting_approval":
                    ending = await self._wait_for_decisions(run)
                else:
                    ending = await self._attempt(run)
                asks = ending and (ending.calls or run.record.calls != calls or run.is_waiting)
                if ending and ending.state == "suspended" and not asks:
                    reason = "the engine suspended the run without a tool call or budget to decide about"
                    ending = Ending("failed", reason)
                if ending and ending.state == "suspended":
                    await self._transactor.run_with_retries(partial(self._suspend, run, ending), shielded=False)
                elif ending:
                    await self._transactor.run_with_retries(partial(self._end, run, ending), shielded=False)
                    return
        except TurnwiseError as error:  # such as a store that remained unavailable, or a corrupt row
            failure = error
        except Exception as error:  # noqa: BLE001 - any error must end the wait of the run's callers
            failure = StoreError(f"the end of run {run.run_id!r} could not be stored: {error!r}")
        else:
            return
        finally:
            run.attempt = None  # break the reference cycle, so that both objects are freed at once
        # The store still has the run as active; the next activation ends or resumes it.
        async with self._transactor.alone:  # never during an activation, which would clear the stale mark
            self._journal.mark_stale()
            if self._state.active is run:
                self._state.set_active(None)
                self._state.set_interrupted([*self._state.interrupted, run])
        run.fail(failure)
        if self._journal.lost is None:
            task_name = self._tasks.name(f"recovery of run {run.run_id!r}")
            await retry(self._transactor.activate, task_name, until=self._transactor.is_final)

    async def _attempt(self, run: ActiveRun) -> Ending:
        if run.record.says is not None:
            return _said(run.record.says)
        config = self._engines.config
        run.follow()
        run.attempt = attempt = Attempt(run, self, interval_s=config.delta_interval_s)
        return await attempt.drive(
            lambda: self._answer(run, attempt), timeout_s=run.left_s, grace_s=config.cancel_grace_s
        )

    async def _answer(self, run: ActiveRun, attempt: Attempt) -> Sequence[Block]:
        with within(run.operation):
            runner = await self._engines.runner(run)
            run.takes_prompts = takes_prompts(runner)
            self._quotas.check_decided(run)
            self._spending.check_run(run)
            if not run.is_accepted_now:
                await self._quotas.check_run(run)
            run.is_accepted_now = False
            await self._retrieval.recall(run)
            turn = await self._files.for_request(await self._fitting.make_room(run))
            self._shadows.note_request(run, turn)
            return await runner.run(turn, attempt)

    async def _wait_for_decisions(self, run: ActiveRun) -> Ending | None:
        """Wait until all tool calls are decided (return None) or the run is cancelled (return its ending)."""
        decided = asyncio.ensure_future(run.decided.wait())
        first: set[asyncio.Future[Any]] = {decided, run.cancelled, run.done}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        decided.cancel()
        return Ending("cancelled", run.cancelled.result()) if run.cancelled.done() else None

    async def _suspend(self, run: ActiveRun, ending: Ending) -> None:
        """Store that the run waits for decisions, unless that is stored, or all of them have been made meanwhile."""
        if run.done.done():
            return
        if run.record.state == "awaiting_approval" and not ending.calls:
            run.close_operation()
            return
        calls = {**run.calls, **ending.calls}
        if not any(state.is_waiting for state in calls.values()):
            return
        record = replace(run.record, state="awaiting_approval", calls=encode_calls(calls), usage=run.bill())
        requests = [
            request_event(record, call_id, state) for call_id, state in ending.calls.items() if state.is_waiting
        ]
        await self._transactor.commit(run.charged(self._journal.session, record), requests, runs=[record])
        run.billed(record)
        run.close_operation()
        run.decided.clear()

    # Ending

    async def _end(self, run: ActiveRun, ending: Ending) -> None:
        """Store the run's end and the next queued run's start in one commit; then wake waiters and start that run.

        If its turn is dropped and was a new version, what was shown before is shown again: see `Versions`.
        """
        if run.done.done():
            return
        drop = run.discard and ending.state == "cancelled"
        ended = self._ended(run, ending, self._journal.session, discarded=drop)
        turn, blocks, session = ended.turn, ended.blocks, ended.session
        if ending.code == REFUSED:
            turn, texts = leave_out(turn, self._journal.blocks.cache, session.log, session.log_size)
            blocks, session = [*blocks, *texts], replace(session, log_size=session.log_size + len(texts))
        head, restored = self._state.head if drop else turn, list[NewEvent]()
        if drop and (branches := without_version(session.branches, turn.index)) != session.branches:
            replaced, shown = first_change(session.branches, branches)
            restored = [(TurnReplaced, {"turn_index": shown, "replaced": replaced})]
            session = replace(session, branches=branches)
            head = await self._journal.records.last_shown_turn(session)
            await self._journal.blocks.load(union(head.prompt, head.spans, head.base) if head else ())
        requeued = self.requeue_prompts([run], discard=True) if drop else []
        begun = self.begin_next(head, requeued)
        waiting = [next_turn for _, _, next_turn in begun]
        await self._transactor.commit(
            session,
            [
                *run.added_events(UnknownOutcome()),
                ended.event,
                *restored,
                *self.start_events(begun, head, session),
            ],
            blocks=blocks,
            turns=[*([] if drop else [turn]), *(waiting or requeued)],
            dropped_turns=[turn.index] if drop else [],
            runs=[ended.record, *(record for _, record, _ in begun)],
            live=bool(begun),
        )
        self._state.run_queue.apply(() if begun else requeued)
        self._state.continue_from(head)
        self._state.set_active(None)
        self.note_end(run, ended.record, None if drop else turn)
        self.launch_next(begun)
        self._after_end()
        self._shadows.watch(run, ended.record, turn)

    def _ended(self, run: ActiveRun, ending: Ending, session: SessionRecord, *, discarded: bool = False) -> Ended:
        """Return the end of a run that has begun; `session` is the row before it."""
        attempt = run.attempt or Attempt(run, self, interval_s=0)
        state: Literal["completed", "cancelled", "failed"] = "failed" if ending.state == "suspended" else ending.state
        fields: dict[str, Any] = {"usage": run.bill(), "stop_reason": ending.code or attempt.stop_reason}
        end = run.ended(state, ending.why, self._journal.clock(), code=ending.code, **fields)
        session = run.charged(session, end)
        turn, blocks = run.turn, list[Block]()
        if not discarded:
            turn, blocks, session = run.with_output(attempt.output(ending), session, status=state, **fields)
            turn = run.restored(turn, self._state.head)
        return Ended(end, turn, end_event(end, blocks, session, discarded=discarded), blocks, session)

    def _after_end(self) -> None:
        self.watch_queue()
        self._compaction.watch()
        self._ingestion.save_soon()
        self._titles.watch()
        self._pruning.watch()

    def said(self, run: ActiveRun, text: str, session: SessionRecord) -> Ended:
        """Return the end of a run that says a text, for the commit that begins the run too; `session` is its row."""
        return self._ended(run, _said(text), session)

    def note_said(self, run: ActiveRun, ended: Ended) -> None:
        """Continue the session from a run that one commit has begun and ended. Call it after that commit."""
        self._state.trim_events(run)
        self._state.continue_from(ended.turn)
        self._drop_old_blocks()
        self.note_end(run, ended.record, ended.turn)
        self._after_end()

    def note_end(self, run: ActiveRun, end: RunRecord, turn: TurnRecord | None) -> None:
        """Remember the end of a run that is no longer active, after the commit that stored it, and wake its waiters."""
        self._state.add_ended(run, end, turn)
        self._transactor.add_unbilled(run.last_billed(end))
        if turn:
            self._progress.add_ended(turn, end.memory, end.first_seq, end.author)
        run.wake_waiters()
        run.close_operation()
        self._engines.close_unused()

    def requeue_prompts(self, runs: Sequence[ActiveRun], *, discard: bool) -> list[TurnRecord]:
        """Return a list with the turn that gets the prompts of cancelled `runs`; see `RunQueue.requeue_prompts`."""
        index = self._journal.session.next_index
        return self._state.run_queue.requeue_prompts(runs, discard=discard, index=index, now=self._journal.clock())

    # Callbacks of an attempt: see RunCallbacks

    def files_of(self, run: ActiveRun) -> OwnedFiles | None:
        """See `RunContext.files`."""
        return self._files.of_tools(run.record.author)

    def publish_live(
        self, run: ActiveRun, kind: type[Event], values: Mapping[str, Any], *, quietly: bool = False
    ) -> None:
        """See `RunCallbacks`."""
        self._state.publish_live(run, kind, values, quietly=quietly)

    def price(self, run: ActiveRun, usage: Usage, model: str | None) -> Usage:
        """See `RunCallbacks`."""
        return self._spending.price(usage, model, run.record.started_at)

    def count_call(self, run: ActiveRun, turn: TurnRecord, answer: Sequence[Block]) -> tuple[int, int]:
        """See `RunCallbacks`."""
        return self._spending.count_call(run, turn, answer)

    def check_budget(self, run: ActiveRun) -> None:
        """See `RunCallbacks`."""
        self._spending.check_run(run)

    async def make_room(self, run: ActiveRun, *, too_long: bool) -> Turn:
        """See `StepContext.make_room`. Raises what `QuotaChecks.check_run` does."""
        if too_long:
            await self._fitting.shrink(run)
        else:
            await self._quotas.check_run(run)
        return await self._files.for_request(await self._fitting.make_room(run))

    async def store_input(self, attempt: Attempt, blocks: Sequence[Block]) -> None:
        """See `StepContext.store_input`."""
        run = attempt.run

        async def change() -> None:
            if run.done.done() or run.attempt is not attempt:
                raise EngineError("the run has ended: nothing can be added to it")
            session, cache = self._journal.session, self._journal.blocks.cache
            turn, new = with_input(run.turn, blocks, run.output.blocks, cache, session)
            if turn.input == run.turn.input:
                return
            event = InputReplaced, {**about(run.record), "input": to_places(turn.input, session.log)}
            _, session = self._journal.extend(len(new))
            await self._transactor.commit(session, [event], blocks=new, turns=[turn])
            run.turn = turn

        await self._transactor.run_with_retries(change)

    async def store_added(self, run: ActiveRun) -> None:
        """See `RunCallbacks`."""
        doubt = UnknownOutcome()

        async def change() -> None:
            events = run.added_events(doubt)
            if not events or run.done.done():
                return
            record = replace(run.record, usage=run.bill())
            session = run.charged(self._journal.session, record)
            await self._transactor.commit(session, events, runs=[record], doubt=doubt)
            run.drop_added()
            run.billed(record)

        try:
            await self._transactor.run_with_retries(change)
        except TurnwiseError as error:  # the run's next commit stores them
            log_failure(f"session {self._state.key.full_name!r}: storing events of run {run.run_id!r}", error)

    async def record(
        self,
        attempt: Attempt,
        blocks: Sequence[Block],
        events: Sequence[NewEvent],
        calls: Mapping[str, CallState | None],
        *,
        suspends: bool,
    ) -> Turn:
        """See `StepContext.record`."""
        run = attempt.run
        doubt = UnknownOutcome()
        blocks = await self._files.moved(blocks)

        async def change() -> Turn:
            if doubt.stored:
                recorded = set(map(id, attempt.ledger.blocks()))
                attempt.ledger.record(block for block in run.output.blocks if id(block) not in recorded)
            elif run.done.done() or run.attempt is not attempt:
                raise EngineError("the run has ended: nothing can be added to it")
            else:
                await self._record(attempt, blocks, events, calls, doubt, suspends=suspends)
            return self._journal.blocks.turn(run.turn)

        return await self._transactor.run_with_retries(change)

    async def _record(
        self,
        attempt: Attempt,
        blocks: Sequence[Block],
        events: Sequence[NewEvent],
        calls: Mapping[str, CallState | None],
        doubt: UnknownOutcome,
        *,
        suspends: bool,
    ) -> None:
        """Store what a call of a tool or of the model has added. Memory changes only after the commit."""
        run = attempt.run
        agents = self._agents.new(run, calls)
        await self._agents.create_sessions(run, agents)
        ledger = Ledger(run.output.blocks)
        ledger.record(blocks)
        turn, new, session = run.with_output(ledger.blocks(), self._journal.session)
        has_results = any(isinstance(block, ToolResult) for block in blocks)
        joining = self._joining.of(run, new) if has_results and not ledger.uses_without_result() else Joining()
        turn = joining.grown(turn)
        states = {call_id: state for call_id, state in {**run.calls, **calls, **agents}.items() if state}
        suspends = suspends and any(state.is_waiting for state in states.values())
        state = "awaiting_approval" if suspends else run.record.state
        record = replace(run.record, state=state, calls=encode_calls(states), usage=run.bill())
        session = run.charged(session, record)
        if new and not events:
            events = [attempt.end_call(new)]
        numbered = [(kind, {**about(record), **values}) for kind, values in placed(events, new, session)]
        numbered = [*run.added_events(doubt), *numbered]
        turns = [turn] if new or joining.runs or turn.metadata != run.turn.metadata else []
        await self._transactor.commit(
            session,
            [*numbered, *joining.events],
            blocks=new,
            turns=turns,
            dropped_turns=joining.indices,
            runs=[record, *joining.ends],
            doubt=doubt,
            deliveries=self._agents.begin(record, agents, ledger.blocks()),
        )
        run.drop_added()
        run.output = RecordedOutput.read(turn.output, self._journal.blocks.cache)
        run.turn = turn
        run.billed(record)
        if suspends:
            run.decided.clear()
        attempt.ledger.record(blocks)
        for block in joining.added(run.output.blocks):
            attempt.ledger.append(block)
        self._joining.after_commit(joining, self.note_end)


def _said(text: str) -> Ending:
    """Return the end of a run whose answer is a text of its caller's."""
    return Ending("completed", answer=[Text(text=text)])
