"""Each fault at each point of a scenario, and a kill at each step of its process: nothing is lost."""

from __future__ import annotations

import asyncio
import re
from typing import Literal, get_args

import pytest

from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.session.config import SessionConfig
from turnwise.memory.conversation.blocks import Block, ToolResult, ToolUse
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.testing.exhaust import Life, exhaust
from turnwise.testing.faults import Faults
from turnwise.testing.faulty_engine import FaultyEngine
from turnwise.testing.world import World

pytestmark = pytest.mark.usefixtures("quiet")


@tool
async def look() -> str:
    """Look."""
    return "seen"


def life_of(on_lost: Literal["interrupt", "resume"]) -> Life:
    async def life(faults: Faults) -> None:
        """Two turns, one with a tool; prompts appended, a run cancelled, the session forked and the fork used."""
        config = SessionConfig(cancel_grace_s=0.1, idle_s=1e9, on_lost=on_lost)
        engine = FaultyEngine(faults, tools=ToolRegistry(look, retries=0), late_s=1.0, word_s=0.01)
        world = World(faults, engine=engine, config=config)
        await world.create()
        await world.append("appended")
        await world.wait(await world.start("call:look one", timeout_s=5.0))
        await world.start("two", timeout_s=5.0)
        await asyncio.sleep(0.015)
        await world.cancel("two")
        await world.wait("two")
        await world.fork("fork")
        fork = World(faults, session_id="fork", engine=engine, config=config, store=world.store.inner)
        await fork.wait(await fork.start("three", timeout_s=5.0))
        (await world.audit()).check()
        (await fork.audit()).check()

    return life


@pytest.mark.by_turns
@pytest.mark.parametrize("on_lost", ["interrupt", "resume"])
def test_no_fault_at_any_point_loses_or_doubles_what_was_acknowledged(
    on_lost: Literal["interrupt", "resume"],
) -> None:
    struck = exhaust(life_of(on_lost))
    assert struck["kill"] > 50 and struck["crash"] > 20 and struck["fence"] > 10


Verdict = Literal["approve", "reject", "provide"]

ANSWERS: dict[Verdict, str] = {
    "approve": "paid 70|the process was lost while this tool ran",
    "reject": "ask in June",
    "provide": "paid by hand",
}


async def decided(verdict: Verdict, faults: Faults) -> tuple[list[int], str]:
    """Decide a call of a run; return what was paid, and how the run ended."""
    paid: list[int] = []

    @tool(approval=True)
    async def pay(euros: int) -> str:
        """Pay the bill."""
        paid.append(euros)
        return f"paid {euros}"

    async def answer(turn: Turn) -> Block | str:
        results = [block.text for block in turn.output if isinstance(block, ToolResult)]
        return results[-1] if results else ToolUse(call_id="call", name="pay", input=FrozenDict(euros=75))

    config = SessionConfig(cancel_grace_s=0.1, idle_s=1e9, on_lost="resume")
    world = World(faults, engine=FunctionEngine(answer, tools=[pay]), config=config)
    await world.create()
    run_id = await world.start("pay", timeout_s=60.0)
    if await world.wait(run_id, until="settled") == "awaiting_approval":
        (call,) = await world.pending(run_id)
        assert (call.name, call.input["euros"], call.wants) == ("pay", 75, "approval")
        if verdict == "approve":
            await world.approve(run_id, call.call_id, input={"euros": 70})
        elif verdict == "reject":
            await world.reject(run_id, call.call_id, "ask in June")
        else:
            await world.provide(run_id, call.call_id, "paid by hand")
    state = await world.wait(run_id)
    assert not await world.pending(run_id)
    assert paid in ([], [70])
    if state == "completed":
        assert re.search(ANSWERS[verdict], (await world.ask("reads.wait", run_id)).turn.text)
    (await world.audit()).check()
    return paid, state


@pytest.mark.parametrize("verdict", get_args(Verdict))
@pytest.mark.virtual_time
async def test_a_call_that_waits_is_decided_in_a_world_as_in_a_session(verdict: Verdict) -> None:
    assert await decided(verdict, Faults()) == ([70] if verdict == "approve" else [], "completed")


@pytest.mark.parametrize("verdict", get_args(Verdict))
def test_no_fault_makes_a_decided_call_twice(verdict: Verdict) -> None:
    async def life(faults: Faults) -> None:
        await decided(verdict, faults)

    struck = exhaust(life)
    assert struck["kill"] > 20 and struck["crash"] > 5
