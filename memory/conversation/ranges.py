"""The ranges of settings: durations, counts and sizes are numbers that clocks, Ray and databases can use."""

from __future__ import annotations

import math
from typing import cast

from turnwise.errors import ConfigError

MAX_SECONDS = 1e9
"""The longest duration, in seconds: beyond it, clocks, Ray and operating systems overflow in different ways."""

MAX_COUNT = 2**31 - 1
"""The largest count or size."""


def check_seconds(
    setting: str, value: object, *, may_be_0: bool = True, may_be_none: bool = False, most: float = MAX_SECONDS
) -> None:
    """Raise unless a setting is a duration in seconds.

    Raises:
        ConfigError: it is no number, not finite, below 0 or above `most`, or 0 or None though it may not be.
    """
    if value is None and may_be_none:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not 0 <= cast(float, value) <= most or not (may_be_0 or value):
        low = "from 0" if may_be_0 else "above 0 and"
        raise ConfigError(setting, value, f"must be a number of seconds, {low} up to {most:g}")


def check_number(setting: str, value: object, *, most: float, may_be_0: bool = False) -> None:
    """Raise unless a setting is a number above 0, or from 0, such as a share.

    Raises:
        ConfigError: it is not, or above `most`.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not 0 <= cast(float, value) <= most or not (may_be_0 or value):
        raise ConfigError(setting, value, f"must be a number {'from 0' if may_be_0 else 'above 0 and'} up to {most:g}")


def check_whole_number(
    setting: str, value: object, least: int = 0, most: int = MAX_COUNT, *, may_be_none: bool = False
) -> None:
    """Raise unless a setting is a whole number in this range.

    Raises:
        ConfigError: it is not.
    """
    if value is None and may_be_none:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(setting, value, f"must be a whole number from {least} to {most}")
