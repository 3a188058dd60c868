"""Deletes sessions, one or many in a transaction, by statements that do not grow in number with the sessions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from turnwise.errors import SessionFencedError, SessionNotFoundError, TurnwiseError
from turnwise.memory.conversation.ledger import NUMBERS, LedgerKey
from turnwise.memory.conversation.runs import OPEN_STATES
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span, subtract
from turnwise.memory.stores.base import ended, new_jump
from turnwise.memory.stores.sql import schema
from turnwise.memory.stores.sql.database import insert_into
from turnwise.memory.stores.sql.files import FileTables
from turnwise.memory.stores.sql.rows import log_key
from turnwise.memory.stores.sql.statements import literals, summed
from turnwise.memory.stores.sql.texts import PARTS, TextIndex

_DEPENDENT = (schema.turns, schema.borrowed, schema.runs, schema.events, schema.deliveries, schema.members)
"""The tables whose rows belong to a session, which they name by its key."""


@dataclass(slots=True, eq=False)
class Deletion:
    """A request to delete a session; see `SessionStore.delete`."""

    key: SessionKey
    epoch: int | None
    log: str | None
    since: float
    """The time of the request, by the monotonic clock."""
    turns: int = 0
    """How many turns it had, once it is deleted."""

    def refusal(self, row: Any) -> TurnwiseError | None:
        """Return why the session of this row is not deleted; None if it is."""
        if row is None:
            return SessionNotFoundError(self.key.session_id)
        if self.log not in (None, str(row.key)) or self.epoch not in (None, row.epoch):
            return SessionFencedError(self.key.session_id, self.epoch)
        return None


class Deleting:
    """Deletes sessions within a transaction that holds the lock of the store: forks may share their blocks.

    Rows are locked in the order of their keys, as commits do.
    """

    def __init__(self, dialect: sa.Dialect, texts: TextIndex, files: FileTables) -> None:
        driver: Any = dialect.loaded_dbapi
        self._is_sqlite = dialect.name == "sqlite"
        self._has_pipeline = not self._is_sqlite and driver.Pipeline.is_supported()
        self._texts = texts
        self._files = files
        among = "IN (SELECT value FROM json_each(?))" if self._is_sqlite else "= ANY(CAST(%s AS bigint[]))"
        columns = [*(table.c.session for table in _DEPENDENT), schema.sessions.c.key]
        self._deletes = [f"DELETE FROM {column.table.name} WHERE {column.name} {among}" for column in columns]  # noqa: S608
        """The statements that delete the rows of sessions by their keys."""

    def delete(self, connection: sa.Connection, deletions: Sequence[Deletion]) -> list[TurnwiseError | None]:
        """Carry out deletions of different sessions; return for each why it was refused, or None."""
        own = schema.sessions.c
        names = [tuple(deletion.key) for deletion in deletions]
        select = self._rows(sa.tuple_(own.session_id, own.user_id).in_(names))
        rows = {SessionKey(row.session_id, row.user_id): row for row in connection.execute(select)}
        outcomes = [deletion.refusal(rows.get(deletion.key)) for deletion in deletions]
        gone = [rows[one.key] for one, refusal in zip(deletions, outcomes, strict=True) if refusal is None]
        turns = self._count_turns(connection, [int(row.key) for row in gone])
        keys = {key: int(row.key) for key, row in rows.items()}
        for deletion in deletions:
            deletion.turns = turns.get(keys.get(deletion.key, -1), 0)
        self._delete_rows(connection, gone)
        return outcomes

    def _count_turns(self, connection: sa.Connection, keys: Collection[int]) -> Mapping[int, int]:
        """Return how many turns each of these sessions has; those without turns are left out."""
        session = schema.turns.c.session
        count = sa.select(session, sa.func.count()).where(self._among(session, keys)).group_by(session)
        return {row[0]: row[1] for row in connection.execute(count)} if keys else {}

    def delete_unchanged(self, connection: sa.Connection, sessions: Sequence[SessionRecord]) -> list[SessionKey]:
        """See `UnchangedDeletion.delete_unchanged`."""
        rows = self._unchanged(connection, sessions)
        self._delete_rows(connection, rows)
        return [SessionKey(row.session_id, row.user_id) for row in rows]

    def end_unchanged(self, connection: sa.Connection, sessions: Sequence[SessionRecord]) -> list[SessionRecord]:
        """See `UnchangedDeletion.end_unchanged`."""
        rows, own, jump = self._unchanged(connection, sessions), schema.sessions.c, new_jump()
        if rows:
            changes = {"status": "ended", "epoch": own.epoch + 1, "revision": own.revision + jump}
            keys = [row.key for row in rows]
            connection.execute(sa.update(schema.sessions).where(self._among(own.key, keys)).values(changes))
        by_key = {session.key: session for session in sessions}
        return [ended(by_key[SessionKey(row.session_id, row.user_id)], jump) for row in rows]

    def _unchanged(self, connection: sa.Connection, sessions: Sequence[SessionRecord]) -> list[Any]:
        """Lock and return the rows of those sessions that nobody has used since they were read."""
        own, runs, agents = schema.sessions.c, schema.runs.c, schema.sessions.alias("agents").c
        by_key = {log_key(session.log): session for session in sessions}
        is_open = sa.exists().where(runs.session == own.key, runs.state.in_(literals(OPEN_STATES)))
        is_caller = sa.exists().where(agents.user_id == own.user_id, agents.called_by == own.session_id)
        is_idle = ~is_open & ~is_caller & (own.called_by == "")
        return [
            row
            for row in connection.execute(self._rows(self._among(own.key, by_key) & is_idle))
            if (row.epoch, row.revision) == (by_key[row.key].epoch, by_key[row.key].revision)
        ]

    @staticmethod
    def _rows(where: sa.ColumnElement[bool]) -> sa.Select[Any]:
        own = schema.sessions.c
        columns = (own.key, own.session_id, own.user_id, own.epoch, own.revision, own.log_size)
        return sa.select(*columns).where(where).order_by(own.key).with_for_update()

    def _delete_rows(self, connection: sa.Connection, rows: Sequence[Any]) -> None:
        """Delete all of sessions, and what no fork uses of their blocks."""
        if not rows:
            return
        keys = {int(row.key): str(row.user_id) for row in rows}
        own, borrowed, ledger, files = schema.sessions.c, schema.borrowed.c, schema.ledger.c, schema.files.c
        names = sa.select(own.session_id, own.user_id).where(self._among(own.key, keys))
        rename_in_ledger(connection, sa.tuple_(ledger.session_id, ledger.user_id).in_(names), session_id="")
        self._files.delete(connection, sa.tuple_(files.session_id, files.user_id).in_(names))
        lent = sa.select(borrowed.log).where(self._among(borrowed.session, keys))
        lenders = set(connection.scalars(lent)) - keys.keys()
        cursor: Any = connection.connection.cursor()
        with self._together(cursor):
            self._texts.drop_sessions(cursor, keys)
            for row in {row.key % PARTS: row for row in rows if row.log_size}.values():  # others never had a text
                self._texts.wipe(cursor, row.key)
            for statement in self._deletes:
                cursor.execute(statement, (self._text_of(keys),))
        alive = set(connection.scalars(sa.select(own.key).where(self._among(own.key, lenders)))) if lenders else set()
        self._release(connection, (keys.keys() | lenders) - alive)

    def _together(self, cursor: Any) -> AbstractContextManager[object]:
        """Return a context whose statements PostgreSQL gets at once, so that they cost one round trip."""
        return cursor.connection.pipeline() if self._has_pipeline else nullcontext()

    def _release(self, connection: sa.Connection, gone: Collection[int]) -> None:
        """Delete the blocks of deleted sessions' logs that no fork uses."""
        borrowed, blocks = schema.borrowed.c, schema.blocks.c
        used: dict[int, list[Span]] = {}
        spans = sa.select(borrowed.log, borrowed.start, borrowed.stop).where(self._among(borrowed.log, gone))
        for log, start, stop in connection.execute(spans):
            used.setdefault(log, []).append(Span(str(log), start, stop))
        if unused := set(gone) - used.keys():
            connection.execute(sa.delete(schema.blocks).where(self._among(blocks.log, unused)))
        for log, uses in used.items():
            bounds = sa.select(sa.func.min(blocks.at), sa.func.max(blocks.at)).where(blocks.log == log)
            first, last = connection.execute(bounds).one()
            if first is None:
                continue
            for _, start, stop in subtract((Span(str(log), first, last + 1),), uses):
                part = (blocks.log == log, blocks.at >= start, blocks.at < stop)
                connection.execute(sa.delete(schema.blocks).where(*part))

    def _among(self, column: sa.ColumnElement[int], keys: Collection[int]) -> sa.ColumnElement[bool]:
        """Return the condition that a column has one of these numbers; it is one parameter, however many they are."""
        text = sa.literal(self._text_of(keys))
        if self._is_sqlite:
            return column.in_(sa.select(sa.column("value")).select_from(sa.func.json_each(text)))
        return column == sa.any_(sa.cast(text, sa.ARRAY(sa.BigInteger)))

    def _text_of(self, keys: Collection[int]) -> str:
        """Return numbers as one parameter: as text, since the driver takes longer for an array of numbers."""
        numbers = ",".join(map(str, sorted(keys)))
        return f"[{numbers}]" if self._is_sqlite else f"{{{numbers}}}"


def rename_in_ledger(connection: sa.Connection, rows: sa.ColumnElement[bool], **names: str) -> int:
    """Give rows of the ledger other names, and add them to those with these names; return how many they were."""
    table = schema.ledger
    keys = [sa.literal(names[key]).label(key) if key in names else table.c[key] for key in LedgerKey._fields]
    other_keys = [table.c[key] for key in LedgerKey._fields if key not in names]
    sums = [sa.cast(sa.func.sum(table.c[name]), sa.BigInteger).label(name) for name in NUMBERS]
    renamed = sa.select(*keys, *sums).where(rows).group_by(*other_keys)
    insert = insert_into(table, connection.dialect).from_select([*LedgerKey._fields, *NUMBERS], renamed)
    connection.execute(summed(insert))
    return connection.execute(sa.delete(table).where(rows)).rowcount
