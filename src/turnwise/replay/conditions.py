"""`Condition`: when a replay counts as failed, such as `cost > 1.1x or refusals > +1%`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from turnwise.errors import InvalidInputError, shown
from turnwise.replay.statistics import (
    AMOUNTS,
    CHANGES,
    FEWEST_CONVERSATIONS,
    RATES,
    Interval,
    MetricSummary,
    Summary,
)

_COMPARED: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}

_TERM = re.compile(
    r"""\s*(?P<metric>[A-Za-z_][\w-]*|"[^"]+"|'[^']+')(?:\.(?P<bound>low|high))?\s*(?P<sign>>=|<=|>|<)\s*"""
    r"(?P<plus>[+-])?(?P<number>\d+(?:\.\d+)?)(?P<unit>x|%)?(?P<floor>\s+above\s+floor)?\s*"
)

_EXAMPLE = "write it as 'cost > 1.1x or refusals > +1%'"

Against = Literal["ratio", "change", "mean", "floor_ratio", "above_floor"]

ERRORS = "errors > +1%"
"""What makes each condition true that says nothing about errors."""

_OF_TEXTS = ("length", "refusals", "cut", "first_token_s")
"""What records of a `Shadow` may lack."""


@dataclass(frozen=True)
class Term:
    """One comparison: a number of the summary with a limit."""

    text: str
    metric: str
    against: Against
    """`ratio`: new divided by recorded (`1.1x`, or `+10%` of amounts). `change`: new minus recorded (`+1%`, `+0.5`).
    `mean`: of the new answers (`20%`, `3`). `floor_ratio` and `above_floor`: as ratio and change, in comparison with
    the recorded engine that was asked again (`+5% above floor`)."""
    bound: Literal["value", "low", "high"]
    """The number itself, or a bound of its interval."""
    sign: str
    limit: float
    unit: Literal["x", "%", ""] = ""
    """How the limit is written."""
    is_default: bool = False
    """Whether nobody wrote it: see `ERRORS`."""

    def is_met(self, summary: Summary) -> bool | None:
        """Return whether it is true of a summary; None if its number is not known."""
        number = getattr(self.interval(summary), self.bound)
        return None if number is None else _COMPARED[self.sign](number, self.limit)

    def interval(self, summary: Summary) -> Interval:
        """Return its number, with the bounds."""
        metric = summary.all.metrics.get(self.metric)
        if metric is None:
            return Interval(value=None)
        if self.against == "mean":
            return Interval(value=metric.replayed)
        if self.against == "ratio":
            return metric.ratio if metric.recorded else _ratio_to_nothing(metric)
        numbers = {"change": metric.change, "above_floor": metric.above_floor, "floor_ratio": metric.floor_ratio}
        return numbers[self.against]

    def line(self, summary: Summary) -> str:
        """Return the comparison with its number, as people read it."""
        interval, metric = self.interval(summary), summary.all.metrics[self.metric]
        bounds = ""
        if interval.low is not None and interval.high is not None:
            bounds = f", 95 % interval {self._number(interval.low)} to {self._number(interval.high)}"
        default = "; write a condition on errors to change this default" if self.is_default else ""
        plural = "" if metric.turns == 1 else "s"
        return f"{self.text}: it is {self._number(interval.value)}{bounds}, of {metric.turns} turn{plural}{default}"

    def _number(self, value: float | None) -> str:
        if value is None:
            return "unknown"
        if self.unit == "x":
            return f"{value:.3g}x"
        is_mean = self.against == "mean" or (self.metric in CHANGES and self.against == "change")
        if self.unit == "%":
            share = value - 1 if self.against in ("ratio", "floor_ratio") else value
            return f"{share:.1%}" if is_mean else f"{share:+.1%}"
        return f"{value:.4g}" if is_mean else f"{value:+.4g}"

    def why_unknown(self, summary: Summary) -> str:
        """Return why its number is not known, and what to do."""
        metric, errors = summary.all.metrics.get(self.metric), summary.grader_errors.get(self.metric)
        if errors:
            return f"the grader {self.metric!r} failed in {errors.failed} of {summary.turns} turns: {errors.why}"
        if metric is not None and self.interval(summary).value is not None:
            return f"{summary.conversations} conversations have no interval: replay {FEWEST_CONVERSATIONS} or more"
        if self.metric == "cost" and (summary.unpriced or summary.unpriced_records):
            return unknown_cost(summary)
        if self.metric in _OF_TEXTS and metric is not None and not metric.turns and not _is_failing(summary):
            return "no answer has it: records of a Shadow have it only with Shadow(texts=True), and some never"
        if self.metric in (*AMOUNTS, *RATES):
            return "no turn has two complete answers: look at errors and stopped"
        return f"no answer has {self.metric!r}: look at errors and stopped"


def unknown_cost(summary: Summary) -> str:
    """Return whose cost is not known, and what to do."""
    parts = []
    if summary.unpriced:
        names = ", ".join(repr(name) if name else "an engine that names no model" for name in summary.unpriced)
        parts.append(f"new answers have no price ({names}): name it by prices= or --prices, or in config= or --config")
    if summary.unpriced_records:
        reason = "had no price when they were answered: compare with the floor instead"
        parts.append(f"{summary.unpriced_records} recorded answers {reason}")
    return "; ".join(parts)


def _is_failing(summary: Summary) -> bool:
    return any((summary.all.metrics[name].replayed or 0) >= 1 for name in ("errors", "stopped"))


def _ratio_to_nothing(metric: MetricSummary) -> Interval:
    """Return the ratio to a recorded mean of 0: 1 if the new one is 0, too."""
    if metric.recorded is None or metric.replayed is None:
        return Interval(value=None)
    value = math.inf if metric.replayed else 1.0
    return Interval(value=value, low=value, high=value)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a condition is true of a replay."""

    met: tuple[str, ...] = ()
    """The comparisons that make it true, each with its number."""
    unknown: tuple[str, ...] = ()
    """The comparisons on which it depends and whose numbers are not known, each with the reason."""


@dataclass(frozen=True)
class Condition:
    """Comparisons that are joined by `or` and `and`; `and` binds more tightly."""

    alternatives: tuple[tuple[Term, ...], ...]

    @classmethod
    def parse(cls, text: str, graders: tuple[str, ...] = ()) -> Condition:
        """Return the condition that a text describes.

        A limit `1.1x` is a ratio of the new answers to the recorded ones; one with a sign, `+1%` or `-0.2`, is a
        difference; any other is the mean of the new answers. Of amounts, such as costs, a difference in percent is one
        of the recorded mean; of rates, such as refusals, it is in percent of the turns. `different > +5% above floor`
        compares with the recorded engine that was asked again. `cost.low > 1x` compares the lower bound of the
        interval. Names with spaces have quotes: `"has a day" < 0.5`.

        A condition that names no `errors` is also true if `errors > +1%`.

        Raises:
            InvalidInputError: it is no condition, names no measure, or has a comparison that is never true.
        """
        names = (*AMOUNTS, *RATES, *CHANGES, *graders)
        alternatives = [
            tuple(_term(part, text, names) for part in _split(alternative, "and")) for alternative in _split(text, "or")
        ]
        if not any(term.metric == "errors" for terms in alternatives for term in terms):
            alternatives.append((Term(ERRORS, "errors", "change", "value", ">", 0.01, "%", is_default=True),))
        return cls(tuple(alternatives))

    @property
    def needs_floor(self) -> bool:
        """Whether a comparison is with the recorded engine that is asked again."""
        return any(term.against in ("floor_ratio", "above_floor") for terms in self.alternatives for term in terms)

    def check(self, summary: Summary) -> Verdict:
        """Return whether it is true of a summary. Unknown numbers decide nothing, unless another comparison does."""
        if not summary.turns:
            return Verdict(unknown=("nothing was compared: no turn was replayed, see the selection",))
        met: list[str] = []
        unknown: list[str] = []
        for terms in self.alternatives:
            answers = {term: term.is_met(summary) for term in terms}
            if all(answers.values()):
                met += [term.line(summary) for term in terms]
            elif False not in answers.values():
                missing = [term for term, answer in answers.items() if answer is None]
                unknown += [f"{term.text}: unknown, since {term.why_unknown(summary)}" for term in missing]
        return Verdict(met=tuple(met), unknown=tuple(unknown))


def _split(text: str, word: str) -> Iterator[str]:
    """Yield the parts of a text between a word, as far as it is not in quotes."""
    start = 0
    for found in re.finditer(rf"\"[^\"]*\"|'[^']*'|\b{word}\b", text):
        if found[0] == word:
            yield text[start : found.start()]
            start = found.end()
    yield text[start:]


def _term(part: str, whole: str, names: tuple[str, ...]) -> Term:
    written, match = part.strip(), _TERM.fullmatch(part)
    if match is None:
        raise _refused(whole, f"{written!r} is no comparison: {_EXAMPLE}; names with spaces need quotes")
    metric = match["metric"].strip("\"'")
    if metric not in names:
        raise _refused(whole, f"there is no {metric!r}: use one of {', '.join(names)}")
    term = Term(written, metric, _against(match, metric, whole), _bound(match), match["sign"], *_limit(match, metric))
    lowest, highest = _range(term)
    never = {
        ">": term.limit >= highest,
        ">=": term.limit > highest,
        "<": term.limit <= lowest,
        "<=": term.limit < lowest,
    }
    if never[term.sign]:
        remedy = f": for percent write {match['number']}%" if metric in (*RATES, *CHANGES) and not term.unit else ""
        raise _refused(whole, f"{written!r} is never true, as it is always from {lowest:g} to {highest:g}{remedy}")
    return term


def _against(match: re.Match[str], metric: str, whole: str) -> Against:
    """Return what a comparison compares, if it can be compared so."""
    written, has_record = match[0].strip(), metric in (*AMOUNTS, *RATES) and metric != "first_token_s"
    if match["floor"]:
        if match["unit"] == "x":
            raise _refused(whole, f"{written!r}: write the difference to the floor as '+10% above floor'")
        return "floor_ratio" if match["unit"] == "%" and metric in AMOUNTS else "above_floor"
    if (match["unit"] == "x" or match["plus"]) and not has_record:
        kind = "ratio" if match["unit"] == "x" else "difference"
        reason = f"no record has {metric!r}, so there is no {kind} to it"
        raise _refused(whole, f"{written!r}: {reason}; write '{metric} > 0.2', or '+0.2 above floor' with a floor")
    if match["unit"] == "x":
        if match["plus"]:
            raise _refused(whole, f"{written!r} is no ratio to a recorded number: leave the sign out")
        return "ratio"
    if match["plus"]:
        return "ratio" if match["unit"] == "%" and metric in AMOUNTS else "change"
    if match["bound"]:
        if metric in (*AMOUNTS, *RATES):
            raise _refused(whole, f"{written!r}: only a ratio or a difference has bounds")
        return "change"
    return "mean"


def _limit(match: re.Match[str], metric: str) -> tuple[float, Literal["x", "%", ""]]:
    limit, unit = float(match["number"]), match["unit"]
    limit = -limit if match["plus"] == "-" else limit
    if unit == "%" and metric in AMOUNTS and (match["plus"] or match["floor"]):
        return 1 + limit / 100, "%"
    return (limit / 100, "%") if unit == "%" else (limit, "x" if unit else "")


def _range(term: Term) -> tuple[float, float]:
    """Return between which numbers that of a comparison always is."""
    is_share = term.metric in (*RATES, *CHANGES) and term.metric != "dissimilarity"
    if term.metric not in (*AMOUNTS, *RATES, *CHANGES):
        return -math.inf, math.inf
    if term.against in ("ratio", "floor_ratio"):
        return 0.0, math.inf
    if term.against == "mean" or (term.metric in CHANGES and term.against == "change"):
        return 0.0, 1.0 if is_share else math.inf
    return (-1.0, 1.0) if is_share else (-math.inf, math.inf)


def _refused(whole: str, reason: str) -> InvalidInputError:
    return InvalidInputError("fail_if", shown(whole), reason)


def _bound(match: re.Match[str]) -> Literal["value", "low", "high"]:
    return "low" if match["bound"] == "low" else "high" if match["bound"] == "high" else "value"


def notes(summary: Summary) -> list[str]:
    """Return sentences about what is not known or not sure in a summary."""
    if not summary.turns:
        return ["Nothing was compared: no turn was replayed, see the selection."]
    graders: Mapping[str, str] = {
        name: f"The grader {name!r} failed in {errors.failed} of {summary.turns} turns, first with {errors.why}."
        for name, errors in summary.grader_errors.items()
    }
    cost = [f"Costs are unknown: {unknown_cost(summary)}."] if summary.unpriced or summary.unpriced_records else []
    few = f"Fewer than {FEWEST_CONVERSATIONS} conversations say little: there are no intervals."
    return [*cost, *graders.values(), *([few] if summary.conversations < FEWEST_CONVERSATIONS else [])]
