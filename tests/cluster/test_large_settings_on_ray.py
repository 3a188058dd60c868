"""Processes that are killed come back with large settings, though the program that made them has ended."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engines import ScriptedEngine, process_of
from patience import until
from processes import large_settings
from processes.large_settings import RESUMED, Deadly, Librarian, end_all, handbook, text_of
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.blocking.session import Session
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.cluster.actors.loading import FREE_STARTS
from turnwise.actors.cluster.actors.memory_actor import MemoryActorProcess
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.wire import SessionRef
from turnwise.actors.wire_version import packed
from turnwise.errors import SessionLostError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.longterm.base import Scope

BACK_S = 100.0
"""How long a process may take to come back on a busy machine, in seconds."""


def play(ray: ModuleType, folder: Path, placement: str, megabytes: float) -> dict[str, Any]:
    """Run the program to its end; return what it prints."""
    address = ray.get_runtime_context().gcs_address
    arguments = [address, f"sqlite:///{folder}/chats.db", f"large-{placement}", str(folder), placement, str(megabytes)]
    ended = subprocess.run(
        [sys.executable, large_settings.__file__, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        timeout=200,
        check=True,
    )
    printed: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return printed


@pytest.fixture
def ends(ray_session: ModuleType) -> Iterator[ModuleType]:
    yield ray_session
    for namespace in ("large-dedicated", "large-packed"):
        end_all(namespace)


@pytest.mark.parametrize(("placement", "megabytes"), [("dedicated", 20.0), ("packed", 20.0)])
def test_a_session_comes_back_with_large_settings_after_its_program_ended(
    ends: ModuleType, tmp_path: Path, placement: str, megabytes: float
) -> None:
    program = play(ends, tmp_path, placement, megabytes)
    os.kill(program["pid"], signal.SIGKILL)
    (tmp_path / "gate").touch()
    with SessionManager(
        f"sqlite:///{tmp_path}/chats.db",
        engine=ScriptedEngine("later: "),
        namespace=f"large-{placement}",
        placement=large_settings.PLACEMENTS[placement],
        config=RESUMED,
    ) as manager:
        turn = manager.execution(program["run_id"], user_id="ada").wait(BACK_S)
        assert turn.text == Librarian(text_of(megabytes, "engine"), "").answer, "the engine has all its settings again"
        assert manager.get(f"large-{placement}", user_id="ada").run("And now?").wait(BACK_S).text == "later: And now?"


class Unready:
    """An actor whose constructor fails."""

    _title = "unready"

    def __init__(self) -> None:
        raise OSError("no such device")

    async def call(self, request: bytes) -> bytes:
        return request


class Unstarted:
    """An actor that is never ready."""

    def __init__(self) -> None:
        threading.Event().wait()

    async def call(self, request: bytes) -> bytes:
        return request


@pytest.mark.parametrize(("body", "cause"), [(Unready, "no such device"), (Unstarted, "PENDING_CREATION")])
def test_a_process_that_cannot_start_is_an_error_in_time(
    ends: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: type, cause: str
) -> None:
    monkeypatch.setattr("turnwise.actors.hosting.reach.LOOK_S", 1.0)
    if body is Unstarted:
        monkeypatch.setattr("turnwise.actors.hosting.reach.REACH_S", 3.0)
    monkeypatch.setattr("turnwise.actors.cluster.actor_lookup.SessionActor", actor_of(body))

    async def ask() -> str:
        url = f"sqlite:///{tmp_path}/chats.db"
        async with AsyncSessionManager(url, engine=ScriptedEngine(), namespace="large-dedicated") as manager:
            chat = await manager.open("never")
            with pytest.raises(SessionLostError) as caught:
                await chat.run("Hello")
            return str(caught.value)

    message = asyncio.run(asyncio.wait_for(ask(), BACK_S))
    assert "'never'" in message and cause in message and "turnwise/" in message


@pytest.mark.parametrize("placement", ["dedicated", "packed"])
def test_an_engine_of_which_each_process_dies_is_an_error_in_time_and_not_tried_for_ever(
    ends: ModuleType, tmp_path: Path, placement: str
) -> None:
    with SessionManager(
        f"sqlite:///{tmp_path}/chats.db",
        engine=Deadly(str(tmp_path)),
        namespace=f"large-{placement}",
        placement=large_settings.PLACEMENTS[placement],
    ) as manager:
        chat = manager.open("chat")
        chat.run("Hello").wait(BACK_S)
        pid = process_of(chat.info())
        deadly = tmp_path / "deadly"
        deadly.touch()
        os.kill(pid, signal.SIGKILL)
        message = refusal(chat)
        assert "'chat'" in message and "turnwise/" in message
        until(lambda: "processes of it in a row have died" in refusal(chat), BACK_S)
        assert len(deadly.read_text(encoding="utf-8").splitlines()) <= FREE_STARTS + 2
        deadly.unlink()
        until(lambda: not refusal(chat), BACK_S)


def refusal(chat: Session) -> str:
    """Run a prompt; return the error if the session's process cannot be reached, else nothing."""
    try:
        chat.run("And now?").wait(BACK_S)
    except SessionLostError as error:
        return str(error)
    return ""


def actor_of(body: type) -> type:
    """Return a class that is made as a session's actor is, and is otherwise that one."""

    class Actor(body):  # type: ignore[misc]
        def __init__(self, *_: Any) -> None:
            super().__init__()

    return Actor


def test_a_large_request_whose_caller_dies_keeps_nobody_waiting(ends: ModuleType, tmp_path: Path) -> None:
    """The caller is killed as soon as it has sent; its request is an object of its own."""
    url = f"sqlite:///{tmp_path}/chats.db"
    with SessionManager(url, engine=ScriptedEngine(), namespace="large-dedicated") as manager:
        chat = manager.open("chat")
        assert chat.run("one").wait(BACK_S).text == "one"
        actor = chat.actor

        def send() -> None:
            for number in range(20):
                append = verbs.append((f"{number}" * 1_000_000,), f"key {number}", ())
                actor.call.remote(append.to(SessionRef(SessionKey("chat"))).pickled())
            os.kill(os.getpid(), signal.SIGKILL)

        with pytest.raises(ends.exceptions.WorkerCrashedError):
            ends.get(ends.remote(num_cpus=0, max_retries=0)(send).remote(), timeout=BACK_S)
        assert chat.run("two").wait(BACK_S).text == "two"


def test_a_memory_comes_back_with_a_large_handbook_after_its_program_ended(ends: ModuleType, tmp_path: Path) -> None:
    play(ends, tmp_path, "packed", 0.2)
    name = MemoryActorProcess(handbook(), "large-packed").actor_name
    actor = ends.get_actor(name, namespace="large-packed")
    request = packed(("recall", {"scope": Scope(user_id="ada"), "query": "rule 7", "limit": 3}, None))
    before, _ = pickle.loads(ends.get(actor.call.remote(request), timeout=BACK_S))
    ends.kill(actor, no_restart=False)
    after, _ = pickle.loads(ends.get(actor.call.remote(request), timeout=BACK_S))
    assert [item.text for item in after] == [item.text for item in before] != []
