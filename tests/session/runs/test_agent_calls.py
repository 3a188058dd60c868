"""Agents that a run's tools call: each call begins one run and gets one result, whatever fails or dies."""

from __future__ import annotations

import asyncio
import copy
import math
from contextlib import suppress
from typing import Any

import pytest

from scale import of_cases
from teams import KEY, PAY, RESEARCHER, SLOW_S, Team, asks, is_waiting
from turnwise.actors.session.state.journal import REVERTED
from turnwise.engines import agent_tool
from turnwise.errors import ConfigError, SessionFencedError, SessionInUseError, SessionRevertedError
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.deliveries.agent_calls import agent_id
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.stores.agents import agents_below, hand_back_results
from turnwise.testing.exhaust import exhaust
from turnwise.testing.faults import Faults
from turnwise.testing.scripted_engine import Pause, ScriptedEngine

CANCEL_S = 10.0
"""In which time a cancel reaches two levels, one fault included, in seconds."""

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.virtual_time
async def test_a_call_begins_a_run_in_a_session_of_its_own_and_gets_its_answer() -> None:
    team = await Team([asks("boats"), "done"]).begin()
    await team.dispatch(team.has_ended)
    assert await team.results() == [("about boats", False)]
    (run,) = await team.agent_runs()
    (call_id,) = (await team.store.run("go")).calls
    assert run.run_id == run.session_id == agent_id("go", call_id)
    assert (run.parent, run.timeout_s) == ("go", 60.0)
    session = await team.store.get(run.session_key)
    assert (session.agent, session.engine, session.memory) == ("researcher", "research", "read")
    assert (session.called_by, session.depth) == ("lead", 1)
    assert (await team.store.run("go")).state == "completed"


@pytest.mark.virtual_time
async def test_the_caller_waits_without_a_process() -> None:
    team = await Team([asks("boats"), "done"]).begin()
    await team.dispatch(lambda: is_waiting(team))
    assert await team.lead.ask("reads.pending", "go") == [], "nobody has to decide"
    assert not team.lead.core.ownership.has_runs
    team.lead.kill()
    await team.dispatch(team.has_ended)
    assert await team.results() == [("about boats", False)]


@pytest.mark.virtual_time
async def test_who_waits_for_a_decision_does_not_hear_of_a_call_of_an_agent() -> None:
    team = await Team([[("pay", {}), ("researcher", {"task": "boats"})], "done"], tools=[RESEARCHER, PAY]).begin()
    outcome = await team.lead.ask("reads.wait", "go", until="settled")
    assert [call.name for call in await team.lead.ask("reads.pending", "go")] == ["pay"]
    assert outcome.run.state == "awaiting_approval" and not outcome.run.awaits_agents
    (pending,) = await team.lead.ask("reads.pending", "go")
    await team.lead.decide("go", pending.call_id, ApprovalDecision(verdict="rejected"))
    settled = asyncio.create_task(team.lead.ask("reads.wait", "go", until="settled"))
    await asyncio.sleep(5.0)
    assert not settled.done() and (await team.store.run("go")).awaits_agents
    await team.dispatch(team.has_ended)
    assert (await settled).run.state == "completed"


@pytest.mark.virtual_time
async def test_agents_of_one_answer_work_at_once() -> None:
    team = await Team([asks("a", "b", "c"), "done"]).begin()
    before = asyncio.get_running_loop().time()
    await team.dispatch(team.has_ended)
    assert asyncio.get_running_loop().time() - before < 2.5 * SLOW_S
    assert await team.results() == [("about a", False), ("about b", False), ("about c", False)]


@pytest.mark.virtual_time
async def test_an_agent_that_fails_is_an_error_result() -> None:
    team = await Team([asks("fail"), "done"]).begin()
    await team.dispatch(team.has_ended)
    ((text, is_error),) = await team.results()
    assert is_error and "failed" in text and "no such thing" in text


@pytest.mark.virtual_time
async def test_an_agent_whose_engine_is_missing_is_an_error_result() -> None:
    nobody = agent_tool("researcher", engine="nobody", description="Finds things out.")
    team = await Team([asks("boats"), "done"], tools=[nobody]).begin()
    await team.dispatch(team.has_ended)
    ((text, is_error),) = await team.results()
    assert is_error and "'nobody'" in text and await team.agent_runs() == []


@pytest.mark.virtual_time
async def test_a_task_that_is_none_begins_no_run() -> None:
    team = await Team([asks(" "), "done"]).begin()
    await team.dispatch(team.has_ended)
    assert (await team.results())[0][1] and len(await team.store.query()) == 1


@pytest.mark.virtual_time
async def test_too_many_or_too_deep_calls_are_refused() -> None:
    few = agent_tool("researcher", engine="research", description="Finds things out.", max_calls=2)
    team = await Team([asks("a", "b", "c"), asks("d"), "done"], tools=[few]).begin()
    await team.dispatch(team.has_ended)
    assert [is_error for _, is_error in await team.results()] == [False, False, True, True]
    assert len(await team.agent_runs()) == 2
    again = agent_tool("researcher", engine="again", description="Calls another.", max_depth=2)
    deep = ScriptedEngine([asks("deeper"), "that is all"], tools=[again])
    team = await Team([asks("deep"), "done"], tools=[again], engines={"again": deep}).begin()
    await team.dispatch(team.has_ended)
    depths = [session.depth for session in await team.store.query()]
    assert sorted(depths) == [0, 1, 2] and await team.results() == [("that is all", False)]


@pytest.mark.virtual_time
async def test_a_cancel_reaches_all_agents_below() -> None:
    again = agent_tool("researcher", engine="again", description="Calls another.")
    below = agent_tool("researcher", engine="slow", description="Never answers.")
    engines = {
        "again": ScriptedEngine([asks("deeper"), "never"], tools=[below]),
        "slow": ScriptedEngine([[Pause(math.inf)]]),
    }
    team = await Team([asks("deep", "deep too"), "done"], tools=[again], engines=engines).begin()

    async def all_work() -> bool:
        return [run.state for run in await team.agent_runs()].count("running") == 2

    await team.dispatch(all_work)
    assert len(await team.agent_runs()) == 4
    await team.lead.cancel("go")
    team.lead.kill()
    await team.dispatch(team.has_ended)
    assert {run.state for run in await team.runs()} == {"cancelled"}


@pytest.mark.virtual_time
async def test_a_call_that_is_cancelled_before_its_agent_begins_begins_none() -> None:
    team = await Team([asks("boats"), "done"]).begin()
    while not await is_waiting(team):
        await asyncio.sleep(0.01)
    begin, *_ = await team.store.deliveries()
    await team.lead.cancel("go")
    deliveries = await team.store.deliveries()
    assert sorted(delivery.kind for delivery in deliveries) == ["cancel", "prompt"]
    await team.receive(begin)
    await team.dispatch(team.has_ended)
    assert await team.agent_runs() == []


@pytest.mark.virtual_time
async def test_a_cancel_of_an_agent_whose_run_a_restore_took_is_carried_out() -> None:
    team = await Team([asks("boats"), "done"], engines={"research": ScriptedEngine([[Pause(math.inf)]])}).begin()
    while not await is_waiting(team):
        await asyncio.sleep(0.01)
    begin, *_ = await team.store.deliveries()
    saved = copy.deepcopy(vars(team.store))
    await team.receive(begin)
    (agent,) = [run.run_id for run in await team.agent_runs()]
    vars(team.store).update(saved)
    with suppress(SessionRevertedError):
        await team.of(agent).core.admission.append(["the agent's process learns of the restore"], "key")
    assert await team.store.event_of_key(SessionKey(agent), REVERTED) is not None
    await team.lead.cancel("go")
    await team.dispatch(team.has_ended)
    assert await team.agent_runs() == []


@pytest.mark.virtual_time
async def test_a_call_that_was_decided_before_its_agent_begins_begins_none() -> None:
    """Its run is still open, as it waits for another agent."""
    team = await Team([asks("boats", "trains"), "done"]).begin()
    while not await is_waiting(team):
        await asyncio.sleep(0.01)
    call_id, *_ = (await team.store.run("go")).calls
    await team.lead.decide("go", call_id, ApprovalDecision(verdict="rejected", text="never mind"))
    await team.dispatch(team.has_ended)
    assert await team.results() == [("rejected: never mind", True), ("about trains", False)]
    assert len(await team.agent_runs()) == 1


async def test_a_result_for_which_nobody_waits_changes_nothing() -> None:
    team = await Team([asks("boats"), "done"]).begin()
    await team.dispatch(lambda: is_waiting(team))
    ((call_id, _),) = (await team.store.run("go")).calls.items()
    await team.lead.decide("go", call_id, ApprovalDecision(verdict="rejected", text="never mind"))
    await team.dispatch(team.has_ended)
    assert await team.results() == [("rejected: never mind", True)]


def test_the_settings_of_an_agent_are_checked() -> None:
    settings: tuple[dict[str, Any], ...] = ({"timeout_s": 0.0}, {"max_depth": 0}, {"max_calls": 0}, {"name": "a b"})
    for setting in settings:
        with pytest.raises(ConfigError):
            agent_tool(**{"name": "researcher", "description": "Finds things out.", **setting})


@pytest.mark.virtual_time
async def test_an_agent_that_is_deleted_before_it_begins_is_an_error_result() -> None:
    team = await Team([asks("boats"), "done"]).begin()
    while not await is_waiting(team):
        await asyncio.sleep(0.01)
    (agent,) = await agents_below(team.store, KEY)
    await team.delete(agent.session_id)
    await team.hand_over(team.has_ended)
    assert await team.results() == [("the agent's session was deleted", True)]
    assert (await team.store.run("go")).state == "completed" and len(await team.store.query()) == 1


@pytest.mark.virtual_time
async def test_an_agent_that_is_deleted_before_its_result_is_handed_over_is_an_error_result() -> None:
    team = await Team([asks("boats"), "done"]).begin()
    while not await is_waiting(team):
        await asyncio.sleep(0.01)
    (begin,) = await team.store.deliveries()
    await team.receive(begin)
    agent = begin.addressee
    with pytest.raises(SessionInUseError):
        await team.of(agent.session_id).ask("forgetting.delete", memory=False)
    await team.of(agent.session_id).wait(agent.session_id)
    await team.delete(agent.session_id)
    await team.hand_over(team.has_ended)
    assert await team.results() == [("the agent's session was deleted", True)]


@pytest.mark.virtual_time
async def test_a_result_is_given_although_the_delete_that_hands_it_back_fails() -> None:
    team = await Team([asks("boats"), "done"]).begin()
    while not await is_waiting(team):
        await asyncio.sleep(0.01)
    (begin,) = await team.store.deliveries()
    await team.receive(begin)
    agent = begin.addressee
    await team.of(agent.session_id).wait(agent.session_id)
    assert await hand_back_results(team.store, agent) is not None
    assert [delivery.session_id for delivery in await team.store.deliveries()] == [agent.session_id, "lead"]
    await team.hand_over(team.has_ended)
    assert await team.results() == [("about boats", False)]


@pytest.mark.by_turns
def test_a_caller_of_deleted_agents_goes_on_whatever_fails_or_dies() -> None:
    """One of them is deleted before it begins, the other one before its result is handed over."""

    async def life(faults: Faults) -> None:
        team = await Team([asks("a", "b"), "done"], faults).begin()
        while not await is_waiting(team):
            await team.lead.ask("transactor.activate")
            await asyncio.sleep(0.01)
        first, second = await team.store.deliveries()
        await team.receive(second)
        await team.of(second.run_id).wait(second.run_id)
        for begin in (first, second):
            await team.delete(begin.run_id)
        await team.hand_over(team.has_ended)
        assert await team.results() == [("the agent's session was deleted", True)] * 2
        assert [run.state for run in await team.runs()] == ["completed"]
        (await team.lead.audit()).check()

    struck = exhaust(life, **of_cases())
    assert all(struck[kind] >= 4 for kind in ("error", "unanswered", "crash", "fence", "kill")), struck


@pytest.mark.by_turns
def test_agents_are_called_once_whatever_fails_or_dies() -> None:
    """A commit that fails, one that is stored with its answer lost, a kill of any process at each step."""

    async def life(faults: Faults) -> None:
        team = await Team([asks("a", "b"), "done"], faults).begin()
        await team.dispatch(team.has_ended)
        assert await team.results() == [("about a", False), ("about b", False)]
        assert [run.state for run in await team.runs()] == ["completed"] * 3
        assert len(await team.store.query()) == 3
        for world in team.worlds.values():
            (await world.audit()).check()

    struck = exhaust(life, **of_cases())
    assert all(struck[kind] >= 4 for kind in ("error", "unanswered", "crash", "fence", "kill")), struck


@pytest.mark.virtual_time
async def test_agents_answer_though_nobody_reads_the_store_for_what_is_due() -> None:
    team = await Team([asks("a", "b"), asks("c"), "done"], hands_over=True).begin()
    await team.lead.wait("go")
    assert await team.results() == [("about a", False), ("about b", False), ("about c", False)]
    assert len(await team.agent_runs()) == 3 and await team.store.deliveries() == []


@pytest.mark.by_turns
def test_agents_are_called_once_though_each_delivery_is_handed_over_by_two() -> None:
    """By the process of its sender, and by a dispatcher, whatever fails or dies meanwhile."""

    async def life(faults: Faults) -> None:
        team = await Team([asks("a", "b"), "done"], faults, hands_over=True).begin()
        await team.dispatch(team.has_ended)
        await asyncio.wait(team.alarm.tasks, timeout=60.0)  # those of processes that were killed never end
        assert await team.results() == [("about a", False), ("about b", False)]
        assert [run.state for run in await team.runs()] == ["completed"] * 3
        assert len(await team.store.query()) == 3 and await team.store.deliveries() == []
        for world in team.worlds.values():
            (await world.audit()).check()

    struck = exhaust(life, **of_cases())
    assert all(struck[kind] >= 4 for kind in ("error", "unanswered", "crash", "fence", "kill")), struck


class SlowRead:
    """A store whose first read of a run takes until it is told to go on, and which says when that has begun."""

    def __init__(self, inner: Any) -> None:
        self.has_read, self.goes_on = asyncio.Event(), asyncio.Event()
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def run(self, *args: Any) -> Any:
        is_first, run = not self.has_read.is_set(), await self._inner.run(*args)
        self.has_read.set()
        if is_first:
            await self.goes_on.wait()
        return run


async def team_with_agent_that_is_about_to_begin() -> tuple[Team, Delivery]:
    slow = agent_tool("researcher", engine="slow", description="Never answers.")
    engines = {"slow": ScriptedEngine([[Pause(math.inf)]])}
    team = await Team([asks("a"), "done"], tools=[slow], engines=engines).begin()
    while not await is_waiting(team):
        await asyncio.sleep(0.01)
    (begin,) = await team.store.deliveries()
    await team.of(begin.run_id).ask("transactor.activate")
    return team, begin


@pytest.mark.virtual_time
async def test_a_cancel_that_comes_after_an_agent_has_looked_for_its_caller_ends_it() -> None:
    team, begin = await team_with_agent_that_is_about_to_begin()
    agent = team.of(begin.run_id)
    slow = agent.core.inbox._store = SlowRead(agent.store)  # noqa: SLF001 - to stop it between the read and the commit
    beginning = asyncio.create_task(agent.core.inbox.receive(begin))
    await slow.has_read.wait()
    await team.lead.cancel("go")
    cancel = next(delivery for delivery in await team.store.deliveries() if delivery.kind == "cancel")
    cancelling = asyncio.create_task(agent.core.inbox.receive(cancel))
    await asyncio.sleep(0.1)
    assert not cancelling.done(), "it waits for what may begin"
    slow.goes_on.set()
    await asyncio.gather(beginning, cancelling)
    assert [run.state for run in await team.runs()] == ["cancelled"] * 2
    await team.dispatch(team.has_ended)


@pytest.mark.virtual_time
async def test_a_cancel_that_comes_before_an_agent_looks_for_its_caller_keeps_it_from_beginning() -> None:
    team, begin = await team_with_agent_that_is_about_to_begin()
    agent = team.of(begin.run_id)
    async with agent.core.transactor.alone:  # a change is under way, for which the start of the run waits
        beginning = asyncio.create_task(team.receive(begin))
        await asyncio.sleep(0.1)
        await team.lead.cancel("go")
        cancel = next(delivery for delivery in await team.store.deliveries() if delivery.kind == "cancel")
        cancelling = asyncio.create_task(team.receive(cancel))
        await asyncio.sleep(0.1)
    await asyncio.gather(beginning, cancelling)
    assert await team.agent_runs() == [] and await team.store.deliveries() == []


@pytest.mark.virtual_time
async def test_an_agent_of_a_process_that_lost_its_session_does_not_begin_after_a_cancel() -> None:
    """The process that owns the session hears of the cancel before the other one has stored the run."""
    team, begin = await team_with_agent_that_is_about_to_begin()
    loser = team.of(begin.run_id)
    slow = loser.core.inbox._store = SlowRead(loser.store)  # noqa: SLF001 - to stop it between the read and the commit
    beginning = asyncio.create_task(loser.core.inbox.receive(begin))
    await slow.has_read.wait()
    await team.lead.cancel("go")
    del team.worlds[begin.run_id]
    await team.receive(next(delivery for delivery in await team.store.deliveries() if delivery.kind == "cancel"))
    slow.goes_on.set()
    with pytest.raises(SessionFencedError):
        await beginning
    await team.dispatch(team.has_ended)
    assert await team.agent_runs() == []


@pytest.mark.by_turns
def test_a_cancelled_team_ends_soon_whatever_fails_or_dies() -> None:
    above = agent_tool("researcher", engine="above", description="Calls another.")
    slow = agent_tool("researcher", engine="slow", description="Never answers.")

    async def life(faults: Faults) -> None:
        engines = {
            "above": ScriptedEngine([asks("deeper"), "never"], tools=[slow]),
            "slow": ScriptedEngine([[Pause(math.inf)]]),
        }
        team = await Team([asks("a"), "done"], faults, tools=[above], engines=engines).begin()

        async def works() -> bool:
            return len(await team.agent_runs()) == 2

        await team.dispatch(works)
        await team.lead.cancel("go")
        loop = asyncio.get_running_loop()
        cancelled_at = loop.time()
        await team.dispatch(team.has_ended)
        assert [run.state for run in await team.runs()] == ["cancelled"] * 3
        assert loop.time() - cancelled_at < CANCEL_S

    struck = exhaust(life, **of_cases())
    assert all(struck[kind] >= 4 for kind in ("error", "unanswered", "crash", "fence", "kill")), struck
