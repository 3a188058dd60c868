"""The printed figures of `recall.py`, and their goals."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
class Report:
    """The table at the end."""

    figures: dict[tuple[str, str], dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    """By data set and name, then by what is measured."""

    def add(self, data: str, figure: str, row: str, value: float) -> None:
        self.figures[data, figure][row] = value

    def show(self) -> None:
        if not self.figures:
            return
        print("\nAll figures, with the goals of turnwise")
        line("", ROWS, width=24)
        for (data, figure), values in self.figures.items():
            goals = dict(zip((WORDS, MINILM), _goals(data, figure), strict=True))
            line(f"{data}, {figure}", [_judged(values.get(row), goals.get(row)) for row in ROWS], width=24)


def _goals(data: str, figure: str) -> tuple[float | None, float | None]:
    goals = (goals for (name, of), goals in GOALS.items() if of == figure and data.startswith(name))
    return next(goals, (None, None))


def _judged(value: float | None, goal: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if goal is None else f"{value:.3f}, {goal:.2f} {'met' if value >= goal else 'MISSED'}"


def line(name: str, values: Iterable[object], *, width: int = 11) -> None:
    shown = (_shown(value) if isinstance(value, float) else str(value) for value in values)
    print(f"  {name:{WIDTH}}" + "".join(f"{value:>{width}}" for value in shown), flush=True)


def _shown(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def groups(title: str, names: Iterable[str], values: Iterable[float]) -> None:
    """Print the mean of the values of each name."""
    by_name: dict[str, list[float]] = defaultdict(list)
    for name, value in zip(names, values, strict=True):
        by_name[name].append(value)
    print(f"    {title}: " + ", ".join(f"{name} {mean(group):.3f}" for name, group in sorted(by_name.items())))


def mean(values: Iterable[float]) -> float:
    return statistics.fmean(values) if (values := list(values)) else math.nan
