"""Agents spend what their caller has left, of its budget and its time, and what they have spent counts as its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from scale import of_cases
from teams import SLOW_S, Team, asks, is_waiting
from turnwise.actors.session.engines.budget import Budget
from turnwise.engines import agent_tool, tool
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.ledger import LedgerQuery
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.conversation.views.steps import steps_of
from turnwise.memory.stores.base import SessionStore
from turnwise.testing.exhaust import exhaust
from turnwise.testing.faults import Faults
from turnwise.testing.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.usefixtures("quiet")


DIG = tool(lambda: "nothing", name="dig", description="Digs.", repeatable=True)

DIGGER = agent_tool("researcher", engine="digger", description="Digs.")


def a_digger(times: int) -> ScriptedEngine:
    """Return an engine that calls a tool so many times before it answers."""
    return ScriptedEngine([*[[("dig", {})]] * times, "found"], tools=[DIG])


def a_team(*tasks: str, digs: int = 1, faults: Faults | None = None, **settings: Any) -> Team:
    script = [asks(*tasks), "done"]
    return Team(script, faults, tools=[DIGGER], engines={"digger": a_digger(digs)}, **settings)


async def calls(team: Team) -> list[int]:
    """Return how often the model was called by the lead, then by its agents in the order of their calls."""
    return [run.usage.calls for run in await team.runs() if run.usage][::-1]


async def calls_of(store: SessionStore) -> int:
    """Return how many calls of models the ledger has."""
    (total,) = await store.ledger(LedgerQuery())
    return total.usage.calls


@pytest.mark.virtual_time
async def test_what_agents_have_spent_counts_as_their_callers() -> None:
    team = await a_team("a", "b").begin()
    await team.dispatch(team.has_ended)
    run, session = await team.store.run("go"), await team.store.get(team.lead.core.state.key)
    agents = sum((agent.usage for agent in await team.agent_runs() if agent.usage), Usage())
    assert (run.usage and run.usage.calls, run.agents_usage.calls, run.agents_usage.tool_calls) == (2, 4, 2)
    assert run.agents_usage.input_tokens == agents.input_tokens > 0
    assert session.agents_usage == run.agents_usage and session.usage == run.usage
    assert await calls_of(team.store) == 6, "each call counts once"


@pytest.mark.virtual_time
async def test_calls_of_agents_are_steps_of_their_caller() -> None:
    team = await a_team("a", "b").begin()
    await team.dispatch(team.has_ended)
    steps = [step for step in steps_of((await team.lead.ask("reads.events"))[0]) if step.kind == "tool"]
    assert [(step.name, step.is_error) for step in steps] == [("researcher", False)] * 2
    assert all(step.call_id and step.seconds and step.seconds > 0 for step in steps)


@pytest.mark.virtual_time
async def test_the_usage_of_agents_of_agents_counts_at_the_top() -> None:
    above = agent_tool("researcher", engine="above", description="Calls another.")
    engines = {"above": ScriptedEngine([asks("deep"), "found"], tools=[DIGGER]), "digger": a_digger(1)}
    team = await Team([asks("a"), "done"], tools=[above], engines=engines).begin()
    await team.dispatch(team.has_ended)
    assert (await team.store.run("go")).agents_usage.calls == 4
    assert await calls_of(team.store) == 6


@pytest.mark.virtual_time
async def test_agents_share_what_their_caller_has_left() -> None:
    team = await a_team("a", "b", digs=9, run_budget=Budget(calls=6)).begin()
    await team.dispatch(team.has_ended)
    assert sorted(await calls(team)) == [1, 2, 3]
    assert all(is_error and "had no more left" in text for text, is_error in await team.results())
    run = await team.store.run("go")
    assert (run.state, run.code, run.agents_usage.calls) == ("failed", "budget", 5)


@pytest.mark.virtual_time
async def test_an_agent_that_got_nothing_goes_on_when_a_person_allows_it() -> None:
    team = await a_team("a", run_budget=Budget(calls=1), over_budget="ask").begin()

    async def asks_for_more() -> bool:
        return any("budget" in call.call_id for call in await team.lead.ask("reads.pending", "go"))

    approved = 0
    while not await team.has_ended():
        await team.dispatch(lambda: either(asks_for_more, team.has_ended))
        for call in await team.lead.ask("reads.pending", "go"):
            run = await team.store.run("go")
            *above, name = call.call_id.split("/")
            owner = run.calls[above[0]]["agent"]["session"] if above else "lead"
            await team.of(owner).decide("go" if owner == "lead" else owner, name, ApprovalDecision(verdict="approved"))
            approved += 1
    assert (await team.store.run("go")).state == "completed" and await team.results() == [("found", False)]
    assert approved == 2 + 3, "two calls of the agent, which count as the lead's, and then the lead's second call"


async def either(*conditions: Callable[[], Awaitable[bool]]) -> bool:
    return any([await condition() for condition in conditions])


@pytest.mark.virtual_time
async def test_an_agent_without_a_share_of_tool_calls_may_answer_without_any() -> None:
    team = await a_team("a", "b", digs=0, run_budget=Budget(tool_calls=1)).begin()
    await team.dispatch(team.has_ended)
    assert await team.results() == [("found", False)] * 2


@pytest.mark.virtual_time
async def test_a_budget_bounds_all_agents_below_together() -> None:
    above = agent_tool("researcher", engine="above", description="Calls another.")
    engines = {"above": ScriptedEngine([asks("deep"), "found"], tools=[DIGGER]), "digger": a_digger(9)}
    team = await Team([asks("a"), "done"], tools=[above], engines=engines, run_budget=Budget(calls=5)).begin()
    await team.dispatch(team.has_ended)
    assert await calls_of(team.store) == 5


@pytest.mark.virtual_time
async def test_an_agent_of_which_nothing_is_known_counts_with_all_that_it_was_given() -> None:
    script = [asks("a"), asks("b"), "done"]
    settings: dict[str, Any] = {"engines": {"digger": a_digger(9)}, "run_budget": Budget(calls=6)}
    team = await Team(script, tools=[DIGGER], **settings).begin()
    await team.dispatch(lambda: is_waiting(team))
    (call_id,) = (await team.store.run("go")).calls
    await team.lead.decide("go", call_id, ApprovalDecision(verdict="rejected"))
    await team.dispatch(team.has_ended)
    second = (await team.agent_runs())[0]
    assert second.state == "failed" and second.usage and second.usage.calls == 0


@pytest.mark.virtual_time
async def test_the_budget_of_a_session_counts_the_agents_of_earlier_runs() -> None:
    team = await a_team("a", session_budget=Budget(calls=4)).begin()
    await team.dispatch(team.has_ended)
    assert (await team.store.run("go")).state == "completed"
    await team.lead.start("again")
    await team.dispatch(team.has_ended)
    assert (await team.store.run("again")).code == "budget"


@pytest.mark.virtual_time
async def test_the_time_of_a_caller_bounds_its_agents() -> None:
    team = await Team([asks("a"), asks("b"), "done"]).begin(timeout_s=1.5 * SLOW_S)
    await team.dispatch(team.has_ended)
    first, second = await team.results()
    assert first == ("about a", False) and second[1] and "failed" in second[0]
    times = sorted(run.timeout_s for run in await team.agent_runs() if run.timeout_s)
    assert times == pytest.approx([0.5 * SLOW_S, 1.5 * SLOW_S], abs=0.05)


@pytest.mark.virtual_time
async def test_agents_that_work_at_once_take_the_time_of_the_longest() -> None:
    team = await Team([asks("a", "b", "c"), "done"]).begin(timeout_s=1.5 * SLOW_S)
    await team.dispatch(team.has_ended)
    run = await team.store.run("go")
    assert run.state == "completed" and run.agents_usage.seconds == pytest.approx(SLOW_S, abs=0.05)


@pytest.mark.by_turns
def test_budgets_hold_whatever_fails_or_dies() -> None:
    async def life(faults: Faults) -> None:
        team = await a_team("a", "b", digs=9, faults=faults, run_budget=Budget(tool_calls=4)).begin()
        await team.dispatch(team.has_ended)
        run, session = await team.store.run("go"), await team.store.get(team.lead.core.state.key)
        agents = [agent.usage.tool_calls for agent in await team.agent_runs() if agent.usage]
        assert max(agents) <= 3, "two each, and one that was made again"
        assert run.agents_usage.tool_calls == sum(agents) == session.agents_usage.tool_calls
        (await team.lead.audit()).check()

    struck = exhaust(life, **of_cases())
    assert all(struck[kind] >= 4 for kind in ("error", "unanswered", "crash", "fence", "kill")), struck
