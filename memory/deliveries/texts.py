"""Deliveries as people write and read them, for HTTP, the command line, the console and MCP."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.deliveries.payload import read_run_payload
from turnwise.memory.deliveries.records import Delivery

_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def time_of(field: str, text: str) -> float:
    """Return a time as seconds since the epoch.

    Args:
        field: the name of the argument, for errors.
        text: as RFC 3339 has it, such as `2030-05-01T09:00:00+02:00`; the seconds may be left out, the zone may not.

    Raises:
        InvalidInputError: it is no such time.
    """
    try:
        if _RFC_3339.fullmatch(text):
            return datetime.fromisoformat(text.upper()).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    reason = "must be a time with its zone, such as 2030-05-01T09:00:00+02:00 or 2030-05-01T07:00:00Z"
    raise InvalidInputError(field, shown(text), reason)


def recurrence_of(delivery: Delivery) -> str:
    """Return how a delivery recurs, in a few words; "" for one that occurs once."""
    recurrence = delivery.schedule
    if recurrence is None:
        return ""
    text = f"{recurrence.cron} {recurrence.timezone}" if recurrence.cron else f"every {recurrence.every_s:g} s"
    if recurrence.until is None:
        return text
    return f"{text} until {datetime.fromtimestamp(recurrence.until, UTC):%Y-%m-%d %H:%M:%S} UTC"


def prompt_text_of(delivery: Delivery, most: int) -> str:
    """Return the text of the prompts of the run that a delivery begins, of at most so many characters.

    A prompt that is no text is named by its kind. Of a payload that cannot be read, it says so.
    """
    try:
        prompts, _ = read_run_payload(delivery)
    except InvalidInputError as error:
        return f"({error.why})"[:most]
    text = "\n".join(getattr(prompt, "text", None) or f"({prompt.kind})" for prompt in prompts)
    return text if len(text) <= most else f"{text[: most - 1]}…"
