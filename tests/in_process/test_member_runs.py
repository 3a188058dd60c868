"""What runs of members do beyond the session: agents, tools, reminders and calls that wait for decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from patience import within
from turnwise import EchoEngine, InProcess, LexicalMemory, Session, SessionManager
from turnwise.engines import EngineBuilder, ToolContext, agent_tool, schedule_tools, tool
from turnwise.errors import NotAllowedError, RunNotFoundError, SessionNotFoundError
from turnwise.testing.scripted_engine import ScriptedEngine

LONG_S = 30.0

until = within(LONG_S)


def shared(manager: SessionManager, **roles: Any) -> Session:
    chat = manager.open("plan", user_id="ann")
    for user_id, role in roles.items():
        chat.add_member(user_id, role)
    return chat


def as_member(manager: SessionManager, user_id: str) -> Session:
    return manager.get("plan", user_id="ann", as_user=user_id)


def test_an_agent_that_a_members_run_calls_asks_the_members_memory() -> None:
    above, below = (
        agent_tool(name, engine=name, description="Finds things out.", memory="read") for name in ("above", "below")
    )
    engines: dict[str, EngineBuilder] = {
        "lead": ScriptedEngine([[("above", {"task": "the boat"})], "done"], tools=[above]),
        "above": ScriptedEngine([[("below", {"task": "the secret boat"})], "found"], tools=[below]),
        "below": EchoEngine(),
    }
    memory = LexicalMemory("memory://member-agents")
    with SessionManager("memory://member-agents", engine=engines, placement=InProcess(), memory=[memory]) as manager:
        manager.open("own", user_id="ann").memory.save("The secret boat of Ann is blue.")
        chat = shared(manager, tom="member", rita="reader", rob="member")
        run = as_member(manager, "tom").run("go")
        assert run.wait(LONG_S).text == "done"
        (agent,) = run.children()
        (last,) = agent.children()
        assert (agent.info().author, last.info().author) == ("tom", "tom")
        assert not [event for event in last.events() if event.kind == "memory_recalled"], "Tom's has nothing"
        (seen,) = as_member(manager, "rita").execution(run.run_id).children()
        assert seen.wait(LONG_S).text == "found"
        of_rob = as_member(manager, "rob").execution(run.run_id)
        changes: list[Callable[[], object]] = [seen.cancel, lambda: seen.add_event("mine"), of_rob.cancel]
        for change in changes:
            with pytest.raises(NotAllowedError):
                change()
        with pytest.raises(NotAllowedError):
            as_member(manager, "rita").delete()
        assert manager.count(user_id="ann", agents=True) == 4, "no agent was deleted"
        chat.remove_member("rita")
        with pytest.raises(SessionNotFoundError):
            seen.info()
        with pytest.raises(RunNotFoundError):
            manager.execution(agent.run_id, user_id="ann", as_user="rita")


def test_a_tool_knows_for_whom_it_works() -> None:
    @tool
    def whoami(context: ToolContext) -> str:
        """Say for whom the tool works."""
        return f"{context.user_id} in the session of {context.session.user_id} with {sorted(context.session.members)}"

    engine = ScriptedEngine([[("whoami", {})], "done"], tools=[whoami])
    with SessionManager("memory://member-tools", engine=engine, placement=InProcess()) as manager:
        shared(manager, tom="member")
        turn = as_member(manager, "tom").run("who?").wait(LONG_S)
        (result,) = (block for block in turn.output if block.kind == "tool_result")
        assert result.text == "tom in the session of ann with ['tom']"


def test_a_member_decides_about_the_calls_of_the_own_runs_only() -> None:
    @tool(approval=True)
    def pay(euros: int) -> str:
        """Pay."""
        return f"paid {euros}"

    engine = ScriptedEngine([[("pay", {"euros": 75})], "done"] * 2, tools=[pay])
    with SessionManager("memory://member-decisions", engine=engine, placement=InProcess()) as manager:
        chat = shared(manager, tom="member", rob="member", rita="reader", olga="owner")
        run = as_member(manager, "tom").run("pay")
        run.wait(LONG_S, until="settled")
        (call,) = run.pending()
        for user_id in ("rob", "rita"):
            with pytest.raises(NotAllowedError):
                as_member(manager, user_id).execution(run.run_id).approve(call.call_id)
            assert as_member(manager, user_id).execution(run.run_id).pending() == [call]
        run.approve(call.call_id)
        assert run.wait(LONG_S).text == "done"
        other = chat.run("pay")
        other.wait(LONG_S, until="settled")
        (call,) = other.pending()
        with pytest.raises(NotAllowedError):
            as_member(manager, "tom").execution(other.run_id).reject(call.call_id)
        as_member(manager, "olga").execution(other.run_id).reject(call.call_id)
        assert other.wait(LONG_S).text == "done"


@pytest.mark.parametrize("leaves", [False, True])
def test_a_reminder_of_a_members_run_is_the_members_and_ends_with_the_membership(leaves: bool) -> None:
    call = ("set_reminder", {"text": "water the plants", "after_s": 1.0})
    engine = ScriptedEngine([[call], "done", "reminded"], tools=schedule_tools())
    with SessionManager(f"memory://member-reminders-{leaves}", engine=engine, placement=InProcess()) as manager:
        chat = shared(manager, tom="member")
        as_member(manager, "tom").run("remind me").wait(LONG_S)
        (reminder,) = chat.schedules()
        assert reminder.payload["author"] == "tom"
        if leaves:
            chat.remove_member("tom")
        until(lambda: not chat.schedules().items)
        until(lambda: not chat.info().active_run_id)
        assert [run.author for run in chat.runs()] == (["tom"] if leaves else ["tom", "tom"])
