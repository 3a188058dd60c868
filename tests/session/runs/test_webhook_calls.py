"""Commits tell webhooks: each event that is stored has its call, and no other call is, whatever fails or dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from typing import Any

import pytest

from scale import of_cases
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.state.outbox import MOST_AGE_S, WebhookOutbox
from turnwise.errors import RunNotFoundError, SessionEndedError, StoreError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.deliveries.webhooks import WEBHOOK_EVENTS, WebhookRecord, is_told, new_secret
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing.exhaust import exhaust
from turnwise.testing.faults import Faults
from turnwise.testing.world import World

KEY = SessionKey("session")

pytestmark = pytest.mark.usefixtures("quiet")


async def answer(turn: Turn) -> AsyncIterator[str]:
    """Answer after a while, or fail."""
    await asyncio.sleep(0.3)
    if turn.blocks[-1].text == "fail":  # type: ignore[union-attr]
        raise ValueError("no answer")
    yield "an answer"


def a_webhook(webhook_id: str = "w", **values: Any) -> WebhookRecord:
    fields = {"url": "https://a.example", "events": WEBHOOK_EVENTS, "secret": new_secret()}
    return WebhookRecord(webhook_id=webhook_id, **{**fields, **values})


async def begun(faults: Faults | None = None, *webhooks: WebhookRecord) -> World:
    config = SessionConfig(cancel_grace_s=0.1, idle_s=1e9)
    world = World(faults or Faults(remembers=True), engine=FunctionEngine(answer), config=config, tells_webhooks=True)
    await world.create()
    for webhook in webhooks:
        await world.store.inner.change_webhook(None, webhook)
    return world


async def told(world: World) -> list[tuple[int, str]]:
    """Return the number of the event and the type of each call that is stored, by number."""
    calls = await world.store.inner.deliveries(webhook_id="w", limit=1000)
    return sorted((call.payload["data"]["seq"], call.payload["type"]) for call in calls)


def asked(world: World, verb: str) -> int:
    """Return how often the store was asked for something."""
    return sum(point == f"store.{verb} before" for point, _ in world.faults.passed)


@pytest.mark.virtual_time
async def test_a_turn_without_webhooks_takes_no_statement_more_and_each_minute_one_read() -> None:
    world = await begun()
    for index in range(20):
        await world.wait(await world.start(str(index)))
    assert asked(world, "webhooks") == 1 and asked(world, "commit") == 40
    for index in range(20, 30):
        await asyncio.sleep(MOST_AGE_S)
        await world.wait(await world.start(str(index)))
    assert asked(world, "webhooks") <= 11 and asked(world, "commit") == 60


@pytest.mark.virtual_time
async def test_a_webhook_is_told_a_minute_after_it_was_added_at_the_latest() -> None:
    world = await begun()
    await world.wait(await world.start("a"))
    await world.store.inner.change_webhook(None, a_webhook())
    await asyncio.sleep(MOST_AGE_S)
    await world.wait(await world.start("b"))
    assert [kind for _, kind in await told(world)] == ["run.completed"]


@pytest.mark.virtual_time
async def test_a_run_ends_once_the_webhooks_can_be_read() -> None:
    world = await begun(None, a_webhook())
    read = world.store.inner.webhooks

    async def away() -> Any:
        raise StoreError("the store is away: try again")

    world.store.webhooks = away
    run_id = await world.start("a")
    await asyncio.sleep(5.0)
    assert (await world.store.inner.run(run_id)).state == "running" and await told(world) == []
    world.store.webhooks = read
    assert await world.wait(run_id) == "completed"
    assert [kind for _, kind in await told(world)] == ["run.completed"]
    await check_calls(world)


async def test_changes_while_webhooks_are_read_are_read_again() -> None:
    store = InMemoryStore()
    reads = asyncio.Semaphore(0)

    class Slow:
        async def webhooks(self) -> list[WebhookRecord]:
            webhooks = await store.webhooks()
            await reads.acquire()
            return webhooks

    class Alarm:
        namespace: str | None = None

        async def expect(self, engine_ids: Collection[str] = ()) -> None:
            pass

        def tell(self, due_at: float) -> None:
            pass

    outbox = WebhookOutbox(Slow(), Alarm())  # type: ignore[arg-type]
    reading = asyncio.create_task(outbox.webhooks_for(["run_completed"]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await store.change_webhook(None, webhook := a_webhook())
    outbox.forget()
    reads.release()
    reads.release()
    assert list(await reading) == [webhook]


async def check_calls(world: World) -> None:
    """Check that each stored event that webhooks can be told of has one call, and that there are no others."""
    events = await world.store.inner.events(KEY)
    calls = await told(world)
    assert [seq for seq, kind in calls] == [event.seq for event in events if is_told(event.kind)]


def test_each_stored_event_has_its_call_whatever_fails_and_whoever_dies() -> None:
    """Runs that complete, fail, wait in the queue and are cancelled; then the session ends."""

    async def life(faults: Faults) -> None:
        world = await begun(faults, a_webhook())
        for prompt in ("a", "fail"):
            await world.wait(await world.start(prompt, if_busy="enqueue"))
        runs = [await world.start(prompt, if_busy="enqueue") for prompt in ("b", "c")]
        with suppress(RunNotFoundError):
            await world.cancel(runs[1])
        await world.wait(runs[0])
        with suppress(SessionEndedError):
            await world.ask("admission.end_session", "enough")
        await check_calls(world)
        assert [kind for _, kind in await told(world)][-1] == "session.ended"
        (await world.audit()).check()

    struck = exhaust(life, **of_cases())
    assert min(struck[kind] for kind in ("error", "unanswered", "crash", "fence", "kill")) > 5, struck
