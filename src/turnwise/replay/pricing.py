"""`with_cost` and `priced_answer`: what answers cost by prices, and which costs nobody knows."""

from __future__ import annotations

from turnwise.actors.session.engines.budget import Prices, price_at, priced
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.values.records import replace
from turnwise.replay.records import Answer


def with_cost(usage: Usage, prices: Prices, model: str | None, time_s: float) -> tuple[Usage, bool]:
    """Return the usage with its cost, by the price that holds at a time; and whether its cost is unknown.

    Tokens of a model without a price have an unknown cost; a price of 0 makes it known.
    """
    price = price_at(prices, model or "", time_s)
    usage = priced(usage, price)
    has_tokens = usage.input_tokens + usage.output_tokens > 0
    return usage, has_tokens and not usage.cost and price is None


def priced_answer(answer: Answer, prices: Prices, time_s: float) -> Answer:
    """Return an answer with its cost, unless it has one; if there is no price, the cost is among what is unknown."""
    usage, is_unknown = with_cost(answer.usage, prices, answer.model, time_s)
    if is_unknown and "cost" not in answer.unknown:
        return replace(answer, unknown=("cost", *answer.unknown))
    return answer if usage is answer.usage else replace(answer, usage=usage)
