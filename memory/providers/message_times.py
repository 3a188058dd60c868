"""When messages from elsewhere were written, where they say so."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from turnwise.errors import InvalidInputError, shown

_NAMES = ("created_at", "createdAt", "timestamp")
"""The fields that say when a message was written; the first one that a message has counts."""

_AHEAD_S = 86_400.0
"""How far the clock of the system that the messages are from may be ahead, in seconds."""


def message_times(messages: Sequence[Any]) -> list[float | None] | None:
    """Return for each message when it was written, in seconds since the epoch; None if no message says so.

    A message that does not say so has the time of the one before it; those at the beginning, of the first that says so.

    Raises:
        InvalidInputError: names the first message whose time cannot be read, is not of the past, or is before that of
            an earlier message.
    """
    latest: float | None = None
    times: list[float | None] = []
    for index, message in enumerate(messages):
        if (found := _stated(message)) is not None:
            field = f"messages[{index}].{found[0]}"
            written_at = _seconds(field, found[1])
            if latest is not None and written_at < latest:
                reason = "it is before the time of an earlier message: sort the messages, or leave their times out"
                raise InvalidInputError(field, shown(found[1]), reason)
            latest = written_at
        times.append(latest)
    first = next((written_at for written_at in times if written_at is not None), None)
    return None if first is None else [first if written_at is None else written_at for written_at in times]


def _stated(message: Any) -> tuple[str, Any] | None:
    """Return the name and the value of the field that says when a message was written."""
    for name in _NAMES:
        value = message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)
        if value is not None:
            return name, value
    return None


def _seconds(field: str, value: Any) -> float:
    """Return a time in seconds since the epoch. Raises InvalidInputError for what is none, or is not of the past."""
    moment = value
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            moment = None
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidInputError(field, shown(value), "it has no time zone: add one, such as Z for UTC")
        moment = moment.timestamp()
    if isinstance(moment, bool) or not isinstance(moment, int | float) or not math.isfinite(moment):
        reason = "it is no time: pass seconds since the epoch, or a text such as 2025-05-01T09:00:00Z"
        raise InvalidInputError(field, shown(value), reason)
    if not 0 <= moment <= time.time() + _AHEAD_S:
        raise InvalidInputError(field, shown(value), "it must be of the past: as a number, in seconds since the epoch")
    return float(moment)
