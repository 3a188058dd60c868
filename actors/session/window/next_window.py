"""`NextWindow`: the blocks of the request that would come next, as many as fit the model's context window."""

from __future__ import annotations

import logging
from dataclasses import replace

from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.actors.session.window.compaction_tasks import Compactor
from turnwise.actors.session.window.plan_runner import PlanRunner
from turnwise.actors.session.window.window_compaction import WindowCompaction
from turnwise.errors import TurnOverflowError, TurnwiseError, WindowOverflowError
from turnwise.memory.conversation.blocks import User
from turnwise.memory.conversation.spans import Spans
from turnwise.memory.conversation.turns import Turn, TurnRecord, turn_id
from turnwise.strategies.newest_blocks import newest_that_are_valid, without_former_systems
from turnwise.strategies.window import Window

_log = logging.getLogger(__name__)


class NextWindow:
    """Reads the window that the next turn continues, prompts that wait included, and makes it fit.

    A window that does not fit is compacted once by the session's strategy, as before a run's request. If it is still
    too large, since the strategy failed or prompts wait, its oldest exchanges are left out of the answer; the session
    keeps them.

    While this awaits the compaction, everything else may run; a crash leaves what `WindowCompaction` says.
    """

    def __init__(
        self,
        state: SessionState,
        transactor: Transactor,
        engines: SessionEngines,
        plans: PlanRunner,
        compaction: WindowCompaction,
    ) -> None:
        self._state = state
        self._transactor = transactor
        self._engines = engines
        self._plans = plans
        self._compaction = compaction

    async def read(self, message: str | None = None) -> Turn | None:
        """Return the newest turn with these blocks as its snapshot; None if the session has no turns.

        Without a strategy the limit is unknown, and all blocks are returned.

        Args:
            message: a text of the user; there is room for it behind these blocks, unless it is the last of them.

        Raises:
            TurnOverflowError: the newest turn alone does not fit.
            ConfigError: the token counter raised an error.
        """
        await self._transactor.loaded()
        is_compacted = False
        while True:
            newest = next(reversed(self._state.open_turns), self._state.head)
            compactor = self._engines.current.compactor
            if newest is None:
                return None
            if compactor is None:
                return self._turn_with(newest, newest.spans if newest.is_open else newest.base)
            window, compactor, more = await self._measure(compactor, newest, message)
            if window.taken(compactor.budget) <= compactor.budget.max_tokens:
                return self._turn_with(newest, without_former_systems(window))
            if is_compacted:
                try:
                    return self._turn_with(newest, newest_that_are_valid(window, compactor.budget))
                except WindowOverflowError as error:
                    name = turn_id(self._state.session_id, newest.index)
                    raise TurnOverflowError(name, *error.args) from error
            await self._compact(more)
            is_compacted = True

    async def _measure(
        self, compactor: Compactor, newest: TurnRecord, message: str | None
    ) -> tuple[Window, Compactor, User | None]:
        """Return the window, counted exactly if it does not fit by an estimate.

        Also returns the compactor of requests with the message behind it, and the message, unless it is there already.
        """
        while True:
            window = await compactor.window(newest, self._state.journal.blocks.cache, base=not newest.is_open)
            more = User(text=message) if message else None
            if len(window) and window.block(len(window) - 1) == more:
                more = None
            beside = compactor.with_blocks(more)
            is_over = window.taken(beside.budget) > beside.budget.max_tokens
            if not (is_over and compactor.is_estimate(window)):
                return window, beside, more
            await compactor.count_exactly()

    async def _compact(self, more: User | None) -> None:
        """Compact the blocks of ended turns, so that waiting prompts have room; events report a failure."""
        await self._compaction.wait()
        if self._state.head is None or self._plans.is_pausing:
            return
        try:
            await self._compaction.compact(more=more)
        except TurnwiseError as error:
            _log.warning("session %s: its window was not compacted: %s", self._state.key.full_name, error)

    def _turn_with(self, newest: TurnRecord, spans: Spans) -> Turn:
        record = replace(newest, prompt=(), input=spans, output=(), carried=(), appended=())
        return self._state.journal.blocks.turn(record)
