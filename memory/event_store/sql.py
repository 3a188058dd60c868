"""An event store in an SQL database, which may be the database of a session store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, Index, MetaData, PrimaryKeyConstraint, Table, Text

from turnwise.errors import HistoryConflictError
from turnwise.memory.conversation.events import AnyEvent, Event, without_blocks
from turnwise.memory.event_store.base import check_session
from turnwise.memory.stores.base import check_limit
from turnwise.memory.stores.sql.database import WHERE, Schema, insert_into
from turnwise.memory.stores.sql.rows import event_row, read_event
from turnwise.memory.stores.sql.schema import event_columns
from turnwise.memory.stores.sql.secure_delete import SecureDeleteDatabase
from turnwise.memory.stores.sql.statements import Statement, first_rows, read_first

tables = MetaData()

SCHEMA = Schema(name="history_version", version=1, tables=tables)

history = Table(
    "turnwise_history",
    tables,
    Column("session_id", Text, nullable=False),
    *event_columns(),
    PrimaryKeyConstraint("session_id", "seq"),
    sqlite_with_rowid=False,  # rows are stored in the order in which they are read, and the key only once
)
for _name, _columns, _filled in (
    ("turnwise_history_key", ("session_id", "event_key"), history.c.event_key.is_not(None)),
    ("turnwise_history_run", ("session_id", "run_id", "seq"), history.c.run_id.is_not(None)),
):
    Index(
        _name,
        *(history.c[column] for column in _columns),
        unique=_name == "turnwise_history_key",
        info={WHERE: _filled},
    )

_CHECKED = 1000
"""The most rows per lookup, since databases limit the values of a statement."""


class SQLHistory(SecureDeleteDatabase):
    """Stores events in its own table through SQLAlchemy Core.

    An append is one transaction: one INSERT, and a SELECT if some of the events were stored already. Deleted text is
    overwritten: see `SecureDeleteDatabase`.

    Args:
        url: `sqlite:///path/to/file.db` or `postgresql://user:password@host/name`; it may be that of a session store.
        lock_timeout_s: how long to wait for another process's transaction on SQLite before a StoreError.
        connections: the most connections to PostgreSQL at once.

    Raises:
        StoreURLError: the URL names no database that can be used here.
    """

    schema = SCHEMA

    def __init__(self, url: str, *, lock_timeout_s: float = 30.0, connections: int = 4) -> None:
        super().__init__(url, lock_timeout_s=lock_timeout_s, connections=connections)
        dialect, bind = self._engine.dialect, sa.bindparam
        insert = insert_into(history, dialect)
        page = sa.select(history).where(history.c.session_id == bind("session_id"), history.c.seq > bind("after"))
        page = page.order_by(history.c.seq).limit(bind("limit"))
        self._insert = Statement(insert.on_conflict_do_nothing(), dialect)
        self._page, self._page_of_run = (
            Statement(first_rows(each, history.c.seq, dialect), dialect)
            for each in (page, page.where(history.c.run_id == bind("run_id")))
        )

    async def append(self, session_id: str, events: Sequence[Event]) -> None:
        check_session(session_id, events)
        rows = [_row(event) for event in sorted(events, key=lambda event: event.seq)]

        def append(connection: sa.Connection) -> None:
            if rows and self._insert(connection, rows).rowcount < len(rows):
                for first in range(0, len(rows), _CHECKED):
                    self._check_stored(connection, session_id, rows[first : first + _CHECKED])

        await self._write(append)

    async def events(
        self, session_id: str, *, after: int = 0, limit: int = 1000, run_id: str | None = None
    ) -> list[AnyEvent]:
        bounds: dict[str, Any] = {"session_id": session_id, "after": after, "limit": check_limit(limit)}
        select = self._page
        if run_id is not None:
            select, bounds["run_id"] = self._page_of_run, run_id

        def read(connection: sa.Connection) -> list[AnyEvent]:
            return read_first(select(connection, bounds), lambda row: read_event(row, session_id))

        return await self._read(read)

    async def last_seq(self, session_id: str) -> int:
        statement = sa.select(sa.func.max(history.c.seq)).where(history.c.session_id == session_id)
        return int(await self._read(lambda connection: connection.execute(statement).scalar_one() or 0))

    async def delete(self, session_id: str, *, turns_up_to: int | None = None, instead: Sequence[Event] = ()) -> None:
        whole = sa.delete(history).where(history.c.session_id == session_id)
        statement = whole if turns_up_to is None else whole.where(history.c.turn_index <= turns_up_to)
        rows = [_row(event) for event in instead]

        def delete(connection: sa.Connection) -> None:
            connection.execute(statement)
            for first in range(0, len(rows), _CHECKED):
                replaced = [row["seq"] for row in rows[first : first + _CHECKED]]
                connection.execute(whole.where(history.c.seq.in_(replaced)))
            if rows:
                self._insert(connection, rows)

        await self._erase(delete)

    def _check_stored(self, connection: sa.Connection, session_id: str, rows: Sequence[dict[str, Any]]) -> None:
        """Refuse events whose sequence number or key a different stored event has."""
        of_these = history.c.seq.in_([row["seq"] for row in rows])
        found = connection.execute(sa.select(history).where(history.c.session_id == session_id, of_these))
        stored = {row.seq: read_event(row, session_id) for row in found}
        for row in rows:
            if row["seq"] not in stored:
                raise HistoryConflictError(session_id, row["seq"], row["event_key"])
            if without_blocks(stored[row["seq"]]) != without_blocks(read_event(row.values(), session_id)):
                raise HistoryConflictError(session_id, row["seq"], None)


def _row(event: Event) -> dict[str, Any]:
    """Return the event's row, in the order of the columns."""
    row = event_row(0, event, blocks=True)
    del row["session"]
    return {"session_id": event.session_id, **row}
