"""Sessions that begin runs by themselves: each occurrence of a delivery is carried out once, whatever fails or dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from scale import of_cases, share
from schedules import SESSION, World as RacingWorld, spread
from stored.audit import check_session
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.runs.admission import Started
from turnwise.errors import (
    DeliveryChangedError,
    DeliveryNotFoundError,
    EmptyTurnError,
    InvalidInputError,
    QueueFullError,
    SessionBusyError,
    SessionEndedError,
    SessionFencedError,
    SessionNotFoundError,
    StoreError,
)
from turnwise.memory.conversation.blocks import User, encode
from turnwise.memory.conversation.runs import IfBusy
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.deliveries.payload import run_payload
from turnwise.memory.deliveries.records import MISSED_AFTER_S, Delivery, DeliveryChange, Missed
from turnwise.memory.deliveries.schedules import Schedule, When
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.values.frozen_json import freeze
from turnwise.testing.exhaust import Life, exhaust
from turnwise.testing.faults import Faults
from turnwise.testing.world import World

KEY = SessionKey("session")

SLOW_S = 0.3

pytestmark = pytest.mark.usefixtures("quiet")


async def answer(turn: Turn) -> AsyncIterator[str]:
    """Answer after a while."""
    await asyncio.sleep(SLOW_S)
    yield "an answer"


ENGINE = FunctionEngine(answer)


def a_reminder(key: str = "reminder", **values: Any) -> Delivery:
    payload = run_payload([encode(User(text=values.pop("prompt", key)))], values.pop("options", {}))
    settings = {"occurs_at": 0.0, "due_at": 0.0, "payload": payload, "session_id": "session", **values}
    return Delivery(delivery_id=f"id of {key}", key=key, **settings)


async def deliver(world: World, delivery: Delivery) -> Started | None:
    """Have the session carry a delivery out, as somebody does who has read it, and asks until there is an answer."""
    started: Started | None = await world.ask(
        "admission.deliver", delivery.key, delivery.delivery_id, delivery.revision
    )
    return started


async def prompts_of(world: World) -> list[str]:
    """Return the prompts of all turns in the store, in order."""
    return [block.text for block in await stored_blocks(world) if isinstance(block, User)]


async def stored_blocks(world: World) -> list[Any]:
    latest = await world.ask("reads.latest")
    return list(latest.blocks) if latest else []


async def settled(world: World) -> None:
    """Wait until no run is open."""
    for run in await world.store.inner.runs(KEY):
        await world.ask("reads.wait", run.run_id)


async def begun(faults: Faults | None = None, **settings: Any) -> World:
    """Return a world with a session."""
    config = SessionConfig(cancel_grace_s=0.1, idle_s=1e9, **settings)
    world = World(faults or Faults(), engine=ENGINE, config=config)
    await world.create()
    return world


@pytest.mark.virtual_time
async def test_a_delivery_begins_a_run_and_is_gone() -> None:
    world = await begun()
    reminder = await world.store.inner.add_delivery(a_reminder(options={"labels": {"by": "timer"}, "timeout_s": 60.0}))
    started = await deliver(world, reminder)
    assert started and started.run_id == reminder.run_id
    run = await world.store.inner.run(started.run_id)
    assert (run.state, run.labels, run.timeout_s) == ("running", {"by": "timer"}, 60.0)
    assert await world.store.inner.delivery(KEY, "reminder") is None
    assert await deliver(world, reminder) == started, "the second one changes nothing"
    await settled(world)
    assert await deliver(world, reminder) == started
    world.kill()
    assert await deliver(world, reminder) == started, "another process knows it, too"
    assert await prompts_of(world) == ["reminder"] and len(await world.store.inner.runs(KEY)) == 1


@pytest.mark.virtual_time
async def test_a_recurring_delivery_moves_with_the_commit_that_begins_its_run() -> None:
    world = await begun()
    reminder = await world.store.inner.add_delivery(a_reminder(schedule=Schedule(every_s=10.0, until=25.0)))
    run_ids = []
    while reminder:
        started = await deliver(world, reminder)
        assert started
        run_ids.append(started.run_id)
        await settled(world)
        moved = await world.store.inner.delivery(KEY, "reminder")
        assert moved is None or moved.revision == reminder.revision + 1
        reminder = moved
        await asyncio.sleep(10.0)
    assert len(set(run_ids)) == 3 and await prompts_of(world) == ["reminder"] * 3


@pytest.mark.virtual_time
@pytest.mark.parametrize("settings", [{"schedule": Schedule(every_s=3600.0)}, {}])
async def test_a_missed_occurrence_is_left_out_if_it_is_to_be(settings: dict[str, Any]) -> None:
    world = await begun()
    reminder = await world.store.inner.add_delivery(a_reminder(missed="skip", **settings))
    await asyncio.sleep(MISSED_AFTER_S + 1)
    assert await deliver(world, reminder) is None
    moved = await world.store.inner.delivery(KEY, "reminder")
    assert (moved and moved.due_at) == (3600.0 if settings else None)
    assert await world.store.inner.runs(KEY) == []


@pytest.mark.virtual_time
async def test_a_delivery_that_was_changed_or_cancelled_is_not_carried_out() -> None:
    world = await begun()
    store = world.store.inner
    first = await store.add_delivery(a_reminder())
    second = replace(first, due_at=5.0, revision=2)
    await store.change_delivery(DeliveryChange(first, second))
    assert await deliver(world, first) is None
    assert await store.delivery(KEY, "reminder") == second
    await store.change_delivery(DeliveryChange(second, None))
    assert await deliver(world, second) is None
    assert await store.runs(KEY) == []


@pytest.mark.virtual_time
async def test_a_session_that_has_ended_or_was_deleted_has_no_deliveries() -> None:
    world = await begun()
    store = world.store.inner
    for key in ("one", "two"):
        await store.add_delivery(a_reminder(key, due_at=9e9, occurs_at=9e9))
    await world.ask("admission.end_session")
    assert await store.deliveries() == []
    late = await store.add_delivery(a_reminder("late"))
    assert await deliver(world, late) is None and await store.deliveries() == []
    await store.add_delivery(a_reminder("last"))
    await store.delete(KEY)
    with pytest.raises(SessionNotFoundError):
        await World(Faults(), engine=ENGINE, store=store).core.admission.deliver("last", "id of last", 1)


POLICIES: dict[IfBusy, dict[str, Any]] = {
    **{policy: {} for policy in ("enqueue", "interrupt", "rollback", "latest", "drop", "merge", "inject")},
    "debounce": {"debounce_s": 0.1},
}


@pytest.mark.virtual_time
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_delivery_that_meets_a_busy_session_follows_its_policy(policy: IfBusy) -> None:
    world = await begun()
    await world.start("first")
    await asyncio.sleep(SLOW_S / 3)
    reminder = a_reminder(if_busy=policy, options=POLICIES[policy], schedule=Schedule(every_s=100.0))
    await world.store.inner.add_delivery(reminder)
    started = await deliver(world, reminder)
    assert started and started.dropped == (policy == "drop")
    moved = await world.store.inner.delivery(KEY, "reminder")
    assert moved and moved.occurs_at == 100.0
    await settled(world)
    prompts = {"drop": ["first"], "rollback": ["reminder"]}.get(policy, ["first", "reminder"])
    assert await prompts_of(world) == prompts
    assert await deliver(world, reminder) == (None if policy == "drop" else started)
    assert await prompts_of(world) == prompts


@pytest.mark.virtual_time
async def test_a_delivery_that_a_busy_session_refuses_stays_for_later() -> None:
    world = await begun(max_queued=0)
    store = world.store.inner
    await world.start("first")
    for key, policy, error in (("a", "reject", SessionBusyError), ("b", "enqueue", QueueFullError)):
        refused = await store.add_delivery(a_reminder(key, if_busy=policy))
        with pytest.raises(error):
            await deliver(world, refused)
        assert await store.delivery(KEY, key) == refused
    await settled(world)
    assert await deliver(world, a_reminder("a", if_busy="reject"))
    await settled(world)
    assert await prompts_of(world) == ["first", "a"]


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "values",
    [
        {"kind": "call", "delivery_id": "~w~1"},
        {"payload": freeze({})},
        {"payload": run_payload([encode(User(text="a"))], {"labels": {"a": 7}})},
        {"payload": run_payload([encode(User(text="a"))], {"timeout_s": -1.0})},
        {"payload": run_payload([encode(User(text="a"))], {"tools": {"a": 7}})},
        {"payload": freeze({"prompts": ["no json"]})},
        {"payload": freeze({"prompts": []})},
        {"payload": run_payload([encode(User(text="a"))], {"turn_id": "t"})},
        {"payload": run_payload([encode(User(text="a"))], {"debounce_s": 1.0})},
    ],
)
async def test_a_delivery_that_can_begin_no_run_is_refused_and_stays(values: dict[str, Any]) -> None:
    world = await begun()
    broken = await world.store.inner.add_delivery(replace(a_reminder(), **values))
    with pytest.raises(InvalidInputError):
        await deliver(world, broken)
    assert (await world.store.inner.due(1e9)).items == (broken,) and await world.store.inner.runs(KEY) == []


# Adding, changing and cancelling


async def add(world: World, key: str, when: When, **settings: Any) -> Delivery:
    delivery: Delivery = await world.ask("scheduling.add", [key], when, delivery_id=f"id of {key}", key=key, **settings)
    return delivery


@pytest.mark.virtual_time
async def test_a_session_schedules_changes_and_cancels() -> None:
    world = await begun()
    store = world.store.inner
    await asyncio.sleep(100.0)
    at = await add(world, "at", When(at=500.0))
    after = await add(world, "after", When(after_s=30.0), missed="skip", if_busy="drop")
    every = await add(world, "every", When(schedule=Schedule(every_s=60.0)))
    daily = await add(world, "cron", When(schedule=Schedule(cron="0 9 * * *"), at=200.0), options={"timeout_s": 5.0})
    assert [(one.occurs_at, one.due_at) for one in (at, after, every, daily)] == [
        (when, when) for when in (500.0, 130.0, 160.0, 200.0)
    ]
    assert (after.missed, after.if_busy) == ("skip", "drop") and daily.payload["timeout_s"] == 5.0
    assert await add(world, "at", When(at=900.0)) == at, "under its key it is the same"
    changed = await world.ask("scheduling.change", "at", when=When(after_s=1.0), prompts=["other"], if_busy="merge")
    assert (changed.due_at, changed.if_busy, changed.revision, changed.schedule) == (101.0, "merge", 2, None)
    assert await store.delivery(KEY, "at") == changed and "other" in changed.payload["prompts"][0]
    unmoved = await world.ask("scheduling.change", "every", missed="run_all")
    assert (unmoved.schedule, unmoved.due_at, unmoved.payload) == (every.schedule, 160.0, every.payload)
    assert await world.ask("scheduling.cancel", "at") and not await world.ask("scheduling.cancel", "at")
    with pytest.raises(DeliveryNotFoundError, match="'at'"):
        await world.ask("scheduling.change", "at", missed="skip")
    assert [one.key for one in await store.deliveries()] == ["after", "cron", "every"]


@pytest.mark.virtual_time
@pytest.mark.parametrize("is_another_process", [False, True])
async def test_a_delivery_that_was_carried_out_is_not_added_again(is_another_process: bool) -> None:
    """As by a call whose answer was lost."""
    world = await begun()
    reminder = await add(world, "reminder", When(after_s=0.0))
    assert await deliver(world, reminder)
    await settled(world)
    if is_another_process:
        world.kill()
    again = await add(world, "reminder", When(after_s=0.0))
    assert again.delivery_id == reminder.delivery_id
    assert not await world.store.inner.deliveries() and len(await world.store.inner.runs(KEY)) == 1


@pytest.mark.virtual_time
async def test_what_can_begin_no_run_is_not_scheduled() -> None:
    world = await begun()
    for prompts, when, settings, error in (
        ([], When(at=1.0), {}, EmptyTurnError),
        ([" "], When(at=1.0), {}, EmptyTurnError),
        (["a"], When(), {}, InvalidInputError),
        (["a"], When(at=1.0, after_s=1.0), {}, InvalidInputError),
        (["a"], When(at=-1.0), {}, InvalidInputError),
        (["a"], When(schedule=Schedule(every_s=10.0, until=0.0)), {}, InvalidInputError),
        (["a"], When(schedule=Schedule(cron="nonsense")), {}, InvalidInputError),
        (["a"], When(at=1.0), {"options": {"debounce_s": 1.0}}, InvalidInputError),
        (["a"], When(at=1.0), {"key": ""}, InvalidInputError),
    ):
        with pytest.raises(error):
            await world.core.scheduling.add(prompts, when, delivery_id="d", **settings)
    await world.ask("admission.end_session")
    with pytest.raises(SessionEndedError):
        await world.core.scheduling.add(["a"], When(at=1.0), delivery_id="d")
    assert await world.store.inner.deliveries() == []


@pytest.mark.virtual_time
async def test_an_addition_that_is_repeated_after_attempts_that_failed_adds_nothing() -> None:
    world = await begun()
    adding = partial(world.ask, "scheduling.add", ["a"], When(after_s=0.0), delivery_id="d", key="k")
    delivery = await adding()
    failed = delivery.after_failure("the session was away", 1.0)
    await world.store.inner.change_delivery(DeliveryChange(delivery, failed))
    started = await deliver(world, failed)
    assert started and started.run_id == delivery.run_id == failed.run_id
    assert (await adding()).run_id == delivery.run_id
    assert await world.store.inner.deliveries() == [] and await prompts_of(world) == ["a"]


@pytest.mark.virtual_time
async def test_a_delivery_that_was_given_up_is_due_again_after_a_change() -> None:
    world = await begun()
    given_up = a_reminder(due_at=None, why="it failed", attempts=7)
    await world.store.inner.add_delivery(given_up)
    changed = await world.ask("scheduling.change", "reminder", when=When(after_s=0.0))
    assert (changed.due_at, changed.why, changed.attempts) == (changed.occurs_at, None, 0)


@pytest.mark.virtual_time
async def test_a_fork_has_no_deliveries_unless_it_is_to_have_copies() -> None:
    world = await begun()
    store = world.store.inner
    await world.wait(await world.start("first"))
    original = await add(world, "daily", When(schedule=Schedule(cron="0 9 * * *")))
    await world.ask("forking.fork", None, "without")
    for _ in range(2):
        await world.ask("forking.fork", None, "with", deliveries=True)
    copies = [await store.deliveries(user_id="default", session_id=name) for name in ("without", "with")]
    ((copy,),) = copies[1:]
    assert copies[0] == [] and copy.delivery_id != original.delivery_id
    assert replace(copy, session_id="session", delivery_id=original.delivery_id) == original
    started = await deliver(world, original)
    other = World(Faults(), session_id="with", engine=ENGINE, store=store)
    started_too = await deliver(other, copy)
    assert started and started_too and started.run_id != started_too.run_id


# Lives: each fault at each point, and a kill at each step


Story = Callable[[World], Coroutine[Any, Any, None]]


def life_of(story: Story) -> Life:
    async def life(faults: Faults) -> None:
        world = await begun(faults)
        await story(world)
        await settled(world)
        (await world.audit()).check()

    return life


async def carried_out(world: World, key: str, count: int) -> list[str]:
    """Carry a delivery out as often as it occurs, as a dispatcher does that reads what is due and may die itself."""
    run_ids: list[str] = []
    while reminder := await world.store.inner.delivery(KEY, key):
        if started := await deliver(world, reminder):
            run_ids.append(started.run_id)
        assert len(run_ids) <= count
    return run_ids


@pytest.mark.by_turns
@pytest.mark.parametrize("policy", ["enqueue", "interrupt", "merge", "inject"])
def test_an_occurrence_is_carried_out_once_whatever_fails_or_dies(policy: IfBusy) -> None:
    """A commit that fails, one that is stored with its answer lost, a kill at each step, another owner."""

    async def story(world: World) -> None:
        store = world.store.inner
        await world.start("first")
        once = await store.add_delivery(a_reminder("once", if_busy=policy))
        every = a_reminder("every", if_busy=policy, schedule=Schedule(every_s=50.0, until=75.0), missed="run_all")
        await store.add_delivery(every)
        await deliver(world, once)
        await deliver(world, once)
        assert len(set(await carried_out(world, "every", 2))) == 2
        await settled(world)
        prompts = await prompts_of(world)
        assert [prompts.count(prompt) for prompt in ("first", "once", "every")] == [1, 1, 2], prompts
        assert await store.deliveries() == []
        runs = await store.runs(KEY)
        assert len(runs) == 4 and {run.run_id for run in runs} >= {once.run_id, every.run_id, "first"}

    struck = exhaust(life_of(story), **of_cases())
    assert all(struck[kind] >= 4 for kind in ("error", "unanswered", "crash", "fence", "kill")), struck


def test_schedules_are_added_changed_and_cancelled_once_whatever_fails_or_dies() -> None:
    async def story(world: World) -> None:
        store = world.store.inner
        await add(world, "stays", When(schedule=Schedule(every_s=60.0), at=900.0))
        await add(world, "goes", When(at=900.0))
        await world.ask("scheduling.change", "stays", prompts=["changed"])
        await world.ask("scheduling.cancel", "goes")
        (stays,) = await store.deliveries()
        assert stays.key == "stays" and "changed" in stays.payload["prompts"][0]
        await deliver(world, stays)
        await world.ask("admission.end_session")
        assert await store.deliveries() == []
        assert len(await store.runs(KEY)) == 1

    struck = exhaust(life_of(story), **of_cases())
    assert all(struck[kind] >= 4 for kind in ("error", "unanswered", "crash", "fence", "kill")), struck


# Races, by seed


@pytest.mark.by_turns
def test_no_occurrence_is_lost_or_doubled_among_callers_cancels_and_owners() -> None:
    """Two dispatchers that read the same, callers who change and cancel, cores that take over, a store that fails."""

    async def schedule(seed: int) -> None:
        world = RacingWorld(seed, kinds=("answer", "raise", "stubborn"), config=SessionConfig(cancel_grace_s=0.1))
        await world.create()
        store, dice = world.store.inner, world.random
        key = SessionKey(SESSION)
        cores: list[SessionCore] = [world.core]
        policies: tuple[IfBusy, ...] = ("enqueue", "interrupt", "merge", "inject", "drop")
        missed: tuple[Missed, ...] = ("run_once", "run_all")
        occurrences: dict[str, int] = {}
        cancelled: set[str] = set()
        for number in range(4):
            recurs = Schedule(every_s=1.0, until=2.5) if number % 2 else None
            reminder = a_reminder(
                f"d{number}",
                session_id=SESSION,
                if_busy=dice.choice(policies),
                schedule=recurs,
                missed=dice.choice(missed),
            )
            await store.add_delivery(reminder)
            occurrences[reminder.key] = 3 if recurs else 1
        answered: dict[str, set[tuple[str, int]]] = {}

        async def persist(verb: str, *args: Any) -> Any:
            while True:
                core = cores[-1]
                part, _, name = verb.partition(".")
                try:
                    return await getattr(getattr(core, part), name)(*args)
                except SessionFencedError:
                    if core is cores[-1]:
                        cores.append(world.new_core())
                except StoreError:
                    await asyncio.sleep(0.01)

        async def dispatcher() -> None:
            while left := await store.deliveries():
                await world.pause()
                reminder = dice.choice(left)
                if reminder.due_at <= asyncio.get_running_loop().time():
                    started = await persist("admission.deliver", reminder.key, reminder.delivery_id, reminder.revision)
                    if started and not started.dropped:
                        run_ids = answered.setdefault(reminder.run_id, set())
                        run_ids.add((started.run_id, started.turn_index))
                else:
                    await asyncio.sleep(0.1)

        async def canceller() -> None:
            for name in ("d0", "d1"):
                await asyncio.sleep(dice.random() * 0.2)
                if dice.random() < 0.5:
                    before = await store.delivery(key, name)
                    try:
                        if before:
                            await world.store.change_delivery(DeliveryChange(before, None))
                            cancelled.add(name)
                    except DeliveryChangedError:
                        pass
                    except StoreError:
                        cancelled.add(name)  # perhaps
                elif await persist("scheduling.cancel", name):
                    cancelled.add(name)

        async def usurper() -> None:
            for _ in range(2):
                await asyncio.sleep(dice.random() * 0.5)
                cores.append(world.new_core())
                with suppress(StoreError):
                    await cores[-1].transactor.activate()

        world.store.fail_rate = 0.05 if seed % 2 else 0.0
        await asyncio.gather(dispatcher(), dispatcher(), canceller(), usurper())
        world.store.fail_rate = 0.0
        runs = {run.run_id: run for run in await persist("reads.runs")}
        for run_id in runs:
            await persist("reads.wait", run_id)
        for ids in answered.values():
            assert len({run_id for run_id, _ in ids}) == 1, "each answer for an occurrence names the same run"
        for name, count in occurrences.items():
            begun_runs = [run_id for run_id in runs if run_id.startswith(f"id of {name}-")]
            revisions = {int(run_id.rpartition("-")[2]) for run_id in begun_runs}
            assert len(begun_runs) == len(revisions) <= count, (name, begun_runs)
        assert {run_id for ids in answered.values() for run_id, _ in ids} <= set(runs)
        await check_session(store, SESSION)

    assert spread(share(2000, 40), schedule)


def test_a_store_without_deliveries_reads_none_for_a_run() -> None:
    """A run that a caller starts asks the store for no delivery."""

    async def life() -> None:
        faults = Faults(remembers=True)
        world = World(faults, engine=ENGINE, store=InMemoryStore())
        await world.create()
        await world.wait(await world.start("first"))
        points = {point.split()[0] for point, _ in faults.passed}
        assert points and not [point for point in points if "deliver" in point or "due" in point]

    from virtual_time import play

    play(life())
