"""Fault plans: which faults to inject, and a count of those that occurred."""

from __future__ import annotations

import functools
import json
import os
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args

from turnwise.errors import ConfigError

Kind = Literal[
    "delay",
    "error",
    "unanswered",
    "crash",
    "fence",
    "raise",
    "hang",
    "cut",
    "malformed",
    "nothing",
    "thoughts",
    "dangling",
    "stubborn",
    "exit",
]
"""Kinds of faults. A store's method is delayed, raises StoreError, or kills the calling process; a commit is stored and
its answer lost (`unanswered`); before or after a commit, another process activates the session (`fence`). An engine
raises, never answers, breaks off within its answer, returns an object that is not a block, returns nothing, returns
only thoughts, leaves a tool call open, ignores a cancel, raises SystemExit, or kills its process."""


@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """Which faults to inject; `Faults` injects them.

    Each point of the code under test offers some kinds. It gets the fault that `at` names for it, else one by `rates`.
    """

    rates: Mapping[Kind, float] = field(default_factory=dict)
    """The probability of each kind at a point that offers it, from 0 to 1; their sum is at most 1."""
    at: Mapping[int, Kind] = field(default_factory=dict)
    """Kinds by the number of the point; points are numbered from 0, in the order in which they are reached."""
    points: tuple[str, ...] = ("*",)
    """Patterns of the points to which `rates` apply, such as `store.*` or `store.commit after`."""
    limit: int | None = None
    """The maximum number of faults; None for no limit."""

    def __post_init__(self) -> None:
        for kind in [*self.rates, *self.at.values()]:
            if kind not in get_args(Kind):
                raise ConfigError("kind", kind, f"must be one of {', '.join(get_args(Kind))}")
        if min(self.rates.values(), default=0) < 0 or sum(self.rates.values()) > 1 + 1e-9:
            raise ConfigError("rates", dict(self.rates), "must be 0 or more each, and at most 1 together")


class Faults:
    """Decides at each point which fault happens, by a plan, and counts the faults.

    Only its settings are pickled. In another process it draws other random numbers, so processes fail differently.

    Args:
        plan: the plan; the attribute `plan` may be changed at any time.
        seed: the seed of the random numbers.
        journal: a file to which each fault is appended, as a line of JSON, before it happens, so that the faults of
            killed processes are counted too. See `read_faults`.
        remembers: whether `passed` records the points.
    """

    def __init__(
        self,
        plan: FaultPlan = FaultPlan(),
        *,
        seed: object = 0,
        journal: Path | str | None = None,
        remembers: bool = False,
    ) -> None:
        self.plan = plan
        self.seed = seed
        self.journal = None if journal is None else Path(journal)
        self.remembers = remembers
        self.dice = random.Random(str(seed))
        self.count = 0
        """The number of points reached so far."""
        self.passed: list[tuple[str, tuple[Kind, ...]]] = []
        """With `remembers`, the points in order, each with the kinds that it offers."""
        self.struck: Counter[str] = Counter()
        """The number of faults by kind and point, such as `error store.commit after`."""

    def __reduce__(self) -> tuple[object, ...]:
        settings: dict[str, Any] = {"plan": self.plan, "seed": self.seed, "journal": self.journal, "pid": os.getpid()}
        return functools.partial(_elsewhere, **settings), ()

    def strike(self, point: str, *offers: Kind) -> Kind | None:
        """Return the fault that happens at this point: one of the offered kinds, or None. A fault is counted."""
        number, self.count = self.count, self.count + 1
        if self.remembers:
            self.passed.append((point, offers))
        kind = self.plan.at.get(number) or self._drawn(point, offers)
        if kind not in offers or (self.plan.limit is not None and self.struck.total() >= self.plan.limit):
            return None
        self.struck[f"{kind} {point}"] += 1
        if self.journal:
            append_line(self.journal, {"fault": f"{kind} {point}", "pid": os.getpid()})
        return kind

    def _drawn(self, point: str, offers: tuple[Kind, ...]) -> Kind | None:
        if not any(fnmatchcase(point, pattern) for pattern in self.plan.points):
            return None
        drawn = self.dice.random() if self.plan.rates else 1.0
        for kind, rate in self.plan.rates.items():
            if kind in offers:
                if drawn < rate:
                    return kind
                drawn -= rate
        return None


def read_faults(journal: Path | str) -> Counter[str]:
    """Return the number of faults in a journal by kind and point; empty if the file does not exist."""
    path = Path(journal)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return Counter(str(json.loads(line)["fault"]) for line in lines)


def _elsewhere(plan: FaultPlan, seed: object, journal: Path | None, pid: int) -> Faults:
    return Faults(plan, seed=seed if os.getpid() == pid else f"{seed} in {os.getpid()}", journal=journal)


def append_line(path: Path, line: Mapping[str, Any], *, fsync: bool = False) -> None:
    """Append a line of JSON to a file, in one write, so that lines of several processes do not mix."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
        if fsync:
            os.fsync(file)
    finally:
        os.close(file)
