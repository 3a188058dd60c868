"""Agents whose process is lost: reported to the model, or begun again, as often as their tool says."""

from __future__ import annotations

from typing import Any

import pytest

from scale import of_cases
from teams import SLOW_S, Team, asks
from turnwise.actors.session.engines.budget import Budget
from turnwise.engines import agent_tool, tool
from turnwise.memory.conversation.blocks import ToolResult, User
from turnwise.testing.exhaust import exhaust
from turnwise.testing.faults import Faults
from turnwise.testing.scripted_engine import Pause, ScriptedAnswer, ScriptedEngine

pytestmark = pytest.mark.usefixtures("quiet")


AGAIN = agent_tool(
    "researcher", engine="research", description="Finds things out.", on_lost="restart", max_restarts=2, timeout_s=60.0
)

DIG = tool(lambda: "nothing", name="dig", description="Digs.", repeatable=True)


def a_team(faults: Faults | None = None, **settings: Any) -> Team:
    return Team([asks("boats"), "done"], faults, tools=[AGAIN], on_lost="interrupt", **settings)


async def kill_agents(team: Team, times: int) -> None:
    """Kill the agent at work so many times, each time another one, and let the last one end."""
    killed = set[str]()

    async def works() -> bool:
        return any(run.state == "running" and run.run_id not in killed for run in await team.agent_runs())

    for _ in range(times):
        await team.dispatch(works)
        (agent,) = [run.run_id for run in await team.agent_runs() if run.state == "running"]
        team.of(agent).kill()
        killed.add(agent)
    await team.dispatch(team.has_ended)


@pytest.mark.virtual_time
async def test_an_agent_that_was_lost_begins_again_in_another_session() -> None:
    team = await a_team().begin()
    await kill_agents(team, 2)
    assert await team.results() == [("about boats", False)]
    assert sorted(run.state for run in await team.agent_runs()) == ["completed", "interrupted", "interrupted"]
    assert {run.parent for run in await team.agent_runs()} == {"go"}
    assert max(run.timeout_s or 0.0 for run in await team.agent_runs()) == 60.0


@pytest.mark.virtual_time
async def test_the_end_of_one_in_the_background_is_told_by_the_id_that_the_model_knows() -> None:
    again = agent_tool("researcher", engine="research", description="Finds out.", on_lost="restart", background=True)
    look: ScriptedAnswer = [Pause(9 * SLOW_S), ("dig", {})]
    script = [asks("boats"), look, "done", "noted"]
    team = await Team(script, tools=[again, DIG], on_lost="interrupt").begin()
    await kill_agents(team, 1)
    turns = await team.lead.ask("reads.turns")
    results = [block.text for turn in turns for block in turn.output if isinstance(block, ToolResult)]
    (started,) = [text for text in results if text.startswith("started")]
    texts = [block.text for turn in turns for block in (*turn.asked, *turn.output) if isinstance(block, User)]
    assert any(text.startswith(f"The agent {started.split()[1]} (") and "boats" in text for text in texts), texts


@pytest.mark.virtual_time
async def test_it_begins_again_as_often_as_its_tool_says() -> None:
    team = await a_team().begin()
    await kill_agents(team, 3)
    ((text, is_error),) = await team.results()
    assert is_error and "interrupted" in text and len(await team.agent_runs()) == 3


@pytest.mark.virtual_time
async def test_the_next_one_spends_what_is_left_and_all_counts() -> None:
    again = agent_tool("researcher", engine="digger", description="Digs.", on_lost="restart")
    digger = ScriptedEngine([*[[("dig", {})]] * 2, [Pause(SLOW_S), ("dig", {})], "found"], tools=[DIG])
    settings: dict[str, Any] = {"tools": [again], "engines": {"digger": digger}, "on_lost": "interrupt"}
    team = await Team([asks("boats"), "done"], run_budget=Budget(tool_calls=4), **settings).begin()

    async def digs() -> bool:
        return any(run.usage and run.usage.tool_calls == 2 for run in await team.agent_runs())

    await team.dispatch(digs)
    (lost,) = await team.agent_runs()
    team.of(lost.run_id).kill()
    await team.dispatch(team.has_ended)
    (result,) = await team.results()
    assert result[1] and "2 of 2 tool calls" in result[0]
    assert (await team.store.run("go")).agents_usage.tool_calls == 4


def test_a_lost_agent_begins_again_whatever_fails_or_dies() -> None:
    """A kill of the caller while it works ends its run as interrupted, and then its agents end too."""

    async def life(faults: Faults) -> None:
        team = await a_team(faults).begin()
        await kill_agents(team, 1)
        run = await team.store.run("go")
        assert run.state == "interrupted" or await team.results() == [("about boats", False)]
        assert len(await team.agent_runs()) <= 3
        for world in team.worlds.values():
            (await world.audit()).check()

    struck = exhaust(life, ["error", "unanswered"], **of_cases())
    assert all(struck[kind] >= 4 for kind in ("error", "unanswered")), struck


@pytest.mark.by_turns
def test_an_agent_that_any_fault_hits_begins_again() -> None:
    async def life(faults: Faults) -> None:
        team = await a_team(faults).begin()
        await team.dispatch(team.has_ended)
        run = await team.store.run("go")
        assert run.state == "interrupted" or await team.results() == [("about boats", False)]
        assert len(await team.agent_runs()) <= 2
        for world in team.worlds.values():
            (await world.audit()).check()

    struck = exhaust(life, **of_cases())
    assert all(struck[kind] >= 4 for kind in ("error", "unanswered", "crash", "fence", "kill")), struck
