"""The SQL statements of `SQLItems`; the caller opens the transaction."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple, Self

from turnwise.errors import CorruptRecordError
from turnwise.memory.conversation.corrupt_records import UNDECODABLE, why_unreadable
from turnwise.memory.conversation.ids import digest_of
from turnwise.memory.conversation.spans import Span
from turnwise.memory.longterm.base import MemoryItem, Scope, Source
from turnwise.memory.longterm.items.base import NO_END, TOMBSTONE_S, end_after_deletion, owner_of
from turnwise.memory.longterm.items.records import status_of, texts_in
from turnwise.memory.longterm.retention import Expiry
from turnwise.memory.longterm.types import MemoryType

ROWS = 1 << 32
"""How many row numbers a user has: those from the user's number times this. So a user's rows are one range."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One item as it is kept."""

    row: int
    agent: str | None
    item: MemoryItem
    key: str
    """Names the item with this text, and whose it is; the key of its vector."""
    is_whole: bool = True
    """Whether all of it can be read."""


class Revision(NamedTuple):
    """Which of a user's rows there are: the same revision, the same rows."""

    owner: int = 0
    """The user's number, from 1; 0 for one who has nothing."""
    changes: int = 0
    """How often a row was changed or deleted."""
    rows: int = 0
    """How many rows there ever were."""

    def grew_from(self, other: Revision) -> bool:
        """Return whether rows were added to those of another revision, if anything happened at all."""
        return self[:2] == other[:2] and self.rows >= other.rows


NOTHING = Revision()


@dataclass(frozen=True, kw_only=True)
class Pending:
    """An item whose text has no vectors yet."""

    row: int
    user_id: str
    key: str
    text: str


def key_of(user_id: str, id: str, text: str) -> str:
    """Return the key of a user's item with this text: another text, user or id has another."""
    digest = blake2b(digest_size=20)
    for part in (user_id, id, text):
        encoded = part.encode(errors="surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


_ROW = "row, id, agent, text, type, record"
OWNED = "turnwise_vector_items JOIN turnwise_vector_owners ON owner = row >> 32"
_SELECT = f"SELECT {_ROW} FROM turnwise_vector_items WHERE "  # noqa: S608


class PostgresCursor:
    """A cursor of psycopg that takes SQLite's statements. A null character, which PostgreSQL refuses, is escaped."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Self:
        self._cursor.execute(_for_postgres(statement), [_escaped(value) for value in values])
        return self

    def executemany(self, statement: str, many: Iterable[Sequence[Any]]) -> None:
        if some := [[_escaped(value) for value in values] for values in many]:
            self._cursor.executemany(_for_postgres(statement), some)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return [tuple(map(_unescaped, values)) for values in self._cursor.fetchall()]

    def fetchone(self) -> tuple[Any, ...] | None:
        values = self._cursor.fetchone()
        return None if values is None else tuple(map(_unescaped, values))

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.fetchall())

    @property
    def rowcount(self) -> int:
        return int(self._cursor.rowcount)


@cache
def _for_postgres(statement: str) -> str:
    if statement.startswith(_OR_IGNORE):
        statement = f"INSERT INTO {statement.removeprefix(_OR_IGNORE)} ON CONFLICT DO NOTHING"
    statement = statement.replace("embedded IS NOT ", "embedded IS DISTINCT FROM ")
    return statement.replace("embedded IS ?", "embedded IS NOT DISTINCT FROM ?").replace("?", "%s")


_OR_IGNORE = "INSERT OR IGNORE INTO "
_MARK = "\ufdd0"
"""A character that is none, before what was escaped."""


def _escaped(value: Any) -> Any:
    if isinstance(value, str) and ("\0" in value or _MARK in value):
        return value.replace(_MARK, _MARK * 2).replace("\0", f"{_MARK}0")
    return value


def _unescaped(value: Any) -> Any:
    if isinstance(value, str) and _MARK in value:
        return _ESCAPED.sub(lambda found: "\0" if found[0] == f"{_MARK}0" else _MARK, value)
    return value


_ESCAPED = re.compile(f"{_MARK}0|{_MARK}{_MARK}")


class Rows:
    """Reads and writes through the driver's own cursor: recall is worth the shortcut."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    # Reading

    def load(
        self, user_id: str, known: Revision = NOTHING, most: int | None = None
    ) -> tuple[Revision, Revision, Sequence[Row]]:
        """Return the revision of the user's rows, that which was known if they only grew since, and the rows after.

        Args:
            most: how many rows to return at most; the revision is then the one that has these. All rows are returned if
                rows were changed or deleted since `known`.
        """
        revision = self.revision(user_id)
        if not revision.grew_from(known):
            most = most if known == NOTHING else None
            known = NOTHING
        if revision.rows == known.rows:
            return revision, known, ()
        first, _ = _range(revision.owner)
        # In PostgreSQL, rows that came after the revision was read may be seen by now.
        last = first + revision.rows - 1
        limit = f" LIMIT {most:d}" if most else ""
        values = self._all(f"{_SELECT} row BETWEEN ? AND ? ORDER BY row{limit}", first + known.rows, last)
        if len(values) == most:
            revision = revision._replace(rows=values[-1][0] - first + 1)
        return revision, known, [_decode(user_id, row) for row in values]

    def newest(self, user_id: str, before: int | None, limit: int) -> list[tuple[int, Row]]:
        """Return the user's rows with a place below `before`, the newest first, each with its place."""
        first, last = _range(self.revision(user_id).owner)
        last = last if before is None else min(first + before - 1, last)
        found = self._all(f"{_SELECT} row BETWEEN ? AND ? ORDER BY row DESC LIMIT ?", first, last, limit)
        return [(values[0] - first, _decode(user_id, values)) for values in found]

    def damaged(self, user_id: str) -> list[Row]:
        """Return all rows of a user; of those that cannot be read, what can be read of them."""
        found = self._all(f"{_SELECT} row BETWEEN ? AND ? ORDER BY row", *_range(self.revision(user_id).owner))
        return [_decode_damaged(user_id, values) for values in found]

    def numbered(self, user_id: str, numbers: Collection[int]) -> list[Row]:
        """Return the user's rows of these numbers; of those that cannot be read, what can be read of them."""
        found = [values for number in numbers for values in self._all(f"{_SELECT} row = ?", number)]
        return [_decode_damaged(user_id, values) for values in found]

    def revision(self, user_id: str) -> Revision:
        """Return which of a user's rows there are."""
        found = self._all("SELECT owner, changes, rows FROM turnwise_vector_owners WHERE user_id = ?", user_id)
        return Revision(*found[0]) if found else NOTHING

    def find(self, scope: Scope, ids: Collection[str], *, damaged: bool = False) -> list[Row]:
        """Return the rows of these ids that the scope sees; `damaged`: also what can be read of damaged ones."""
        decode = _decode_damaged if damaged else _decode
        digests = [digest_of(scope.user_id, name) for name in dict.fromkeys(ids)]
        found = [values for digest in digests for values in self._all(f"{_SELECT} digest = ?", digest)]
        return [row for values in found if (row := decode(scope.user_id, values)).agent in (None, scope.agent)]

    def there(self, user_id: str, ids: Collection[str]) -> set[str]:
        """Return those of the ids that the user has or had."""
        found = set()
        for name in ids:
            for table in ("items", "forgotten"):
                select = f"SELECT 1 FROM turnwise_vector_{table} WHERE digest = ?"  # noqa: S608
                if self._all(select, digest_of(user_id, name)):
                    found.add(name)
        return found

    def expired(self, user_id: str, owner: int, expiry: Expiry) -> list[int]:
        """Return the numbers of a user's rows that are expired."""
        which = f"row BETWEEN ? AND ? AND used < ? AND {_of(expiry.types)}"
        select = f"SELECT row, id FROM turnwise_vector_items WHERE {which}"  # noqa: S608
        found = self._all(select, *_range(owner), expiry.before, *expiry.types)
        used = expiry.used.get(user_id, ())
        return [row for row, name in found if name not in used]

    def longest_unused(self, before: float, types: Collection[MemoryType], limit: int) -> dict[str, list[Row]]:
        """Return rows of these types that were last used before a time, the longest unused first, by user."""
        which = f"used < ? AND {_of(types)} ORDER BY used, row LIMIT ?"
        select = f"SELECT user_id, {_ROW} FROM {OWNED} WHERE {which}"  # noqa: S608
        rows: dict[str, list[Row]] = {}
        for user_id, *values in self._all(select, before, *types, limit):
            rows.setdefault(user_id, []).append(_decode_damaged(user_id, values))
        return rows

    def page(self, after: int, limit: int) -> list[tuple[Row, str]]:
        """Return rows of all users in ascending order, each with what is kept of it but for its text."""
        found = self._all(f"{_SELECT} row > ? ORDER BY row LIMIT ?", after, limit)
        return [(_decode_damaged("", values), _said(values[-1])) for values in found]

    # Writing

    def add(self, scope: Scope, items: Sequence[MemoryItem], used: float) -> list[Pending]:
        """Insert those that the user neither has nor had; return them."""
        user_id = scope.user_id
        there = self.there(user_id, [item.id for item in items])
        fresh: dict[str, MemoryItem] = {}
        for item in items:
            if item.id not in there:
                fresh.setdefault(item.id, item)
        if not fresh:
            return []
        insert = "INSERT OR IGNORE INTO turnwise_vector_owners (user_id, changes, rows) VALUES (?, 0, 0)"
        self._cursor.execute(insert, (user_id,))
        update = "UPDATE turnwise_vector_owners SET rows = rows + ? WHERE user_id = ? RETURNING owner, rows"
        ((owner, rows),) = self._all(update, len(fresh), user_id)
        first = owner * ROWS + rows - len(fresh)
        return [
            self._put(number, user_id, owner_of(scope, item.type), item, used)
            for number, item in enumerate(fresh.values(), first)
        ]

    def change(self, user_id: str, row: Row, agent: str | None, item: MemoryItem, used: float) -> Pending:
        """Put an item, now of this agent, in the place of one of the same id; its vector stays if its text does."""
        select = "SELECT used, embedded FROM turnwise_vector_items WHERE row = ?"
        ((before, embedded),) = self._all(select, row.row)
        self._drop([row])
        self._bump(user_id)
        pending = self._put(row.row, user_id, agent, item, max(used, before))
        if pending.key == row.key:
            update = "UPDATE turnwise_vector_items SET embedded = ? WHERE row = ?"
            self._cursor.execute(update, (embedded, row.row))
        return pending

    def touch(self, user_id: str, ids: Collection[str], at: float) -> None:
        """Note that the user's items of these ids were used at this time, unless they were later."""
        update = "UPDATE turnwise_vector_items SET used = ? WHERE digest = ? AND used < ?"
        # Sorted, so that processes never wait for each other in a circle.
        self._cursor.executemany(update, sorted((at, digest_of(user_id, name), at) for name in ids))

    def forget(self, user_id: str, rows: Sequence[Row], missing: Collection[str] = ()) -> None:
        """Delete rows of a user, and record the ids `missing`, which the user does not have, as deleted.

        An item that a deleted row superseded becomes valid again, or is superseded by the deleted row's successor. A
        user without any row left is unknown: the number goes too, and with it the user's id.
        """
        ends = dict.fromkeys(missing, NO_END)
        ends |= {row.item.id: (row.item.superseded_at, row.item.superseded_by) for row in rows}
        now = time.time()
        insert = "INSERT OR IGNORE INTO turnwise_vector_forgotten (digest, at) VALUES (?, ?)"
        self._cursor.executemany(insert, [(digest_of(user_id, name), now) for name in ends])
        self._cursor.execute("DELETE FROM turnwise_vector_forgotten WHERE at < ?", (now - TOMBSTONE_S,))
        self._drop(rows)
        first, last = _range(self.revision(user_id).owner)
        select = f"{_SELECT} superseded_by = ? AND row BETWEEN ? AND ?"
        found = [_decode_damaged(user_id, values) for name in ends for values in self._all(select, name, first, last)]
        left = [row for row in found if row.is_whole]
        for row in left:
            at, by = end_after_deletion(ends, row.item.id, row.item.superseded_by or "")
            record = _record(replace(row.item, superseded_at=at, superseded_by=by))
            update = "UPDATE turnwise_vector_items SET record = ?, superseded_by = ? WHERE row = ?"
            self._cursor.execute(update, (record, by, row.row))
        if rows or left:
            self._bump(user_id)
        if not self._all("SELECT 1 FROM turnwise_vector_items WHERE row BETWEEN ? AND ? LIMIT 1", first, last):
            self._cursor.execute("DELETE FROM turnwise_vector_owners WHERE user_id = ?", (user_id,))

    def _put(self, row: int, user_id: str, agent: str | None, item: MemoryItem, used: float) -> Pending:
        digest = digest_of(user_id, item.id)
        columns = f"{_ROW}, digest, superseded_by, used"
        self._cursor.execute(
            f"INSERT INTO turnwise_vector_items ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            (row, item.id, agent, item.text, item.type.value, _record(item), digest, item.superseded_by, used),
        )
        key = key_of(user_id, item.id, item.text)
        self._cursor.execute("DELETE FROM turnwise_vector_dropped WHERE key = ?", (key,))
        return Pending(row=row, user_id=user_id, key=key, text=item.text)

    def _drop(self, rows: Sequence[Row]) -> None:
        numbers = [(row.row,) for row in rows]
        self._cursor.executemany("DELETE FROM turnwise_vector_items WHERE row = ?", numbers)
        keys = [(row.key,) for row in rows]
        self._cursor.executemany("INSERT OR IGNORE INTO turnwise_vector_dropped VALUES (?)", keys)

    def _bump(self, user_id: str) -> None:
        self._cursor.execute("UPDATE turnwise_vector_owners SET changes = changes + 1 WHERE user_id = ?", (user_id,))

    def _all(self, statement: str, *values: Any) -> list[Any]:
        self._cursor.execute(statement, values)
        found: list[Any] = self._cursor.fetchall()
        return found


def _range(owner: int) -> tuple[int, int]:
    return owner * ROWS, (owner + 1) * ROWS - 1


def _of(types: Collection[MemoryType]) -> str:
    return f"type IN ({', '.join('?' * len(types))})"


def _record(item: MemoryItem) -> str:
    source = item.source
    record: dict[str, Any] = {
        "topic": item.topic,
        "session_id": source.session_id,
        "turn_index": source.turn_index,
        "spans": source.spans,
        "created_at": item.created_at,
        "updated_at": item.updated_at,
        "superseded_at": item.superseded_at,
        "superseded_by": item.superseded_by,
    }
    more = {"name": item.name, "aliases": item.aliases, "expires_at": item.expires_at}
    record |= {name: value for name, value in more.items() if value not in (None, ())}
    if item.status != "active":
        record["status"] = item.status
    if item.pinned:
        record["pinned"] = True
    return json.dumps(record)


def _decode(user_id: str, values: Sequence[Any]) -> Row:
    number, name, agent, text, kind, record = values
    try:
        if UNDECODABLE in values:
            raise TypeError("not UTF-8")
        parts = json.loads(record)
        source = Source(
            session_id=parts.pop("session_id"),
            turn_index=parts.pop("turn_index"),
            spans=tuple(Span(*span) for span in parts.pop("spans")),
        )
        parts["aliases"] = tuple(texts_in(parts.get("aliases", [])))
        parts["status"] = status_of(parts.get("status"))
        if not isinstance(parts.get("pinned", False), bool):
            raise TypeError("whether it is pinned is not known")
        item = MemoryItem(id=name, text=text, type=MemoryType(kind), source=source, **parts)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptRecordError(f"memory {name!r}", why_unreadable(error)) from None
    return Row(row=number, agent=agent, item=item, key=key_of(user_id, name, text))


def _decode_damaged(user_id: str, values: Sequence[Any]) -> Row:
    """Return a row; of one that cannot be read, what can be read of it: texts that cannot are empty, or unknown."""
    number, name, agent, text, kind, record = values
    try:
        return _decode(user_id, values)
    except CorruptRecordError:
        name, text, agent = _said(name), _said(text), _said(agent) or None
    try:
        row = _decode(user_id, (number, name, agent, text, kind, record))
    except CorruptRecordError:
        row = Row(row=number, agent=agent, item=MemoryItem(id=name, text=text), key=key_of(user_id, name, text))
    return replace(row, is_whole=False)


def _said(text: Any) -> str:
    return text if isinstance(text, str) else ""
