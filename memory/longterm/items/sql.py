"""`SQLItems`: memory items in an SQL database, which may be a session store's database."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa

from turnwise.errors import StoreError
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.items.base import ALL, SPACE, Change, ItemFilter, StoredItem
from turnwise.memory.longterm.items.changes import replacement
from turnwise.memory.longterm.items.postgres_cursor import PostgresCursor
from turnwise.memory.longterm.items.rows import NOTHING, Loaded, Pending, Revision
from turnwise.memory.longterm.items.rules import check_turn, checked_item, checked_space, parse_position
from turnwise.memory.longterm.items.sql_schema import SCHEMA
from turnwise.memory.longterm.items.sql_statements import Statements
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall.passages import vectors_of
from turnwise.memory.longterm.retention.retention import Expiry, Use
from turnwise.memory.stores.base import Page, check_limit, cursor_of, parse_cursor
from turnwise.memory.stores.sql.secure_delete import SecureDeleteDatabase
from turnwise.memory.values.required_arguments import needs

Result = TypeVar("Result")

_MOST_REVISIONS = 10_000
"""About the most users' revisions in memory."""

AT_ONCE = 200
"""How many items of a session or user are deleted in one transaction."""


@needs(url="pass where it is, such as SQLItems('sqlite:///items.db')")
class SQLItems(SecureDeleteDatabase):
    """Stores items in SQLite or PostgreSQL. A pickle has the settings, with the URL's password.

    Writers of one user's items wait for each other, so a put and a deletion at the same time do not undo each other. A
    user's rows are numbered within a range of their own, so to load them reads nothing of another's. Deleted data in a
    SQLite file is overwritten, and the log is emptied unless another process is reading. PostgreSQL overwrites it
    later, when it vacuums.

    Args:
        url: `sqlite:///path/to/file.db` or `postgresql://user:password@host/name`; may be the URL of other stores.
        space: stores with different spaces in one database do not see each other's items.
        lock_timeout_s: how long to wait for another process's transaction on SQLite before a StoreError, in seconds.
        connections: the most connections to PostgreSQL at once.
        make_schema: whether missing tables are made and old ones migrated, if the role may; see `SQLDatabase`.

    Raises:
        StoreURLError: the URL is not of a database that can be used here.
        ConfigError: a setting is out of range.
    """

    schema = SCHEMA

    def __init__(
        self,
        url: str,
        *,
        space: str = SPACE,
        lock_timeout_s: float = 30.0,
        connections: int = 4,
        make_schema: bool = True,
    ) -> None:
        super().__init__(url, lock_timeout_s=lock_timeout_s, connections=connections, make_schema=make_schema)
        self._space = checked_space(space)
        self._revision_connection: Any = None
        """The driver's connection of `revisions`, which waits for no lock; opened by the first `load`."""
        self._revisions: dict[str, Revision] = {}
        """Users' revisions as of `_data_version`."""
        self._data_version = -1

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._settings, space=self._space), ()

    async def put(self, scope: Scope, items: Sequence[MemoryItem], *, at: float | None = None) -> list[str]:
        return [item.id for item in await self.add([(scope, items)], at=at)]

    async def get(self, scope: Scope, ids: Collection[str]) -> dict[str, MemoryItem]:
        return await self._reading(lambda statements: statements.get(scope, ids))

    async def query(
        self, scope: Scope, which: ItemFilter = ALL, *, cursor: str | None = None, limit: int = 100
    ) -> Page[MemoryItem]:
        before, most = None if cursor is None else parse_cursor(cursor), check_limit(limit) + 1
        rows = await self._reading(lambda statements: statements.query(scope, which, before, most))
        page = [item for _, item in rows[:limit]]
        return Page(tuple(page), cursor_of(page[-1].created_at, rows[limit - 1][0]) if len(rows) > limit else None)

    async def scan(
        self, user_id: str | None = None, *, cursor: str | None = None, limit: int = 1000
    ) -> Page[StoredItem]:
        after, most = parse_position(cursor), check_limit(limit) + 1
        rows = await self._reading(lambda statements: statements.scan(user_id, after, most))
        return Page(tuple(stored for _, stored in rows[:limit]), str(rows[limit - 1][0]) if len(rows) > limit else None)

    async def change(
        self, scope: Scope, id: str, change: Change, *, at: float | None = None, successor: MemoryItem | None = None
    ) -> MemoryItem | None:
        after = None if successor is None else checked_item(scope, successor)
        new = partial(replacement, scope, id, change)
        return await self._writing([scope.user_id], lambda statements: statements.change(scope, id, new, at, after))

    async def delete(
        self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None
    ) -> list[str]:
        check_turn(scope.session_id, turn_index, ids)
        if ids is not None:
            names = list(dict.fromkeys(ids))
            works = [self._work([scope.user_id], lambda statements: statements.delete(scope, names))]
        else:
            rows = await self._reading(lambda statements: statements.numbers(scope, turn_index))
            batches = [rows[start : start + AT_ONCE] for start in range(0, len(rows), AT_ONCE)]
            works = [self._work([scope.user_id], partial(_delete_rows, scope.user_id, numbers)) for numbers in batches]
        return [name for deleted in await self._erase(*works) for name in deleted]

    async def delete_sessions(self, sessions: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
        """See `SessionsDeletion`. One transaction has the sessions of `AT_ONCE` users at most."""
        users = sorted(sessions)
        parts = [users[start : start + AT_ONCE] for start in range(0, len(users), AT_ONCE)]

        def work(part: Sequence[str], connection: sa.Connection) -> dict[str, list[str]]:
            cursor = self._cursor_of(connection)
            statements = Statements(cursor, self._space)
            owners = statements.owners(part)
            self._lock_users(cursor, owners.values())  # nobody waits for users who have nothing
            places = [(owner, name) for owner, user_id in owners.items() for name in sessions[user_id]]
            return statements.delete_sessions(places, owners)

        done = await self._erase(*(partial(work, part) for part in parts))
        return {user_id: ids for deleted in done for user_id, ids in deleted.items()}

    async def touch(self, uses: Sequence[Use]) -> None:
        def touch(statements: Statements) -> None:
            for use in uses:
                statements.touch(use)

        await self._writing_fast({use.user_id for use in uses}, touch)

    async def sweep(
        self, before: float, *, types: Collection[MemoryType] | None = None, limit: int = 1000
    ) -> dict[str, list[str]]:
        limit = check_limit(limit)

        def sweep(connection: sa.Connection) -> dict[str, list[str]]:
            cursor = self._cursor_of(connection)
            self._lock_users(cursor, [""])  # no user has this id: it makes sweeps wait for each other
            statements = Statements(cursor, self._space)
            unused = statements.unused(before, types, limit)
            self._lock_users(cursor, unused)
            # Looked at again, since some may have been used before their users were locked.
            swept = {user: statements.delete_rows(user, rows, before) for user, rows in unused.items()}
            return {user: ids for user, ids in swept.items() if ids}

        (swept,) = await self._erase(sweep)
        return swept

    async def close(self) -> None:
        await super().close()  # the thread of the file ends here, so nobody opens the connection again
        connection, self._revision_connection = self._revision_connection, None
        if connection is not None:
            connection.close()

    # For a memory that holds indexes of users' items

    async def add(
        self,
        additions: Sequence[tuple[Scope, Sequence[MemoryItem]]],
        *,
        at: float | None = None,
        with_vectors: bool = False,
    ) -> list[Pending]:
        """Do each `put` of these in one transaction; return the new items.

        Args:
            with_vectors: whether the items need vectors: see `pending`.
        """
        checked = [(scope, [checked_item(scope, item) for item in items]) for scope, items in additions]
        used = time.time() if at is None else at

        def add(statements: Statements) -> list[Pending]:
            return [
                Pending(user_id=scope.user_id, id=item.id, text=item.text)
                for scope, items in checked
                for item in statements.add(scope, items, used, with_vectors=with_vectors)
            ]

        return await self._writing_fast({scope.user_id for scope, _ in checked}, add)

    async def load(
        self,
        users: Collection[str],
        revisions: Mapping[str, Revision],
        expiry: Expiry | None = None,
        *,
        most: int | None = None,
    ) -> dict[str, Loaded]:
        """Return the rows of users that the caller does not have yet.

        Args:
            revisions: of each user, the revision whose rows the caller has.
            expiry: which of the rows are expired; none if left out.
            most: the most new rows of each user to return; all if left out. If rows were changed or deleted since the
                caller's revision, all of the user's rows are returned.
        """
        loaded = await self._reading(
            lambda statements: {
                user_id: statements.load(user_id, revisions.get(user_id, NOTHING), expiry, most) for user_id in users
            }
        )
        if self._revision_connection is None and self._is_sqlite:
            await self._on_thread(self._open_revision_connection)
        return loaded

    def revisions(self, users: Collection[str]) -> dict[str, Revision] | None:
        """Return the users' revisions as `load` does, in microseconds; None if that would have to wait.

        For an event loop: it waits for no lock and no thread. If it returns None, call `load`, which also raises the
        error if there is one.
        """
        if self._revision_connection is None or self._closed or not self._ready:
            return None
        try:
            self._check_after()
            cursor = self._revision_connection.cursor()
            # Another one after each commit of another connection, also of another process; this one writes nothing.
            (version,) = cursor.execute("PRAGMA data_version").fetchone()
            if version != self._data_version or len(self._revisions) > _MOST_REVISIONS:
                self._revisions, self._data_version = {}, version
            statements, known = Statements(cursor, self._space), self._revisions
            for user_id in users:
                if user_id not in known:
                    known[user_id] = statements.revision(user_id)
            return {user_id: known[user_id] for user_id in users}
        except (StoreError, self._driver.Error):
            return None

    def _open_revision_connection(self) -> None:
        """Open the connection of `revisions` unless another `load` has opened it. Runs on the file's only thread."""
        if self._revision_connection is None:
            pooled = self._engine.raw_connection()
            pooled.detach()
            connection: Any = pooled.dbapi_connection
            connection.execute("PRAGMA busy_timeout = 0")
            self._revision_connection = connection

    # For a memory that has vectors of the items elsewhere

    async def pending(self, embedding: str, limit: int) -> list[Pending]:
        """Return up to `limit` items that were added with vectors, and whose text has none of this embedding."""
        return await self._reading(lambda statements: statements.pending(embedding, limit))

    async def lacking(self, embedding: str) -> int:
        """Return how many items `pending` returns without a limit: O(their number)."""
        return await self._reading(lambda statements: statements.lacking(embedding))

    async def mark(self, items: Sequence[Pending], embedding: str) -> None:
        """Record that these items have vectors of this embedding. The key of a deleted or changed item is dropped."""
        users = {item.user_id for item in items}
        await self._writing_fast(users, lambda statements: statements.mark(items, embedding))

    async def take_embedding(self, embedding: str) -> str:
        """Record that the vectors of this space are made by this embedding from now on; return by which they were."""
        note = f"embedding of {self._space}"

        def take(connection: sa.Connection) -> str:
            before = self._locked_note(connection, note, "")
            self._note(connection, note, embedding)
            return before

        before = await self.embedding()
        return before if before == embedding or self._is_read_only else await self._write(take)

    async def embedding(self) -> str:
        """Return by which embedding the vectors of this space are made: that which took them last."""
        return await self._read(lambda connection: self._noted(connection, f"embedding of {self._space}", ""))

    async def unmark(self) -> None:
        """Record that all items of the space need vectors and have none."""
        await self._writing_fast([], Statements.unmark)

    async def keys(self, embedding: str) -> tuple[list[str], list[str]]:
        """Return the vector keys of items that have vectors of this embedding, and of all others; latest first."""

        def read(statements: Statements) -> tuple[list[str], list[str]]:
            embedded_keys: list[str] = []
            other_keys: list[str] = []
            for embedded, item in statements.embedded():
                keys = embedded_keys if embedded == embedding else other_keys
                keys += [key for key, _ in vectors_of(item.key, item.text)]
            return embedded_keys, other_keys

        return await self._reading(read)

    async def dropped(self, limit: int | None = None) -> list[str]:
        """Return the keys of up to `limit` items that had vectors and were deleted or have another text."""
        return await self._reading(lambda statements: statements.dropped(limit))

    async def undrop(self, keys: Sequence[str]) -> None:
        """Record that the vectors of these keys are deleted."""
        await self._writing_fast([], lambda statements: statements.undrop(keys))

    async def count(self) -> int:
        """Return how many items there are in the space, of all users."""
        return await self._reading(Statements.count)

    # Transactions

    async def _reading(self, work: Callable[[Statements], Result]) -> Result:
        return await self._read(lambda connection: work(Statements(self._cursor_of(connection), self._space)))

    async def _writing(self, users: Collection[str], work: Callable[[Statements], Result]) -> Result:
        return await self._write(self._work(users, work))

    async def _writing_fast(self, users: Collection[str], work: Callable[[Statements], Result]) -> Result:
        """Like `_writing`, without SQLAlchemy, for work that reads no text of a row."""

        def run(driver: Any) -> Result:
            cursor = driver if self._is_sqlite else PostgresCursor(driver)
            self._lock_users(cursor, users)
            return work(Statements(cursor, self._space))

        return await self._on_thread(lambda: self._transact(run))

    def _work(self, users: Collection[str], work: Callable[[Statements], Result]) -> Callable[[sa.Connection], Result]:
        def run(connection: sa.Connection) -> Result:
            cursor = self._cursor_of(connection)
            self._lock_users(cursor, users)
            return work(Statements(cursor, self._space))

        return run

    def _cursor_of(self, connection: sa.Connection) -> Any:
        cursor = connection.connection.cursor()
        return cursor if self._is_sqlite else PostgresCursor(cursor)

    def _lock_users(self, cursor: Any, users: Collection[str]) -> None:
        """Make this the only transaction that writes items of these users; on SQLite, the only one that writes at all.

        Locked in order, so that processes never wait for each other in a circle.
        """
        if not self._is_sqlite:
            numbers: list[int] = []
            for user_id in sorted(users):
                name = f"{self.schema.name} {self._space} {user_id}".encode(errors="surrogatepass")
                numbers.append(int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), signed=True))
            if numbers:  # in their order, since they come as they are in the array
                cursor.execute("SELECT pg_advisory_xact_lock(number) FROM unnest(?::bigint[]) AS number", (numbers,))


def _delete_rows(user_id: str, numbers: Sequence[int], statements: Statements) -> list[str]:
    return statements.delete_rows(user_id, numbers)
