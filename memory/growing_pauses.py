"""`GrowingPauses`: how long to wait before the next attempt, for everything that is tried again."""

from __future__ import annotations

import random
from dataclasses import dataclass

JITTER = random.Random()  # noqa: S311 - it spreads attempts, and is not for security
"""Draws by how much a pause is shortened. Schedules seed it, so that they can be replayed."""


@dataclass(slots=True)
class GrowingPauses:
    """The pauses between attempts: each is twice as long as the one before, up to a longest one.

    Each is shortened at random, to half at most, so that those who failed together do not all come back together. It
    only counts and says how long: the caller waits, on whichever clock, and may be cancelled meanwhile.
    """

    first_s: float
    """The first pause, in seconds."""
    longest_s: float
    """The longest pause, in seconds."""
    failures: int = 0
    """How many attempts in a row have failed."""

    def next_s(self) -> float:
        """Count a failure, and return how many seconds to wait after it."""
        pause_s = min(self.longest_s, self.first_s * 2.0 ** min(self.failures, 64))
        self.failures += 1
        return pause_s * JITTER.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin anew with the first pause, after an attempt that succeeded."""
        self.failures = 0
