"""`SQLFacts`: facts in an SQL database, which may be a session store's database."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Unpack

import sqlalchemy as sa

from turnwise.errors import CorruptRecordError
from turnwise.memory.conversation.codec import to_json
from turnwise.memory.conversation.corrupt_records import why_unreadable
from turnwise.memory.conversation.ids import digest_of
from turnwise.memory.conversation.required_arguments import needs
from turnwise.memory.longterm.base import ItemChanges, MemoryItem, Scope
from turnwise.memory.longterm.items.base import (
    ALL,
    NO_END,
    TOMBSTONE_S,
    Fact,
    FactFilter,
    changed,
    check_change,
    check_successor,
    check_turn,
    checked_item,
    end_after_deletion,
    owner_after,
    owner_of,
    parse_position,
)
from turnwise.memory.longterm.items.records import changeable, fields_of, item_of
from turnwise.memory.longterm.items.sql_schema import SCHEMA, deleted, facts
from turnwise.memory.longterm.types import MemoryType
from turnwise.memory.stores.base import Page, check_limit, cursor_of, parse_cursor
from turnwise.memory.stores.sql.database import insert_into
from turnwise.memory.stores.sql.secure_delete import SecureDeleteDatabase

_AT_ONCE = 500
"""The most rows that a statement names, since databases limit the values of a statement."""


@needs(url="pass where it is, such as SQLFacts('sqlite:///facts.db')")
class SQLFacts(SecureDeleteDatabase):
    """Stores facts in tables of their own, through SQLAlchemy Core. A pickle has the settings, with the URL's password.

    Writers of one user's facts wait for each other, so a put and a deletion at the same time do not undo each other.
    Deleted data in a SQLite file is overwritten, and the log is emptied unless another process is reading. PostgreSQL
    overwrites it later, when it vacuums.

    Args:
        url: `sqlite:///path/to/file.db` or `postgresql://user:password@host/name`; may be the URL of a session store.
        lock_timeout_s: how long to wait for another process's transaction on SQLite before a StoreError, in seconds.
        connections: the most connections to PostgreSQL at once.

    Raises:
        StoreURLError: the URL is not of a database that can be used here.
    """

    schema = SCHEMA

    async def put(self, scope: Scope, items: Sequence[MemoryItem], *, at: float | None = None) -> list[str]:
        items = [checked_item(scope, item) for item in items]
        used = time.time() if at is None else at

        def put(connection: sa.Connection) -> list[str]:
            self._lock_user(connection, scope.user_id)
            return self._add(connection, scope, items, used)

        return await self._write(put) if items else await self._read(lambda _: [])

    async def get(self, scope: Scope, ids: Collection[str]) -> dict[str, MemoryItem]:
        def get(connection: sa.Connection) -> dict[str, MemoryItem]:
            rows = _rows(connection, sa.select(facts).where(*_seen(scope)), scope.user_id, ids)
            found = {row.id: _read(row) for row in rows}
            return {name: found[name] for name in ids if name in found}

        return await self._read(get)

    async def query(
        self, scope: Scope, which: FactFilter = ALL, *, cursor: str | None = None, limit: int = 100
    ) -> Page[MemoryItem]:
        statement = self._page(scope, which, cursor, limit)
        rows = await self._read(lambda connection: connection.execute(statement).all())
        page = rows[:limit]
        more = cursor_of(page[-1].created_at, page[-1].key) if len(rows) > limit else None
        return Page(tuple(map(_read, page)), more)

    async def count(self, scope: Scope, which: FactFilter = ALL) -> int:
        statement = sa.select(sa.func.count()).select_from(facts).where(*_seen(scope), *_filters(which))
        return await self._read(lambda connection: int(connection.execute(statement).scalar_one()))

    async def update(
        self,
        scope: Scope,
        id: str,
        text: str | None = None,
        *,
        at: float,
        type: MemoryType | None = None,
        **changes: Unpack[ItemChanges],
    ) -> bool:
        kind, more = check_change(scope, id, text, type, at=at, changes=changes)

        def update(connection: sa.Connection) -> bool:
            row = self._one(connection, scope, id)
            if row is None or row.superseded_at is not None:
                return False
            item = changed(_read(row), text, kind, at, more)
            values = {"text": to_json(item.text), "updated_at": at} | _columns(changeable(item))
            if kind is not None:
                values.update(type=str(kind), agent=owner_after(scope, row.agent, row.type, kind))
            connection.execute(sa.update(facts).where(facts.c.key == row.key).values(used=max(row.used, at), **values))
            return True

        return await self._write(update)

    async def pin(self, scope: Scope, id: str, pinned: bool) -> bool:
        def pin(connection: sa.Connection) -> bool:
            row = self._one(connection, scope, id)
            if row is None or row.superseded_at is not None:
                return False
            connection.execute(sa.update(facts).where(facts.c.key == row.key).values(pinned=pinned))
            return True

        return await self._write(pin)

    async def supersede(self, scope: Scope, id: str, item: MemoryItem) -> bool:
        item = check_successor(scope, id, item)
        changes = {"superseded_at": item.created_at, "superseded_by": item.id}

        def supersede(connection: sa.Connection) -> bool:
            row = self._one(connection, scope, id)
            gone = sa.select(deleted).where(deleted.c.digest == digest_of(scope.user_id, item.id))
            if row is None or connection.execute(gone).first():
                return False
            if row.superseded_at is not None:
                return bool(row.superseded_by == item.id)
            self._add(connection, scope, [item], time.time())
            used = max(row.used, item.created_at)
            connection.execute(sa.update(facts).where(facts.c.key == row.key).values(used=used, **changes))
            return True

        return await self._write(supersede)

    async def delete(self, scope: Scope, ids: Collection[str]) -> list[str]:
        ids = list(dict.fromkeys(ids))

        def delete(connection: sa.Connection) -> list[str]:
            self._lock_user(connection, scope.user_id)
            rows = {row.id: row for row in _rows(connection, _UNREAD, scope.user_id, ids)}
            seen = [rows[name] for name in ids if name in rows and rows[name].agent in (None, scope.agent)]
            self._forget(connection, scope.user_id, seen, [name for name in ids if name not in rows])
            return [row.id for row in seen]

        (gone,) = await self._erase(delete)
        return gone

    async def purge(self, user_id: str, *, session_id: str | None = None, turn_index: int | None = None) -> list[str]:
        check_turn(session_id, turn_index)
        select = _UNREAD.where(facts.c.user_id == user_id)
        select = select.where(*_filters(FactFilter(session_id=session_id, turn_index=turn_index, superseded=True)))

        def purge(connection: sa.Connection) -> list[str]:
            self._lock_user(connection, user_id)
            rows = connection.execute(select.order_by(facts.c.key)).all()
            self._forget(connection, user_id, rows)
            return [row.id for row in rows]

        (gone,) = await self._erase(purge)
        return gone

    async def touch(self, user_id: str, ids: Collection[str], at: float, *, counts: bool = False) -> None:
        values: dict[str, Any] = {"used": at}
        if counts:
            values["uses"] = sa.func.coalesce(facts.c.uses, 0) + 1
        digests = [digest_of(user_id, name) for name in ids]

        def touch(connection: sa.Connection) -> None:
            self._lock_user(connection, user_id)
            for chunk in _chunks(digests):
                unless_later = facts.c.digest.in_(chunk), facts.c.used < at
                connection.execute(sa.update(facts).where(*unless_later).values(values))

        await self._write(touch)

    async def sweep(self, before: float, *, types: Collection[MemoryType] | None = None, limit: int = 1000) -> int:
        unused = [facts.c.used < before, *_filters(FactFilter(types=types, superseded=True))]
        select = _UNREAD.where(*unused).order_by(facts.c.used, facts.c.key).limit(check_limit(limit))

        def sweep(connection: sa.Connection) -> int:
            self._lock_user(connection, "")  # no user has this id: it makes sweeps wait for each other
            found = connection.execute(select).all()
            for user in {row.user_id for row in found}:
                self._lock_user(connection, user)
            gone: dict[str, list[sa.Row[Any]]] = {}
            for keys in _chunks([row.key for row in found]):
                # Selected again, since some may have been used before their users were locked.
                for row in connection.execute(_UNREAD.where(facts.c.key.in_(keys), *unused)):
                    gone.setdefault(row.user_id, []).append(row)
            for user, rows in gone.items():
                self._forget(connection, user, rows)
            return sum(map(len, gone.values()))

        (swept,) = await self._erase(sweep)
        return swept

    async def scan(self, user_id: str | None = None, *, cursor: str | None = None, limit: int = 1000) -> Page[Fact]:
        statement = sa.select(facts).where(facts.c.key > parse_position(cursor))
        if user_id is not None:
            statement = statement.where(facts.c.user_id == user_id)
        statement = statement.order_by(facts.c.key).limit(check_limit(limit) + 1)
        rows = await self._read(lambda connection: connection.execute(statement).all())
        page = tuple(Fact(row.user_id, row.agent, _read(row)) for row in rows[:limit])
        return Page(page, str(rows[limit - 1].key) if len(rows) > limit else None)

    @staticmethod
    def _page(scope: Scope, which: FactFilter, cursor: str | None, limit: int) -> sa.Select[Any]:
        """Select the newest rows after the cursor, one more than the limit."""
        time, key = facts.c.created_at, facts.c.key
        select = sa.select(facts).where(*_seen(scope), *_filters(which))
        if cursor is not None:
            before, last = parse_cursor(cursor)
            select = select.where((time < before) | ((time == before) & (key < last)))
        return select.order_by(time.desc(), key.desc()).limit(check_limit(limit) + 1)

    # Within a transaction

    def _one(self, connection: sa.Connection, scope: Scope, id: str) -> sa.Row[Any] | None:
        """Lock the user until the transaction ends; return the row of an item that the scope sees."""
        self._lock_user(connection, scope.user_id)
        return next(_rows(connection, sa.select(facts).where(*_seen(scope)), scope.user_id, [id]), None)

    @staticmethod
    def _add(connection: sa.Connection, scope: Scope, items: Sequence[MemoryItem], used: float) -> list[str]:
        """Insert the new items; return their ids. The caller has locked the user."""
        new: dict[bytes, MemoryItem] = {}
        for item in items:
            new.setdefault(digest_of(scope.user_id, item.id), item)
        for known in _chunks([*new]):
            for table in (facts, deleted):
                for digest in connection.scalars(sa.select(table.c.digest).where(table.c.digest.in_(known))):
                    new.pop(digest, None)
        rows = [_row(scope, digest, item) | {"used": used} for digest, item in new.items()]
        if rows:
            connection.execute(sa.insert(facts), rows)
        return [row["id"] for row in rows]

    def _forget(
        self, connection: sa.Connection, user_id: str, rows: Sequence[Any], missing: Sequence[str] = ()
    ) -> None:
        """Delete these rows of a user, and record the deletion of missing ids too. The caller has locked the user."""
        for chunk in _chunks(rows):
            connection.execute(sa.delete(facts).where(facts.c.key.in_([row.key for row in chunk])))
        insert = insert_into(deleted, connection.dialect).on_conflict_do_nothing()
        if digests := [*(row.digest for row in rows), *(digest_of(user_id, name) for name in missing)]:
            now = time.time()
            connection.execute(insert, [{"digest": digest, "at": now} for digest in digests])
            connection.execute(sa.delete(deleted).where(deleted.c.at < now - TOMBSTONE_S))
        ends = dict.fromkeys(missing, NO_END) | {row.id: (row.superseded_at, row.superseded_by) for row in rows}
        for chunk in _chunks([*ends]):
            left = _UNREAD.where(facts.c.user_id == user_id, facts.c.superseded_by.in_(chunk))
            for row in connection.execute(left).all():
                at, by = end_after_deletion(ends, row.id, row.superseded_by)
                changes = {"superseded_at": at, "superseded_by": by}
                connection.execute(sa.update(facts).where(facts.c.key == row.key).values(changes))


_UNREAD = sa.select(
    *(facts.c[name] for name in ("key", "digest", "user_id", "agent", "id", "superseded_at", "superseded_by"))
)
"""Selects only the columns that a deletion needs, so that unreadable items can be deleted."""


def _chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for first in range(0, len(values), _AT_ONCE):
        yield values[first : first + _AT_ONCE]


def _rows(
    connection: sa.Connection, select: sa.Select[Any], user_id: str, ids: Collection[str]
) -> Iterator[sa.Row[Any]]:
    """Yield the rows of a user's items with these ids."""
    for digests in _chunks([digest_of(user_id, name) for name in ids]):
        # All at once: a traceback would otherwise keep the cursor, and so the transaction, open.
        yield from connection.execute(select.where(facts.c.digest.in_(digests))).all()


def _seen(scope: Scope) -> list[sa.ColumnElement[bool]]:
    agent = facts.c.agent
    mine = agent.is_(None) if scope.agent is None else agent.is_(None) | (agent == scope.agent)
    return [facts.c.user_id == scope.user_id, mine]


def _filters(which: FactFilter) -> list[sa.ColumnElement[bool]]:
    columns = facts.c
    found: list[sa.ColumnElement[bool]] = []
    if which.types is not None:
        found.append(columns.type.in_([str(kind) for kind in which.types]))
    if which.session_id is not None:
        found.append(columns.session_id == which.session_id)
    if which.turn_index is not None:
        found.append(columns.turn_index == which.turn_index)
    if which.used_since is not None:
        found.append(columns.used >= which.used_since)
    if which.as_of is not None:
        found.append(columns.created_at <= which.as_of)
    if not which.superseded:
        holds = columns.superseded_at.is_(None)
        found.append(holds if which.as_of is None else holds | (columns.superseded_at > which.as_of))
    if which.live_at is not None:
        found.append(columns.expires_at.is_(None) | (columns.expires_at > which.live_at))
        if which.as_of is None:
            found.append(columns.status.is_(None))
    return found


def _row(scope: Scope, digest: bytes, item: MemoryItem) -> dict[str, Any]:
    owned = {"digest": digest, "user_id": scope.user_id, "agent": owner_of(scope, item.type)}
    return owned | {"text": to_json(item.text)} | _columns(fields_of(item))


def _columns(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of these fields. Free text is JSON, since PostgreSQL text cannot hold NUL."""
    return fields | {name: to_json(fields[name]) for name in ("topic", "name")}


def _read(row: sa.Row[Any]) -> MemoryItem:
    try:
        fields = row._asdict()
        for name in ("topic", "name"):
            fields[name] = None if fields[name] is None else _text(fields[name])
        return item_of(fields, _text(row.text))
    except (ValueError, TypeError) as error:
        raise CorruptRecordError(f"fact {row.id!r} of user {row.user_id!r}", why_unreadable(error)) from None


def _text(encoded: str) -> str:
    text = json.loads(encoded)
    if not isinstance(text, str):
        raise TypeError(f"{type(text).__name__} is not text")
    return text
