"""`WindowCompaction`: compacts a session's window in the background: when a strategy says so, or when a caller asks."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from turnwise.actors.inference.attempt import reason
from turnwise.actors.session.engines.cache_hinting import CacheHinting
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.state.session_tasks import SessionTasks
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.actors.session.window.compaction_tasks import Compactor, Prepared
from turnwise.actors.session.window.plan_runner import PlanRunner
from turnwise.errors import CompactionError, SessionEndedError, TurnwiseError
from turnwise.memory.background import ended, shielded
from turnwise.memory.conversation.blocks import Block
from turnwise.memory.conversation.spans import begins_with, size
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.strategies.compaction import Compaction
from turnwise.strategies.strategy import acts, decide, is_due

_log = logging.getLogger(__name__)


class WindowCompaction:
    """Compacts the window that the next turn continues, while runs start and end. One compaction at a time.

    A compacted window replaces the prefix that later turns continue: the `carried` blocks of the newest ended turn and
    of the active one. Requests that were sent and blocks that are stored never change; blocks are only added.

    While a compaction awaits the following, other work may run, and the process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | a model, a memory | everything; runs that fit start and end | the old window; memories keep what they saved |
    | the commit | reads, streaming | all of it or nothing |
    """

    def __init__(
        self,
        state: SessionState,
        transactor: Transactor,
        engines: SessionEngines,
        tasks: SessionTasks,
        plans: PlanRunner,
        *,
        hinting: CacheHinting,
    ) -> None:
        self._hinting = hinting
        self._state = state
        self._journal = state.journal
        self._transactor = transactor
        self._engines = engines
        self._tasks = tasks
        self._plans = plans
        self._running: asyncio.Task[Any] | None = None
        """The newest compaction that has begun."""
        self._requested: asyncio.Task[Compaction | None] | None = None
        """The compaction that callers requested and that has not begun."""

    @property
    def is_under_way(self) -> bool:
        """Whether a compaction has begun and has not ended."""
        return self._running is not None and not self._running.done()

    def watch(self) -> None:
        """Start a compaction if one is due and none runs. Called after each run; does not wait."""
        compactor, head = self._engines.current.compactor, self._state.head
        if compactor is None or head is None or self.is_under_way or self._journal.session.status == "ended":
            return
        if self._plans.is_pausing:
            self._plans.count_run()
        else:
            self._running = self._tasks.spawn_logged(self._compact_if_due(compactor, head), "compacting")

    async def wait(self) -> None:
        """Return when the compaction that is under way, if any, has ended."""
        if self._running and self.is_under_way:
            await asyncio.wait({self._running})

    async def stop(self) -> None:
        """Cancel the compaction that is under way; the next commit records its usage."""
        if self._running and self.is_under_way:
            self._running.cancel()
            await asyncio.wait({self._running}, timeout=self._engines.config.cancel_grace_s)

    async def compact(self, *, explain: bool = False, more: Block | None = None) -> Compaction | None:
        """Compact the window that the next turn continues; return what was done, None if the window stays as it is.

        The compaction begins after the one that is under way, and goes on if the caller is cancelled. All callers that
        ask before it begins get its outcome. Prompts that wait for a run count as part of the next request.

        Args:
            explain: return what would be done, and change nothing.
            more: what the next request also contains, if it is known.

        Raises:
            TurnwiseError: the strategy's error, or CompactionError; nothing was changed.
        """
        await self._transactor.loaded()
        if explain:
            compactor, head = self._engines.current.compactor, self._state.head
            if compactor is None or head is None:
                return None
            await compactor.count_exactly()
            window = await compactor.window(head, self._journal.blocks.cache, base=True)
            compactor = compactor.beside(await self._waiting_tokens(compactor, head))
            plan = decide(compactor.strategy, window, compactor.budget)
            return plan.explain() if plan else None
        if self._requested is None:
            self._requested = self._tasks.spawn(self._compact_as_requested(more))
        return await shielded(self._requested, self._tasks.name("a compaction"))

    async def _compact_as_requested(self, more: Block | None) -> Compaction | None:
        task: asyncio.Task[Prepared | None] | None = None
        name = ""
        try:
            while task is None:
                while self.is_under_way:
                    await self.wait()
                compactor, head = self._engines.current.compactor, self._state.head
                if compactor is None or head is None:
                    return None
                async with self._transactor.alone:  # do not begin during a forget or a delete
                    if self._journal.lost:
                        raise self._journal.lost
                    if self._state.head is head and not self.is_under_way:
                        name = type(compactor.strategy).__name__
                        task = self._running = self._tasks.spawn(self._compact(compactor, head, more=more))
        finally:
            self._requested = None  # later callers request the next compaction
        await ended(task, self._tasks.name("a compaction"))
        if task.cancelled():
            if self._journal.session.status == "ended":
                raise self._journal.lost or SessionEndedError(self._state.session_id)
            message = "the compaction was stopped, for example because a turn was forgotten"
            raise self._journal.lost or CompactionError(self._state.session_id, name, message)
        prepared = task.result()
        return prepared.outcome() if prepared else None

    async def _compact_if_due(self, compactor: Compactor, head: TurnRecord) -> None:
        try:
            await self._compact(compactor, head, if_due=True)
        except TurnwiseError as error:  # a strategy's error is in the events; a store's recurs at the next request
            _log.warning("session %s: its window was not compacted: %s", self._state.key.full_name, error)
        except Exception:  # noqa: BLE001 - such as a token counter's; the next run fails with it, so its caller sees it
            _log.exception("session %s: its window was not compacted", self._state.key.full_name)

    async def _compact(
        self, compactor: Compactor, head: TurnRecord, *, if_due: bool = False, more: Block | None = None
    ) -> Prepared | None:
        """Compact the window that continues `head`; return what was done, None if there was nothing to do.

        Raises:
            TurnwiseError: nothing was changed.
        """
        cache = self._journal.blocks.cache
        window = await compactor.window(head, cache, base=True)
        beside = 0 if if_due else await self._waiting_tokens(compactor, head)
        budget = compactor.beside(beside).with_blocks(more).budget
        if compactor.is_estimate(window) and acts(compactor.strategy, window, budget):
            await compactor.count_exactly()
            window = await compactor.window(head, cache, base=True)
            beside = 0 if if_due else await self._waiting_tokens(compactor, head)
        compactor = compactor.beside(beside).with_blocks(more)
        bill = self._plans.bill()
        name = type(compactor.strategy).__name__
        try:
            if if_due and not is_due(compactor.strategy, window, compactor.budget):
                return None
            plan = decide(compactor.strategy, window, compactor.budget)
        except TurnwiseError as error:
            self._plans.count_failure()
            await self._plans.store_failure(name, error, bill)
            raise
        if plan is None:
            return None
        self._hinting.compacting()
        try:
            prepared, failure = await self._plans.prepare(compactor, plan, window, bill)
            if prepared is None:
                message = reason(failure) if failure else "no block may be removed from the window"
                raise CompactionError(self._state.session_id, name, message)
            if not await self._plans.store(prepared, bill):
                message = "the session's window changed during the compaction"
                raise CompactionError(self._state.session_id, name, message)
        finally:
            self._hinting.compacted()
        return prepared

    async def _waiting_tokens(self, compactor: Compactor, head: TurnRecord) -> int:
        """Return the tokens of the prompts that wait for a run behind `head`; 0 while a run is active."""
        newest = next(reversed(self._state.open_turns), None)
        if newest is None or self._state.active or not begins_with(newest.spans, head.base):
            return 0
        window = await compactor.window(newest, self._journal.blocks.cache)
        return window.tokens(size(head.base))
