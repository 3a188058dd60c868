"""Subscriptions hand out each stored event once, in order within its session, from the place where they begin."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engines import ScriptedEngine
from turnwise.actors.client import event_push, subscriptions
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.blocking.subscriptions import EventFeed, Subscription
from turnwise.actors.client.shared.portal import Portal
from turnwise.actors.client.subscriptions import AsyncEventFeed, AsyncSubscription
from turnwise.actors.session.core import SessionCore
from turnwise.errors import InvalidInputError, StoreError
from turnwise.memory.conversation.events import AnyEvent
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.views.event_filter import event_filter
from turnwise.memory.event_store.encrypted import EncryptedHistory
from turnwise.memory.event_store.in_memory import InMemoryHistory
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.encrypted.store import EncryptedStore
from turnwise.memory.stores.in_memory import InMemoryStore

ENCRYPTION = Encryption(lambda user_id: user_id.encode().ljust(32, b"."))


class Chats:
    """Sessions in one store, whose clock moves a second with each look at it."""

    def __init__(self, kind: str = "plain") -> None:
        self._now = 0.0
        inner = InMemoryStore(clock=self.clock)
        self.history: Any = {"plain": None, "history": InMemoryHistory()}.get(kind)
        self.store: Any = inner
        if kind == "encrypted":
            self.store, self.history = (
                EncryptedStore(inner, ENCRYPTION),
                EncryptedHistory(InMemoryHistory(), ENCRYPTION),
            )
        self.cores: dict[str, SessionCore] = {}
        stores = {"stores": (self.store, self.history), "session_store": self.store, "history_store": self.history}
        self.client: Any = SimpleNamespace(**stores, portal=Portal())

    def clock(self) -> float:
        self._now += 1.0
        return self._now

    async def say(self, name: str, prompt: str, user_id: str = "ann", agent: str | None = None) -> None:
        if name not in self.cores:
            times = {"created_at": self.clock(), "updated_at": self.clock()}
            await self.store.create(SessionRecord(session_id=name, user_id=user_id, agent=agent, **times))  # type: ignore[arg-type]
            self.cores[name] = SessionCore(
                SessionKey(name, user_id), self.store, ScriptedEngine(), history=self.history, clock=self.clock
            )
        run = await self.cores[name].admission.start([prompt], run_id=f"{name} {prompt}")
        await self.cores[name].reads.wait(run.run_id)

    async def stored_events(self, name: str) -> list[AnyEvent]:
        events = (await self.cores[name].reads.events(limit=10_000))[0]
        return [event for event in events if not event.live]  # type: ignore[misc]

    def feed(self, cursor: str | None = None, **settings: Any) -> AsyncEventFeed:
        return AsyncEventFeed(**self.feed_arguments(cursor, **settings))

    def feed_arguments(self, cursor: str | None = None, **settings: Any) -> dict[str, Any]:
        """Return the arguments of a feed of either family."""
        query: Any = {name: settings.pop(name) for name in ("user_id", "agent") if name in settings}
        filters = {"session": None, "only": None, "start_time": self.clock(), **settings}
        return {"client": self.client, "query": query, "cursor": cursor, **filters}


async def take(feed: AsyncEventFeed, most: int = 10**6) -> list[AnyEvent]:
    """Take what there is now, up to `most` events, and stop there as a subscription that is closed."""
    events: list[AnyEvent] = []
    while (page := await feed.next_page()) is not None:
        for event in page:
            if len(events) == most:
                return events
            events.append(event)
            feed.note(event)
        feed.end_page()
    return events


def events_of(events: Sequence[AnyEvent], name: str) -> list[AnyEvent]:
    return [event for event in events if event.session_id == name]


@pytest.mark.parametrize("kind", ["plain", "history", "encrypted"])
async def test_events_from_now_on_come_once_also_of_sessions_that_were_there_before(kind: str) -> None:
    chats = Chats(kind)
    for number in range(5):
        await chats.say("old", f"before {number}")
        await chats.say("idle", f"before {number}")
    before = len(await chats.stored_events("old"))
    feed = chats.feed()
    assert await take(feed) == []
    await chats.say("old", "after")
    await chats.say("new", "after")
    events = await take(feed)
    assert events_of(events, "old") == (await chats.stored_events("old"))[before:] and not events_of(events, "idle")
    assert events_of(events, "new") == await chats.stored_events("new")
    assert await take(feed) == []
    await chats.cores["idle"].admission.append(["and"], "key")
    assert [event.kind for event in await take(feed)] == ["prompt_appended"]


@pytest.mark.parametrize("seed", range(20))
async def test_each_event_comes_once_wherever_a_subscription_stops_and_goes_on(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "SESSIONS_PAGE", 2)
    monkeypatch.setattr(subscriptions, "EVENTS_PAGE", 3)
    monkeypatch.setattr(subscriptions, "MAX_SEEN", 3)
    dice, chats = random.Random(seed), Chats("history" if seed % 2 else "plain")
    feed, handed_out = chats.feed(), list[AnyEvent]()
    for number in range(30):
        await chats.say(f"chat {dice.randint(0, 5)}", f"prompt {number}")
        if dice.random() < 0.3:
            for _ in range(dice.choice((1, 200))):  # time passes
                chats.clock()
        if dice.random() < 0.5:
            handed_out += await take(feed, dice.choice((1, 2, 5, 10**6)))
        if dice.random() < 0.3:
            feed = chats.feed(json.loads(json.dumps(feed.cursor)))
    handed_out += await take(feed)
    for name in chats.cores:
        assert events_of(handed_out, name) == await chats.stored_events(name), name


async def test_filters_choose_sessions_and_kinds() -> None:
    chats = Chats()
    feeds = {
        "ann": chats.feed(user_id="ann"),
        "helper": chats.feed(agent="helper"),
        "one": chats.feed(session=SessionKey("one", "ann")),
        "ends": chats.feed(only=event_filter(["run_completed"], None)),
    }
    await chats.say("one", "hello", "ann")
    await chats.say("two", "hello", "ann", "helper")
    await chats.say("three", "hello", "bob", "helper")
    events_by_feed = {name: await take(feed) for name, feed in feeds.items()}
    assert {name: {event.session_id for event in events} for name, events in events_by_feed.items()} == {
        "ann": {"one", "two"},
        "helper": {"two", "three"},
        "one": {"one"},
        "ends": {"one", "two", "three"},
    }
    assert {event.kind for event in events_by_feed["ends"]} == {"run_completed"}
    await chats.cores["one"].forgetting.delete()
    assert await take(feeds["one"]) == [], "a session that was deleted has no more"


WRONG = ["", "x", "{}", "[]", '{"at":1,"mark":NaN,"seen":{}}', '{"at":1,"mark":1,"seen":[]}']


@pytest.mark.parametrize("cursor", WRONG)
def test_a_cursor_that_is_none_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidInputError, match="cursor"):
        Chats().feed(cursor)


@pytest.mark.parametrize("kinds", ["run_completed", ["nope"], [1], ["text_delta"]])
def test_kinds_that_are_not_stored_are_refused(kinds: Any) -> None:
    with pytest.raises(InvalidInputError, match="kinds"):
        SessionManager.subscribe(cast("SessionManager", None), print, kinds=kinds)


async def test_a_function_or_a_store_that_fails_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "POLL_S", 0.001)
    chats = Chats()
    failures = 3

    async def query(**arguments: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise StoreError("away")
        return await InMemoryStore.query(chats.store, **arguments)

    monkeypatch.setattr(chats.store, "query", query)
    kinds, ended = list[str](), asyncio.Event()

    async def sink(event: AnyEvent) -> None:
        kinds.append(event.kind)
        if event.kind == "run_completed":
            ended.set()
        raise ValueError("the sink broke")

    async with AsyncSubscription(chats.feed(), sink, "skip") as subscription:
        await chats.say("one", "hello")
        await ended.wait()
    await subscription.close()
    assert kinds == ["run_started", "run_completed"] and failures < 0
    assert await take(chats.feed(subscription.cursor)) in ([], (await chats.stored_events("one"))[-1:])


async def test_a_function_that_raises_gets_the_event_again_and_no_later_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_push, "AGAIN_S", 0.001)
    chats, handed_out, ended = Chats(), list[AnyEvent](), asyncio.Event()
    cursors: list[str] = []

    async def sink(event: AnyEvent) -> None:
        cursors.append(subscription.cursor)
        handed_out.append(event)
        if len(handed_out) % 3:
            raise ValueError("the sink broke")
        if event.kind == "run_completed":
            ended.set()

    async with AsyncSubscription(chats.feed(), sink) as subscription:
        await chats.say("one", "hello")
        await ended.wait()
    started, completed = await chats.stored_events("one")
    assert handed_out == [started] * 3 + [completed] * 3
    assert cursors[0] == cursors[1] == cursors[2] != cursors[3] == cursors[4] == cursors[5]
    assert await take(chats.feed(cursors[0])) == [started, completed]
    assert await take(chats.feed(cursors[5])) == [completed]
    assert await take(chats.feed(subscription.cursor)) in ([], [completed])
    messages = [record.getMessage() for record in caplog.records if "on_event" in record.getMessage()]
    assert len(messages) == 2 and all("gets that event again until it returns" in text for text in messages)


@pytest.mark.parametrize("blocks", [False, True], ids=["asynchronous", "blocking"])
async def test_a_subscription_whose_function_raises_can_be_closed_and_goes_on_at_the_event(blocks: bool) -> None:
    chats = Chats()
    feed: Any = EventFeed(**chats.feed_arguments()) if blocks else chats.feed()
    await chats.say("one", "hello")
    is_called = threading.Event()

    def sink(event: AnyEvent) -> None:
        is_called.set()
        raise ValueError("the sink broke")

    subscription: Any = Subscription(feed, sink) if blocks else AsyncSubscription(feed, sink)
    while not is_called.is_set():
        await asyncio.sleep(0.001)
    if blocks:
        await asyncio.to_thread(subscription.close)
    else:
        await subscription.close()
    assert await take(chats.feed(subscription.cursor)) == await chats.stored_events("one")


async def test_a_subscription_can_be_closed_by_its_own_function() -> None:
    chats = Chats()
    feed = EventFeed(**chats.feed_arguments())
    await chats.say("one", "hello")
    kinds: list[str] = []
    is_made = threading.Event()

    def sink(event: AnyEvent) -> None:
        kinds.append(event.kind)
        is_made.wait()
        subscription.close()

    subscription = Subscription(feed, sink)
    is_made.set()
    await asyncio.to_thread(subscription._work.ended)  # noqa: SLF001 - its thread has ended
    subscription.close()
    assert kinds == ["run_started"] and len(await take(chats.feed(subscription.cursor))) == 1
