"""`RedisStore`: the session store in Redis.

A session's number, with which its keys begin, is its `log`. Its name, by which it is found, is its `SessionKey` in
JSON. See `scripts` for all keys.
"""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, NamedTuple, TypeGuard, TypeVar, get_args

from turnwise.errors import (
    CorruptRecordError,
    DeliveryChangedError,
    DuplicateKeyError,
    QuotaNotFoundError,
    RunNotFoundError,
    SchemaVersionError,
    SessionExistsError,
    SessionFencedError,
    SessionNotFoundError,
    StoreError,
    TurnwiseError,
    WebhookChangedError,
)
from turnwise.memory.conversation.codec import decode_record, decoded, decoded_events
from turnwise.memory.conversation.events import AnyEvent, EventRow
from turnwise.memory.conversation.ledger import NUMBERS, LedgerQuery, LedgerRow, numbers_of
from turnwise.memory.conversation.runs import UNSETTLED, RunRecord
from turnwise.memory.conversation.sessions import (
    DEFAULT_USER,
    FIXED,
    SESSION_CHANGES,
    SessionKey,
    SessionRecord,
    SessionStatus,
    parent_id,
)
from turnwise.memory.conversation.spans import Span, Spans, union
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.deliveries.records import Delivery, DeliveryChange, check_delivery
from turnwise.memory.deliveries.webhooks import WEBHOOK_FIELDS, WebhookRecord
from turnwise.memory.files.records import FileLimits, FileRecord
from turnwise.memory.quotas.records import (
    MAX_QUOTAS,
    QUOTA_FIELDS,
    CounterKey,
    Quota,
    QuotaCount,
    QuotaCounter,
    QuotaCounters,
    check_quota,
    too_many_quotas,
)
from turnwise.memory.quotas.tenants import Tenant, check_tenant
from turnwise.memory.stores.base import (
    NO_CALLER,
    PROBE_BYTES,
    Activation,
    Commit,
    DeliveryLease,
    Page,
    SessionOrder,
    call_range,
    check_change,
    check_limit,
    check_member_filter,
    check_session_filter,
    check_session_names,
    check_tenant_filter,
    check_webhook_change,
    checked_commit,
    cursor_of,
    ended,
    new_jump,
    parse_cursor,
    parse_due_cursor,
)
from turnwise.memory.stores.redis.database import Argument, RedisDatabase, encode
from turnwise.memory.stores.redis.files import RedisFiles, place_of
from turnwise.memory.stores.redis.read_scripts import READS
from turnwise.memory.stores.redis.rows import (
    PADDED_DIGITS,
    encode_event,
    event_row,
    finite,
    ledger_field,
    padded,
    read_ledger,
)
from turnwise.memory.stores.redis.scripts import VERSION
from turnwise.memory.stores.redis.settings import SettingsCheck
from turnwise.memory.stores.redis.write_scripts import WRITES
from turnwise.memory.stores.search.records import MessageText
from turnwise.memory.values.ids import check_names, digest_of, new_key
from turnwise.memory.values.records import record_text

Item = TypeVar("Item")


_NONE = SessionKey("", "")


class _SessionRow(NamedTuple):
    """A session as scripts answer it; None for a field that is missing."""

    number: bytes
    creation: bytes | None
    changes: bytes | None
    epoch: bytes | None
    name: bytes | None
    revision: bytes | None
    time: bytes = b"0"
    """Its time in the order of a query; other scripts do not answer it."""


class RedisStore(RedisDatabase):
    """Stores sessions in Redis, 6.2 or later. Each method is one atomic script and one round trip; `activate` is two.

    Many processes may use one Redis at once. All of a store is in the memory of one server, since forks share blocks
    and run ids are global; a node of a Redis Cluster is refused.

    **Durability.** With `appendonly yes` and `appendfsync always`, acknowledged writes survive a kill of the server and
    of its machine. `everysec`, Redis's default, may lose the last second; without an append-only file, everything since
    the last snapshot is lost. The store reads these settings once and logs a warning. Replicas do not help: Redis
    acknowledges a write before the replicas have it, and `WAIT` only counts replicas. So a failover may lose
    acknowledged writes; use PostgreSQL if that is not acceptable.

    **Memory.** Set `maxmemory-policy noeviction`: other policies may evict stored data. A Redis that is out of memory
    refuses commits whole, and still reads and deletes. Deleted data stays in Redis's files until Redis rewrites them
    (`BGREWRITEAOF`, `BGSAVE`).

    `query`, `count` and pages cost O(results), and `ledger` O(rows of the user, or of all). A page of `expired`
    is O(all expired sessions). `query` and `count` of a tenant cost O(its users), too, and two round trips.

    Args:
        url: `redis://user:password@host:6379/0`, or `rediss://` for TLS, with options as redis-py takes them.
        prefix: the prefix of all keys. Stores with different prefixes can share a database without seeing each other.
        timeout_s: how long to wait for a connection, and for an answer, before a StoreError.
        connections: the most connections at once; further calls wait for a free one.

    Raises:
        StoreURLError: the URL names no Redis, or the client is not installed.
        ConfigError: a setting is out of its range.
    """

    scripts = WRITES | READS

    def __init__(self, url: str, *, prefix: str = "turnwise", timeout_s: float = 30.0, connections: int = 8) -> None:
        super().__init__(url, prefix=prefix, timeout_s=timeout_s, connections=connections)
        self._base = f"{{{prefix}:sessions}}"
        self._check = SettingsCheck(self._name)
        self._files = RedisFiles(self._do)

    async def create(
        self,
        session: SessionRecord,
        turn: TurnRecord | None = None,
        also: Spans = (),
        deliveries: Sequence[Delivery] = (),
        texts: Sequence[MessageText] = (),
    ) -> SessionRecord:
        check_session_names(session)
        additions = [DeliveryChange(None, check_delivery(delivery)) for delivery in deliveries]
        borrowed = union(turn.prompt, turn.input, turn.carried, turn.output, also) if turn else ()
        with self._translated():
            args = [
                *(_name(session.key), record_text(session, _CREATION), record_text(session, _CHANGES), session.epoch),
                *(session.status, session.revision, session.log_size),
                " ".join(_places(session)),
                *(finite(session.created_at, "created_at"), *_times(session)),
                *_rows([(encode(log), start, stop) for log, start, stop in borrowed]),
                *_rows([_turn_row(turn)] if turn else []),
                *_rows([_delivery_row(addition) for addition in additions]),
                *_file_places(session),
            ]
        number = str(new_key())
        while await self._do("create", [number, *args], session.key):  # the script found the number in use
            number = str(new_key())
        return replace(session, log=number)

    async def now(self) -> float:
        (now,) = await self._do("now", [], again=True)
        return float(now)

    async def get(self, key: SessionKey) -> SessionRecord:
        (row,) = await self._do("get", [_name(key)], key, again=True)
        return self._session(_SessionRow(*row))

    async def activate(self, key: SessionKey, *, revision: int | None = None, jump: int | None = None) -> Activation:
        # Two scripts, since only Python reads the records, and what it cannot read must not raise the epoch. The second
        # one writes only if the session is as the first one saw it.
        while True:
            state = await self.state(key)
            old = state.session
            if revision not in (None, old.revision):
                raise SessionFencedError(key.session_id, old.epoch)
            new = replace(old, epoch=old.epoch + 1, revision=old.revision + (jump or new_jump()))
            args: list[Argument] = [_name(key), old.log, old.epoch, old.revision, new.epoch, new.revision]
            has_changed = await self._do("activate", args, key)
            if not has_changed:
                return replace(state, session=new)

    async def state(self, key: SessionKey) -> Activation:
        args: list[Argument] = [_name(key), encode(key.user_id)]
        answer, head, open_turns, open_runs, now, tenant = await self._do("state", args, key, again=True)
        row = _SessionRow(*answer)
        number = _decoded(row.number)
        turns = [self._turn(number, text) for text in (*head, *open_turns)]
        return Activation(
            session=self._session(row),
            head=turns[0] if head else None,
            open_turns=tuple(turns[len(head) :]),
            open_runs=tuple(self._run_record(number, key, text) for text in open_runs),
            now=float(now),
            tenant=_decoded(tenant) or None,
        )

    async def commit(self, key: SessionKey, epoch: int, commit: Commit) -> None:
        session, new = commit.session, commit.new_run
        with self._translated():
            commit = checked_commit(commit)
            first = commit.log_size_before
            args = [
                *(_number(session.log), epoch, _name(key), record_text(session, _CHANGES), session.status),
                *(session.revision, session.revision - 1, session.log_size, first),
                *_times(session),
                padded(commit.forget_events) if commit.forget_events else "",
                commit.forget_turns,
                *_rows([(position, block) for position, block in commit.cleared_blocks]),
                *_rows([(position, block) for position, block in enumerate(commit.blocks, first)]),
                *_rows([(padded(index),) for index in commit.dropped_turns]),
                *_rows([_turn_row(turn) for turn in commit.turns]),
                *_rows([_new_run_row(new)] if new else []),
                *_rows([(run.run_id, *_run_text(run)) for run in commit.runs]),
                *_rows(
                    [(padded(event.seq), _index_field("e", event.key), encode_event(event)) for event in commit.events]
                ),
                *_rows([_delivery_row(change) for change in commit.deliveries]),
                *_rows([_received_row(key.user_id, delivery) for delivery in commit.received]),
                *_rows(
                    [
                        (ledger_field(row, session.agent, name), number)
                        for row in commit.spent
                        for name, number in zip(NUMBERS, numbers_of(row), strict=True)
                        if number
                    ]
                ),
                *_count_rows(commit.counts),
                *(" ".join(_member_places(session, users)) for users in (commit.joined, commit.left)),
            ]
        _check_counted(commit.counts, await self._do("commit", args, key, epoch))

    async def blocks(self, spans: Sequence[Span]) -> list[str]:
        args = _rows([(encode(log), start, stop) for log, start, stop in spans])
        (blocks,) = await self._do("blocks", args, again=True)
        positions = ((log, position) for log, start, stop in spans for position in range(start, stop))
        # There may be fewer blocks than positions: the script stops at PAGE_BYTES.
        return [
            decoded(f"block {log}:{position}", block.decode)
            for block, (log, position) in zip(blocks, positions, strict=False)
        ]

    async def turns(self, key: SessionKey, *, after: int = -1, limit: int = 100) -> list[TurnRecord]:
        number, texts = await self._page(key, after, limit, ":turns")
        return [self._turn(number, text) for text in texts]

    async def run(self, run_id: str, user_id: str = DEFAULT_USER) -> RunRecord:
        # The name of a session of this user ends so, and no other name does: see `_name`.
        end_of_name = f", {json.dumps(user_id)}]"
        try:
            number, name, text = await self._do("run", [encode(run_id), end_of_name], again=True)
        except SessionNotFoundError:
            raise RunNotFoundError(run_id, "the store") from None
        return self._run_record(_decoded(number), self._session_key(number, name), text)

    async def run_of_key(self, key: SessionKey, idempotency_key: str) -> RunRecord | None:
        number, *texts = await self._of_key(key, _index_field("k", idempotency_key), ":runs")
        return self._run_record(_decoded(number), key, texts[0]) if texts else None

    async def runs(self, key: SessionKey, *, after: int = -1, limit: int = 100) -> list[RunRecord]:
        number, texts = await self._page(key, after, limit, ":runs")
        return [self._run_record(number, key, text) for text in texts]

    async def events(self, key: SessionKey, *, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        number, texts = await self._page(key, after, limit, ":events", ":keyed")
        return self._events(number, key, texts)

    async def event_rows(self, key: SessionKey, *, after: int = 0, limit: int = 1000) -> list[EventRow]:
        """See `KeepsEventRows`."""
        number, texts = await self._page(key, after, limit, ":events", ":keyed")
        return self._event_rows(number, texts)

    async def event_of_key(self, key: SessionKey, event_key: str) -> AnyEvent | None:
        number, *texts = await self._of_key(key, _index_field("e", event_key), ":keyed")
        return self._events(_decoded(number), key, texts)[0] if texts else None

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
        behind = ("", "") if cursor is None else _page_start(cursor)
        # One row more tells whether there is a next page.
        args: list[Argument] = [order_by.removesuffix("_at"), min(check_limit(limit), _MANY) + 1, *behind]
        args += await self._lists(user_id, agent, status, called_by, member=member, tenant=tenant)
        shown, is_cut = await self._do("query", args, again=True)
        return self._sessions(shown, limit, is_cut=bool(is_cut))

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
        lists = await self._lists(user_id, agent, status, called_by, member=member, tenant=tenant)
        (count,) = await self._do("count", [*lists], again=True)
        return int(count)

    async def _lists(
        self,
        user_id: str | None,
        agent: str | None,
        status: SessionStatus | None,
        called_by: str | None,
        *,
        member: str | None,
        tenant: str | None,
    ) -> list[str]:
        """Return the lists that have, together, each session of a query once: see `SessionStore.query`."""
        check_tenant_filter(tenant, member)
        lists = _lists(user_id, agent, status, called_by, member)
        if tenant is None:
            return lists
        if user_id is not None:
            return lists if (await self.tenants_of([user_id])).get(user_id) == tenant else []
        users = await self.users(tenant, limit=_MANY)
        return [name for user in users for name in _lists(user, agent, status, called_by)]

    async def ledger(self, query: LedgerQuery) -> list[LedgerRow]:
        user = "" if query.user_id is None else _place(query.user_id, None)
        (ledgers,) = await self._do("ledger", [user, query.since or "", query.until or ""], again=True)
        rows = decoded("the ledger", lambda: [row for found in ledgers for row in read_ledger(*found)])
        return query.sums(rows)

    async def forget_in_ledger(self, user_id: str) -> None:
        await self._do("forget_in_ledger", [_place(user_id, None), encode(user_id)])

    async def unsettled(self, *, cursor: str | None = None, limit: int = 1000) -> Page[SessionKey]:
        after = "" if cursor is None else _page_start(cursor)[1]
        (shown,) = await self._do("unsettled", [after, min(check_limit(limit), _MANY) + 1], again=True)
        for number, name in shown:
            if name is None:
                raise CorruptRecordError(self._redis_key(_decoded(number)), "missing")
        more = cursor_of(0.0, int(shown[limit - 1][0])) if len(shown) > limit else None
        return Page(tuple(self._session_key(*row) for row in shown[:limit]), more)

    async def expired(self, now: float, *, cursor: str | None = None, limit: int = 100) -> Page[SessionRecord]:
        after = "" if cursor is None else _page_start(cursor)[1]
        args: list[Argument] = [repr(float(now)), after, min(check_limit(limit), _MANY) + 1]
        shown, is_cut = await self._do("expired", args, again=True)
        return self._sessions(shown, limit, is_cut=bool(is_cut))

    async def add_delivery(self, delivery: Delivery) -> Delivery:
        check_delivery(delivery)
        key = delivery.session_key
        with self._translated():
            args = [_name(key), *_rows([_delivery_row(DeliveryChange(None, delivery))])]
        existing = await self._do("add_delivery", args, key)
        return self._delivery(key, *existing) if existing else delivery

    async def change_delivery(self, change: DeliveryChange) -> None:
        key = check_change(change).session_key
        with self._translated():
            args = [_name(key), *_rows([_delivery_row(change)])]
        await self._do("change_delivery", args, key)

    async def delivery(self, key: SessionKey, delivery_key: str) -> Delivery | None:
        stored = await self._do("delivery", [_name(key), encode(delivery_key)], key, again=True)
        return self._delivery(key, *stored) if stored else None

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
        session = b"" if session_id is None else _name(SessionKey(session_id, user_id or ""))
        start, stop = call_range(webhook_id)
        ids = (encode(max(start, after)), encode(stop))
        args: list[Argument] = [session, _place(user_id, None), *ids, min(check_limit(limit), _MANY)]
        (rows,) = await self._do("deliveries", args, again=True)
        return [
            self._delivery(self._session_key(delivery_id, name), delivery_id, text)
            for delivery_id, name, text, _ in rows
        ]

    async def due(
        self, now: float, *, cursor: str | None = None, limit: int = 100, without_users: Collection[str] = ()
    ) -> Page[Delivery]:
        time_s, after = parse_due_cursor(cursor)
        args: list[Argument] = [repr(float(now)), repr(time_s), encode(after), min(check_limit(limit), _MANY)]
        rows, last_due_at, last_id = await self._do("due", [*args, *map(encode, without_users)], again=True)
        deliveries: list[Delivery] = []
        unreadable: dict[SessionKey, None] = {}
        for delivery_id, name, text, _ in rows:
            key = self._session_key(delivery_id, name)
            try:
                deliveries.append(self._delivery(key, delivery_id, text))
            except CorruptRecordError:
                unreadable[key] = None
        cursor = f"{float(last_due_at)!r}:{_decoded(last_id)}" if last_id else None
        return Page(tuple(deliveries), cursor, tuple(unreadable))

    async def lease_deliveries(self, holder: str, ttl_s: float | None) -> DeliveryLease:
        args = [holder, "" if ttl_s is None else repr(float(ttl_s))]
        owner, until, now, next_due_at = await self._do("lease", args, again=True)
        return DeliveryLease(
            holder=_decoded(owner),
            until=float(until),
            now=float(now),
            next_due_at=float(next_due_at) if next_due_at else None,
        )

    async def claim_sweep(self, every_s: float) -> float:
        """See `SweepClaims`."""
        (left_s,) = await self._do("claim_sweep", [repr(float(every_s))])
        return float(left_s)

    async def webhooks(self) -> list[WebhookRecord]:
        (rows,) = await self._do("webhooks", [], again=True)
        webhooks = [decode_record(WebhookRecord, f"{self._base}:webhooks", text) for text in rows]
        return sorted(webhooks, key=attrgetter("webhook_id"))

    async def change_webhook(self, before: WebhookRecord | None, after: WebhookRecord | None) -> None:
        webhook_id = check_webhook_change(before, after)
        with self._translated():
            text = record_text(after, WEBHOOK_FIELDS) if after else ""
            args = [webhook_id, before.revision if before else "", after.revision if after else "", text]
        if await self._do("change_webhook", args):
            raise WebhookChangedError(webhook_id)

    async def quotas(self) -> list[Quota]:
        (rows,) = await self._do("quotas", [], again=True)
        quotas = [decode_record(Quota, f"{self._base}:quotas", text) for text in rows]
        return sorted(quotas, key=attrgetter("quota_id"))

    async def set_quota(self, quota: Quota) -> None:
        check_quota(quota)
        if await self._do("set_quota", [quota.quota_id, record_text(quota, QUOTA_FIELDS), MAX_QUOTAS]):
            raise too_many_quotas(quota)

    async def remove_quota(self, quota_id: str) -> None:
        if await self._do("remove_quota", [encode(quota_id)]):
            raise QuotaNotFoundError(quota_id)

    async def use_quotas(self, counts: Sequence[QuotaCount]) -> None:
        _check_counted(counts, await self._do("use_quotas", _count_rows(counts)))

    async def quota_counters(self, user_id: str, agent: str, tenant: str = "") -> QuotaCounters:
        names = [json.dumps(names) for names in itertools.product({"", user_id}, {"", agent}, {"", tenant})]
        now, rows = await self._do("quota_counters", _rows([(name,) for name in names]), again=True)
        counters: list[QuotaCounter] = []
        for quota_id, name, text in rows:
            starts, ends, used = map(int, text.split())
            user, own_agent, own_tenant = json.loads(name)
            key = CounterKey(user, own_agent, _decoded(quota_id), own_tenant)
            counters.append(QuotaCounter(key=key, starts=starts, ends=ends, used=used))
        return QuotaCounters(counters, float(now))

    async def set_tenant(self, user_id: str, tenant: str | None) -> None:
        check_names("user_id", user_id)
        await self._do("set_tenant", [encode(user_id), "" if tenant is None else check_tenant(tenant)])

    async def tenants_of(self, user_ids: Collection[str]) -> dict[str, str]:
        (rows,) = await self._do("tenants_of", _rows([(encode(user_id),) for user_id in user_ids]), again=True)
        return {_decoded(user_id): _decoded(tenant) for user_id, tenant in rows}

    async def tenants(self, *, after: str = "", limit: int = 100) -> list[Tenant]:
        args: list[Argument] = [encode(after), min(check_limit(limit), _MANY)]
        (rows,) = await self._do("tenants", args, again=True)
        return [Tenant(tenant=_decoded(tenant), users=int(users)) for tenant, users in rows]

    async def users(self, tenant: str, *, after: str = "", limit: int = 100) -> list[str]:
        args: list[Argument] = [encode(tenant), encode(after), min(check_limit(limit), _MANY)]
        (users,) = await self._do("users", args, again=True)
        return [_decoded(user_id) for user_id in users]

    def _delivery(self, key: SessionKey, delivery_id: bytes, text: bytes | None) -> Delivery:
        """Return a delivery from its text, which follows the number of its session and its revision."""
        record_key = f"{self._base}:deliveries {_decoded(delivery_id)}"
        return decode_record(Delivery, record_key, (text or b"").split(b" ", 2)[-1], **key._asdict())

    async def delete(self, key: SessionKey, *, epoch: int | None = None, log: str | None = None) -> int:
        args = [*_deleted(key), "" if epoch is None else epoch, "" if log is None else encode(log)]
        (turns,) = await self._do("delete", args, key, epoch)
        return int(turns)

    async def delete_unchanged(self, sessions: Sequence[SessionRecord]) -> list[SessionKey]:
        """See `UnchangedDeletion`."""
        sessions = [session for session in sessions if session.called_by is None]
        (places,) = await self._do("delete_unchanged", _rows([_unchanged(session) for session in sessions]))
        return [sessions[place - 1].key for place in places]

    async def end_unchanged(self, sessions: Sequence[SessionRecord]) -> list[SessionRecord]:
        """See `UnchangedDeletion`."""
        sessions, jump = [session for session in sessions if session.called_by is None], new_jump()
        done = [ended(session, jump) for session in sessions]
        rows = [
            (
                *(*_unchanged(before), after.epoch, after.revision, record_text(after, _CHANGES)),
                *(finite(after.created_at, "created_at"), _times(after)[0]),
            )
            for before, after in zip(sessions, done, strict=True)
        ]
        (places,) = await self._do("end_unchanged", _rows(rows))
        return [done[place - 1] for place in places]

    async def reserve_object(self, object_id: str, user_id: str) -> None:
        await self._files.reserve(object_id, user_id)

    async def release_object(self, object_id: str) -> None:
        await self._files.release(object_id)

    async def add_file(self, file: FileRecord, limits: FileLimits) -> FileRecord:
        check_names("file", file.user_id, file.session_id, file.file_id)
        return await self._files.add(file, limits, _name(file.key) if file.session_id else b"")

    async def file(self, key: SessionKey, file_id: str) -> FileRecord | None:
        return await self._files.get(key, file_id)

    async def files(self, key: SessionKey, *, after: str = "", limit: int = 100) -> list[FileRecord]:
        return await self._files.page(key, after, check_limit(limit))

    async def delete_file(self, key: SessionKey, file_id: str) -> bool:
        return await self._files.delete(key, file_id)

    async def forget_files(self, user_id: str) -> int:
        return await self._files.forget(user_id)

    async def unused_objects(self, reserved_before: float, *, limit: int = 100) -> list[str]:
        return await self._files.unused(reserved_before, check_limit(limit))

    async def drop_objects(self, object_ids: Sequence[str]) -> None:
        await self._files.drop(object_ids)

    async def try_writing(self) -> None:
        await self._do("probe", [secrets.token_hex(PROBE_BYTES // 2)], again=True)

    async def _do(
        self,
        verb: str,
        args: Sequence[Argument],
        key: SessionKey = _NONE,
        epoch: int | None = None,
        *,
        again: bool = False,
    ) -> list[Any]:
        """Run a script and return its answer after the first word, which is blank or names an error."""
        if not self._check.is_done:
            with self._translated():
                await self._thread.run(lambda: self._check(self._client))
        word: bytes
        values: list[Any]
        word, *values = await self._run(verb, [self._base], args, again=again)
        if word:
            raise self._error(word.decode(), list(map(_decoded, values)), key.session_id, epoch)
        return values

    def _error(self, word: str, values: list[str], session_id: str, epoch: int | None) -> TurnwiseError:
        errors: dict[str, Callable[[], TurnwiseError]] = {
            "version": lambda: SchemaVersionError(
                self._name,
                values[0],
                int(VERSION),
                f"use a turnwise with schema version {values[1]} or later",
            ),
            "corrupt": lambda: CorruptRecordError(*values),
            "gone": lambda: CorruptRecordError(f"block {values[0]}:{values[1]}", "missing"),
            "duplicate": lambda: DuplicateKeyError(session_id, values[0]),
            "taken": lambda: StoreError(
                f"session {session_id!r} has {values[0]} {int(values[1])} already; nothing was written"
            ),
            "exists": lambda: SessionExistsError(session_id),
            "changed": lambda: DeliveryChangedError(session_id, values[0]),
            "missing": lambda: SessionNotFoundError(session_id),
            "fenced": lambda: SessionFencedError(session_id, int(values[0]) if values else epoch),
        }
        return errors[word]()

    async def _page(self, key: SessionKey, after: int, limit: int, *sets: str) -> tuple[str, list[bytes]]:
        """Return a session's number, and up to `limit` entries of these sets above the number `after`, in order."""
        lower = "" if after < 0 else padded(min(after, 10**PADDED_DIGITS - 1))
        args: list[Argument] = [_name(key), lower, min(check_limit(limit), _MANY), *sets]
        number, upto, *entries = await self._do("page", args, key, again=True)
        # If the script stopped at PAGE_BYTES, it had not read the entries of other sets above the last one, `upto`.
        texts = sorted(text for part in entries for text in part if not upto or text <= upto)
        return _decoded(number), texts[:limit]

    async def _of_key(self, key: SessionKey, name: str, set_: str) -> list[bytes]:
        return await self._do("of_key", [_name(key), encode(name), set_], key, again=True)

    def _sessions(self, answer: list[Any], limit: int, *, is_cut: bool) -> Page[SessionRecord]:
        """Return a page of up to `limit` sessions.

        Args:
            is_cut: whether the script stopped at PAGE_BYTES: its last row belongs to the next page.
        """
        rows = [_SessionRow(*row) for row in answer]
        limit = len(rows) - 1 if is_cut else limit
        sessions: list[SessionRecord] = []
        unreadable: list[SessionKey] = []
        for row in rows[:limit]:
            try:
                sessions.append(self._session(row))
            except CorruptRecordError:
                unreadable.append(self._reported_key(row))
        last = rows[limit - 1] if len(rows) > limit else None
        more = cursor_of(float(last.time), int(last.number)) if last else None
        return Page(tuple(sessions), more, tuple(unreadable))

    def _reported_key(self, row: _SessionRow) -> SessionKey:
        """Return the key of a session that cannot be read; if that is lost, one with the name of its hash in Redis."""
        try:
            return self._session_key(row.number, row.name or b"")
        except CorruptRecordError:
            return SessionKey(self._redis_key(_decoded(row.number)), "")

    def _session(self, row: _SessionRow) -> SessionRecord:
        number = _decoded(row.number)
        revision = b"0" if row.revision is None else row.revision
        key = self._redis_key(number)
        if row.name is None or not (_is_number(row.epoch) and _is_number(revision)):
            raise CorruptRecordError(key, "its epoch, its revision or its id is missing")
        columns: dict[str, Any] = {"epoch": int(row.epoch), "revision": int(revision), "log": number}
        return decode_record(SessionRecord, key, row.creation, row.changes, **columns)

    def _turn(self, number: str, text: bytes) -> TurnRecord:
        return decode_record(TurnRecord, self._redis_key(number, ":turns", text), text[PADDED_DIGITS + 1 :])

    def _run_record(self, number: str, key: SessionKey, text: bytes) -> RunRecord:
        record_key = self._redis_key(number, ":runs", text)
        return decode_record(RunRecord, record_key, text[PADDED_DIGITS + 1 :], **key._asdict())

    def _events(self, number: str, key: SessionKey, texts: Sequence[bytes]) -> list[AnyEvent]:
        rows = self._event_rows(number, texts)
        return decoded_events(key, rows, lambda index: self._redis_key(number, ":events", texts[index]))

    def _event_rows(self, number: str, texts: Sequence[bytes]) -> list[EventRow]:
        return [event_row(self._redis_key(number, ":events", text), text) for text in texts]

    def _session_key(self, number: bytes, name: bytes) -> SessionKey:
        return decoded(f"id of {self._redis_key(_decoded(number))}", lambda: SessionKey(*json.loads(name)))

    def _redis_key(self, number: str, part: str = "", text: bytes = b"") -> str:
        """Return the key of a session or of a part of it, and the beginning of an entry, for messages."""
        key = f"{self._base}:{number}{part}"
        return f"{key} {text[:PADDED_DIGITS].decode(errors='replace')}" if part else key


def _name(key: SessionKey) -> bytes:
    """Return the name under which a session is found."""
    # In ASCII, so that an id which UTF-8 cannot encode is looked up, too, and not found.
    return json.dumps(list(key)).encode()


_MANY = 2**31
"""A limit above any possible number of results."""

# The log, the epoch and the revision are stored outside the JSON text: scripts use them.
_CREATION = set(FIXED) - {"log", "epoch"}
_CHANGES = set(SESSION_CHANGES) - {"revision"}

_TURN = {field.name for field in fields(TurnRecord)}
_RUN = {field.name for field in fields(RunRecord)} - {"session_id", "user_id"}
_DELIVERY = {field.name for field in fields(Delivery)} - {"session_id", "user_id"}


def _decoded(part: bytes) -> str:
    """Return a part of an error, which may be a name that was damaged."""
    try:
        return part.decode(errors="surrogatepass")
    except UnicodeDecodeError:
        return part.decode(errors="replace")


def _is_number(text: bytes | None) -> TypeGuard[bytes]:
    return text is not None and text.isdigit() and text == str(int(text)).encode()


def _deleted(key: SessionKey) -> tuple[Argument, ...]:
    """Return what a script reads of a session to delete."""
    return _name(key), json.dumps(key.user_id), *place_of(key)


def _unchanged(session: SessionRecord) -> tuple[Argument, ...]:
    """Return what a script reads of a session that is to be as it was read, and to have called no agents."""
    called = _caller(session.user_id, session.session_id) + _place(session.user_id, None)
    return *_deleted(session.key), _number(session.log), session.epoch, session.revision, called


def _rows(rows: Sequence[Sequence[Argument]]) -> list[Argument]:
    """Return rows as arguments of a script: their count, then their values."""
    return [len(rows), *(value for row in rows for value in row)]


def _turn_row(turn: TurnRecord) -> tuple[str, str, str]:
    """Return the turn's index, a letter for its state (open, or ended), and the turn as text."""
    return padded(turn.index), "o" if turn.is_open else "e", record_text(turn, _TURN)


def _new_run_row(run: RunRecord) -> tuple[str, str, str, str, str]:
    return padded(run.turn_index), run.run_id, _index_field("k", run.idempotency_key), *_run_text(run)


def _run_text(run: RunRecord) -> tuple[str, str]:
    """Return a letter for the run's state (unsettled, waiting or ended), and the run as text."""
    letter = "u" if run.state in UNSETTLED else "w" if run.is_open else "e"
    return letter, record_text(run, _RUN)


def _received_row(user_id: str, delivery: Delivery) -> tuple[Argument, ...]:
    """Return the name of the user's session that has the delivery, its key, id and revision."""
    return _name(SessionKey(delivery.session_id, user_id)), delivery.key, delivery.delivery_id, delivery.revision


def _delivery_row(change: DeliveryChange) -> tuple[Argument, ...]:
    """Return the delivery's key, id, revision before, time at which it is due, and text; blank what there is not."""
    before, after = change.before, change.after
    key = next((delivery.key for delivery in (before, after) if delivery), "")
    due_at = "" if after is None or after.due_at is None else repr(float(after.due_at))
    text = f"{after.revision} {record_text(after, _DELIVERY)}" if after else ""
    return key, change.delivery_id, before.revision if before else "", due_at, text


def _times(session: SessionRecord) -> tuple[str, str]:
    """Return the time of the session's last change and its time of expiry, as text. Checks its numbers, too."""
    for name in ("seconds", "cost"):
        finite(getattr(session.usage, name), f"usage.{name}")
    deadline = "" if session.ttl_s is None else finite(session.updated_at + session.ttl_s, "updated_at + ttl_s")
    return finite(session.updated_at, "updated_at"), deadline


def _index_field(kind: str, key: str | None) -> str:
    """Return the field for an event key or an idempotency key in the session's hash of keys."""
    return "" if key is None else f"{kind}={key}"


def _number(log: str) -> str:
    """Return the number of the session that has this log; "0", which no session has, if it is no log."""
    return log if log.isascii() and log.isdigit() else "0"


def _count_rows(counts: Sequence[QuotaCount]) -> list[Argument]:
    return _rows(
        [
            (
                *(count.key.quota_id, json.dumps([count.key.user_id, count.key.agent, count.key.tenant])),
                *(count.quota.per, count.amount, "" if count.most is None else count.most),
            )
            for count in counts
        ]
    )


def _check_counted(counts: Sequence[QuotaCount], answer: Sequence[Any]) -> None:
    """Raise QuotaExceededError if a script has answered that a quota is used up."""
    if answer:
        index, used, ends, now = answer
        count = counts[int(index) - 1]
        raise count.quota.exceeded(count.key, int(used), int(ends), float(now))


def _place(user_id: str | None, agent: str | None) -> str:
    """Return the place, a list of sessions, of a user and an agent. Its name reveals neither."""
    if user_id is None:
        return "all" if agent is None else f"agent-{digest_of(agent, '').hex()}"
    return f"user-{digest_of(user_id, '').hex()}" if agent is None else f"both-{digest_of(user_id, agent).hex()}"


_CALLED = "called-"
"""What the names of places begin with that have sessions of agents only. Places without it have none of them."""


def _caller(user_id: str, called_by: str) -> str:
    """Return what the names of places begin with that have the sessions of agents of one caller."""
    return f"caller-{digest_of(user_id, called_by).hex()}-"


def _file_places(session: SessionRecord) -> tuple[str, str, str]:
    """Return the user of a new session, and the owners of the files that it gets (empty for none) and that it has."""
    user, owner = place_of(session.key)
    source = SessionKey(parent_id(session.parent), session.user_id) if session.parent else None
    return user, place_of(source)[1] if source else "", owner


def _member(user_id: str) -> str:
    """Return what the names of places begin with that have the sessions of which a user is a member."""
    return f"member-{digest_of(user_id, '').hex()}-"


def _places(session: SessionRecord) -> list[str]:
    """Return all places in which a session is listed."""
    agents = _agents(session)
    places = [_place(user_id, agent) for user_id in (None, session.user_id) for agent in agents]
    shared = _member_places(session, session.members)
    if session.called_by is None:
        return [*places, *shared]
    caller = _caller(session.user_id, session.called_by)
    own = [caller + _place(session.user_id, agent) for agent in agents]
    return [*(_CALLED + place for place in places), *own, *shared]


def _member_places(session: SessionRecord, members: Iterable[str]) -> list[str]:
    """Return the places in which a session is listed for these members."""
    return [_member(user_id) + _place(None, agent) for user_id in members for agent in _agents(session)]


def _agents(session: SessionRecord) -> Sequence[str | None]:
    return (None,) if session.agent is None else (None, session.agent)


def _lists(
    user_id: str | None,
    agent: str | None,
    status: SessionStatus | None,
    called_by: str | None,
    member: str | None = None,
) -> list[str]:
    """Return the lists that have, together, each session of a query once: see `SessionStore.query`."""
    check_session_filter(user_id, called_by or None)
    check_member_filter(member, user_id, called_by)
    if member is not None:
        beginnings = [_member(member)]
    elif called_by is None:
        beginnings = ["", _CALLED]
    else:
        beginnings = [_caller(user_id or "", called_by)] if called_by != NO_CALLER else [""]
    statuses = get_args(SessionStatus) if status is None else (status,)
    place = _place(user_id, agent)
    return [f"{state}:{beginning}{place}" for state in statuses for beginning in beginnings]


def _page_start(cursor: str) -> tuple[str, str]:
    """Return the time of a cursor, and the member after which the page starts."""
    time_s, order = parse_cursor(cursor)
    return repr(time_s), f"{max(order, 0):016d}"
