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
from turnwise.memory.conversation.spans import Span
from turnwise.memory.longterm.base import ItemChanges, MemoryItem, Scope, Source
from turnwise.memory.longterm.items.base import (
    ALL,
    BURIED_S,
    HOLDS,
    Fact,
    FactFilter,
    changed,
    check_change,
    check_successor,
    check_turn,
    end_without,
    kept,
    owner_after,
    owner_of,
    parse_position,
    status_of,
    texts_in,
)
from turnwise.memory.longterm.items.sql_schema import SCHEMA, deleted, facts
from turnwise.memory.longterm.types import MemoryType
from turnwise.memory.stores.base import Page, check_limit, cursor_of, parse_cursor
from turnwise.memory.stores.sql.database import insert_into
from turnwise.memory.stores.sql.secure_delete import SecureDeleteDatabase

_AT_ONCE = 500
"""The most rows named in a statement, since databases limit the values of a statement."""


class SQLFacts(SecureDeleteDatabase):
    """Keeps facts in its own tables through SQLAlchemy Core.

    Those who write a user's facts wait for each other, so that of a put and a deletion at once none undoes the other.
    What is deleted from a file of SQLite is overwritten there, and its log emptied, unless another process is reading;
    PostgreSQL overwrites it by and by, with its vacuum. Pickles as its settings, with the URL's password if it has one.

    Args:
        url: `sqlite:///path/to/file.db` or `postgresql://user:password@host/name`; it may be that of a session store.
        lock_timeout_s: how long to wait for another process's transaction on SQLite before a StoreError.
        connections: the most connections to PostgreSQL at once.

    Raises:
        StoreURLError: the URL names no database that can be used here.
    """

    schema = SCHEMA

    async def put(self, scope: Scope, items: Sequence[MemoryItem], *, at: float | None = None) -> list[str]:
        items = [kept(scope, item) for item in items]
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
            values = {**_content(changed(_read(row), text, kind, at, more)), "updated_at": at}
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
            self._lock_user(connection, "")  # nobody's id: one sweeps at a time, so that each finds what is left
            found = connection.execute(select).all()
            for user in {row.user_id for row in found}:
                self._lock_user(connection, user)
            gone: dict[str, list[sa.Row[Any]]] = {}
            for keys in _chunks([row.key for row in found]):
                # Again: some may have been used before their users were locked.
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
        """Select one row more than are wanted, newest first."""
        time, key = facts.c.created_at, facts.c.key
        select = sa.select(facts).where(*_seen(scope), *_filters(which))
        if cursor is not None:
            before, last = parse_cursor(cursor)
            select = select.where((time < before) | ((time == before) & (key < last)))
        return select.order_by(time.desc(), key.desc()).limit(check_limit(limit) + 1)

    # Within a transaction

    def _one(self, connection: sa.Connection, scope: Scope, id: str) -> sa.Row[Any] | None:
        """Return and lock the row of an item that the scope sees. The lock lasts until the transaction ends."""
        self._lock_user(connection, scope.user_id)
        return next(_rows(connection, sa.select(facts).where(*_seen(scope)), scope.user_id, [id]), None)

    @staticmethod
    def _add(connection: sa.Connection, scope: Scope, items: Sequence[MemoryItem], used: float) -> list[str]:
        """Insert the new items; return their ids. The caller holds the user's lock, so that they stay new."""
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
        """Delete these rows of a user; also record the deletion of unknown ids. The caller holds the user's lock."""
        for chunk in _chunks(rows):
            connection.execute(sa.delete(facts).where(facts.c.key.in_([row.key for row in chunk])))
        insert = insert_into(deleted, connection.dialect).on_conflict_do_nothing()
        if digests := [*(row.digest for row in rows), *(digest_of(user_id, name) for name in missing)]:
            now = time.time()
            connection.execute(insert, [{"digest": digest, "at": now} for digest in digests])
            connection.execute(sa.update(deleted).where(deleted.c.at.is_(None)).values(at=now))
            connection.execute(sa.delete(deleted).where(deleted.c.at < now - BURIED_S))
        ends = dict.fromkeys(missing, HOLDS) | {row.id: (row.superseded_at, row.superseded_by) for row in rows}
        for chunk in _chunks([*ends]):
            left = _UNREAD.where(facts.c.user_id == user_id, facts.c.superseded_by.in_(chunk))
            for row in connection.execute(left).all():
                at, by = end_without(ends, row.id, row.superseded_by)
                changes = {"superseded_at": at, "superseded_by": by}
                connection.execute(sa.update(facts).where(facts.c.key == row.key).values(changes))


_UNREAD = sa.select(
    *(facts.c[name] for name in ("key", "digest", "user_id", "agent", "id", "superseded_at", "superseded_by"))
)
"""Only the columns that a deletion needs, so that unreadable items can be deleted."""


def _chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for first in range(0, len(values), _AT_ONCE):
        yield values[first : first + _AT_ONCE]


def _rows(
    connection: sa.Connection, select: sa.Select[Any], user_id: str, ids: Collection[str]
) -> Iterator[sa.Row[Any]]:
    """Yield the rows of a user's items of these ids."""
    for digests in _chunks([digest_of(user_id, name) for name in ids]):
        # All at once: an error about a row would else keep the transaction open for as long as it is kept itself.
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
    return {
        "digest": digest,
        "user_id": scope.user_id,
        "agent": owner_of(scope, item.type),
        "id": item.id,
        "type": str(item.type),
        "session_id": item.source.session_id,
        "turn_index": item.source.turn_index,
        "spans": to_json(item.source.spans or None),
        "created_at": float(item.created_at),
        "updated_at": item.updated_at,
        "superseded_at": item.superseded_at,
        "superseded_by": item.superseded_by,
        "pinned": item.pinned or None,
        "uses": item.uses or None,
        **_content(item),
    }


def _content(item: MemoryItem) -> dict[str, Any]:
    """Return what it says, what it is found by beside that, and how long."""
    return {
        "text": to_json(item.text),
        "topic": to_json(item.topic),
        "name": to_json(item.name),
        "aliases": to_json(item.aliases or None),
        "expires_at": item.expires_at,
        "status": None if item.status == "active" else item.status,
    }


def _read(row: sa.Row[Any]) -> MemoryItem:
    try:
        return MemoryItem(
            id=row.id,
            text=_text(row.text),
            type=MemoryType(row.type),
            topic=None if row.topic is None else _text(row.topic),
            name=None if row.name is None else _text(row.name),
            aliases=tuple(texts_in(json.loads(row.aliases or "[]"))),
            source=Source(
                session_id=row.session_id,
                turn_index=row.turn_index,
                spans=tuple(
                    Span(str(log), int(start), int(stop)) for log, start, stop in json.loads(row.spans or "[]")
                ),
            ),
            created_at=row.created_at,
            updated_at=row.updated_at,
            superseded_at=row.superseded_at,
            superseded_by=row.superseded_by,
            expires_at=row.expires_at,
            status=status_of(row.status),
            pinned=bool(row.pinned),
            uses=int(row.uses or 0),
        )
    except (ValueError, TypeError) as error:
        raise CorruptRecordError(f"fact {row.id!r} of user {row.user_id!r}", why_unreadable(error)) from None


def _text(encoded: str) -> str:
    text = json.loads(encoded)
    if not isinstance(text, str):
        raise TypeError(f"{type(text).__name__} is not text")
    return text
