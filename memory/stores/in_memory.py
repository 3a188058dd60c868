"""`InMemoryStore`: sessions in the memory of this process."""

from __future__ import annotations

import itertools
import time
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from turnwise.errors import (
    CorruptRecordError,
    DeliveryChangedError,
    DuplicateKeyError,
    RunNotFoundError,
    SessionExistsError,
    SessionFencedError,
    SessionNotFoundError,
    StoreClosedError,
    StoreError,
)
from turnwise.memory.conversation.branches import is_shown
from turnwise.memory.conversation.events import AnyEvent, without_blocks
from turnwise.memory.conversation.ledger import ZEROS, LedgerKey, LedgerQuery, LedgerRow, key_in, numbers_of
from turnwise.memory.conversation.marks import marks_of
from turnwise.memory.conversation.runs import UNSETTLED, RunRecord
from turnwise.memory.conversation.sessions import (
    DEFAULT_USER,
    SESSION_CHANGES,
    SessionKey,
    SessionRecord,
    SessionStatus,
    parent_id,
)
from turnwise.memory.conversation.spans import Seen, Span, Spans, subtract, union
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.deliveries.records import Delivery, DeliveryChange, check_delivery
from turnwise.memory.deliveries.webhooks import WebhookRecord
from turnwise.memory.files.records import FileLimits, FileRecord
from turnwise.memory.files.table import FileTable
from turnwise.memory.quotas.records import (
    CounterKey,
    Quota,
    QuotaCount,
    QuotaCounter,
    QuotaCounters,
    with_quota,
    without_quota,
)
from turnwise.memory.quotas.tenants import Tenant, check_tenant
from turnwise.memory.stores.base import (
    NO_CALLER,
    Activation,
    Commit,
    DeliveryLease,
    LocalClock,
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
    checked_commit,
    cursor_of,
    due_cursor_of,
    ended,
    new_jump,
    next_sweep,
    parse_cursor,
    parse_due_cursor,
)
from turnwise.memory.stores.search.records import (
    MessageText,
    TextFilter,
    TextHit,
    parse_hit_cursor,
)
from turnwise.memory.values.ids import check_names, new_key
from turnwise.memory.values.weights import BLOCK_BYTES, PAGE_BYTES, count_first, first_of, weight


@dataclass(slots=True)
class _Row:
    session: SessionRecord
    order: int
    borrowed: Spans = ()
    turns: dict[int, TurnRecord] = field(default_factory=dict)
    runs: dict[str, RunRecord] = field(default_factory=dict)
    events: dict[int, AnyEvent] = field(default_factory=dict)
    keys: dict[str, AnyEvent] = field(default_factory=dict)
    """Events by their key."""
    deliveries: dict[str, Delivery] = field(default_factory=dict)
    """By their key."""
    texts: dict[tuple[int, int], tuple[int, MessageText]] = field(default_factory=dict)
    """Texts that are searched, with the order in which they were stored: by turn and number of the message."""


class _Deliveries:
    """All deliveries of a store, by id and in the order in which they are due."""

    def __init__(self) -> None:
        self.by_id: dict[str, Delivery] = {}
        self._due: list[tuple[float, str]] = []
        """The time and the id of each delivery that is ever due, in order."""

    def put(self, delivery_id: str, delivery: Delivery | None) -> None:
        """Set what there is under an id; None: nothing."""
        old = self.by_id.pop(delivery_id, None)
        if old and old.due_at is not None:
            del self._due[bisect_right(self._due, (old.due_at, delivery_id)) - 1]
        if delivery:
            self.by_id[delivery_id] = delivery
            if delivery.due_at is not None:
                insort(self._due, (delivery.due_at, delivery_id))

    def due(self, after: tuple[float, str], now: float, limit: int, without_users: Collection[str]) -> list[Delivery]:
        """Return up to `limit` deliveries that follow a place in the order and are due at `now`."""
        following = itertools.islice(self._due, bisect_right(self._due, after), None)
        places = itertools.takewhile(lambda place: place[0] <= now, following)
        deliveries = (self.by_id[delivery_id] for _, delivery_id in places)
        return [*itertools.islice((one for one in deliveries if one.user_id not in without_users), limit)]

    @property
    def next_due_at(self) -> float | None:
        """When the earliest one is due."""
        return self._due[0][0] if self._due else None


class InMemoryStore(LocalClock):
    """Stores sessions in memory while the process lives. No method awaits, so each is atomic on its event loop.

    Args:
        clock: returns the time, in seconds since the epoch.
    """

    is_in_process = True
    """Other processes do not see its sessions: a manager has it as `memory://name`, in an actor."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._rows: dict[SessionKey, _Row] = {}
        self._owners: dict[str, SessionKey] = {}
        """The sessions of runs, by run id."""
        self._logs: dict[str, dict[int, str]] = {}
        self._deliveries = _Deliveries()
        self._text_count = 0
        self._lease = DeliveryLease(holder="", until=0.0, now=0.0, next_due_at=None)
        self._sweep_at: float | None = None
        self._webhooks: dict[str, WebhookRecord] = {}
        self._ledger: dict[LedgerKey, tuple[int, ...]] = {}
        self._quotas: dict[str, Quota] = {}
        self._counters: dict[CounterKey, QuotaCounter] = {}
        self._tenants: dict[str, str] = {}
        """By user."""
        self._files = FileTable()
        self._objects: dict[str, bytes] = {}
        """The bytes of files, by the names of their objects."""
        self._closed = False

    @property
    def size_chars(self) -> int:
        """How many characters the blocks in it have."""
        return sum(len(body) for log in self._logs.values() for body in log.values())

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
        self._check_open()
        order = new_key()
        if session.key in self._rows:
            raise SessionExistsError(session.session_id)
        borrowed = union(turn.prompt, turn.input, turn.carried, turn.output, also) if turn else ()
        for log, start, stop in borrowed:
            for position in range(start, stop):
                self._block(log, position)
        session = replace(session, log=str(order))
        turns = {turn.index: turn} if turn else {}
        row = _Row(session, order, borrowed, turns)
        self._check_deliveries(row, additions)
        self._logs[session.log] = {}
        self._rows[session.key] = row
        self._change_deliveries(row, additions)
        self._add_texts(row, texts)
        if session.parent:
            self._files.copy(SessionKey(parent_id(session.parent), session.user_id), session.key)
        return session

    def clock(self) -> float:
        return self._clock()

    async def now(self) -> float:
        self._check_open()
        return self._clock()

    async def get(self, key: SessionKey) -> SessionRecord:
        return self._row(key).session

    async def activate(self, key: SessionKey, *, revision: int | None = None, jump: int | None = None) -> Activation:
        state = await self.state(key)
        old = state.session
        if revision not in (None, old.revision):
            raise SessionFencedError(key.session_id, old.epoch)
        session = replace(old, epoch=old.epoch + 1, revision=old.revision + (jump or new_jump()))
        activation = replace(state, session=session)
        self._rows[key].session = session
        return activation

    async def state(self, key: SessionKey) -> Activation:
        row = self._row(key)
        turns = sorted(row.turns.values(), key=lambda turn: turn.index)
        ended = [turn for turn in turns if not turn.is_open]
        runs = (run for run in row.runs.values() if run.is_open)
        return Activation(
            session=row.session,
            head=ended[-1] if ended else None,
            open_turns=tuple(turn for turn in turns if turn.is_open),
            open_runs=tuple(sorted(runs, key=lambda run: run.turn_index)),
            now=self._clock(),
            tenant=self._tenants.get(key.user_id),
        )

    async def commit(self, key: SessionKey, epoch: int, commit: Commit) -> None:
        commit = checked_commit(commit)
        self._check_open()
        row, session = self._rows.get(key), commit.session
        follows = (session.log, epoch, session.revision - 1, commit.log_size_before)
        if row is None or _place(row.session) != follows:
            raise SessionFencedError(key.session_id, epoch)
        # All records are made before any is stored, so that a record that cannot be made leaves nothing behind.
        log = self._logs[session.log]
        blocks = dict(enumerate(commit.blocks, commit.log_size_before))
        events = {event.seq: without_blocks(event) for event in commit.events}
        old_events = row.events
        if upto := commit.forget_events:
            old_events = {seq: event for seq, event in old_events.items() if seq > upto or event.key is not None}
        if commit.forget_turns >= 0:
            old_events = {
                seq: event for seq, event in old_events.items() if event.key is not None or not _is_of(event, commit)
            }
        self._refuse_duplicates(row, commit)
        self._check_deliveries(row, commit.deliveries)
        self._check_received(row, commit)
        if log.keys() & blocks or old_events.keys() & events or len(events) < len(commit.events):
            raise StoreError(f"session {key.session_id!r} has these blocks or events already; nothing was written")
        lent = Seen()
        for span in (span for other_row in self._rows.values() for span in other_row.borrowed):
            lent.add(span)
        cleared = {
            position: block
            for position, block in commit.cleared_blocks
            if position in log and not lent.common(Span(session.log, position, position + 1))
        }
        dropped = set(commit.dropped_turns)
        turns = {turn.index: turn for turn in commit.turns}
        new = {run.run_id: run for run in (commit.new_run,) if run}
        runs = {run.run_id: run for run in commit.runs if run.run_id in row.runs or run.run_id in new}
        keys = {event.key: event for event in events.values() if event.key is not None}
        spent = [(key_in(row.session, ledger_row), numbers_of(ledger_row)) for ledger_row in commit.spent]
        counters = self._counted(commit.counts)
        row.session = replace(row.session, **{name: getattr(session, name) for name in SESSION_CHANGES})
        self._counters.update(counters)
        log.update(cleared | blocks)
        for index in dropped & row.turns.keys():
            del row.turns[index]
        silenced = {*dropped, *commit.dropped_texts}
        row.texts = {place: text for place, text in row.texts.items() if place[0] not in silenced}
        self._add_texts(row, commit.texts)
        row.turns.update(turns)
        row.runs.update(new | runs)
        row.events = old_events
        row.events.update(events)
        row.keys.update(keys)
        self._owners.update(dict.fromkeys(new, key))
        self._change_deliveries(row, commit.deliveries)
        for ledger_key, numbers in spent:
            self._add_to_ledger(ledger_key, numbers)
        for delivery in commit.received:
            self._change_deliveries(self._rows[delivery.session_key], [DeliveryChange(delivery, None)])

    def _add_texts(self, row: _Row, texts: Sequence[MessageText]) -> None:
        for text in texts:
            self._text_count += 1
            row.texts[text.turn_index, text.number] = (self._text_count, text)

    async def search_texts(self, texts: TextFilter, *, cursor: str | None = None, limit: int = 20) -> list[TextHit]:
        before = parse_hit_cursor(cursor)
        check_limit(limit)
        matches = [match for match in self._matching_texts(texts) if match[0] < before]
        matches.sort(key=lambda match: match[0], reverse=True)
        return [_hit(row.session, text, str(number)) for number, row, text in matches[:limit]]

    async def count_texts(self, texts: TextFilter, *, limit: int) -> int:
        return min(len(self._matching_texts(texts)), check_limit(limit))

    def _matching_texts(self, texts: TextFilter) -> list[tuple[int, _Row, MessageText]]:
        self._check_open()
        return [
            (number, row, text)
            for row in self._rows.values()
            if row.session.user_id == texts.user_id or (texts.shared and texts.user_id in row.session.members)
            if texts.agent in (None, row.session.agent) and texts.session_id in (None, row.session.session_id)
            if texts.agents or row.session.called_by is None
            for number, text in row.texts.values()
            if texts.role in (None, text.role)
            if texts.since is None or text.at >= texts.since
            if texts.until is None or text.at < texts.until
            if texts.mark is None or texts.mark in marks_of(row.turns[text.turn_index], text.number)
            if texts.query.matches(text.text)
        ]

    async def blocks(self, spans: Sequence[Span]) -> list[str]:
        self._check_open()
        places = ((log, position) for log, start, stop in spans for position in range(start, stop))
        size, blocks = 0, list[str]()
        for log, position in places:
            if size > PAGE_BYTES:
                break
            blocks.append(self._block(log, position))
            size += BLOCK_BYTES + len(blocks[-1])
        return blocks

    def _block(self, log: str, position: int) -> str:
        try:
            return self._logs[log][position]
        except KeyError:
            raise CorruptRecordError(f"block {log}:{position}", "missing") from None

    async def turns(self, key: SessionKey, *, after: int = -1, limit: int = 100) -> list[TurnRecord]:
        turns = self._row(key).turns
        return first_of([turns[index] for index in sorted(turns) if index > after][: check_limit(limit)])

    async def turns_with_removals(self, key: SessionKey, *, after: int = -1, limit: int = 100) -> list[TurnRecord]:
        turns = self._row(key).turns.values()
        less = [turn for turn in turns if turn.index > after and (turn.forgotten or turn.removed)]
        return first_of(sorted(less, key=lambda turn: turn.index)[: check_limit(limit)])

    async def run(self, run_id: str, user_id: str = DEFAULT_USER) -> RunRecord:
        self._check_open()
        owner = self._owners.get(run_id)
        if owner is None or owner.user_id != user_id:
            raise RunNotFoundError(run_id, "the store")
        return self._rows[owner].runs[run_id]

    async def run_of_key(self, key: SessionKey, idempotency_key: str) -> RunRecord | None:
        runs = self._row(key).runs.values()
        return next((run for run in runs if run.idempotency_key == idempotency_key), None)

    async def runs(self, key: SessionKey, *, after: int = -1, limit: int = 100) -> list[RunRecord]:
        runs = sorted(self._row(key).runs.values(), key=lambda run: run.turn_index)
        return first_of([run for run in runs if run.turn_index > after][: check_limit(limit)])

    async def events(self, key: SessionKey, *, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        events = self._row(key).events
        return first_of([events[seq] for seq in sorted(events) if seq > after][: check_limit(limit)])

    async def event_of_key(self, key: SessionKey, event_key: str) -> AnyEvent | None:
        return self._row(key).keys.get(event_key)

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
        rows = self._matching(user_id, agent, status, called_by, member=member, tenant=tenant)
        rows.sort(key=lambda row: (getattr(row.session, order_by), row.order), reverse=True)
        if cursor is not None:
            before = parse_cursor(cursor)
            rows = [row for row in rows if (getattr(row.session, order_by), row.order) < before]
        page = _first_sessions(rows[: check_limit(limit)])
        more = len(rows) > len(page)
        return Page(
            tuple(row.session for row in page),
            cursor_of(getattr(page[-1].session, order_by), page[-1].order) if more else None,
        )

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
        return len(self._matching(user_id, agent, status, called_by, member=member, tenant=tenant))

    async def ledger(self, query: LedgerQuery) -> list[LedgerRow]:
        self._check_open()
        return query.sums(self._ledger.items())

    async def forget_in_ledger(self, user_id: str) -> None:
        self._check_open()
        own = [row for row in self._ledger if row.user_id == user_id]
        for row in own:
            self._add_to_ledger(row._replace(user_id="", session_id=""), self._ledger.pop(row))
        self._counters = {key: counter for key, counter in self._counters.items() if key.user_id != user_id}

    def _add_to_ledger(self, key: LedgerKey, numbers: Sequence[int]) -> None:
        before = self._ledger.get(key, ZEROS)
        self._ledger[key] = tuple(one + other for one, other in zip(before, numbers, strict=True))

    async def unsettled(self, *, cursor: str | None = None, limit: int = 1000) -> Page[SessionKey]:
        rows = (row for row in self._rows_after(cursor) if any(run.state in UNSETTLED for run in row.runs.values()))
        page, more = _page(rows, limit)
        return Page(tuple(row.session.key for row in page), more)

    async def expired(self, now: float, *, cursor: str | None = None, limit: int = 100) -> Page[SessionRecord]:
        page, more = _page((row for row in self._rows_after(cursor) if row.session.has_expired(now)), limit)
        return Page(tuple(row.session for row in page), more)

    async def add_delivery(self, delivery: Delivery) -> Delivery:
        check_delivery(delivery)
        row, addition = self._row(delivery.session_key), DeliveryChange(None, delivery)
        if existing := row.deliveries.get(delivery.key):
            return existing
        self._check_deliveries(row, [addition])
        self._change_deliveries(row, [addition])
        return delivery

    async def change_delivery(self, change: DeliveryChange) -> None:
        self._check_open()
        before = check_change(change)
        row = self._rows.get(before.session_key)
        if row is None:
            raise DeliveryChangedError(before.session_id, before.delivery_id)
        self._check_deliveries(row, [change])
        self._change_deliveries(row, [change])

    async def delivery(self, key: SessionKey, delivery_key: str) -> Delivery | None:
        return self._row(key).deliveries.get(delivery_key)

    async def deliveries(
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        webhook_id: str | None = None,
        after: str = "",
        limit: int = 100,
    ) -> list[Delivery]:
        self._check_open()
        check_session_filter(user_id, session_id)
        matching = (
            (row.deliveries for key, row in self._rows.items() if user_id in (None, key.user_id))
            if session_id is None
            else (row.deliveries for row in [self._rows.get(SessionKey(session_id, user_id or ""))] if row)
        )
        start, stop = call_range(webhook_id)
        everything = (delivery for part in matching for delivery in part.values())
        following = [delivery for delivery in everything if max(start, after) < delivery.delivery_id < stop]
        following.sort(key=lambda delivery: delivery.delivery_id)
        return first_of(following[: check_limit(limit)])

    async def due(
        self, now: float, *, cursor: str | None = None, limit: int = 100, without_users: Collection[str] = ()
    ) -> Page[Delivery]:
        self._check_open()
        following = self._deliveries.due(parse_due_cursor(cursor), now, check_limit(limit) + 1, without_users)
        page = first_of(following[:limit])
        return Page(tuple(page), due_cursor_of(page[-1]) if len(following) > len(page) else None)

    async def lease_deliveries(self, holder: str, ttl_s: float | None) -> DeliveryLease:
        self._check_open()
        now = self._clock()
        if self._lease.until <= now:
            self._lease = replace(self._lease, holder="")
        if ttl_s is not None and self._lease.holder in ("", holder):
            self._lease = replace(self._lease, holder=holder, until=now + ttl_s)
        return replace(self._lease, now=now, next_due_at=self._deliveries.next_due_at)

    async def webhooks(self) -> list[WebhookRecord]:
        self._check_open()
        return [webhook for _, webhook in sorted(self._webhooks.items())]

    async def change_webhook(self, before: WebhookRecord | None, after: WebhookRecord | None) -> None:
        self._check_open()
        self._webhooks = changed_webhooks(self._webhooks, before, after)

    async def quotas(self) -> list[Quota]:
        self._check_open()
        return [quota for _, quota in sorted(self._quotas.items())]

    async def set_quota(self, quota: Quota) -> None:
        self._check_open()
        self._quotas = with_quota(self._quotas, quota)

    async def remove_quota(self, quota_id: str) -> None:
        self._check_open()
        self._quotas = without_quota(self._quotas, quota_id)
        self._counters = {key: counter for key, counter in self._counters.items() if key.quota_id != quota_id}

    async def use_quotas(self, counts: Sequence[QuotaCount]) -> None:
        self._check_open()
        self._counters.update(self._counted(counts))

    def _counted(self, counts: Sequence[QuotaCount]) -> dict[CounterKey, QuotaCounter]:
        """Return the counters that a commit changes, as they are after it."""
        counters, now = dict[CounterKey, QuotaCounter](), self._clock()
        for count in counts:
            counters[count.key] = count.added(counters.get(count.key) or self._counters.get(count.key), now)
        return counters

    async def quota_counters(self, user_id: str, agent: str, tenant: str = "") -> QuotaCounters:
        self._check_open()
        counters = [
            counter
            for key, counter in self._counters.items()
            if key.user_id in ("", user_id) and key.agent in ("", agent) and key.tenant in ("", tenant)
        ]
        return QuotaCounters(counters, self._clock())

    async def set_tenant(self, user_id: str, tenant: str | None) -> None:
        check_names("user_id", user_id)
        self._check_open()
        if tenant is None:
            self._tenants.pop(user_id, None)
        else:
            self._tenants[user_id] = check_tenant(tenant)

    async def tenants_of(self, user_ids: Collection[str]) -> dict[str, str]:
        self._check_open()
        return {user_id: self._tenants[user_id] for user_id in user_ids if user_id in self._tenants}

    async def tenants(self, *, after: str = "", limit: int = 100) -> list[Tenant]:
        self._check_open()
        counts = Counter(tenant for tenant in self._tenants.values() if tenant > after)
        return [Tenant(tenant=tenant, users=users) for tenant, users in sorted(counts.items())[: check_limit(limit)]]

    async def users(self, tenant: str, *, after: str = "", limit: int = 100) -> list[str]:
        self._check_open()
        users = (user_id for user_id, own in self._tenants.items() if own == tenant and user_id > after)
        return sorted(users)[: check_limit(limit)]

    async def delete(self, key: SessionKey, *, epoch: int | None = None, log: str | None = None) -> int:
        row = self._row(key)
        if epoch not in (None, row.session.epoch) or log not in (None, row.session.log):
            raise SessionFencedError(key.session_id, epoch)
        del self._rows[key]
        for ledger_key in [own for own in self._ledger if (own.session_id, own.user_id) == key]:
            self._add_to_ledger(ledger_key._replace(session_id=""), self._ledger.pop(ledger_key))
        for run_id in row.runs:
            del self._owners[run_id]
        for delivery in row.deliveries.values():
            self._deliveries.put(delivery.delivery_id, None)
        for log_name in {row.session.log, *(span.log for span in row.borrowed)}:
            self._release(log_name)
        self._files.delete_all(key)
        return len(row.turns)

    async def delete_unchanged(self, sessions: Sequence[SessionRecord]) -> list[SessionKey]:
        """See `UnchangedDeletion`."""
        unchanged = self._unchanged(sessions)
        for session in unchanged:
            await self.delete(session.key)
        return [session.key for session in unchanged]

    async def end_unchanged(self, sessions: Sequence[SessionRecord]) -> list[SessionRecord]:
        """See `UnchangedDeletion`."""
        jump = new_jump()
        done = [ended(session, jump) for session in self._unchanged(sessions)]
        for session in done:
            self._rows[session.key].session = session
        return done

    def _unchanged(self, sessions: Sequence[SessionRecord]) -> list[SessionRecord]:
        """Return those of these sessions that nobody has used since they were read, as they are stored."""
        self._check_open()
        callers = {(row.session.called_by, key.user_id) for key, row in self._rows.items()}
        unchanged: list[SessionRecord] = []
        for session in sessions:
            row = self._rows.get(session.key)
            if row is None or session.called_by or session.key in callers:
                continue
            stored = row.session
            is_same = (stored.log, stored.epoch, stored.revision) == (session.log, session.epoch, session.revision)
            if is_same and not any(run.is_open for run in row.runs.values()):
                unchanged.append(stored)
        return unchanged

    async def claim_sweep(self, every_s: float) -> float:
        """See `SweepClaims`."""
        self._check_open()
        left_s, self._sweep_at = next_sweep(self._sweep_at, self._clock(), every_s)
        return left_s

    async def reserve_object(self, object_id: str, user_id: str) -> None:
        self._check_open()
        self._files.reserve(object_id, user_id, self._clock())

    async def release_object(self, object_id: str) -> None:
        self._check_open()
        self._files.release(object_id)

    async def add_file(self, file: FileRecord, limits: FileLimits) -> FileRecord:
        self._check_open()
        if file.session_id:
            self._row(file.key)
        return self._files.add(file, limits)

    async def file(self, key: SessionKey, file_id: str) -> FileRecord | None:
        self._check_open()
        return self._files.of(key).get(file_id)

    async def files(self, key: SessionKey, *, after: str = "", limit: int = 100) -> list[FileRecord]:
        self._check_open()
        files = self._files.of(key)
        return [files[file_id] for file_id in sorted(files) if file_id > after][: check_limit(limit)]

    async def delete_file(self, key: SessionKey, file_id: str) -> bool:
        self._check_open()
        return self._files.delete(key, file_id)

    async def forget_files(self, user_id: str) -> int:
        self._check_open()
        return self._files.forget(user_id)

    async def unused_objects(self, reserved_before: float, *, limit: int = 100) -> list[str]:
        self._check_open()
        return self._files.unused(reserved_before, check_limit(limit))

    async def drop_objects(self, object_ids: Sequence[str]) -> None:
        self._check_open()
        self._files.drop(object_ids)

    async def put_object(self, object_id: str, data: bytes) -> None:
        """See `ObjectKeeper`, as the next two."""
        self._check_open()
        self._objects[object_id] = data

    async def get_object(self, object_id: str) -> bytes:
        self._check_open()
        if object_id not in self._objects:
            raise CorruptRecordError(f"file object {object_id}", "its bytes are missing")
        return self._objects[object_id]

    async def delete_object(self, object_id: str) -> None:
        self._check_open()
        self._objects.pop(object_id, None)

    async def try_writing(self) -> None:
        self._check_open()

    async def close(self) -> None:
        self._closed = True

    def _release(self, log: str) -> None:
        """Delete the blocks of a deleted session's log that no fork uses."""
        if any(row.session.log == log for row in self._rows.values()):
            return
        used = union(*(row.borrowed for row in self._rows.values()))
        blocks = self._logs[log]
        for span in subtract((Span(log, 0, max(blocks, default=-1) + 1),), used):
            for position in range(span.start, span.stop):
                blocks.pop(position, None)
        if not blocks:
            del self._logs[log]

    def _refuse_duplicates(self, row: _Row, commit: Commit) -> None:
        new, keys = commit.new_run, [event.key for event in commit.events if event.key is not None]
        duplicates = [key for key in keys if key in row.keys or keys.count(key) > 1]
        if new and new.idempotency_key is not None:
            duplicates += [
                new.idempotency_key for run in row.runs.values() if run.idempotency_key == new.idempotency_key
            ]
        if new and new.run_id in self._owners:
            duplicates.append(new.run_id)
        if duplicates:
            raise DuplicateKeyError(row.session.session_id, duplicates[0])

    def _check_deliveries(self, row: _Row, changes: Sequence[DeliveryChange]) -> None:
        """Raise unless all changes can be made."""
        ids: set[str] = set()
        keys: set[str] = set()
        for change in changes:
            before, after, session_id = change.before, change.after, row.session.session_id
            if before:
                stored = row.deliveries.get(before.key)
                is_same = stored and (stored.delivery_id, stored.revision) == (before.delivery_id, before.revision)
                if not is_same or before.delivery_id in ids:
                    raise DeliveryChangedError(session_id, before.delivery_id)
                ids.add(before.delivery_id)
            elif after:
                if after.key in row.deliveries or after.key in keys:
                    raise DuplicateKeyError(session_id, after.key)
                if after.delivery_id in self._deliveries.by_id or after.delivery_id in ids:
                    raise DuplicateKeyError(session_id, after.delivery_id)
                ids.add(after.delivery_id)
                keys.add(after.key)

    def _check_received(self, row: _Row, commit: Commit) -> None:
        """Raise unless the deliveries of other sessions that a commit receives are as it has them."""
        key, ids = row.session.key, [delivery.delivery_id for delivery in commit.received]
        for delivery in commit.received:
            stored = self._deliveries.by_id.get(delivery.delivery_id)
            place = (delivery.session_id, key.user_id, delivery.key, delivery.revision)
            is_same = stored and (stored.session_id, stored.user_id, stored.key, stored.revision) == place
            if not is_same or ids.count(delivery.delivery_id) > 1:
                raise DeliveryChangedError(key.session_id, delivery.delivery_id)

    def _change_deliveries(self, row: _Row, changes: Iterable[DeliveryChange]) -> None:
        for change in changes:
            if change.before:
                del row.deliveries[change.before.key]
            if change.after:
                row.deliveries[change.after.key] = change.after
            self._deliveries.put(change.delivery_id, change.after)

    def _matching(
        self,
        user_id: str | None,
        agent: str | None,
        status: str | None = None,
        called_by: str | None = None,
        *,
        member: str | None = None,
        tenant: str | None = None,
    ) -> list[_Row]:
        self._check_open()
        check_session_filter(user_id, called_by or None)
        check_member_filter(member, user_id, called_by)
        check_tenant_filter(tenant, member)
        values = {"user_id": user_id, "agent": agent, "status": status}
        return [
            row
            for row in self._rows.values()
            if all(value is None or getattr(row.session, name) == value for name, value in values.items())
            and called_by in (None, row.session.called_by or NO_CALLER)
            and (member is None or member in row.session.members)
            and (tenant is None or self._tenants.get(row.session.user_id) == tenant)
        ]

    def _rows_after(self, cursor: str | None) -> list[_Row]:
        """Return the sessions created after a cursor, in order of creation."""
        self._check_open()
        after = 0 if cursor is None else parse_cursor(cursor)[1]
        return [row for row in self._rows.values() if row.order > after]

    def _row(self, key: SessionKey) -> _Row:
        self._check_open()
        if key not in self._rows:
            raise SessionNotFoundError(key.session_id)
        return self._rows[key]

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("memory://")


def _page(rows: Iterable[_Row], limit: int) -> tuple[list[_Row], str | None]:
    """Return a page of rows, which are in order of creation, and the next page's cursor if there are more."""
    following = list(itertools.islice(rows, check_limit(limit) + 1))
    page = _first_sessions(following[:limit])
    return page, cursor_of(0.0, page[-1].order) if len(following) > len(page) else None


def _first_sessions(rows: list[_Row]) -> list[_Row]:
    """Return the first rows whose sessions weigh `PAGE_BYTES` together."""
    return rows[: count_first(weight(row.session) for row in rows)]


def _is_of(event: AnyEvent, commit: Commit) -> bool:
    """Return whether a commit forgets the event's turn."""
    return event.turn_index is not None and event.turn_index <= commit.forget_turns


def _place(session: SessionRecord) -> tuple[str, int, int, int]:
    """Return the fields of a session that a commit must match."""
    return session.log, session.epoch, session.revision, session.log_size


def _hit(session: SessionRecord, text: MessageText, cursor: str) -> TextHit:
    return TextHit(
        session=session.key,
        title=session.title,
        agent=session.agent,
        turn_index=text.turn_index,
        number=text.number,
        role=text.role,
        at=text.at,
        spans=text.spans,
        cursor=cursor,
        is_shown=is_shown(session.branches, text.turn_index),
    )
