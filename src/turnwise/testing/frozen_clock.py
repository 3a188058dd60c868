"""`FrozenClock`: time that only a test moves."""

from __future__ import annotations

from turnwise.errors import ConfigError

NEW_YEAR = 1_767_225_600.0
"""The first second of 2026 in UTC, in seconds since the epoch."""


class FrozenClock:
    """A clock for `clock=` of stores in memory and of long-term memories. It stands still until `advance`.

    Ids are made by the time of the machine, and timeouts and pauses pass in real time.

    Args:
        now: the time at first, in seconds since the epoch.
    """

    def __init__(self, now: float = NEW_YEAR) -> None:
        self.now = now
        """The time, in seconds since the epoch."""

    def __call__(self) -> float:
        """Return the time, in seconds since the epoch."""
        return self.now

    def advance(self, seconds: float) -> float:
        """Let time pass; return the new time.

        Raises:
            ConfigError: time would run backwards.
        """
        if not seconds >= 0:
            raise ConfigError("seconds", seconds, "must be 0 or more: time does not run backwards")
        self.now += seconds
        return self.now
