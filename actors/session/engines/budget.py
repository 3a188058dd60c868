"""Budgets: limits on a run's and a session's usage, and prices of tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime
from typing import Annotated, Any, TypeAlias

from pydantic import PlainValidator

from turnwise.memory.conversation.ledger import COST_DIGITS
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.values.checked_settings import checked_settings


def _limit(value: Any) -> Any:
    if not 0 < value < math.inf:
        raise ValueError("must be more than 0 and finite, or None for no limit")
    return value


def _date(value: Any) -> Any:
    try:
        day = date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        day = None if value is None else value
    if day is not None and type(day) is not date:
        raise ValueError("must be a date, such as 2026-11-29")
    return day


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

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        limits = {limit.name: getattr(self, limit.name) for limit in fields(self)}
        return {name: allowed for name, allowed in limits.items() if allowed is not None}

    def exceeded(self, spent: Usage) -> str | None:
        """See `exceeded`."""
        return exceeded(self.limits, spent)


def spent_of(name: str, spent: Usage) -> float:
    """Return what was spent of the limit of a budget with this name."""
    used: float = spent.input_tokens + spent.output_tokens if name == "tokens" else getattr(spent, name)
    return used


def exceeded(limits: Mapping[str, float], spent: Usage) -> str | None:
    """Return the first limit that is reached, as a text such as "12 of 10 calls", or None if none is reached.

    An agent's limit may be 0. One of tool calls is reached only by a call: the model may answer without any.
    """
    for name, allowed in limits.items():
        used = spent_of(name, spent)
        if used >= allowed and (used or name != "tool_calls"):
            return f"{used:g} of {allowed:g} {name.replace('_', ' ')}"
    return None


def share(name: str, amount: float, index: int, count: int) -> float:
    """Return the share of the agent `index` of `count` that work at the same time in an amount of the limit `name`.

    Shares of what is counted are whole, and add up to the amount. Seconds pass for all, so each has all of them.
    """
    if name == "seconds":
        return amount
    return amount / count if name == "cost" else (amount + count - 1 - index) // count


@dataclass(frozen=True, kw_only=True)
@checked_settings("Price.")
class Price:
    """The prices of a model's tokens, per million."""

    input: Annotated[float, _PRICE]
    output: Annotated[float, _PRICE]
    cached: Annotated[float, _PRICE] | None = None
    """The price of input that the provider had cached; the `input` price if omitted."""
    since: Annotated[date | None, PlainValidator(_date)] = None
    """The first day, in UTC, of runs that cost this; a date, or a text such as `2026-11-29`. Always, if omitted."""

    def of(self, usage: Usage) -> float:
        """Return what this usage costs."""
        cached = self.input if self.cached is None else self.cached
        fresh = usage.input_tokens - usage.cached_tokens
        return (fresh * self.input + usage.cached_tokens * cached + usage.output_tokens * self.output) / 1_000_000


Prices: TypeAlias = Mapping[str, Price | Sequence[Price]]
"""The prices of models, by the model's name; several of a model hold from different days on."""


def price_at(prices: Prices, model: str, time_s: float) -> Price | None:
    """Return the price of a model for what begins at a time, in seconds since the epoch: the newest that holds then."""
    prices_of_model = prices.get(model)
    if prices_of_model is None:
        return None
    if isinstance(prices_of_model, Price):
        if prices_of_model.since is None:
            return prices_of_model
        prices_of_model = (prices_of_model,)
    day = datetime.fromtimestamp(time_s, UTC).date()
    valid = [price for price in prices_of_model if price.since is None or price.since <= day]
    return max(valid, key=lambda price: price.since or date.min, default=None)


def priced(usage: Usage, price: Price | None) -> Usage:
    """Return the usage with its cost, by the price if the engine gave none, to `COST_DIGITS` decimals."""
    cost = price.of(usage) if price and not usage.cost else usage.cost
    return replace(usage, cost=round(cost, COST_DIGITS)) if cost else usage
