"""Runs a scripted session once for each fault that can occur in it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from turnwise.testing.faults import FaultPlan, Faults, Kind
from turnwise.testing.loop import Hook
from turnwise.testing.schedules import SEED, play

Life = Callable[[Faults], Coroutine[Any, Any, None]]
"""Makes its world with these faults, lives, and asserts. Without faults it is the same each time."""


@dataclass(frozen=True, slots=True)
class Case:
    """One fault of a life."""

    number: int
    kind: Kind | None
    """None: its process is killed between two steps."""
    at: int
    """The number of the point, from 0, or of the step, from 1."""
    point: str

    def __str__(self) -> str:
        return f"case {self.number} ({self.kind or 'kill'} at {self.point})"


def cases_of(life: Life) -> list[Case]:
    """Live once without a fault; return each kind that each point offers, then a kill at each step of its processes.

    Raises:
        AssertionError: the life fails without any fault.
    """
    faults = Faults(remembers=True)
    steps = play(life(faults), "the life without faults", -1)
    points = [(kind, at, f"point {at}, {point}") for at, (point, kinds) in enumerate(faults.passed) for kind in kinds]
    kills: list[tuple[Kind | None, int, str]] = [(None, step, f"step {step}") for step in range(1, steps + 1)]
    return [Case(number, *each) for number, each in enumerate([*points, *kills])]


def exhaust(life: Life) -> Counter[str]:
    """Live once for each case of `cases_of`, with that fault; return how many faults there were, by kind.

    TURNWISE_SEED is the number of the one case to replay.

    Raises:
        AssertionError: one failed; the message has the case, and its number.
    """
    struck: Counter[str] = Counter()
    only = os.environ.get(SEED)
    for case in cases_of(life):
        if only in (None, str(case.number)):
            faults, hook = _arranged(case)
            play(life(faults), str(case), case.number, hook)
            struck[case.kind or "kill"] += 1
            if case.kind and faults.struck.total() != 1:
                raise AssertionError(f"{case} did not come: without its fault, the life is not the same each time")
    return struck


def _arranged(case: Case) -> tuple[Faults, Hook | None]:
    if case.kind:
        return Faults(FaultPlan(at={case.at: case.kind})), None
    return Faults(), lambda step: "kill" if step == case.at else "go"
