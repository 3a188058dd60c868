"""Fault plans: which faults to inject, and a count of those that occurred."""

from __future__ import annotations

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
"""What can go wrong. At the verbs of a store: it is late, raises StoreError, or kills the process that called; at a
commit, somebody else takes the session over (`fence`). Of an engine: it raises, never answers, breaks off in the midst,
returns what is no block, returns nothing, only thinks, leaves a tool call open, ignores a cancel, raises SystemExit, or
kills its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """What is to go wrong. Says nothing by itself: `Faults` carries it out.

    A point that is passed offers some kinds. It has the fault that `at` names for it, else one by the `rates`.
    """

    rates: Mapping[Kind, float] = field(default_factory=dict)
    """How likely each kind is where it is offered, from 0 to 1; together at most 1."""
    at: Mapping[int, Kind] = field(default_factory=dict)
    """Kinds by the number of the point, counted from 0 in the order in which points are passed."""
    points: tuple[str, ...] = ("*",)
    """Patterns of the points that `rates` are for: `store.*`, `store.commit after`."""
    limit: int | None = None
    """How many faults there may be at most."""

    def __post_init__(self) -> None:
        for kind in [*self.rates, *self.at.values()]:
            if kind not in get_args(Kind):
                raise ConfigError("kind", kind, f"must be one of {', '.join(get_args(Kind))}")
        if min(self.rates.values(), default=0) < 0 or sum(self.rates.values()) > 1 + 1e-9:
            raise ConfigError("rates", dict(self.rates), "must be 0 or more each, and at most 1 together")


class Faults:
    """Carries a plan out: is asked at each point that something passes, and counts what it answered.

    Pickles as its settings. In another process it throws dice of that process's own, so no two fail alike.

    Args:
        plan: may be set anew at any time, as the attribute `plan`.
        seed: where the dice come from.
        journal: a file that each fault is added to, as a line of JSON, before it strikes: so that faults of processes
            that do not live to tell are counted too. See `read_faults`.
        remembers: keep the points that are passed, in `passed`.
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
        """How many points have been passed."""
        self.passed: list[tuple[str, tuple[Kind, ...]]] = []
        """With `remembers`, the points in order, each with the kinds that it offers."""
        self.struck: Counter[str] = Counter()
        """How many faults there were, by kind and point: `error store.commit after`."""

    def __reduce__(self) -> tuple[object, ...]:
        return _elsewhere, (self.plan, self.seed, self.journal, os.getpid())

    def strike(self, point: str, *offers: Kind) -> Kind | None:
        """Return the fault that happens at this point, one of those offered, or None. Counts it."""
        number, self.count = self.count, self.count + 1
        if self.remembers:
            self.passed.append((point, offers))
        kind = self.plan.at.get(number) or self._drawn(point, offers)
        if kind not in offers or (self.plan.limit is not None and self.struck.total() >= self.plan.limit):
            return None
        self.struck[f"{kind} {point}"] += 1
        if self.journal:
            _add_line(self.journal, {"fault": f"{kind} {point}", "pid": os.getpid()})
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
    """Return how many faults a journal has, by kind and point; none if there is no such file."""
    path = Path(journal)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return Counter(str(json.loads(line)["fault"]) for line in lines)


def _elsewhere(plan: FaultPlan, seed: object, journal: Path | None, pid: int) -> Faults:
    return Faults(plan, seed=seed if os.getpid() == pid else f"{seed} in {os.getpid()}", journal=journal)


def _add_line(path: Path, line: Mapping[str, Any]) -> None:
    # One write of a few bytes at the end: lines of several processes do not mix, and a kill leaves whole ones.
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)
