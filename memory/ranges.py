"""The ranges of settings: durations, counts and sizes are numbers that clocks, Ray and databases can use."""

from __future__ import annotations

import math

from turnwise.errors import ConfigError

MAX_SECONDS = 1e9
"""The longest duration, in seconds: beyond it, clocks, Ray and operating systems overflow in different ways."""

MAX_COUNT = 2**31 - 1
"""The largest count or size."""


def check_seconds(setting: str, value: float | None, *, may_be_0: bool = True, most: float = MAX_SECONDS) -> None:
    """Raise unless a setting is a duration in seconds. None is passed over: the caller's type says if it may be.

    Raises:
        ConfigError: it is no number, not finite, below 0 or above `most`, or 0 though it may not be.
    """
    if value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (0 <= value <= most) or not (may_be_0 or value) or not math.isfinite(value):
        low = "from 0" if may_be_0 else "above 0 and"
        raise ConfigError(setting, value, f"must be a number of seconds, {low} up to {most:g}")


def check_count(setting: str, value: int | None, least: int = 0, most: int = MAX_COUNT) -> None:
    """Raise unless a setting is a whole number in this range. None is passed over.

    Raises:
        ConfigError: it is not.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(setting, value, f"must be a whole number from {least} to {most}")
