"""Agents in the background: the caller goes on, and hears of each end once, in its active run or by a new one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scale import of_cases
from teams import SLOW_S, Team, asks
from turnwise.actors.session.engines.budget import Budget
from turnwise.engines import agent_tool, tool
from turnwise.memory.conversation.blocks import User
from turnwise.memory.stores.agents import agents_below
from turnwise.testing.exhaust import exhaust
from turnwise.testing.faults import Faults
from turnwise.testing.scripted_engine import Pause, ScriptedAnswer, ScriptedEngine

pytestmark = pytest.mark.usefixtures("quiet")


BEHIND = agent_tool("researcher", engine="research", description="Finds things out.", background=True)

LOOK = tool(lambda: "nothing yet", name="look", description="Looks.", repeatable=True)


def a_team(*script: ScriptedAnswer, faults: Faults | None = None, **settings: Any) -> Team:
    return Team(script, faults, tools=[BEHIND, LOOK], **settings)


async def messages(team: Team) -> list[str]:
    """Return what the lead was told, in the order of its conversation, without its first prompt."""
    latest = await team.lead.ask("reads.latest")
    return [block.text for block in latest.blocks if isinstance(block, User) and block.text != "go"]


async def ids(team: Team) -> list[str]:
    return sorted(session.session_id for session in await team.store.query() if session.called_by)


@pytest.mark.virtual_time
async def test_the_result_is_at_once_and_the_end_begins_the_next_turn() -> None:
    team = await a_team(asks("boats"), "it is on its way", "so boats it is").begin()
    assert await team.lead.wait("go") == "completed"
    (agent,) = await ids(team)
    assert await team.results() == [(f"started {agent}", False)]
    await team.dispatch(team.has_ended)
    assert await messages(team) == [f"The agent {agent} (researcher) has answered:\n\nabout boats"]
    message_run = await team.store.run(f"{agent}-end")
    assert (message_run.state, message_run.labels) == ("completed", {"from_session": agent})


@pytest.mark.virtual_time
async def test_the_end_goes_into_the_active_run() -> None:
    look: ScriptedAnswer = [Pause(3 * SLOW_S), ("look", {})]
    team = await a_team(asks("boats"), look, "so boats it is").begin()
    await team.dispatch(team.has_ended)
    (agent,) = await ids(team)
    assert len(await messages(team)) == 1
    run, message_run = await team.store.run("go"), await team.store.run(f"{agent}-end")
    assert run.state == "completed" and (message_run.code, message_run.successor) == ("merged", "go")


@pytest.mark.virtual_time
async def test_a_run_that_completes_leaves_its_agents_at_work_and_one_that_is_cancelled_ends_them() -> None:
    never = agent_tool("researcher", engine="never", description="Never answers.", background=True)
    engines = {"never": ScriptedEngine([[Pause(math.inf)]])}

    async def works() -> bool:
        return [run.state for run in await team.agent_runs()] == ["running"]

    team = await Team([asks("boats"), "it is on its way"], tools=[never], engines=engines).begin()
    assert await team.lead.wait("go") == "completed"
    await team.dispatch(works)
    team = await Team([asks("boats"), [Pause(math.inf)]], tools=[never], engines=engines).begin()
    await team.dispatch(works)
    await team.lead.cancel("go")
    await team.dispatch(team.has_ended)
    assert {run.state for run in await team.runs()} == {"cancelled"} and len(await team.runs()) == 2


@pytest.mark.virtual_time
async def test_the_end_of_one_that_fails_or_is_deleted_is_told_too() -> None:
    team = await a_team(asks("fail", "boats"), "they are on their way", "oh", "no").begin()
    await team.lead.wait("go")
    fails, deleted = await team.store.deliveries()
    await team.receive(fails)
    await team.delete(deleted.run_id)
    await team.hand_over(team.has_ended)
    failed, gone = sorted(await messages(team), key=lambda text: "deleted" in text)
    assert "has given no answer" in failed and "no such thing" in failed
    assert gone.endswith("the agent's session was deleted")
    assert [key.session_id for key in await agents_below(team.store, team.lead.core.state.key)] == [fails.run_id]


@pytest.mark.virtual_time
async def test_the_caller_keeps_a_share_of_its_budget_and_gets_back_what_was_not_spent() -> None:
    look: ScriptedAnswer = [Pause(3 * SLOW_S), ("look", {})]
    team = await a_team(asks("boats"), look, "done", run_budget=Budget(calls=5)).begin()
    await team.dispatch(team.has_ended)
    run = await team.store.run("go")
    (call,) = [call for call in run.calls.values() if call.get("agent")]
    assert call["agent"]["budget"] == {"calls": 2} and "usage" in call["agent"]
    assert (await team.store.get(run.session_key)).agents_usage == run.agents_usage


@pytest.mark.by_turns
def test_each_end_is_told_once_whatever_fails_or_dies() -> None:
    async def life(faults: Faults) -> None:
        look: ScriptedAnswer = [Pause(SLOW_S / 2), ("look", {})]
        team = await a_team(asks("a", "b"), look, *["noted"] * 3, faults=faults).begin()
        await team.dispatch(team.has_ended)
        ends = [text.rpartition("\n")[2] for text in await messages(team)]
        assert sorted(ends) == ["about a", "about b"]
        assert {run.state for run in await team.agent_runs()} == {"completed"}
        assert (await team.store.run("go")).state == "completed"
        for world in team.worlds.values():
            (await world.audit()).check()

    struck = exhaust(life, **of_cases())
    assert all(struck[kind] >= 4 for kind in ("error", "unanswered", "crash", "fence", "kill")), struck
