"""`Condition`: when a replay counts as failed, such as `cost > 1.1x or refusals > +1%`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from turnwise.errors import InvalidInputError, shown
from turnwise.replay.statistics import AMOUNTS, CHANGES, RATES, Interval, Summary

_COMPARED: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}

_TERM = re.compile(
    r"\s*(?P<metric>[A-Za-z_][\w-]*)(?:\.(?P<bound>low|high))?\s*(?P<sign>>=|<=|>|<)\s*"
    r"(?P<plus>[+-])?(?P<number>\d+(?:\.\d+)?)(?P<unit>x|%)?\s*"
)

_EXAMPLE = "write it as 'cost > 1.1x or refusals > +1%'"

Against = Literal["ratio", "change", "mean"]


@dataclass(frozen=True)
class Term:
    """One comparison: a number of the summary with a limit."""

    text: str
    metric: str
    against: Against
    """`ratio`: new divided by recorded (`1.1x`). `change`: new minus recorded (`+1%`, `+0.5`). `mean`: of the new
    answers (`20%`, `3`)."""
    bound: Literal["value", "low", "high"]
    """The number itself, or a bound of its interval."""
    sign: str
    limit: float

    def is_met(self, summary: Summary) -> bool:
        """Return whether it is true of a summary; false if the summary has no such number."""
        metric = summary.all.metrics.get(self.metric)
        if metric is None:
            return False
        numbers = {"ratio": metric.ratio, "change": metric.change, "mean": Interval(value=metric.replayed)}
        number: float | None = getattr(numbers[self.against], self.bound)
        return number is not None and _COMPARED[self.sign](number, self.limit)


@dataclass(frozen=True)
class Condition:
    """Comparisons that are joined by `or` and `and`; `and` binds more tightly."""

    alternatives: tuple[tuple[Term, ...], ...]

    @classmethod
    def parse(cls, text: str, graders: tuple[str, ...] = ()) -> Condition:
        """Return the condition that a text describes.

        A limit `1.1x` is a ratio of the new answers to the recorded ones; one with a sign, `+1%` or `-0.2`, is a
        difference; any other is the mean of the new answers. Of amounts, such as costs, a difference in percent is one
        of the recorded mean; of rates, such as refusals, it is in percent of the turns. `cost.low > 1x` compares the
        lower bound of the interval.

        Raises:
            InvalidInputError: it is no condition, or names no measure.
        """
        names = (*AMOUNTS, *RATES, *CHANGES, *graders)
        alternatives = [
            tuple(_term(part, text, names) for part in re.split(r"\band\b", alternative))
            for alternative in re.split(r"\bor\b", text)
        ]
        return cls(tuple(alternatives))

    def met(self, summary: Summary) -> list[str]:
        """Return the comparisons that make it true, as they were written; empty if it is false."""
        true = [terms for terms in self.alternatives if all(term.is_met(summary) for term in terms)]
        return [term.text for terms in true for term in terms]


def _term(part: str, whole: str, names: tuple[str, ...]) -> Term:
    match = _TERM.fullmatch(part)
    if match is None:
        raise InvalidInputError("fail_if", shown(whole), f"{part.strip()!r} is no comparison: {_EXAMPLE}")
    metric, unit, plus = match["metric"], match["unit"], match["plus"]
    if metric not in names:
        raise InvalidInputError("fail_if", shown(whole), f"there is no {metric!r}: use one of {', '.join(names)}")
    limit = float(match["number"])
    if unit == "x":
        if plus or metric not in (*AMOUNTS, *RATES) or metric == "first_token_s":
            raise InvalidInputError("fail_if", shown(whole), f"{part.strip()!r} is no ratio to a recorded number")
        return Term(part.strip(), metric, "ratio", _bound(match), match["sign"], limit)
    if plus:
        limit = -limit if plus == "-" else limit
        if unit == "%" and metric in AMOUNTS:
            return Term(part.strip(), metric, "ratio", _bound(match), match["sign"], 1 + limit / 100)
        return Term(part.strip(), metric, "change", _bound(match), match["sign"], limit / (100 if unit else 1))
    if match["bound"] and metric not in CHANGES:
        raise InvalidInputError("fail_if", shown(whole), f"{part.strip()!r}: only a ratio or a difference has bounds")
    against: Against = "change" if match["bound"] else "mean"
    return Term(part.strip(), metric, against, _bound(match), match["sign"], limit / (100 if unit else 1))


def _bound(match: re.Match[str]) -> Literal["value", "low", "high"]:
    return "low" if match["bound"] == "low" else "high" if match["bound"] == "high" else "value"
