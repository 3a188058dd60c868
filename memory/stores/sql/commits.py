"""Writes session commits, one or several in a transaction, on the driver's own cursor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from turnwise.errors import DeliveryChangedError, SessionFencedError
from turnwise.memory.conversation.ledger import key_in, numbers_of
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.quotas.records import CounterKey, QuotaCount, period_of
from turnwise.memory.stores.base import Commit
from turnwise.memory.stores.sql.rows import (
    changed_delivery_row,
    changed_run_row,
    changed_session_row,
    compared_delivery_row,
    delivery_row,
    ledger_values,
    left_member_row,
    log_key,
    member_row,
    received_delivery_row,
    run_event_row,
    run_row,
    short_body,
    turn_row,
)
from turnwise.memory.stores.sql.sqlite_file import begin_writing
from turnwise.memory.stores.sql.statements import Row, Statement, Statements
from turnwise.memory.stores.sql.texts import TextIndex, TextRow

SMALL_CHARS = 32_768
"""How many characters of blocks a small commit has at most."""


@dataclass(frozen=True)
class _CountRow:
    """What is added to a counter, and the row that says so."""

    count: QuotaCount
    row: Row

    @property
    def key(self) -> CounterKey:
        return self.count.key


@dataclass(frozen=True)
class CommitRows:
    """A requested commit, converted to rows."""

    of: SessionKey
    epoch: int
    since: float
    """The time of the request, by the monotonic clock."""
    key: int
    """The key of the session's row, which is also the name of its log."""
    session: Row
    other_rows: dict[Statement, list[Row]]
    """The other rows to write, by the statement that writes them."""
    changed_deliveries: tuple[str, ...]
    """The deliveries that are changed, removed or received."""
    counts: tuple[_CountRow, ...]
    texts: tuple[TextRow, ...]
    """The texts to find by search."""
    turns_without_texts: tuple[int, ...]
    """The indices of turns whose texts are deleted first."""
    wipes: bool
    """Whether nothing of deleted texts may stay in the file."""
    is_small: bool
    """Whether it only adds, and not much, as most commits do."""


class CommitWriter:
    """Writes commits of different sessions in the transaction that a cursor is in.

    Session rows are locked in the order of their keys, and counters of quotas after them in the order of theirs, so
    groups of several processes cannot deadlock. PostgreSQL gets
    all statements at once (pipeline mode), so a group costs one round trip and the COMMIT. A commit waits
    only briefly there if another transaction has locked its session row, and is then refused (`is_locked`), so that the
    rest of the group need not wait. A SQLite file has one writer and no row locks.
    """

    def __init__(self, sql: Statements, dialect: sa.Dialect, texts: TextIndex, lock_timeout_s: float) -> None:
        driver: Any = dialect.loaded_dbapi
        self._put_session = sql.put_session
        self._order = (
            sql.insert_block,
            sql.drop_turn,
            sql.put_turn,
            sql.insert_run,
            sql.put_run,
            sql.forget_events,
            sql.forget_turns,
            sql.clear_block,
            sql.insert_event,
            sql.insert_delivery,
            sql.put_delivery,
            sql.drop_delivery,
            sql.drop_received,
            sql.add_spent,
            sql.drop_member,
            sql.add_member,
        )
        """The statements of a commit's other rows, in the order in which they are executed."""
        self._count = sql.add_count
        self._texts = texts
        self._compares = (sql.put_delivery, sql.drop_delivery, sql.drop_received)
        self._lock_timeout_s = lock_timeout_s
        self._is_sqlite = dialect.name == "sqlite"
        self._has_pipeline = not self._is_sqlite and driver.Pipeline.is_supported()

    def rows_of(self, of: SessionKey, epoch: int, commit: Commit) -> CommitRows:
        """Return the commit as rows for `write`. Call it before the transaction, so that no other transaction waits."""
        key = log_key(commit.session.log)
        changes = [(change.before, change.after) for change in commit.deliveries]
        stored_runs = [*commit.runs, *([commit.new_run] if commit.new_run else [])]
        runs: dict[int | None, RunRecord] = {run.turn_index: run for run in stored_runs}
        blocks = enumerate(commit.blocks, commit.log_size_before)
        tables: tuple[list[dict[str, Any]], ...] = (
            [{"log": key, "at": position, "body": short_body(body)} for position, body in blocks],
            [{"b_session": key, "b_idx": index} for index in commit.dropped_turns],
            [turn_row(key, turn, of.session_id, runs.get(turn.index)) for turn in commit.turns],
            [run_row(key, commit.new_run, packs_id=self._is_sqlite)] if commit.new_run else [],
            [changed_run_row(key, run) for run in commit.runs],
            [{"b_session": key, "b_upto": commit.forget_events}] if commit.forget_events else [],
            [{"b_session": key, "b_upto": commit.forget_turns}] if commit.forget_turns >= 0 else [],
            [{"b_log": key, "b_at": position, "b_body": short_body(body)} for position, body in commit.cleared_blocks],
            [run_event_row(key, event, runs) for event in commit.events],
            [delivery_row(key, after) for before, after in changes if after and not before],
            [changed_delivery_row(key, before, after) for before, after in changes if before and after],
            [compared_delivery_row(key, before) for before, after in changes if before and not after],
            [received_delivery_row(of.user_id, delivery) for delivery in commit.received],
            [ledger_values(key_in(commit.session, row), numbers_of(row)) for row in commit.spent],
            [left_member_row(key, user_id) for user_id in commit.left],
            [member_row(key, user_id) for user_id in commit.joined],
        )
        rows = zip(self._order, tables, strict=True)
        other_rows = {statement: list(map(statement.bind, values)) for statement, values in rows if values}
        session = self._put_session.bind(changed_session_row(of, epoch, commit))
        compared = [*(before for before, _ in changes if before), *commit.received]
        changed = tuple(delivery.delivery_id for delivery in compared)
        return CommitRows(
            of,
            epoch,
            time.monotonic(),
            key,
            session,
            other_rows,
            changed,
            self._count_rows(commit.counts),
            texts=tuple(self._texts.row_of(key, of.user_id, text, runs.get(text.turn_index)) for text in commit.texts),
            turns_without_texts=tuple({*commit.dropped_turns, *commit.dropped_texts}),
            wipes=bool(commit.cleared_blocks),
            is_small=not (compared or commit.dropped_turns or commit.cleared_blocks or commit.deliveries)
            and sum(map(len, commit.blocks)) <= SMALL_CHARS,
        )

    def write(self, cursor: Any, group: Sequence[CommitRows]) -> list[Exception | None]:
        """Write the commits of the group that can be written. Return for each its error, or None if it was written.

        Raises:
            Exception: nothing of the group is written; the caller must roll the transaction back.
        """
        if len(group) == 1 and not self._has_pipeline:
            self._write_one(cursor, group[0])
            return [None]
        order = sorted(range(len(group)), key=lambda index: group[index].key)
        outcomes: list[Exception | None] = [None] * len(group)
        try:
            self._write_together(cursor, [group[index] for index in order])
        except Exception:
            if not _rolled_back(cursor.connection.rollback):
                raise
        else:
            return outcomes
        # It is unknown which commit failed: each is tried on its own.
        if self._is_sqlite:
            begin_writing(cursor.connection, self._lock_timeout_s)
        else:
            cursor.connection.wait_briefly(cursor)
        for index in order:
            outcomes[index] = attempt(cursor.execute, partial(self._write_one, cursor, group[index]))
        return outcomes

    def _write_together(self, cursor: Any, group: Sequence[CommitRows]) -> None:
        sessions = cursor.connection.cursor()
        with self._pipeline(cursor):
            if not self._is_sqlite:
                cursor.connection.wait_briefly(cursor)
            self._put_session.write(sessions, [commit.session for commit in group])
            compared, counters = self._write_other_rows(cursor, group)
        if sessions.rowcount != len(group):
            raise SessionFencedError(group[0].of.session_id, group[0].epoch)  # or another commit of the group
        _check_compared(group, compared)
        _check_counted([row.count for commit in group for row in commit.counts], counters)

    @staticmethod
    def is_locked(outcome: BaseException | None) -> bool:
        """Return whether a commit was refused because another transaction holds its session's row."""
        return getattr(outcome, "sqlstate", None) == "55P03"

    def _write_one(self, cursor: Any, commit: CommitRows) -> None:
        self._write_session(cursor, commit)
        compared, counters = self._write_other_rows(cursor, [commit])
        _check_compared([commit], compared)
        _check_counted([row.count for row in commit.counts], counters)

    def _write_session(self, cursor: Any, commit: CommitRows) -> None:
        if not self._put_session.write(cursor, [commit.session]):
            raise SessionFencedError(commit.of.session_id, commit.epoch)

    def _write_other_rows(self, cursor: Any, group: Sequence[CommitRows]) -> tuple[list[Any], Any]:
        """Write all rows but the session rows, table by table. The order of sessions within a table does not matter.

        Returns the cursors that know how many of the deliveries to change were as they had to be, and the one that
        knows how many counts were added, of which those are missing whose quota is used up.
        """
        compared: list[Any] = []
        for commit in group:
            if commit.turns_without_texts:  # before their blocks are cleared
                self._texts.drop(cursor, commit.key, commit.of.user_id, commit.turns_without_texts)
        all_rows = dict[Statement, list[Row]]()
        for commit in group:
            for statement, rows in commit.other_rows.items():
                all_rows.setdefault(statement, []).extend(rows)
        for statement in self._order:
            if rows := all_rows.get(statement, []):
                if statement in self._compares:
                    compared.append(cursor.connection.cursor())
                statement.write(compared[-1] if statement in self._compares else cursor, rows)
        if texts := [text for commit in group for text in commit.texts]:
            self._texts.insert(cursor, texts)
        for commit in group:
            if commit.wipes:
                self._texts.wipe(cursor, commit.key)
        return compared, self._write_counts(cursor, [count for commit in group for count in commit.counts])

    def _write_counts(self, cursor: Any, counts: Iterable[_CountRow]) -> Any:
        """Add to counters of quotas; return the cursor that knows to how many."""
        rows = [count.row for count in sorted(counts, key=attrgetter("key"))]
        counters: Any = cursor.connection.cursor() if rows else None
        if rows:
            counters.executemany(self._count.text, rows)
        return counters

    def count(self, cursor: Any, counts: Sequence[QuotaCount]) -> None:
        """Add to counters of quotas alone.

        Raises:
            QuotaExceededError: one is used up; the caller must roll the transaction back.
        """
        _check_counted(counts, self._write_counts(cursor, self._count_rows(counts)))

    def _count_rows(self, counts: Iterable[QuotaCount]) -> tuple[_CountRow, ...]:
        return tuple(_CountRow(count, self._count.bind(_count_values(count))) for count in counts)

    def _pipeline(self, cursor: Any) -> AbstractContextManager[object]:
        return cursor.connection.pipeline() if self._has_pipeline else nullcontext()


def _check_compared(group: Sequence[CommitRows], cursors: Sequence[Any]) -> None:
    """Raise unless as many deliveries were changed as the group has to change."""
    changed = [(commit.of.session_id, delivery_id) for commit in group for delivery_id in commit.changed_deliveries]
    if sum(cursor.rowcount for cursor in cursors) != len(changed):
        raise DeliveryChangedError(*changed[0])  # or another one of the group


def _check_counted(counts: Sequence[QuotaCount], cursor: Any) -> None:
    """Raise unless each count was added."""
    if counts and cursor.rowcount != len(counts):
        checked = next(count for count in counts if count.is_checked)  # or another one of the group
        now = time.time()
        ends = period_of(checked.quota.per, now)[1]
        raise checked.quota.exceeded(checked.key, checked.quota.most, ends, now)


def _count_values(count: QuotaCount) -> dict[str, Any]:
    starts, ends = period_of(count.quota.per, time.time())
    period = {"per": count.quota.per, "starts": starts, "ends": ends}
    return {**count.key._asdict(), **period, "amount": count.amount, "most": count.most}


def attempt(execute: Callable[[str], object], work: Callable[[], object]) -> Exception | None:
    """Do work within a transaction, whole or not at all; return its error, or None.

    Raises:
        Exception: the error of the work, which ended the whole transaction.
    """
    execute("SAVEPOINT one")
    try:
        work()
    except Exception as error:
        if not _rolled_back(partial(execute, "ROLLBACK TO SAVEPOINT one")):
            raise  # the savepoint has gone with the transaction: nothing of the group is written
        return error
    execute("RELEASE SAVEPOINT one")
    return None


def _rolled_back(rollback: Callable[[], object]) -> bool:
    """Roll back after an error; return whether that was possible. Raises nothing, as that would hide the error."""
    try:
        rollback()
    except Exception:  # noqa: BLE001 - the caller raises the error that came before it
        return False
    return True
