"""`SQLDatabase`: the base of SQL stores, with engine, threads, transactions, errors and table versions."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from turnwise.errors import (
    ConfigError,
    CorruptRecordError,
    SchemaMissingError,
    SchemaVersionError,
    StoreClosedError,
    StoreError,
    StoreURLError,
)
from turnwise.memory.stores.sql.connection_room import ConnectionRoom
from turnwise.memory.stores.sql.error_hints import (
    NO_ROOM,
    has_no_room,
    is_undecodable,
    lacks_tables,
    remedy,
    without_text,
)
from turnwise.memory.stores.sql.schema_version import (
    META,
    Schema,
    StoredVersion,
    bring_up,
    check_fits,
    is_breaking,
    is_older,
    names_of,
    statements_of,
    stored_version,
)
from turnwise.memory.stores.sql.sqlite_file import SQLiteFile, begin_writing, path_of
from turnwise.memory.stores.sql.sqlite_owner import SQLiteOwner
from turnwise.memory.stores.store_owner import LABEL, Shared, StoreOwner, rivals_among
from turnwise.memory.stores.urls import READ_ONLY, SQL_SCHEMES, shown_url, with_hosts_apart
from turnwise.memory.values.corrupt_records import text_or_undecodable
from turnwise.memory.values.ids import new_id
from turnwise.memory.values.ranges import check_seconds, check_whole_number

Result = TypeVar("Result")

CHECKPOINT_COMMITS = 100
"""Commits of a process between two checkpoints, which move SQLite's log (WAL) into its file."""

MAX_LOCK_TIMEOUT_S = 1e6
"""The longest `lock_timeout_s`: servers count timeouts in milliseconds, in 32 bits, and twice as long for some."""

SCHEMA_LOCK = 0x7475726E
"""The first number of the advisory locks of schemas on PostgreSQL."""

UNUSED_MS = 2_000
"""How long a migration waits until no program has the tables open that could not write them then, in milliseconds."""

LOOK_S = 0.05
"""How often it looks whether that is so, in seconds."""

NO_ROLES = ("public", "none")
"""What is no role to PostgreSQL even if it is quoted."""

INSUFFICIENT_PRIVILEGE, LOCK_NOT_AVAILABLE, READ_ONLY_SERVER = "42501", "55P03", "25006"

MAX_CONNECTIONS = 10_000
"""The most connections of one store, each with a thread: a server has not many more."""


class SQLDatabase(Shared):
    """Base of the stores in an SQL database: SQLite or PostgreSQL.

    A write is on disk when the call returns (SQLite: WAL, synchronous FULL). Statements run on the store's own threads:
    one for SQLite, `connections` for PostgreSQL; or in callers' threads, as many at once: see `_here`, and
    `SQLStore._commit_here`. Many processes may use one database at once; a SQLite file belongs to one machine. The
    tables are created or migrated at first use.

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
        make_schema: whether missing tables are made and old ones migrated at first use, if the role may. If not, that
            takes `turnwise migrate`.

    Raises:
        StoreURLError: the URL names no database that can be used here.
        ConfigError: a setting is out of its range: `lock_timeout_s` above 0 and up to a million, `connections` from 1
            to 10,000.
    """

    def __init__(
        self, url: str, schema: Schema, *, lock_timeout_s: float, connections: int, make_schema: bool = True
    ) -> None:
        self._name = shown_url(url)
        check_seconds("lock_timeout_s", lock_timeout_s, may_be_0=False, most=MAX_LOCK_TIMEOUT_S)
        check_whole_number("connections", connections, 1, MAX_CONNECTIONS)
        self._schema = schema
        self._makes_schema = make_schema
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
            _limit_waits(self._engine, lock_timeout_s, self._called, self._enter)
        self._lock_timeout_s = lock_timeout_s
        self._reader = self._engine.execution_options(turnwise_read=True)
        self._snapshots = self._reader if sqlite else self._engine.execution_options(isolation_level="REPEATABLE READ")
        self._driver: Any = self._engine.dialect.loaded_dbapi
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="turnwise-store")
        self._room = ConnectionRoom(connections)
        self._writer: Any = None
        """The driver's connection for commits to a SQLite file, kept after the first commit."""
        self._looker: Any = None
        """The driver's connection of `_look` to a SQLite file, kept after the first look."""
        self._transactions = 0
        self._took_s = 0.0
        """How long the last transaction took that wrote to a file, from its begin to its end."""
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
            self._forget_looker()
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

    async def behind(self) -> tuple[bool, float | None]:
        """Return whether the server is a standby, and how many seconds ago the newest commit was made that it has.

        None if it is none, or has got none since it started. Its primary may have committed more since.
        """
        if self.is_local:
            return False, None
        age = "CASE WHEN pg_is_in_recovery() THEN clock_timestamp() - pg_last_xact_replay_timestamp() END"
        select = sa.text(f"SELECT pg_is_in_recovery(), extract(epoch FROM {age})")  # noqa: S608 - both are ours
        is_standby, age_s = await self._read(lambda connection: connection.execute(select).one())
        return bool(is_standby), None if age_s is None else float(age_s)

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
        row = META.c.name == (name := f"probe-{new_id()}")
        text = secrets.token_hex(size // 2)  # which cannot be compressed to less than half
        await self._write(lambda connection: connection.execute(sa.insert(META).values(name=name, value=text)))
        await self._write(lambda connection: connection.execute(sa.delete(META).where(row)))

    def _locked_note(self, connection: sa.Connection, name: str, initial: str) -> str:
        """Return a note of the whole database, which no other transaction can read so or change until the end of this.

        Args:
            initial: the note as it is first.
        """
        note = sa.select(META.c.value).where(META.c.name == name).with_for_update()
        connection.execute(
            insert_into(META, self._engine.dialect).values(name=name, value=initial).on_conflict_do_nothing()
        )
        return str(connection.execute(note).scalar_one())

    @staticmethod
    def _noted(connection: sa.Connection, name: str, initial: str) -> str:
        """Return a note as it is now."""
        note = connection.scalar(sa.select(META.c.value).where(META.c.name == name))
        return initial if note is None else str(note)

    @staticmethod
    def _note(connection: sa.Connection, name: str, value: str) -> None:
        """Change a note that was locked."""
        connection.execute(sa.update(META).where(META.c.name == name).values(value=value))

    def _is_duplicate(self, error: StoreError) -> bool:
        """Return whether the database refused a row because a row with its key exists."""
        return isinstance(error.__cause__, self._driver.IntegrityError)

    def _lock(self, connection: sa.Connection) -> None:
        """Take an exclusive lock for this transaction. A writing SQLite transaction is exclusive anyway."""
        if self._engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(0x7475726E)))

    async def _on_thread(self, work: Callable[[], Result]) -> Result:
        if self._closed:
            raise StoreClosedError(self._name)
        since = time.monotonic()
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: self._call(work, since))

    def _here(self, work: Callable[[], Result], *, opens: bool = True) -> Result:
        """Do what `_on_thread` does in the calling thread, which it blocks.

        Args:
            opens: whether `work` may open a connection, other than by `_transact` and `_look`.
        """
        if self._closed:
            raise StoreClosedError(self._name)
        return self._call(work, time.monotonic(), opens=opens)

    def _call(self, work: Callable[[], Result], since: float, *, opens: bool = True) -> Result:
        """Run `work`, which was requested then (monotonic clock), and return its result."""
        with self._translated():
            if late := self._late(since):
                raise late
            try:
                return self._checked(work, opens=opens)
            except (exc.DBAPIError, self._driver.Error) as error:
                if not self._was_recreated(error):
                    raise
            return self._checked(work)  # the failed attempt changed nothing

    def _late(self, since: float) -> StoreError | None:
        """Return the error for work requested so long ago (monotonic clock) that it must not begin; None if it may."""
        waited_s = time.monotonic() - since
        return self._not_begun() if waited_s > self._lock_timeout_s else None

    def _not_begun(self) -> StoreError:
        reason = f"the call did not begin within {self._lock_timeout_s:g} s, because earlier calls took that long"
        remedy = "try again; is it overloaded?" if self.is_local else "is it reachable, and not overloaded?"
        return StoreError(f"store {self._name}: {reason}; {remedy}")

    def _checked(self, work: Callable[[], Result], *, opens: bool = True) -> Result:
        """Create missing tables, run `work`, check that the SQLite file is still in place, and return the result."""

        def checked() -> Result:
            if opens or not self._ready:
                self._check_before()
            result = work()
            self._check_after()
            return result

        return self._with_room(checked)

    def _with_room(self, work: Callable[[], Result]) -> Result:
        """Run `work` when a connection is free. A SQLite file has one for all threads.

        If the server refuses a connection, wait for one of the store's own, and run `work` again: a refused connection
        has done nothing.
        """
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
        if self.is_local:
            raise self._not_begun()
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
            # One call at a time needs no pool. Keeping a connection saves as much time as two statements take.
            self._writer = self._detached()
            self._writer.execute("PRAGMA busy_timeout = 0")  # for begin_writing
        try:
            begin_writing(self._writer, self._lock_timeout_s)
        except BaseException:
            self._roll_back()
            raise
        return self._write_in_file(work)

    def _write_in_file(self, work: Callable[[Any], Result]) -> Result:
        """Run work in the transaction that the kept connection has begun, and end it."""
        began = time.monotonic()
        try:
            result = work(self._writer.cursor())
            self._writer.commit()
        except BaseException:
            self._roll_back()
            raise
        self._took_s = time.monotonic() - began
        self._transactions += 1
        if self._transactions % CHECKPOINT_COMMITS == 0:
            with suppress(RuntimeError):  # the store is closing, and SQLite makes a checkpoint then
                self._threads.submit(self._checkpoint)
        return result

    def _look(self, work: Callable[[Any], Result]) -> Result:
        """Run `work` in a transaction that only reads, at one moment, on the driver's own cursor, which is faster."""
        if self.is_local:
            try:
                return self._look_in_file(work)
            except sqlite3.OperationalError as error:
                if not is_undecodable(error):
                    raise
            self._check_before()
        return self._connected(self._snapshots, lambda connection: work(connection.connection.cursor()))

    def _look_in_file(self, work: Callable[[Any], Result]) -> Result:
        if self._looker is None:
            self._looker = self._detached()
        try:
            self._looker.execute("BEGIN")
            return work(self._looker.cursor())
        finally:
            try:
                self._looker.rollback()
            except self._driver.Error:
                self._forget_looker()

    def _detached(self) -> Any:
        """Return a new connection of the driver that no pool has."""
        if self._file:
            self._file.check()  # it would create a missing file
        pooled = self._engine.raw_connection()
        pooled.detach()
        return pooled.dbapi_connection

    def _forget_looker(self) -> None:
        looker, self._looker = self._looker, None
        if looker is not None:
            with suppress(self._driver.Error):
                looker.close()

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
        """Move SQLite's log into its file: most of it beside commits, and what these have added while none is made.

        SQLite begins its log anew only where all of it has been moved, so beside commits alone it would grow.
        """
        # A part of the log that cannot be moved now is moved later, at the latest by a commit that finds it too long.
        move = "PRAGMA wal_checkpoint(PASSIVE)"
        with suppress(self._driver.Error, exc.SQLAlchemyError), self._engine.connect() as connection:
            cursor = connection.connection.cursor()
            cursor.execute(move).fetchall()
            if self._room.take(self._lock_timeout_s):
                try:
                    cursor.execute(move).fetchall()
                finally:
                    self._room.leave()

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

    async def migrate(self) -> StoredVersion | None:
        """Make the tables, or bring them up, whatever `make_schema` says; return their version before, None if none.

        One of several programs that do so at once does it, and the others find it done. Programs of an earlier version
        may use the database meanwhile if the schema says that they may write it then, and not otherwise.

        Raises:
            SchemaVersionError: they cannot be brought up: they are of a later version that this code may not write, no
                migration leads from theirs, or programs that could not write them afterwards have them open.
            SchemaMissingError: the role may not make tables.
            StoreError: the database cannot be reached, or the role may not change the tables; nothing was changed.
        """

        def work() -> StoredVersion | None:
            with self._translated():
                if self._file:
                    self._file.check()
                stored = self._stored()
                if stored is None or is_older(self._schema, stored):
                    self._bring_up()
                else:
                    check_fits(self._schema, stored, self._name, reads_only=False)
                return stored

        return await self._on_own_thread(work)

    async def schema_state(self) -> tuple[StoredVersion | None, list[str]]:
        """Return the version of the tables, None if there are none, and the SQL that `migrate` would carry out."""

        def work() -> tuple[StoredVersion | None, list[str]]:
            with self._translated():
                stored = self._stored()
                return stored, [*statements_of(self._schema, stored, self._engine.dialect)]

        return await self._on_own_thread(work)

    async def grant(self, role: str) -> None:
        """Let a role of PostgreSQL read and write all tables of turnwise in this schema of the database, and no more.

        Raises:
            ConfigError: the store is a SQLite file, which has no roles, or this is no role, such as `public`.
            StoreError: there is no such role, or this one may not grant it.
        """
        if self.is_local:
            raise ConfigError("grant", role, "a SQLite file has no roles: its mode says who may write it")
        if role.lower() in NO_ROLES:
            raise ConfigError("grant", role, "it is no role, and PUBLIC means everybody: name a role of your programs")

        def work(connection: sa.Connection) -> None:
            quoted = self._engine.dialect.identifier_preparer.quote
            schema = quoted(connection.scalar(sa.text("SELECT current_schema()")))
            connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {schema} TO {quoted(role)}")
            for name in sa.inspect(connection).get_table_names():
                if name.startswith("turnwise_"):
                    rights = "SELECT, INSERT, UPDATE, DELETE"
                    connection.exec_driver_sql(f"GRANT {rights} ON {schema}.{quoted(name)} TO {quoted(role)}")

        await self._write(work)

    @property
    def schema_version(self) -> int:
        """The version of the tables that this code writes."""
        return self._schema.version

    async def _on_own_thread(self, work: Callable[[], Result]) -> Result:
        if self._closed:
            raise StoreClosedError(self._name)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _prepare(self) -> None:
        """Make missing tables, migrate old ones, and refuse those that this code may not use."""
        stored = self._stored()
        if stored is None or is_older(self._schema, stored):
            if self._is_read_only or not self._makes_schema:
                raise self._not_made(stored, "it may not be made here (read_only=True or make_schema=False)")
            stored = self._bring_up()
        check_fits(self._schema, stored, self._name, reads_only=self._is_read_only)
        self._ready = True

    def _stored(self) -> StoredVersion | None:
        with transaction(self._reader) as connection:
            if self._file:
                self._file.remember(connection)
            return stored_version(connection, self._schema, self._name)

    def _not_made(self, stored: StoredVersion | None, why: str) -> StoreError:
        if stored is None:
            return SchemaMissingError(self._name, why)
        remedy = f"{why}: run `turnwise migrate` on it, as a role that may change its tables"
        return SchemaVersionError(self._name, str(stored.version), self._schema.version, remedy)

    def _bring_up(self) -> StoredVersion:
        """Make or migrate the tables, unless another program has done so meanwhile; return their version then."""
        stored = None
        self._await_unused()
        try:
            with transaction(self._engine) as connection:
                self._lock(connection)
                driver: Any = connection.connection.dbapi_connection
                with nullcontext() if self._file else driver.unhurried():  # a migration has no time limit
                    stored = stored_version(connection, self._schema, self._name)  # another may have migrated meanwhile
                    return self._bring_up_in(connection, stored)
        except exc.DBAPIError as error:
            state = getattr(error.orig, "sqlstate", None)
            if state == READ_ONLY_SERVER:
                raise self._not_made(
                    stored, "this server is a read-only standby, which has what its primary has"
                ) from error
            if state != INSUFFICIENT_PRIVILEGE:
                raise
            raise self._not_made(stored, f"its role may not make it ({without_text(error.orig)})") from error

    def _bring_up_in(self, connection: sa.Connection, stored: StoredVersion | None) -> StoredVersion:
        schema = self._schema
        if stored is None:
            if not schema.tables.tables.keys().isdisjoint(sa.inspect(connection).get_table_names()):
                raise CorruptRecordError(
                    f"{schema.name} of {self._name}", "the row is missing although the tables exist"
                )
        elif not self._file and is_breaking(schema, stored):
            self._check_unused(connection, stored)
        bring_up(connection, schema, stored)
        return schema.stored

    def _await_unused(self) -> None:
        """Wait a moment until no program has tables open that it could not write after the migration.

        Nothing is locked meanwhile, so a migration that is refused, however often, holds nobody up.

        Raises:
            SchemaVersionError: programs have them open.
        """
        until = time.monotonic() + UNUSED_MS / 1000
        while not self._file and (stored := self._stored()) and is_older(self._schema, stored):
            if not is_breaking(self._schema, stored):
                return
            with transaction(self._reader) as connection:
                users = self._users(connection)
            if not users:
                return
            if time.monotonic() >= until:
                raise self._used(stored, users)
            time.sleep(LOOK_S)

    def _check_unused(self, connection: sa.Connection, stored: StoredVersion) -> None:
        """Take the tables' lock, which programs share that have them open, for this transaction.

        Who connects meanwhile waits until the tables are migrated. One that has connected since `_await_unused` gets a
        moment to leave.
        """
        keys = {"store": SCHEMA_LOCK, "schema": self._schema.lock_key}
        try:
            with connection.begin_nested():
                own = connection.scalar(sa.text("SELECT current_setting('lock_timeout')"))
                connection.execute(sa.text(f"SET LOCAL lock_timeout = {UNUSED_MS}"))
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(:store, :schema)"), keys)
                connection.execute(sa.select(sa.func.set_config("lock_timeout", own, True)))
                return
        except exc.OperationalError as error:
            if getattr(error.orig, "sqlstate", None) != LOCK_NOT_AVAILABLE:
                raise
        raise self._used(stored, self._users(connection))

    def _users(self, connection: sa.Connection) -> list[str]:
        """Return the names of the connections of other programs that have the tables open."""
        select = sa.text(
            "SELECT DISTINCT coalesce(application_name, 'unknown') FROM pg_catalog.pg_locks"
            " JOIN pg_catalog.pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND classid = :store"
            " AND objid = CAST(CAST(:schema AS bigint) & 4294967295 AS oid) AND mode = 'ShareLock' AND granted"
            " AND datname = current_database() AND pg_locks.database = datid AND pg_locks.pid <> pg_backend_pid()"
        )
        return sorted(connection.scalars(select, {"store": SCHEMA_LOCK, "schema": self._schema.lock_key}))

    def _used(self, stored: StoredVersion, users: list[str]) -> SchemaVersionError:
        names = ", ".join(users) or "unknown"
        remedy = f"programs that could not write it afterwards have it open ({names}): stop them, then migrate it"
        return SchemaVersionError(self._name, str(stored.version), self._schema.version, remedy)

    def _enter(self, connection: Any) -> None:
        """Let a new connection to a server share the lock of the schema, for its life, if this code may use the tables.

        So no migration takes the tables from a program that uses them, and none of an older version comes back to
        tables that it may no longer use. A connection that finds no or older tables shares it only after the
        transaction that makes them.
        """
        keys = (SCHEMA_LOCK, self._schema.lock_key)
        lock = "SELECT pg_advisory_lock_shared(%s, %s), to_regclass(%s) IS NOT NULL"
        (_, exists) = connection.execute(lock, (*keys, META.name)).fetchone()
        stored = None
        if exists:
            select = "SELECT name, value FROM turnwise_meta WHERE name = ANY(%s)"
            rows = dict(connection.execute(select, (names_of(self._schema),)).fetchall())
            stored = StoredVersion.of_rows(self._schema, rows, self._name)
        connection.shares_schema = stored is not None and stored.version >= self._schema.version
        if not connection.shares_schema:
            connection.execute("SELECT pg_advisory_unlock_shared(%s, %s)", keys)
        if self._ready and stored is not None:
            self._ready = stored.version >= self._schema.version
            check_fits(self._schema, stored, self._name, reads_only=self._is_read_only)
        connection.commit()


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
        parsed = sa.make_url(with_hosts_apart(url))
    except (exc.ArgumentError, ValueError):
        raise StoreURLError(name, "it is not a database URL") from None
    if parsed.drivername not in SQL_SCHEMES:
        raise StoreURLError(name, f"{parsed.drivername} is not a database that turnwise knows")
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise StoreURLError(name, "it names no file")
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername == "postgresql" else parsed


def _limit_waits(engine: sa.Engine, timeout_s: float, called: Callable[[], str], enter: Callable[[Any], None]) -> None:
    from turnwise.memory.stores.sql.postgres_connection import PostgresConnection  # needs a driver

    @sa.event.listens_for(engine, "do_connect")
    def connect(_: object, __: object, args: list[Any], settings: dict[str, Any]) -> PostgresConnection:
        connection = PostgresConnection.open(timeout_s, *args, **{"application_name": called(), **settings})
        try:
            enter(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    @sa.event.listens_for(engine, "checkin")
    def returned(connection: PostgresConnection | None, record: Any) -> None:
        if connection is not None and not connection.shares_schema:
            try:
                enter(connection)
            except Exception:  # noqa: BLE001 - the next connection meets it, and says so
                record.invalidate()
