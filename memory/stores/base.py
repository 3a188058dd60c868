"""`SessionStore`: the protocol of session stores. A session is stored in atomic commits, by one owner at a time."""

from __future__ import annotations

import inspect
import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar, overload, runtime_checkable

from turnwise.errors import InvalidInputError, WebhookChangedError, shown
from turnwise.memory.conversation.events import AnyEvent, Event
from turnwise.memory.conversation.ledger import LedgerQuery, LedgerRow
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey, SessionRecord, SessionStatus
from turnwise.memory.conversation.spans import Span, Spans
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.views.notebook_display import items_html
from turnwise.memory.deliveries.records import CALL_ID, Delivery, DeliveryChange, check_delivery
from turnwise.memory.deliveries.webhooks import WebhookRecord, call_prefix, check_webhook
from turnwise.memory.quotas.records import Quota, QuotaCount, QuotaCounters
from turnwise.memory.quotas.tenants import Tenant
from turnwise.memory.stores.search.records import MessageText
from turnwise.memory.values.ids import check_names
from turnwise.memory.values.records import replace

Item = TypeVar("Item")

SessionOrder = Literal["created_at", "updated_at"]


@dataclass(frozen=True)
class Page(Generic[Item]):
    """Items in order, and the cursor of the next page."""

    items: tuple[Item, ...]
    cursor: str | None
    """Pass it to get the next page; None when there is none."""
    unreadable: tuple[SessionKey, ...] = ()
    """Sessions that belong on this page and whose records cannot be read. They can be deleted."""

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, place: int) -> Item: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Item, ...]: ...

    def __getitem__(self, place: int | slice) -> Item | tuple[Item, ...]:
        return self.items[place]

    def _repr_html_(self) -> str:
        unreadable = self.unreadable and f"unreadable: {', '.join(key.full_name for key in self.unreadable)}"
        return items_html(self.items, self.cursor and "more by the page's cursor", unreadable)


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One change of a session's state. It is stored whole or not at all."""

    session: SessionRecord
    """The session's row after the commit. Only the fields `SESSION_CHANGES` may differ. `revision` is 1 above that of
    the previous commit or activation."""
    blocks: Sequence[str] = ()
    """Encoded blocks to append to the log, which ends at `session.log_size` afterwards."""
    turns: Sequence[TurnRecord] = ()
    """Turns to insert. A turn with the index of a stored one replaces it. A queued or running turn has an open run."""
    dropped_turns: Sequence[int] = ()
    """Indices of turns to delete, before `turns` are inserted."""
    new_run: RunRecord | None = None
    runs: Sequence[RunRecord] = ()
    """Runs that replace the stored runs with their ids, none of which has ended. Only the fields `RUN_CHANGES` may
    differ."""
    events: Sequence[Event] = ()
    forget_events: int = 0
    """Stored events up to this sequence number are deleted before `events` are stored: the history store has them.
    Events with a key stay, since a key makes its operation idempotent."""

    forget_turns: int = -1
    """Stored events of turns up to this index are deleted before `events` are stored. Events with a key stay."""
    cleared_blocks: Sequence[tuple[int, str]] = ()
    """Positions in the session's own log, with the texts that replace their blocks for good: see `CLEARED`. Blocks that
    a fork uses stay."""
    deliveries: Sequence[DeliveryChange] = ()
    """Deliveries of the session that are added, changed or removed. If one was changed meanwhile, the whole commit is
    refused."""
    texts: Sequence[MessageText] = ()
    """Texts of messages, to be found by search. Only for stores that are `Searchable`; others ignore them."""
    dropped_texts: Sequence[int] = ()
    """Indices of turns whose texts are deleted, before `texts` are inserted. Turns that are dropped lose theirs."""
    spent: Sequence[LedgerRow] = ()
    """What the commit adds to the ledger, as rows of the session."""
    counts: Sequence[QuotaCount] = ()
    """What the commit adds to counters of quotas. If a checked one is used up, the whole commit is refused."""
    received: Sequence[Delivery] = ()
    """Deliveries of other sessions of the user that are removed, since this commit carries them out. If one was changed
    or removed meanwhile, the whole commit is refused."""
    joined: Sequence[str] = ()
    """Users who become members with this commit, so that a query for a member finds the session: those of
    `session.members` whom the row before has not."""
    left: Sequence[str] = ()
    """Users who are members no longer: those whom the row before has, and `session.members` has not."""

    @property
    def log_size_before(self) -> int:
        """The size of the log before the commit."""
        return self.session.log_size - len(self.blocks)


@dataclass(frozen=True, kw_only=True)
class Activation:
    """The state of a session that a new owner starts from."""

    session: SessionRecord
    """The session's row. An activation returns it with the raised epoch and revision."""
    head: TurnRecord | None
    """The last turn that has ended."""
    open_turns: tuple[TurnRecord, ...]
    """Pending, queued and running turns, by index."""
    open_runs: tuple[RunRecord, ...]
    """The runs that have not ended, by turn index."""
    now: float
    """The time by the store's clock: see `SessionStore.now`."""
    tenant: str | None = ""
    """The tenant of the session's user; None if the user has none, empty if the store does not say."""


@dataclass(frozen=True, kw_only=True)
class DeliveryLease:
    """Who may carry out the deliveries of a store, until when, and when the next one is due."""

    holder: str
    """Who has it; empty if nobody has."""
    until: float
    """When the lease ends unless its holder renews it, by the store's clock."""
    now: float
    """The time by the store's clock."""
    next_due_at: float | None
    """When the earliest delivery of the store is due; None if none is."""


PROBE_BYTES = 65_536
"""How much `try_writing` writes: more than a short turn takes, so that there is room for one if it succeeds."""

_JUMP_BITS = 40


def new_jump() -> int:
    """Return a random number by which an activation raises a session's revision, at least 2."""
    return 2 + secrets.randbits(_JUMP_BITS)


_KEY_BITS = 63
"""The largest integer that a database can compare with."""


def cursor_of(time_s: float, order: int) -> str:
    """Return the cursor of the page that follows a session with this time and order of creation."""
    return f"{time_s!r}:{order}"


def parse_cursor(cursor: str) -> tuple[float, int]:
    """Return the time and the order that `cursor_of` encoded.

    Raises:
        InvalidInputError: it is not a cursor.
    """
    time_s, _, order = cursor.partition(":")
    try:
        parsed = float(time_s), int(order)
    except ValueError:
        parsed = math.nan, 0
    if not math.isfinite(parsed[0]) or parsed[1].bit_length() > _KEY_BITS:
        raise InvalidInputError("cursor", shown(cursor), "pass the cursor of the page before, unchanged")
    return parsed


def check_session_names(session: SessionRecord) -> None:
    """Raise unless each store can keep the ids of a new session.

    Raises:
        NameRefusedError: see `check_names`.
    """
    check_names("session_id", session.session_id, session.user_id, quotes=False)
    check_members(session.members)
    for field in ("agent", "parent", "called_by"):
        check_names(field, getattr(session, field), quotes=False)


def check_members(members: Iterable[str]) -> None:
    """Raise unless each store can find a session by these members; see `check_names`."""
    for user_id in members:
        check_names("member", user_id, quotes=False)


def checked_commit(commit: Commit) -> Commit:
    """Return a commit whose ids and keys each store can keep. Its turns, events and deliveries can be read repeatedly.

    Raises:
        NameRefusedError: see `check_names`.
    """
    commit = replace(
        commit,
        turns=tuple(commit.turns),
        events=tuple(commit.events),
        deliveries=tuple(commit.deliveries),
        received=tuple(commit.received),
        joined=tuple(commit.joined),
        left=tuple(commit.left),
    )
    check_members(commit.joined)
    if run := commit.new_run:
        check_names("run_id", run.run_id, quotes=False)
        check_names("idempotency_key", run.idempotency_key, quotes=False)
    for turn in commit.turns:
        check_names("turn_id", turn.turn_id, quotes=False)
    for event in commit.events:
        check_names("event key", event.key, quotes=False)
    for change in commit.deliveries:
        if change.after:
            check_delivery(change.after)
    return commit


DUE_BEFORE_ALL = "-1.0:"
"""A cursor before all deliveries: none is due before the epoch."""


def due_cursor_of(delivery: Delivery) -> str:
    """Return the cursor of the page of due deliveries that follows this one."""
    return f"{delivery.due_at!r}:{delivery.delivery_id}"


def parse_due_cursor(cursor: str | None) -> tuple[float, str]:
    """Return the time and the id that `due_cursor_of` encoded; for None, those of `DUE_BEFORE_ALL`.

    Raises:
        InvalidInputError: it is not a cursor.
    """
    time_s, is_cursor, delivery_id = (DUE_BEFORE_ALL if cursor is None else cursor).partition(":")
    try:
        parsed = float(time_s) if is_cursor else math.nan
    except ValueError:
        parsed = math.nan
    if not math.isfinite(parsed):
        raise InvalidInputError("cursor", shown(cursor), "pass the cursor of the page before, unchanged")
    check_names("cursor", delivery_id)
    return parsed, delivery_id


def check_change(change: DeliveryChange) -> Delivery:
    """Return the delivery that a change replaces or removes.

    Raises:
        InvalidInputError: it adds one, or what it stores cannot be kept: see `check_delivery`.
    """
    if change.before is None:
        raise InvalidInputError("change", shown(change), "it has no `before`: add_delivery adds a delivery")
    if change.after:
        check_delivery(change.after)
    return change.before


def check_webhook_change(before: WebhookRecord | None, after: WebhookRecord | None) -> str:
    """Return the id of the webhook that a change adds, replaces or removes.

    Raises:
        InvalidInputError: see `SessionStore.change_webhook`.
    """
    webhook = before or after
    if webhook is None:
        raise InvalidInputError("after", None, "pass the webhook to add or to remove")
    if after:
        check_webhook(after)
    return webhook.webhook_id


def changed_webhooks(
    webhooks: Mapping[str, WebhookRecord], before: WebhookRecord | None, after: WebhookRecord | None
) -> dict[str, WebhookRecord]:
    """Return the webhooks of a store after a change, by id.

    Raises:
        WebhookChangedError: the stored one is not as `before`.
    """
    webhook_id = check_webhook_change(before, after)
    stored = webhooks.get(webhook_id)
    if (stored and stored.revision) != (before and before.revision):
        raise WebhookChangedError(webhook_id)
    rest = {name: webhook for name, webhook in webhooks.items() if name != webhook_id}
    return rest | {webhook_id: after} if after else rest


def call_range(webhook_id: str | None) -> tuple[str, str]:
    """Return the ids between which, exclusively, the calls of a webhook are; for None, deliveries that are no calls."""
    return (call_prefix(webhook_id), call_prefix(webhook_id) + CALL_ID) if webhook_id else ("", CALL_ID)


NO_CALLER = ""
"""As `called_by` of a query: sessions that no session has called as an agent."""


def check_session_filter(user_id: str | None, session_id: str | None) -> None:
    """Raise InvalidInputError for a session without its user: each user may have a session of an id."""
    if session_id is not None and user_id is None:
        raise InvalidInputError("user_id", None, "pass the session's user with session_id")


def check_member_filter(member: str | None, user_id: str | None, called_by: str | None) -> None:
    """Raise InvalidInputError for a member together with a user or a caller: stores have no index of these."""
    if member is not None and (user_id is not None or called_by is not None):
        raise InvalidInputError("member", shown(member), "pass it without user_id and called_by")


def check_tenant_filter(tenant: str | None, member: str | None) -> None:
    """Raise InvalidInputError for a tenant together with a member, whose sessions are of users of any tenants."""
    if tenant is not None and member is not None:
        raise InvalidInputError("tenant", shown(tenant), "pass it without member")


def check_limit(limit: int) -> int:
    """Return the limit of a page.

    Raises:
        InvalidInputError: it is below 1.
    """
    if limit < 1:
        raise InvalidInputError("limit", shown(limit), "must be at least 1")
    return limit


class LocalClock(ABC):
    """Base of stores whose clock is this process's own, so that sessions read it at each commit instead of `now`."""

    @abstractmethod
    def clock(self) -> float:
        """Return what `SessionStore.now` returns, without waiting."""


def clock_of(store: object) -> Callable[[], float] | None:
    """Return the clock of a store that has it in this process; None for others."""
    return store.clock if isinstance(store, LocalClock) else None


def verbs_of(store: object) -> list[str]:
    """Return the names of a store's coroutine methods but `close`, for one that stands in place of it.

    It should have them as its own: Python 3.12 and later look for the methods of a protocol without `__getattr__`.
    """
    names = (name for name in dir(store) if not name.startswith("_") and name != "close")
    return [name for name in names if inspect.iscoroutinefunction(getattr(store, name))]


@runtime_checkable
class UnchangedDeletion(Protocol):
    """A `SessionStore` that can end and delete many sessions in one transaction."""

    async def delete_unchanged(self, sessions: Sequence[SessionRecord]) -> Sequence[SessionKey]:
        """Delete those of these sessions that nobody has activated or committed to since they were read.

        Sessions with an open run, sessions of agents, and those that have called agents, stay too. See `delete` for
        what goes with a session. Either all of them are deleted or, if it raises, none.

        Returns which were deleted.
        """

    async def end_unchanged(self, sessions: Sequence[SessionRecord]) -> Sequence[SessionRecord]:
        """End those of these sessions that `delete_unchanged` would delete, each under a new epoch, all or none.

        So nobody can go on with one while it is deleted elsewhere too, such as from an event store. `updated_at` stays.

        Returns them as they are then.
        """


async def delete_unchanged(store: object, sessions: Sequence[SessionRecord]) -> Sequence[SessionKey]:
    """Do `UnchangedDeletion.delete_unchanged`; return none for a store that cannot."""
    return await store.delete_unchanged(sessions) if isinstance(store, UnchangedDeletion) else ()


async def end_unchanged(store: object, sessions: Sequence[SessionRecord]) -> Sequence[SessionRecord]:
    """Do `UnchangedDeletion.end_unchanged`; return none for a store that cannot."""
    return await store.end_unchanged(sessions) if isinstance(store, UnchangedDeletion) else ()


def ended(session: SessionRecord, jump: int) -> SessionRecord:
    """Return a session as `end_unchanged` leaves it.

    Args:
        jump: by how much its revision rises: see `new_jump`.
    """
    return replace(session, status="ended", epoch=session.epoch + 1, revision=session.revision + jump)


def deletes_unchanged(store: object) -> bool:
    """Return whether a store is an `UnchangedDeletion`. One that wraps another has an attribute `deletes_unchanged`."""
    return isinstance(store, UnchangedDeletion) and bool(getattr(store, "deletes_unchanged", True))


@runtime_checkable
class SweepClaims(Protocol):
    """A `SessionStore` that lets one of its users sweep expired sessions at a time."""

    async def claim_sweep(self, every_s: float) -> float:
        """Claim the next sweep if it is due; return for how many seconds it is not due: 0 if the caller sweeps now.

        Atomic: of several callers one has the sweep, and the next one is due `every_s` seconds later, by the store's
        clock. The first call for a store claims nothing: the sweep is due `every_s` seconds after it. An interval that
        is shorter than those of other callers brings the next sweep nearer. If the answer is lost, the sweep may be
        claimed by nobody, and the next one is due as ever.
        """


def next_sweep(due_at: float | None, now: float, every_s: float) -> tuple[float, float]:
    """Return what `claim_sweep` returns, and when the next sweep is due after it.

    Args:
        due_at: when the store's next sweep is due; None if nobody has asked yet.
    """
    if due_at is not None and due_at <= now:
        return 0.0, now + every_s
    next_at = now + every_s if due_at is None else min(due_at, now + every_s)
    return next_at - now, next_at


async def claim_sweep(store: object, every_s: float) -> float:
    """Do `SweepClaims.claim_sweep`; return 0 for a store without claims, which each of its users sweeps."""
    return await store.claim_sweep(every_s) if isinstance(store, SweepClaims) else 0.0


@runtime_checkable
class SessionStore(Protocol):
    """Durable storage of sessions. `stores/conformance` has the laws of a store; run them on your own implementation.

    Every method is one round trip and one transaction. A cancelled call was carried out whole or not at all. Records
    that are read are immutable and equal to those written, with two exceptions: events have no blocks, and the usage of
    turns and runs is kept to the microsecond and to the twelfth decimal of its cost. Unless said otherwise, methods
    raise `StoreError` if the store cannot be reached or was closed, `SessionNotFoundError` if the session does not
    exist, and `InvalidInputError` if `limit` is below 1, or an id or a key to store has a null character or a lone
    surrogate or is too long (`check_names`): each store takes the same.

    A page of turns, runs or events may be shorter than its `limit`, if its records are large: it has about
    `PAGE_BYTES`, but at least one record. So only an empty page says that there are no more.
    """

    async def now(self) -> float:
        """Return the time by the store's clock, in seconds since the epoch: one clock for all processes.

        The times of sessions and their expiry are measured by it, so wrong clocks of nodes do no harm.
        """

    async def create(
        self,
        session: SessionRecord,
        turn: TurnRecord | None = None,
        also: Spans = (),
        deliveries: Sequence[Delivery] = (),
        texts: Sequence[MessageText] = (),
    ) -> SessionRecord:
        """Store a new session and return it with the name of its log.

        The name was never used before, by this store or by an earlier state of it: see `new_key`.

        The blocks of other logs that the fork's first `turn` spans, those of `carried` and those of `also` stay
        readable while the fork exists, even after the sessions that wrote them are deleted.

        Args:
            turn: the first turn of a fork; None for other sessions.
            also: further blocks that stay readable: those that the turn's summaries replace. Empty without a turn.
            deliveries: deliveries of the session, which are stored with it.
            texts: the texts of the turn's messages; see `Commit.texts`.

        Raises:
            SessionExistsError: the user has a session of this id.
            DuplicateKeyError: a delivery's id is stored already, or two have the same key; nothing is stored.
            CorruptRecordError: the turn or `also` spans blocks that do not exist or were deleted; nothing is stored.
        """

    async def get(self, key: SessionKey) -> SessionRecord:
        """Return the session."""

    async def activate(self, key: SessionKey, *, revision: int | None = None, jump: int | None = None) -> Activation:
        """Raise the session's epoch by 1, so that commits of earlier owners are refused; return its state.

        If the state cannot be read, the call raises and the epoch stays. So the owner keeps a session with a damaged
        record.

        Args:
            revision: activate only if the stored revision is this one, so that an owner that activates again takes the
                session from nobody. Comparing and activating are one step.
            jump: by how much the revision is raised; `new_jump()` if omitted.

        Raises:
            SessionFencedError: the session has another revision; nothing is written.
            CorruptRecordError: the session, its last turn, or an open turn or run cannot be read; nothing is written.
        """

    async def state(self, key: SessionKey) -> Activation:
        """Return what `activate` would start from, at one moment, with the epoch as it is. Changes nothing.

        Raises:
            CorruptRecordError: as `activate` does.
        """

    async def commit(self, key: SessionKey, epoch: int, commit: Commit) -> None:
        """Make one commit durable: when this returns, all of it is stored; if it raises, nothing is.

        The store compares the session's key, log, epoch, revision and log size with those that the commit expects. So a
        commit is never written to another session or onto a state that it was not made for.

        Args:
            epoch: the epoch of the activation that makes the commit.

        Raises:
            SessionFencedError: the comparison fails: a later activation owns the session, the session was deleted, or
                the store was restored to another state; nothing is written.
            DuplicateKeyError: the new run's id or idempotency key, an event's key, or an added delivery's key or id is
                stored already; nothing is written.
            DeliveryChangedError: a delivery to change or to receive is no longer as the commit has it; nothing is
                written.
            QuotaExceededError: a checked count finds its quota used up. Comparing and counting are one step, so all
                commits together exceed no quota. A commit that is refused for another reason, too, has that error.
                Nothing is written.
            StoreError: a block with this position or an event with this number is stored already; nothing is written.
        """

    async def blocks(self, spans: Sequence[Span]) -> list[str]:
        """Return the encoded blocks of `spans`, in order: all, or the first ones, if all are larger than `PAGE_BYTES`.

        Returns at least one, unless the spans are empty. `read_blocks` reads all.

        Raises:
            CorruptRecordError: a block is missing.
        """

    async def turns(self, key: SessionKey, *, after: int = -1, limit: int = 100) -> list[TurnRecord]:
        """Return up to `limit` turns with an index above `after`, by index."""

    async def run(self, run_id: str, user_id: str = DEFAULT_USER) -> RunRecord:
        """Return the user's run with this id, of any session. Nothing is read of another user's run.

        Raises:
            RunNotFoundError: the user has no run with this id; the same error for a run of another user, also a damaged
                one.
        """

    async def run_of_key(self, key: SessionKey, idempotency_key: str) -> RunRecord | None:
        """Return the session's run with this idempotency key; None if there is none."""

    async def runs(self, key: SessionKey, *, after: int = -1, limit: int = 100) -> list[RunRecord]:
        """Return up to `limit` runs with a turn index above `after`, by turn index."""

    async def events(self, key: SessionKey, *, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Return up to `limit` stored events with a sequence number above `after`, by sequence number."""

    async def event_of_key(self, key: SessionKey, event_key: str) -> AnyEvent | None:
        """Return the session's event with this key; None if there is none."""

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
        """Return sessions that match all given filters, newest first, also those created at the same time.

        Args:
            called_by: those that this session of the user has called as agents; `NO_CALLER`: those that none has.
            member: those of which this user is a member. They are found by an index.
            tenant: those of users who have this tenant now.

        Raises:
            InvalidInputError: `called_by` names a session, and no user was given; or a member was given with a user,
                with `called_by` or with a tenant.
        """

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
        """Return how many sessions match all given filters; see `query`."""

    async def ledger(self, query: LedgerQuery) -> list[LedgerRow]:
        """Return what was spent, in sums that are exact, by what they are split by: see `LedgerQuery.sums`.

        A commit adds its `spent` in the same step. Rows of a deleted session stay, without the session's id.
        """

    async def forget_in_ledger(self, user_id: str) -> None:
        """Replace a user and the user's sessions in the ledger by nobody.

        What was spent stays, by day, agent, model, tool and tenant. Rows that are equal then become one. Counters of
        quotas that count the user alone are deleted.
        """

    async def unsettled(self, *, cursor: str | None = None, limit: int = 1000) -> Page[SessionKey]:
        """Return the keys of sessions with a run that is queued or running, in the order of their `create` calls.

        `created_at` does not affect the order. A session's runs may end while pages are read.
        """

    async def expired(self, now: float, *, cursor: str | None = None, limit: int = 100) -> Page[SessionRecord]:
        """Return sessions whose `ttl_s` is set and whose last commit (`updated_at`) is `ttl_s` or more before `now`.

        They are in the order of their `create` calls; `created_at` does not affect the order.

        Args:
            now: seconds since the epoch, by the store's clock: see `now`.
        """

    async def add_delivery(self, delivery: Delivery) -> Delivery:
        """Store a delivery and return it; if its session has one with its key, change nothing and return that one.

        Raises:
            DuplicateKeyError: another delivery of the user has its id; nothing is written.
        """

    async def change_delivery(self, change: DeliveryChange) -> None:
        """Replace or remove a delivery, in one step with the comparison.

        Raises:
            InvalidInputError: `change.before` is None.
            DeliveryChangedError: the stored delivery is gone, or has another revision; nothing is written.
        """

    async def delivery(self, key: SessionKey, delivery_key: str) -> Delivery | None:
        """Return the session's delivery with this key; None if there is none."""

    async def deliveries(
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        webhook_id: str | None = None,
        after: str = "",
        limit: int = 100,
    ) -> list[Delivery]:
        """Return up to `limit` deliveries that match the given filters and have an id above `after`, by id.

        Args:
            webhook_id: the calls of this webhook; None: the deliveries that are no calls.

        Raises:
            InvalidInputError: a session was given without its user.
        """

    async def due(
        self, now: float, *, cursor: str | None = None, limit: int = 100, without_users: Collection[str] = ()
    ) -> Page[Delivery]:
        """Return deliveries that are due at `now` or before, by `due_at` and id. They are found by an index.

        Sessions whose deliveries cannot be read are in `unreadable`.

        Args:
            without_users: their deliveries are left out. This takes time for each of them that is due, and a page may
                be shorter, even empty, and have a cursor.
        """

    async def lease_deliveries(self, holder: str, ttl_s: float | None) -> DeliveryLease:
        """Take or renew the lease of the store's deliveries for `ttl_s` seconds, unless another holder has it.

        Returns the lease as it is then, of whoever holds it.

        Args:
            holder: names who asks. No two that live at the same time have the same name.
            ttl_s: 0 ends the holder's own lease at once. None changes nothing and only reads.
        """

    async def webhooks(self) -> list[WebhookRecord]:
        """Return the store's webhooks, by id, at most some `MAX_WEBHOOKS`.

        Secrets that cannot be decrypted are empty.
        """

    async def change_webhook(self, before: WebhookRecord | None, after: WebhookRecord | None) -> None:
        """Add a webhook (`before` is None), replace it, or remove it (`after` is None), compared with the stored one.

        Args:
            after: has the id of `before`, and a revision that is 1 higher.

        Raises:
            InvalidInputError: both are None, or what is to be stored cannot be used: see `check_webhook`.
            WebhookChangedError: the stored webhook is gone, or has another revision, or there is one with the id of an
                added one; nothing is written.
        """

    async def quotas(self) -> list[Quota]:
        """Return the store's quotas, by id, at most some `MAX_QUOTAS`."""

    async def set_quota(self, quota: Quota) -> None:
        """Add a quota, or replace the one with its id, whose counters stay.

        Raises:
            InvalidInputError: it cannot be used (see `check_quota`), or the store has `MAX_QUOTAS` others.
        """

    async def remove_quota(self, quota_id: str) -> None:
        """Remove a quota and its counters.

        Raises:
            QuotaNotFoundError: the store has no quota with this id.
        """

    async def use_quotas(self, counts: Sequence[QuotaCount]) -> None:
        """Add to counters of quotas, all or none, as a commit does: for a run of which nothing is stored.

        Raises:
            QuotaExceededError: a checked count finds its quota used up; nothing is written.
        """

    async def quota_counters(self, user_id: str, agent: str, tenant: str = "") -> QuotaCounters:
        """Return the counters whose user, agent and tenant each is this one or empty, and the time.

        Counters of periods that are over may be among them; `QuotaCounters.of` leaves these out. Which period a commit
        counts in is decided by the store's clock when it is written.
        """

    async def set_tenant(self, user_id: str, tenant: str | None) -> None:
        """Give a user a tenant, in place of the one that the user has; None: the user has none any more.

        The user needs no session. What the ledger and counters have stays as it is.

        Raises:
            InvalidIdError: the tenant cannot be stored; see `check_tenant`.
        """

    async def tenants_of(self, user_ids: Collection[str]) -> dict[str, str]:
        """Return the tenants of those of these users who have one."""

    async def tenants(self, *, after: str = "", limit: int = 100) -> list[Tenant]:
        """Return up to `limit` tenants that users have and that are above `after`, in the order of code points."""

    async def users(self, tenant: str, *, after: str = "", limit: int = 100) -> list[str]:
        """Return up to `limit` ids of users who have a tenant and are above `after`, in the order of code points."""

    async def delete(self, key: SessionKey, *, epoch: int | None = None, log: str | None = None) -> int:
        """Delete the session, its turns, runs, events and deliveries, and those of its blocks that no fork uses.

        The ledger keeps what it has spent, without its id: rows of the user that are equal then become one.

        Returns how many turns it had.

        Raises:
            SessionFencedError: `epoch` was given and the session has another epoch, or `log` was given and the session
                has another log, so it is another session with the same key; nothing is deleted.
        """

    async def try_writing(self) -> None:
        """Raise unless a session could be stored now: write something of `PROBE_BYTES` and delete it. Nobody sees it.

        Raises:
            StoreError: the disk or the memory is full, the store takes no writes, or it cannot be reached.
        """

    async def close(self) -> None:
        """Close connections and files. Closing twice is fine; any other call afterwards raises StoreClosedError."""
