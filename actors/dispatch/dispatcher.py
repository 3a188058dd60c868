"""`Dispatcher`: hands the deliveries of a store to their sessions when they are due. Plain asyncio, without Ray."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from turnwise.actors.dispatch.webhook_post import Post, WebhookPost
from turnwise.actors.dispatch.webhook_sender import SendSettings, WebhookSender
from turnwise.errors import (
    ConfigError,
    DeliveryChangedError,
    InvalidInputError,
    QuotaExceededError,
    SessionEndedError,
    SessionLostError,
    SessionNotFoundError,
    TurnwiseError,
)
from turnwise.memory.background import log_failure, retry
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.deliveries.agent_calls import refused_begin
from turnwise.memory.deliveries.records import MAX_WHY_CHARS, Delivery, DeliveryChange
from turnwise.memory.growing_pauses import GrowingPauses
from turnwise.memory.stores.base import DeliveryLease, SessionStore
from turnwise.memory.values.checked_settings import PositiveCount, PositiveSeconds, checked_settings

LEAST_SLEEP_S = 0.01
"""The shortest sleep, in seconds, so that clocks that differ a little cause no storm of requests."""

BUSY_S = 0.25
"""How often the store is asked for what is due while attempts are under way, in seconds."""

PASSING_SHARE = 4
"""The deliveries of users who have enough under way are passed over again after so many times as long as that took."""

_log = logging.getLogger(__name__)


@checked_settings()
@dataclass(frozen=True, kw_only=True)
class DispatchSettings:
    """How a dispatcher works."""

    concurrency: PositiveCount = 64
    """How many deliveries are handed over at once, each to another session."""
    concurrency_each: PositiveCount = 32
    """How many of them to sessions of the same user, so that nobody waits for all that is due for another one."""
    idle_s: PositiveSeconds = 60.0
    """How often the store is asked when nothing is due, in seconds."""
    lease_s: PositiveSeconds = 90.0
    """For how many seconds the lease is taken. After the death of a dispatcher, another one waits as long if it does
    not learn of the death. It is above `idle_s`."""
    standby_s: PositiveSeconds = 30.0
    """How often a dispatcher without the lease looks whether it may take it, in seconds."""
    fresh_s: PositiveSeconds = 5.0
    """For how many seconds a dispatcher that is told of something due takes its lease to be as it was: then it reads
    first what is due, and looks at its lease afterwards."""
    attempt_s: PositiveSeconds = 60.0
    """After how many seconds a session that does not answer counts as failed."""
    first_pause_s: PositiveSeconds = 1.0
    longest_pause_s: PositiveSeconds = 600.0
    """The first and the longest pause before a delivery is attempted again."""
    give_up_s: PositiveSeconds = 259_200.0
    """After how many seconds of failures an occurrence is given up: three days."""
    page: PositiveCount = 256
    """How many due deliveries are read at once."""

    def __post_init__(self) -> None:
        if self.lease_s <= self.idle_s:
            raise ConfigError(
                "lease_s", self.lease_s, f"must be above idle_s={self.idle_s:g}, after which it is renewed"
            )


async def _outranks_none(holder: str) -> bool:
    """Take a free lease, and leave another dispatcher its own."""
    return not holder


def _pass_nothing_on(holder: str, due_at: float) -> None:
    """Leave it to the holder of the lease to ask the store in time."""


class Dispatcher:
    """Hands deliveries to their sessions when they are due, as long as it has the lease of their store.

    Those that are calls of webhooks it sends to their receivers: see `WebhookSender`.

    Of several dispatchers of a store, the one with the lease works. Another takes the lease when it is free, when its
    holder has not renewed it in time, or when it outranks the holder, which yields as soon as it asks the store again.
    If two work nevertheless, since one was frozen, no delivery is carried out twice: the session's commit refuses the
    second, and what has the id of a delivery to another session is begun once.

    What a session of its process addresses to another one is handed over without being read from the store: see
    `hand_over`.

    It sleeps until the next delivery is due, and asks the store once every `idle_s` seconds meanwhile. Deliveries of
    one session are handed over one after the other, those of different sessions at once. So a slow session delays no
    other, until `concurrency` of them are slow. A user who has `concurrency_each` under way is passed over, so a user
    for whom much is due delays no other.

    An attempt that fails is repeated after a pause that grows, and which the store keeps, so the next dispatcher
    continues it. Failures for `give_up_s` end the occurrence, and so does an error that a repetition cannot mend:
    `InvalidInputError`, but not that of a setting, and an addressee that is gone or has ended. A delivery that recurs
    goes on with the next one. One that does not stays in the store, is never due again and says why; but that which was
    to begin an agent becomes an error result for its caller.

    While it awaits the following, other work may run, and its process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | the store, for the lease or a page | attempts; another dispatcher may take the lease | what is due |
    | `outranks` | attempts | what is due |
    | a session | other attempts | what is due, or a delivery that was carried out |
    | the store, to note a failure | other attempts | what is due, to be attempted without a pause |

    Args:
        store: whose deliveries.
        deliver: carries the delivery out, in its session. When it returns, the store has moved or removed the delivery,
            or has another revision of it. It may be called again for the same revision.
        holder: its name in the lease, which no other living dispatcher has.
        outranks: returns whether it takes the lease from the dispatcher of a name, as that one has died or has to
            yield; for no name, whether it takes a free lease. If omitted, it takes what is free. What it raises is
            logged, and it is called again.
        pass_on: called with the name of whoever has the lease instead, and the time that this dispatcher was told.
        post: sends the calls of webhooks; by HTTP if omitted. It is closed in the end.
        clock: the time on a clock that is never set, in seconds; the loop's if omitted.
    """

    def __init__(
        self,
        store: SessionStore,
        deliver: Callable[[Delivery], Awaitable[object]],
        holder: str,
        *,
        outranks: Callable[[str], Awaitable[bool]] = _outranks_none,
        pass_on: Callable[[str, float], object] = _pass_nothing_on,
        post: Post | None = None,
        settings: DispatchSettings = DispatchSettings(),
        sending: SendSettings | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._store = store
        self._deliver = deliver
        self._holder = holder
        self._outranks = outranks
        self._pass_on = pass_on
        self._settings = settings
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._pauses = GrowingPauses(settings.first_pause_s, settings.idle_s)
        self._attempts: dict[SessionKey, asyncio.Task[None]] = {}
        """The attempts under way, by session."""
        self._of_users: Counter[str] = Counter()
        """How many of them each user has."""
        self._was_skipped = False
        """Whether the last sweep left out a delivery, since others of its session or its user were under way."""
        self._passes_at = 0.0
        """When a sweep may pass over the deliveries of users who have enough under way, by `clock`."""
        self._swept_to = 0.0
        """Up to which time, by the store's clock, the last sweep has read what is due."""
        self._ahead_s = 0.0
        """How far the store's clock is ahead of `clock`, as of the last answer."""
        self._leads_until = 0.0
        """When the lease ends, by `clock`."""
        self._asked_at = -math.inf
        """When it asked for the lease last, by `clock`."""
        self._rival = ("", 0.0)
        """Who has the lease instead, and until when by the store's clock, as of the last answer."""
        self._rival_since = 0.0
        """Since when that answer is the same, by `clock`."""
        self._wakes_at = 0.0
        """When it asks the store next, by `clock`."""
        self._told_at = math.inf
        """The earliest time that it was told since it asked the store last, by the store's clock."""
        post = post or WebhookPost()
        self._sender = WebhookSender(store, post, tell=self.tell, now=self._now, settings=sending or SendSettings())
        self._woken = asyncio.Event()
        self._idle_since: float | None = None

    @property
    def idle_since(self) -> float | None:
        """Since when the store has had no delivery that is ever due, by `clock`; None if it has, or does not answer."""
        return self._idle_since

    @property
    def leads(self) -> bool:
        """Whether it has the lease now."""
        return self._clock() < self._leads_until

    def tell(self, due_at: float) -> None:
        """Say that a delivery is due at a time, by the store's clock, of which the store may not have told yet.

        Costs no request before that time. A time that is not nearer than the next known one changes nothing.
        """
        self._told_at = min(self._told_at, due_at)
        self._idle_since = None
        self._woken.set()

    def hand_over(self, deliveries: Iterable[Delivery]) -> None:
        """Attempt deliveries that were stored and are due now, without reading them from the store.

        Those for which there is no room now, and all if it has no lease, are read from the store later.
        """
        for delivery in deliveries:
            has_room = len(self._attempts) < self._settings.concurrency
            if self.leads and has_room and self._may_attempt(delivery):
                self._idle_since = None
                self._begin(delivery, is_swept=False)
            else:
                self.tell(delivery.occurs_at)

    def _may_attempt(self, delivery: Delivery) -> bool:
        """Return whether no other attempt of its session is under way, and not enough of its user's."""
        return delivery.addressee not in self._attempts and not self._has_enough(delivery.user_id)

    def _has_enough(self, user_id: str) -> bool:
        return self._of_users[user_id] >= self._settings.concurrency_each

    def _now(self) -> float:
        """Return the time by the store's clock."""
        return self._clock() + self._ahead_s

    def wake(self) -> None:
        """Ask the store at once, as its clock was set."""
        self.tell(-math.inf)

    async def run(self) -> None:
        """Hand over deliveries until cancelled. Then attempts under way are cancelled, and the lease is given up.

        Errors are logged, and raised by nothing. Call it once.
        """
        try:
            while True:
                told_at, self._told_at = self._told_at, math.inf
                self._wakes_at = self._clock() + max(LEAST_SLEEP_S, await self._work(told_at))
                await self._sleep()
        finally:
            self._leads_until = 0.0  # from here on nothing is handed over
            attempts = list(self._attempts.values())
            for attempt in attempts:
                attempt.cancel()
            await asyncio.gather(*attempts, self._sender.close(), return_exceptions=True)
            with suppress(TurnwiseError):
                await self._store.lease_deliveries(self._holder, 0.0)

    async def _sleep(self) -> None:
        while (left_s := min(self._wakes_at, self._told_at - self._ahead_s) - self._clock()) > 0:
            self._woken.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):  # `wait_for` swallows a cancel that comes as it wakes
                    await self._woken.wait()

    async def _work(self, told_at: float) -> float:
        """Hand over what is due; return for how many seconds there is nothing to do.

        Args:
            told_at: the earliest time that it was told, by the store's clock; `-inf` if that clock was set.
        """
        is_fresh = self.leads and self._clock() < self._asked_at + self._settings.fresh_s
        try:
            if is_fresh and -math.inf < told_at <= self._now():
                begun = await self._sweep()
                if begun or self._is_busy or self._was_skipped:
                    return BUSY_S if self._is_busy else 0.0
            lease = await self._renew()
            self._pauses.reset()
            if not self.leads:
                if told_at < math.inf:
                    self._pass_on(lease.holder, told_at)
                left_s = lease.until - lease.now if lease.holder else math.inf
                return min(left_s, self._settings.standby_s)
            if lease.next_due_at is None or lease.next_due_at > lease.now:
                soon_s = self._settings.idle_s if lease.next_due_at is None else lease.next_due_at - lease.now
                return min(soon_s, self._settings.idle_s)
            begun = await self._sweep()
            if not (begun or self._is_busy or self._was_skipped):
                return await self._until_readable()
        except Exception as error:  # noqa: BLE001 - whatever the store raises, it is asked again
            self._idle_since = None
            pause_s = self._pauses.next_s()
            log_failure(f"dispatcher {self._holder!r}: asking the store", error, f"; it asks again in {pause_s:.1f} s")
            return pause_s
        return BUSY_S if self._is_busy else 0.0

    @property
    def _is_busy(self) -> bool:
        return bool(self._attempts) or self._sender.is_busy

    async def _until_readable(self) -> float:
        """Return for how many seconds nothing is due that can be read, of the next `idle_s`.

        What is due and cannot be read, as of a user whose key was deleted, would otherwise keep the dispatcher awake.
        """
        now, idle_s = self._now(), self._settings.idle_s
        page = await self._store.due(now + idle_s, cursor=f"{self._swept_to!r}:", limit=self._settings.page)
        return min([idle_s, *(delivery.due_at - now for delivery in page if delivery.due_at is not None)])

    async def _renew(self) -> DeliveryLease:
        """Read the lease; renew it if less than half of its time is left, or take it if it may; return whose it is."""
        lease_s = self._settings.lease_s
        if self.leads:
            has_time = self._leads_until - self._clock() > lease_s / 2
            lease = await self._ask_for_lease(None if has_time else lease_s)
            if self.leads:
                return lease  # else the store's clock was set forwards, or another one has taken it
        if not await self._outranks(""):
            return await self._ask_for_lease(None)
        lease = await self._ask_for_lease(lease_s)
        if lease.holder != self._holder and (self._is_abandoned(lease) or await self._outranks(lease.holder)):
            await self._store.lease_deliveries(lease.holder, 0.0)
            lease = await self._ask_for_lease(lease_s)
        return lease

    def _is_abandoned(self, lease: DeliveryLease) -> bool:
        """Return whether another dispatcher's lease was not renewed in time.

        By the store's clock it may last nevertheless, if that was set back.
        """
        if (lease.holder, lease.until) != self._rival:
            self._rival, self._rival_since = (lease.holder, lease.until), self._clock()
        return self._clock() - self._rival_since >= self._settings.lease_s

    async def _ask_for_lease(self, ttl_s: float | None) -> DeliveryLease:
        """Take or renew the lease for so many seconds, or only read it; return whose it is.

        Notes until when it lasts, counted from before it was asked for, whatever happens to the store's clock.
        """
        self._asked_at = asked_at = self._clock()
        lease = await self._store.lease_deliveries(self._holder, ttl_s)
        ends_at = asked_at + min(lease.until - lease.now, self._settings.lease_s)
        if lease.holder != self._holder:
            self._leads_until = 0.0
        elif ttl_s is not None:
            self._leads_until = ends_at
        else:
            self._leads_until = min(self._leads_until, ends_at)
        self._ahead_s = lease.now - self._clock()
        if lease.next_due_at is not None:
            self._idle_since = None
        elif self._idle_since is None and self._told_at == math.inf:  # else the answer is older than what it was told
            self._idle_since = asked_at
        return lease

    async def _sweep(self) -> int:
        """Begin an attempt for each session with something due, page by page; return how many were begun.

        Users who have enough under way are passed over by the store, which reads all that is due for them: so this is
        done for a share of the time only.
        """
        begun, cursor = 0, None
        passed: set[str] = set()
        self._was_skipped = False
        while True:
            if self._leads_until - self._clock() <= self._settings.lease_s / 2:
                await self._renew()
            self._swept_to, read_at = self._now(), self._clock()
            page = await self._store.due(self._swept_to, cursor=cursor, limit=self._settings.page, without_users=passed)
            if passed:
                self._passes_at = self._clock() + PASSING_SHARE * (self._clock() - read_at)
            if page.unreadable:
                names = ", ".join(key.full_name for key in page.unreadable)
                _log.warning("deliveries of these sessions are due and cannot be read: %s", names)
            for delivery in page:
                if delivery.kind == "call":
                    begun += await self._sender.take(delivery)
                    continue
                while self._may_attempt(delivery) and len(self._attempts) >= self._settings.concurrency:
                    await asyncio.wait(self._attempts.values(), return_when=asyncio.FIRST_COMPLETED)
                if not self.leads:
                    return begun
                if self._may_attempt(delivery):
                    self._begin(delivery, is_swept=True)
                    begun += 1
                    continue
                self._was_skipped = True
                if self._has_enough(delivery.user_id):
                    passed.add(delivery.user_id)
            if page.cursor is None or (passed and self._clock() < self._passes_at):
                return begun
            cursor = page.cursor

    def _begin(self, delivery: Delivery, *, is_swept: bool) -> None:
        attempt = asyncio.ensure_future(self._attempt(delivery))
        self._attempts[delivery.addressee] = attempt
        self._of_users[delivery.user_id] += 1
        attempt.add_done_callback(partial(self._attempted, delivery.addressee, is_swept))

    def _attempted(self, key: SessionKey, is_swept: bool, attempt: asyncio.Task[None]) -> None:
        del self._attempts[key]
        self._of_users -= Counter([key.user_id])
        if not attempt.cancelled() and (error := attempt.exception()):
            log_failure(f"dispatcher {self._holder!r}: a delivery of session {key.full_name!r}", error)
        if self._was_skipped or (is_swept and not self._attempts):
            self.tell(self._now() + LEAST_SLEEP_S)

    async def _attempt(self, delivery: Delivery) -> None:
        limit = asyncio.timeout(self._settings.attempt_s)
        try:
            async with limit:
                await self._deliver(delivery)
        except Exception as error:  # noqa: BLE001 - whatever a session raises is noted with the delivery
            addressee, attempt_s = delivery.addressee, self._settings.attempt_s
            late = SessionLostError(addressee.session_id, f"it did not answer within {attempt_s:g} s")
            failure = late if limit.expired() else error
            activity = f"dispatcher {self._holder!r}: delivery {delivery.key!r} to {addressee.full_name!r}"
            log_failure(activity, failure)
            await retry(partial(self._note_failure, delivery, failure), f"{activity}: noting why it failed")

    async def _note_failure(self, delivery: Delivery, error: Exception) -> None:
        """Store that an attempt failed, unless the delivery was carried out, changed or cancelled meanwhile.

        The delivery of an agent that can never begin becomes the error result of its call.
        """
        after = self._after_failure(delivery, error)
        why = None if isinstance(error, SessionNotFoundError) else str(error)
        if after.due_at is None:
            after = refused_begin(delivery, why, self._now()) or after
        with suppress(DeliveryChangedError):
            await self._store.change_delivery(DeliveryChange(delivery, after))
        if after.due_at is not None:
            self.tell(after.due_at)

    def _after_failure(self, delivery: Delivery, error: Exception) -> Delivery:
        now, settings = self._now(), self._settings
        why = str(error) if isinstance(error, TurnwiseError) else f"{type(error).__name__}: {error}"
        why = why.encode(errors="replace").decode()[:MAX_WHY_CHARS]
        is_late = now - delivery.occurs_at > settings.give_up_s and not isinstance(error, QuotaExceededError)
        if _is_final(delivery, error) or is_late:
            following = delivery.after_occurrence(now)
            return replace(following, why=why) if following else delivery.after_failure(why, None)
        if isinstance(error, QuotaExceededError):
            return replace(delivery.after_failure(why, error.resets_at), attempts=delivery.attempts)
        pauses = GrowingPauses(settings.first_pause_s, settings.longest_pause_s, failures=delivery.attempts)
        return delivery.after_failure(why, now + pauses.next_s())


def _is_final(delivery: Delivery, error: Exception) -> bool:
    """Return whether a repetition would fail again. Settings may be mended, as when a process lacks an engine."""
    if delivery.to_session is not None and isinstance(error, SessionNotFoundError | SessionEndedError):
        return True
    return isinstance(error, InvalidInputError) and not isinstance(error, ConfigError)
