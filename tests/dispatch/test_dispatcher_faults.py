"""Deliveries among faults, on virtual time: dispatchers that work at once, clocks that are set, very many at once."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dispatching import LeaseForAll, Sessions, Supervised
from scale import share
from turnwise.actors.dispatch.dispatcher import Dispatcher, DispatchSettings
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.inference.named_engines import NamedEngines
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.state import journal
from turnwise.engines import EngineBuilder, agent_tool
from turnwise.errors import DeliveryChangedError
from turnwise.memory.conversation.blocks import User, encode
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.deliveries.payload import run_payload
from turnwise.memory.deliveries.records import MISSED_AFTER_S, Delivery, DeliveryChange
from turnwise.memory.deliveries.schedules import Schedule
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing.faults import FaultPlan, Faults
from turnwise.testing.schedules import spread
from turnwise.testing.scripted_engine import Pause, ScriptedEngine

RATES: Any = {"error": 0.03, "unanswered": 0.03, "crash": 0.01, "delay": 0.1}

EPOCH_S = 1_000_000.0

HOUR_S = 3600.0

pytestmark = pytest.mark.usefixtures("quiet")


def now() -> float:
    return asyncio.get_running_loop().time()


def a_prompt(key: str, session_id: str, due_at: float, **values: Any) -> Delivery:
    payload = run_payload([encode(User(text=key))], {})
    times = {"occurs_at": due_at, "due_at": due_at, "payload": payload, "session_id": session_id, **values}
    return Delivery(delivery_id=f"id of {key}", key=key, **times)


# Agents


async def find_out(turn: Turn) -> AsyncIterator[str]:
    """Answer after a moment."""
    await asyncio.sleep(0.05)
    yield "found"


@pytest.mark.virtual_time
async def test_a_cancel_that_crosses_the_begin_of_an_agent_ends_its_run() -> None:
    """The begin has read that its call waits, and is slow. Then the caller is cancelled, and the cancel arrives."""
    tool = agent_tool("endless", engine="endless", description="Never answers.")
    engines: dict[str, EngineBuilder] = {
        "lead": ScriptedEngine([[("endless", {"task": "a"})]], tools=[tool]),
        "endless": ScriptedEngine([[Pause(math.inf)]]),
    }
    store = InMemoryStore(clock=now)
    sessions = Sessions(Faults(), store, engine=NamedEngines(engines), config=SessionConfig(cancel_grace_s=0.1))
    lead = sessions.of("lead")
    await lead.create()
    await lead.start("go")
    while not (deliveries := await store.deliveries()):
        await asyncio.sleep(0.01)
    (begin,) = deliveries
    has_read, goes_on, agent = asyncio.Event(), asyncio.Event(), sessions.of(str(begin.to_session))
    read = agent.store.run

    async def slow_run(*args: Any) -> Any:
        record = await read(*args)
        has_read.set()
        await goes_on.wait()
        return record

    agent.store.run = slow_run
    beginning = asyncio.create_task(sessions.deliver(begin))
    await has_read.wait()
    agent.store.run = read
    await lead.cancel("go")
    (cancel,) = [delivery for delivery in await store.deliveries() if delivery.kind == "cancel"]
    cancelling = asyncio.create_task(sessions.deliver(cancel))
    await asyncio.sleep(1.0)
    goes_on.set()
    await asyncio.gather(beginning, cancelling)
    (run,) = await store.runs(agent.core.state.key)
    assert run.state == "cancelled" and [delivery.kind for delivery in await store.deliveries()] == ["result"]


@pytest.mark.by_turns
def test_dispatchers_that_work_at_once_leave_no_agent_of_a_cancelled_run_behind() -> None:
    """One hands over the begin of an agent while another hands over its cancel, in both orders, among faults."""
    endless = agent_tool("endless", engine="endless", description="Never answers.")
    quick = agent_tool("quick", engine="quick", description="Answers.")
    engines: dict[str, EngineBuilder] = {
        "lead": ScriptedEngine(
            [[("endless", {"task": "a"}), ("quick", {"task": "b"})], "done"], tools=[endless, quick]
        ),
        "endless": ScriptedEngine([[Pause(math.inf)]]),
        "quick": FunctionEngine(find_out),
    }
    begun: Counter[int] = Counter()

    async def schedule(seed: int) -> None:
        faults = Faults(FaultPlan(rates=RATES), seed=seed)
        store = InMemoryStore(clock=now)
        config = SessionConfig(cancel_grace_s=0.1, idle_s=1e9, on_lost="resume", max_resumes=99)
        sessions = Sessions(faults, store, engine=NamedEngines(engines), config=config)
        lead = sessions.of("lead")
        await lead.create()
        run_id = await lead.start("go")

        async def is_done() -> bool:
            await sessions.come_back()
            records = [run for session in await store.query() for run in await store.runs(session.key)]
            return not any(run.is_open for run in records) and not await store.deliveries()

        async def cancel() -> None:
            while not await store.deliveries():
                await asyncio.sleep(0.01)
            await asyncio.sleep(faults.dice.random() * 0.1)
            await lead.cancel(run_id)

        pair = [Supervised(faults, LeaseForAll(store), sessions.deliver, name=name) for name in ("left", "right")]
        await asyncio.gather(cancel(), *(dispatcher.run_until(is_done) for dispatcher in pair))
        faults.plan = FaultPlan()
        for session in await store.query():
            runs = await store.runs(session.key)
            assert len(runs) <= 1, runs
            begun[len(runs)] += session.called_by is not None
            assert session.agent != "endless" or all(run.state == "cancelled" for run in runs), runs
        await sessions.audit()

    assert spread(share(1000, 20), schedule, yields=0.05, kills=0.0003)


# Very many


class Counted:
    """Carries out what it is given, as sessions do, and counts it by key and revision."""

    def __init__(self, store: InMemoryStore) -> None:
        self.carried_out: Counter[tuple[str, int]] = Counter()
        self.most_tasks = 0
        self._store = store

    async def deliver(self, delivery: Delivery) -> None:
        await asyncio.sleep(0)
        self.most_tasks = max(self.most_tasks, len(asyncio.all_tasks()))
        after = delivery.after_occurrence(await self._store.now())
        with suppress(DeliveryChangedError):
            await self._store.change_delivery(DeliveryChange(delivery, after))
            self.carried_out[delivery.key, delivery.revision] += 1


@pytest.mark.virtual_time
async def test_very_many_that_recur_come_each_time_and_few_are_in_memory() -> None:
    count, times, store = share(10_000, 20), 5, InMemoryStore(clock=now)
    for index in range(100):
        await store.create(SessionRecord(session_id=f"s{index}", user_id=f"u{index % 3}"))
    schedule = Schedule(every_s=60.0, until=60.0 * times)
    for index in range(count):
        recurring = a_prompt(f"d{index}", f"s{index % 100}", 60.0, schedule=schedule, missed="run_all")
        await store.add_delivery(replace(recurring, user_id=f"u{index % 100 % 3}"))
    counted = Counted(store)
    dispatcher = Dispatcher(store, counted.deliver, "h", settings=DispatchSettings(page=64))
    running = asyncio.create_task(dispatcher.run())
    while await store.deliveries(limit=1):
        await asyncio.sleep(1.0)
    running.cancel()
    await asyncio.wait([running])
    assert len(counted.carried_out) == count * times and set(counted.carried_out.values()) == {1}
    assert counted.most_tasks < 80


# Clocks


class SetClock:
    """A clock of the store that is set by an hour now and then."""

    def __init__(self, dice: random.Random) -> None:
        self.ahead_s = EPOCH_S
        self.sets: list[float] = []
        """When it was set, by the loop's clock."""
        self._dice = dice

    def __call__(self) -> float:
        return now() + self.ahead_s

    async def run(self, times: int, longest_s: float) -> None:
        """Set it so many times, forwards and backwards, and in the end so that it is an hour ahead."""
        for _ in range(times):
            await asyncio.sleep(self._dice.random() * longest_s)
            self.ahead_s += self._dice.choice((-HOUR_S, HOUR_S))
            self.sets.append(now())
        self.ahead_s = EPOCH_S + HOUR_S

    def was_set_between(self, first: float, last: float) -> bool:
        return any(first <= at <= last for at in self.sets)


@pytest.mark.by_turns
@pytest.mark.parametrize("session_clock", ["the store's", "read when the session is loaded"])
def test_clocks_that_are_set_by_an_hour_lose_and_double_no_occurrence(
    session_clock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a session that has its store in its process, and with one that has read a server's clock."""
    monkeypatch.setattr(journal, "time", SimpleNamespace(monotonic=now, time=now))
    every = Schedule(every_s=20.0, until=EPOCH_S + 300.0)

    async def schedule(seed: int) -> None:
        faults = Faults(FaultPlan(rates=RATES), seed=seed)
        clock = SetClock(random.Random(f"{seed} of the clock"))
        store = InMemoryStore(clock=clock)
        config = SessionConfig(cancel_grace_s=0.1, idle_s=1e9)
        settings = {"clock": clock if session_clock == "the store's" else None}
        sessions = Sessions(faults, store, engine=EchoEngine(), config=config, **settings)
        for name in ("once", "run_all", "run_once", "skip"):
            await sessions.of(name).create()
            recurs: dict[str, Any] = {} if name == "once" else {"schedule": every, "missed": name}
            await store.add_delivery(a_prompt(name, name, EPOCH_S + 5.0, **recurs))
        attempts: list[tuple[Delivery, float, float, float]] = []
        """A delivery, when it was handed over and done by the loop's clock, and when it was done by the store's."""

        async def deliver(delivery: Delivery) -> None:
            begun_at = now()
            await sessions.deliver(delivery)
            attempts.append((delivery, begun_at, now(), clock()))

        async def is_done() -> bool:
            return len(clock.sets) == 4 and not await store.deliveries()

        pair = [Supervised(faults, store, deliver, name=name) for name in ("left", "right")]
        await asyncio.gather(clock.run(4, 40.0), *(dispatcher.run_until(is_done) for dispatcher in pair))
        faults.plan = FaultPlan()
        revisions: dict[str, list[int]] = {}
        for name, world in sessions.worlds.items():
            runs = await store.runs(SessionKey(name))
            for run in runs:
                await world.ask("reads.wait", run.run_id)
            revisions[name] = [int(run.run_id.rpartition("-")[2]) for run in runs]
            assert len(set(revisions[name])) == len(revisions[name]), "an occurrence is doubled"
        assert revisions["once"] and len(revisions["run_all"]) == 15, "an occurrence is lost"
        _check_policies(attempts, revisions, clock)
        await sessions.audit(deaths=None)  # whose times are by another clock

    assert spread(share(400, 50), schedule, yields=0.02, kills=0.0002)


def _check_policies(
    attempts: list[tuple[Delivery, float, float, float]], revisions: dict[str, list[int]], clock: SetClock
) -> None:
    """Check that one run is for all that was missed, and that nothing is left out but what is late."""
    times: dict[tuple[str, int], float] = {}
    for delivery, begun_at, done_at, store_time in attempts:
        if clock.was_set_between(begun_at - 1.0, done_at):
            continue  # nobody can say what is late
        number = delivery.revision - delivery.attempts
        before = times.get((delivery.key, number - 1))
        if delivery.missed != "run_all" and before is not None and delivery.schedule:
            assert delivery.occurs_at > before - 1.0, f"{delivery} was missed, and a run was for all that were"
        if delivery.key == "skip" and store_time < delivery.occurs_at + MISSED_AFTER_S - 1.0:
            assert number in revisions["skip"], f"{delivery} was left out, and was not late"
        times.setdefault((delivery.key, delivery.revision), store_time)
