"""Converts memories of a flat namespace to items."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from turnwise.memory.longterm.base import MemoryItem
from turnwise.memory.longterm.memory_types import MemoryType

_TEXTS = ("content", "text", "memory", "data")
"""The fields that may contain the text. The first one that has text is used: a text, or a record of some field."""

_TYPES = {name: kind for kind in MemoryType for name in (str(kind), str(kind).removesuffix("s"))}

_MILLISECONDS = 1e11
"""Times from this number on are in milliseconds: in seconds they would be after the year 5138."""


@dataclass(frozen=True)
class FlatMemory:
    """A memory as its source has it."""

    prefix: str
    """Its namespace, with the segments joined by dots."""
    user_id: str
    key: str
    value: Any
    """A JSON value."""
    created_at: float | None = None
    """In seconds since the epoch, like the other two; None if unknown."""
    updated_at: float | None = None
    expires_at: float | None = None


def item_of(memory: FlatMemory) -> MemoryItem | None:
    """Return the item of a memory; None if it has no text.

    The id depends on namespace and key only. The text is the value itself, or the first of its fields `content`,
    `text`, `memory` and `data`; if that is a record, as langmem stores, the record's text or all of its fields. Times
    in the value are preferred to the times of the store, since LangGraph's SQLite store loses the time of creation.
    """
    text = text_of(memory.value)
    if text is None:
        return None
    fields = memory.value if isinstance(memory.value, dict) else {}
    topic = fields.get("topic")
    created, updated = seconds(fields.get("created_at")), seconds(fields.get("updated_at"))
    if updated is None and None not in (memory.updated_at, memory.created_at):
        updated = memory.updated_at if memory.updated_at != memory.created_at else None
    return MemoryItem(
        id=flat_id(memory.prefix, memory.key),
        text=text,
        type=type_of(memory.value) or MemoryType.GENERAL,
        topic=topic if isinstance(topic, str) and topic.strip() else None,
        created_at=created if created is not None else memory.created_at or 0.0,
        updated_at=updated,
    )


def flat_id(prefix: str, key: str) -> str:
    """Return the id of the item for this namespace and key."""
    encoded = f"{len(prefix)}:{prefix}{key}".encode(errors="surrogatepass")
    return f"flat-{hashlib.blake2b(encoded, digest_size=16).hexdigest()}"


def text_of(value: Any) -> str | None:
    """Return the text of a value; None if it has none."""
    if isinstance(value, dict):
        return next((text for name in _TEXTS if (text := _text_of_field(value.get(name)))), None)
    return _text(value)


def _text_of_field(value: Any) -> str | None:
    if isinstance(value, dict):
        return next((text for name in _TEXTS if (text := _text(value.get(name)))), None) or _text(_listed(value))
    return _text(value)


def _text(value: Any) -> str | None:
    """Return a value that is a text, and not blank; None for any other."""
    return value if isinstance(value, str) and value.strip() else None


def type_of(value: Any) -> MemoryType | None:
    """Return the type in the field `memory_type`, else in `kind`, in singular or plural; None if missing or unknown."""
    fields = value if isinstance(value, dict) else {}
    name = fields.get("memory_type") or fields.get("kind")
    return _TYPES.get(str(name).strip().lower().replace("-", "_").replace(" ", "_"))


def has_unknown_type(value: Any) -> bool:
    """Return whether a value names a type in `memory_type` that is unknown."""
    return isinstance(value, dict) and bool(value.get("memory_type")) and type_of(value) is None


def seconds(time: Any) -> float | None:
    """Return a time in seconds since the epoch; None if it is not a time.

    It may be a number of seconds or milliseconds, or a text in ISO 8601, which is in UTC if it has no offset.
    """
    try:
        if isinstance(time, str):
            try:
                moment = datetime.fromisoformat(time.strip())
            except ValueError:
                time = float(time)
            else:
                return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        if not isinstance(time, int | float) or isinstance(time, bool) or not math.isfinite(time):
            return None
        return float(time) / (1000 if abs(time) >= _MILLISECONDS else 1)
    except (ValueError, OverflowError):
        return None


def _is_blank(value: Any) -> bool:
    """Return whether a value says nothing: null, a blank text, an empty list or record. False and 0 say something."""
    return (
        value is None
        or (isinstance(value, list | dict) and not value)
        or (isinstance(value, str) and not value.strip())
    )


def _listed(fields: dict[str, Any]) -> str:
    """Return the fields of a record as text."""
    filled = {name: value for name, value in fields.items() if not _is_blank(value)}
    return "; ".join(f"{name}: {_plain(value)}" for name, value in filled.items())


def _plain(value: Any) -> str:
    if isinstance(value, list) and not any(isinstance(part, list | dict) for part in value):
        return ", ".join(map(_plain, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
