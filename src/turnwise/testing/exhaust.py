"""`exhaust`: runs a scenario once for each fault that can occur in it."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any

from turnwise.testing.faults import FaultPlan, Faults, Kind
from turnwise.testing.loop import Hook
from turnwise.testing.schedules import SEED, play

Life = Callable[[Faults], Coroutine[Any, Any, None]]
"""A scenario: creates a `World` with these faults, uses it, and asserts. Deterministic without faults."""


@dataclass(frozen=True)
class Case:
    """One fault at one point of a scenario."""

    number: int
    kind: Kind | None
    """None if the process is killed between two steps."""
    at: int
    """The number of the point, from 0, or of the step, from 1."""
    point: str

    def __str__(self) -> str:
        return f"case {self.number} ({self.kind or 'kill'} at {self.point})"


def cases_of(life: Life) -> list[Case]:
    """Run the scenario without faults; return a case for each kind at each point, and for a kill at each step.

    Raises:
        AssertionError: the scenario fails without faults.
    """
    faults = Faults(remembers=True)
    steps = play(life(faults), "the life without faults", -1)
    points = [
        (kind, index, f"point {index}, {point}") for index, (point, kinds) in enumerate(faults.passed) for kind in kinds
    ]
    kills: list[tuple[Kind | None, int, str]] = [(None, step, f"step {step}") for step in range(1, steps + 1)]
    return [Case(number, *point) for number, point in enumerate([*points, *kills])]


def exhaust(
    life: Life, kinds: Collection[Kind | None] | None = None, *, one_of: int = 1, draw: int = 0
) -> Counter[str]:
    """Run the scenario once for each case of `cases_of`; return the number of cases by kind.

    Args:
        kinds: only the cases of these kinds; None stands for a kill between two steps.
        one_of: run only one of so many cases, by lot; those that are left out are counted all the same.
        draw: which ones; with `one_of=3`, the draws 0, 1 and 2 together run each case once.

    If TURNWISE_SEED is set, only the case with this number runs.

    Raises:
        AssertionError: a case failed, or its fault did not occur; the message has the case and its number.
    """
    cases: Counter[str] = Counter()
    only = os.environ.get(SEED)
    for case in cases_of(life):
        if only != str(case.number) and (only or (kinds is not None and case.kind not in kinds)):
            continue
        cases[case.kind or "kill"] += 1
        if only or (zlib.crc32(b"%d" % case.number) + draw) % one_of == 0:
            faults, hook = _arranged(case)
            play(life(faults), str(case), case.number, hook)
            if case.kind and faults.struck.total() != 1:
                raise AssertionError(f"{case} did not occur: without faults, the scenario is not deterministic")
    return cases


def _arranged(case: Case) -> tuple[Faults, Hook | None]:
    if case.kind:
        return Faults(FaultPlan(at={case.at: case.kind})), None
    return Faults(), lambda step: "kill" if step == case.at else "go"
