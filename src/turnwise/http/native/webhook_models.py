"""The bodies of requests and answers that are about webhooks, as pydantic models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field

from turnwise.actors.client.webhooks import AsyncWebhook
from turnwise.http.native.models import Body, JsonObject, Shown, example
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.deliveries.webhooks import MAX_URL_CHARS, WebhookEvent, message_id_of
from turnwise.memory.stores.base import Page

_ID = "0193f2a4c0de5f1a2b3c4d5e"

Url = Annotated[str, Field(max_length=MAX_URL_CHARS)]
Events = Annotated[list[WebhookEvent], Field(min_length=1, max_length=100)]
Secret = Annotated[str, Field(max_length=256)]


class AddWebhook(Body):
    """Who is told of what."""

    model_config = example(url="https://example.org/hook", events=["run.completed", "run.failed"])

    url: Url
    """`https://...`. Its name is resolved before each call, and addresses inside the network are refused."""
    events: Events
    """What it is told of."""
    secret: Secret | None = None
    """Signs the calls: `whsec_`, then 24 to 64 bytes in base64; a random one if omitted."""
    user_id: str | None = None
    """Whose sessions it is told of: for operators, of all users' if omitted; for others, always their own."""
    allow_private: bool = False
    """Whether the URL may lead to addresses inside the network, and be `http://`; for operators only."""


class ChangeWebhook(Body):
    """What to change; what is omitted stays."""

    model_config = example(is_enabled=False)

    url: Url | None = None
    """Calls that wait, or are sent again, go there, too."""
    events: Events | None = None
    is_enabled: bool | None = None
    """False: it is told of nothing that happens from now on, and calls that wait become failed ones."""


class RotateSecret(Body):
    """The secret that signs from now on. The one before signs besides for a day."""

    model_config = example()

    secret: Secret | None = None
    """`whsec_`, then 24 to 64 bytes in base64; a random one if omitted."""


class SendAgain(Body):
    """Which of the failed calls are sent again."""

    model_config = example(calls=[f"~{_ID}~0193f2a4c0de5f1a2b3c4d5f"])

    calls: Annotated[list[str], Field(min_length=1, max_length=1000)] | None = None
    """Their ids; all that have failed if omitted."""


class WebhookShown(Shown):
    """A webhook, without its secret."""

    id: str
    url: str
    events: list[WebhookEvent]
    user_id: str | None
    """Whose sessions it is told of; null: all users'."""
    allow_private: bool
    is_enabled: bool
    created_at: float


class WebhookAdded(WebhookShown):
    """A new webhook."""

    secret: str | None
    """Signs the calls. It is in this answer only, and in those to repeated requests with its `Idempotency-Key`."""


class Webhooks(Shown):
    """Webhooks, by their ids."""

    items: list[WebhookShown]

    @classmethod
    def of(cls, webhooks: Iterable[AsyncWebhook]) -> Webhooks:
        return cls(items=[WebhookShown.model_validate(webhook) for webhook in webhooks])


class SecretShown(Shown):
    """The new secret. It is in this answer only."""

    secret: str


class WebhookDeleted(Shown):
    """Whether there was such a webhook."""

    model_config = example(deleted=True)

    deleted: bool


class SentAgain(Shown):
    """How many calls are due again."""

    model_config = example(count=3)

    count: int


class FailedCall(Shown):
    """A call that was given up."""

    id: str
    message_id: str
    """The `webhook-id` that its receiver gets, the same each time."""
    session_id: str
    user_id: str
    created_at: float
    attempts: int
    why: str | None
    """Why the last attempt failed."""
    payload: JsonObject
    """What the receiver is told: `type` and `data`."""

    @classmethod
    def of(cls, call: Delivery) -> FailedCall:
        names = ("session_id", "user_id", "created_at", "attempts", "why", "payload")
        fields: dict[str, Any] = {name: getattr(call, name) for name in names}
        return cls(id=call.delivery_id, message_id=message_id_of(call), **fields)


class FailedCalls(Shown):
    """A page of calls that were given up, by their ids."""

    items: list[FailedCall]
    cursor: str | None
    """Pass it to get the next page; null if there is none."""

    @classmethod
    def of(cls, page: Page[Delivery]) -> FailedCalls:
        return cls(items=[FailedCall.of(call) for call in page], cursor=page.cursor)
