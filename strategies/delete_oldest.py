"""`DeleteOldest`: removes a fixed number of the oldest exchanges."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.memory.values.checked_settings import PositiveCount, checked_settings
from turnwise.strategies.plan import Plan
from turnwise.strategies.trim import trimmed
from turnwise.strategies.window import TokenBudget, Window


@dataclass(frozen=True)
@checked_settings("DeleteOldest.")
class DeleteOldest:
    """When the request does not fit, removes the `count` oldest exchanges, and more if that is not enough.

    The newest exchange is never removed. A larger count means fewer compactions.
    """

    count: PositiveCount = 1

    def decide(self, window: Window, budget: TokenBudget) -> Plan | None:
        if window.taken(budget) <= budget.max_tokens:
            return None
        oldest = window.end_of_oldest(self.count)
        return trimmed(window, budget, budget.max_tokens, strategy="DeleteOldest", at_least=oldest)

    def due(self, window: Window, budget: TokenBudget) -> bool:
        return False
