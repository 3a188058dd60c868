"""`AsyncRemoteWebhook`: a URL that a service tells of what happens in sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnwise.actors.client.shared.arguments import CallIds, Limit, Secret, Text, WebhookEvents, checked
from turnwise.client.connection import AsyncConnection
from turnwise.client.shared.answers import Request, Whose, given, most, path_of
from turnwise.client.shared.reading import failed_call_of, page_of, webhook_of
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.deliveries.webhooks import WebhookEvent, WebhookRecord, new_secret
from turnwise.memory.stores.base import Page
from turnwise.memory.values.records import replace


class AsyncRemoteWebhook:
    """`RemoteWebhook` with its verbs as coroutines: those of `Webhook`."""

    __slots__ = ("_connection", "_is_new", "_record", "_whose")

    def __init__(
        self, connection: AsyncConnection, whose: Whose, record: WebhookRecord, *, is_new: bool = False
    ) -> None:
        self._connection = connection
        self._whose = whose
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
        body = given(url=url, events=None if events is None else [*events])
        await self._change(body)

    async def enable(self) -> None:
        """Tell it of what happens from now on, after `disable`, or after its receiver answered 410.

        Raises:
            WebhookNotFoundError: it was deleted.
        """
        await self._change({"is_enabled": True})

    async def disable(self) -> None:
        """Tell it of nothing that happens from now on: there are no calls for that, also after `enable`.

        Calls that wait are not sent: they become failed ones.

        Raises:
            WebhookNotFoundError: it was deleted.
        """
        await self._change({"is_enabled": False})

    @checked(secret=Secret)
    async def rotate_secret(self, secret: str | None = None) -> str:
        """Replace the secret, and return the new one. The old one signs besides for a day.

        Args:
            secret: `whsec_`, then 24 to 64 bytes in base64; a random one if omitted.

        Raises:
            WebhookNotFoundError: it was deleted.
        """
        fresh = new_secret() if secret is None else secret  # so that a request that is repeated replaces it once
        await self._ask("POST", "rotate-secret", body={"secret": fresh})
        self._record = replace(self._record, secret=fresh)
        self._is_new = True
        return fresh

    async def delete(self) -> None:
        """Delete it with all its calls, sent or not. Deleting it twice is fine."""
        await self._ask("DELETE")

    @checked(cursor=Text | None, limit=Limit)
    async def failed(self, *, cursor: str | None = None, limit: int = 100) -> Page[Delivery]:
        """Return a page of the calls that were given up, by their ids: `why`, `attempts` and the `payload` of each.

        Pass the page's `cursor` to get the next page.
        """
        query = {"cursor": cursor, "limit": most(limit)}
        return page_of(await self._ask("GET", "failed", query=query), failed_call_of)

    @checked(calls=CallIds)
    async def send_again(self, *calls: str) -> int:
        """Send calls that were given up again, with the ids that they had; return how many.

        Args:
            calls: their `delivery_id`s; all that have failed if omitted.

        Raises:
            WebhookNotFoundError: it was deleted.
            InvalidInputError: it is disabled, so nothing would be sent.
        """
        return int((await self._ask("POST", "send-again", body={"calls": [*calls] or None}))["count"])

    async def _change(self, body: dict[str, Any]) -> None:
        if body:
            changed = webhook_of(await self._ask("PATCH", body=body))
            self._record = replace(changed, secret=self._record.secret)

    async def _ask(self, method: str, *parts: str, **what: Any) -> Any:
        request = Request(method=method, path=path_of("webhooks", self.id, *parts), **what)
        return (await self._connection.ask(request, self._whose)).data
