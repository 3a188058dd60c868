"""The sender of webhooks' calls, on virtual time: what arrives, when, in which order, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from dispatching import LeaseForAll, Supervised
from scale import of_cases, share
from turnwise.actors.dispatch.dispatcher import Dispatcher
from turnwise.actors.dispatch.webhook_post import RefusedAddressError, UnreachableError
from turnwise.actors.dispatch.webhook_sender import SendSettings
from turnwise.errors import SessionLostError
from turnwise.memory.conversation.events import RunCompleted
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.deliveries.records import Delivery, DeliveryChange
from turnwise.memory.deliveries.webhooks import WebhookRecord, calls_of, message_id_of, new_secret, signed_headers
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.values.ids import new_id
from turnwise.testing.exhaust import exhaust
from turnwise.testing.faults import FaultPlan, Faults
from turnwise.testing.faulty_store import FaultyStore
from turnwise.testing.process import Process
from turnwise.testing.schedules import spread

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("quiet")]


def now() -> float:
    return asyncio.get_running_loop().time()


class Receivers:
    """Receivers of calls, by URL: what they answer, how long they take, and what has arrived there."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        """A status, an error, or a list of them, of which each call takes one."""
        self.takes_s: dict[str, float] = {}
        self.calls: list[tuple[float, str, str, dict[str, Any]]] = []
        """The time, URL, id and body of each call."""
        self.arrived: list[tuple[str, str]] = []
        """The URL and the id of each call that was answered with 200."""
        self.headers: list[Mapping[str, str]] = []
        self.under_way: Counter[str] = Counter()
        self.most_under_way: Counter[str] = Counter()

    async def __call__(self, url: str, headers: Mapping[str, str], body: bytes, *, allow_private: bool) -> int:
        self.calls.append((now(), url, headers["webhook-id"], json.loads(body)))
        self.headers.append({**headers, "body": body.decode()})
        self.under_way[url] += 1
        self.most_under_way[url] = max(self.most_under_way[url], self.under_way[url])
        try:
            await asyncio.sleep(self.takes_s.get(url, 0.0))
        finally:
            self.under_way[url] -= 1
        answers = self.answers.get(url, 200)
        answer = answers.pop(0) if isinstance(answers, list) and answers else answers or 200
        if isinstance(answer, Exception):
            raise answer
        if answer == 200:
            self.arrived.append((url, headers["webhook-id"]))
        return int(answer)

    async def close(self) -> None:
        pass

    def times(self, url: str) -> list[float]:
        return [time for time, at, *_ in self.calls if at == url]


def a_webhook(name: str = "a", **values: Any) -> WebhookRecord:
    fields = {"url": url_of(name), "events": ("run.completed",), "secret": new_secret()}
    return WebhookRecord(webhook_id=name, **{**fields, **values})


def url_of(name: str) -> str:
    return f"https://{name}.example"


class Stage:
    """A store with webhooks and sessions whose runs end."""

    def __init__(self, sessions: int = 3) -> None:
        self.store: Any = FaultyStore(InMemoryStore(clock=now), Faults(remembers=True))
        self.receivers = Receivers()
        self.sessions = sessions
        self.seq = 0

    async def create(self, *webhooks: WebhookRecord) -> None:
        for index in range(self.sessions):
            await self.store.inner.create(SessionRecord(session_id=f"s{index}"))
        for webhook in webhooks:
            await self.store.inner.change_webhook(None, webhook)

    async def end_runs(self, count: int = 1, session: int | None = None) -> list[Delivery]:
        """Store the calls that tell of ended runs; return them."""
        calls: list[Delivery] = []
        for index in range(count):
            self.seq += 1
            session_id = f"s{index % self.sessions if session is None else session}"
            event = RunCompleted(
                session_id=session_id, user_id="default", seq=self.seq, at=now(), run_id=f"r{self.seq}"
            )
            changes = calls_of(await self.store.inner.webhooks(), [event])
            calls += [await self.store.inner.add_delivery(change.after) for change in changes if change.after]
        return calls

    @asynccontextmanager
    async def sending(self, holder: str = "h", **settings: Any) -> AsyncIterator[Dispatcher]:
        sending = SendSettings(**settings)
        dispatcher = Dispatcher(self.store, self.no_session, holder, post=self.receivers, sending=sending)
        running = asyncio.create_task(dispatcher.run())
        try:
            yield dispatcher
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def send_until(self, is_done: Callable[[], Awaitable[bool]]) -> None:
        async with self.sending(new_id()):
            while not await is_done():
                await asyncio.sleep(1.0)

    async def no_session(self, delivery: Delivery) -> None:
        raise AssertionError(f"{delivery} is no call")

    async def left(self, webhook_id: str = "a") -> list[Delivery]:
        calls: list[Delivery] = []
        after = ""
        while page := await self.store.inner.deliveries(webhook_id=webhook_id, after=after, limit=100_000):
            calls += page
            after = page[-1].delivery_id
        return calls


async def made(*webhooks: WebhookRecord, **settings: Any) -> Stage:
    stage = Stage(**settings)
    await stage.create(*(webhooks or (a_webhook(),)))
    return stage


async def test_a_call_is_signed_and_says_what_happened() -> None:
    webhook = a_webhook(previous_secret=new_secret(), previous_until=50.0)
    stage = await made(webhook)
    async with stage.sending() as dispatcher:
        (call,) = await stage.end_runs()
        dispatcher.tell(now())
        await asyncio.sleep(100.0)
        await stage.end_runs()
        dispatcher.tell(now())
        await asyncio.sleep(1.0)
    data: dict[str, Any] = {"user_id": "default", "session_id": "s0", "seq": 1, "run_id": "r1", "state": "completed"}
    data |= {"text": "", "is_cut": False}
    body = {"type": "run.completed", "data": data, "timestamp": "1970-01-01T00:00:00.000Z"}
    _, url, message_id, sent = stage.receivers.calls[0]
    assert (url, message_id, sent) == (webhook.url, message_id_of(call), body)
    for headers, secrets in zip(
        stage.receivers.headers, ([webhook.secret, webhook.previous_secret], [webhook.secret]), strict=True
    ):
        time = int(headers["webhook-timestamp"])
        expected = signed_headers(headers["webhook-id"], time, headers["body"].encode(), secrets)  # type: ignore[arg-type]
        assert headers.items() >= expected.items() and headers["content-type"] == "application/json"
    assert await stage.left() == []


async def test_a_call_that_fails_is_sent_again_with_the_same_id_until_it_arrives() -> None:
    stage = await made()
    stage.receivers.answers[url_of("a")] = [500, 400, 302, UnreachableError("it is down"), 503, 200]
    (call,) = await stage.end_runs()
    async with stage.sending():
        await asyncio.sleep(1000.0)
    assert {message_id for _, _, message_id, _ in stage.receivers.calls} == {message_id_of(call)}
    times = stage.receivers.times(url_of("a"))
    pauses = [second - first for first, second in pairwise(times)]
    assert len(times) == 6 and await stage.left() == []
    for index, pause in enumerate(pauses):
        assert 2.5 * 2**index - 0.5 <= pause <= 5.0 * 2**index + 1.0, pauses


async def test_what_failed_for_long_is_kept_with_the_reason_and_can_be_sent_again() -> None:
    stage = await made()
    stage.receivers.answers[url_of("a")] = 500
    await stage.end_runs()
    async with stage.sending(give_up_s=500.0) as dispatcher:
        await asyncio.sleep(900.0)
        (call,) = await stage.left()
        assert (call.due_at, call.why) == (None, "it answered 500") and call.attempts > 5
        assert len(stage.receivers.calls) == call.attempts < 12
        stage.receivers.answers.clear()
        again = replace(call, occurs_at=now(), due_at=now(), revision=call.revision + 1)
        await stage.store.inner.change_delivery(DeliveryChange(call, again))
        dispatcher.tell(now())
        await asyncio.sleep(1.0)
    assert stage.receivers.arrived == [(url_of("a"), message_id_of(call))] and await stage.left() == []


async def test_calls_that_were_only_put_off_are_given_up_too() -> None:
    stage = await made(sessions=20)
    stage.receivers.answers[url_of("a")] = UnreachableError("it is down")
    await stage.end_runs(200)
    async with stage.sending(give_up_s=200.0):
        await asyncio.sleep(900.0)
    calls = await stage.left()
    assert [call.due_at for call in calls] == [None] * 200 and len(stage.receivers.calls) < 50
    assert {call.why for call in calls} <= {"it is down", "its receiver is away: it is down"}


async def test_what_a_library_raises_is_a_failure_of_the_call() -> None:
    stage = await made()
    stage.receivers.answers[url_of("a")] = [ValueError("of a library"), 200]
    await stage.end_runs()
    async with stage.sending():
        await asyncio.sleep(1.0)
        (call,) = await stage.left()
        assert call.why == "ValueError: of a library"
        await asyncio.sleep(20.0)
    assert len(stage.receivers.arrived) == 1


async def test_a_webhook_that_is_enabled_again_is_told_at_once() -> None:
    webhook = a_webhook(is_enabled=True)
    stage = await made(webhook)
    first, second = await stage.end_runs(2)
    disabled = replace(webhook, is_enabled=False, revision=2)
    await stage.store.inner.change_webhook(webhook, disabled)
    async with stage.sending() as dispatcher:
        await asyncio.sleep(1.0)
        await stage.store.inner.change_webhook(disabled, replace(webhook, revision=3))
        for call in await stage.left():
            again = replace(call, occurs_at=now(), due_at=now(), revision=call.revision + 1)
            await stage.store.inner.change_delivery(DeliveryChange(call, again))
        dispatcher.tell(now())
        await asyncio.sleep(1.0)
    assert {message_id for _, message_id in stage.receivers.arrived} == {message_id_of(first), message_id_of(second)}
    assert {body["timestamp"] for *_, body in stage.receivers.calls} == {"1970-01-01T00:00:00.000Z"}


@pytest.mark.by_turns
async def test_a_dead_receiver_delays_no_other() -> None:
    """Ten that never answer, each with hundreds of calls, and one that does."""
    dead = [f"dead{index}" for index in range(10)]
    stage = await made(*(a_webhook(name) for name in [*dead, "a"]), sessions=50)
    for name in dead:
        stage.receivers.takes_s[url_of(name)] = 15.0
        stage.receivers.answers[url_of(name)] = UnreachableError("it did not answer within 15 s")
    async with stage.sending() as dispatcher:
        await stage.end_runs(400)
        dispatcher.tell(now())
        await asyncio.sleep(60.0)
        assert len(stage.receivers.arrived) == 400
        for _ in range(20):
            begun_at, before = now(), len(stage.receivers.arrived)
            await stage.end_runs()
            dispatcher.tell(now())
            await asyncio.sleep(0.5)
            assert len(stage.receivers.arrived) == before + 1, f"a call of {begun_at} has not arrived"
            await asyncio.sleep(29.5)
    times = stage.receivers.times(url_of(dead[0]))
    assert len(times) < 20, "a receiver that is away is tried by one call at a time"


async def test_all_calls_arrive_once_a_receiver_is_back() -> None:
    stage = await made(sessions=20)
    stage.receivers.answers[url_of("a")] = UnreachableError("it is down")
    async with stage.sending():
        await stage.end_runs(1000)
        await asyncio.sleep(300.0)
        assert not stage.receivers.arrived
        stage.receivers.answers.clear()
        await asyncio.sleep(650.0)
    assert len(set(stage.receivers.arrived)) == len(stage.receivers.arrived) == 1000 and await stage.left() == []


async def test_calls_of_a_session_arrive_in_order_and_few_are_under_way_at_once() -> None:
    stage = await made(sessions=10)
    stage.receivers.takes_s[url_of("a")] = 0.1
    async with stage.sending() as dispatcher:
        for _ in range(20):
            await stage.end_runs(10)
            dispatcher.tell(now())
            await asyncio.sleep(0.01)
        await asyncio.sleep(60.0)
    assert stage.receivers.most_under_way[url_of("a")] == 4
    of_session: dict[str, list[int]] = {}
    for _, _, _, body in stage.receivers.calls:
        of_session.setdefault(body["data"]["session_id"], []).append(body["data"]["seq"])
    assert len(stage.receivers.calls) == 200 and all(seqs == sorted(seqs) for seqs in of_session.values())


async def test_calls_of_webhooks_that_are_deleted_or_disabled_are_not_sent() -> None:
    gone, disabled = a_webhook("gone"), a_webhook("disabled")
    stage = await made(gone, disabled)
    await stage.end_runs()
    await stage.store.inner.change_webhook(gone, None)
    await stage.store.inner.change_webhook(disabled, replace(disabled, is_enabled=False, revision=2))
    async with stage.sending():
        await asyncio.sleep(1.0)
    assert not stage.receivers.calls and await stage.left("gone") == []
    (call,) = await stage.left("disabled")
    assert (call.due_at, call.why) == (None, "its webhook is disabled")


async def test_a_receiver_that_answers_410_is_disabled() -> None:
    stage = await made()
    stage.receivers.answers[url_of("a")] = 410
    await stage.end_runs(5)
    async with stage.sending():
        await asyncio.sleep(100.0)
    (webhook,) = await stage.store.inner.webhooks()
    assert not webhook.is_enabled and len(stage.receivers.calls) <= 4
    assert [call.due_at for call in await stage.left()] == [None] * 5


async def test_an_address_inside_the_network_is_refused_without_a_pause_for_others() -> None:
    stage = await made(a_webhook("a"), a_webhook("b"))
    stage.receivers.answers[url_of("a")] = RefusedAddressError("'a.example' leads to 10.0.0.1")
    await stage.end_runs()
    async with stage.sending():
        await asyncio.sleep(1.0)
    (call,) = await stage.left()
    assert call.why == "'a.example' leads to 10.0.0.1" and call.due_at and len(stage.receivers.arrived) == 1


@pytest.mark.by_turns
async def test_very_many_calls_of_a_dead_receiver_delay_no_other_and_few_are_in_memory() -> None:
    """They are due at once, as after an outage, and before the call of the receiver that answers."""
    count = share(100_000)
    stage = await made(a_webhook("dead"), a_webhook("a"), sessions=50)
    stage.receivers.takes_s[url_of("dead")] = 15.0
    stage.receivers.answers[url_of("dead")] = UnreachableError("it did not answer within 15 s")
    a, dead = sorted(await stage.store.inner.webhooks(), key=lambda webhook: webhook.webhook_id)
    for seq in range(1, count + 2):
        event = RunCompleted(session_id=f"s{seq % 50}", user_id="default", seq=seq, at=now(), run_id=f"r{seq}")
        (change,) = calls_of([dead if seq <= count else a], [event])
        await stage.store.inner.add_delivery(change.after)
    async with stage.sending():
        most_tasks = 0
        for _ in range(120):
            await asyncio.sleep(0.5)
            most_tasks = max(most_tasks, len(asyncio.all_tasks()))
            assert stage.receivers.arrived or now() < 1.0
    assert len(await stage.left("dead")) == count and len(stage.receivers.times(url_of("dead"))) < 20
    assert most_tasks < 600


def test_dispatchers_that_work_at_once_lose_no_call_and_send_each_with_one_id() -> None:
    async def schedule(seed: int) -> None:
        rates: Any = {"error": 0.03, "unanswered": 0.03, "crash": 0.01, "delay": 0.1}
        faults = Faults(FaultPlan(rates=rates), seed=seed)
        stage = await made(a_webhook("a"), a_webhook("b"))
        stage.receivers.answers[url_of("a")] = [UnreachableError("down"), 500, 500]
        calls = await stage.end_runs(12)

        async def is_done() -> bool:
            return not (await stage.left("a") or await stage.left("b"))

        store, options = LeaseForAll(stage.store.inner), {"post": stage.receivers}
        pair = [Supervised(faults, store, stage.no_session, name=name, **options) for name in ("left", "right")]
        await asyncio.gather(*(dispatcher.run_until(is_done) for dispatcher in pair))
        arrived = Counter(stage.receivers.arrived)
        assert {message_id for _, message_id in arrived} == {message_id_of(call) for call in calls}, "a call is lost"

    assert spread(share(400, 40), schedule, yields=0.05, kills=0.0005)


def test_each_call_arrives_whatever_fails_and_whoever_dies() -> None:
    """Each fault of the store, and a kill at each step of the first dispatcher. A call arrives twice only then."""

    async def life(faults: Faults) -> None:
        stage = await made(a_webhook("a"), a_webhook("b"))
        stage.store = FaultyStore(stage.store.inner, faults)
        stage.receivers.answers[url_of("a")] = [UnreachableError("down"), 500]
        calls = await stage.end_runs(3)

        async def is_done() -> bool:
            return not (await stage.left("a") or await stage.left("b"))

        while not await is_done():
            process = Process("dispatcher")
            with suppress(SessionLostError):
                await process.call(stage.send_until(is_done))
        arrived = Counter(message_id for _, message_id in stage.receivers.arrived)
        assert arrived.keys() == {message_id_of(call) for call in calls}, "a call is lost"
        assert max(arrived.values()) <= 2, arrived

    struck = exhaust(life, **of_cases())
    assert min(struck[kind] for kind in ("error", "crash", "kill")) > 10, struck
