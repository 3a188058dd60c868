"""`FlushToMemory`: moves the older exchanges to long-term memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import PlainValidator

from turnwise.errors import ConfigError, WindowOverflowError
from turnwise.memory.longterm.base import LongTermMemory, is_read_only
from turnwise.memory.values.checked_settings import Share, checked_settings
from turnwise.strategies.flush_task import FlushTask
from turnwise.strategies.plan import Plan, plan_for
from turnwise.strategies.ranges import Range
from turnwise.strategies.strategy import OverflowStrategy
from turnwise.strategies.trim import newest_that_fit
from turnwise.strategies.window import TokenBudget, Window


def _writable(memories: Sequence[LongTermMemory]) -> tuple[LongTermMemory, ...]:
    if all(map(is_read_only, memories)):
        raise ValueError("must contain a memory that is not read-only")
    return tuple(memories)


@dataclass(frozen=True)
@checked_settings("FlushToMemory.")
class FlushToMemory:
    """Above `trigger_ratio` of the window, moves the oldest exchanges to long-term memory, down to `max_ratio`.

    The window drops an exchange only after each memory has acknowledged that it stored the exchange. If a memory fails,
    its exchanges stay in the window and are flushed again later, under the same ids. Read-only memories are not
    written.
    """

    memories: Annotated[Sequence[LongTermMemory], PlainValidator(_writable)] | None = None
    """The memories to write to; if left out, those of the manager."""
    max_ratio: Share = field(default=0.5, kw_only=True)
    """The target fill of the window, as a share of its budget. The newest exchange stays even if it takes more."""
    trigger_ratio: Share = field(default=0.8, kw_only=True)
    """The fill that triggers a flush, as a share of the budget, from `max_ratio` to 1."""
    otherwise: OverflowStrategy | None = field(default=None, kw_only=True)
    """The strategy to use if the memories fail and the window is over its budget; None to raise an error."""

    def __post_init__(self) -> None:
        if self.max_ratio > self.trigger_ratio:
            reason = f"must be at most trigger_ratio, which is {self.trigger_ratio:g}"
            raise ConfigError("FlushToMemory.max_ratio", self.max_ratio, reason)

    def decide(self, window: Window, budget: TokenBudget) -> Plan | None:
        if window.taken(budget) <= budget.max_tokens * self.trigger_ratio:
            return None
        cut = newest_that_fit(window, budget, int(budget.max_tokens * self.max_ratio))
        if window.tokens_from(cut, budget) > budget.max_tokens:
            raise window.overflow(budget)
        if window.tokens(0, cut) == window.summary_tokens(cut):
            return None
        if self.memories is None:
            raise ConfigError("FlushToMemory.memories", None, "name memories, here or in the manager's memory=")
        writable = tuple(memory for memory in self.memories if not is_read_only(memory))
        return plan_for(
            window,
            budget,
            strategy="FlushToMemory",
            keep=window.kept_from(cut),
            flush=FlushTask(ranges=(Range(0, cut),), memories=writable),
            reason=f"it is oldest, and a request is to take {self.max_ratio:.0%} of {budget.max_tokens} tokens",
            otherwise=self.otherwise,
        )

    def due(self, window: Window, budget: TokenBudget) -> bool:
        try:
            return self.decide(window, budget) is not None
        except WindowOverflowError:
            return False
