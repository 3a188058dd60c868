"""How commits of sessions are written, one or many, on the driver's own cursor within a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from turnwise.errors import SessionFencedError
from turnwise.memory.sql_rows import changed_run_row, changed_session_row, event_row, log_key, run_row, turn_row
from turnwise.memory.sql_statements import Statements
from turnwise.memory.sqlite_file import BEGIN
from turnwise.memory.store import Commit


@dataclass(frozen=True, slots=True)
class Asked:
    """A commit that is asked for."""

    session_id: str
    epoch: int
    commit: Commit
    since: float
    """When it was asked for, by the monotonic clock."""

    @property
    def key(self) -> int:
        """Of the session's row, and the name of its log."""
        return log_key(self.commit.session.log)


class CommitWriter:
    """Writes commits of different sessions in the transaction that a cursor is in.

    Session rows are taken in the order of their keys, so groups of several processes wait for each other, and never in
    a circle. To PostgreSQL all statements go at once (pipeline mode), so a group costs one round trip and the COMMIT.
    """

    def __init__(self, sql: Statements, dialect: sa.Dialect) -> None:
        driver: Any = dialect.loaded_dbapi
        self._sql = sql
        self._is_sqlite = dialect.name == "sqlite"
        self._has_pipeline = not self._is_sqlite and driver.Pipeline.is_supported()

    def write(self, cursor: Any, group: Sequence[Asked]) -> list[Exception | None]:
        """Write those of the group that can be written; return for each why it cannot, None if it is.

        Raises:
            Exception: nothing of the group is written; the transaction is to be rolled back.
        """
        if len(group) == 1 and not self._has_pipeline:
            self._write_one(cursor, group[0])
            return [None]
        order = sorted(range(len(group)), key=lambda at: group[at].key)
        outcomes: list[Exception | None] = [None] * len(group)
        try:
            self._write_together(cursor, [group[at] for at in order])
        except Exception:  # noqa: BLE001 - it is not known which of them is refused: each is told on its own
            cursor.connection.rollback()
            if self._is_sqlite:
                cursor.execute(BEGIN)
            for at in order:
                outcomes[at] = self._try(cursor, group[at])
        return outcomes

    def _write_together(self, cursor: Any, group: Sequence[Asked]) -> None:
        sessions = cursor.connection.cursor()
        with self._pipeline(cursor):
            self._sql.put_session.write(sessions, *map(_session_row, group))
            self._write_rest(cursor, group)
        if sessions.rowcount != len(group):
            raise SessionFencedError(group[0].session_id, group[0].epoch)  # or another of them

    def _try(self, cursor: Any, asked: Asked) -> Exception | None:
        """Write one whole, or nothing of it; return why not."""
        cursor.execute("SAVEPOINT one")
        try:
            self._write_one(cursor, asked)
        except Exception as error:  # noqa: BLE001 - its caller raises it
            cursor.execute("ROLLBACK TO SAVEPOINT one")  # raises if the whole transaction is lost
            return error
        cursor.execute("RELEASE SAVEPOINT one")
        return None

    def _write_one(self, cursor: Any, asked: Asked) -> None:
        if not self._sql.put_session.write(cursor, _session_row(asked)):
            raise SessionFencedError(asked.session_id, asked.epoch)
        self._write_rest(cursor, [asked])

    def _write_rest(self, cursor: Any, group: Sequence[Asked]) -> None:
        """Write all but the session rows, kind by kind: what one session has is no matter to another."""
        sql, commits = self._sql, [(asked.key, asked.commit) for asked in group]
        sql.insert_block.write(
            cursor,
            *(
                {"log": key, "at": at, "body": body}
                for key, commit in commits
                for at, body in enumerate(commit.blocks, commit.session.log_size - len(commit.blocks))
            ),
        )
        sql.drop_turn.write(
            cursor, *({"b_session": key, "b_idx": index} for key, commit in commits for index in commit.dropped_turns)
        )
        sql.put_turn.write(cursor, *(turn_row(key, turn) for key, commit in commits for turn in commit.turns))
        sql.insert_run.write(cursor, *(run_row(key, commit.new_run) for key, commit in commits if commit.new_run))
        sql.put_run.write(cursor, *(changed_run_row(key, run) for key, commit in commits for run in commit.runs))
        sql.forget_events.write(
            cursor,
            *({"b_session": key, "b_upto": commit.forget_events} for key, commit in commits if commit.forget_events),
        )
        sql.insert_event.write(cursor, *(event_row(key, event) for key, commit in commits for event in commit.events))

    def _pipeline(self, cursor: Any) -> AbstractContextManager[object]:
        return cursor.connection.pipeline() if self._has_pipeline else nullcontext()


def _session_row(asked: Asked) -> dict[str, Any]:
    return changed_session_row(asked.commit.session, asked.epoch)
