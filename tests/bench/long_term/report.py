"""The figures of `recall.py`, and their goals."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from long_term.finders import BM25, COSINE, LIMIT, MINILM, WORDS

ROWS = (BM25, COSINE, WORDS, MINILM)
WIDTH = 48
RECALL, NOTHING, PRECISION, WHOLE = f"recall@{LIMIT}", "needs nothing: nothing", "precision", "whole answers"

GOALS: Mapping[tuple[str, str], tuple[float | None, float]] = {
    ("beam", RECALL): (0.53, 0.66),
    ("realtalk", RECALL): (0.63, 0.66),
    ("locomo", RECALL): (0.81, 0.82),
    ("locomo", "short"): (0.80, 0.80),
    ("locomo", "long"): (0.79, 0.79),
    ("locomo", "typo"): (0.77, 0.77),
    ("locomo", "follow-up"): (0.72, 0.72),
    ("", NOTHING): (0.80, 0.80),
    ("no word shared", RECALL): (None, 0.90),
    ("facts", PRECISION): (0.95, 0.95),
    ("facts", WHOLE): (0.95, 0.95),
}
"""The least value of a figure by words, and with MiniLM, by the beginning of the name of the data set."""


@dataclass(frozen=True, slots=True)
class Speed:
    """A time or a rate, and how it compares with a goal, if it has one."""

    name: str
    shown: str
    ratio: float | None = None
    """What is compared with the goal."""
    goal: float = math.nan
    bound: Literal["most", "least"] = "most"

    @property
    def is_met(self) -> bool:
        return self.ratio is None or (self.ratio <= self.goal if self.bound == "most" else self.ratio >= self.goal)

    @property
    def judged(self) -> str:
        """The ratio and the goal; empty without a goal."""
        if self.ratio is None:
            return ""
        return f"{self.ratio:.2f}x, goal at {self.bound} {self.goal:g}x: {'met' if self.is_met else 'MISSED'}"


@dataclass(frozen=True, slots=True)
class Report:
    """The tables at the end."""

    figures: dict[tuple[str, str], dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    """By data set and name, then by what is measured."""
    sizes: dict[str, str] = field(default_factory=dict)
    """What each data set has."""
    speeds: list[Speed] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    """How many processes wanted a core when speed was measured: the machine's average of a minute, before and after."""

    def add(self, data: str, figure: str, row: str, value: float) -> None:
        self.figures[data, figure][row] = value

    def add_speed(self, speed: Speed) -> None:
        self.speeds.append(speed)
        print(f"  {speed.name:{WIDTH}} {speed.shown:>16}   {speed.judged}".rstrip(), flush=True)

    def show(self) -> None:
        if not self.figures:
            return
        print("\nAll figures, with the goals of turnwise")
        line("", ROWS, width=24)
        for (data, figure), values in self.figures.items():
            goals = goals_of(data, figure)
            line(f"{data}, {figure}", [_judged(values.get(row), goals.get(row)) for row in ROWS], width=24)

    def behind(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield what is below its goal, or below BM25 or vectors alone: the figure, its row, its value, what is above.

        Figures by words are compared with BM25, figures with MiniLM with both.
        """
        for (data, figure), values in self.figures.items():
            goals = goals_of(data, figure)
            for row, baselines in ((WORDS, (BM25,)), (MINILM, (BM25, COSINE))):
                if (value := values.get(row)) is None:
                    continue
                above = [(name, values[name]) for name in baselines if values.get(name, value) > value]
                above += [("the goal", goal)] if (goal := goals.get(row)) is not None and goal > value else []
                if above:
                    shown = ", ".join(f"{name} {number:.3f}" for name, number in above)
                    yield f"{data}, {figure}", row, f"{value:.3f}", shown
        for speed in self.speeds:
            if not speed.is_met:
                yield speed.name, "", f"{speed.ratio:.2f} times", f"the goal, at {speed.bound} {speed.goal:g} times"


def goals_of(data: str, figure: str) -> dict[str, float]:
    """Return the goals of a figure by the names of turnwise's rows."""
    goals = next((goals for (name, of), goals in GOALS.items() if of == figure and data.startswith(name)), ())
    return {row: goal for row, goal in zip((WORDS, MINILM), goals, strict=False) if goal is not None}


def _judged(value: float | None, goal: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if goal is None else f"{value:.3f}, {goal:.2f} {'met' if value >= goal else 'MISSED'}"


def line(name: str, values: Iterable[object], *, width: int = 11) -> None:
    shown = (_shown(value) if isinstance(value, float) else str(value) for value in values)
    print(f"  {name:{WIDTH}}" + "".join(f"{value:>{width}}" for value in shown), flush=True)


def _shown(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def groups(title: str, names: Iterable[str], values: Iterable[float]) -> dict[str, float]:
    """Print the mean of the values of each name; return them."""
    by_name: dict[str, list[float]] = defaultdict(list)
    for name, value in zip(names, values, strict=True):
        by_name[name].append(value)
    means = {name: mean(group) for name, group in sorted(by_name.items())}
    print(f"    {title}: " + ", ".join(f"{name} {value:.3f}" for name, value in means.items()))
    return means


def mean(values: Iterable[float]) -> float:
    return statistics.fmean(values) if (values := list(values)) else math.nan
