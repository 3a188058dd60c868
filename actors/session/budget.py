"""Budgets: limits on a run's and a session's usage, and prices of tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from turnwise.errors import ConfigError
from turnwise.memory.conversation.usage import Usage


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits; None is no limit. They are checked before each model call; a call that exceeds a limit is finished.

    Therefore a run exceeds its budget by at most one model call, and its output is kept.
    """

    tokens: int | None = None
    """Input and output tokens together, as the provider counts them."""
    calls: int | None = None
    """Calls of the model."""
    tool_calls: int | None = None
    seconds: float | None = None
    """The time in which runs are running, to the millisecond; waiting for a decision does not count."""
    cost: float | None = None
    """The cost, in the currency of `SessionConfig.prices`."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if value is not None and not 0 < value < math.inf:
                why = "must be more than 0 and finite, or None for no limit"
                raise ConfigError(f"Budget.{limit.name}", value, why)

    def exceeded(self, spent: Usage, times: int = 1) -> str | None:
        """Return the first limit that is reached, as a text such as "12 of 10 calls", or None if none is reached.

        All limits are multiplied by `times`.
        """
        for limit in fields(self):
            allowed = getattr(self, limit.name)
            used = spent.input_tokens + spent.output_tokens if limit.name == "tokens" else getattr(spent, limit.name)
            if allowed is not None and used >= allowed * times:
                return f"{used:g} of {allowed * times:g} {limit.name.replace('_', ' ')}"
        return None


@dataclass(frozen=True, kw_only=True)
class Price:
    """The prices of a model's tokens, per million."""

    input: float
    output: float
    cached: float | None = None
    """The price of input that the provider had cached; the `input` price if omitted."""

    def __post_init__(self) -> None:
        for price in fields(self):
            value = getattr(self, price.name)
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"Price.{price.name}", value, "must be 0 or more, and finite")

    def of(self, usage: Usage) -> float:
        """Return what this usage costs."""
        cached = self.input if self.cached is None else self.cached
        fresh = usage.input_tokens - usage.cached_tokens
        return (fresh * self.input + usage.cached_tokens * cached + usage.output_tokens * self.output) / 1_000_000


def priced(usage: Usage, price: Price | None) -> Usage:
    """Return the usage with its cost, if there is a price and the engine gave none."""
    return replace(usage, cost=price.of(usage)) if price and not usage.cost else usage
