"""Converts items to the plain fields that databases store, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast, get_args

from turnwise.memory.conversation.codec import to_json
from turnwise.memory.conversation.spans import Span
from turnwise.memory.longterm.base import MemoryItem, Source, Status
from turnwise.memory.longterm.types import MemoryType


def fields_of(item: MemoryItem) -> dict[str, Any]:
    """Return all stored fields of an item except its text; None for what it lacks."""
    source = item.source
    return {
        "id": item.id,
        "type": str(item.type),
        "session_id": source.session_id,
        "turn_index": None if source.turn_index is None else int(source.turn_index),
        "spans": to_json(source.spans or None),
        "created_at": float(item.created_at),
        "updated_at": _seconds(item.updated_at),
        "superseded_at": _seconds(item.superseded_at),
        "superseded_by": item.superseded_by,
        "pinned": item.pinned or None,
        "uses": item.uses or None,
        "topic": item.topic,
        "name": item.name,
        "aliases": to_json(item.aliases or None),
        "expires_at": _seconds(item.expires_at),
        "status": None if item.status == "active" else item.status,
    }


def item_of(fields: Mapping[str, Any], text: str) -> MemoryItem:
    """Return the item with these stored fields, of which numbers may be text. Optional fields may be missing.

    Raises:
        ValueError, TypeError, KeyError: the fields are not those of an item.
    """
    turn = fields.get("turn_index")
    spans = json.loads(fields.get("spans") or "[]")
    return MemoryItem(
        id=fields["id"],
        text=text,
        type=MemoryType(fields["type"]),
        topic=fields.get("topic"),
        name=fields.get("name"),
        aliases=tuple(texts_in(json.loads(fields.get("aliases") or "[]"))),
        source=Source(
            session_id=fields.get("session_id"),
            turn_index=None if turn is None else int(turn),
            spans=tuple(Span(str(log), int(start), int(stop)) for log, start, stop in spans),
        ),
        created_at=float(fields["created_at"]),
        updated_at=_seconds(fields.get("updated_at")),
        superseded_at=_seconds(fields.get("superseded_at")),
        superseded_by=fields.get("superseded_by"),
        expires_at=_seconds(fields.get("expires_at")),
        status=status_of(fields.get("status")),
        pinned=bool(fields.get("pinned")),
        uses=int(fields.get("uses") or 0),
    )


def texts_in(value: object) -> list[str]:
    """Return a value that was read if it is a list of texts; raise TypeError otherwise."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise TypeError("expected a list of texts")
    return value


def status_of(value: object) -> Status:
    """Return a status that was read; None means "active". Raise ValueError for another value."""
    if value is None:
        return "active"
    if value not in get_args(Status):
        raise ValueError(f"{value!r} is not a status")
    return cast(Status, value)


def _seconds(time: float | str | None) -> float | None:
    return None if time is None else float(time)
