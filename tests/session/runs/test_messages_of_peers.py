"""Messages between sessions of one user: each arrives once, whatever fails or dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from scale import of_cases
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.state.alarm import NoAlarm
from turnwise.errors import (
    DeliveryNotFoundError,
    EmptyTurnError,
    InvalidInputError,
    QueueFullError,
    SessionEndedError,
    SessionNotFoundError,
)
from turnwise.memory.conversation.blocks import User, encode
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.deliveries.payload import run_payload
from turnwise.memory.deliveries.records import Delivery, DeliveryChange
from turnwise.memory.deliveries.schedules import Schedule, When
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing.exhaust import exhaust
from turnwise.testing.faults import Faults
from turnwise.testing.world import World

ANN, BOB = SessionKey("ann's"), SessionKey("bob's")

SLOW_S = 0.3

pytestmark = pytest.mark.usefixtures("quiet")


async def answer(turn: Turn) -> AsyncIterator[str]:
    """Answer after a while."""
    await asyncio.sleep(SLOW_S)
    yield "an answer"


class Peers:
    """Two sessions of one user in one store, each in a process of its own."""

    def __init__(self, faults: Faults, **settings: Any) -> None:
        config = SessionConfig(cancel_grace_s=0.1, idle_s=1e9, **settings)
        engine = FunctionEngine(answer)
        self.sender = World(faults, session_id=ANN.session_id, engine=engine, config=config)
        self.store = self.sender.store.inner
        self.addressee = World(faults, session_id=BOB.session_id, engine=engine, config=config, store=self.store)

    async def send(self, text: str) -> Delivery:
        message: Delivery = await self.sender.ask("scheduling.send", BOB.session_id, text, delivery_id=f"id of {text}")
        return message

    async def receive(self, message: Delivery) -> str | None:
        """Have the addressee carry a delivery out, as a dispatcher does."""
        run_id: str | None = await self.addressee.ask("inbox.receive", message)
        return run_id

    async def dispatch(self) -> None:
        """Hand over what is in the store until nothing is."""
        while messages := await self.store.deliveries():
            for message in messages:
                await self.receive(message)

    async def prompts(self) -> list[str]:
        """Return the prompts of the addressee, once no run is open."""
        for run in await self.store.runs(BOB):
            await self.addressee.ask("reads.wait", run.run_id)
        latest = await self.addressee.ask("reads.latest")
        return [block.text for block in latest.blocks if isinstance(block, User)] if latest else []


async def peers(faults: Faults | None = None, **settings: Any) -> Peers:
    both = Peers(faults or Faults(), **settings)
    await both.sender.create()
    await both.addressee.create()
    return both


@pytest.mark.virtual_time
async def test_a_message_begins_a_run_of_the_other_session() -> None:
    both = await peers()
    message = await both.send("hello")
    assert (message.to_session, message.kind, message.run_id) == (BOB.session_id, "message", "id of hello")
    assert await both.receive(message) == message.run_id
    run = await both.store.run(message.run_id)
    assert (run.session_id, run.labels) == (BOB.session_id, {"from_session": ANN.session_id})
    assert await both.store.deliveries() == [] and await both.store.runs(ANN) == []
    assert await both.receive(message) == message.run_id, "the run that it has begun before"
    assert await both.prompts() == ["hello"] and len(await both.store.runs(BOB)) == 1


@pytest.mark.virtual_time
async def test_a_message_waits_for_the_active_run() -> None:
    both = await peers()
    await both.addressee.start("first")
    for text in ("second", "third"):
        await both.receive(await both.send(text))
    assert await both.prompts() == ["first", "second", "third"]


@pytest.mark.virtual_time
async def test_a_message_that_cannot_be_taken_now_stays() -> None:
    both = await peers(max_queued=0)
    await both.addressee.start("first")
    message = await both.send("second")
    with pytest.raises(QueueFullError):
        await both.receive(message)
    later = replace(message, revision=2, attempts=1, why="the queue is full")
    await both.store.change_delivery(DeliveryChange(message, later))
    await both.prompts()
    assert await both.receive(message) is None, "somebody else has changed it since"
    assert len(await both.store.runs(BOB)) == 1
    assert await both.receive(later) == message.run_id


@pytest.mark.virtual_time
async def test_a_message_that_was_delivered_is_not_sent_again() -> None:
    both = await peers()
    message = await both.send("hello")
    assert await both.send("hello") == message, "while it waits"
    await both.receive(message)
    again = await both.send("hello")
    assert again.delivery_id == message.delivery_id and await both.store.deliveries() == []


@pytest.mark.virtual_time
async def test_a_removal_that_fails_leaves_no_second_run() -> None:
    """Its failure is noted with the delivery, so the next attempt is for another revision."""
    both = await peers()
    message = await both.send("hello")
    await both.addressee.start("hello", run_id=message.run_id)
    failed = replace(message, revision=2, attempts=1, why="the store did not answer")
    await both.store.change_delivery(DeliveryChange(message, failed))
    both.addressee.kill()
    assert await both.receive(failed) == message.run_id
    assert await both.store.deliveries() == [] and await both.prompts() == ["hello"]


@pytest.mark.virtual_time
async def test_a_message_to_nobody_is_refused() -> None:
    both = await peers()
    send = both.sender.core.scheduling.send
    with pytest.raises(SessionNotFoundError, match="nobody's"):
        await send("nobody's", "hello", delivery_id="d")
    with pytest.raises(EmptyTurnError):
        await send(BOB.session_id, " ", delivery_id="d")
    message = await both.send("hello")
    await both.addressee.ask("admission.end_session")
    with pytest.raises(SessionEndedError, match="bob's"):
        await send(BOB.session_id, "hello", delivery_id="d")
    with pytest.raises(SessionEndedError, match="bob's"):
        await both.receive(message)
    assert await both.store.deliveries() == [message]
    await both.sender.ask("admission.end_session")
    with pytest.raises(SessionEndedError, match="ann's"):
        await send(ANN.session_id, "hello", delivery_id="d")
    assert await both.store.deliveries() == [message], "what a session has sent stays when it ends"


@pytest.mark.virtual_time
async def test_a_message_goes_with_its_sender() -> None:
    both = await peers()
    message = await both.send("hello")
    await both.store.delete(ANN)
    assert await both.receive(message) is None and await both.store.deliveries() == []


@pytest.mark.virtual_time
async def test_a_message_whose_addressee_was_deleted_stays_with_its_sender() -> None:
    both = await peers()
    message = await both.send("hello")
    await both.store.delete(BOB)
    with pytest.raises(SessionNotFoundError, match="bob's"):
        await both.receive(message)
    assert await both.store.deliveries() == [message]


@pytest.mark.virtual_time
async def test_a_message_is_cancelled_but_neither_changed_nor_forked() -> None:
    both = await peers()
    message = await both.send("hello")
    await both.sender.wait(await both.sender.start("first"))
    await both.sender.ask("forking.fork", None, "fork", deliveries=True)
    assert await both.store.deliveries() == [message]
    with pytest.raises(DeliveryNotFoundError):
        await both.sender.core.scheduling.change(message.key, when=When(after_s=5.0))
    assert await both.sender.ask("scheduling.cancel", message.key)
    assert await both.receive(message) is None and await both.prompts() == []


@pytest.mark.virtual_time
async def test_a_broken_message_begins_no_run() -> None:
    both = await peers()
    payload = run_payload([encode(User(text="a"))], {"labels": {"a": 7}})
    broken = replace(await both.send("hello"), delivery_id="broken", key="broken", payload=payload)
    await both.store.add_delivery(broken)
    with pytest.raises(InvalidInputError):
        await both.receive(broken)
    with pytest.raises(InvalidInputError, match="occurs once"):
        await both.store.add_delivery(replace(broken, schedule=Schedule(every_s=60.0)))


def test_messages_arrive_once_whatever_fails_or_dies() -> None:
    """A commit that fails, one that is stored with its answer lost, a kill of either process at each step."""

    async def life(faults: Faults) -> None:
        both = await peers(faults)
        await both.addressee.start("first")
        for text in ("second", "third"):
            message = await both.send(text)
            await both.receive(message)
        await both.dispatch()
        assert await both.prompts() == ["first", "second", "third"]
        runs = {run.run_id for run in await both.store.runs(BOB)}
        assert runs == {"first", "id of second", "id of third"} and await both.store.runs(ANN) == []
        for world in (both.sender, both.addressee):
            (await world.audit()).check()

    struck = exhaust(life, **of_cases())
    assert all(struck[kind] >= 4 for kind in ("error", "unanswered", "crash", "fence", "kill")), struck


def test_a_message_that_is_cancelled_arrives_at_most_once() -> None:
    async def life(faults: Faults) -> None:
        both = await peers(faults)
        message = await both.send("hello")
        await asyncio.gather(both.receive(message), both.sender.ask("scheduling.cancel", message.key))
        await both.dispatch()
        assert await both.prompts() in ([], ["hello"])

    assert exhaust(life, **of_cases())["kill"] >= 4


async def test_a_row_and_its_deliveries_name_the_namespace_of_the_process() -> None:
    class OfSpace(NoAlarm):
        namespace = "space"

    store = InMemoryStore()
    for key in (ANN, BOB):
        await store.create(SessionRecord(session_id=key.session_id))
    core = SessionCore(ANN, store, FunctionEngine(answer), alarm=OfSpace(), engine_id="engine")
    message = await core.scheduling.send(BOB.session_id, "hello", delivery_id="message")
    prompt = await core.scheduling.add(["hi"], When(after_s=60.0), delivery_id="prompt")
    assert (message.namespace, message.engine_id) == ("space", "engine")
    assert (prompt.namespace, prompt.engine_id) == ("space", None), "its session notes the engine"
    assert await store.deliveries() == [message, prompt]
    assert ((await store.get(ANN)).namespace, (await store.get(BOB)).namespace) == ("space", None)
