"""`Windows`: the windows that a conversation would have had with another overflow strategy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.window.compaction_tasks import Compactor, Preparation
from turnwise.errors import CompactionError, InvalidInputError
from turnwise.memory.conversation.blocks import Recalled
from turnwise.memory.conversation.ledger import SpentOn
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.spans import Spans
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.longterm.turn_items import TurnBlocks
from turnwise.memory.values.records import replace
from turnwise.replay.context import Conversation, with_cost
from turnwise.strategies.flush_to_memory import FlushToMemory
from turnwise.strategies.strategy import OverflowStrategy, acts, decide

LAST_RESORTS = 8
"""How many strategies are tried for one request; each is the previous one's fallback (`otherwise`)."""


class Windows:
    """Makes the requests of one conversation fit by a strategy, turn after turn, as its session would have.

    Summaries are asked for anew; what they cost is in `spent`.

    Raises:
        InvalidInputError: the strategy saves in memories, which a replay leaves alone.
        ConfigError: the size of the model's window is not known.
    """

    def __init__(
        self,
        strategy: OverflowStrategy,
        builder: EngineBuilder,
        config: SessionConfig,
        conversation: Conversation,
        off_loop: Callable[..., Awaitable[Any]],
    ) -> None:
        check_strategy(strategy)
        self._compactor = Compactor(strategy, builder, config, off_loop)
        self._conversation = conversation
        self.spent = Usage()
        self.is_unpriced = False
        """Whether a model that made summaries has no price."""

    async def fit(self, turn: TurnRecord, run: RunRecord, *recalled: Recalled | None) -> TurnRecord:
        """Return the turn with an input that fits the model's window, beside what was recalled.

        Raises:
            TurnwiseError: no strategy can make it fit.
        """
        strategy: OverflowStrategy | None = self._compactor.strategy
        failure: Exception | None = None
        for _ in range(LAST_RESORTS):
            window = await self._compactor.window(turn, self._conversation.cache)
            compactor = self._compactor.of_run(run).with_blocks(*recalled)
            is_over = window.taken(compactor.budget) > compactor.budget.max_tokens
            if self._compactor.is_estimate(window) and (is_over or acts(compactor.strategy, window, compactor.budget)):
                await self._compactor.count_exactly()
                continue
            if strategy is None:
                break
            if strategy is not compactor.strategy and not is_over:
                return turn
            plan = decide(strategy, window, compactor.budget)
            if plan is None:
                return turn
            preparation = Preparation(plan, window, compactor, self._conversation.view, _no_turns)
            try:
                await preparation.attempt(self._bill, _allow)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - the model of the strategy may raise anything
                failure = error
            if prepared := preparation.prepared():
                place = self._conversation.add([prepared.summary]) if prepared.summary else None
                return replace(turn, input=prepared.spans(place))
            if not is_over:
                return turn
            strategy = plan.otherwise
        name = type(self._compactor.strategy).__name__
        why = repr(failure) if failure else "no overflow strategy could make the request fit"
        raise CompactionError(self._conversation.view.session_id, name, why) from failure

    def _bill(self, usage: Usage, model: str | None, kind: SpentOn = "summary") -> None:
        usage, is_unpriced = with_cost(usage, self._compactor.config.prices, model, time.time())
        self.spent += usage
        self.is_unpriced = self.is_unpriced or is_unpriced


def check_strategy(strategy: OverflowStrategy) -> None:
    """Raise InvalidInputError for a strategy that saves in memories."""
    if isinstance(strategy, FlushToMemory):
        reason = "it saves in memories, which a replay leaves alone: pass the strategy that is to follow it"
        raise InvalidInputError("overflow", type(strategy).__name__, reason)


async def _no_turns(spans: Spans) -> Sequence[TurnBlocks]:
    return ()


def _allow() -> None:
    """Allow each model call: a replay has no budgets."""
