"""A store in an SQL database: SQLite for one node, PostgreSQL for a cluster."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from turnwise.errors import (
    CorruptRecordError,
    DuplicateKeyError,
    RunNotFoundError,
    SchemaVersionError,
    SessionExistsError,
    SessionFencedError,
    SessionNotFoundError,
    StoreClosedError,
    StoreError,
    StoreURLError,
)
from turnwise.memory import sql_schema as schema
from turnwise.memory.events import Event
from turnwise.memory.runs import RunRecord
from turnwise.memory.sessions import SessionRecord, SessionStatus
from turnwise.memory.spans import Span, subtract, union
from turnwise.memory.sql_rows import (
    changed_run_row,
    changed_session_row,
    event_row,
    log_key,
    read_event,
    read_run,
    read_session,
    read_turn,
    read_usage,
    run_row,
    session_row,
    turn_row,
)
from turnwise.memory.sql_statements import Statement, Statements
from turnwise.memory.store import Activation, Commit, Page, SessionOrder, check_limit, cursor_of, parse_cursor
from turnwise.memory.turns import TurnRecord
from turnwise.memory.urls import SQL_SCHEMES, redact
from turnwise.memory.usage import Usage

Result = TypeVar("Result")

CHECKPOINT_COMMITS = 100
"""After how many commits of a process SQLite's log is moved into its file."""

_BEGIN = "BEGIN IMMEDIATE"
"""For SQLite: a writer takes the lock at once, as one that upgrades from reading can fail without waiting."""


class SQLStore:
    """Keeps sessions in an SQL database through SQLAlchemy Core.

    A commit is one transaction of at most nine statements; it is on disk on return (SQLite: WAL, synchronous FULL).
    Statements run on the store's own threads: one for SQLite, `connections` for PostgreSQL. Many processes may use one
    database at once; a SQLite file belongs to one machine. The tables are made at first use.

    Args:
        url: `sqlite:///path/to/file.db` or `postgresql://user:password@host/name`.
        lock_timeout_s: how long to wait for another process's transaction on SQLite before a StoreError.
        connections: the most connections to PostgreSQL at once.

    Raises:
        StoreURLError: the URL names no database that can be used here.
    """

    def __init__(self, url: str, *, lock_timeout_s: float = 30.0, connections: int = 4) -> None:
        self._name = redact(url)
        try:
            parsed = sa.make_url(url)
        except (exc.ArgumentError, ValueError):
            raise StoreURLError(self._name, "it is not a database URL") from None
        if parsed.drivername not in SQL_SCHEMES:
            raise StoreURLError(self._name, f"{parsed.drivername} is not a database that turnwise knows")
        sqlite = parsed.get_backend_name() == "sqlite"
        if sqlite:
            if not parsed.database or parsed.database == ":memory:":
                raise StoreURLError(self._name, "it names no file")
            connections = 1
        elif parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        try:
            self._engine = sa.create_engine(
                parsed,
                pool_size=connections,
                max_overflow=0,
                pool_timeout=lock_timeout_s,
                pool_pre_ping=not sqlite,  # one round trip more, so that a server's restart fails no verb after it
            )
        except ModuleNotFoundError as error:
            why = f"its driver is missing ({error}): pip install 'turnwise[postgres]'"
            raise StoreURLError(self._name, why) from error
        if sqlite:
            _configure_sqlite(self._engine, lock_timeout_s)
        self._reader = self._engine.execution_options(turnwise_read=True)
        self._sql = Statements(self._engine.dialect)
        self._driver: Any = self._engine.dialect.loaded_dbapi
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="turnwise-store")
        self._commits = 0
        self._ready = False
        self._closed = False

    def __repr__(self) -> str:
        return f"SQLStore({self._name!r})"

    async def create(self, session: SessionRecord, turn: TurnRecord | None = None) -> SessionRecord:
        borrowed = union(turn.prompt, turn.input, turn.output) if turn else ()

        def create(connection: sa.Connection) -> SessionRecord:
            if borrowed:
                self._lock_logs(connection)
                for span in borrowed:
                    if self._sql.count_blocks(connection, _bounds(span)).scalar_one() < span.stop - span.start:
                        raise CorruptRecordError(f"turn {session.parent}", f"blocks of {span} are missing")
            try:
                key = self._sql.insert_session(connection, session_row(session)).scalar_one()
            except exc.IntegrityError as error:
                raise SessionExistsError(session.session_id) from error
            if turn:
                self._sql.insert_borrowed(connection, [{"session": key, **_bounds(span)} for span in borrowed])
                self._sql.put_turn(connection, [turn_row(key, turn)])
            return replace(session, log=str(key))

        return await self._write(create)

    async def get(self, session_id: str) -> SessionRecord:
        return await self._read(lambda connection: self._session(connection, session_id))

    async def activate(self, session_id: str) -> Activation:
        def activate(connection: sa.Connection) -> Activation:
            row = self._sql.raise_epoch(connection, {"session_id": session_id}).one_or_none()
            if row is None:
                raise SessionNotFoundError(session_id)
            key = {"key": row.key}
            head = self._sql.head(connection, key).one_or_none()
            return Activation(
                session=read_session(row),
                head=read_turn(head, session_id) if head else None,
                open_turns=tuple(read_turn(found, session_id) for found in self._sql.open_turns(connection, key)),
                open_runs=tuple(read_run(found, session_id) for found in self._sql.open_runs(connection, key)),
            )

        return await self._write(activate)

    async def commit(self, session_id: str, epoch: int, commit: Commit) -> None:
        session = commit.session
        key = log_key(session.log)

        def write(cursor: Any) -> None:
            sql = self._sql
            if not sql.put_session.write(cursor, changed_session_row(session, epoch)):
                raise SessionFencedError(session_id, epoch)
            first = session.log_size - len(commit.blocks)
            blocks = ({"log": key, "at": at, "body": body} for at, body in enumerate(commit.blocks, first))
            sql.insert_block.write(cursor, *blocks)
            sql.drop_turn.write(cursor, *({"b_session": key, "b_idx": index} for index in commit.dropped_turns))
            sql.put_turn.write(cursor, *(turn_row(key, turn) for turn in commit.turns))
            sql.insert_run.write(cursor, *(run_row(key, run) for run in [commit.new_run] if run))
            sql.put_run.write(cursor, *(changed_run_row(key, run) for run in commit.runs))
            if commit.forget_events:
                sql.forget_events.write(cursor, {"b_session": key, "b_upto": commit.forget_events})
            sql.insert_event.write(cursor, *(event_row(key, event) for event in commit.events))

        try:
            await self._on_thread(lambda: self._transact(write))
        except StoreError as error:
            if isinstance(error.__cause__, self._driver.IntegrityError):
                await self._refuse_duplicate(session_id, commit, error)
            raise

    async def blocks(self, spans: Sequence[Span]) -> list[str]:
        def read(connection: sa.Connection) -> list[str]:
            bodies: list[str] = []
            for span in spans:
                found = {row.at: row.body for row in self._sql.blocks(connection, _bounds(span))}
                for at in range(span.start, span.stop):
                    if at not in found:
                        raise CorruptRecordError(f"block {span.log}:{at}", "missing")
                    bodies.append(found[at])
            return bodies

        return await self._read(read)

    async def turns(self, session_id: str, *, after: int = -1, limit: int = 100) -> list[TurnRecord]:
        return await self._list(self._sql.turns, session_id, after, limit, lambda row: read_turn(row, session_id))

    async def run(self, run_id: str) -> RunRecord:
        def read(connection: sa.Connection) -> RunRecord:
            row = self._sql.run(connection, {"run_id": run_id}).one_or_none()
            if row is None:
                raise RunNotFoundError(run_id, "the store")
            return read_run(row, row.owner)

        return await self._read(read)

    async def run_of_key(self, session_id: str, idempotency_key: str) -> RunRecord | None:
        row = await self._find(self._sql.run_of_key, {"session_id": session_id, "idempotency_key": idempotency_key})
        return read_run(row, session_id) if row else None

    async def runs(self, session_id: str, *, after: int = -1, limit: int = 100) -> list[RunRecord]:
        return await self._list(self._sql.runs, session_id, after, limit, lambda row: read_run(row, session_id))

    async def events(self, session_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return await self._list(self._sql.events, session_id, after, limit, lambda row: read_event(row, session_id))

    async def event_of_key(self, session_id: str, key: str) -> Event | None:
        row = await self._find(self._sql.event_of_key, {"session_id": session_id, "event_key": key})
        return read_event(row, session_id) if row else None

    async def query(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        status: SessionStatus | None = None,
        order_by: SessionOrder = "created_at",
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[SessionRecord]:
        table = schema.sessions.c
        time = table.updated_at if order_by == "updated_at" else table.created_at
        statement = sa.select(schema.sessions).where(*_filters(user_id, agent, status))
        if cursor is not None:
            before, key = parse_cursor(cursor)
            statement = statement.where((time < before) | ((time == before) & (table.key < key)))
        statement = statement.order_by(time.desc(), table.key.desc()).limit(check_limit(limit) + 1)
        rows = await self._read(lambda connection: connection.execute(statement).all())
        page = rows[:limit]
        more = cursor_of(getattr(page[-1], order_by), page[-1].key) if len(rows) > limit else None
        return Page(tuple(map(read_session, page)), more)

    async def count(
        self, *, user_id: str | None = None, agent: str | None = None, status: SessionStatus | None = None
    ) -> int:
        statement = sa.select(sa.func.count()).select_from(schema.sessions).where(*_filters(user_id, agent, status))
        return await self._read(lambda connection: int(connection.execute(statement).scalar_one()))

    async def usage(self, *, user_id: str | None = None, agent: str | None = None) -> Usage:
        sums = (sa.func.coalesce(sa.func.sum(schema.sessions.c[name]), 0).label(name) for name in schema.USAGE)
        statement = sa.select(*sums).where(*_filters(user_id, agent))
        return await self._read(lambda connection: read_usage(connection.execute(statement).one()))

    async def delete(self, session_id: str, *, epoch: int | None = None) -> None:
        def delete(connection: sa.Connection) -> None:
            self._lock_logs(connection)
            session = self._session(connection, session_id)
            sessions = sa.delete(schema.sessions).where(schema.sessions.c.session_id == session_id)
            if epoch is not None:
                sessions = sessions.where(schema.sessions.c.epoch == epoch)
            if not connection.execute(sessions).rowcount:
                raise SessionFencedError(session_id, epoch)
            key = int(session.log)
            borrowed = schema.borrowed.c
            logs = {key, *connection.scalars(sa.select(borrowed.log).where(borrowed.session == key))}
            for table in (schema.borrowed, schema.turns, schema.runs, schema.events):
                connection.execute(sa.delete(table).where(table.c.session == key))
            for log in logs:
                self._release(connection, log)

        await self._write(delete)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._threads.shutdown)
            self._engine.dispose()

    def _release(self, connection: sa.Connection, log: int) -> None:
        """Delete what nobody spans of a log whose session is gone."""
        sessions, borrowed, blocks = schema.sessions.c, schema.borrowed.c, schema.blocks.c
        if connection.scalar(sa.select(sessions.key).where(sessions.key == log)):
            return
        used = connection.execute(sa.select(borrowed.start, borrowed.stop).where(borrowed.log == log))
        ends = connection.execute(
            sa.select(sa.func.min(blocks.at), sa.func.max(blocks.at)).where(blocks.log == log)
        ).one()
        if ends[0] is None:
            return
        whole = Span(str(log), ends[0], ends[1] + 1)
        for _, start, stop in subtract((whole,), (Span(str(log), *row) for row in used)):
            connection.execute(sa.delete(schema.blocks).where(blocks.log == log, blocks.at >= start, blocks.at < stop))

    def _lock_logs(self, connection: sa.Connection) -> None:
        """Let no fork be made of what is being deleted. A SQLite transaction that writes is alone anyway."""
        if self._engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(0x7475726E)))

    def _session(self, connection: sa.Connection, session_id: str) -> SessionRecord:
        row = self._sql.session(connection, {"session_id": session_id}).one_or_none()
        if row is None:
            raise SessionNotFoundError(session_id)
        return read_session(row)

    async def _find(self, select: Statement, wanted: dict[str, Any]) -> sa.Row[Any] | None:
        def read(connection: sa.Connection) -> sa.Row[Any] | None:
            row = select(connection, wanted).one_or_none()
            if row is None:
                self._session(connection, wanted["session_id"])
            return row

        return await self._read(read)

    async def _list(
        self, select: Statement, session_id: str, after: int, limit: int, parse: Callable[[Any], Result]
    ) -> list[Result]:
        def read(connection: sa.Connection) -> list[Result]:
            bounds = {"session_id": session_id, "after": after, "limit": check_limit(limit)}
            found = [parse(row) for row in select(connection, bounds)]
            if not found:
                self._session(connection, session_id)
            return found

        return await self._read(read)

    async def _refuse_duplicate(self, session_id: str, commit: Commit, error: StoreError) -> None:
        """Raise DuplicateKeyError if one of the commit's keys is why the database refused it."""
        keys = [event.key for event in commit.events if event.key is not None]
        for key in keys:
            if keys.count(key) > 1 or await self.event_of_key(session_id, key):
                raise DuplicateKeyError(session_id, key) from error
        if run := commit.new_run:
            if run.idempotency_key is not None and await self.run_of_key(session_id, run.idempotency_key):
                raise DuplicateKeyError(session_id, run.idempotency_key) from error
            with suppress(RunNotFoundError):
                await self.run(run.run_id)
                raise DuplicateKeyError(session_id, run.run_id) from error

    async def _write(self, work: Callable[[sa.Connection], Result]) -> Result:
        return await self._on_thread(lambda: self._connected(self._engine, work))

    async def _read(self, work: Callable[[sa.Connection], Result]) -> Result:
        return await self._on_thread(lambda: self._connected(self._reader, work))

    async def _on_thread(self, work: Callable[[], Result]) -> Result:
        def call() -> Result:
            with self._translated():
                if not self._ready:
                    self._prepare()
                return work()

        if self._closed:
            raise StoreClosedError(self._name)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    @staticmethod
    def _connected(engine: sa.Engine, work: Callable[[sa.Connection], Result]) -> Result:
        with engine.begin() as connection:
            return work(connection)

    def _transact(self, work: Callable[[Any], None]) -> None:
        """Run `work` in a transaction on the driver's own cursor: what is done for every turn is worth the shortcut."""
        connection = self._engine.raw_connection()
        try:
            cursor = connection.cursor()
            if self._engine.dialect.name == "sqlite":
                cursor.execute(_BEGIN)
            work(cursor)
            connection.commit()
        finally:
            connection.close()  # back to the pool, which rolls back what was not committed
        self._commits += 1
        if self._commits % CHECKPOINT_COMMITS == 0 and self._engine.dialect.name == "sqlite":
            with suppress(RuntimeError):  # the store is being closed, and SQLite makes a checkpoint then
                self._threads.submit(self._checkpoint)

    def _checkpoint(self) -> None:
        """Move SQLite's log into its file between commits, so that no commit takes the time for it."""
        # What cannot be moved now is moved later, at the latest by the commit that finds the log too long.
        with suppress(self._driver.Error, exc.SQLAlchemyError), self._engine.connect() as connection:
            connection.connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn the database's errors into ours, in this one place."""
        try:
            yield
        except (exc.DBAPIError, self._driver.Error) as error:
            cause = error.orig if isinstance(error, exc.DBAPIError) else error
            why = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
            hint = "is it reachable, writable and a turnwise store?"
            raise StoreError(f"store {self._name}: {why}; {hint}") from cause
        except (exc.SQLAlchemyError, ValueError, OverflowError) as error:  # the last two: values that cannot be stored
            raise StoreError(f"store {self._name}: {error}") from error

    def _prepare(self) -> None:
        """Make the tables if there are none; refuse a schema that is not ours."""
        version = sa.select(schema.meta.c.value).where(schema.meta.c.name == "schema_version")
        with self._reader.begin() as connection:
            exists = sa.inspect(connection).has_table(schema.meta.name)
            found = connection.scalar(version) if exists else None
        if found is None:
            with self._engine.begin() as connection:
                self._lock_logs(connection)
                schema.tables.create_all(connection)
                found = connection.scalar(version)
                if found is None:
                    found = str(schema.VERSION)
                    connection.execute(sa.insert(schema.meta).values(name="schema_version", value=found))
        if found != str(schema.VERSION):
            raise SchemaVersionError(self._name, found, schema.VERSION)
        self._ready = True


def _configure_sqlite(engine: sa.Engine, lock_timeout_s: float) -> None:
    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver begins no transaction on its own
        connection.execute(f"PRAGMA busy_timeout = {int(lock_timeout_s * 1000)}")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 8000")  # pages; for processes that end before they make one
        _use_wal(connection, lock_timeout_s)

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        reads = connection.get_execution_options().get("turnwise_read")
        connection.exec_driver_sql("BEGIN" if reads else _BEGIN)


def _use_wal(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Switch the file to WAL. Of two that open a new file at once SQLite refuses one, and does not let it wait."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _bounds(span: Span) -> dict[str, int]:
    return {"log": log_key(span.log), "start": span.start, "stop": span.stop}


def _filters(user_id: str | None, agent: str | None, status: str | None = None) -> list[sa.ColumnElement[bool]]:
    wanted = {"user_id": user_id, "agent": agent, "status": status}
    return [schema.sessions.c[name] == value for name, value in wanted.items() if value is not None]
