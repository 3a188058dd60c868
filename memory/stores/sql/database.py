"""`SQLDatabase`: the base of SQL stores, with engine, threads, transactions, errors and table versions."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from turnwise.errors import CorruptRecordError, SchemaVersionError, StoreClosedError, StoreError, StoreURLError
from turnwise.memory.stores.sql.connection_room import ConnectionRoom
from turnwise.memory.stores.sql.error_hints import (
    NO_ROOM,
    has_no_room,
    is_undecodable,
    lacks_tables,
    remedy,
    without_text,
)
from turnwise.memory.stores.sql.sqlite_file import SQLiteFile, begin_writing, path_of
from turnwise.memory.stores.sql.sqlite_owner import SQLiteOwner
from turnwise.memory.stores.store_owner import LABEL, Shared, StoreOwner, rivals_among
from turnwise.memory.stores.urls import READ_ONLY, SQL_SCHEMES, shown_url
from turnwise.memory.values.corrupt_records import text_or_undecodable
from turnwise.memory.values.ids import new_id
from turnwise.memory.values.ranges import check_seconds, check_whole_number

Result = TypeVar("Result")

CHECKPOINT_COMMITS = 100
"""Commits of a process between two checkpoints, which move SQLite's log (WAL) into its file."""

MAX_LOCK_TIMEOUT_S = 1e6
"""The longest `lock_timeout_s`: servers count timeouts in milliseconds, in 32 bits, and twice as long for some."""

MAX_CONNECTIONS = 10_000
"""The most connections of one store, each with a thread: a server has not many more."""

WHERE = "where"
"""The key for a partial index's predicate in its `info`. Dialect options would make SQLAlchemy load each dialect."""

BY_KEY = "by_key"
"""The key in a table's `info`, if its rows are few or small: SQLite then keeps them in their key's index alone."""

_meta = sa.Table(
    "turnwise_meta",
    sa.MetaData(),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The tables of one kind of store. Stores of several kinds may share a database."""

    name: str
    """The name of the row in `turnwise_meta` that has the version."""
    version: int
    """The version of the tables. Increase it with every change to the tables."""
    tables: sa.MetaData
    migrations: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """By version: the statements that migrate its tables to the next version, in SQL for both SQLite and PostgreSQL."""


class SQLDatabase(Shared):
    """Base of the stores in an SQL database: SQLite or PostgreSQL.

    A write is on disk when the call returns (SQLite: WAL, synchronous FULL). Statements run on the store's own threads:
    one for SQLite, `connections` for PostgreSQL. Many processes may use one database at once; a SQLite file belongs to
    one machine. The tables are created or migrated at first use.

    **Failures and timeouts.** A call that cannot be carried out raises StoreError after at most `3 * lock_timeout_s`,
    of which at most `lock_timeout_s` passes before the call begins. The next call tries again and replaces dead
    connections, so nothing needs a restart. A SQLite file that is deleted or replaced while it is open is refused. On
    PostgreSQL, `lock_timeout_s` is also the time limit for a statement and for an idle transaction: the store sets
    `statement_timeout`, `lock_timeout`, `idle_in_transaction_session_timeout` and, twice as long, `transaction_timeout`
    unless the server, database or role sets them. A URL may set them too, as `?options=-c%20statement_timeout%3D60s`,
    and `connect_timeout=10` (s). A connection without an answer for 1.5 times its `statement_timeout` is closed.

    Args:
        url: `sqlite:///path/to/file.db` or `postgresql://user:password@host/name`.
        schema: the tables.
        lock_timeout_s: how long to wait for another transaction before a StoreError, in seconds.
        connections: the maximum number of connections to PostgreSQL at once.

    Raises:
        StoreURLError: the URL names no database that can be used here.
        ConfigError: a setting is out of its range: `lock_timeout_s` above 0 and up to a million, `connections` from 1
            to 10,000.
    """

    def __init__(self, url: str, schema: Schema, *, lock_timeout_s: float, connections: int) -> None:
        self._name = shown_url(url)
        check_seconds("lock_timeout_s", lock_timeout_s, may_be_0=False, most=MAX_LOCK_TIMEOUT_S)
        check_whole_number("connections", connections, 1, MAX_CONNECTIONS)
        self._schema = schema
        parsed = _parse_url(url, self._name)
        self._url = parsed
        sqlite = parsed.get_backend_name() == "sqlite"
        self.is_local = sqlite
        """Whether the store is a file on one machine."""
        if sqlite:
            connections = 1
        try:
            self._engine = sa.create_engine(
                parsed,
                pool_size=connections,
                max_overflow=0,
                hide_parameters=True,
                pool_timeout=lock_timeout_s,
                pool_pre_ping=not sqlite,  # one more round trip, so that no call fails after a restart of the server
            )
        except ModuleNotFoundError as error:
            reason = f"its driver is missing ({error}): pip install 'turnwise[postgres]'"
            raise StoreURLError(self._name, reason) from error
        self._is_read_only = is_read_only(parsed)
        self._file = SQLiteFile(self._engine, self._name, lock_timeout_s, self._is_read_only) if sqlite else None
        self._shared_by: StoreOwner | None = None
        self._owner: SQLiteOwner | None = None
        if not sqlite:
            _limit_waits(self._engine, lock_timeout_s, self._called)
        self._lock_timeout_s = lock_timeout_s
        self._reader = self._engine.execution_options(turnwise_read=True)
        self._snapshots = self._reader if sqlite else self._engine.execution_options(isolation_level="REPEATABLE READ")
        self._driver: Any = self._engine.dialect.loaded_dbapi
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="turnwise-store")
        self._room = ConnectionRoom(connections)
        self._writer: Any = None
        """The driver's connection for commits to a SQLite file, kept after the first commit."""
        self._transactions = 0
        self._ready = False
        self._closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    async def close(self) -> None:
        """Close connections and files. Closing twice is fine; any other call afterwards raises StoreClosedError."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._threads.shutdown)
            self._forget_writer()
            self._engine.dispose()
            if self._owner:
                self._owner.release()

    # The owner

    def own(self, owner: StoreOwner) -> None:
        """See `Shared`. A SQLite file is locked for one owner.

        On PostgreSQL nothing is locked; connections carry the owner's name, by which `rivals` finds others.
        """
        self._shared_by = owner
        if self.is_local:
            self._owner = SQLiteOwner(path_of(self._url), self._name, owner)

    async def rivals(self) -> list[str]:
        """See `Shared`. A PostgreSQL role sees only its own connections."""
        if self.is_local or self._shared_by is None:
            return []
        connection_names = sa.text(
            "SELECT DISTINCT application_name FROM pg_catalog.pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE :label"
        )
        names = await self._read(lambda connection: connection.scalars(connection_names, {"label": f"{LABEL}%"}).all())
        return rivals_among(names, self._shared_by)

    def _called(self) -> str:
        """Return the name for connections to a server, used unless the URL sets one."""
        return self._shared_by.label if self._shared_by else "turnwise"

    # Transactions

    async def _write(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Run `work` in a transaction; return its result when the transaction is on disk.

        Raises:
            StoreClosedError: the store was closed.
            SchemaVersionError: the tables have another version.
            StoreError: the database could not be reached, read or written; nothing was written.
        """
        return await self._on_thread(lambda: self._connected(self._engine, work))

    async def _read(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Run `work` in a transaction that only reads, and return its result; raises as `_write` does."""
        return await self._on_thread(lambda: self._connected(self._reader, work))

    async def _read_snapshot(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Do what `_read` does; all statements of `work` see one moment, on PostgreSQL too."""
        return await self._on_thread(lambda: self._connected(self._snapshots, work))

    async def _write_fast(self, work: Callable[[Any], None]) -> None:
        """Run `work` in a transaction on the driver's own cursor, which is faster.

        Used for the writes that every turn makes.
        """
        await self._on_thread(lambda: self._transact(work))

    async def _probe(self, size: int) -> None:
        """Commit a row of so many bytes, and delete it; raises as `_write` does."""
        row = _meta.c.name == (name := f"probe-{new_id()}")
        text = secrets.token_hex(size // 2)  # which cannot be compressed to less than half
        await self._write(lambda connection: connection.execute(sa.insert(_meta).values(name=name, value=text)))
        await self._write(lambda connection: connection.execute(sa.delete(_meta).where(row)))

    def _locked_note(self, connection: sa.Connection, name: str, initial: str) -> str:
        """Return a note of the whole database, which no other transaction can read so or change until the end of this.

        Args:
            initial: the note as it is first.
        """
        note = sa.select(_meta.c.value).where(_meta.c.name == name).with_for_update()
        connection.execute(
            insert_into(_meta, self._engine.dialect).values(name=name, value=initial).on_conflict_do_nothing()
        )
        return str(connection.execute(note).scalar_one())

    @staticmethod
    def _noted(connection: sa.Connection, name: str, initial: str) -> str:
        """Return a note as it is now."""
        note = connection.scalar(sa.select(_meta.c.value).where(_meta.c.name == name))
        return initial if note is None else str(note)

    @staticmethod
    def _note(connection: sa.Connection, name: str, value: str) -> None:
        """Change a note that was locked."""
        connection.execute(sa.update(_meta).where(_meta.c.name == name).values(value=value))

    def _is_duplicate(self, error: StoreError) -> bool:
        """Return whether the database refused a row because a row with its key exists."""
        return isinstance(error.__cause__, self._driver.IntegrityError)

    def _lock(self, connection: sa.Connection) -> None:
        """Take an exclusive lock for this transaction. A writing SQLite transaction is exclusive anyway."""
        if self._engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(0x7475726E)))

    async def _on_thread(self, work: Callable[[], Result]) -> Result:
        since = time.monotonic()

        def call() -> Result:
            with self._translated():
                if late := self._late(since):
                    raise late
                try:
                    return self._checked(work)
                except (exc.DBAPIError, self._driver.Error) as error:
                    if not self._was_recreated(error):
                        raise
                return self._checked(work)  # the failed attempt changed nothing

        if self._closed:
            raise StoreClosedError(self._name)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _late(self, since: float) -> StoreError | None:
        """Return the error for work requested so long ago (monotonic clock) that it must not begin; None if it may."""
        waited_s = time.monotonic() - since
        if waited_s <= self._lock_timeout_s:
            return None
        reason = f"the call did not begin within {self._lock_timeout_s:g} s, because earlier calls took that long"
        remedy = "try again; is it overloaded?" if self.is_local else "is it reachable, and not overloaded?"
        return StoreError(f"store {self._name}: {reason}; {remedy}")

    def _checked(self, work: Callable[[], Result]) -> Result:
        """Create missing tables, run `work`, check that the SQLite file is still in place, and return the result."""

        def checked() -> Result:
            self._check_before()
            result = work()
            self._check_after()
            return result

        return self._with_room(checked)

    def _with_room(self, work: Callable[[], Result]) -> Result:
        """Run `work`; if the server refuses its connection, wait for one of the store's own, and run it again.

        A refused connection has done nothing, so `work` begins anew.
        """
        if self.is_local:
            return work()
        since = time.monotonic()
        while self._room.take(self._lock_timeout_s - (time.monotonic() - since)):
            try:
                return work()
            except (exc.DBAPIError, self._driver.Error) as error:
                refusal = error
                if not has_no_room(error.orig if isinstance(error, exc.DBAPIError) else error):
                    raise
            finally:
                self._room.leave()
            if not self._room.refused():
                raise refusal
        reason = f"the server allows no more connections, and none of its own was free for {self._lock_timeout_s:g} s"
        raise StoreError(f"store {self._name}: {reason}; {NO_ROOM}")

    def _check_before(self) -> None:
        if self._file:
            self._file.check()  # a new connection would create a missing file
        if not self._ready:
            self._prepare()

    def _check_after(self) -> None:
        if self._file:
            self._file.check()

    @staticmethod
    def _connected(engine: sa.Engine, work: Callable[[sa.Connection], Result]) -> Result:
        """Run `work` in a transaction and return its result. Run it again if a text in SQLite is not UTF-8.

        The second run reads `UNDECODABLE` in place of such texts, so that it can report or delete them.
        """
        try:
            with transaction(engine) as connection:
                return work(connection)
        except (exc.OperationalError, sqlite3.OperationalError) as error:
            if not is_undecodable(error.orig if isinstance(error, exc.OperationalError) else error):
                raise
        with transaction(engine) as connection:
            driver: Any = connection.connection.dbapi_connection
            driver.text_factory = text_or_undecodable
            try:
                return work(connection)
            finally:
                driver.text_factory = str

    @property
    def _transact(self) -> Callable[[Callable[[Any], Result]], Result]:
        """The function that runs work in a transaction, on the driver's own cursor."""
        return self._transact_in_file if self.is_local else self._transact_on_server

    def _transact_on_server(self, work: Callable[[Any], Result]) -> Result:
        connection = self._engine.raw_connection()
        try:
            result = work(connection.cursor())
            connection.commit()
            return result
        except self._driver.Error as error:
            if self._engine.dialect.is_disconnect(error, connection.dbapi_connection, None):
                connection.invalidate(error)
            raise
        finally:
            connection.close()  # returns it to the pool, which rolls back what was not committed

    def _transact_in_file(self, work: Callable[[Any], Result]) -> Result:
        if self._writer is None:
            # One thread needs no pool. Keeping its own connection saves as much time as two statements take.
            pooled = self._engine.raw_connection()
            pooled.detach()
            self._writer = pooled.dbapi_connection
            self._writer.execute("PRAGMA busy_timeout = 0")  # for begin_writing
        try:
            begin_writing(self._writer, self._lock_timeout_s)
            result = work(self._writer.cursor())
            self._writer.commit()
        except BaseException:
            self._roll_back()
            raise
        self._transactions += 1
        if self._transactions % CHECKPOINT_COMMITS == 0:
            with suppress(RuntimeError):  # the store is closing, and SQLite makes a checkpoint then
                self._threads.submit(self._checkpoint)
        return result

    def _roll_back(self) -> None:
        """End the transaction of the kept connection, by closing it if need be. Raises nothing: an error is at hand."""
        try:
            self._writer.rollback()
        except self._driver.Error:
            self._forget_writer()

    def _forget_writer(self) -> None:
        """Close the kept connection; the next commit opens another."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(self._driver.Error):
                writer.close()

    def _checkpoint(self) -> None:
        """Move SQLite's log into its file between commits, so that no commit has to wait for it."""
        # A part of the log that cannot be moved now is moved later, at the latest by a commit that finds it too long.
        with suppress(self._driver.Error, exc.SQLAlchemyError), self._engine.connect() as connection:
            connection.connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _was_recreated(self, error: BaseException) -> bool:
        """Return whether tables that existed are missing. They are created, or checked again, at the next use."""
        was_ready = self._ready
        if lacks_tables(error.orig if isinstance(error, exc.DBAPIError) else error):
            self._ready = False
        return was_ready and not self._ready

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Convert the database's errors to StoreError. Only this method does so."""
        try:
            yield
        except (exc.DBAPIError, self._driver.Error) as error:
            self._was_recreated(error)
            cause = error.orig if isinstance(error, exc.DBAPIError) else error
            quiet = without_text(cause)
            raise StoreError(f"store {self._name}: {quiet}; {remedy(cause)}") from quiet
        except (UnicodeEncodeError, UnicodeDecodeError) as error:  # its attributes hold the whole text
            raise StoreError(f"store {self._name}: a text cannot be stored: {error.reason}") from None
        except exc.StatementError as error:  # a value cannot be stored
            raise StoreError(f"store {self._name}: a value cannot be stored: {type(error.orig).__name__}") from None
        except (exc.SQLAlchemyError, ValueError, OverflowError) as error:  # the last two: unstorable values
            raise StoreError(f"store {self._name}: {error}") from error

    # The schema

    def _prepare(self) -> None:
        """Create missing tables, migrate old ones, and refuse tables of an unknown version."""
        with transaction(self._reader) as connection:
            if self._file:
                self._file.remember(connection)
            exists = sa.inspect(connection).has_table(_meta.name)
            version = self._version(connection) if exists else None
        if version is None or version in map(str, self._schema.migrations):
            if self._is_read_only:
                state = "do not exist" if version is None else f"have version {version}"
                reason = f"its tables {state}: open it once without read_only=True, which creates or migrates them"
                raise StoreError(f"store {self._name}: {reason}")
            with transaction(self._engine) as connection:
                self._lock(connection)
                driver: Any = connection.connection.dbapi_connection
                with nullcontext() if self._file else driver.unhurried():  # a migration has no time limit
                    version = self._update(connection)
        if version != str(self._schema.version):
            raise SchemaVersionError(self._name, version, self._schema.version)
        self._ready = True

    def _update(self, connection: sa.Connection) -> str:
        """Create or migrate the tables as far as possible; return the version that they have then."""
        _meta.create(connection, checkfirst=True)
        version = self._version(connection)  # read again: another process may have migrated meanwhile
        if version is None:
            if not self._schema.tables.tables.keys().isdisjoint(sa.inspect(connection).get_table_names()):
                reason = "the row is missing although the tables exist"
                raise CorruptRecordError(f"{self._schema.name} of {self._name}", reason)
            for index in (index for table in self._schema.tables.tables.values() for index in table.indexes):
                if WHERE in index.info:
                    index.kwargs[f"{connection.dialect.name}_where"] = index.info[WHERE]
            for table in self._schema.tables.tables.values():
                if table.info.get(BY_KEY) and self.is_local:
                    table.kwargs["sqlite_with_rowid"] = False
            self._schema.tables.create_all(connection)
            version = str(self._schema.version)
            connection.execute(sa.insert(_meta).values(name=self._schema.name, value=version))
        while version.isdecimal() and (statements := self._schema.migrations.get(int(version))):
            for statement in statements:
                connection.exec_driver_sql(statement)
            version = str(int(version) + 1)
            connection.execute(sa.update(_meta).where(_meta.c.name == self._schema.name).values(value=version))
        return version

    def _version(self, connection: sa.Connection) -> str | None:
        return connection.scalar(sa.select(_meta.c.value).where(_meta.c.name == self._schema.name))


@contextmanager
def transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Commit at the end of the block; roll back if it raises.

    The error of the block is the one that is raised, whatever becomes of the rollback: after the end of a connection it
    fails too, and its error would say no more than that there is no connection.
    """
    with engine.connect() as connection:
        started = connection.begin()
        try:
            yield connection
        except BaseException:
            with suppress(exc.SQLAlchemyError):
                started.rollback()
            raise
        started.commit()


def insert_into(table: sa.Table, dialect: sa.Dialect) -> Any:
    """Return the dialect's own INSERT, which has ON CONFLICT. Imports only that dialect."""
    if dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table)


def is_read_only(url: sa.URL) -> bool:
    """Return whether the URL opens the database for reading only; see `memory.stores.urls.read_only`."""
    return url.query.get("mode") == "ro" or READ_ONLY in url.query.get("options", "")


def _parse_url(url: str, name: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except (exc.ArgumentError, ValueError):
        raise StoreURLError(name, "it is not a database URL") from None
    if parsed.drivername not in SQL_SCHEMES:
        raise StoreURLError(name, f"{parsed.drivername} is not a database that turnwise knows")
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise StoreURLError(name, "it names no file")
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername == "postgresql" else parsed


def _limit_waits(engine: sa.Engine, timeout_s: float, called: Callable[[], str]) -> None:
    from turnwise.memory.stores.sql.postgres_connection import PostgresConnection  # needs a driver

    @sa.event.listens_for(engine, "do_connect")
    def connect(_: object, __: object, args: list[Any], settings: dict[str, Any]) -> PostgresConnection:
        return PostgresConnection.open(timeout_s, *args, **{"application_name": called(), **settings})
