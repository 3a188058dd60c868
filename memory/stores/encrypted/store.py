"""A session store that encrypts each session with the key of its user."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from turnwise.errors import (
    CorruptRecordError,
    EncryptionError,
    FileRefusedError,
    KeyMissingError,
    SessionFencedError,
    shown,
)
from turnwise.memory.conversation.events import AnyEvent, EventRow
from turnwise.memory.conversation.ledger import LedgerQuery, LedgerRow
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey, SessionRecord, SessionStatus
from turnwise.memory.conversation.spans import Span, Spans
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.deliveries.records import Delivery, DeliveryChange
from turnwise.memory.deliveries.webhooks import WebhookRecord, check_webhook
from turnwise.memory.files.index import file_index, keeps_files
from turnwise.memory.files.records import FileLimits, FileRecord
from turnwise.memory.quotas.records import Quota, QuotaCount, QuotaCounters
from turnwise.memory.quotas.tenants import Tenant
from turnwise.memory.stores.base import (
    Activation,
    Commit,
    DeliveryLease,
    Page,
    SessionOrder,
    SessionStore,
    claim_sweep,
    delete_unchanged,
    deletes_unchanged,
    end_unchanged,
)
from turnwise.memory.stores.encrypted.keys import KeyRing, Unsealing
from turnwise.memory.stores.encrypted.records import (
    block_place,
    open_delivery,
    open_event,
    open_event_row,
    open_events,
    open_file,
    open_run,
    open_session,
    open_turn,
    open_webhook,
    seal_change,
    seal_commit,
    seal_delivery,
    seal_file,
    seal_session,
    seal_turn,
    seal_webhook,
)
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.search.records import MessageText
from turnwise.memory.stores.store_owner import Shared, StoreOwner, rivals


class EncryptedStore(Shared):
    """A `SessionStore` that encrypts records and stores them in another store.

    It encrypts blocks; kinds and bodies of events; titles of sessions; metadata of sessions and turns; marks;
    parameters of sessions and runs; payloads of deliveries and why they failed; secrets of webhooks, with the key of
    their user, or of the user "default" if they are told of all users' sessions; names of files; and
    labels, types of answers, reasons, stop reasons, states of calls and fingerprints of runs.

    These stay readable: ids of sessions, users, agents, turns and runs; tenants; members of sessions, and who has
    started which run; parents; times and sizes; states, codes of failures, names of models, engines and namespaces,
    counts and usage; positions of blocks; numbers and keys of events; idempotency keys; keys, times, schedules and
    addressees of deliveries; trace contexts; which runs may join others; which turns replace others; types and
    sizes of files, and who has which. So put nothing secret into an id or a key.

    Each text is bound to its user, kind and position, so reading a text that was moved or changed raises
    CorruptRecordError. Somebody who can write to the store can still remove rows, change readable fields, or restore an
    older state of a row.

    All methods except `delete`, `delete_unchanged`, `count`, `usage` and `unsettled` also raise `KeyMissingError` for a
    user without a key, `WrongKeyError`, and `NotEncryptedError` for data that was stored without encryption. `query`
    and `expired` also list sessions of users without a key, with encrypted metadata, so that they can be deleted.

    Raises:
        ConfigError: `cryptography` is not installed.
    """

    def __init__(self, inner: SessionStore, encryption: Encryption) -> None:
        self._inner = inner
        self._keys = KeyRing(encryption)

    @property
    def inner(self) -> SessionStore:
        """The store within, which has encrypted records."""
        return self._inner

    def own(self, owner: StoreOwner) -> None:
        """See `Shared`."""
        if isinstance(self._inner, Shared):
            self._inner.own(owner)

    async def rivals(self) -> Sequence[str]:
        """See `Shared`."""
        return await rivals(self._inner)

    def __repr__(self) -> str:
        return f"EncryptedStore({self._inner!r})"

    async def now(self) -> float:
        return await self._inner.now()

    async def create(
        self,
        session: SessionRecord,
        turn: TurnRecord | None = None,
        also: Spans = (),
        deliveries: Sequence[Delivery] = (),
        texts: Sequence[MessageText] = (),
    ) -> SessionRecord:
        secret = await self._keys.of(session.user_id)
        sealed = turn and seal_turn(secret, session.key, turn)
        sealed_deliveries = [seal_delivery(secret, delivery) for delivery in deliveries]
        created = await self._inner.create(seal_session(secret, session), sealed, also, sealed_deliveries)
        return replace(created, metadata=session.metadata, title=session.title, params=session.params)

    async def get(self, key: SessionKey) -> SessionRecord:
        return await open_session(self._texts(), await self._inner.get(key))

    async def activate(self, key: SessionKey, *, revision: int | None = None, jump: int | None = None) -> Activation:
        # What cannot be decrypted must not take the session from its owner. So the state is decrypted first, and the
        # session activated only if that is its state still: nothing is left that could fail.
        while True:
            before = await self._inner.state(key)
            if revision not in (None, before.session.revision):
                raise SessionFencedError(key.session_id, before.session.epoch)
            opened_before = await self._opened(key, before)
            try:
                activated = await self._inner.activate(key, revision=before.session.revision, jump=jump)
            except SessionFencedError:
                if revision is not None:
                    raise
                continue  # it has changed meanwhile
            if activated.session.log != before.session.log:
                # It is another session of this id: what was decrypted is that of the deleted one.
                return await self._opened(key, activated)
            epoch, revision = activated.session.epoch, activated.session.revision
            session = replace(opened_before.session, epoch=epoch, revision=revision)
            return replace(opened_before, session=session, now=activated.now, tenant=activated.tenant)

    async def state(self, key: SessionKey) -> Activation:
        return await self._opened(key, await self._inner.state(key))

    async def _opened(self, key: SessionKey, sealed: Activation) -> Activation:
        texts = self._texts()
        return Activation(
            session=await open_session(texts, sealed.session),
            head=sealed.head and await open_turn(texts, key, sealed.head),
            open_turns=tuple([await open_turn(texts, key, turn) for turn in sealed.open_turns]),
            open_runs=tuple([await open_run(texts, run) for run in sealed.open_runs]),
            now=sealed.now,
            tenant=sealed.tenant,
        )

    async def commit(self, key: SessionKey, epoch: int, commit: Commit) -> None:
        secret = await self._keys.of(key.user_id)
        await self._inner.commit(key, epoch, seal_commit(secret, key, commit))

    async def blocks(self, spans: Sequence[Span]) -> list[str]:
        places = (block_place(log, position) for log, start, stop in spans for position in range(start, stop))
        sealed_blocks, texts = await self._inner.blocks(spans), self._texts()
        # The inner store may return the first blocks only.
        return [await texts.open(place, block) for block, place in zip(sealed_blocks, places, strict=False)]

    async def turns(self, key: SessionKey, *, after: int = -1, limit: int = 100) -> list[TurnRecord]:
        turns, texts = await self._inner.turns(key, after=after, limit=limit), self._texts()
        return [await open_turn(texts, key, turn) for turn in turns]

    async def run(self, run_id: str, user_id: str = DEFAULT_USER) -> RunRecord:
        return await open_run(self._texts(), await self._inner.run(run_id, user_id))

    async def run_of_key(self, key: SessionKey, idempotency_key: str) -> RunRecord | None:
        run = await self._inner.run_of_key(key, idempotency_key)
        return run and await open_run(self._texts(), run)

    async def runs(self, key: SessionKey, *, after: int = -1, limit: int = 100) -> list[RunRecord]:
        runs, texts = await self._inner.runs(key, after=after, limit=limit), self._texts()
        return [await open_run(texts, run) for run in runs]

    async def events(self, key: SessionKey, *, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        events = await self._inner.events(key, after=after, limit=limit)
        return await open_events(self._texts(), key, events)

    async def event_rows(self, key: SessionKey, *, after: int = 0, limit: int = 1000) -> list[EventRow]:
        """See `KeepsEventRows`."""
        events, texts = await self._inner.events(key, after=after, limit=limit), self._texts()
        return [await open_event_row(texts, key, event) for event in events]

    async def event_of_key(self, key: SessionKey, event_key: str) -> AnyEvent | None:
        event = await self._inner.event_of_key(key, event_key)
        return event and await open_event(self._texts(), key, event)

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
        filters: dict[str, Any] = {"user_id": user_id, "agent": agent, "status": status, "called_by": called_by}
        filters |= {"member": member, "tenant": tenant}
        return await self._listed(await self._inner.query(**filters, order_by=order_by, cursor=cursor, limit=limit))

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
        filters: dict[str, Any] = {"user_id": user_id, "agent": agent, "status": status, "called_by": called_by}
        return await self._inner.count(**filters, member=member, tenant=tenant)

    async def ledger(self, query: LedgerQuery) -> list[LedgerRow]:
        return await self._inner.ledger(query)

    async def forget_in_ledger(self, user_id: str) -> None:
        await self._inner.forget_in_ledger(user_id)

    async def unsettled(self, *, cursor: str | None = None, limit: int = 1000) -> Page[SessionKey]:
        return await self._inner.unsettled(cursor=cursor, limit=limit)

    async def expired(self, now: float, *, cursor: str | None = None, limit: int = 100) -> Page[SessionRecord]:
        return await self._listed(await self._inner.expired(now, cursor=cursor, limit=limit))

    async def add_delivery(self, delivery: Delivery) -> Delivery:
        secret = await self._keys.of(delivery.user_id)
        return await open_delivery(self._texts(), await self._inner.add_delivery(seal_delivery(secret, delivery)))

    async def change_delivery(self, change: DeliveryChange) -> None:
        if change.after is None:  # also of a user without a key
            return await self._inner.change_delivery(change)
        secret = await self._keys.of(change.after.user_id)
        return await self._inner.change_delivery(seal_change(secret, change))

    async def delivery(self, key: SessionKey, delivery_key: str) -> Delivery | None:
        delivery = await self._inner.delivery(key, delivery_key)
        return delivery and await open_delivery(self._texts(), delivery)

    async def deliveries(
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        webhook_id: str | None = None,
        after: str = "",
        limit: int = 100,
    ) -> list[Delivery]:
        texts = self._texts()
        page = await self._inner.deliveries(
            user_id=user_id, session_id=session_id, webhook_id=webhook_id, after=after, limit=limit
        )
        return [await open_delivery(texts, delivery) for delivery in page]

    async def due(
        self, now: float, *, cursor: str | None = None, limit: int = 100, without_users: Collection[str] = ()
    ) -> Page[Delivery]:
        page = await self._inner.due(now, cursor=cursor, limit=limit, without_users=without_users)
        texts, deliveries, unreadable = self._texts(), [], dict.fromkeys(page.unreadable)
        for delivery in page:
            try:
                deliveries.append(await open_delivery(texts, delivery))
            except (CorruptRecordError, EncryptionError):
                unreadable[delivery.session_key] = None
        return Page(tuple(deliveries), page.cursor, tuple(unreadable))

    async def lease_deliveries(self, holder: str, ttl_s: float | None) -> DeliveryLease:
        return await self._inner.lease_deliveries(holder, ttl_s)

    @property
    def deletes_unchanged(self) -> bool:
        """Whether the store that it wraps is an `UnchangedDeletion`."""
        return deletes_unchanged(self._inner)

    async def delete_unchanged(self, sessions: Sequence[SessionRecord]) -> Sequence[SessionKey]:
        """See `UnchangedDeletion`. What is compared and deleted is not encrypted, so no key is needed."""
        return await delete_unchanged(self._inner, sessions)

    async def end_unchanged(self, sessions: Sequence[SessionRecord]) -> Sequence[SessionRecord]:
        """See `UnchangedDeletion`. Sessions of users without a key stay as they are."""
        sealed: list[SessionRecord] = []
        for session in sessions:
            with suppress(KeyMissingError):
                sealed.append(seal_session(await self._keys.of(session.user_id), session))
        by_key = {session.key: session for session in sessions}
        return [
            replace(by_key[done.key], status=done.status, epoch=done.epoch, revision=done.revision)
            for done in await end_unchanged(self._inner, sealed)
        ]

    async def claim_sweep(self, every_s: float) -> float:
        """See `SweepClaims`."""
        return await claim_sweep(self._inner, every_s)

    async def webhooks(self) -> list[WebhookRecord]:
        texts = self._texts()
        return [await open_webhook(texts, webhook) for webhook in await self._inner.webhooks()]

    async def change_webhook(self, before: WebhookRecord | None, after: WebhookRecord | None) -> None:
        if after:
            check_webhook(after)
            after = seal_webhook(await self._keys.of(after.user_id or DEFAULT_USER), after)
        await self._inner.change_webhook(before, after)

    async def quotas(self) -> list[Quota]:
        return await self._inner.quotas()

    async def set_quota(self, quota: Quota) -> None:
        await self._inner.set_quota(quota)

    async def remove_quota(self, quota_id: str) -> None:
        await self._inner.remove_quota(quota_id)

    async def use_quotas(self, counts: Sequence[QuotaCount]) -> None:
        await self._inner.use_quotas(counts)

    async def quota_counters(self, user_id: str, agent: str, tenant: str = "") -> QuotaCounters:
        return await self._inner.quota_counters(user_id, agent, tenant)

    async def set_tenant(self, user_id: str, tenant: str | None) -> None:
        await self._inner.set_tenant(user_id, tenant)

    async def tenants_of(self, user_ids: Collection[str]) -> dict[str, str]:
        return await self._inner.tenants_of(user_ids)

    async def tenants(self, *, after: str = "", limit: int = 100) -> list[Tenant]:
        return await self._inner.tenants(after=after, limit=limit)

    async def users(self, tenant: str, *, after: str = "", limit: int = 100) -> list[str]:
        return await self._inner.users(tenant, after=after, limit=limit)

    async def delete(self, key: SessionKey, *, epoch: int | None = None, log: str | None = None) -> int:
        return await self._inner.delete(key, epoch=epoch, log=log)

    @property
    def keeps_files(self) -> bool:
        """See `keeps_files`."""
        return keeps_files(self._inner)

    async def reserve_object(self, object_id: str, user_id: str) -> None:
        await file_index(self._inner).reserve_object(object_id, user_id)

    async def release_object(self, object_id: str) -> None:
        await file_index(self._inner).release_object(object_id)

    async def add_file(self, file: FileRecord, limits: FileLimits) -> FileRecord:
        sealed = seal_file(await self._keys.of(file.user_id), file)
        try:
            return await open_file(self._texts(), await file_index(self._inner).add_file(sealed, limits))
        except FileRefusedError as error:
            raise FileRefusedError(shown(file.name), error.why) from None

    async def file(self, key: SessionKey, file_id: str) -> FileRecord | None:
        file = await file_index(self._inner).file(key, file_id)
        return file and await open_file(self._texts(), file)

    async def files(self, key: SessionKey, *, after: str = "", limit: int = 100) -> list[FileRecord]:
        texts, files = self._texts(), await file_index(self._inner).files(key, after=after, limit=limit)
        return [await open_file(texts, file) for file in files]

    async def delete_file(self, key: SessionKey, file_id: str) -> bool:
        return await file_index(self._inner).delete_file(key, file_id)

    async def forget_files(self, user_id: str) -> int:
        return await file_index(self._inner).forget_files(user_id)

    async def unused_objects(self, reserved_before: float, *, limit: int = 100) -> list[str]:
        return await file_index(self._inner).unused_objects(reserved_before, limit=limit)

    async def drop_objects(self, object_ids: Sequence[str]) -> None:
        await file_index(self._inner).drop_objects(object_ids)

    async def try_writing(self) -> None:
        await self._inner.try_writing()

    async def close(self) -> None:
        await self._inner.close()

    def _texts(self) -> Unsealing:
        return Unsealing(self._keys)

    async def _listed(self, page: Page[SessionRecord]) -> Page[SessionRecord]:
        texts, sessions, unreadable = self._texts(), [], list(page.unreadable)
        for session in page:
            try:
                sessions.append(await open_session(texts, session))
            except KeyMissingError:
                sessions.append(session)
            except CorruptRecordError:
                unreadable.append(session.key)
        return Page(tuple(sessions), page.cursor, tuple(unreadable))
