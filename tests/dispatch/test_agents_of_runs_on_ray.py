"""Agents that a run calls on Ray: each answers once, whichever process is killed meanwhile."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from types import ModuleType
from typing import Any

from patience import within
from scale import ONE_PLACEMENT
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.cluster.actor_names import actor_name, dispatcher_name, find_actor
from turnwise.actors.hosting.placement import Dedicated, Placement
from turnwise.actors.hosting.store_spec import store_id_of
from turnwise.actors.session.config import SessionConfig
from turnwise.engines import FunctionEngine, agent_tool, tool
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.turns import Turn
from turnwise.testing.scripted_engine import ScriptedEngine

MakeManager = Callable[..., SessionManager]

WAIT_S = 60.0

until = within(WAIT_S)

SLOW_S = 3.0


async def find_out(turn: Turn) -> AsyncIterator[str]:
    """Answer with the task after a while."""
    import asyncio

    await asyncio.sleep(SLOW_S)
    (task,) = (block.text for block in turn.asked if block.kind == "user")
    yield f"about {task}"


def a_team(make_ray_manager: MakeManager, placement: Placement) -> SessionManager:
    researcher = agent_tool("researcher", engine="research", description="Finds things out.")
    lead = ScriptedEngine([[("researcher", {"task": "a"}), ("researcher", {"task": "b"})], "done"], tools=[researcher])
    config = SessionConfig(idle_s=0.2, on_lost="resume", max_resumes=9)
    return make_ray_manager(
        placement=placement, config=config, engine={"lead": lead, "research": FunctionEngine(find_out)}
    )


@ONE_PLACEMENT
def test_agents_answer_while_the_caller_has_no_process(make_ray_manager: MakeManager, placement: Placement) -> None:
    turn = a_team(make_ray_manager, placement).open("chat").run("go").wait(WAIT_S)
    assert turn.text == "done"
    assert [block.text for block in turn.output if block.kind == "tool_result"] == ["about a", "about b"]


@ONE_PLACEMENT
def test_agents_ask_at_the_top_and_are_deleted_with_their_caller(
    make_ray_manager: MakeManager, placement: Placement
) -> None:
    pay = tool(lambda: "paid", name="pay", description="Pays.", approval=True)
    payer = agent_tool("payer", engine="payer", description="Pays.")
    behind = agent_tool("behind", engine="research", description="Finds things out.", background=True)
    engines = {
        "lead": ScriptedEngine(
            [[("payer", {"task": "boats"}), ("behind", {"task": "sails"})], "done", "so sails it is"],
            tools=[payer, behind],
        ),
        "payer": ScriptedEngine([[("pay", {})], "it is paid"], tools=[pay]),
        "research": FunctionEngine(find_out),
    }
    manager = make_ray_manager(placement=placement, config=SessionConfig(idle_s=0.2), engine=engines)
    chat = manager.open("chat")
    run = chat.run("go")
    assert run.wait(WAIT_S, until="settled").status == "running"
    (call,) = run.pending()
    assert call.name == "pay" and "/" in call.call_id
    run.approve(call.call_id)
    assert "it is paid" in [block.text for block in run.wait(WAIT_S).output if block.kind == "tool_result"]
    until(lambda: "about sails" in str([block for turn in chat.turns() for block in turn.blocks]))
    until(lambda: not manager.schedules().items and chat.info().active_run_id is None)
    assert (manager.count(), manager.count(agents=True)) == (1, 3)
    assert chat.delete().sessions == 3 and manager.count(agents=True) == 0


def test_agents_answer_once_whoever_is_killed(
    make_ray_manager: MakeManager, namespace: str, ray_session: ModuleType, tmp_path: Any
) -> None:
    manager = a_team(make_ray_manager, Dedicated())
    run = manager.open("chat").run("go")
    store_id = store_id_of(namespace, f"sqlite:///{tmp_path}/chats.db")

    def agents() -> list[str]:
        return [session.session_id for session in manager.list(agents=True) if session.called_by]

    def kill(name: str) -> None:
        if actor := find_actor(namespace, name):
            ray_session.kill(actor, no_restart=False)

    until(lambda: len(agents()) == 2)
    until(lambda: all(manager.get(name).runs() for name in agents()))
    for name in (dispatcher_name(store_id), *(actor_name(store_id, SessionKey(one)) for one in (agents()[0], "chat"))):
        kill(name)
        time.sleep(0.5)
    turn = run.wait(WAIT_S)
    assert turn.text == "done"
    assert [block.text for block in turn.output if block.kind == "tool_result"] == ["about a", "about b"]
    assert [len(manager.get(name).runs()) for name in agents()] == [1, 1] and not manager.schedules().items
