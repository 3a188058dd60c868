"""Messages between sessions in the caller's process."""

import math
import time
from pathlib import Path
from typing import Any

import pytest

from patience import within
from turnwise import EchoEngine, InProcess, SessionManager
from turnwise.engines import EngineBuilder, agent_tool, tool
from turnwise.errors import (
    CallDecidedError,
    CallNotFoundError,
    RunCancelledError,
    SessionEndedError,
    SessionInUseError,
    SessionNotFoundError,
)
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.testing.scripted_engine import Pause, ScriptedEngine

LONG_S = 30.0

until = within(LONG_S)

SETTINGS: dict[str, Any] = {"engine": EchoEngine(), "placement": InProcess()}


def texts(session: Any) -> list[str | None]:
    return [turn.text for turn in session.turns() if turn.status == "completed"]


def test_a_message_wakes_a_session_of_the_same_user() -> None:
    with SessionManager("memory://messages", **SETTINGS) as manager:
        ann, bob = (manager.open(name, user_id="ada") for name in ("ann", "bob"))
        message = ann.send("bob", "hello")
        until(lambda: texts(bob) == ["hello"])
        (run,) = bob.runs()
        assert (run.run_id, run.labels) == (message.run_id, {"from_session": "ann"})
        bob.send("bob", "a note to myself")
        until(lambda: texts(bob) == ["hello", "a note to myself"])
        assert not texts(ann) and not manager.schedules().items


def test_a_message_reaches_no_session_of_another_user() -> None:
    with SessionManager("memory://users", **SETTINGS) as manager:
        ann = manager.open("ann", user_id="ada")
        manager.open("bob", user_id="eve")
        with pytest.raises(SessionNotFoundError, match="'bob'"):
            ann.send("bob", "hello")
        manager.open("bob", user_id="ada").end()
        with pytest.raises(SessionEndedError, match="'bob'"):
            ann.send("bob", "hello")
        assert not ann.schedules().items


def test_an_agent_is_called_and_answers() -> None:
    researcher = agent_tool("researcher", engine="research", description="Finds things out.")
    engines: dict[str, EngineBuilder] = {
        "lead": ScriptedEngine([[("researcher", {"task": "boats"})], "done"], tools=[researcher]),
        "research": EchoEngine(),
    }
    with SessionManager("memory://agents", engine=engines, placement=InProcess()) as manager:
        chat = manager.open("chat", user_id="ada")
        run = chat.run("go")
        turn = run.wait(LONG_S)
        (result,) = (block for block in turn.output if block.kind == "tool_result")
        assert (turn.text, result.text) == ("done", "boats")
        assert [session.session_id for session in manager.list(user_id="ada")] == ["chat"]
        agent, caller = manager.list(user_id="ada", agents=True)
        assert caller.session_id == "chat" and (manager.count(), manager.count(agents=True)) == (1, 2)
        assert (agent.called_by, agent.agent, agent.engine) == ("chat", "researcher", "research")
        (child,) = run.children()
        assert (child.session_id, child.wait(LONG_S).text) == (agent.session_id, "boats")
        assert not child.children() and child.info().parent == run.run_id
        assert not manager.schedules().items


def a_team(name: str, **settings: Any) -> SessionManager:
    """Return the manager of a lead that calls an agent, which calls another one."""
    above, below = (agent_tool(agent, engine=agent, description="Finds things out.") for agent in ("above", "below"))
    engines: dict[str, EngineBuilder] = {
        "lead": ScriptedEngine([[("above", {"task": "boats"})], "done"], tools=[above]),
        "above": ScriptedEngine([[("below", {"task": "sails"})], "found"], tools=[below]),
        "below": EchoEngine(),
    }
    return SessionManager(name, engine=engines, placement=InProcess(), **settings)


@pytest.mark.parametrize("memory", [True, False], ids=["with memories", "alone"])
def test_agents_are_deleted_with_their_caller(memory: bool) -> None:
    with a_team(
        f"memory://team-deleted-{memory}", memory=[LexicalMemory(f"memory://team-deleted-{memory}")]
    ) as manager:
        chat = manager.open("chat", user_id="ada")
        chat.run("go").wait(LONG_S)
        manager.open("other", user_id="ada")
        assert manager.count(agents=True) == 4
        assert chat.delete(memory=memory).sessions == 3
        assert [session.session_id for session in manager.list(agents=True)] == ["other"]


def test_a_delete_of_a_busy_caller_deletes_no_agent() -> None:
    with a_team("memory://team-busy") as manager:
        chat = manager.open("chat")
        chat.run("go").wait(LONG_S)
        chat.run("later", if_busy="debounce", debounce_s=LONG_S)
        with pytest.raises(SessionInUseError):
            chat.delete()
        assert manager.count(agents=True) == 3


def test_a_user_is_forgotten_with_agents_at_work() -> None:
    caller = agent_tool("above", engine="above", description="Never answers.")
    engines: dict[str, EngineBuilder] = {
        "lead": ScriptedEngine([[("above", {"task": "boats"})], "done"], tools=[caller]),
        "above": ScriptedEngine([[Pause(math.inf)]]),
    }
    with SessionManager("memory://team-forgotten", engine=engines, placement=InProcess()) as manager:
        run = manager.open("chat", user_id="ada").run("go")
        until(lambda: manager.runs(state="running", agent="above").items)
        assert manager.forget("ada").sessions == 2
        assert not manager.list(agents=True).items and not manager.schedules().items
        with pytest.raises((RunCancelledError, SessionNotFoundError)):
            run.wait(LONG_S)


def test_a_sweep_archives_and_deletes_agents_with_their_caller(tmp_path: Path) -> None:
    with a_team("memory://team-swept") as manager:
        manager.open("chat", ttl_s=0.01).run("go").wait(LONG_S)
        time.sleep(0.02)
        swept = manager.sweep(tmp_path)
        assert [len(keys) for keys in (swept.deleted, swept.archived, list(tmp_path.iterdir()))] == [3, 3, 3]
        assert not manager.list(agents=True).items


def test_a_fork_of_an_agent_is_nobodys_agent() -> None:
    with a_team("memory://team-copied") as manager:
        run = manager.open("chat").run("go")
        run.wait(LONG_S)
        (child,) = run.children()
        agent = manager.get(child.session_id)
        agent.fork(session_id="fork")
        manager.open("chat").fork(session_id="another chat")
        assert [session.session_id for session in manager.list()] == ["another chat", "fork", "chat"]


def test_what_agents_ask_is_decided_at_the_top() -> None:
    def pay_bill(euros: int) -> str:
        return f"paid {euros}"

    pay = tool(pay_bill, name="pay", description="Pays.", approval=True)
    above, below = (agent_tool(agent, engine=agent, description="Has it paid.") for agent in ("above", "below"))
    engines: dict[str, EngineBuilder] = {
        "lead": ScriptedEngine([[("above", {"task": "boats"})], "done"], tools=[above]),
        "above": ScriptedEngine([[("below", {"task": "sails"}), ("pay", {"euros": 1})], "found"], tools=[below, pay]),
        "below": ScriptedEngine([[("pay", {"euros": 2}), ("pay", {"euros": 3})], "sails"], tools=[pay]),
    }
    with SessionManager("memory://team-asked", engine=engines, placement=InProcess()) as manager:
        run = manager.open("chat", user_id="ada").run("go")
        decided = set[str]()
        while (turn := run.wait(LONG_S, until="settled")).status == "running":
            for call in run.pending():
                assert call.name == "pay" and call.call_id not in decided
                decided.add(call.call_id)
                if call.input["euros"] == 2:
                    run.reject(call.call_id, "too much")
                    with pytest.raises(CallDecidedError):
                        run.approve(call.call_id)
                else:
                    run.approve(call.call_id)
        assert sorted(path.count("/") for path in decided) == [1, 2, 2] and turn.text == "done"
        with pytest.raises(CallNotFoundError):
            run.approve(f"{next(iter(decided))}-none")
