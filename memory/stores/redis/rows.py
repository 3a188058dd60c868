"""What `RedisStore` adds to the codec of records: numbers as text that sorts like them, and exact sums of usage."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any

from turnwise.errors import StoreError
from turnwise.memory.conversation.codec import decoded, encode_json
from turnwise.memory.conversation.events import AnyEvent, Event, decode_event, encode_body
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.usage import Usage


def encode_event(event: Event) -> str:
    """Return the text of an event that is stored after its sequence number."""
    kind, body = encode_body(event)
    return f"{encode_json([kind, event.at, event.turn_index, event.run_id, event.key])}\n{body}"


def decode_event_text(key: str, session: SessionKey, text: bytes) -> AnyEvent:
    """Return the event from its stored text: the sequence number followed by the text of `encode_event`.

    Raises:
        CorruptRecordError: the text is damaged; names the key.
    """

    def decode() -> AnyEvent:
        head, body = text[PADDED_DIGITS:].decode().split("\n", 1)
        kind, time, turn_index, run_id, event_key = json.loads(head)
        ids: dict[str, Any] = {**session._asdict(), "seq": int(text[:PADDED_DIGITS]), "at": time}
        return decode_event(kind, body, {**ids, "turn_index": turn_index, "run_id": run_id, "key": event_key})

    return decoded(key, decode)


PADDED_DIGITS = 19
"""Digits of a turn's index or an event's sequence number as text, so that texts sort like numbers."""


def padded(number: int) -> str:
    """Return a number as text of fixed width, which sorts like the number.

    Raises:
        ValueError: the number is below 0 or too large.
    """
    if not 0 <= number < 10**PADDED_DIGITS:
        raise ValueError(f"{number} is not between 0 and 10**{PADDED_DIGITS}")
    return f"{number:0{PADDED_DIGITS}d}"


def finite(time_s: float, subject: str) -> str:
    """Return a time as text that parses to the same number.

    Raises:
        StoreError: the time is not finite, so it cannot be sorted.
    """
    if not math.isfinite(time_s):
        raise StoreError(f"{subject} is {time_s}, which is no time; nothing was written")
    return repr(float(time_s))


# Usage: each number in units of 2**-96, in 192 bits, so that sums neither round nor overflow.

_BITS, _BYTES = 96, 24
_MASK = (1 << 8 * _BYTES) - 1
_NUMBERS = tuple(field.name for field in fields(Usage))


def pack_usage(usage: Usage) -> bytes:
    """Return the numbers of a usage in the order of its fields. New fields must be added at the end.

    Raises:
        StoreError: a number is not finite.
    """
    return b"".join(_packed(name, getattr(usage, name)) for name in _NUMBERS)


def unpack_usage(packed: bytes) -> Usage:
    """Return the usage from packed numbers. Missing numbers are 0."""
    values: dict[str, Any] = {}
    for index, field in enumerate(fields(Usage)):
        scaled = int.from_bytes(packed[_BYTES * index : _BYTES * (index + 1)], signed=True)
        values[field.name] = scaled >> _BITS if isinstance(field.default, int) else scaled / 2**_BITS
    return Usage(**values)


def _packed(name: str, value: float) -> bytes:
    if not math.isfinite(value):
        raise StoreError(f"usage has {value} as its {name}, which does not add up; nothing was written")
    scaled = value << _BITS if isinstance(value, int) else int(math.ldexp(value, _BITS))
    return (scaled & _MASK).to_bytes(_BYTES)
