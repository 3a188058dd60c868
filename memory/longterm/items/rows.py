"""An item as a row of columns, which `SQLItems` and `RedisItems` store, and the rows that indexes are made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, get_args

from turnwise.errors import CorruptRecordError
from turnwise.memory.conversation.spans import Span
from turnwise.memory.longterm.base import MemoryItem, Source, Status
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.values.corrupt_records import why_unreadable

ROWS = 1 << 32
"""How many row numbers a user has: those from the user's number times this. So a user's rows are one range."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One item as it is stored."""

    row: int
    agent: str | None
    item: MemoryItem
    key: str
    """Names the item with this text, and whose it is; the key of its vector."""


class Revision(NamedTuple):
    """Which of a user's rows there are: the same revision, the same rows."""

    owner: int = 0
    """The user's number, from 1; 0 for one who has nothing."""
    changes: int = 0
    """How often a row was changed or deleted."""
    rows: int = 0
    """How many rows were ever added."""

    def grew_from(self, other: Revision) -> bool:
        """Return whether the only change since another revision, if any, is that rows were added."""
        return self[:2] == other[:2] and self.rows >= other.rows


NOTHING = Revision()


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A user's rows as of a revision."""

    revision: Revision
    base: Revision
    """The caller's revision, if rows were only added to it; otherwise `NOTHING`."""
    more: Sequence[Row]
    """The user's rows that came after `base`, in ascending order."""
    expired: Sequence[int] = ()
    """The numbers of expired rows."""
    is_all: bool = True
    """Whether there are no more rows after these."""


@dataclass(frozen=True, kw_only=True)
class Pending:
    """An item whose text has no vectors yet."""

    user_id: str
    id: str
    text: str

    @property
    def key(self) -> str:
        """The key of its vector: see `key_of`."""
        return key_of(self.user_id, self.id, self.text)


def key_of(user_id: str, id: str, text: str) -> str:
    """Return the key of a user's item with this text. Another text, user or id has another key."""
    digest = blake2b(digest_size=20)
    for part in (user_id, id, text):
        encoded = part.encode(errors="surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


ITEM = (
    "id, agent, type, topic, name, aliases, session_id, turn_index, spans, created_at, updated_at, superseded_at, "
    "superseded_by, expires_at, status, pinned, uses, text"
)
"""The columns that `item_of` and `values_of` have, in their order."""

COLUMNS = tuple(ITEM.split(", "))

AGENT = COLUMNS.index("agent")


def values_of(item: MemoryItem, agent: str | None) -> tuple[Any, ...]:
    """Return the values of an item's columns. Lists are JSON, and NULL if they are empty."""
    source, turn = item.source, item.source.turn_index
    return (
        item.id,
        agent,
        item.type.value,
        item.topic,
        item.name,
        json.dumps(item.aliases) if item.aliases else None,
        source.session_id,
        None if turn is None else int(turn),
        json.dumps(source.spans) if source.spans else None,
        float(item.created_at),
        _seconds(item.updated_at),
        _seconds(item.superseded_at),
        item.superseded_by,
        _seconds(item.expires_at),
        item.status,
        bool(item.pinned),
        item.uses,
        item.text,
    )


def item_of(user_id: str, values: Sequence[Any]) -> MemoryItem:
    """Return the item of a row.

    Raises:
        CorruptRecordError: the row cannot be read; the error names it.
    """
    try:
        return decoded(values)
    except UNREADABLE as error:
        raise CorruptRecordError(f"item {values[0]!r} of user {user_id!r}", why_unreadable(error)) from None


UNREADABLE = (ValueError, TypeError, KeyError, RecursionError)


def decoded(values: Sequence[Any]) -> MemoryItem:
    """Return the item of a row, whose numbers may be text; raise one of `UNREADABLE` if it is damaged."""
    item_id, _, kind, topic, name, aliases, session_id, turn_index, spans, created_at = values[:10]
    updated_at, superseded_at, superseded_by, expires_at, status, pinned, uses, text = values[10:]
    for value in (item_id, text, topic or "", name or "", session_id or "", superseded_by or ""):
        if value.__class__ is not str:
            raise TypeError("a value is not text")
    return MemoryItem(
        id=item_id,
        text=text,
        type=_TYPES[kind],
        topic=topic,
        name=name,
        aliases=tuple(_texts(json.loads(aliases))) if aliases is not None else (),
        source=Source(
            session_id=session_id,
            turn_index=turn_index if turn_index is None else int(turn_index),
            spans=_spans(spans) if spans is not None else (),
        ),
        created_at=float(created_at),
        updated_at=_seconds(updated_at),
        superseded_at=_seconds(superseded_at),
        superseded_by=superseded_by,
        expires_at=_seconds(expires_at),
        status=_STATUSES[status],
        pinned=bool(int(pinned)),
        uses=int(uses),
    )


_TYPES = {kind.value: kind for kind in MemoryType}
_STATUSES: dict[str, Status] = {status: status for status in get_args(Status)}


def _texts(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise TypeError("expected a list of texts")
    return value


def _spans(text: str) -> tuple[Span, ...]:
    return tuple([Span(str(log), int(start), int(stop)) for log, start, stop in json.loads(text)])


def _seconds(time: float | str | None) -> float | None:
    return None if time is None else float(time)
