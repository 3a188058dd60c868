"""`SQLItems`: stores a vector memory's items in SQLite or PostgreSQL. Its search index is a `UserIndex`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

import sqlalchemy as sa

from turnwise.errors import StoreError
from turnwise.memory.conversation.corrupt_records import UNDECODABLE
from turnwise.memory.longterm.base import ItemChanges, MemoryItem, Scope
from turnwise.memory.longterm.deletion import said_by, said_in
from turnwise.memory.longterm.items.base import (
    FactFilter,
    changed,
    check_change,
    check_turn,
    checked_item,
    matches,
    owner_after,
    parse_position,
)
from turnwise.memory.longterm.retention import Expiry, Use
from turnwise.memory.longterm.search.passages import vectors_of
from turnwise.memory.longterm.types import MemoryType
from turnwise.memory.longterm.vector.item_rows import (
    NOTHING,
    OWNED,
    Pending,
    PostgresCursor,
    Revision,
    Row,
    Rows,
    key_of,
)
from turnwise.memory.longterm.vector.item_schema import SCHEMA, dropped, items
from turnwise.memory.stores.base import Page, check_limit
from turnwise.memory.stores.sql.secure_delete import SecureDeleteDatabase

AT_ONCE = 200
"""How many items are deleted in one transaction."""

_PAGE = 1000

_LISTED = 100
"""The least rows that are read at once for a list."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A user's rows as of a revision."""

    revision: Revision
    base: Revision
    """The revision that was known, if rows were only added to it; else that of nothing."""
    more: Sequence[Row]
    """The user's rows that came after `base`, in ascending order."""
    expired: Sequence[int] = ()
    """Those that nobody finds any more."""
    is_all: bool = True
    """Whether there are no more rows after these."""


class SQLItems(SecureDeleteDatabase):
    """Items of users in a SQLite file or in PostgreSQL. Several processes may share it.

    Each verb is one transaction; one that writes is on disk when it returns. A user's rows are numbered within a range
    of their own, so to load them reads nothing of another's. An id that was deleted stays so, also if it is given later
    (`TOMBSTONE_S`). What is deleted is overwritten, as `SQLFacts` does. Pickles as its settings.

    Args:
        url: `sqlite:///path/to/file.db` or `postgresql://...`. Stores of other kinds may be in the same database.
        lock_timeout_s: how long to wait for another process's transaction before a StoreError.

    Raises:
        StoreURLError: the URL names no database that can be used here.
    """

    schema = SCHEMA

    def __init__(self, url: str, *, lock_timeout_s: float = 5.0) -> None:
        super().__init__(url, lock_timeout_s=lock_timeout_s, connections=4)
        self._glance: Any = None
        """The driver's connection of `revisions`, which waits for no lock; opened by the first `load`."""

    def __reduce__(self) -> tuple[Any, ...]:
        settings = {name: value for name, value in self._settings.items() if name != "connections"}
        return partial(SQLItems, **settings), ()

    async def add(
        self, additions: Sequence[tuple[Scope, Sequence[MemoryItem]]], *, at: float | None = None
    ) -> list[Pending]:
        """Keep the items, all of them or none; return those that are new.

        One that the user has, or had, is left as it is.

        Args:
            at: when they were last used, in seconds since the epoch; now if left out.

        Raises:
            InvalidMemoryError: an item cannot be kept; nothing is written.
        """
        checked = [(scope, [checked_item(scope, item) for item in items]) for scope, items in additions]
        used = time.time() if at is None else at

        def work(connection: sa.Connection) -> list[Pending]:
            for user_id in sorted({scope.user_id for scope, _ in checked}):
                self._lock_user(connection, user_id)
            rows = _rows(connection)
            return [one for scope, items in checked for one in rows.add(scope, items, used)]

        return await self._write(work)

    async def load(
        self,
        users: Collection[str],
        known: Mapping[str, Revision],
        expiry: Expiry | None = None,
        *,
        most: int | None = None,
    ) -> dict[str, Loaded]:
        """Return the rows of users that the caller does not have yet.

        Args:
            known: of users, the revision whose rows the caller has.
            expiry: which of the rows are expired; none if left out.
            most: of how many new rows of a user to return the first; all if left out. If rows were changed or deleted
                since what is known, all of the user's rows are returned.
        """

        def work(connection: sa.Connection) -> dict[str, Loaded]:
            rows = _rows(connection)
            found: dict[str, Loaded] = {}
            for user_id in users:
                revision, base, more = rows.load(user_id, known.get(user_id, NOTHING), most)
                expired = rows.expired(user_id, revision.owner, expiry) if expiry else []
                is_all = most is None or len(more) < most or revision == rows.revision(user_id)
                found[user_id] = Loaded(revision=revision, base=base, more=more, expired=expired, is_all=is_all)
            return found

        loaded = await self._read(work)
        if self._glance is None and self._is_sqlite:
            await self._on_thread(self._open_glance)
        return loaded

    def revisions(self, users: Collection[str]) -> dict[str, Revision] | None:
        """Return the users' revisions as `load` does, in microseconds; None if that would take waiting.

        For an event loop: it waits for no lock and no thread. Whoever gets None asks `load`, which also says why.
        """
        if self._glance is None or self._closed or not self._ready:
            return None
        try:
            self._check_after()
            rows = Rows(self._glance.cursor())
            return {user_id: rows.revision(user_id) for user_id in users}
        except (StoreError, self._driver.Error):
            return None

    def _open_glance(self) -> None:
        """Open the connection of `revisions` unless another `load` has; on the one thread of the file, so once."""
        if self._glance is None:
            pooled = self._engine.raw_connection()
            pooled.detach()
            glance: Any = pooled.dbapi_connection
            glance.execute("PRAGMA busy_timeout = 0")
            self._glance = glance

    async def close(self) -> None:
        await super().close()  # the thread of the file ends here, so nobody opens it again
        glance, self._glance = self._glance, None
        if glance is not None:
            glance.close()

    async def update(
        self,
        scope: Scope,
        id: str,
        text: str | None,
        type: MemoryType | None,
        at: float,
        **changes: Unpack[ItemChanges],
    ) -> Pending | None:
        """Change what is given of an item; return it, None if the scope sees no such item.

        Raises:
            InvalidMemoryError: it could not be kept, or nothing is given; nothing is written.
        """
        given, more = check_change(scope, id, text, type, at=at, changes=changes)

        def work(connection: sa.Connection) -> Pending | None:
            self._lock_user(connection, scope.user_id)
            rows = _rows(connection)
            for row in rows.find(scope, [id]):
                item = changed(row.item, text, given, at, more)
                agent = owner_after(scope, row.agent, row.item.type, item.type)
                return rows.change(scope.user_id, row, agent, item, at)
            return None

        return await self._write(work)

    async def pin(self, scope: Scope, id: str, pinned: bool) -> bool:
        """See `FactStore.pin`."""

        def work(connection: sa.Connection) -> bool:
            self._lock_user(connection, scope.user_id)
            rows = _rows(connection)
            for row in rows.find(scope, [id]):
                if row.item.superseded_at is not None:
                    return False
                if row.item.pinned is not pinned:
                    rows.change(scope.user_id, row, row.agent, replace(row.item, pinned=pinned), float("-inf"))
                return True
            return False

        return await self._write(work)

    async def forget(self, scope: Scope, ids: Collection[str] | None, *, turn_index: int | None = None) -> int:
        """Delete those of these items that the scope sees, or all of its turn, session or user; return how many.

        Unknown ids are recorded as deleted, so a later `add` skips them. An item that a deleted item superseded becomes
        valid again, or is superseded by the deleted item's successor. Each `AT_ONCE` items are a transaction of their
        own, between which others read and write; if one fails, call it again.

        Raises:
            InvalidInputError: a turn without its session, or together with ids.
        """
        check_turn(scope.session_id, turn_index, ids)

        def numbers(connection: sa.Connection) -> list[int]:
            which = _which(scope, turn_index)
            return [row.row for row in _rows(connection).damaged(scope.user_id) if matches(row.item, which)]

        def work_numbers(connection: sa.Connection, some: Sequence[int]) -> int:
            self._lock_user(connection, scope.user_id)
            rows = _rows(connection)
            to_delete = rows.numbered(scope.user_id, some)
            rows.forget(scope.user_id, to_delete)
            return len(to_delete)

        def work_ids(connection: sa.Connection, some: Sequence[str]) -> int:
            self._lock_user(connection, scope.user_id)
            rows = _rows(connection)
            to_delete = rows.find(scope, some, damaged=True)
            rows.forget(scope.user_id, to_delete, set(some) - rows.there(scope.user_id, some))
            return len(to_delete)

        works: list[Callable[[sa.Connection], int]]
        if ids is None:
            works = [partial(work_numbers, some=some) for some in _slices(await self._read(numbers))]
        else:
            works = [partial(work_ids, some=some) for some in _slices([*ids])]
        if ids is None and scope.session_id is None:
            # Earlier versions left the number of a user without items.
            works.append(partial(work_numbers, some=()))
        return sum(await self._erase(*works))

    async def list_items(self, scope: Scope, which: FactFilter, cursor: str | None, limit: int) -> Page[MemoryItem]:
        """Return a page of the items that the scope sees and that match, those that were added last first.

        Raises:
            InvalidInputError: the limit is below 1, or the cursor is invalid.
            CorruptRecordError: an item cannot be read; the error names it.
        """
        before = None if cursor is None else parse_position(cursor)
        agents, size = (None, scope.agent), check_limit(limit)
        found: list[tuple[int, MemoryItem]] = []
        while True:
            read = partial(_newest, user_id=scope.user_id, before=before, limit=max(size, _LISTED))
            rows = await self._read(read)
            found += [(place, row.item) for place, row in rows if row.agent in agents and matches(row.item, which)]
            if not rows or len(found) > size:
                page = found[:size]
                return Page(tuple(item for _, item in page), str(page[-1][0]) if len(found) > size else None)
            before = rows[-1][0]

    async def touch(self, uses: Sequence[Use]) -> None:
        """Note that items were used, unless they were later."""

        def work(cursor: Any) -> None:
            rows = Rows(self._cursor(cursor))
            for use in uses:
                rows.touch(use.user_id, use.ids, use.at)

        await self._write_fast(work)

    async def sweep(self, before: float, types: Collection[MemoryType], *, limit: int = 1000) -> list[str]:
        """Delete up to `limit` items of these types that were last used before a time, the longest unused first.

        Returns the user of each. As `forget` does, so they do not come back. Again until it returns none.
        """

        def work(connection: sa.Connection) -> list[str]:
            rows = _rows(connection)
            gone = rows.longest_unused(before, types, limit)
            for user_id in sorted(gone):
                self._lock_user(connection, user_id)
                rows.forget(user_id, rows.numbered(user_id, [row.row for row in gone[user_id]]))
            return [user_id for user_id, unused in gone.items() for _ in unused]

        (swept,) = await self._erase(work)
        return swept

    async def to_delete(self, scope: Scope, ids: Collection[str] | None, turn_index: int | None) -> Sequence[Row]:
        """Return the rows that `forget` would delete if it were called so.

        Raises:
            CorruptRecordError: one of them cannot be read; `forget` deletes it all the same.
        """
        check_turn(scope.session_id, turn_index, ids)
        return await self._read(lambda connection: _to_delete(_rows(connection), scope, ids, turn_index))

    async def still_contains(self, texts: Collection[str]) -> set[str]:
        """Return those of these texts that are a part of what some item says, or of its record: O(all)."""

        def work(connection: sa.Connection, after: int) -> int | None:
            page = _rows(connection).page(after, _PAGE)
            for row, record in page:
                for said in (*said_by(row.item), record):
                    left.difference_update(said_in(said, left))
            return page[-1][0].row if page else None

        left: set[str] = set(texts)
        after: int | None = 0
        while left and after is not None:
            after = await self._read(partial(work, after=after))
        return set(texts) - left

    async def count(self) -> int:
        """Return how many items there are, of all users."""
        query = sa.select(sa.func.count()).select_from(items)
        return await self._read(lambda connection: connection.scalar(query) or 0)

    # Vectors are kept elsewhere: which are missing there, and which are of no item any more

    async def pending(self, embedding: str, limit: int) -> list[Pending]:
        """Return up to `limit` items whose text has no vectors of this embedding, the oldest first."""

        def work(connection: sa.Connection) -> list[Pending]:
            cursor = _cursor(connection)
            cursor.execute(
                f"SELECT row, user_id, id, text FROM {OWNED} WHERE embedded IS NOT ? ORDER BY row LIMIT ?",  # noqa: S608
                (embedding, limit),
            )
            return [
                Pending(row=row, user_id=user, key=key_of(user, name, text), text=text)
                for row, user, name, text in cursor.fetchall()
                if UNDECODABLE not in (user, name, text)
            ]

        return await self._read(work)

    async def lacking(self, embedding: str) -> int:
        """Return how many items have no vectors of this embedding: O(all)."""
        query = "SELECT count(*) FROM turnwise_vector_items WHERE embedded IS NOT ?"
        found = await self._read(lambda connection: _cursor(connection).execute(query, (embedding,)).fetchone())
        return int(found[0])

    async def mark(self, pending: Sequence[Pending], embedding: str) -> None:
        """Write down that these have vectors of this embedding, or that nobody needs those: texts were changed."""

        def work(driver: Any) -> None:
            cursor = self._cursor(driver)
            for one in sorted(pending, key=lambda one: one.row):
                cursor.execute(
                    "UPDATE turnwise_vector_items SET embedded = ? WHERE row = ? AND text = ?",
                    (embedding, one.row, one.text),
                )
                if not cursor.rowcount:
                    cursor.execute("INSERT OR IGNORE INTO turnwise_vector_dropped VALUES (?)", (one.key,))

        await self._write_fast(work)

    async def unmark(self) -> None:
        """Write down that no item has a vector."""
        unmark = "UPDATE turnwise_vector_items SET embedded = NULL"
        await self._write_fast(lambda driver: driver.execute(unmark))

    async def keys(self, embedding: str) -> tuple[list[str], list[str]]:
        """Return the keys of the vectors that there are of this embedding, and of those that may be; latest first."""

        def work(connection: sa.Connection) -> tuple[list[str], list[str]]:
            cursor = _cursor(connection)
            cursor.execute(
                f"SELECT embedded IS ?, user_id, id, text FROM {OWNED} ORDER BY row DESC",  # noqa: S608
                (embedding,),
            )
            found: tuple[list[str], list[str]] = ([], [])
            for has, *parts in cursor:
                if UNDECODABLE not in parts:
                    found[not has].extend(name for name, _ in vectors_of(key_of(*parts), parts[-1]))
            return found

        return await self._read(work)

    async def dropped(self, limit: int | None = None) -> list[str]:
        """Return the keys of vectors that are of no item any more, of `limit` at most."""
        return await self._read(lambda connection: list(connection.scalars(sa.select(dropped.c.key).limit(limit))))

    def _cursor(self, driver: Any) -> Any:
        return driver if self._is_sqlite else PostgresCursor(driver)

    async def undrop(self, keys: Sequence[str]) -> None:
        """Write down that these vectors are gone."""

        def work(driver: Any) -> None:
            cursor = self._cursor(driver)
            cursor.executemany("DELETE FROM turnwise_vector_dropped WHERE key = ?", [(key,) for key in keys])

        await self._write_fast(work)


def _newest(connection: sa.Connection, user_id: str, before: int | None, limit: int) -> list[tuple[int, Row]]:
    return _rows(connection).newest(user_id, before, limit)


def _cursor(connection: sa.Connection) -> Any:
    cursor = connection.connection.cursor()
    return cursor if connection.dialect.name == "sqlite" else PostgresCursor(cursor)


def _rows(connection: sa.Connection) -> Rows:
    return Rows(_cursor(connection))


def _to_delete(rows: Rows, scope: Scope, ids: Collection[str] | None, turn_index: int | None) -> Sequence[Row]:
    if ids is not None:
        return rows.find(scope, ids)
    which = _which(scope, turn_index)
    return [row for row in rows.load(scope.user_id)[2] if matches(row.item, which)]


def _which(scope: Scope, turn_index: int | None) -> FactFilter:
    return FactFilter(session_id=scope.session_id, turn_index=turn_index, superseded=True)


def _slices(values: list[Any]) -> Iterator[list[Any]]:
    return (values[start : start + AT_ONCE] for start in range(0, len(values), AT_ONCE))
