"""`AsyncWebhook`: a URL that is told of what happens in sessions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from turnwise.actors.client.shared.arguments import CallIds, Limit, Secret, Text, WebhookEvents, checked
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.client.store_reads import AsyncStoreReads
from turnwise.errors import (
    DeliveryChangedError,
    InvalidInputError,
    ReadOnlyStoreError,
    WebhookChangedError,
    WebhookNotFoundError,
    shown,
)
from turnwise.memory.deliveries.records import Delivery, DeliveryChange
from turnwise.memory.deliveries.webhooks import (
    MAX_WEBHOOKS,
    PREVIOUS_SECRET_S,
    WebhookEvent,
    WebhookRecord,
    check_secret,
    check_url,
    new_secret,
)
from turnwise.memory.stores.base import Page
from turnwise.memory.stores.reading import failed_calls
from turnwise.memory.values.records import replace


async def add_webhook(store: AsyncStoreReads, record: WebhookRecord, idempotency_key: str | None) -> WebhookRecord:
    """Store a new webhook and return it; if it was stored by an earlier call with its id, return that one.

    Raises:
        InvalidInputError: the store has as many webhooks as it may have, or the earlier call was made for another one.
    """
    while True:
        stored: Sequence[WebhookRecord] = await store.ask("webhooks")
        webhooks = {webhook.webhook_id: webhook for webhook in stored}
        if before := webhooks.get(record.webhook_id):
            if not before.is_addressed_as(record):
                reason = f"webhook {before.webhook_id!r} was created with it, which tells otherwise: use a new key"
                raise InvalidInputError("idempotency_key", shown(idempotency_key), reason)
            return before
        if len(webhooks) >= MAX_WEBHOOKS:
            raise InvalidInputError("url", record.url, f"the store has {MAX_WEBHOOKS} webhooks already: delete one")
        with suppress(WebhookChangedError):  # a call with the same key at the same moment has stored it
            await store.ask("change_webhook", None, record)
            return record


class AsyncWebhook:
    """`Webhook` with its verbs as coroutines.

    Each verb that changes it is durable on return; the processes of sessions act by it within a minute.
    """

    __slots__ = ("_client", "_is_new", "_record", "_store")

    def __init__(
        self, client: SessionsClient, store: AsyncStoreReads, record: WebhookRecord, *, is_new: bool = False
    ) -> None:
        self._client = client
        self._store = store
        self._record = record
        self._is_new = is_new

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {self.url!r})"

    @property
    def id(self) -> str:
        """Its id."""
        return self._record.webhook_id

    @property
    def url(self) -> str:
        """Whom it tells."""
        return self._record.url

    @property
    def events(self) -> Sequence[WebhookEvent]:
        """What it tells of."""
        return self._record.events

    @property
    def user_id(self) -> str | None:
        """Whose sessions it tells of; None: all users'."""
        return self._record.user_id

    @property
    def allow_private(self) -> bool:
        """Whether its URL may lead to an address inside the network, and be `http://`."""
        return self._record.allow_private

    @property
    def is_enabled(self) -> bool:
        """Whether it was enabled when this object last read or changed it."""
        return self._record.is_enabled

    @property
    def created_at(self) -> float:
        """When it was created, in seconds since the epoch."""
        return self._record.created_at

    @property
    def secret(self) -> str | None:
        """The secret, if this object has just created the webhook or replaced the secret; it is shown nowhere else."""
        return self._record.secret if self._is_new else None

    @checked(url=Text | None, events=WebhookEvents | None)
    async def change(self, *, url: str | None = None, events: Sequence[WebhookEvent] | None = None) -> None:
        """Tell another URL, or of other events; what is None stays. Calls that wait, or are sent again, go to the URL.

        Raises:
            WebhookNotFoundError: it was deleted.
            WebhookChangedError: it was changed meanwhile; nothing was stored: repeat the call.
            InvalidInputError: the URL cannot be used.
        """
        changes: dict[str, Any] = {} if events is None else {"events": tuple(events)}
        if url is not None:
            changes["url"] = check_url(url, allow_private=self._record.allow_private)
        await self._change(**changes)

    async def enable(self) -> None:
        """Tell it of what happens from now on, after `disable`, or after its receiver answered 410.

        Raises:
            WebhookNotFoundError: it was deleted.
        """
        await self._change(is_enabled=True)

    async def disable(self) -> None:
        """Tell it of nothing that happens from now on: there are no calls for that, also after `enable`.

        Calls that wait are not sent: they become failed ones.

        Raises:
            WebhookNotFoundError: it was deleted.
        """
        await self._change(is_enabled=False)

    @checked(secret=Secret)
    async def rotate_secret(self, secret: str | None = None) -> str:
        """Replace the secret, and return the new one. The old one signs besides for a day.

        Args:
            secret: `whsec_`, then 24 to 64 bytes in base64; a random one if omitted.

        Raises:
            WebhookNotFoundError: it was deleted.
        """
        fresh = new_secret() if secret is None else check_secret(secret)
        until = await self._store.now() + PREVIOUS_SECRET_S
        record = await self._read()
        await self._change(secret=fresh, previous_secret=record.secret or None, previous_until=until)
        self._is_new = True
        return fresh

    async def delete(self) -> None:
        """Delete it with all its calls, sent or not. Deleting it twice is fine."""
        self._check_writes("delete")
        try:
            await self._store.ask("change_webhook", await self._read(), None)
        except WebhookNotFoundError:
            return
        self._client.announce_webhooks()
        async for call in self._calls():
            await self._move(call, None)

    @checked(cursor=Text | None, limit=Limit)
    async def failed(self, *, cursor: str | None = None, limit: int = 100) -> Page[Delivery]:
        """Return a page of the calls that were given up, by their ids: `why`, `attempts` and the `payload` of each.

        Pass the page's `cursor` to get the next page.
        """
        page: Page[Delivery] = await self._store.run(lambda store: failed_calls(store, self.id, cursor, limit))
        return page

    @checked(calls=CallIds)
    async def send_again(self, *calls: str) -> int:
        """Send calls that were given up again, with the ids that they had; return how many.

        Args:
            calls: their `delivery_id`s; all that have failed if omitted.

        Raises:
            WebhookNotFoundError: it was deleted.
            InvalidInputError: it is disabled, so nothing would be sent.
        """
        self._check_writes("send_again")
        if not (await self._read()).is_enabled:
            raise InvalidInputError("webhook", self.id, "it is disabled, so nothing would be sent: enable it first")
        now, count = await self._store.now(), 0
        async for call in self._calls():
            if call.due_at is None and (not calls or call.delivery_id in calls):
                due = {"occurs_at": now, "due_at": now, "attempts": 0, "why": None}
                count += await self._move(call, replace(call, **due, revision=call.revision + 1))
        self._client.announce_webhooks()
        return count

    async def _calls(self) -> Any:
        """Yield all calls that are in the store."""
        after = ""
        while page := await self._store.ask("deliveries", webhook_id=self.id, after=after):
            for call in page:
                yield call
            after = page[-1].delivery_id

    async def _move(self, call: Delivery, after: Delivery | None) -> bool:
        """Change or remove a call; return whether it was still as it was read."""
        try:
            await self._store.ask("change_delivery", DeliveryChange(call, after))
        except DeliveryChangedError:
            return False
        return True

    async def _read(self) -> WebhookRecord:
        for record in await self._store.ask("webhooks"):
            if record.webhook_id == self.id:
                self._record = record
                return self._record
        raise WebhookNotFoundError(self.id)

    async def _change(self, **changes: Any) -> None:
        self._check_writes("change")
        before = await self._read()
        after = replace(before, **changes, revision=before.revision + 1)
        await self._store.ask("change_webhook", before, after)
        self._record = after
        self._client.announce_webhooks()

    def _check_writes(self, verb: str) -> None:
        if self._client.read_only:
            raise ReadOnlyStoreError("*", f"webhook.{verb}")
