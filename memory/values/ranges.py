"""The ranges of settings: durations, counts and sizes are numbers that clocks, Ray and databases can use."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from turnwise.errors import ConfigError

MAX_SECONDS = 1e9
"""The longest duration, in seconds: beyond it, clocks, Ray and operating systems overflow in different ways."""

MAX_COUNT = 2**31 - 1
"""The largest count or size."""


def seconds(value: Any, *, may_be_0: bool = True, most: float = MAX_SECONDS) -> Any:
    """Return a duration in seconds.

    Raises:
        ValueError: it is no number, not finite, below 0 or above `most`, or 0 though it may not be.
    """
    if not _is_within(value, most) or not (may_be_0 or value):
        raise ValueError(f"must be a number of seconds, {'from 0' if may_be_0 else 'above 0 and'} up to {most:g}")
    return value


def number(value: Any, *, most: float, may_be_0: bool = False) -> Any:
    """Return a number above 0, or from 0, such as a share.

    Raises:
        ValueError: it is not, or above `most`.
    """
    if not _is_within(value, most) or not (may_be_0 or value):
        raise ValueError(f"must be a number {'from 0' if may_be_0 else 'above 0 and'} up to {most:g}")
    return value


def whole_number(value: Any, *, least: int = 0, most: int = MAX_COUNT) -> Any:
    """Return a whole number in this range.

    Raises:
        ValueError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"must be a whole number from {least} to {most}")
    return value


def _is_within(value: Any, most: float) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and 0 <= value <= most


def check_seconds(
    setting: str, value: object, *, may_be_0: bool = True, may_be_none: bool = False, most: float = MAX_SECONDS
) -> None:
    """Raise ConfigError unless a setting is a duration: see `seconds`."""
    if not (value is None and may_be_none):
        _check(setting, value, partial(seconds, may_be_0=may_be_0, most=most))


def check_whole_number(
    setting: str, value: object, least: int = 0, most: int = MAX_COUNT, *, may_be_none: bool = False
) -> None:
    """Raise ConfigError unless a setting is a whole number: see `whole_number`."""
    if not (value is None and may_be_none):
        _check(setting, value, partial(whole_number, least=least, most=most))


def _check(setting: str, value: object, check: partial[Any]) -> None:
    try:
        check(value)
    except ValueError as error:
        raise ConfigError(setting, value, str(error)) from None
