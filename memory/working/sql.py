"""Notes in an SQL database, which may be a session store's database."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Boolean, Column, MetaData, PrimaryKeyConstraint, Table, Text

from turnwise.memory.conversation.codec import to_json
from turnwise.memory.conversation.required_arguments import needs
from turnwise.memory.longterm.base import Scope
from turnwise.memory.stores.sql.database import Schema
from turnwise.memory.stores.sql.secure_delete import SecureDeleteDatabase
from turnwise.memory.working.base import Change, check_scope, decode_note

tables = MetaData()

SCHEMA = Schema(name="notes_version", version=1, tables=tables)

notes = Table(
    "turnwise_notes",
    tables,
    Column("user_id", Text, nullable=False),
    Column("of_session", Boolean, nullable=False),
    Column("session_id", Text, nullable=False),
    Column("text", Text, nullable=False),
    PrimaryKeyConstraint("user_id", "of_session", "session_id"),
)


@needs(url="pass where it is, such as SQLNotes('sqlite:///notes.db')")
class SQLNotes(SecureDeleteDatabase):
    """Stores notes in its own table through SQLAlchemy Core.

    Deleted text is overwritten, and a pickle has the settings: see `SecureDeleteDatabase`.

    Args:
        url: `sqlite:///path/to/file.db` or `postgresql://user:password@host/name`; it may be that of other stores.
        lock_timeout_s: how long to wait for another process's transaction on SQLite before a StoreError.
        connections: the most connections to PostgreSQL at once.

    Raises:
        StoreURLError: the URL names no database that can be used here.
    """

    schema = SCHEMA

    async def read(self, scope: Scope) -> str | None:
        return await self._read(lambda connection: _text(connection, scope))

    async def change(self, scope: Scope, change: Change) -> str | None:
        check_scope(scope)

        def rewrite(connection: sa.Connection) -> str | None:
            self._lock_user(connection, scope.user_id)
            before = _text(connection, scope)
            text = change(before)
            if text is None:
                connection.execute(sa.delete(notes).where(*_is(scope)))
            elif before is None:
                key = {"of_session": scope.session_id is not None, "session_id": scope.session_id or ""}
                connection.execute(sa.insert(notes).values(user_id=scope.user_id, text=to_json(text), **key))
            else:
                connection.execute(sa.update(notes).where(*_is(scope)).values(text=to_json(text)))
            return text

        return await self._write(rewrite)

    async def purge(self, user_id: str, *, session_id: str | None = None) -> int:
        which = (
            (notes.c.user_id == user_id,) if session_id is None else _is(Scope(user_id=user_id, session_id=session_id))
        )

        def purge(connection: sa.Connection) -> int:
            self._lock_user(connection, user_id)
            return connection.execute(sa.delete(notes).where(*which)).rowcount

        (purged,) = await self._erase(purge)
        return purged


def _is(scope: Scope) -> tuple[sa.ColumnElement[bool], ...]:
    of_session = notes.c.of_session.is_(scope.session_id is not None)
    return notes.c.user_id == scope.user_id, of_session, notes.c.session_id == (scope.session_id or "")


def _text(connection: sa.Connection, scope: Scope) -> str | None:
    return decode_note(scope, connection.scalar(sa.select(notes.c.text).where(*_is(scope))))
