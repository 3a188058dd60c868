"""`WebhookRecord`: a URL that is told of what happens in sessions, as it is stored; and the calls that tell it.

Annotations are not postponed (PEP 563) in this module, since pydantic would evaluate each of them again.
"""

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, get_args
from urllib.parse import SplitResult, urlsplit

from pydantic import Strict

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.events import Event, RunCompleted, RunEnded
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.conversation.views.notebook_display import record_html
from turnwise.memory.deliveries.addresses import is_public
from turnwise.memory.deliveries.records import CALL_ID, Delivery, DeliveryChange
from turnwise.memory.values.frozen_json import freeze
from turnwise.memory.values.ids import check_names, new_id
from turnwise.memory.values.records import Record, record_values

WebhookEvent = Literal[
    "run.completed",
    "run.failed",
    "run.cancelled",
    "run.interrupted",
    "run.awaiting_decision",
    "session.ended",
    "budget.reached",
    "memory.behind",
    "memory.caught_up",
]
"""What a webhook can tell of. `run.awaiting_decision`: a call waits for a person. `budget.reached`: a run failed since
it has spent its budget, which is told besides `run.failed`. `memory.behind`, `memory.caught_up`: a long-term memory
lacks turns, or has them all again."""

WEBHOOK_EVENTS: tuple[WebhookEvent, ...] = get_args(WebhookEvent)

_TYPES: dict[str, WebhookEvent] = {
    "run_completed": "run.completed",
    "run_failed": "run.failed",
    "run_cancelled": "run.cancelled",
    "run_interrupted": "run.interrupted",
    "approval_requested": "run.awaiting_decision",
    "session_ended": "session.ended",
    "memory_behind": "memory.behind",
    "memory_caught_up": "memory.caught_up",
}
"""What a webhook is told, by the kind of the stored event."""

MAX_TEXT_CHARS = 10_000
"""How much of an answer a call has, in characters."""

MAX_URL_CHARS = 2048

MAX_WEBHOOKS = 100
"""How many webhooks a store has at most: each commit that ends a run is compared with all of them."""

SECRET_PREFIX = "whsec_"  # noqa: S105 - no secret
"""What secrets begin with, in the format of Standard Webhooks."""

SECRET_BYTES, LEAST_SECRET_BYTES, MOST_SECRET_BYTES = 32, 24, 64
"""How many random bytes a new secret has, and how many one may have."""

PREVIOUS_SECRET_S = 86_400.0
"""How long a secret that was replaced still signs, beside the new one, in seconds: a day."""


@dataclass(frozen=True, kw_only=True)
class WebhookRecord(Record):
    """A URL that is told of what happens in the sessions of a user, or of all users."""

    webhook_id: str
    """Unique among the webhooks of a store, made by `new_id`."""
    url: str
    events: Annotated[tuple[WebhookEvent, ...], Strict(False)]  # a list, in JSON
    user_id: str | None = None
    """Whose sessions it is told of; None: all users'."""
    allow_private: bool = False
    """Whether the URL may lead to an address inside the network, and be `http://`."""
    is_enabled: bool = True
    """Whether it is told of what happens from now on."""
    secret: str = field(default="", repr=False)
    """Signs the calls. Stores with keys encrypt it; empty: this process cannot decrypt it."""
    previous_secret: str | None = field(default=None, repr=False)
    """Signs them too, until `previous_until`, so that receivers have time for the new one."""
    previous_until: float = 0.0
    """Seconds since the epoch, by the store's clock."""
    revision: int = 1
    """Each change raises it by 1. A change names the revision that it was made for, and is refused for another one."""
    created_at: float = 0.0

    def tells(self, event_type: str, user_id: str) -> bool:
        """Return whether it is told of such events of this user's sessions."""
        return self.is_enabled and event_type in self.events and self.user_id in (None, user_id)

    def is_addressed_as(self, other: "WebhookRecord") -> bool:
        """Return whether it tells the same URL of the same events of the same users' sessions."""
        names = ("url", "events", "user_id", "allow_private")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def secrets_at(self, now: float) -> list[str]:
        """Return the secrets that sign at this time, the newest first."""
        previous = self.previous_secret if now < self.previous_until else None
        return [secret for secret in (self.secret, previous) if secret]

    _repr_html_ = record_html


WEBHOOK_FIELDS = {webhook_field.name for webhook_field in fields(WebhookRecord)}
"""The names of all fields of a webhook."""


def check_webhook(webhook: WebhookRecord) -> WebhookRecord:
    """Return a webhook that each store can keep, and whose calls can be sent.

    Raises:
        InvalidInputError: a field cannot be used; names it. A secret is never shown.
        NameRefusedError: see `check_names`.
    """
    check_names("webhook_id", webhook.webhook_id, quotes=False)
    if not webhook.webhook_id or CALL_ID in webhook.webhook_id:
        raise InvalidInputError("webhook_id", shown(webhook.webhook_id), f"pass a text without {CALL_ID!r}")
    if webhook.user_id is not None:
        check_names("user_id", webhook.user_id)
    check_url(webhook.url, allow_private=webhook.allow_private)
    if not webhook.events or set(webhook.events) - set(WEBHOOK_EVENTS):
        raise InvalidInputError("events", shown(webhook.events), f"name at least one of {', '.join(WEBHOOK_EVENTS)}")
    return webhook


def check_url(url: str, *, allow_private: bool = False) -> str:
    """Return the URL of a receiver. Its host is resolved and checked anew before each call.

    Raises:
        InvalidInputError: it is no URL of `https://`, or of `http://` with `allow_private`; it has a user's name or
            password; without `allow_private`, its host is an address inside the network; or it is too long.
    """
    schemes = ("https", "http") if allow_private else ("https",)
    parts: SplitResult | None = None
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not parts or not is_url or len(url) > MAX_URL_CHARS or not url.isascii() or not url.isprintable() or " " in url:
        reason = f"pass a URL of {' or '.join(schemes)} in ASCII, of at most {MAX_URL_CHARS} characters"
        if not allow_private and url.startswith("http:"):
            reason = "use https://, or pass allow_private=True for a receiver inside the network"
        raise InvalidInputError("url", shown(url), reason)
    if "@" in parts.netloc:
        raise InvalidInputError("url", f"{parts.scheme}://...@{parts.hostname}", "leave out the user and the password")
    with suppress(ValueError):  # it is a name, whose addresses may be others later
        if not allow_private and not is_public(parts.hostname or ""):
            reason = "it is an address inside the network, to which webhooks lead only with allow_private=True"
            raise InvalidInputError("url", shown(url), reason)
    return url


def repeatable_webhook_id(user_id: str | None, idempotency_key: str) -> str:
    """Return the id of the webhook that a repeatable call creates for a user's sessions, or for all users' (None)."""
    names = json.dumps([user_id, idempotency_key]).encode()
    return hashlib.blake2b(names, digest_size=12).hexdigest()


def new_secret() -> str:
    """Return a new random secret, as Standard Webhooks writes it."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def check_secret(secret: str) -> str:
    """Return a secret that can sign: `whsec_`, then 24 to 64 bytes in base64.

    Raises:
        InvalidInputError: it is none. The error does not show it.
    """
    try:
        size = len(_key(secret)) if isinstance(secret, str) and secret.startswith(SECRET_PREFIX) else 0
    except (binascii.Error, ValueError):
        size = 0
    if not LEAST_SECRET_BYTES <= size <= MOST_SECRET_BYTES:
        sizes = f"{LEAST_SECRET_BYTES} to {MOST_SECRET_BYTES}"
        raise InvalidInputError("secret", "***", f"pass {SECRET_PREFIX} and {sizes} bytes in base64, or leave it out")
    return secret


def _key(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)


def signed_headers(message_id: str, now: float, body: bytes, signing: Sequence[str]) -> dict[str, str]:
    """Return the three headers of Standard Webhooks, with a signature for each secret.

    Args:
        message_id: the same for each attempt; has no dot.
        now: the time of this attempt, in seconds since the epoch.
    """
    timestamp = str(int(now))
    content = f"{message_id}.{timestamp}.".encode() + body
    digests = [hmac.digest(_key(secret), content, "sha256") for secret in signing]
    signatures = " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
    return {"webhook-id": message_id, "webhook-timestamp": timestamp, "webhook-signature": signatures}


def is_told(kind: str) -> bool:
    """Return whether webhooks can be told of events of this kind."""
    return kind in _TYPES


def calls_of(webhooks: Iterable[WebhookRecord], events: Iterable[Event]) -> list[DeliveryChange]:
    """Return the calls that tell webhooks of events, to be stored by the commit that stores these."""
    return [
        DeliveryChange(None, _call(webhook, event_type, event))
        for event in events
        for event_type in _types_of(event)
        for webhook in webhooks
        if webhook.tells(event_type, event.user_id)
    ]


def _types_of(event: Event) -> list[WebhookEvent]:
    kind = _TYPES.get(event.kind)
    if kind is None:
        return []
    return [kind, "budget.reached"] if getattr(event, "code", None) == "budget" else [kind]


def _call(webhook: WebhookRecord, event_type: WebhookEvent, event: Event) -> Delivery:
    delivery_id = f"{call_prefix(webhook.webhook_id)}{new_id()}"
    return Delivery(
        delivery_id=delivery_id,
        session_id=event.session_id,
        user_id=event.user_id,
        key=delivery_id,
        kind="call",
        payload=freeze({"type": event_type, "data": _data(event)}),
        occurs_at=event.at,
        due_at=event.at,
        created_at=event.at,
    )


def _data(event: Event) -> dict[str, Any]:
    data: dict[str, Any] = {"user_id": event.user_id, "session_id": event.session_id, "seq": event.seq}
    named = ("run_id", "turn_index", "why", "code", "stop_reason", "call_id", "name", "wants", "memory", "successor")
    data |= {name: value for name in named if (value := getattr(event, name, None)) is not None}
    if isinstance(event, RunEnded):
        data["state"] = event.kind.removeprefix("run_")
        data["text"] = event.text[:MAX_TEXT_CHARS]
        data["is_cut"] = len(event.text) > MAX_TEXT_CHARS
    if isinstance(event, RunCompleted) and event.usage:
        data["usage"] = record_values(event.usage, set(vars(Usage())))
    return data


def call_prefix(webhook_id: str) -> str:
    """Return what the ids of the calls of a webhook begin with."""
    return f"{CALL_ID}{webhook_id}{CALL_ID}"


def webhook_id_of(call: Delivery) -> str:
    """Return the id of the webhook that a call tells."""
    return call.delivery_id.split(CALL_ID)[1]


def message_id_of(call: Delivery) -> str:
    """Return what the receiver knows a call by, the same for each attempt."""
    return f"msg_{call.delivery_id.rpartition(CALL_ID)[2]}"
