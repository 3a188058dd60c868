"""Each fault at each point of a scenario, and a kill at each step of its process: nothing is lost."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.session.config import SessionConfig
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
