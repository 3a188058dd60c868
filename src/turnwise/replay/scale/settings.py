"""`AtScale`: how a replay of many sessions is carried out: where, how fast, and for how much."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from turnwise.actors.session.engines.budget import Budget
from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.usage import Usage

BUDGETED = ("tokens", "cost")
"""The limits of a `Budget` that a replay has."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a replay at scale is, over all processes, also those before a kill."""

    turns: int
    """How many turns have their records."""
    expected_turns: int
    """How many turns the chosen sessions have at most."""
    failed: int
    """How many turns have no answer since something failed."""
    spent: Usage
    """Tokens, calls and cost of all answers so far."""


@dataclass(frozen=True, kw_only=True)
class AtScale:
    """Lets a replay of many sessions go on after a kill, within rates and a budget, in one process or with Ray Data.

    Each record is written to the folder `out` when its turn is answered. A replay with the same settings and the same
    folder goes on where the last one ended, and asks only what has no record. If all processes are killed, at most the
    turns that are being asked then, `at_once` in each process, are asked again; with `forward` or `overflow`, the
    conversations that are.

    Raises:
        InvalidInputError: a number is out of its range, or the budget has a limit that replays do not have.
    """

    on_ray: bool = False
    """Whether Ray Data distributes the sessions over processes. They open the store by its URL, and only read; `out`
    has to be a folder that all of them see."""
    workers: int | None = None
    """How many processes on Ray; one for each of its processors, if omitted."""
    requests_per_minute: float | None = None
    """How many model calls are begun in a minute, over all processes; no limit if omitted. A turn counts as one call
    until it has ended and its calls are known."""
    tokens_per_minute: float | None = None
    """How many tokens requests and answers have in a minute, over all processes. A turn counts as many as turns had so
    far, on average, until it has ended."""
    budget: Budget | None = None
    """`cost` or `tokens` after which no further turn is asked; turns that are being asked end. They are what it
    is exceeded by: at most `at_once` turns in each process. A later replay with a higher budget goes on."""
    retries: int = 5
    """How often a turn is asked again if the provider is away or refuses for now, after the engine's own retries. If
    that does not help, a later replay into the same folder asks it again."""
    anew: bool = False
    """Whether records that are in the folder are deleted first, instead of going on with them."""
    progress: Callable[[Progress], object] | None = field(default=None, compare=False)
    """Called about once in a second."""

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute"):
            rate = getattr(self, name)
            if rate is not None and not (_is_number(rate) and 0 < rate < math.inf):
                raise InvalidInputError(name, shown(rate), "must be more than 0 and finite, or None for no limit")
        _check_whole("retries", self.retries, 0)
        if self.workers is not None:
            _check_whole("workers", self.workers, 1)
            if not self.on_ray:
                raise InvalidInputError("workers", shown(self.workers), "pass on_ray=True, or leave workers out")
        if self.budget is not None:
            if not isinstance(self.budget, Budget):
                raise InvalidInputError("budget", shown(self.budget), "pass a Budget, such as Budget(cost=20.0)")
            if others := sorted(self.budget.limits.keys() - set(BUDGETED)):
                reason = f"a replay has no limit of {', '.join(others)}: use some of {', '.join(BUDGETED)}"
                raise InvalidInputError("budget", shown(self.budget), reason)
        if self.progress is not None and not callable(self.progress):
            raise InvalidInputError("progress", shown(self.progress), "pass a function of a Progress")

    @property
    def is_limited(self) -> bool:
        """Whether turns wait for a permit."""
        return any((self.requests_per_minute, self.tokens_per_minute, self.budget and self.budget.limits))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidInputError(name, shown(value), f"must be a whole number from {least}")
