"""The codec of what is stored: records, events and texts as JSON. Stores, archives and encryption use it.

A store adds only what its layout needs: columns, positions in keys, or encryption.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pydantic_core

from turnwise.errors import CorruptRecordError
from turnwise.memory.conversation.events import AnyEvent, EventRow, decode_event
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.values.collection_pauses import collection_paused
from turnwise.memory.values.corrupt_records import UnfitError, why_unreadable
from turnwise.memory.values.records import Stored, record_of

Value = TypeVar("Value")

STEP = 1_000
"""How many events are decoded while garbage collection is paused."""


def encode_json(value: Any) -> str:
    """Return a value as JSON text."""
    return pydantic_core.to_json(value).decode()


def to_json(value: Any) -> str | None:
    """Return a value as JSON text, None as None. Also used for free text, since PostgreSQL text cannot hold NUL."""
    return None if value is None else encode_json(value)


def decode_text(text: str) -> str:
    """Return the text that `to_json` encoded. Call it in `decoded`: it raises TypeError or ValueError otherwise."""
    value = pydantic_core.from_json(text)
    if not isinstance(value, str):
        raise UnfitError(f"a {type(value).__name__} is no text")
    return value


def decode_record(cls: type[Stored], key: str, *texts: bytes | str | None, **stored_elsewhere: Any) -> Stored:
    """Return the record from the texts that `record_text` wrote, and from the fields `stored_elsewhere`.

    Raises:
        CorruptRecordError: a text is damaged; names the key.
    """
    return decoded(key, lambda: record_of(cls, joined(*map(_object, texts), stored_elsewhere)))


def joined(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record that are stored in several places.

    Raises:
        UnfitError: two of them have the same field.
    """
    fields = {name: value for part in parts for name, value in part.items()}
    if len(fields) < sum(map(len, parts)):
        raise UnfitError("it has a field that is stored elsewhere")
    return fields


def decoded_events(
    session: SessionKey, rows: Sequence[Sequence[Any]], name: Callable[[int], str] | None = None
) -> list[AnyEvent]:
    """Return the events of a session from their rows, in order.

    Args:
        rows: each has the fields of an `EventRow` in their order, with or without `blocks`.
        name: returns the name of the row at an index, for errors; "event session:number" if omitted.

    Raises:
        CorruptRecordError: a row is damaged; names the first one.
    """
    session_id, user_id = session
    events: list[AnyEvent] = []
    for first in range(0, len(rows), STEP):
        step = rows[first : first + STEP]
        with collection_paused(len(step)):
            for row in step:
                # To read these by name, or each by `decoded`, would take as long as to decode the body.
                seq, time, turn_index, run_id, key, kind, body = row[:_COLUMNS]
                columns = {
                    "session_id": session_id,
                    "user_id": user_id,
                    "seq": seq,
                    "at": time,
                    "turn_index": turn_index,
                    "run_id": run_id,
                    "key": key,
                }
                try:
                    events.append(decode_event(kind, body, columns, row[_COLUMNS] if len(row) > _COLUMNS else None))
                except UNREADABLE as error:
                    record = name(len(events)) if name else f"event {session_id}:{seq}"
                    raise CorruptRecordError(record, why_unreadable(error)) from None
    return events


_COLUMNS = EventRow._fields.index("blocks")
"""How many columns stores have for an event."""


def decoded(key: str, decode: Callable[[], Value]) -> Value:
    """Return what `decode` returns.

    Raises:
        CorruptRecordError: `decode` raised an error about a stored value. Names the key and does not quote the value.
    """
    try:
        return decode()
    except UNREADABLE as error:
        raise CorruptRecordError(key, why_unreadable(error)) from None


UNREADABLE = (ValueError, TypeError, KeyError, RecursionError)
"""What is raised about a stored value that is not as it was written."""


def _object(text: bytes | str | None) -> dict[str, Any]:
    if text is None:
        raise UnfitError("it is missing")
    value = pydantic_core.from_json(text)
    if not isinstance(value, dict):
        raise UnfitError(f"a {type(value).__name__} is no JSON object")
    return value
