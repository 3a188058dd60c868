"""`manager.memory`: what memories keep for a user, reached without a session; and turns that a kill kept from them."""

from __future__ import annotations

import asyncio
import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patience import until
from turnwise import AsyncSessionManager, EchoEngine, InProcess, LexicalMemory, SessionManager, StaticMemory
from turnwise.actors.client.blocking import forgetting
from turnwise.errors import NoMemoryError, ReadOnlyMemoryError
from turnwise.testing.scripted_engine import Pause, ScriptedEngine

HANDBOOK = "Tea is served at four."


def made(tmp_path: Path, kind: type[Any] = SessionManager, **settings: Any) -> Any:
    options: dict[str, Any] = {"engine": EchoEngine(), "placement": InProcess()}
    options["memory"] = [StaticMemory([HANDBOOK]), LexicalMemory(f"{tmp_path}/said.db")]
    return kind(f"sqlite:///{tmp_path}/chats.db", **{**options, **settings})


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[SessionManager]:
    with made(tmp_path) as manager:
        yield manager


def test_what_is_saved_without_a_session_is_the_users_in_each(manager: SessionManager) -> None:
    memory = manager.memory(user_id="ann")
    boat = memory.save("Ann rows a boat.", type="facts", topic="sport")
    assert manager.count() == 0, "no session was made for it"
    assert [item.text for item in manager.open("a", user_id="ann").memory.list()] == ["Ann rows a boat."]
    assert "Ann rows a boat." in [item.text for item in memory.recall("boat")]
    assert not manager.memory(user_id="bo").list().items
    assert memory.update(boat, "Ann sails a boat.") and memory.pin(boat) and memory.unpin(boat)
    assert [mention.text for mention in memory.find_about("sails a boat").mentions] == ["Ann sails a boat."]
    assert memory.delete(boat).count == 1 and not memory.list().items


def test_an_agent_sees_its_own_items_and_the_semantic_ones(manager: SessionManager) -> None:
    manager.memory(user_id="ann", agent="hr").save("Greet Ann in Welsh.", type="instructions")
    manager.memory(user_id="ann", agent="it").save("Ann rows a boat.", type="facts")
    seen = {agent: {item.text for item in manager.memory(user_id="ann", agent=agent).list()} for agent in ("hr", "it")}
    assert seen == {"hr": {"Greet Ann in Welsh.", "Ann rows a boat."}, "it": {"Ann rows a boat."}}
    assert {item.text for item in manager.memory(user_id="ann").list()} == seen["it"]


def test_memory_alone_is_forgotten_and_conversations_stay(manager: SessionManager) -> None:
    for user in ("ann", "bo"):
        chat = manager.open("a", user_id=user)
        chat.run(f"The boat of {user} is blue.").wait()
        assert chat.memory.wait(10)
    manager.memory(user_id="ann", agent="hr").save("Greet Ann in Welsh.", type="instructions")
    done = manager.forget("ann", only_memory=True)
    assert done.items == {"LexicalMemory": 2} and done.verified and done.sessions == 0
    chat = manager.get("a", user_id="ann")
    assert not chat.memory.list().items and len(chat.turns()) == 1
    chat.run("And the sail?").wait()
    assert chat.memory.wait(10)
    assert not [item for item in chat.memory.list() if "blue" in item.text], "an earlier turn is not saved again"
    assert "blue" in manager.get("a", user_id="bo").memory.list().items[0].text
    assert manager.forget("ann", only_memory=True).verified, "it may be repeated"
    assert HANDBOOK in [item.text for item in chat.memory.recall("tea")]


def test_what_waits_to_be_saved_is_forgotten_too_and_what_is_under_way_is_named(tmp_path: Path) -> None:
    with made(tmp_path, engine=ScriptedEngine(["Yes.", [Pause(math.inf)]])) as manager:
        chat = manager.open("a", user_id="ann")
        chat.run("My boat is blue.").wait()
        done = manager.forget("ann", only_memory=True)
        assert (done.in_use, done.items) == ((), {"LexicalMemory": 1}), "the turn was saved first"
        run = chat.run("My sail is red.")
        assert manager.forget("ann", only_memory=True).in_use == ("a",)
        run.cancel()
        assert manager.forget("ann", only_memory=True).in_use == ()
        assert chat.memory.wait(10) and not chat.memory.list().items


def test_a_session_whose_turn_no_memory_has_taken_in_time_is_named(
    manager: SessionManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forgetting, "SAVE_S", 0.0)
    chat = manager.open("a", user_id="ann")
    chat.run("My boat is blue.").wait()
    assert manager.forget("ann", only_memory=True).in_use == ("a",)
    assert chat.memory.wait(10) and manager.forget("ann", only_memory=True).items == {"LexicalMemory": 1}


def test_a_manager_without_memories_says_so(tmp_path: Path) -> None:
    with made(tmp_path, memory=()) as manager:
        with pytest.raises(NoMemoryError, match="long-term memory"):
            manager.memory(user_id="ann").list()
        assert manager.forget("ann", only_memory=True).items == {}
    with made(tmp_path, memory=[StaticMemory([HANDBOOK])]) as manager, pytest.raises(ReadOnlyMemoryError):
        manager.memory(user_id="ann").save("Ann rows a boat.")


def test_both_families_have_it(tmp_path: Path) -> None:
    async def use() -> None:
        async with made(tmp_path, AsyncSessionManager) as manager:
            memory = await manager.memory(user_id="ann")
            await asyncio.gather(*(memory.save(f"Ann has boat {number}.") for number in range(5)))
            assert len((await memory.list()).items) == 5
            assert (await manager.forget("ann", only_memory=True)).items == {"LexicalMemory": 5}

    asyncio.run(use())


KILLED = """
import os, signal, sys
from turnwise import EchoEngine, InProcess, LexicalMemory, SessionManager
chats, said = sys.argv[1:]
with SessionManager(chats, engine=EchoEngine(), placement=InProcess(), memory=[LexicalMemory(said)]) as manager:
    chat = manager.open("a", user_id="ann")
    chat.run("My boat is blue.").wait()
    assert chat.memory.wait(10)
    chat.run("My sail is red.").wait()
    os.kill(os.getpid(), signal.SIGKILL)  # a turn is saved a moment after its run has ended
"""


def test_a_turn_that_a_kill_kept_from_memory_is_saved_by_the_next_program_by_itself(tmp_path: Path) -> None:
    chats, said = f"sqlite:///{tmp_path}/chats.db", f"{tmp_path}/said.db"
    killed = subprocess.run([sys.executable, "-c", KILLED, chats, said], check=False, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with made(tmp_path) as manager:
        memory = manager.memory(user_id="ann")
        until(lambda: any("sail" in item.text for item in memory.list()))
        assert len(memory.list()) == 2, "each turn once"
