"""An event store in an SQL database, which may be the database of a session store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, Index, MetaData, PrimaryKeyConstraint, Table, Text

from turnwise.errors import HistoryConflictError
from turnwise.memory.conversation.codec import decoded_events
from turnwise.memory.conversation.events import AnyEvent, Event, without_blocks
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.event_store.base import check_appended
from turnwise.memory.stores.base import check_limit
from turnwise.memory.stores.sql.database import insert_into
from turnwise.memory.stores.sql.rows import event_row
from turnwise.memory.stores.sql.schema import event_columns
from turnwise.memory.stores.sql.schema_version import WHERE, Schema
from turnwise.memory.stores.sql.secure_delete import SecureDeleteDatabase
from turnwise.memory.stores.sql.statements import Statement, first_rows, read_first

tables = MetaData()

SCHEMA = Schema(name="history_version", version=1, tables=tables)

history = Table(
    "turnwise_history",
    tables,
    Column("session_id", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    *event_columns(),
    PrimaryKeyConstraint("user_id", "session_id", "seq"),
    sqlite_with_rowid=False,  # rows are stored in the order in which they are read, and the key only once
)
for _name, _columns, _filled in (
    ("turnwise_history_key", ("user_id", "session_id", "event_key"), history.c.event_key.is_not(None)),
    ("turnwise_history_run", ("run_id", "seq"), history.c.run_id.is_not(None)),
):
    Index(
        _name,
        *(history.c[column] for column in _columns),
        unique=_name == "turnwise_history_key",
        info={WHERE: _filled},
    )

_EVENT = [history.c[column.name] for column in event_columns()]
"""The columns of an event, without its session."""

_CHECKED = 1000
"""The most rows per lookup, since databases limit the values of a statement."""


_TOGETHER = 400
"""The most sessions whose events a statement deletes, for the same reason."""


class SQLHistory(SecureDeleteDatabase):
    """Stores events in its own table through SQLAlchemy Core.

    An append is one transaction: one INSERT, and a SELECT if some of the events were stored already. Deleted text is
    overwritten: see `SecureDeleteDatabase`.

    Args:
        url: `sqlite:///path/to/file.db` or `postgresql://user:password@host/name`; it may be that of a session store.
        lock_timeout_s: how long to wait for another process's transaction on SQLite before a StoreError.
        connections: the most connections to PostgreSQL at once.
        make_schema: whether missing tables are made and old ones migrated, if the role may; see `SQLDatabase`.

    Raises:
        StoreURLError: the URL names no database that can be used here.
    """

    schema = SCHEMA

    def __init__(
        self, url: str, *, lock_timeout_s: float = 30.0, connections: int = 4, make_schema: bool = True
    ) -> None:
        super().__init__(url, lock_timeout_s=lock_timeout_s, connections=connections, make_schema=make_schema)
        dialect, bind = self._engine.dialect, sa.bindparam
        insert = insert_into(history, dialect)
        is_session = (history.c.user_id == bind("user_id"), history.c.session_id == bind("session_id"))
        page = sa.select(*_EVENT).where(history.c.seq > bind("after")).order_by(history.c.seq).limit(bind("limit"))
        # SQLite would read the whole session by its primary key. A run's id is unique; the session is only compared.
        is_of_session = (column.concat("") == bind(column.name) for column in (history.c.user_id, history.c.session_id))
        self._insert = Statement(insert.on_conflict_do_nothing(), dialect)
        self._page, self._page_of_run = (
            Statement(first_rows(select, history.c.seq, dialect), dialect)
            for select in (page.where(*is_session), page.where(history.c.run_id == bind("run_id"), *is_of_session))
        )

    async def append(self, key: SessionKey, events: Sequence[Event]) -> None:
        check_appended(key, events)
        rows = [_row(event) for event in sorted(events, key=lambda event: event.seq)]

        def append(connection: sa.Connection) -> None:
            self._store(connection, key, rows)

        await self._write(append)

    async def events(
        self, key: SessionKey, *, after: int = 0, limit: int = 1000, run_id: str | None = None
    ) -> list[AnyEvent]:
        bounds: dict[str, Any] = {**key._asdict(), "after": after, "limit": check_limit(limit)}
        select = self._page
        if run_id is not None:
            select, bounds["run_id"] = self._page_of_run, run_id

        def read(connection: sa.Connection) -> list[AnyEvent]:
            return decoded_events(key, read_first(select(connection, bounds)))

        return await self._read(read)

    async def last_seq(self, key: SessionKey) -> int:
        statement = sa.select(sa.func.max(history.c.seq)).where(*_of(key))
        return int(await self._read(lambda connection: connection.execute(statement).scalar_one() or 0))

    async def delete(self, key: SessionKey, *, turns_up_to: int | None = None, instead: Sequence[Event] = ()) -> None:
        all_events = sa.delete(history).where(*_of(key))
        statement = all_events if turns_up_to is None else all_events.where(history.c.turn_index <= turns_up_to)
        rows = [_row(event) for event in instead]

        def delete(connection: sa.Connection) -> int:
            deleted = connection.execute(statement).rowcount
            for first in range(0, len(rows), _CHECKED):
                replaced = [row["seq"] for row in rows[first : first + _CHECKED]]
                deleted += connection.execute(all_events.where(history.c.seq.in_(replaced))).rowcount
            self._store(connection, key, rows)
            return deleted

        await self._erase(delete)

    async def delete_sessions(self, keys: Collection[SessionKey]) -> None:
        """See `ManyHistories`."""
        names = [(key.user_id, key.session_id) for key in keys]
        of_these = sa.tuple_(history.c.user_id, history.c.session_id)
        parts = [names[first : first + _TOGETHER] for first in range(0, len(names), _TOGETHER)]

        def delete(connection: sa.Connection) -> int:
            return sum(connection.execute(sa.delete(history).where(of_these.in_(part))).rowcount for part in parts)

        await self._erase(delete)

    async def delete_user(self, user_id: str) -> None:
        statement = sa.delete(history).where(history.c.user_id == user_id)
        await self._erase(lambda connection: connection.execute(statement).rowcount)

    def _store(self, connection: sa.Connection, key: SessionKey, rows: list[dict[str, Any]]) -> None:
        """Insert the rows whose number and key no event has; refuse others, unless they are stored already."""
        if rows and self._insert(connection, rows).rowcount < len(rows):
            for first in range(0, len(rows), _CHECKED):
                self._check_stored(connection, key, rows[first : first + _CHECKED])

    def _check_stored(self, connection: sa.Connection, key: SessionKey, rows: Sequence[dict[str, Any]]) -> None:
        """Refuse events whose sequence number or key a different stored event has.

        The INSERT came before. It left out a row whose number or key an event has, so a row whose number no event has
        was left out because of its key.
        """
        of_these = history.c.seq.in_([row["seq"] for row in rows])
        stored_rows = connection.execute(sa.select(*_EVENT).where(*_of(key), of_these)).all()
        stored = {event.seq: event for event in decoded_events(key, stored_rows)}
        for row in rows:
            if row["seq"] not in stored:
                raise HistoryConflictError(key.session_id, row["seq"], row["event_key"])
            if without_blocks(stored[row["seq"]]) != without_blocks(decoded_events(key, [_columns_of(row)])[0]):
                raise HistoryConflictError(key.session_id, row["seq"], None)


def _row(event: Event) -> dict[str, Any]:
    """Return the event's row, in the order of the columns."""
    row = event_row(0, event, blocks=True)
    del row["session"]
    return {**event.session_key._asdict(), **row}


def _columns_of(row: dict[str, Any]) -> list[Any]:
    """Return the values of a row's columns of the event."""
    return [row[column.name] for column in _EVENT]


def _of(key: SessionKey) -> tuple[sa.ColumnElement[bool], ...]:
    return history.c.user_id == key.user_id, history.c.session_id == key.session_id
