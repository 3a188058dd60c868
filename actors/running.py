"""How a session changes, and how its runs run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from turnwise.actors.active_run import ActiveRun, grants
from turnwise.actors.backlog import Backlog
from turnwise.actors.budget import priced
from turnwise.actors.changes import Doubt, fail
from turnwise.actors.forgetting import ForgettingSession
from turnwise.actors.gear import Gear
from turnwise.actors.inference.attempt import REFUSED, Attempt, Ending, leave_behind
from turnwise.actors.inference.engine import Closable, InferenceRunner, NewEvent, SessionView, Suspend
from turnwise.actors.journal import Journal
from turnwise.actors.output import Output
from turnwise.actors.refusals import leave_out
from turnwise.actors.run_events import about, end_event, placed, request_event, start_event
from turnwise.errors import EngineError, LimitError, RunNotFoundError, StoreError, TurnwiseError
from turnwise.memory.background import persist, shielded
from turnwise.memory.blocks import Block, encode
from turnwise.memory.calls import CallState, encode_calls
from turnwise.memory.events import (
    Event,
    RunResumed,
)
from turnwise.memory.runs import RunRecord, RunState
from turnwise.memory.sessions import SessionRecord
from turnwise.memory.spans import Span, join, union
from turnwise.memory.transcript import Ledger
from turnwise.memory.turns import Turn, TurnRecord
from turnwise.memory.usage import Usage

REMEMBERED = 128
"""How many ended runs are kept in memory, for waits that come late."""

_log = logging.getLogger(__name__)

LOST = "the session's process was lost, or another took the session over, while it ran"

_Begun = tuple[ActiveRun, RunRecord, TurnRecord]
"""A run, and its record and turn as they are when it has the claim."""


class RunningSession(ForgettingSession):
    """Drives a session's active run: starts it, records what it hands in, ends it, starts the next of the queue."""

    def __init__(
        self,
        session_id: str,
        journal: Journal,
        gear: Gear,
        off_loop: Callable[..., Awaitable[Any]],
    ) -> None:
        super().__init__(session_id, journal, gear, off_loop)
        self._former: list[Gear] = []
        """What runs work with that have not ended, and the next ones do not."""
        self._gear_of: dict[str, Gear] = {}
        """Likewise, by the ids of runs that an earlier process had begun."""
        self._equip_saving()

    def _equip(self, gear: Gear) -> None:
        """Take over what the next runs work with; those that are open keep what they have."""
        self._former.append(self._gear)
        self._gear = gear
        self._put_gear_away()
        self._equip_saving()

    def _put_gear_away(self) -> None:
        """Close the runners that no run needs any more."""
        used = {id(gear) for gear in (self._gear, *(run.gear for run in self._open_runs), *self._gear_of.values())}
        gone = [gear for gear in self._former if id(gear) not in used]
        self._former = [gear for gear in self._former if id(gear) in used]
        for gear in gone:
            self._spawn_beside(self._retire(gear), "closing its engine")

    async def _retire(self, gear: Gear) -> None:
        """Close the runner; one that is being built is closed when it is there."""
        gear.is_retired = True
        runner, gear.runner = gear.runner, None
        await retire(runner, self._config.cancel_grace_s)

    @property
    def _open_runs(self) -> list[ActiveRun]:
        return [run for run in self._known_runs if not run.done.done()]

    def engine_ids(self) -> dict[str, str]:
        """Return which engine each run that has not ended has, by run id. As of the last activation."""
        known = {run_id: gear.engine_id for run_id, gear in self._gear_of.items()}
        return known | {run.run_id: run.gear.engine_id for run in self._open_runs}

    @property
    def _discards(self) -> bool:
        return self._config.on_cancel == "discard"

    def _remember(self, run: ActiveRun, end: RunRecord, turn: TurnRecord | None) -> None:
        """Note the end of a run whose claim is free, and wake its waiters."""
        run.record = end
        self._ended[run.run_id] = (end, turn)
        if turn:
            self._has_ended(turn, end.memory)
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        if not run.done.done():
            run.done.set_result(None)
        if self._former:
            self._put_gear_away()

    def _ended_record(self, run: ActiveRun, state: RunState, why: str | None, **more: Any) -> RunRecord:
        said = why and why.replace("\0", "\N{REPLACEMENT CHARACTER}")  # not every database takes null characters
        return replace(run.record, state=state, why=said, ended_at=self._clock(), **more)

    def _hand_back(self, runs: Sequence[ActiveRun], *, discard: bool) -> list[TurnRecord]:
        index = self._journal.session.next_index
        return self._backlog.hand_back(runs, discard=discard, index=index, now=self._clock())

    def _give_up(self, why: Exception) -> None:
        super()._give_up(why)
        if self._journal.feed:
            self._journal.feed.stop()
        for gear in (self._gear, *self._former):
            self._spawn_beside(self._retire(gear), "closing its engine")
        self._former = []

    # Loading

    async def _load(self) -> None:
        """Take over what the store says, and put in order what a lost owner left."""
        found = await self._journal.activate()
        if self._doubt:
            self._doubt.stored = self._doubt.seq in self._journal.caught_up
            self._doubt = None
        self._head = found.head
        self._take_up_saving()
        known = {run.run_id: run for run in self._known_runs}
        await self._let_go(known.values(), {record.run_id for record in found.open_runs})
        turns = {turn.index: turn for turn in found.open_turns}
        # Until all is taken over: this may fail half way, and the next activation makes the runs anew.
        self._gear_of |= {run.run_id: run.gear for run in known.values()}
        self._backlog = Backlog()
        self._backlog.apply(turn for turn in found.open_turns if turn.status == "pending")
        lost: list[ActiveRun] = []
        waiting: list[ActiveRun] = []
        for record in found.open_runs:
            gear = self._gear_of.get(record.run_id, self._gear)
            run = known.get(record.run_id) or self._new_run(record, turns[record.turn_index], gear)
            if run.record.state != record.state:
                run.restart_clock()
            if record.usage != run.record.usage:
                run.billed(record)  # by a commit that was stored while only the store's answer was lost
            run.record, run.turn = record, turns[record.turn_index]
            run.output = Output.read(run.turn.output, self._journal.cache)
            if run.is_waiting:
                run.decided.clear()
            else:
                run.decided.set()
            if run is self._active:
                continue
            if record.state == "awaiting_approval":
                waiting.append(run)
            else:
                (self._backlog.queue if record.state == "queued" else lost).append(run)
        self._unsettled = lost
        for run in waiting:
            self._launch(run)
        if lost or self._backlog.queue or self._active:
            await self._settle(lost)
        else:
            self._journal.log.publish()
        self._gear_of = {}
        self._put_gear_away()
        self._journal.stale = False  # from here on a run that is not open has ended, and its last event is there

    async def _let_go(self, known: Iterable[ActiveRun], open_runs: Container[str]) -> None:
        """Let go of the runs whose end was stored while only the store's answer was lost."""
        for run in known:
            if run.run_id in open_runs or run.done.done():
                continue
            try:
                record = await self._journal.find_run(run.run_id)
            except RunNotFoundError:
                await self._journal.revert()
                raise
            turn = await self._journal.find_turn_of(record)
            await self._journal.hold(turn.spans if turn else ())
            self._remember(run, record, turn)
            run.request_cancel("the run has ended", discard=False)
            run.close()
        if self._active and self._active.done.done():
            self._active = None

    async def _settle(self, lost: Sequence[ActiveRun]) -> None:
        """See, in one commit, to the runs whose process was lost, and to the queue.

        They go on or end as interrupted, by `on_lost`; the queue goes on or, in an ended session, ends too. Where a run
        is active, the commit alone matters: live events have numbers above it.
        """
        session = self._journal.session
        goes_on = session.status == "active"
        resumed = [run for run in lost if goes_on and self._resumes(run)]
        ending = [run for run in lost if run not in resumed]
        given_up = " too often" if self._config.on_lost == "resume" and goes_on else ""
        ends = [self._ended_record(run, "interrupted", LOST + given_up) for run in ending]
        events: list[NewEvent] = []
        blocks: list[Block] = []
        turns: list[TurnRecord] = []
        for run, end in zip(ending, ends, strict=True):
            settled_output = Ledger(run.output.blocks).settled(LOST, interrupted=True)
            turn, new, session = self._with_output(run, settled_output, session, status="interrupted")
            turns.append(turn)
            blocks += new
            events.append(end_event(end, new, session))
        head = turns[-1] if turns else self._head
        gone = [] if goes_on else list(self._backlog.queue)
        given = self._hand_back(gone, discard=False)
        cancelled = [self._ended_record(run, "cancelled", "session ended") for run in gone]
        begun = self._begin_next(head) if goes_on and self._active is None and not resumed else []
        again = [replace(run.record, resumes=run.record.resumes + 1) for run in resumed]
        events += [*map(end_event, cancelled), *(start_event(record) for _, record, _ in begun)]
        events += [(RunResumed, {**about(record), "why": LOST}) for record in again]
        await self._commit(
            session,
            events,
            blocks=[encode(block) for block in blocks],
            turns=[*turns, *given, *(turn for _, _, turn in begun)],
            dropped_turns=[run.turn.index for run in gone],
            runs=[*ends, *cancelled, *again, *(record for _, record, _ in begun)],
            live=bool(begun or resumed or self._active),
        )
        self._hold(blocks, session)
        self._head, self._unsettled = head, []
        self._backlog.apply(given, gone)
        for run, end, turn in zip(ending, ends, turns, strict=True):
            self._remember(run, end, turn)
        for run, end in zip(gone, cancelled, strict=True):
            self._remember(run, end, None)
        for run, record in zip(resumed, again, strict=True):
            run.record = record
            self._launch(run)
        self._launch_next(begun)
        self._save_soon()

    def _resumes(self, run: ActiveRun) -> bool:
        config = run.gear.config
        return config.on_lost == "resume" and run.record.resumes < config.max_resumes

    def _new_run(self, record: RunRecord, turn: TurnRecord, gear: Gear) -> ActiveRun:
        return ActiveRun(self._view(), record, turn, gear)

    # Starting

    def _begin(self, record: RunRecord, turn: TurnRecord, head: TurnRecord | None) -> tuple[RunRecord, TurnRecord]:
        """Return a run and its turn as running, on top of `head`."""
        turn = replace(
            turn,
            status="running",
            parent=f"{self.session_id}#{head.index}" if head else None,
            input=join(head.base if head else (), turn.prompt),
        )
        return replace(record, state="running", started_at=self._clock()), turn

    def _begin_next(self, head: TurnRecord | None, given: Sequence[TurnRecord] = ()) -> list[_Begun]:
        """Return the head of the queue as running, in a list; its turn is the first of `given` if there is one."""
        return [
            (run, *self._begin(run.record, next(iter(given), run.turn), head)) for run in list(self._backlog.queue)[:1]
        ]

    def _launch_next(self, begun: Sequence[_Begun]) -> None:
        """Make the head of the queue active, as a commit stored it."""
        for run, record, turn in begun:
            self._backlog.queue.remove(run)
            run.record, run.turn = record, turn
            self._launch(run)

    def _launch(self, run: ActiveRun) -> None:
        # Events are held back to the start of the run before this one, for readers who are behind.
        before = next(reversed(self._ended.values()), None)
        self._journal.log.trim(min(run.record.first_seq, before[0].first_seq if before else run.record.first_seq))
        self._active = run
        self._let_go_of_blocks()
        run.restart_clock()
        self._spawn_beside(self._drive(run), f"run {run.run_id!r}")

    def _let_go_of_blocks(self) -> None:
        """Let go, now and then, of the blocks that neither the next request nor an open turn shows."""
        if self._journal.stale:
            return  # what the last owner left is being put in order, and may need them
        turns = [turn for turn in (self._head, self._active and self._active.turn, *self._backlog.turns) if turn]
        parts = (part for turn in turns for part in (turn.prompt, turn.spans, turn.base))
        if self._journal.let_go(union(*parts)) and self._gear.compactor:
            self._gear.compactor.recount()

    # Running

    async def _drive(self, run: ActiveRun) -> None:
        """Run the engine, as often as it suspends, and store how it ended, however often the store has to be asked.

        Nobody cancels this task.
        """
        try:
            while not run.done.done():
                calls = run.record.calls
                if run.record.state == "awaiting_approval":
                    ending = await self._decided(run)
                else:
                    ending = await self._attempt(run)
                if ending and ending.state == "suspended" and not ending.calls and run.record.calls == calls:
                    ending = Ending("failed", "the engine suspended, and there is nothing to decide")
                if ending and ending.state == "suspended":
                    await self._persistently(partial(self._suspend, run, ending), shielded=False)
                elif ending:
                    await self._persistently(partial(self._end_run, run, ending), shielded=False)
                    return
        except TurnwiseError as error:  # the store, or such as a corrupt row
            failure = error
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must not wait for ever
            failure = StoreError(f"the end of run {run.run_id!r} could not be stored: {error!r}")
        else:
            return
        # The store still says that the run is active: whoever activates the session next sees to it.
        async with self._change:  # not in the midst of an activation, which would take it for done
            self._journal.stale = True
            if self._active is run:
                self._active = None
        fail(run, failure)
        if self._journal.lost is None:
            what = f"session {self.session_id!r}: to see to run {run.run_id!r}"
            await persist(self.activate, what, until=self._is_final)

    async def _attempt(self, run: ActiveRun) -> Ending:
        run.attempt = attempt = Attempt(run, self, interval_s=self._config.delta_interval_s)
        timeout_s = run.record.timeout_s
        if timeout_s is not None:
            timeout_s = max(0.0, timeout_s - run.spent.seconds)
        return await attempt.drive(
            lambda: self._answer(run, attempt), timeout_s=timeout_s, grace_s=self._config.cancel_grace_s
        )

    async def _answer(self, run: ActiveRun, attempt: Attempt) -> Sequence[Block]:
        runner = await self._built(run)
        self.check_budget(run)
        await self._recall(run)
        return await runner.run(await self._make_room(run), attempt)

    async def _built(self, run: ActiveRun) -> InferenceRunner:
        """Return the runner of the run's engine, built once, also if who asked for it gives up meanwhile."""
        gear = run.gear
        if gear.runner:
            return gear.runner
        if gear.building is None:
            gear.building = self._spawn(self._build(gear, run.session))
        return await shielded(gear.building, f"session {self.session_id!r}: building an engine")

    async def _build(self, gear: Gear, session: SessionView) -> InferenceRunner:
        try:
            runner: InferenceRunner = await self._off_loop(gear.builder.build, session)
        except (SystemExit, KeyboardInterrupt) as error:  # in a task of its own, it would end the process
            raise EngineError(f"the engine raised {type(error).__name__} when it was built") from error
        finally:
            gear.building = None
        if gear.is_retired:
            self._spawn_beside(retire(runner, self._config.cancel_grace_s), "closing its engine")
        else:
            gear.runner = runner
        return runner

    async def _decided(self, run: ActiveRun) -> Ending | None:
        """Wait until nothing is left to decide (None), or the run is cancelled. Costs nothing meanwhile."""
        decided = asyncio.ensure_future(run.decided.wait())
        first: set[asyncio.Future[Any]] = {decided, run.cancelled, run.done}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        decided.cancel()
        return Ending("cancelled", run.cancelled.result()) if run.cancelled.done() else None

    async def _suspend(self, run: ActiveRun, ending: Ending) -> None:
        """Store that the run waits, unless all was decided meanwhile."""
        if run.done.done() or run.record.state == "awaiting_approval":
            return
        calls = {**run.calls, **ending.calls}
        if not any(state.is_waiting for state in calls.values()):
            return
        record = replace(run.record, state="awaiting_approval", calls=encode_calls(calls), usage=run.bill())
        session = self._charged(self._journal.session, run, record)
        requests = [
            request_event(record, call_id, state) for call_id, state in ending.calls.items() if state.is_waiting
        ]
        await self._commit(session, requests, runs=[record])
        run.billed(record)
        run.decided.clear()

    async def _end_run(self, run: ActiveRun, ending: Ending) -> None:
        """Store the run's end and the start of the next in the queue; then free the claim, wake waiters, go on."""
        if run.done.done():
            return
        drop = run.discard and ending.state == "cancelled"
        attempt = run.attempt or Attempt(run, self, interval_s=0)
        state: Literal["completed", "cancelled", "failed"] = "failed" if ending.state == "suspended" else ending.state
        said: dict[str, Any] = {"usage": run.bill(), "stop_reason": ending.code or attempt.stop_reason}
        end = self._ended_record(run, state, ending.why, code=ending.code, **said)
        session = self._charged(self._journal.session, run, end)
        turn, blocks = run.turn, list[Block]()
        if not drop:
            turn, blocks, session = self._with_output(run, attempt.output(ending), session, status=state, **said)
        ended = end_event(end, blocks, session)
        if ending.code == REFUSED:
            turn, texts = leave_out(turn, self._journal.cache, session.log, session.log_size)
            blocks, session = [*blocks, *texts], replace(session, log_size=session.log_size + len(texts))
        head = self._head if drop else turn
        given = self._hand_back([run], discard=True) if drop else []
        begun = self._begin_next(head, given)
        waiting = [next_turn for _, _, next_turn in begun]
        await self._commit(
            session,
            [ended, *(start_event(record) for _, record, _ in begun)],
            blocks=[encode(block) for block in blocks],
            turns=[*([] if drop else [turn]), *(waiting or given)],
            dropped_turns=[turn.index] if drop else [],
            runs=[end, *(record for _, record, _ in begun)],
            live=bool(begun),
        )
        self._hold(blocks, session)
        self._backlog.apply(() if begun else given)
        self._head, self._active = head, None
        self._remember(run, end, None if drop else turn)
        self._launch_next(begun)
        self._watch_window()
        self._save_soon()

    # What an attempt hands in

    def publish_live(self, run: ActiveRun, kind: type[Event], values: Mapping[str, Any]) -> None:
        """See `Desk`."""
        whose = {"session_id": self.session_id, **about(run.record), "at": self._clock()}

        def make(seq: int) -> Event | None:
            # While it waited for a commit, the run may have been found to have ended elsewhere.
            return None if run.done.done() else kind(seq=seq, **whose, **values)

        self._journal.log.publish_live(make)

    def price(self, usage: Usage, model: str | None) -> Usage:
        """See `Desk`."""
        usage = priced(usage, self._config.prices.get(model or ""))
        budgets = (self._config.run_budget, self._config.session_budget)
        # What has no tokens, such as calls of tools, needs no price.
        unpriced = usage.input_tokens + usage.output_tokens and not usage.cost and model not in self._config.prices
        if unpriced and any(budget and budget.cost for budget in budgets):
            why = f"a budget limits the cost, and model {model!r} has no price: add it to SessionConfig(prices=...)"
            raise EngineError(why)
        return usage

    def check_budget(self, run: ActiveRun) -> None:
        """See `Desk`."""
        config = run.gear.config
        if not (config.run_budget or config.session_budget):
            return
        spent, calls = run.spent, run.calls
        times = 1 + grants(calls.values())
        in_session = self._journal.session.usage + (spent - (run.record.usage or Usage()))
        for budget, of, used in (
            (config.run_budget, "run", spent),
            (config.session_budget, "session", in_session),
        ):
            # What is granted above a session's budget is granted to this run.
            over = budget.exceeded(used, times) if budget else None
            if over is None:
                continue
            why = f"the {of} has spent {over}"
            rejected = any(state.wants == "budget" and state.verdict == "rejected" for state in calls.values())
            if config.over_budget == "fail" or rejected:
                raise LimitError(f"{why}: raise SessionConfig({of}_budget=...)", "budget")
            raise Suspend({f"budget-{times}": CallState(name="budget", wants="budget", why=why)})

    async def make_room(self, run: ActiveRun, *, too_long: bool) -> Turn:
        """See `StepContext.make_room`."""
        if too_long:
            await self._shrink(run)
        return await self._make_room(run)

    async def record(
        self,
        attempt: Attempt,
        blocks: Sequence[Block],
        events: Sequence[NewEvent],
        calls: Mapping[str, CallState | None],
    ) -> Turn:
        """See `StepContext.record`."""
        run = attempt.run
        doubt = Doubt(0)

        async def change() -> Turn:
            if doubt.stored:
                known = set(map(id, attempt.ledger.blocks()))
                attempt.ledger.record(block for block in run.output.blocks if id(block) not in known)
            elif run.done.done() or run.attempt is not attempt:
                raise EngineError("the run's end is decided: what comes now changes nothing")
            else:
                await self._record(attempt, blocks, events, calls, doubt)
            return self._journal.turn(run.turn)

        return await self._persistently(change)

    async def _record(
        self,
        attempt: Attempt,
        blocks: Sequence[Block],
        events: Sequence[NewEvent],
        calls: Mapping[str, CallState | None],
        doubt: Doubt,
    ) -> None:
        run = attempt.run
        ledger = Ledger(run.output.blocks)
        ledger.record(blocks)
        output = ledger.blocks()
        turn, new, session = self._with_output(run, output, self._journal.session)
        states = {call_id: state for call_id, state in {**run.calls, **calls}.items() if state}
        record = replace(run.record, calls=encode_calls(states), usage=run.bill())
        session = self._charged(session, run, record)
        if new and not events:
            events = [attempt.end_call()]
        numbered = [(kind, {**about(record), **values}) for kind, values in placed(events, new, session)]
        encoded = [encode(block) for block in new]
        self._doubt = doubt
        await self._commit(session, numbered, blocks=encoded, turns=[turn] if new else [], runs=[record])
        self._doubt = None
        self._hold(new, session)
        run.output = Output.read(turn.output, self._journal.cache)
        run.turn = turn
        run.billed(record)
        attempt.ledger.record(blocks)

    # Blocks

    def _with_output(
        self, run: ActiveRun, output: Sequence[Block], session: SessionRecord, **changes: Any
    ) -> tuple[TurnRecord, list[Block], SessionRecord]:
        """Return the run's turn with this output, those of its blocks that are to be stored, and the row with them.

        Args:
            changes: of the turn.
        """
        new = run.output.missing(output)
        span = Span(session.log, session.log_size, session.log_size + len(new))
        grown = run.output.grown(output, span)
        return replace(run.turn, output=grown.spans, **changes), new, replace(session, log_size=span.stop)


async def retire(runner: object, grace_s: float) -> None:
    """Close a runner that can be closed.

    What it raises is logged, and after `grace_s` it is left behind: whoever lets a runner go has no more use for it.
    """
    if isinstance(runner, Closable):
        closing = asyncio.ensure_future(_close(runner))
        await asyncio.wait({closing}, timeout=grace_s)
        if not closing.done():
            closing.cancel()
            leave_behind(closing)


async def _close(runner: Closable) -> None:
    try:
        await runner.close()
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - code of the engine's
        _log.warning("%s could not be closed: %r", type(runner).__name__, error)
