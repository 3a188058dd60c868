"""`RequestFitting`: makes the active run's requests fit the model's context window, by an overflow strategy."""

from __future__ import annotations

import logging
from dataclasses import replace

from turnwise.actors.inference.attempt import reason
from turnwise.actors.session.memory.memory_retrieval import MemoryRetrieval
from turnwise.actors.session.state.active_run import ActiveRun
from turnwise.actors.session.state.run_events import about
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.actors.session.window.compaction_tasks import Compactor
from turnwise.actors.session.window.plan_runner import PlanRunner, check_open
from turnwise.actors.session.window.window_compaction import WindowCompaction
from turnwise.errors import CompactionError, ContextOverflowError, TurnwiseError, WindowOverflowError
from turnwise.memory.conversation.events import InputReplaced
from turnwise.memory.conversation.spans import size, to_places
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.values.limits import MAX_WINDOW_BLOCKS
from turnwise.strategies.plan import Plan
from turnwise.strategies.strategy import OverflowStrategy, acts, decide
from turnwise.strategies.window import Window

_log = logging.getLogger(__name__)

_NO_STRATEGY = (
    "session %s: the provider refused a request as too long, and no overflow strategy makes room: pass overflow= to "
    "the manager, and SessionConfig(max_context_tokens=...) if the size of the model's window is not known"
)

_TOO_MANY = (
    "the window of session {!r} has {} blocks, and a request takes MAX_WINDOW_BLOCKS ({}) at most: pass overflow= to "
    "the manager, or clear() the session"
)

LAST_RESORTS = 8
"""The maximum number of strategies tried for one request; each is the previous one's fallback (`otherwise`)."""


class RequestFitting:
    """Compacts the window of the active run before a request that would not fit: replaces the `input` of its turn.

    While requests fit, nothing waits for a model or a memory. The run waits for the compaction and pays for it. What
    else may run meanwhile, and what a crash leaves, is described in `WindowCompaction`.
    """

    def __init__(
        self,
        state: SessionState,
        transactor: Transactor,
        plans: PlanRunner,
        compaction: WindowCompaction,
        retrieval: MemoryRetrieval,
    ) -> None:
        self._state = state
        self._journal = state.journal
        self._transactor = transactor
        self._plans = plans
        self._compaction = compaction
        self._retrieval = retrieval

    async def make_room(self, run: ActiveRun) -> Turn:
        """See `StepContext.make_room`.

        If the request does not fit, this waits for the background compaction first. As a last resort, the retrieved
        memory text is removed. A request of too many blocks is shortened like one that the provider refuses as too
        long, also if its tokens fit.

        Raises:
            ContextOverflowError: it has more than `MAX_WINDOW_BLOCKS`, and there is no strategy.
        """
        turn = await self._fit_or_drop_recalled(run)
        while (count := size(run.turn.input) + size(run.turn.output)) > MAX_WINDOW_BLOCKS:
            if run.compactor is None:
                raise ContextOverflowError(_TOO_MANY.format(self._state.session_id, count, MAX_WINDOW_BLOCKS))
            await self.shrink(run)  # each time to three quarters, until it fits or nothing can be removed
            turn = await self._fit_or_drop_recalled(run)
        return turn

    async def _fit_or_drop_recalled(self, run: ActiveRun) -> Turn:
        try:
            return await self._fit(run)
        except (WindowOverflowError, CompactionError):
            if run.recalled is None and run.front is None:
                raise
            self._retrieval.leave_out(run)
            return await self._fit(run)

    async def shrink(self, run: ActiveRun) -> None:
        """Lower the session's token limit below this request's size, since the provider refused it as too long."""
        compactor = run.compactor
        if compactor is None:
            _log.warning(_NO_STRATEGY, self._state.key.full_name)
            raise ContextOverflowError("there is no overflow strategy to make room: pass overflow= to the manager")
        await compactor.shrink(run.record, run.turn, self._journal.blocks.cache, run.recalled, run.front)

    def _turn_for_engine(self, run: ActiveRun) -> Turn:
        """Return the run's turn for its engine: with the retrieved memory text."""
        turn = self._journal.blocks.turn(run.turn)
        return turn.recalling(run.recalled, front=run.front) if run.recalled or run.front else turn

    async def _fit(self, run: ActiveRun) -> Turn:
        own_compactor = run.compactor
        if own_compactor is None:
            return self._turn_for_engine(run)
        strategy: OverflowStrategy | None = own_compactor.strategy
        failure: Exception | None = None
        for _ in range(LAST_RESORTS):
            window, compactor = await self._measure(own_compactor, run)
            is_over = window.taken(compactor.budget) > compactor.budget.max_tokens
            if is_over:
                await self._compaction.wait()
            if is_over and run.turn.carried:
                await self._use_carried(run)
                continue
            if strategy is not compactor.strategy and not is_over:
                return self._turn_for_engine(run)
            if strategy is None:
                break
            plan = await self._plan(compactor, strategy, window, run, is_over=is_over)
            if plan is None or (plan.waits and not is_over):
                return self._turn_for_engine(run)
            if run.turn.carried:
                await self._use_carried(run)  # the request is shorter then, so plan again
                continue
            if plan.waits and self._plans.is_pausing and plan.otherwise:
                strategy = plan.otherwise  # the strategy failed recently, and would delay each prompt
                continue
            bill = self._plans.bill(run)
            prepared, failure = await self._plans.prepare(compactor, plan, window, bill)
            if prepared and await self._plans.store(prepared, bill) and prepared.plan is plan:
                return self._turn_for_engine(run)
            strategy = plan.otherwise
        name = type(own_compactor.strategy).__name__
        raise CompactionError(
            self._state.session_id,
            name,
            reason(failure) if failure else "no overflow strategy could make the request fit",
        ) from failure

    async def _measure(self, own_compactor: Compactor, run: ActiveRun) -> tuple[Window, Compactor]:
        """Return the request's window, perhaps estimated if it is small, and the compactor with the run's limit."""
        while True:
            window = await own_compactor.window(run.turn, self._journal.blocks.cache)
            compactor = own_compactor.of_run(run.record).with_blocks(run.recalled, run.front)
            is_over = window.taken(compactor.budget) > compactor.budget.max_tokens
            if not own_compactor.is_estimate(window) or not (
                is_over or acts(own_compactor.strategy, window, compactor.budget)
            ):
                return window, compactor
            await own_compactor.count_exactly()

    async def _plan(
        self, compactor: Compactor, strategy: OverflowStrategy, window: Window, run: ActiveRun, *, is_over: bool
    ) -> Plan | None:
        """Return the strategy's plan. If the strategy fails, raise only if the request does not fit as it is."""
        try:
            return decide(strategy, window, compactor.budget)
        except TurnwiseError as error:
            if is_over:
                raise
            await self._plans.store_failure(type(strategy).__name__, error, self._plans.bill(run))
            return None

    async def _use_carried(self, run: ActiveRun) -> None:
        """Replace the run's input by the window that a background compaction has prepared (`carried`)."""

        async def change() -> None:
            check_open(run)
            turn = replace(run.turn, input=run.turn.carried or run.turn.input, carried=())
            session = self._journal.session
            replaced = {**about(run.record), "input": to_places(turn.input, session.log)}
            await self._transactor.commit(session, [(InputReplaced, replaced)], turns=[turn])
            run.turn = turn

        await self._transactor.run_with_retries(change)
