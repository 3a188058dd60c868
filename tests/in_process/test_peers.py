"""Messages between sessions in the caller's process."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from turnwise import EchoEngine, InProcess, SessionManager
from turnwise.engines import EngineBuilder, agent_tool
from turnwise.errors import SessionEndedError, SessionNotFoundError
from turnwise.testing.scripted_engine import ScriptedEngine

LONG_S = 30.0

SETTINGS: dict[str, Any] = {"engine": EchoEngine(), "placement": InProcess()}


def eventually(holds: Callable[[], object]) -> None:
    """Wait until something holds, for `LONG_S` seconds at most."""
    until = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def texts(session: Any) -> list[str | None]:
    return [turn.text for turn in session.turns() if turn.status == "completed"]


def test_a_message_wakes_a_session_of_the_same_user() -> None:
    with SessionManager("memory://messages", **SETTINGS) as manager:
        ann, bob = (manager.open(name, user_id="ada") for name in ("ann", "bob"))
        message = ann.send("bob", "hello")
        eventually(lambda: texts(bob) == ["hello"])
        (run,) = bob.runs()
        assert (run.run_id, run.labels) == (message.run_id, {"from_session": "ann"})
        bob.send("bob", "a note to myself")
        eventually(lambda: texts(bob) == ["hello", "a note to myself"])
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
        (agent,) = (session for session in manager.list(user_id="ada") if session.called_by)
        assert (agent.called_by, agent.agent, agent.engine) == ("chat", "researcher", "research")
        (child,) = run.children()
        assert (child.session_id, child.wait(LONG_S).text) == (agent.session_id, "boats")
        assert not child.children() and child.info().parent == run.run_id
        assert not manager.schedules().items
