"""The codec of what is stored: records, events and texts as JSON. Stores, archives and encryption use it.

A store adds only what its layout needs: columns, positions in keys, or encryption.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pydantic_core

from turnwise.errors import CorruptRecordError
from turnwise.memory.conversation.events import AnyEvent, decode_event
from turnwise.memory.values.corrupt_records import UnfitError, why_unreadable
from turnwise.memory.values.records import Stored, record_of

Value = TypeVar("Value")


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


def decoded_event(kind: str, body: str, columns: Mapping[str, Any]) -> AnyEvent:
    """Return the event with this body, and with the fields that are stored beside it: see `decode_event`.

    Raises:
        CorruptRecordError: the body is damaged; names the event.
    """
    try:  # not by `decoded`: sessions have more events than other records
        return decode_event(kind, body, columns)
    except _UNREADABLE as error:
        raise CorruptRecordError(f"event {columns['session_id']}:{columns['seq']}", why_unreadable(error)) from None


def decoded(key: str, decode: Callable[[], Value]) -> Value:
    """Return what `decode` returns.

    Raises:
        CorruptRecordError: `decode` raised an error about a stored value. Names the key and does not quote the value.
    """
    try:
        return decode()
    except _UNREADABLE as error:
        raise CorruptRecordError(key, why_unreadable(error)) from None


_UNREADABLE = (ValueError, TypeError, KeyError, RecursionError)


def _object(text: bytes | str | None) -> dict[str, Any]:
    if text is None:
        raise UnfitError("it is missing")
    value = pydantic_core.from_json(text)
    if not isinstance(value, dict):
        raise UnfitError(f"a {type(value).__name__} is no JSON object")
    return value
