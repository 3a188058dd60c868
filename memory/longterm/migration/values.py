"""What a flat namespace keeps of a memory, and what of it becomes an item."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from turnwise.memory.longterm.base import MemoryItem
from turnwise.memory.longterm.types import MemoryType

_TEXTS = ("content", "text", "memory", "data")
"""The fields that may hold what is remembered, the first that does so wins."""

_TYPES = {name: kind for kind in MemoryType for name in (str(kind), str(kind).removesuffix("s"))}

_MILLISECONDS = 1e11
"""A time from here on is in milliseconds: in seconds it would be in the year 5138."""


@dataclass(frozen=True, slots=True)
class FlatMemory:
    """A memory as its store has it."""

    prefix: str
    """Its namespace, the segments joined by dots."""
    user_id: str
    key: str
    value: Any
    """Of JSON."""
    created_at: float | None = None
    updated_at: float | None = None
    expires_at: float | None = None


def item_of(memory: FlatMemory) -> MemoryItem | None:
    """Return the item that a memory becomes; None if it has no text.

    Its id is made of namespace and key, so it is the same each time. Its text is the value itself, or the first of
    `content`, `text`, `memory` and `data` in it; where that is a record, as langmem keeps, the record's text, or all of
    its fields. Times that stand in the value are preferred to the store's: SQLite's forgets when one was created.
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
    """Return the id of what stands under a key of a namespace."""
    named = f"{len(prefix)}:{prefix}{key}".encode(errors="surrogatepass")
    return f"flat-{hashlib.blake2b(named, digest_size=16).hexdigest()}"


def text_of(value: Any) -> str | None:
    """Return what a value says; None if that is nothing."""
    if isinstance(value, dict):
        value = next((value[name] for name in _TEXTS if not _is_blank(value.get(name))), None)
    if isinstance(value, dict):
        value = next((value[name] for name in _TEXTS if isinstance(value.get(name), str)), None) or _listed(value)
    return value if isinstance(value, str) and value.strip() else None


def type_of(value: Any) -> MemoryType | None:
    """Return the type that a value names as `memory_type`, else as `kind`, in singular or plural; None if none."""
    fields = value if isinstance(value, dict) else {}
    name = fields.get("memory_type") or fields.get("kind")
    return _TYPES.get(str(name).strip().lower().replace("-", "_").replace(" ", "_"))


def has_unknown_type(value: Any) -> bool:
    """Return whether a value says of what type it is, and that is none of ours."""
    return isinstance(value, dict) and bool(value.get("memory_type")) and type_of(value) is None


def seconds(time: Any) -> float | None:
    """Return a time in seconds since the epoch; None if it cannot be told.

    It may be a number of seconds or milliseconds, or of ISO 8601, which is UTC unless it says otherwise.
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
    return not (value.strip() if isinstance(value, str) else value)


def _listed(fields: dict[str, Any]) -> str:
    """Return a record's fields as text."""
    said = {name: value for name, value in fields.items() if not _is_blank(value)}
    return "; ".join(f"{name}: {_plain(value)}" for name, value in said.items())


def _plain(value: Any) -> str:
    if isinstance(value, list) and not any(isinstance(part, list | dict) for part in value):
        return ", ".join(map(_plain, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
