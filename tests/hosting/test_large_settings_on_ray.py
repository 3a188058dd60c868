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
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import end_actors

import large_settings
from engines import ScriptedEngine
from large_settings import RESUMED, Librarian, handbook, named_in, text_of
from test_agents_on_ray import until
from turnwise.actors.client.manager import AsyncSessionManager, SessionManager
from turnwise.actors.cluster import kept_settings
from turnwise.actors.cluster.kept_settings import ActorSettings, Kept, read_settings
from turnwise.actors.cluster.remote_memory import RemoteMemory
from turnwise.actors.hosting.engine_overrides import EngineOverride, drop_overrides, find_overrides, save_override
from turnwise.errors import SessionLostError
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
        end_actors(ray_session, namespace)


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
        turn = manager.execution(program["run_id"]).wait(BACK_S)
        assert turn.text == Librarian(text_of(megabytes, "engine"), "").answer, "the engine has all its settings again"
        assert manager.get(f"large-{placement}").run("And now?").wait(BACK_S).text == "later: And now?"


class Holder:
    """An actor with settings, as the real ones have."""

    def __init__(self, settings: bytes | Kept) -> None:
        self._settings = settings

    async def size(self) -> int:
        return len(await asyncio.to_thread(read_settings, self._settings))


@pytest.fixture
def kept(ray_session: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], set[str]]]:
    """Returns the keys of the settings that are kept; what nobody uses may go at once."""
    monkeypatch.setattr(kept_settings, "GRACE_S", -1.0)
    kept_settings.sweep_settings()
    before = {name.split("/")[1] for name in kept_settings._names("")}
    yield lambda: {name.split("/")[1] for name in kept_settings._names("")} - before
    end_actors(ray_session, "holders")


def large(word: str) -> ActorSettings:
    return ActorSettings(word.encode() * kept_settings.PART_BYTES)


def test_large_settings_stay_as_long_as_an_actor_has_them(
    kept: Callable[[], set[str]], ray_session: ModuleType
) -> None:
    shared = large("one")
    first, second = (shared.actor(Holder, name, "holders", max_restarts=-1) for name in ("a", "b"))
    assert ray_session.get([first.size.remote(), second.size.remote()]) == [3 * kept_settings.PART_BYTES] * 2
    (key,) = kept()
    ray_session.kill(first)
    large("two").keep()
    assert key in kept(), "another actor has them"
    ray_session.kill(second, no_restart=False)
    kept_settings.sweep_settings()
    assert kept() == {key}, "a restarted actor has them, and the others were never used"
    ray_session.kill(second)
    until(lambda: not named_in("holders"))
    kept_settings.sweep_settings()
    assert kept() == set()


def test_settings_that_change_again_and_again_do_not_pile_up(kept: Callable[[], set[str]]) -> None:
    for number in range(20):
        large(str(number % 10) + "x" * (number // 10)).keep()
        assert len(kept()) <= 2


def test_settings_that_were_asked_for_just_now_are_not_deleted(
    kept: Callable[[], set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_settings, "GRACE_S", 600.0)
    large("asked").keep()
    kept_settings.sweep_settings()
    assert len(kept()) == 1


def test_settings_that_are_asked_for_while_they_are_deleted_get_another_key(
    kept: Callable[[], set[str]], ray_session: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, made = large("raced"), list[Any]()
    settings.keep()
    delete = kept_settings._delete

    def delete_late(key: str, what: str, *, by_prefix: bool = False) -> None:
        if not made:  # at the last moment: it has been looked whether anybody uses them
            made.append(settings.actor(Holder, "late", "holders"))
        delete(key, what, by_prefix=by_prefix)

    monkeypatch.setattr(kept_settings, "_delete", delete_late)
    kept_settings.sweep_settings()
    assert ray_session.get(made[0].size.remote(), timeout=BACK_S) == 5 * kept_settings.PART_BYTES


def test_small_settings_are_in_the_record_of_their_actor(kept: Callable[[], set[str]]) -> None:
    settings = ActorSettings(b"x" * kept_settings.INLINE_BYTES)
    assert settings.keep() == b"x" * kept_settings.INLINE_BYTES and kept() == set()


def test_engines_that_sessions_switched_to_are_noted_once_and_as_long_as_needed(kept: Callable[[], set[str]]) -> None:
    async def save(session_id: str, override: EngineOverride, engines: dict[str, bytes]) -> None:
        await save_override("holders", "actor", session_id, override, engines)

    large = {name: name.encode() * kept_settings.PART_BYTES for name in ("0", "1")}
    asyncio.run(save("a", EngineOverride("0"), {"0": large["0"]}))
    asyncio.run(save("a", EngineOverride("1", {"run": "0"}), large))
    for number in range(3):
        asyncio.run(save("b", EngineOverride(f"other {number}"), {f"other {number}": b"other"}))
    kept_settings.sweep_settings()
    overrides, engines = find_overrides("holders", "actor")
    assert overrides == {"a": EngineOverride("1", {"run": "0"}), "b": EngineOverride("other 2")}
    assert engines == {**large, "other 2": b"other"} and len(kept()) == 3
    drop_overrides("holders", "actor", "a").result()
    assert find_overrides("holders", "actor") == ({"b": EngineOverride("other 2")}, {"other 2": b"other"})
    drop_overrides("holders", "actor").result()
    kept_settings.sweep_settings()
    assert (find_overrides("holders", "actor"), kept()) == (({}, {}), set())


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
    for name, seconds in (("REACH_S", 3.0), ("LOOK_S", 1.0)):
        monkeypatch.setattr(f"turnwise.actors.cluster.reach.{name}", seconds)
    monkeypatch.setattr("turnwise.actors.client.actor_lookup.SessionActor", actor_of(body))

    async def ask() -> str:
        url = f"sqlite:///{tmp_path}/chats.db"
        async with AsyncSessionManager(url, engine=ScriptedEngine(), namespace="large-dedicated") as manager:
            chat = await manager.open("never")
            with pytest.raises(SessionLostError) as lost:
                await chat.run("Hello")
            return str(lost.value)

    said = asyncio.run(asyncio.wait_for(ask(), BACK_S))
    assert "'never'" in said and cause in said and "turnwise/" in said


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

        @ends.remote(num_cpus=0, max_retries=0)
        def send() -> None:
            for number in range(20):
                request = pickle.dumps(("chat", "append", (f"{number}" * 1_000_000,), f"key {number}", ()))
                actor.call.remote(request)
            os.kill(os.getpid(), signal.SIGKILL)

        with pytest.raises(ends.exceptions.WorkerCrashedError):
            ends.get(send.remote(), timeout=BACK_S)
        assert chat.run("two").wait(BACK_S).text == "two"


def test_a_memory_comes_back_with_a_large_handbook_after_its_program_ended(ends: ModuleType, tmp_path: Path) -> None:
    play(ends, tmp_path, "packed", 0.2)
    name = RemoteMemory(handbook(), namespace="large-packed").actor_name
    actor = ends.get_actor(name, namespace="large-packed")
    request = pickle.dumps(("recall", (Scope(user_id="ada"), "rule 7"), {"limit": 3, "types": None, "as_of": None}))
    before = pickle.loads(ends.get(actor.call.remote(request), timeout=BACK_S))
    ends.kill(actor, no_restart=False)
    after = pickle.loads(ends.get(actor.call.remote(request), timeout=BACK_S))
    assert [item.text for item in after] == [item.text for item in before] != []
