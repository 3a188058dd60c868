"""Waits until a run has ended or is suspended: a waiting caller misses nothing, in seeded schedules with faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from scale import share
from turnwise.actors.hosting.stored_source import StoredSource
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.state.reads import SessionReads
from turnwise.errors import CallDecidedError
from turnwise.memory.conversation.blocks import ToolResult, ToolUse
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.runs import Until
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.turns import Outcome, Turn
from turnwise.testing.faults import FaultPlan, Faults
from turnwise.testing.schedules import explore, pause
from turnwise.testing.world import World

ROUNDS = 3
"""How often a run waits for decisions, about two calls each time."""

APPROVED = ApprovalDecision(verdict="approved")

pytestmark = pytest.mark.usefixtures("quiet")


@tool(approval=True)
async def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


async def answer(turn: Turn) -> AsyncIterator[Any]:
    """Pay twice in each round, then answer."""
    number = sum(isinstance(block, ToolResult) for block in turn.output)
    if number < 2 * ROUNDS:
        for euros in (number, number + 1):
            yield ToolUse(call_id=f"call {euros}", name="pay", input={"euros": euros})
    else:
        yield "paid all"


async def new_world(faults: Faults, **settings: Any) -> World:
    config = SessionConfig(cancel_grace_s=0.1, idle_s=1e9, **settings)
    world = World(faults, engine=FunctionEngine(answer, tools=[pay]), config=config)
    await world.create()
    return world


async def wait(world: World, until: Until, timeout_s: float | None = None) -> Outcome:
    outcome: Outcome = await world.ask("reads.wait", "run", timeout_s, until)
    return outcome


async def decide_all(world: World) -> Outcome:
    """Approve each call of the run as soon as it waits, and look only where a wait has returned."""
    while (outcome := await wait(world, "settled")).run.is_open:
        assert outcome.run.state == "awaiting_approval" and outcome.turn
        for call in await world.ask("reads.pending", "run"):
            await pause(world.faults.dice)
            with suppress(CallDecidedError):
                await world.decide("run", call.call_id, APPROVED)
    return outcome


def check_schedules(count: int, on_lost: str, plan: FaultPlan, **steps: float) -> None:
    """Let callers wait in seeded schedules. If a suspension or an end woke nobody, the loop would find a deadlock."""

    async def schedule(seed: int) -> None:
        faults = Faults(plan, seed=seed)
        world = await new_world(faults, on_lost=on_lost, max_resumes=1000)
        await world.start("run")
        impatient = [asyncio.create_task(wait(world, until)) for until in ("settled", "ended") for _ in range(5)]
        deciders = [asyncio.create_task(decide_all(world)) for _ in range(1 + seed % 2)]
        patient = [asyncio.create_task(wait(world, "ended")) for _ in range(3)]
        for task in impatient:
            await pause(faults.dice)
            task.cancel()
        ends = await asyncio.gather(*deciders, *patient)
        assert {end.run.state for end in ends} <= {"completed", "interrupted"}
        assert len({(end.run.state, end.run.ended_at) for end in ends}) == 1
        if on_lost == "resume":
            assert ends[0].turn and ends[0].turn.text == "paid all"

    assert explore(count, schedule, **steps)


def test_a_caller_that_only_waits_sees_every_suspension() -> None:
    check_schedules(share(1000, 50), "interrupt", FaultPlan(), yields=0.3)


@pytest.mark.by_turns
def test_no_suspension_is_missed_when_the_store_fails() -> None:
    check_schedules(share(1000, 50), "interrupt", FaultPlan(rates={"error": 0.1, "unanswered": 0.1}), yields=0.1)


@pytest.mark.by_turns
@pytest.mark.parametrize("on_lost", ["interrupt", "resume"])
def test_no_suspension_is_missed_when_processes_die(on_lost: str) -> None:
    check_schedules(share(1000, 50), on_lost, FaultPlan(rates={"unanswered": 0.05}), yields=0.1, kills=0.002)


@pytest.mark.virtual_time
async def test_a_wait_goes_on_if_the_run_resumed_before_it_was_woken() -> None:
    world = await new_world(Faults())
    await world.start("run")
    await wait(world, "settled")
    run = world.core.state.active
    assert run
    suspended = run.record
    woken = asyncio.create_task(run.wait(None, "settled"))
    await asyncio.sleep(0)  # it has begun, and will be woken in the next step of the loop
    run.record = replace(suspended, state="running")
    assert await woken is False
    waiting = asyncio.create_task(wait(world, "settled"))
    await asyncio.sleep(60)
    assert not waiting.done()
    run.record = suspended
    assert (await waiting).run is suspended


@pytest.mark.virtual_time
async def test_a_suspended_run_settles_a_wait_at_once_and_ends_no_other() -> None:
    world = await new_world(Faults())
    await world.start("run")
    assert (await wait(world, "settled")).run.state == "awaiting_approval"
    began = asyncio.get_running_loop().time()
    assert (await wait(world, "settled", 0.0)).turn
    stored = SessionReads(StoredSource(SessionKey("session"), world.store.inner, None))
    assert (await stored.wait("run", None, "settled")).turn
    assert asyncio.get_running_loop().time() == began
    timed_out = await wait(world, "ended", 5.0)
    assert timed_out.run.state == "awaiting_approval" and timed_out.turn is None
    assert asyncio.get_running_loop().time() >= began + 5.0


@pytest.mark.virtual_time
async def test_a_cancel_settles_a_wait_for_a_run_that_resumed() -> None:
    world = await new_world(Faults())
    await world.start("run")
    await wait(world, "settled")
    ended = asyncio.create_task(wait(world, "ended"))
    await asyncio.sleep(0)
    assert await world.cancel("run")
    assert (await ended).run.state == (await wait(world, "settled")).run.state == "cancelled"


@pytest.mark.virtual_time
async def test_abandoned_waits_leave_no_task_behind() -> None:
    world = await new_world(Faults())
    await world.start("run")
    await wait(world, "settled")
    tasks = len(asyncio.all_tasks())
    waits = [asyncio.create_task(world.core.reads.wait("run", None, "ended")) for _ in range(2000)]
    await asyncio.sleep(0.1)
    for task in waits:
        task.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    assert len(asyncio.all_tasks()) <= tasks
    assert (await decide_all(world)).run.state == "completed"


@pytest.mark.virtual_time
async def test_a_wait_for_a_run_whose_start_is_not_answered_yet_reads_the_store_rarely() -> None:
    faults = Faults(remembers=True)
    world = World(faults, engine=EchoEngine())
    await world.create()
    await world.core.transactor.activate()
    faults.plan = FaultPlan(rates={"delay": 1.0}, points=("store.commit after",))
    starting = asyncio.create_task(world.start("one"))
    await asyncio.sleep(0.001)
    assert (await world.store.inner.run("one")).state == "running" and not starting.done()
    assert await world.wait("one") == "completed"
    await starting
    assert [point for point, _ in faults.passed].count("store.run before") < 60
