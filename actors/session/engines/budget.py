"""Budgets: limits on a run's and a session's usage, and prices of tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from pydantic import PlainValidator

from turnwise.memory.conversation.usage import Usage
from turnwise.memory.values.checked_settings import checked_settings


def _limit(value: Any) -> Any:
    if not 0 < value < math.inf:
        raise ValueError("must be more than 0 and finite, or None for no limit")
    return value


def _price(value: Any) -> Any:
    if not 0 <= value < math.inf:
        raise ValueError("must be 0 or more, and finite")
    return value


_LIMIT, _PRICE = PlainValidator(_limit), PlainValidator(_price)


@dataclass(frozen=True, kw_only=True)
@checked_settings("Budget.")
class Budget:
    """Limits; None is no limit. They are checked before each model call; a call that exceeds a limit is finished.

    Therefore a run exceeds its budget by at most one model call, and its output is kept.
    """

    tokens: Annotated[int, _LIMIT] | None = None
    """Input and output tokens together, as the provider counts them."""
    calls: Annotated[int, _LIMIT] | None = None
    """Calls of the model."""
    tool_calls: Annotated[int, _LIMIT] | None = None
    seconds: Annotated[float, _LIMIT] | None = None
    """The time in which runs are running, to the millisecond; waiting for a decision does not count."""
    cost: Annotated[float, _LIMIT] | None = None
    """The cost, in the currency of `SessionConfig.prices`."""

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
@checked_settings("Price.")
class Price:
    """The prices of a model's tokens, per million."""

    input: Annotated[float, _PRICE]
    output: Annotated[float, _PRICE]
    cached: Annotated[float, _PRICE] | None = None
    """The price of input that the provider had cached; the `input` price if omitted."""

    def of(self, usage: Usage) -> float:
        """Return what this usage costs."""
        cached = self.input if self.cached is None else self.cached
        fresh = usage.input_tokens - usage.cached_tokens
        return (fresh * self.input + usage.cached_tokens * cached + usage.output_tokens * self.output) / 1_000_000


def priced(usage: Usage, price: Price | None) -> Usage:
    """Return the usage with its cost, if there is a price and the engine gave none."""
    return replace(usage, cost=price.of(usage)) if price and not usage.cost else usage
