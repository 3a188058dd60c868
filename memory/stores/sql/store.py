"""`SQLStore`: the session store in an SQL database, SQLite for one node or PostgreSQL for a cluster."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa

from turnwise.errors import (
    CorruptRecordError,
    DeliveryChangedError,
    DuplicateKeyError,
    QuotaExceededError,
    RunNotFoundError,
    SessionExistsError,
    SessionFencedError,
    SessionNotFoundError,
    StoreClosedError,
    StoreError,
    TurnwiseError,
)
from turnwise.memory.conversation.codec import decoded, decoded_events
from turnwise.memory.conversation.events import AnyEvent, EventRow
from turnwise.memory.conversation.ledger import COLUMNS, NUMBERS, LedgerQuery, LedgerRow
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey, SessionRecord, SessionStatus, parent_id
from turnwise.memory.conversation.spans import Span, Spans, union
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.deliveries.records import Delivery, DeliveryChange, check_delivery
from turnwise.memory.deliveries.webhooks import WEBHOOK_FIELDS, WebhookRecord
from turnwise.memory.files.records import FileLimits, FileRecord
from turnwise.memory.quotas.records import (
    QUOTA_FIELDS,
    CounterKey,
    Quota,
    QuotaCount,
    QuotaCounter,
    QuotaCounters,
    check_quota,
    with_quota,
    without_quota,
)
from turnwise.memory.quotas.tenants import Tenant, check_tenant
from turnwise.memory.stores.base import (
    PROBE_BYTES,
    Activation,
    Commit,
    DeliveryLease,
    Page,
    SessionOrder,
    call_range,
    changed_webhooks,
    check_change,
    check_limit,
    check_member_filter,
    check_session_filter,
    check_session_names,
    check_tenant_filter,
    check_webhook_change,
    checked_commit,
    cursor_of,
    due_cursor_of,
    new_jump,
    next_sweep,
    parse_cursor,
    parse_due_cursor,
)
from turnwise.memory.stores.group_commit import GroupCommit
from turnwise.memory.stores.search.records import MessageText, TextFilter, TextHit, parse_hit_cursor
from turnwise.memory.stores.sql import schema
from turnwise.memory.stores.sql.commits import CommitRows, CommitWriter, attempt
from turnwise.memory.stores.sql.deletion import Deleting, Deletion, rename_in_ledger
from turnwise.memory.stores.sql.files import FileTables
from turnwise.memory.stores.sql.rows import (
    OF_TURN,
    SHORT_KINDS,
    changed_delivery_row,
    compared_delivery_row,
    delivery_row,
    log_key,
    member_row,
    packed_id,
    read_deliveries,
    read_delivery,
    read_run,
    read_session,
    read_sessions,
    read_turn,
    session_row,
    turn_row,
    whole_body,
    whole_event_row,
    whole_id,
)
from turnwise.memory.stores.sql.secure_delete import SecureDeleteDatabase
from turnwise.memory.stores.sql.sqlite_file import begin_writing
from turnwise.memory.stores.sql.statements import Statement, read_first, read_page, statements_of
from turnwise.memory.stores.sql.texts import text_index
from turnwise.memory.values.corrupt_records import UNDECODABLE
from turnwise.memory.values.ids import check_names, new_row_key
from turnwise.memory.values.records import record_of, record_text
from turnwise.memory.values.weights import BLOCK_BYTES, PAGE_BYTES

Result = TypeVar("Result")

Item = TypeVar("Item", "CommitRows", "_Job", Deletion)

Select = Callable[[sa.Connection, dict[str, Any]], Any]
"""Returns the rows of a statement with these values, to be closed."""


@dataclass(slots=True, eq=False)
class _Job:
    """Work to do in a transaction, and its result."""

    work: Callable[[sa.Connection], Any]
    since: float
    """The time of the request, by the monotonic clock."""
    result: Any = None
    is_begun: bool = False
    is_decided: bool = False
    """Whether only COMMIT is left to do, for its result or its refusal."""

    def do(self, connection: sa.Connection) -> None:
        self.is_begun, self.is_decided = True, False
        self.result = self.work(connection)


_PROBE_BYTES_ON_SERVER = 1024

_LEASE = "deliveries"
"""The name of the note that has the lease of the store's deliveries: when it ends, and its holder."""

_NO_LEASE = "0 "

_SWEEP = "sweep"
"""The name of the note that has the time at which the next sweep of expired sessions is due; empty at first."""

_WEBHOOKS = "webhooks"
"""The name of the note that has the store's webhooks, as JSON by id: they are few, and a table would take two pages."""

_NO_WEBHOOKS = "[]"

_QUOTAS = "quotas"
"""The name of the note that has the store's quotas, likewise."""

_NO_QUOTAS = "[]"

QUICK_S = 0.002
"""How long the last transaction may have taken, in seconds, for a commit that waits with no other to be written by its
caller's event loop: less than another thread of Python may hold up the loop."""

LOCKED_PAUSE_S = 0.1
"""The pause before retrying a commit whose session row is locked by another transaction, in seconds."""


def _time(of_server: float | None) -> float:
    """Return the server's time, or this machine's for SQLite, whose file belongs to one machine."""
    return time.time() if of_server is None else float(of_server)


class SQLStore(SecureDeleteDatabase):
    """Stores sessions in an SQL database through SQLAlchemy Core.

    Commits of several sessions that arrive during a transaction share the next one; a refused commit does not affect
    the others. Many processes may use one database at once; a SQLite file belongs to one machine. The tables are
    created or migrated at first use. Deleted text is overwritten: see `SecureDeleteDatabase`.

    Args:
        url: `sqlite:///path/to/file.db` or `postgresql://user:password@host/name`.
        lock_timeout_s: how long to wait for another's transaction before a StoreError; see `SQLDatabase` for what else
            it bounds.
        connections: the maximum number of connections to PostgreSQL at once.
        make_schema: whether missing tables are made and old ones migrated, if the role may; see `SQLDatabase`.

    Raises:
        StoreURLError: the URL names no database that can be used here.
    """

    schema = schema.SCHEMA

    def __init__(
        self, url: str, *, lock_timeout_s: float = 30.0, connections: int = 4, make_schema: bool = True
    ) -> None:
        super().__init__(url, lock_timeout_s=lock_timeout_s, connections=connections, make_schema=make_schema)
        self._sql = statements_of(self._engine.dialect)
        self._texts = text_index(self._engine.dialect)
        self._files = FileTables()
        self._commits = CommitWriter(self._sql, self._engine.dialect, self._texts, lock_timeout_s)
        self._group = GroupCommit[CommitRows](
            self._threads, self._commit_group, do_here=self._commit_here if self.is_local else None
        )
        self._deleting = Deleting(self._engine.dialect, self._texts, self._files)
        self._deletion_group = GroupCommit[Deletion](self._threads, self._delete_group)
        self._verb_group = GroupCommit[_Job](self._threads, self._do_jobs)

    async def create(
        self,
        session: SessionRecord,
        turn: TurnRecord | None = None,
        also: Spans = (),
        deliveries: Sequence[Delivery] = (),
        texts: Sequence[MessageText] = (),
    ) -> SessionRecord:
        check_session_names(session)
        for delivery in deliveries:
            check_delivery(delivery)
        borrowed = union(turn.prompt, turn.input, turn.carried, turn.output, also) if turn else ()

        def create(connection: sa.Connection) -> SessionRecord:
            if borrowed:
                self._lock(connection)
                for span in borrowed:
                    if self._sql.count_blocks(connection, _bounds(span)).scalar_one() < span.stop - span.start:
                        raise CorruptRecordError(f"turn {session.parent}", f"blocks of {span} are missing")
            while (key := self._insert(connection, session)) is None:
                if self._sql.session(connection, session.key._asdict()).one_or_none():
                    raise SessionExistsError(session.session_id)
            if borrowed:
                self._sql.insert_borrowed(connection, [{"session": key, **_bounds(span)} for span in borrowed])
            if turn:
                self._sql.put_turn(connection, [turn_row(key, turn, session.session_id)])
            if session.members:
                self._sql.add_member(connection, [member_row(key, user_id) for user_id in session.members])
            if texts:
                rows = [self._texts.row_of(key, session.user_id, text) for text in texts]
                self._texts.insert(_cursor(connection), rows)
            self._insert_deliveries(connection, key, deliveries)
            if session.parent:
                self._lock(connection)
                self._files.copy(connection, SessionKey(parent_id(session.parent), session.user_id), session.key)
            return replace(session, log=str(key))

        return await self._write_grouped(create)

    def _insert(self, connection: sa.Connection, session: SessionRecord) -> int | None:
        """Insert the session and return its key; None if the id or the key is taken."""
        row_key: int | None = self._sql.insert_session(
            connection, session_row(new_row_key(), session)
        ).scalar_one_or_none()
        return row_key

    async def now(self) -> float:
        return await self._read(lambda connection: _time(self._sql.now(connection, {}).scalar_one()))

    async def get(self, key: SessionKey) -> SessionRecord:
        return await self._read(lambda connection: self._session(connection, key))

    async def activate(self, key: SessionKey, *, revision: int | None = None, jump: int | None = None) -> Activation:
        def activate(connection: sa.Connection) -> Activation:
            raised = {**key._asdict(), "revision_before": revision, "jump": jump or new_jump()}
            row = self._sql.raise_epoch(connection, raised).one_or_none()
            if row is None:
                if revision is not None and (current := self._sql.session(connection, raised).one_or_none()):
                    raise SessionFencedError(key.session_id, current.epoch)
                raise SessionNotFoundError(key.session_id)
            return self._state(connection, row, row.now)

        return await self._write_grouped(activate)

    async def state(self, key: SessionKey) -> Activation:
        def state(connection: sa.Connection) -> Activation:
            row = self._sql.session_state(connection, key._asdict()).one_or_none()
            if row is None:
                raise SessionNotFoundError(key.session_id)
            return self._state(connection, row, self._sql.now(connection, {}).scalar_one())

        return await self._read_snapshot(state)

    def _state(self, connection: sa.Connection, row: sa.Row[Any], now: float | None) -> Activation:
        of_row, key = {"key": row.key}, SessionKey(row.session_id, row.user_id)
        head = self._sql.head(connection, of_row).one_or_none()
        return Activation(
            session=read_session(row),
            head=read_turn(head, key) if head else None,
            open_turns=tuple(read_turn(turn_row, key) for turn_row in self._sql.open_turns(connection, of_row)),
            open_runs=tuple(read_run(run_row, key) for run_row in self._sql.open_runs(connection, of_row)),
            now=_time(now),
            tenant=row.tenant,
        )

    async def _write_grouped(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Run `work` in a transaction and return its result. On SQLite, waiting work shares a transaction.

        Thousands of sessions may be opened at once, and a SQLite file has one writer. On PostgreSQL, each work gets its
        own transaction, so that none waits for another's row locks. Work that raises leaves nothing behind, whatever it
        had written by then, and the rest of the group is done.
        """
        if not self.is_local:
            return await self._write(work)
        if self._closed:
            raise StoreClosedError(self._name)
        job = _Job(work, time.monotonic())
        outcome = await self._verb_group.do(job, job)
        with self._translated():
            if outcome is not None:
                raise outcome
        result: Result = job.result
        return result

    def _do_jobs(self, jobs: Sequence[_Job]) -> list[Exception | None]:
        late: list[Exception | None] = [self._late(job.since) for job in jobs]
        if not (in_time := _of_time(jobs, late)):
            return late
        done: Iterator[Exception | None]
        try:
            done = iter(self._do_together(in_time))
        except Exception:
            if len(in_time) == 1 or not in_time[0].is_begun or in_time[-1].is_decided:
                raise  # of the last, COMMIT has failed: it is unknown what is stored, so nothing is done again
            done = map(self._do_alone, in_time)  # nothing was stored, and it is unknown whose error this is
        return [error or next(done) for error in late]

    def _do_together(self, jobs: Sequence[_Job]) -> list[Exception | None]:
        if len(jobs) == 1:
            self._checked(lambda: self._connected(self._engine, jobs[0].do))
            return [None]
        return self._checked(lambda: self._connected(self._engine, partial(_do_all, jobs)))

    def _do_alone(self, job: _Job) -> Exception | None:
        try:
            return self._late(job.since) or self._do_together([job])[0]
        except Exception as error:  # noqa: BLE001 - its caller raises it
            return error

    async def commit(self, key: SessionKey, epoch: int, commit: Commit) -> None:
        try:
            with self._translated():
                commit = checked_commit(commit)
                request = self._commits.rows_of(key, epoch, commit)
                if self._closed:
                    raise StoreClosedError(self._name)
                outcome = await self._group.do(request, request.key)  # grouped with other waiting commits
                while self._commits.is_locked(outcome) and self._late(request.since) is None:
                    # Retried apart from the other commits and in short attempts, so that it blocks no connection.
                    await asyncio.sleep(LOCKED_PAUSE_S)
                    write = partial(self._commits.write, group=[request])
                    (outcome,) = await self._on_thread(partial(self._transact, write))
                if outcome is not None:
                    raise outcome
        except QuotaExceededError as error:
            with suppress(StoreError):  # which would hide that the quota is used up
                raise await self._exceeded(commit.counts, error) from None
            raise
        except StoreError as error:
            if self._is_duplicate(error):
                stored: str | None = None
                with suppress(TurnwiseError):  # what the database refused says more than that a read failed after it
                    stored = await self._stored_key(key, commit)
                if stored is not None:
                    raise DuplicateKeyError(key.session_id, stored) from error
            raise
        if commit.cleared_blocks:
            await self._empty_log_after_deletion()

    async def _exceeded(self, counts: Sequence[QuotaCount], error: QuotaExceededError) -> QuotaExceededError:
        """Return the error for the first quota that is used up and refused counts, with what is used now."""
        for count in counts:
            counters = await self.quota_counters(count.key.user_id, count.key.agent, count.key.tenant)
            counter = counters.of(count.quota, count.key)
            if count.is_checked and counter.used >= count.quota.most:
                return count.quota.exceeded(count.key, counter.used, counter.ends, counters.now)
        return error  # its period has ended meanwhile

    def _commit_group(self, group: Sequence[CommitRows]) -> list[Exception | None]:
        late: list[Exception | None] = [self._late(request.since) for request in group]
        if not (in_time := _of_time(group, late)):
            return late

        def write() -> list[Exception | None]:
            if self._writer is None or not self._ready:  # a connection that is open creates no missing file
                self._check_before()
            return self._transact(partial(self._commits.write, group=in_time))

        done = iter(self._with_room(write))
        self._check_after()
        return [error or next(done) for error in late]

    def _commit_here(self, request: CommitRows) -> tuple[Exception | None] | None:
        """Do a commit to a file in the caller's thread; return its outcome in a tuple.

        Does nothing, and returns None, if it might hold up the caller's event loop for more than a moment: it is large,
        the last transaction took long, or somebody else is writing.
        """
        if not request.is_small or self._took_s > QUICK_S or not self._room.take(0.0):
            return None
        try:
            if self._writer is None:
                return None
            try:
                begin_writing(self._writer, -1.0)
            except self._driver.Error:
                return None  # the thread waits until the file is free, or says what is wrong
            (outcome,) = self._write_in_file(partial(self._commits.write, group=[request]))
        finally:
            self._room.leave()
        self._check_after()
        return (outcome,)

    async def search_texts(self, texts: TextFilter, *, cursor: str | None = None, limit: int = 20) -> list[TextHit]:
        before = parse_hit_cursor(cursor)
        check_limit(limit)
        return await self._read_snapshot(
            lambda connection: self._texts.search(_cursor(connection), texts, before, limit)
        )

    async def count_texts(self, texts: TextFilter, *, limit: int) -> int:
        check_limit(limit)
        return await self._read_snapshot(lambda connection: self._texts.count(_cursor(connection), texts, limit))

    async def blocks(self, spans: Sequence[Span]) -> list[str]:
        def read(connection: sa.Connection) -> list[str]:
            bodies: list[str] = []
            size = 0
            for span in spans:
                position = span.start
                with closing(self._sql.blocks.rows(connection, _bounds(span))) as rows:
                    for block_position, body in rows:
                        if block_position != position:
                            break
                        if body is UNDECODABLE:
                            raise CorruptRecordError(f"block {span.log}:{position}", "it is not UTF-8 text")
                        bodies.append(whole_body(body))
                        position += 1
                        size += BLOCK_BYTES + len(bodies[-1])
                        if size > PAGE_BYTES:
                            return bodies
                if position < span.stop:
                    raise CorruptRecordError(f"block {span.log}:{position}", "missing")
            return bodies

        return await self._read(read)

    async def turns(self, key: SessionKey, *, after: int = -1, limit: int = 100) -> list[TurnRecord]:
        return await self._list(self._sql.turns, key, after, limit, lambda row: read_turn(row, key))

    async def turns_with_removals(self, key: SessionKey, *, after: int = -1, limit: int = 100) -> list[TurnRecord]:
        return await self._list(self._sql.turns_with_removals, key, after, limit, lambda row: read_turn(row, key))

    async def run(self, run_id: str, user_id: str = DEFAULT_USER) -> RunRecord:
        def read(connection: sa.Connection) -> RunRecord:
            names = {"run_id": packed_id(run_id) if self.is_local else run_id, "user_id": user_id}
            row = self._sql.run(connection, names).one_or_none()
            if row is None:
                raise RunNotFoundError(run_id, "the store")
            return read_run(row, SessionKey(row.session_id, row.user_id))

        return await self._read(read)

    async def run_of_key(self, key: SessionKey, idempotency_key: str) -> RunRecord | None:
        row = await self._find(self._sql.run_of_key, {**key._asdict(), "idempotency_key": idempotency_key}, key)
        return read_run(row, key) if row else None

    async def runs(self, key: SessionKey, *, after: int = -1, limit: int = 100) -> list[RunRecord]:
        return await self._list(self._sql.runs, key, after, limit, lambda row: read_run(row, key))

    async def events(self, key: SessionKey, *, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        return await self._events(self._sql.events, key, _after(after, limit), partial(decoded_events, key))

    async def event_rows(self, key: SessionKey, *, after: int = 0, limit: int = 1000) -> list[EventRow]:
        """See `KeepsEventRows`."""
        return await self._events(
            self._sql.events, key, _after(after, limit), lambda rows: [EventRow(*row) for row in rows]
        )

    async def event_of_key(self, key: SessionKey, event_key: str) -> AnyEvent | None:
        events = await self._events(self._sql.event_of_key, key, {"event_key": event_key}, partial(decoded_events, key))
        return events[0] if events else None

    async def _events(
        self, select: Statement, key: SessionKey, values: dict[str, Any], parse: Callable[[list[Any]], list[Result]]
    ) -> list[Result]:
        def read(connection: sa.Connection) -> list[Result]:
            rows = read_first(select.rows(connection, {**key._asdict(), **values}))
            if not rows:
                self._session(connection, key)
            return parse(self._whole_events(connection, key, rows))

        return await self._read(read)

    def _whole_events(self, connection: sa.Connection, key: SessionKey, rows: list[Any]) -> list[Any]:
        """Return rows of events, each with what the row of its run has."""
        turns = [row[_TURN_INDEX] for row in rows if row[_RUN_ID] == OF_TURN]
        if not turns:
            return rows
        values = {**key._asdict(), "first": min(turns), "last": max(turns)}
        runs = {turn_index: run for turn_index, *run in self._sql.runs_of_events.rows(connection, values)}
        if not runs.keys() >= set(turns):
            self._session(connection, key)  # it was deleted meanwhile
        ids = {turn_index: whole_id(run[0]) for turn_index, run in runs.items()}
        whole_rows: list[Any] = []
        for row in rows:
            seq, at, turn_index, run_id, event_key, kind, body = row
            if run_id != OF_TURN:
                whole_rows.append(row)
            elif kind in SHORT_KINDS or turn_index not in ids:  # the latter is an error
                whole_rows.append(whole_event_row(row, runs, key))
            else:
                whole_rows.append((seq, at, turn_index, ids[turn_index], event_key, kind, body))
        return whole_rows

    async def query(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        status: SessionStatus | None = None,
        called_by: str | None = None,
        member: str | None = None,
        tenant: str | None = None,
        order_by: SessionOrder = "created_at",
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[SessionRecord]:
        table = schema.sessions.c
        moved = table.updated_at if order_by == "updated_at" else table.created_at
        statement = sa.select(schema.sessions).where(
            *_filters(user_id, agent, status, called_by, member=member, tenant=tenant)
        )
        if cursor is not None:
            before, order = parse_cursor(cursor)
            statement = statement.where((moved < before) | ((moved == before) & (table.key < order)))
        statement = statement.order_by(moved.desc(), table.key.desc()).limit(check_limit(limit) + 1)
        page, has_more = await self._read(lambda connection: read_page(connection.execute(statement), limit))
        sessions, unreadable = read_sessions(page)
        return Page(sessions, cursor_of(getattr(page[-1], order_by), page[-1].key) if has_more else None, unreadable)

    async def count(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        status: SessionStatus | None = None,
        called_by: str | None = None,
        member: str | None = None,
        tenant: str | None = None,
    ) -> int:
        filters = _filters(user_id, agent, status, called_by, member=member, tenant=tenant)
        statement = sa.select(sa.func.count()).select_from(schema.sessions).where(*filters)
        return await self._read(lambda connection: int(connection.execute(statement).scalar_one()))

    async def ledger(self, query: LedgerQuery) -> list[LedgerRow]:
        table, filters = schema.ledger.c, {"user_id": query.user_id, "agent": query.agent, "tenant": query.tenant}
        groups = [table[COLUMNS[name]] for name in query.by]
        sums = [sa.func.coalesce(sa.func.sum(table[name]), 0) for name in NUMBERS]
        statement = sa.select(*groups, *sums).group_by(*groups)
        statement = statement.where(*(table[name] == value for name, value in filters.items() if value is not None))
        if query.since is not None:
            statement = statement.where(table.day >= query.since)
        if query.until is not None:
            statement = statement.where(table.day <= query.until)
        rows = await self._read(lambda connection: connection.execute(statement).all())
        found = [(tuple(row[: len(groups)]), row[len(groups) :]) for row in rows]
        return [query.row(group, numbers) for group, numbers in sorted(found)]

    async def forget_in_ledger(self, user_id: str) -> None:
        def forget(connection: sa.Connection) -> int:
            self._lock(connection)
            counters = sa.delete(schema.counters).where(schema.counters.c.user_id == user_id)
            count = connection.execute(counters).rowcount
            own = schema.ledger.c.user_id == user_id
            return count + rename_in_ledger(connection, own, user_id="", session_id="")

        await self._erase(forget)

    async def unsettled(self, *, cursor: str | None = None, limit: int = 1000) -> Page[SessionKey]:
        rows, more = await self._in_order(self._sql.unsettled, cursor, limit)
        return Page(tuple(SessionKey(row.session_id, row.user_id) for row in rows), more)

    async def expired(self, now: float, *, cursor: str | None = None, limit: int = 100) -> Page[SessionRecord]:
        rows, more = await self._in_order(self._sql.expired, cursor, limit, now=now)
        sessions, unreadable = read_sessions(rows)
        return Page(sessions, more, unreadable)

    async def add_delivery(self, delivery: Delivery) -> Delivery:
        check_delivery(delivery)

        def add(connection: sa.Connection) -> Delivery:
            owner = self._sql.owner(connection, delivery.session_key._asdict()).scalar_one_or_none()
            if owner is None:
                raise SessionNotFoundError(delivery.session_id)
            if existing := self._delivery(connection, delivery.session_key, delivery.key):
                return existing
            self._insert_deliveries(connection, owner, [delivery])
            return delivery

        try:
            return await self._write_grouped(add)
        except DuplicateKeyError:  # or somebody has added one with its key at the same time
            if existing := await self.delivery(delivery.session_key, delivery.key):
                return existing
            raise

    def _insert_deliveries(self, connection: sa.Connection, key: int, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            if not self._sql.add_delivery(connection, delivery_row(key, delivery)).rowcount:
                raise DuplicateKeyError(delivery.session_id, delivery.delivery_id)

    async def change_delivery(self, change: DeliveryChange) -> None:
        before, after = check_change(change), change.after

        def put(connection: sa.Connection) -> None:
            count, key = 0, self._sql.owner(connection, before.session_key._asdict()).scalar_one_or_none()
            if key and after:
                count = self._sql.put_delivery(connection, changed_delivery_row(key, before, after)).rowcount
            elif key:
                count = self._sql.drop_delivery(connection, compared_delivery_row(key, before)).rowcount
            if not count:
                raise DeliveryChangedError(before.session_id, before.delivery_id)

        await self._write_grouped(put)

    async def delivery(self, key: SessionKey, delivery_key: str) -> Delivery | None:
        row = await self._find(self._sql.delivery, {**key._asdict(), "delivery_key": delivery_key}, key)
        return read_delivery(row) if row else None

    def _delivery(self, connection: sa.Connection, key: SessionKey, delivery_key: str) -> Delivery | None:
        row = self._sql.delivery(connection, {**key._asdict(), "delivery_key": delivery_key}).one_or_none()
        return read_delivery(row) if row else None

    async def deliveries(
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        webhook_id: str | None = None,
        after: str = "",
        limit: int = 100,
    ) -> list[Delivery]:
        check_session_filter(user_id, session_id)
        deliveries, sessions = schema.deliveries, schema.sessions
        statement = sa.select(deliveries, sessions.c.session_id).join(sessions, sessions.c.key == deliveries.c.session)
        if user_id is not None:
            statement = statement.where(deliveries.c.user_id == user_id)
        if session_id is not None:
            statement = statement.where(sessions.c.user_id == user_id, sessions.c.session_id == session_id)
        start, stop = call_range(webhook_id)
        statement = statement.where(deliveries.c.delivery_id > max(start, after), deliveries.c.delivery_id < stop)
        statement = statement.order_by(deliveries.c.delivery_id)
        statement = statement.limit(check_limit(limit))
        return await self._read(lambda connection: [*map(read_delivery, read_first(connection.execute(statement)))])

    async def due(
        self, now: float, *, cursor: str | None = None, limit: int = 100, without_users: Collection[str] = ()
    ) -> Page[Delivery]:
        time_s, after = parse_due_cursor(cursor)
        values = {"now": now, "time": time_s, "after": after, "limit": check_limit(limit) + 1}
        statement = self._sql.due
        if without_users:
            statement, values["users"] = self._sql.due_without_users, json.dumps(sorted(without_users))
        page, has_more = await self._read(lambda connection: read_page(statement(connection, values), limit))
        deliveries, unreadable = read_deliveries(page)
        return Page(tuple(deliveries), due_cursor_of(page[-1]) if has_more else None, unreadable)

    async def lease_deliveries(self, holder: str, ttl_s: float | None) -> DeliveryLease:
        def lease_of(connection: sa.Connection, note: str) -> DeliveryLease:
            until, _, owner = note.partition(" ")
            next_due_at, now = self._sql.next_due(connection, {}).one()
            now = _time(now)
            owner = owner if float(until) > now else ""
            return DeliveryLease(holder=owner, until=float(until), now=now, next_due_at=next_due_at)

        def take(connection: sa.Connection) -> DeliveryLease:
            lease = lease_of(connection, self._locked_note(connection, _LEASE, _NO_LEASE))
            if ttl_s is not None and lease.holder in ("", holder):
                lease = replace(lease, holder=holder, until=lease.now + ttl_s)
                self._note(connection, _LEASE, f"{lease.until!r} {holder}")
            return lease

        if ttl_s is None:
            return await self._read(lambda connection: lease_of(connection, self._noted(connection, _LEASE, _NO_LEASE)))
        return await self._write_grouped(take)

    async def webhooks(self) -> list[WebhookRecord]:
        note = await self._read(lambda connection: self._noted(connection, _WEBHOOKS, _NO_WEBHOOKS))
        return list(_read_webhooks(note).values())

    async def change_webhook(self, before: WebhookRecord | None, after: WebhookRecord | None) -> None:
        check_webhook_change(before, after)

        def change(connection: sa.Connection) -> None:
            webhooks = _read_webhooks(self._locked_note(connection, _WEBHOOKS, _NO_WEBHOOKS))
            changed = changed_webhooks(webhooks, before, after)
            texts = [record_text(changed[webhook_id], WEBHOOK_FIELDS) for webhook_id in sorted(changed)]
            self._note(connection, _WEBHOOKS, f"[{','.join(texts)}]")

        await self._write_grouped(change)

    async def quotas(self) -> list[Quota]:
        note = await self._read(lambda connection: self._noted(connection, _QUOTAS, _NO_QUOTAS))
        return list(_read_quotas(note).values())

    async def set_quota(self, quota: Quota) -> None:
        check_quota(quota)
        await self._write_grouped(
            lambda connection: self._change_quotas(connection, lambda quotas: with_quota(quotas, quota))
        )

    async def remove_quota(self, quota_id: str) -> None:
        def remove(connection: sa.Connection) -> None:
            self._change_quotas(connection, lambda quotas: without_quota(quotas, quota_id))
            connection.execute(sa.delete(schema.counters).where(schema.counters.c.quota_id == quota_id))

        await self._write_grouped(remove)

    def _change_quotas(self, connection: sa.Connection, change: Callable[[dict[str, Quota]], dict[str, Quota]]) -> None:
        quotas = change(_read_quotas(self._locked_note(connection, _QUOTAS, _NO_QUOTAS)))
        texts = [record_text(quotas[quota_id], QUOTA_FIELDS) for quota_id in sorted(quotas)]
        self._note(connection, _QUOTAS, f"[{','.join(texts)}]")

    async def use_quotas(self, counts: Sequence[QuotaCount]) -> None:
        try:
            await self._write_grouped(lambda connection: self._commits.count(_cursor(connection), counts))
        except QuotaExceededError as error:
            with suppress(StoreError):
                raise await self._exceeded(counts, error) from None
            raise

    async def quota_counters(self, user_id: str, agent: str, tenant: str = "") -> QuotaCounters:
        def read(connection: sa.Connection) -> QuotaCounters:
            names = {"user_id": user_id, "agent": agent, "tenant": tenant}
            rows = list(self._sql.counters.rows(connection, names))
            counters = [
                QuotaCounter(key=CounterKey(*key), starts=starts, ends=ends, used=used)
                for *key, starts, ends, used in rows
            ]
            return QuotaCounters(counters, _time(self._sql.now(connection, {}).scalar_one()))

        return await self._read(read)

    async def set_tenant(self, user_id: str, tenant: str | None) -> None:
        check_names("user_id", user_id)
        if tenant is None:
            await self._erase(lambda connection: self._sql.drop_tenant(connection, {"user_id": user_id}).rowcount)
            return
        row = {"user_id": user_id, "tenant": check_tenant(tenant)}
        await self._write_grouped(lambda connection: self._sql.put_tenant(connection, row).rowcount)

    async def tenants_of(self, user_ids: Collection[str]) -> dict[str, str]:
        users = {"users": json.dumps(sorted(user_ids))}
        return await self._read(lambda connection: dict(self._sql.tenants_of.rows(connection, users)))

    async def tenants(self, *, after: str = "", limit: int = 100) -> list[Tenant]:
        page = {"after": after, "limit": check_limit(limit)}
        rows = await self._read(lambda connection: list(self._sql.tenants.rows(connection, page)))
        return [Tenant(tenant=tenant, users=users) for tenant, users in rows]

    async def users(self, tenant: str, *, after: str = "", limit: int = 100) -> list[str]:
        page = {"tenant": tenant, "after": after, "limit": check_limit(limit)}
        return await self._read(lambda connection: [user_id for (user_id,) in self._sql.users.rows(connection, page)])

    async def delete(self, key: SessionKey, *, epoch: int | None = None, log: str | None = None) -> int:
        deletion = Deletion(key, epoch, log, time.monotonic())
        if self.is_local:
            await self._erase(partial(self._delete_one, deletion=deletion))
            return deletion.turns
        if self._closed:
            raise StoreClosedError(self._name)
        # All deletions wait for one lock, so those that arrive meanwhile share the next transaction.
        outcome = await self._deletion_group.do(deletion, key)
        with self._translated():
            if outcome is not None:
                raise outcome
        return deletion.turns

    def _delete_one(self, connection: sa.Connection, deletion: Deletion) -> bool:
        """Carry out a deletion; raise if it is refused."""
        self._lock(connection)
        if refusal := self._deleting.delete(connection, [deletion])[0]:
            raise refusal
        return True

    def _delete_group(self, deletions: Sequence[Deletion]) -> Sequence[Exception | None]:
        late: list[Exception | None] = [self._late(deletion.since) for deletion in deletions]
        if not (in_time := _of_time(deletions, late)):
            return late

        def work(connection: sa.Connection) -> Sequence[Exception | None]:
            self._lock(connection)
            return self._deleting.delete(connection, in_time)

        outcomes = iter(self._checked(lambda: self._connected(self._engine, work)))
        return [error or next(outcomes) for error in late]

    async def delete_unchanged(self, sessions: Sequence[SessionRecord]) -> list[SessionKey]:
        """See `UnchangedDeletion`."""

        def work(connection: sa.Connection) -> list[SessionKey]:
            self._lock(connection)
            return self._deleting.delete_unchanged(connection, sessions)

        (deleted,) = await self._erase(work)
        return deleted

    async def end_unchanged(self, sessions: Sequence[SessionRecord]) -> list[SessionRecord]:
        """See `UnchangedDeletion`."""
        return await self._write_grouped(lambda connection: self._deleting.end_unchanged(connection, sessions))

    async def claim_sweep(self, every_s: float) -> float:
        """See `SweepClaims`."""

        def claim(connection: sa.Connection) -> float:
            note = self._locked_note(connection, _SWEEP, "")
            now = _time(self._sql.now(connection, {}).scalar_one())
            left_s, next_at = next_sweep(float(note) if note else None, now, every_s)
            self._note(connection, _SWEEP, repr(next_at))
            return left_s

        return await self._write_grouped(claim)

    async def reserve_object(self, object_id: str, user_id: str) -> None:
        def reserve(connection: sa.Connection) -> None:
            self._files.reserve(connection, object_id, user_id, _time(self._sql.now(connection, {}).scalar_one()))

        await self._write_grouped(reserve)

    async def release_object(self, object_id: str) -> None:
        await self._write_grouped(partial(self._files.release, object_id=object_id))

    async def add_file(self, file: FileRecord, limits: FileLimits) -> FileRecord:
        check_names("file", file.user_id, file.session_id, file.file_id)

        def add(connection: sa.Connection) -> FileRecord:
            self._lock(connection)
            if file.session_id and not self._sql.owner(connection, file.key._asdict()).scalar_one_or_none():
                raise SessionNotFoundError(file.session_id)
            return self._files.add(connection, file, limits)

        return await self._write_grouped(add)

    async def file(self, key: SessionKey, file_id: str) -> FileRecord | None:
        return await self._read(lambda connection: self._files.get(connection, key, file_id))

    async def files(self, key: SessionKey, *, after: str = "", limit: int = 100) -> list[FileRecord]:
        check_limit(limit)
        return await self._read(lambda connection: self._files.page(connection, key, after, limit))

    async def delete_file(self, key: SessionKey, file_id: str) -> bool:
        def delete(connection: sa.Connection) -> int:
            self._lock(connection)
            own = (schema.files.c.user_id == key.user_id) & (schema.files.c.file_id == file_id)
            return self._files.delete(connection, own, session_id=key.session_id)

        return bool((await self._erase(delete))[0])

    async def forget_files(self, user_id: str) -> int:
        def forget(connection: sa.Connection) -> int:
            self._lock(connection)
            return self._files.delete(connection, schema.files.c.user_id == user_id)

        return (await self._erase(forget))[0]

    async def unused_objects(self, reserved_before: float, *, limit: int = 100) -> list[str]:
        check_limit(limit)

        def find(connection: sa.Connection) -> list[str] | None:
            """Return what is unused; None if something becomes unused first."""
            return None if self._files.has_late(connection, reserved_before) else self._files.unused(connection, limit)

        def expire(connection: sa.Connection) -> list[str]:
            self._files.expire(connection, reserved_before)
            return self._files.unused(connection, limit)

        found = await self._read(find)
        return await self._write_grouped(expire) if found is None else found

    async def drop_objects(self, object_ids: Sequence[str]) -> None:
        await self._write_grouped(partial(self._files.drop, object_ids=object_ids))

    async def try_writing(self) -> None:
        # On PostgreSQL less: each write stays in its log for a while, and a server that is full refuses any.
        await self._probe(PROBE_BYTES if self.is_local else _PROBE_BYTES_ON_SERVER)

    def _session(self, connection: sa.Connection, key: SessionKey) -> SessionRecord:
        row = self._sql.session(connection, key._asdict()).one_or_none()
        if row is None:
            raise SessionNotFoundError(key.session_id)
        return read_session(row)

    async def _find(self, select: Statement, values: dict[str, Any], key: SessionKey) -> sa.Row[Any] | None:
        def read(connection: sa.Connection) -> sa.Row[Any] | None:
            row = select(connection, values).one_or_none()
            if row is None:
                self._session(connection, key)
            return row

        return await self._read(read)

    async def _list(
        self, select: Select, key: SessionKey, after: int, limit: int, parse: Callable[[Any], Result]
    ) -> list[Result]:
        return await self._page(select, key, after, limit, lambda rows: [parse(row) for row in rows])

    async def _page(
        self, select: Select, key: SessionKey, after: int, limit: int, parse: Callable[[list[Any]], list[Result]]
    ) -> list[Result]:
        def read(connection: sa.Connection) -> list[Result]:
            bounds = {**key._asdict(), "after": after, "limit": check_limit(limit)}
            results = parse(read_first(select(connection, bounds)))
            if not results:
                self._session(connection, key)
            return results

        return await self._read(read)

    async def _in_order(
        self, select: Statement, cursor: str | None, limit: int, **values: Any
    ) -> tuple[Sequence[sa.Row[Any]], str | None]:
        """Return a page of a statement's rows in order of creation, and the next page's cursor if there are more."""
        values["after"] = 0 if cursor is None else parse_cursor(cursor)[1]
        values["limit"] = check_limit(limit) + 1
        page, has_more = await self._read(lambda connection: read_page(select(connection, values), limit))
        return page, cursor_of(0.0, page[-1].key) if has_more else None

    async def _stored_key(self, key: SessionKey, commit: Commit) -> str | None:
        """Return the key or id of a commit that is stored already, or that it has twice; None if there is none."""
        keys = [event.key for event in commit.events if event.key is not None]
        for event_key in keys:
            if keys.count(event_key) > 1 or await self.event_of_key(key, event_key):
                return event_key
        if run := commit.new_run:
            if run.idempotency_key is not None and await self.run_of_key(key, run.idempotency_key):
                return run.idempotency_key
            stored_id: Any = packed_id(run.run_id) if self.is_local else run.run_id
            is_run = sa.select(schema.runs.c.run_id).where(schema.runs.c.run_id == stored_id)  # of any user
            if await self._read(lambda connection: connection.scalar(is_run)) is not None:
                return run.run_id
        return await self._stored_delivery(key, [change.after for change in commit.deliveries if not change.before])

    async def _stored_delivery(self, key: SessionKey, added: Sequence[Delivery | None]) -> str | None:
        """Return the key or the id of an added delivery that is stored already, or added twice; else None."""
        deliveries = [delivery for delivery in added if delivery]
        keys = [delivery.key for delivery in deliveries]
        for delivery_key in keys:
            if keys.count(delivery_key) > 1 or await self.delivery(key, delivery_key):
                return delivery_key
        ids = [delivery.delivery_id for delivery in deliveries]
        for delivery_id in ids:
            if ids.count(delivery_id) > 1 or await self._has_delivery(key.user_id, delivery_id):
                return delivery_id
        return None

    async def _has_delivery(self, user_id: str, delivery_id: str) -> bool:
        values = {"user_id": user_id, "delivery_id": delivery_id}
        return await self._read(lambda connection: self._sql.stored_id(connection, values).one_or_none() is not None)


_TURN_INDEX, _RUN_ID = (EventRow._fields.index(name) for name in ("turn_index", "run_id"))
"""The places of columns in a row of events."""


def _after(after: int, limit: int) -> dict[str, int]:
    return {"after": after, "limit": check_limit(limit)}


def _cursor(connection: sa.Connection) -> Any:
    """Return a cursor of the driver in this transaction."""
    return connection.connection.cursor()


def _bounds(span: Span) -> dict[str, int]:
    return {"log": log_key(span.log), "start": span.start, "stop": span.stop}


def _read_webhooks(note: str) -> dict[str, WebhookRecord]:
    webhooks = decoded("webhooks", lambda: [record_of(WebhookRecord, fields) for fields in json.loads(note)])
    return {webhook.webhook_id: webhook for webhook in webhooks}


def _read_quotas(note: str) -> dict[str, Quota]:
    quotas = decoded("quotas", lambda: [record_of(Quota, fields) for fields in json.loads(note)])
    return {quota.quota_id: quota for quota in quotas}


def _filters(
    user_id: str | None,
    agent: str | None,
    status: str | None = None,
    called_by: str | None = None,
    *,
    member: str | None = None,
    tenant: str | None = None,
) -> list[sa.ColumnElement[bool]]:
    check_session_filter(user_id, called_by or None)
    check_member_filter(member, user_id, called_by)
    check_tenant_filter(tenant, member)
    values = {"user_id": user_id, "agent": agent, "status": status, "called_by": called_by}
    filters = [schema.sessions.c[name] == value for name, value in values.items() if value is not None]
    if member is not None:
        members = schema.members.c
        filters.append(schema.sessions.c.key.in_(sa.select(members.session).where(members.user_id == member)))
    if tenant is not None:
        users = schema.users.c
        filters.append(schema.sessions.c.user_id.in_(sa.select(users.user_id).where(users.tenant == tenant)))
    return filters


def _of_time(items: Sequence[Item], late: Sequence[Exception | None]) -> list[Item]:
    """Return the items that were not requested too long ago."""
    return [item for item, error in zip(items, late, strict=True) if error is None]


def _do_all(jobs: Sequence[_Job], connection: sa.Connection) -> list[Exception | None]:
    """Do all jobs; return the error of each that was refused. Raises what no single job can be blamed for."""
    driver: Any = connection.connection.dbapi_connection
    outcomes: list[Exception | None] = []
    for job in jobs:
        outcome = attempt(driver.execute, partial(job.do, connection))
        if outcome is not None and not isinstance(outcome, TurnwiseError):
            raise outcome
        job.is_decided = True
        outcomes.append(outcome)
    return outcomes
