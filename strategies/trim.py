"""`Trim`: removes the oldest exchanges until the rest fits."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.memory.values.checked_settings import PositiveCount, checked_settings
from turnwise.strategies.plan import Plan, plan_for
from turnwise.strategies.window import TokenBudget, Window


@dataclass(frozen=True)
@checked_settings("Trim.")
class Trim:
    """Removes the oldest exchanges, each as a whole, until the request fits."""

    max_tokens: PositiveCount | None = None
    """The most tokens of a request, if below its budget. The newest exchange stays even if it takes more."""

    def decide(self, window: Window, budget: TokenBudget) -> Plan | None:
        limit = min(self.max_tokens or budget.max_tokens, budget.max_tokens)
        if window.taken(budget) <= limit:
            return None
        return trimmed(window, budget, limit, strategy="Trim")

    def due(self, window: Window, budget: TokenBudget) -> bool:
        return False  # trimming takes no time, so it waits until it is necessary


def trimmed(
    window: Window, budget: TokenBudget, limit: int, *, strategy: str, at_least: int = 0, reason: str = ""
) -> Plan | None:
    """Return the plan that drops everything before `at_least`, and further old exchanges until the rest fits `limit`.

    Args:
        reason: why blocks before `at_least` are dropped, where that is not to fit the limit.

    Raises:
        WindowOverflowError: the newest exchange does not fit the budget.
    """
    cut = newest_that_fit(window, budget, limit)
    if window.tokens_from(cut, budget) > budget.max_tokens:
        raise window.overflow(budget)
    cut = max(cut, at_least)
    if window.tokens(0, cut) == window.summary_tokens(cut):
        return None
    if not reason or cut > at_least:
        reason = f"it is oldest, and a request may take {limit} tokens"
    return plan_for(window, budget, strategy=strategy, keep=window.kept_from(cut), reason=reason)


def newest_that_fit(window: Window, budget: TokenBudget, limit: int) -> int:
    """Return where the newest exchanges that fit `limit` together begin. The newest exchange is always among them.

    O(blocks of these exchanges and of one more).
    """
    cut = window.newest.start
    for exchange in window.exchanges():
        if window.tokens_from(exchange.start, budget) > limit:
            break
        cut = exchange.start
    return cut
