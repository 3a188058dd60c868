"""`WebhookSender`: sends the calls of a store's webhooks when they are due. Plain asyncio, without Ray."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from turnwise.actors.dispatch.webhook_post import POST_S, Post, RefusedAddressError, UnreachableError
from turnwise.errors import DeliveryChangedError, TurnwiseError, WebhookChangedError
from turnwise.memory.background import log_failure, retry
from turnwise.memory.conversation.codec import encode_json
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.deliveries.records import MAX_WHY_CHARS, Delivery, DeliveryChange
from turnwise.memory.deliveries.webhooks import WebhookRecord, message_id_of, signed_headers, webhook_id_of
from turnwise.memory.growing_pauses import GrowingPauses
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.values.checked_settings import PositiveCount, PositiveSeconds, checked_settings

GONE = 410
"""The status by which a receiver says that it wants no more calls."""

UNSENT, UNANSWERED = 0, -1
"""Stand for the status of a call that could not be sent, and of one that was not answered."""

AWAY = (UNANSWERED, 408, 425, 429, 502, 503, 504)
"""Statuses of receivers that are away."""

ARRIVED = range(200, 300)

MOST_FINISHED = 4096

PUT_OFF_S = 1.0
"""For how many seconds at least a call is put off if too many are due. If its receiver is tried: for `POST_S`."""

_log = logging.getLogger(__name__)


@checked_settings()
@dataclass(frozen=True, kw_only=True)
class SendSettings:
    """How webhooks are called."""

    at_once: PositiveCount = 32
    """How many calls are under way at once."""
    at_once_each: PositiveCount = 4
    """How many of them to the same webhook, of different sessions."""
    backlog: PositiveCount = 256
    """How many due calls of a webhook are kept in memory. Further ones are put off, in the store."""
    first_pause_s: PositiveSeconds = 5.0
    longest_pause_s: PositiveSeconds = 21_600.0
    """The first and the longest pause before a call that failed is sent again: six hours."""
    longest_away_s: PositiveSeconds = 600.0
    """The longest pause before a receiver that is away is tried again."""
    give_up_s: PositiveSeconds = 259_200.0
    """After how many seconds a call that fails is given up: three days."""
    spread_s: PositiveSeconds = 0.01
    """Calls that are put off are due again one after the other, so many seconds apart."""
    webhooks_s: PositiveSeconds = 10.0
    """How old the webhooks may be by which calls are sent."""


@dataclass
class _Receiver:
    """What is known of the receiver of a webhook."""

    queue: deque[Delivery] = field(default_factory=deque)
    active: set[SessionKey] = field(default_factory=set)
    """The sessions with a call under way."""
    failures: int = 0
    """How often in a row it was away."""
    why: str = ""
    """Why it is away."""
    away_until: float = 0.0
    """By the store's clock."""
    last_put_off: float = 0.0
    """Until when the last call was put off, by the store's clock."""


class WebhookSender:
    """Sends calls to their receivers, at least once each, always with the same id, and removes those that arrived.

    Of the calls of one session to one webhook, one is under way at a time, in the order in which they are due, until
    one fails or is put off: then others may arrive before it. `data.seq` has their order.

    A receiver that is away delays no other. After a pause, one call tries it; meanwhile its calls are put off in the
    store, and become due one after the other. What has failed for `give_up_s`, or whose webhook is disabled, stays in
    the store with the reason, is never due again, and can be sent again. A receiver that answers 410 is disabled.

    While it awaits the following, other work may run, and its process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | the store, for the webhooks | other calls | what is due |
    | the receiver | other calls | what is due, which is sent again with the same id |
    | the store, to remove or move the call | other calls | the same |

    Args:
        tell: called with the time of a call that was put off, by the store's clock.
        now: returns the time by the store's clock.
    """

    def __init__(
        self,
        store: SessionStore,
        post: Post,
        *,
        tell: Callable[[float], None],
        now: Callable[[], float],
        settings: SendSettings = SendSettings(),
    ) -> None:
        self._store = store
        self._post = post
        self._tell = tell
        self._now = now
        self._settings = settings
        self._receivers: dict[str, _Receiver] = {}
        self._ids: set[str] = set()
        """The calls in memory."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending = 0
        self._is_closed = False
        self._finished: dict[tuple[str, int], None] = {}
        """The ids and revisions of the last calls that were sent or put off: a page that was read before has them."""
        self._storing = asyncio.Semaphore(settings.backlog)
        self._webhooks: dict[str, WebhookRecord] = {}
        self._read_at = -math.inf
        """When they were read, by the loop's clock."""
        self._reading = asyncio.Lock()

    @property
    def is_busy(self) -> bool:
        """Whether calls are in memory, which are due in the store."""
        return bool(self._ids)

    async def take(self, call: Delivery) -> bool:
        """Send a call that is due, or put it off; return whether it is new. Waits only while many are put off."""
        if call.delivery_id in self._ids or (call.delivery_id, call.revision) in self._finished:
            return False
        receiver = self._receivers.setdefault(webhook_id_of(call), _Receiver())
        self._ids.add(call.delivery_id)
        room = 1 if receiver.failures else self._settings.backlog
        if self._now() < receiver.away_until or len(receiver.queue) >= room:
            await self._storing.acquire()
            self._begin(self._put_off(call, receiver), call).add_done_callback(lambda _: self._storing.release())
        else:
            receiver.queue.append(call)
            self._send_next()
        return True

    async def close(self) -> None:
        """Cancel what is under way. It stays due in the store."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._post.close()

    def _begin(self, work: Coroutine[Any, Any, None], call: Delivery) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, call))
        return task

    def _done(self, call: Delivery, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._ids.discard(call.delivery_id)
        self._finished[call.delivery_id, call.revision] = None
        if len(self._finished) > MOST_FINISHED:
            del self._finished[next(iter(self._finished))]
        if not task.cancelled() and (error := task.exception()):
            log_failure(f"call {call.delivery_id!r} of a webhook", error)

    def _send_next(self) -> None:
        for receiver in self._receivers.values():
            most = 1 if receiver.failures else self._settings.at_once_each
            if not receiver.queue or len(receiver.active) >= most:
                continue
            for call in list(receiver.queue):
                if self._sending >= self._settings.at_once or len(receiver.active) >= most:
                    break
                if call.session_key not in receiver.active:
                    receiver.queue.remove(call)
                    receiver.active.add(call.session_key)
                    self._sending += 1
                    self._begin(self._send(call, receiver), call).add_done_callback(partial(self._sent, call, receiver))

    def _sent(self, call: Delivery, receiver: _Receiver, task: asyncio.Task[None]) -> None:
        receiver.active.discard(call.session_key)
        self._sending -= 1
        if self._is_closed:
            return
        if self._now() < receiver.away_until:
            calls, receiver.queue = receiver.queue, deque()
            for waiting in calls:
                self._begin(self._put_off(waiting, receiver), waiting)
        self._send_next()

    async def _send(self, call: Delivery, receiver: _Receiver) -> None:
        try:
            webhook = await self._find(webhook_id_of(call))
        except TurnwiseError as error:
            log_failure("reading the webhooks", error, "; their calls are put off")
            return await self._put_off(call, receiver)
        if webhook is None:
            return await self._change(call, None)
        if not webhook.is_enabled:
            return await self._change(call, call.after_failure("its webhook is disabled", None))
        return await self._change(call, await self._after_attempt(call, webhook, receiver))

    async def _after_attempt(self, call: Delivery, webhook: WebhookRecord, receiver: _Receiver) -> Delivery | None:
        """Call the receiver; return the call as it is to be stored then, None if it has arrived."""
        if not (signing := webhook.secrets_at(self._now())):
            return self._after_failure(call, "the secret of its webhook cannot be decrypted here")
        status, why = await self._attempt(call, webhook, signing)
        if status in AWAY:
            return self._after_failure(call, why, receiver)
        if status != UNSENT:
            receiver.failures, receiver.away_until = 0, 0.0
        if status == GONE:
            await self._disable(webhook)
            return call.after_failure(f"{why}, so its webhook is disabled", None)
        return None if status in ARRIVED else self._after_failure(call, why)

    async def _attempt(self, call: Delivery, webhook: WebhookRecord, signing: Sequence[str]) -> tuple[int, str]:
        """Call the receiver; return the status of its answer, or `UNANSWERED` or `UNSENT`, and what to say of it."""
        body = encode_json({**call.payload, "timestamp": _iso_time(call.created_at)}).encode()
        signed = signed_headers(message_id_of(call), self._now(), body, signing)
        headers = {**signed, "content-type": "application/json", "user-agent": "turnwise"}
        try:
            status = await self._post(webhook.url, headers, body, allow_private=webhook.allow_private)
        except UnreachableError as error:
            return UNANSWERED, str(error)
        except RefusedAddressError as error:
            return UNSENT, str(error)
        except Exception as error:  # noqa: BLE001 - whatever a library raises is noted with the call
            log_failure(f"call {call.delivery_id!r} of webhook {webhook.webhook_id!r}", error)
            return UNSENT, f"{type(error).__name__}: {error}"
        return status, f"it answered {status}"

    async def _find(self, webhook_id: str) -> WebhookRecord | None:
        """Return a webhook as it was a moment ago; None or a disabled one only if it was so after its call was read."""
        loop = asyncio.get_running_loop()
        wanted_at = loop.time()
        async with self._reading:
            known = self._webhooks.get(webhook_id)
            is_old = loop.time() >= self._read_at + self._settings.webhooks_s
            if is_old or (self._read_at < wanted_at and not (known and known.is_enabled)):
                read_at = loop.time()
                self._webhooks = {webhook.webhook_id: webhook for webhook in await self._store.webhooks()}
                self._read_at = read_at
        return self._webhooks.get(webhook_id)

    async def _disable(self, webhook: WebhookRecord) -> None:
        _log.warning("webhook %r answered %d, and is disabled", webhook.webhook_id, GONE)
        changed = replace(webhook, is_enabled=False, revision=webhook.revision + 1)

        async def disable() -> None:
            with suppress(WebhookChangedError):
                await self._store.change_webhook(webhook, changed)

        await retry(disable, f"webhook {webhook.webhook_id!r}: disabling it")
        self._read_at = -math.inf

    def _after_failure(self, call: Delivery, why: str, away: _Receiver | None = None) -> Delivery:
        """Return a call as it is after a failure. A receiver that is away is not tried for a while."""
        now, settings = self._now(), self._settings
        if away:
            pauses = GrowingPauses(settings.first_pause_s, settings.longest_away_s, failures=away.failures)
            away.away_until = now + pauses.next_s()
            away.failures, away.why = pauses.failures, why
        pauses = GrowingPauses(settings.first_pause_s, settings.longest_pause_s, failures=call.attempts)
        due_at = max(now + pauses.next_s(), away.away_until if away else 0.0)
        is_over = due_at - call.occurs_at > settings.give_up_s
        why = why.encode(errors="replace").decode()[:MAX_WHY_CHARS]
        _log.info("call %r of a webhook failed: %s", call.delivery_id, why)
        return call.after_failure(why, None if is_over else due_at)

    async def _put_off(self, call: Delivery, receiver: _Receiver) -> None:
        """Have a call come back later, without an attempt, after those that were put off before."""
        soon = max(receiver.away_until, self._now() + (POST_S if receiver.failures else PUT_OFF_S))
        receiver.last_put_off = due_at = max(soon, receiver.last_put_off + self._settings.spread_s)
        if receiver.failures and due_at - call.occurs_at > self._settings.give_up_s:
            await self._change(call, call.after_failure(f"its receiver is away: {receiver.why}", None))
        else:
            await self._change(call, replace(call, due_at=due_at, revision=call.revision + 1))

    async def _change(self, call: Delivery, after: Delivery | None) -> None:
        async def change() -> None:
            with suppress(DeliveryChangedError):  # another dispatcher was faster, or its session was deleted
                await self._store.change_delivery(DeliveryChange(call, after))

        await retry(change, f"call {call.delivery_id!r} of a webhook")
        if after and after.due_at is not None:
            self._tell(after.due_at)


def _iso_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
