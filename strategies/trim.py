"""`Trim`: removes the oldest exchanges until the rest fits."""

from __future__ import annotations

from dataclasses import dataclass, field

from turnwise.memory.values.checked_settings import PositiveCount, ShareOrZero, checked_settings
from turnwise.strategies.plan import Plan, plan_for
from turnwise.strategies.window import TokenBudget, Window

SLACK = 0.25
"""The share that strategies make free at once by default. Three quarters of a window are read anew for each
quarter of a window that is said."""


@dataclass(frozen=True)
@checked_settings("Trim.")
class Trim:
    """Removes the oldest exchanges, each as a whole, when the request does not fit.

    It then removes more than it must, so that it does so seldom: what follows removed blocks moves, so the provider has
    none of it in its cache, and reads the whole request anew.
    """

    max_tokens: PositiveCount | None = None
    """The most tokens of a request, if below its budget. The newest exchange stays even if it takes more."""
    slack: ShareOrZero = field(default=SLACK, kw_only=True)
    """The share of a request's tokens that is made free at once, from 0. With 0, each prompt may move the request."""

    def decide(self, window: Window, budget: TokenBudget) -> Plan | None:
        limit = min(self.max_tokens or budget.max_tokens, budget.max_tokens)
        if window.taken(budget) <= limit:
            return None
        return trimmed(window, budget, limit, strategy="Trim", down_to=int(limit * (1 - self.slack)))

    def due(self, window: Window, budget: TokenBudget) -> bool:
        return False  # trimming takes no time, so it waits until it is necessary


def trimmed(
    window: Window,
    budget: TokenBudget,
    limit: int,
    *,
    strategy: str,
    at_least: int = 0,
    reason: str = "",
    down_to: int | None = None,
) -> Plan | None:
    """Return the plan that drops everything before `at_least`, and further old exchanges until the rest fits `limit`.

    Args:
        down_to: the most tokens of the rest, if that is less than `limit`.
        reason: why blocks before `at_least` are dropped, where that is not to fit the limit.

    Raises:
        WindowOverflowError: the newest exchange does not fit the budget.
    """
    cut = newest_that_fit(window, budget, limit if down_to is None else down_to)
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
