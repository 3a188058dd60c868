"""`WindowCompaction`: keeps a session's requests within the model's context window, by an overflow strategy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from turnwise.actors.inference.attempt import reason
from turnwise.actors.inference.engine import NewEvent, Suspend
from turnwise.actors.session.active_run import ActiveRun
from turnwise.actors.session.compaction_tasks import Compactor, Preparation, Prepared
from turnwise.actors.session.memory_retrieval import MemoryRetrieval
from turnwise.actors.session.run_events import about
from turnwise.actors.session.session_engines import SessionEngines
from turnwise.actors.session.session_tasks import SessionTasks
from turnwise.actors.session.spending import Spending
from turnwise.actors.session.state import SessionState
from turnwise.actors.session.transactor import Transactor, UnknownOutcome
from turnwise.actors.session.turn_search import turns_of
from turnwise.actors.session.window_rebase import continued_under, rebased
from turnwise.errors import (
    CompactionError,
    ContextOverflowError,
    EngineError,
    LimitError,
    SessionEndedError,
    TurnwiseError,
    WindowOverflowError,
)
from turnwise.memory.background import ended, shielded
from turnwise.memory.conversation.blocks import Block
from turnwise.memory.conversation.events import CompactionFailed, WindowCompacted
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.turns import Turn, TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.strategies.compaction import Compaction
from turnwise.strategies.plan import Plan
from turnwise.strategies.strategy import OverflowStrategy, decide, is_due
from turnwise.strategies.window import Window

LAST_RESORTS = 8
"""How many strategies are tried for one request at most; each is the `otherwise` of the previous one."""

PAUSE_S = 1.0
"""The pause after a failed attempt, in seconds; doubled each time."""

MOST_SKIPPED = 16
"""How many runs are skipped at most before the next compaction, after several that failed in a row."""

_log = logging.getLogger(__name__)


class WindowCompaction:
    """Carries out the plans of an overflow strategy: in the background, and before a request that would not fit.

    A compacted window replaces the prefix that later turns continue: the `carried` blocks of the newest ended turn and
    of the active one. If the active turn itself would not fit, its `input` is replaced too. Requests that were sent
    and blocks that are stored never change; blocks are only added.

    | await in a compaction | what else may run there | what a kill there leaves |
    |---|---|---|
    | a model, a memory | everything; runs that fit start and end | the old window; memories keep what they saved |
    | the commit | reads, streaming | all of it or nothing |

    A compaction is prepared for one window and is applied only to turns that continue that window (`rebased`). It
    costs one commit, and one for each attempt that fails.
    """

    def __init__(
        self,
        state: SessionState,
        transactor: Transactor,
        engines: SessionEngines,
        tasks: SessionTasks,
        *,
        spending: Spending,
        retrieval: MemoryRetrieval,
    ) -> None:
        self._state = state
        self._journal = state.journal
        self._transactor = transactor
        self._engines = engines
        self._tasks = tasks
        self._spending = spending
        self._retrieval = retrieval
        self._beside: asyncio.Task[Any] | None = None
        """The compaction that runs in the background."""
        self._asked: asyncio.Task[Compaction | None] | None = None
        """The compaction that callers requested and that has not begun."""
        self._failures = 0
        """How many compactions have failed since the last one that succeeded."""
        self._skip = 0
        """For how many more runs compaction is skipped after failures, unless a request would not fit."""

    @property
    def is_under_way(self) -> bool:
        """Whether a background compaction has begun and has not ended."""
        return self._beside is not None and not self._beside.done()

    # In the background

    def watch(self) -> None:
        """Start a background compaction if one is due and none runs. Called after each run; does not wait."""
        compactor, head = self._engines.current.compactor, self._state.head
        if compactor is None or head is None or self.is_under_way or self._journal.session.status == "ended":
            return
        if self._skip:
            self._skip -= 1
        else:
            self._beside = self._tasks.spawn_logged(self._compact_beside(compactor, head), "compacting")

    async def stop(self) -> None:
        """Cancel the background compaction; the next commit records its usage."""
        if self._beside and self.is_under_way:
            self._beside.cancel()
            await asyncio.wait({self._beside}, timeout=self._engines.config.cancel_grace_s)

    async def _compact_beside(self, compactor: Compactor, head: TurnRecord) -> None:
        try:
            await self._compact(compactor, head, if_due=True)
        except TurnwiseError as error:  # a strategy's error is in the events; a store's recurs at the next request
            _log.warning("session %s: its window was not compacted: %s", self._state.session_id, error)
        except Exception:  # noqa: BLE001 - such as a token counter's; the next run fails with it, so its caller sees it
            _log.exception("session %s: its window was not compacted", self._state.session_id)

    async def compact(self, *, explain: bool = False) -> Compaction | None:
        """Have the strategy look at what the last turn hands on; return what became of it, None if it is to stay.

        One compaction at a time: this one comes after the one that is under way, and goes on if the caller gives up.
        All who ask before it begins get its outcome.

        Args:
            explain: return what would become of it, and do nothing.

        Raises:
            TurnwiseError: nothing was changed: of the strategy, or CompactionError.
        """
        await self._transactor.loaded()
        if explain:
            compactor, head = self._engines.current.compactor, self._state.head
            if compactor is None or head is None:
                return None
            window = await compactor.window(head, self._journal.cache, base=True)
            plan = decide(compactor.strategy, window, compactor.budget)
            return plan.explain() if plan else None
        if self._asked is None:
            self._asked = self._tasks.spawn(self._compact_as_asked())
        return await shielded(self._asked, self._tasks.name("a compaction"))

    async def _compact_as_asked(self) -> Compaction | None:
        task: asyncio.Task[Prepared | None] | None = None
        name = ""
        try:
            while task is None:
                while self._beside and self.is_under_way:
                    await asyncio.wait({self._beside})
                compactor, head = self._engines.current.compactor, self._state.head
                if compactor is None or head is None:
                    return None
                async with self._transactor.alone:  # do not begin during a forget or a delete
                    if self._journal.lost:
                        raise self._journal.lost
                    if self._state.head is head and not self.is_under_way:
                        name = type(compactor.strategy).__name__
                        task = self._beside = self._tasks.spawn(self._compact(compactor, head))
        finally:
            self._asked = None  # later callers request the next compaction
        await ended(task, self._tasks.name("a compaction"))
        if task.cancelled():
            if self._journal.session.status == "ended":
                raise self._journal.lost or SessionEndedError(self._state.session_id)
            raise self._journal.lost or CompactionError(self._state.session_id, name, "the conversation has moved on")
        done = task.result()
        return done.outcome() if done else None

    async def _compact(self, compactor: Compactor, head: TurnRecord, *, if_due: bool = False) -> Prepared | None:
        """Compact the window that continues `head`; return what was done, None if there was nothing to do.

        Raises:
            TurnwiseError: nothing was changed.
        """
        window = await compactor.window(head, self._journal.cache, base=True)
        bill = _Bill(self._spending.price)
        name = type(compactor.strategy).__name__
        try:
            if if_due and not is_due(compactor.strategy, window, compactor.budget):
                return None
            plan = decide(compactor.strategy, window, compactor.budget)
        except TurnwiseError as error:
            self._gave_up()
            await self._tell(_failed(name, 1, 1, error), bill, None)
            raise
        if plan is None:
            return None
        try:
            prepared, failure = await self._prepare(compactor, plan, window, bill, None)
            if prepared is None:
                raise CompactionError(self._state.session_id, name, reason(failure) if failure else "nothing may go")
            if not await self._carry_out(prepared, bill, None):
                raise CompactionError(self._state.session_id, name, "the conversation has moved on")
        finally:
            self._transactor.add_unbilled(bill.unpaid)
        return prepared

    # Before a request

    def _shown(self, run: ActiveRun) -> Turn:
        """Return the run's turn for its engine: with the retrieved memory text."""
        turn = self._journal.turn(run.turn)
        return turn.recalling(run.recalled) if run.recalled else turn

    async def make_room(self, run: ActiveRun) -> Turn:
        """See `StepContext.make_room`.

        While the request fits, this waits for no model and no memory. Otherwise it waits for the background compaction
        first. The retrieved memory text is removed last, before the run would fail.
        """
        try:
            return await self._fitting(run)
        except (WindowOverflowError, CompactionError):
            if run.recalled is None:
                raise
            self._retrieval.leave_out(run)
            return await self._fitting(run)

    async def shrink(self, run: ActiveRun) -> None:
        """Lower the session's token limit below this request's size, since the provider refused it as too long."""
        compactor = run.run_resources.compactor
        if compactor is None:
            raise ContextOverflowError("there is no overflow strategy to make room: pass overflow= to the manager")
        await compactor.shrink(run.turn, self._journal.cache, run.recalled)

    async def _fitting(self, run: ActiveRun) -> Turn:
        alone = run.run_resources.compactor
        if alone is None:
            return self._shown(run)
        strategy: OverflowStrategy | None = alone.strategy
        failure: Exception | None = None
        for _ in range(LAST_RESORTS):
            window = await alone.window(run.turn, self._journal.cache)
            compactor = alone.of_run(run.record).beside(run.recalled)
            is_over = window.taken(compactor.budget) > compactor.budget.max_tokens
            if is_over and self._beside and not self._beside.done():
                await asyncio.wait({self._beside})
            if is_over and run.turn.carried:
                await self._take_over(run)
                continue
            if strategy is not compactor.strategy and not is_over:
                return self._shown(run)
            if strategy is None:
                break
            plan = await self._plan(compactor, strategy, window, run, is_over=is_over)
            if plan is None or (plan.waits and not is_over):
                return self._shown(run)
            if run.turn.carried:
                await self._take_over(run)  # the request is shorter then, so plan again
                continue
            if plan.waits and self._skip and plan.otherwise:
                strategy = plan.otherwise  # it failed recently, and would delay each prompt
                continue
            bill = _Bill(self._spending.price, run)
            prepared, failure = await self._prepare(compactor, plan, window, bill, run)
            if prepared and await self._carry_out(prepared, bill, run) and prepared.plan is plan:
                return self._shown(run)
            strategy = plan.otherwise
        name = type(alone.strategy).__name__
        raise CompactionError(
            self._state.session_id,
            name,
            reason(failure) if failure else "no overflow strategy could make the request fit",
        ) from failure

    async def _plan(
        self, compactor: Compactor, strategy: OverflowStrategy, window: Window, run: ActiveRun, *, is_over: bool
    ) -> Plan | None:
        """Return the strategy's plan. If the strategy fails, raise only if the request does not fit as it is."""
        try:
            return decide(strategy, window, compactor.budget)
        except TurnwiseError as error:
            if is_over:
                raise
            await self._tell(_failed(type(strategy).__name__, 1, 1, error), _Bill(self._spending.price, run), run)
            return None

    async def _take_over(self, run: ActiveRun) -> None:
        """Use the window that a background compaction prepared (`carried`) as the run's input."""

        async def change() -> None:
            _check_open(run)
            turn = replace(run.turn, input=run.turn.carried or run.turn.input, carried=())
            await self._transactor.commit(self._journal.session, turns=[turn])
            run.turn = turn

        await self._transactor.run_with_retries(change)

    # Both

    async def _prepare(
        self, compactor: Compactor, plan: Plan, window: Window, bill: _Bill, run: ActiveRun | None
    ) -> tuple[Prepared | None, Exception | None]:
        """Prepare a plan (summaries, memory saves), with retries; return what was prepared, and the last failure."""
        preparation = Preparation(plan, window, compactor, self._state.view(), partial(turns_of, self._journal))
        attempts = compactor.config.compaction_attempts if plan.waits else 1
        check_purse = partial(self._check_purse, run, bill)
        failure: Exception | None = None
        for number in range(1, attempts + 1):
            try:
                await preparation.attempt(bill, check_purse)
                break
            except Exception as error:
                failure = error
                if run and isinstance(error, LimitError | Suspend):
                    raise
                await self._tell(_failed(plan.strategy, number, attempts, error), bill, run)
            if isinstance(failure, LimitError):
                break
            if number < attempts:
                await asyncio.sleep(PAUSE_S * 2 ** (number - 1))
        if not preparation.is_whole:
            self._gave_up()
        elif plan.waits:
            self._failures = self._skip = 0
        return preparation.prepared(), failure

    def _gave_up(self) -> None:
        self._failures += 1
        self._skip = min(2**self._failures, MOST_SKIPPED)

    async def _carry_out(self, prepared: Prepared, bill: _Bill, run: ActiveRun | None) -> bool:
        """Store the compacted window in one commit; return False if the conversation no longer continues the window.

        Args:
            run: the run whose input is replaced; None for a background compaction.
        """
        new = [prepared.summary] if prepared.summary else []
        outcome = prepared.outcome()
        done = False

        async def commit(spent: Usage | None, doubt: UnknownOutcome) -> None:
            nonlocal done
            span, session = self._journal.extend(len(new))
            was, becomes = prepared.window.spans, prepared.spans(span if new else None)
            head = self._state.head
            head = head and (continued_under(head, was, becomes) if run else rebased(head, was, becomes))
            running = run or self._state.active
            active = running and rebased(running.turn, was, becomes)
            if run:
                _check_open(run)
                active = active and replace(active, input=active.carried, carried=())
            done = bool(active if run else head or active)
            head = head if done else None
            values: dict[str, Any] = {"strategy": outcome.strategy, "usage": spent}
            if done:
                values |= {"tokens_before": outcome.tokens_before, "tokens_after": outcome.tokens_after}
                values |= {"summary": (span.start, span.stop) if new else None}
            else:
                values |= {"attempt": 1, "of": 1, "why": "the conversation has moved on"}
                session = self._journal.session
            kind = WindowCompacted if done else CompactionFailed
            stored = new if done else []
            turns = [turn for turn in (head, active) if turn]
            await self._pay(session, (kind, values), spent, run, doubt, blocks=stored, turns=turns)
            if head:
                self._state.continue_from(head)
            if active and running:
                running.turn = active

        await self._once(commit, bill)
        return done

    async def _tell(self, event: NewEvent, bill: _Bill, run: ActiveRun | None) -> None:
        """Store an event with the bill's unpaid usage."""

        async def commit(spent: Usage | None, doubt: UnknownOutcome) -> None:
            kind, values = event
            await self._pay(self._journal.session, (kind, {**values, "usage": spent}), spent, run, doubt)

        await self._once(commit, bill)

    async def _pay(
        self,
        session: SessionRecord,
        event: NewEvent,
        spent: Usage | None,
        run: ActiveRun | None,
        doubt: UnknownOutcome,
        *,
        blocks: Sequence[Block] = (),
        turns: Sequence[TurnRecord] = (),
    ) -> None:
        """Commit an event and charge the usage: to the run while it is open, else to the session."""
        kind, values = event
        if run and not run.done.done():
            record = replace(run.record, usage=run.bill())
            events: list[NewEvent] = [(kind, {**about(record), **values})]
            await self._transactor.commit(
                run.charged(session, record), events, blocks=blocks, turns=turns, runs=[record], doubt=doubt
            )
            run.billed(record)
        else:
            if run is None and spent:
                session = replace(session, usage=session.usage + spent)
            await self._transactor.commit(session, [(kind, values)], blocks=blocks, turns=turns, doubt=doubt)

    async def _once(self, commit: Callable[[Usage | None, UnknownOutcome], Awaitable[None]], bill: _Bill) -> None:
        """Store a commit with the bill's unpaid usage exactly once, also if the store's answer is lost."""
        doubt = UnknownOutcome()

        async def change() -> None:
            if doubt.stored:
                return
            # From here on this commit charges the usage, also if the caller is cancelled.
            spent, bill.unpaid = bill.unpaid, None
            try:
                await commit(spent, doubt)
            except BaseException:
                bill.unpaid = spent
                raise

        await self._transactor.run_with_retries(change)
        bill.unpaid = None

    # Budgets

    def _check_purse(self, run: ActiveRun | None, bill: _Bill) -> None:
        """Raise if a budget forbids another model call: the run's budgets, or without a run the session's."""
        if run:
            self._spending.check_run(run)
        else:
            self._spending.check_session(self._transactor.unbilled + (bill.unpaid or Usage()))


class _Bill:
    """The usage of a compaction that no commit has charged yet."""

    def __init__(self, price: Callable[[Usage, str | None], Usage], run: ActiveRun | None = None) -> None:
        self._price = price
        self._run = run
        self.unpaid: Usage | None = None

    def __call__(self, usage: Usage, model: str | None) -> None:
        try:
            usage = self._price(usage, model)
        finally:  # count the usage even if it cannot be priced
            self.unpaid = self.unpaid + usage if self.unpaid else usage
            if self._run:
                self._run.unbilled += usage


def _failed(strategy: str, attempt: int, of: int, error: Exception) -> NewEvent:
    return CompactionFailed, {"strategy": strategy, "attempt": attempt, "of": of, "why": reason(error)}


def _check_open(run: ActiveRun) -> None:
    if run.done.done() or run.closed:
        raise EngineError("the run's end is decided: what comes now changes nothing")
