"""What an agent asks shows in the run that has called it, and is decided once, whatever fails or dies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from scale import of_cases
from teams import KEY, PAY, Team, asks
from turnwise.actors.session.engines.budget import Budget
from turnwise.engines import agent_tool, external_tool
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision, PendingCall
from turnwise.memory.conversation.events import ApprovalRequested, CallDecided
from turnwise.testing.exhaust import exhaust
from turnwise.testing.faults import Faults
from turnwise.testing.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.usefixtures("quiet")


PAYER = agent_tool("researcher", engine="payer", description="Pays.")

ABOVE = agent_tool("researcher", engine="above", description="Has others pay.")

APPROVED, REJECTED = ApprovalDecision(verdict="approved"), ApprovalDecision(verdict="rejected", text="too much")

ENGINES: dict[str, Any] = {
    "payer": ScriptedEngine([[("pay", {})], "it is paid"], tools=[PAY]),
    "above": ScriptedEngine([asks("boats"), "they have paid"], tools=[PAYER]),
}


def a_team(*tasks: str, faults: Faults | None = None, is_deep: bool = False, **settings: Any) -> Team:
    tool = ABOVE if is_deep else PAYER
    return Team([asks(*tasks), "done"], faults, tools=[tool], engines=ENGINES, **settings)


async def pending(team: Team) -> list[PendingCall]:
    calls: list[PendingCall] = await team.lead.ask("reads.pending", "go")
    return calls


async def asked(team: Team, count: int = 1) -> list[PendingCall]:
    """Return what waits at the top, once so many calls do, and nothing else is under way."""

    async def is_asked() -> bool:
        return len(await pending(team)) == count and not await team.store.deliveries()

    await team.dispatch(is_asked)
    return await pending(team)


async def decide(team: Team, path: str, decision: ApprovalDecision) -> None:
    """Decide as a client does: in the session of the agent that has asked."""
    run, names = await team.store.run("go"), path.split("/")
    for name in names[:-1]:
        run = await team.store.run((await team.store.run(run.calls[name]["agent"]["session"])).run_id)
    await team.of(run.session_id).decide(run.run_id, names[-1], decision)


async def events(team: Team, kind: type[ApprovalRequested | CallDecided]) -> list[Any]:
    return [event for event in await team.store.events(KEY) if isinstance(event, kind) and "/" in event.call_id]


@pytest.mark.virtual_time
@pytest.mark.parametrize("is_deep", [False, True], ids=["of an agent", "of an agent of an agent"])
async def test_a_question_shows_at_the_top_and_is_decided_there(is_deep: bool) -> None:
    team = await a_team("boats", is_deep=is_deep).begin()
    settled = asyncio.create_task(team.lead.ask("reads.wait", "go", until="settled"))
    (call,) = await asked(team)
    assert (call.name, call.wants, call.call_id.count("/")) == ("pay", "approval", 2 if is_deep else 1)
    assert (await settled).run.state == "awaiting_approval"
    (event,) = await events(team, ApprovalRequested)
    assert (event.call_id, event.name, event.wants, event.run_id) == (call.call_id, "pay", "approval", "go")
    team.lead.kill()
    assert await pending(team) == [call], "another process knows it, too"
    await decide(team, call.call_id, APPROVED)
    await team.dispatch(team.has_ended)
    assert await team.results() == [("they have paid" if is_deep else "it is paid", False)]
    (decided,) = await events(team, CallDecided)
    assert (decided.call_id, decided.verdict) == (call.call_id, "approved") and await pending(team) == []


@pytest.mark.virtual_time
async def test_the_run_is_not_settled_any_more_once_all_is_decided() -> None:
    team = await a_team("boats").begin()
    (call,) = await asked(team)
    assert not (await team.store.run("go")).awaits_agents
    await decide(team, call.call_id, REJECTED)
    (agent,) = await team.agent_runs()
    await team.lead.ask("inbox.hear", "go", agent.run_id)
    assert (await team.store.run("go")).awaits_agents or not (await team.store.run(agent.run_id)).is_open
    await team.dispatch(team.has_ended)
    assert await team.results() == [("it is paid", False)]


@pytest.mark.virtual_time
async def test_each_question_of_several_agents_is_asked_once() -> None:
    team = await a_team("a", "b", "c", is_deep=True).begin()
    calls = await asked(team, 3)
    assert len({call.call_id for call in calls}) == 3
    for call in calls:
        await decide(team, call.call_id, APPROVED)
    await team.dispatch(team.has_ended)
    assert len(await events(team, ApprovalRequested)) == len(await events(team, CallDecided)) == 3


@pytest.mark.virtual_time
async def test_a_result_from_outside_and_a_budget_are_asked_for_too() -> None:
    question = {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]}
    ask_her = external_tool("ask_her", "Asks her.", question)
    engines = {"payer": ScriptedEngine([[("ask_her", {"question": "how much?"})], "she says so"], tools=[ask_her])}
    budget: dict[str, Any] = {"run_budget": Budget(calls=3), "over_budget": "ask"}
    team = await Team([asks("boats"), "done"], tools=[PAYER], engines=engines, **budget).begin()
    (call,) = await asked(team)
    assert (call.wants, call.input) == ("result", {"question": "how much?"})
    await decide(team, call.call_id, ApprovalDecision(verdict="provided", text="all"))
    (call,) = await asked(team)
    assert (call.call_id, call.wants) == ("budget-1", "budget")
    await team.lead.decide("go", call.call_id, APPROVED)
    await team.dispatch(team.has_ended)
    assert await team.results() == [("she says so", False)]


@pytest.mark.virtual_time
async def test_a_question_whose_agent_ends_is_over() -> None:
    team = await a_team("boats").begin()
    (call,) = await asked(team)
    (agent,) = await team.agent_runs()
    await team.of(agent.session_id).cancel(agent.run_id)
    await team.dispatch(team.has_ended)
    (decided,) = await events(team, CallDecided)
    assert (decided.call_id, decided.verdict) == (call.call_id, "rejected")


@pytest.mark.virtual_time
async def test_an_earlier_state_of_an_agent_does_not_undo_a_later_one() -> None:
    team = await a_team("boats").begin()
    (call,) = await asked(team)
    agent_call, pay = call.call_id.split("/")
    heard = (await team.store.run("go")).calls[agent_call]["agent"]["heard"]
    note: Sequence[Any] = ("approvals.note_questions", "go", agent_call)
    await team.lead.ask(*note, {pay: "approved"}, heard + 2, [])
    await team.lead.ask(*note, {pay: None}, heard + 1, [call])
    assert (await team.store.run("go")).questions == {call.call_id: "approved"}


@pytest.mark.by_turns
def test_questions_are_decided_once_whatever_fails_or_dies() -> None:
    async def life(faults: Faults) -> None:
        team = await a_team("a", faults=faults, is_deep=True).begin()
        (call,) = await asked(team)
        await decide(team, call.call_id, APPROVED)
        await team.dispatch(team.has_ended)
        assert await team.results() == [("they have paid", False)]
        assert [event.call_id for event in await events(team, ApprovalRequested)] == [call.call_id]
        assert [event.verdict for event in await events(team, CallDecided)] == ["approved"]
        for world in team.worlds.values():
            (await world.audit()).check()

    struck = exhaust(life, **of_cases())
    assert all(struck[kind] >= 4 for kind in ("error", "unanswered", "crash", "fence", "kill")), struck
