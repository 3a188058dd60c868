"""A store in an SQL database: SQLite for one node, PostgreSQL for a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from turnwise.errors import (
    CorruptRecordError,
    DuplicateKeyError,
    RunNotFoundError,
    SessionExistsError,
    SessionFencedError,
    SessionNotFoundError,
    StoreError,
)
from turnwise.memory import sql_schema as schema
from turnwise.memory.events import Event
from turnwise.memory.runs import RunRecord
from turnwise.memory.sessions import SessionRecord, SessionStatus
from turnwise.memory.spans import Span, Spans, subtract, union
from turnwise.memory.sql_database import SQLDatabase
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
from turnwise.memory.usage import Usage

Result = TypeVar("Result")


class SQLStore(SQLDatabase):
    """Keeps sessions in an SQL database through SQLAlchemy Core.

    A commit is one transaction of at most nine statements. Many processes may use one database at once; a SQLite file
    belongs to one machine. The tables are made, or migrated, at first use.

    Args:
        url: `sqlite:///path/to/file.db` or `postgresql://user:password@host/name`.
        lock_timeout_s: how long to wait for another process's transaction on SQLite before a StoreError.
        connections: the most connections to PostgreSQL at once.

    Raises:
        StoreURLError: the URL names no database that can be used here.
    """

    def __init__(self, url: str, *, lock_timeout_s: float = 30.0, connections: int = 4) -> None:
        super().__init__(url, schema.SCHEMA, lock_timeout_s=lock_timeout_s, connections=connections)
        self._sql = Statements(self._engine.dialect)

    async def create(self, session: SessionRecord, turn: TurnRecord | None = None, also: Spans = ()) -> SessionRecord:
        borrowed = union(turn.prompt, turn.input, turn.carried, turn.output, also) if turn else ()

        def create(connection: sa.Connection) -> SessionRecord:
            if borrowed:
                self._lock(connection)
                for span in borrowed:
                    if self._sql.count_blocks(connection, _bounds(span)).scalar_one() < span.stop - span.start:
                        raise CorruptRecordError(f"turn {session.parent}", f"blocks of {span} are missing")
            try:
                key = self._sql.insert_session(connection, session_row(session)).scalar_one()
            except exc.IntegrityError as error:
                raise SessionExistsError(session.session_id) from error
            if borrowed:
                self._sql.insert_borrowed(connection, [{"session": key, **_bounds(span)} for span in borrowed])
            if turn:
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
            await self._write_fast(write)
        except StoreError as error:
            if self._is_duplicate(error):
                await self._refuse_duplicate(session_id, commit, error)
            raise

    async def blocks(self, spans: Sequence[Span]) -> list[str]:
        def read(connection: sa.Connection) -> list[str]:
            bodies: list[str] = []
            for span in spans:
                found = dict(self._sql.blocks.rows(connection, _bounds(span)))
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
            self._lock(connection)
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


def _bounds(span: Span) -> dict[str, int]:
    return {"log": log_key(span.log), "start": span.start, "stop": span.stop}


def _filters(user_id: str | None, agent: str | None, status: str | None = None) -> list[sa.ColumnElement[bool]]:
    wanted = {"user_id": user_id, "agent": agent, "status": status}
    return [schema.sessions.c[name] == value for name, value in wanted.items() if value is not None]
