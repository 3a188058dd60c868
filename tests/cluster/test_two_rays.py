"""Two Rays on one store: the second gets an error or a warning, and reads without disturbing the first.

Run as a program it is the second Ray: `python test_two_rays.py URL...` prints what it found in each as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engines import ScriptedEngine
from stored.open_stores import run_with
from turnwise.actors.client.blocking.execution import ExecutionHandle
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.cluster.actor_names import actor_name, find_actor
from turnwise.actors.hosting.store_spec import store_id_of
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import ConfigError, ReadOnlyStoreError, SessionNotFoundError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.stores.urls import open_store

MakeManager = Callable[..., SessionManager]

WAIT_S = 60.0


def reading(manager: SessionManager) -> dict[str, Any]:
    """Ask a session for all that can be read of it."""
    chat = manager.open("chat")
    (record,) = chat.runs()
    run = chat.execution(record.run_id)
    latest = chat.latest()
    return {
        "latest": latest.index if latest else None,
        "turns": [turn.index for turn in chat.turns()],
        "turn": chat.turn(0).index,
        "states": [record.state, run.status(), run.info().state],
        "running": run.is_running(),
        "info": chat.info().active_run_id,
        "events": [event.kind for event in chat.events()][:2],
        "steps": len(run.steps()),
        "pending": run.pending(),
        "listed": [session.session_id for session in manager.list()],
        "found": manager.execution(record.run_id).run_id == record.run_id,
    }


def second_ray(url: str) -> dict[str, Any]:
    """Do in a second Ray what two processes of one service would do."""
    report: dict[str, Any] = {}
    for family in (SessionManager, AsyncSessionManager):
        manager = None
        try:
            manager = family(url, engine=ScriptedEngine())
            if isinstance(manager, AsyncSessionManager):
                asyncio.run(manager.count())
            report[family.__name__] = "opened"
        except ConfigError as error:
            report[family.__name__] = str(error)
    with SessionManager(url, engine=ScriptedEngine(), read_only=True) as reader:
        report["read"] = reading(reader)
        chat, refused = reader.get("chat"), []
        changes: list[Callable[[], object]] = [
            lambda: chat.run("me too"),
            lambda: chat.append("me too"),
            chat.cancel,
            chat.end,
            chat.delete,
            chat.refresh,
            chat.fork,
            chat.compact,
            lambda: chat.memory.recall("tea"),
            reader.open,
            reader.sweep,
            lambda: reader.forget("default"),
        ]
        for change in changes:
            try:
                change()
            except ReadOnlyStoreError as error:
                refused.append(str(error))
        report["changes"], report["refused"] = len(changes), len(refused)
        with contextlib.suppress(SessionNotFoundError):
            reader.open("another")
            report["made"] = True
    return report


def program(*urls: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    print(json.dumps([second_ray(url) for url in urls]))


def in_second_ray(*urls: str) -> tuple[list[dict[str, Any]], str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {"RAY_ADDRESS": "local", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    command = [sys.executable, __file__, *urls]
    done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def begun(manager: SessionManager) -> ExecutionHandle:
    """Return a run that has given something, and gives more for ten minutes."""
    run = manager.open("chat").run("slow 30000")
    next(event for event in run.events() if event.kind == "text_delta")
    return run


@pytest.mark.timeout(400)
def test_a_second_ray_is_refused_a_sqlite_file_and_reads_it_without_disturbing_the_first(
    make_ray_manager: MakeManager, ray_session: ModuleType, tmp_path: Path
) -> None:
    run = begun(make_ray_manager())
    (report,), _ = in_second_ray(f"sqlite:///{tmp_path}/chats.db")
    for family in ("SessionManager", "AsyncSessionManager"):
        for part in (
            "the Ray cluster at",
            ray_session.get_runtime_context().gcs_address,
            "ray start --head",
            "RAY_ADDRESS",
        ):
            assert part in report[family]
    assert report["read"]["states"] == ["running"] * 3
    assert report["read"]["latest"] == 0 and report["read"]["listed"] == ["chat"] and report["read"]["running"]
    assert report["read"]["info"] == run.run_id and report["read"]["events"] == ["run_started"]
    assert report["refused"] == report["changes"] and "made" not in report
    assert run.is_running()
    run.cancel()


@pytest.mark.timeout(400)
def test_a_second_ray_on_a_server_is_warned_with_both_addresses(
    make_ray_manager: MakeManager, ray_session: ModuleType, database: str, redis_url: str
) -> None:
    runs = [begun(make_ray_manager(store=url)) for url in (database, redis_url)]
    states, logged = in_second_ray(database, redis_url)
    warned = [
        line for line in logged.splitlines() if "takes the session from the other" in line and ".store_reads:" in line
    ]
    assert len(warned) == 2, "once of each store"
    address = ray_session.get_runtime_context().gcs_address
    assert all(address in line and "takes the session from the other" in line for line in warned)
    for run, of_store in zip(runs, states, strict=True):
        assert of_store["SessionManager"] == of_store["AsyncSessionManager"] == "opened"
        assert of_store["read"]["states"] == ["running"] * 3
        assert run.is_running()
        run.cancel()


def test_to_read_in_another_namespace_interrupts_no_run(
    make_ray_manager: MakeManager, ray_session: ModuleType, tmp_path: Path
) -> None:
    run = begun(make_ray_manager())
    with SessionManager(f"sqlite:///{tmp_path}/chats.db", engine=ScriptedEngine(), namespace="elsewhere") as manager:
        report = reading(manager)
        assert report["states"] == ["running"] * 3 and report["running"] and report["found"]
        named_actors = ray_session.util.list_named_actors(all_namespaces=True)
        assert not [actor for actor in named_actors if actor["namespace"] == "elsewhere"]
    assert run.is_running()
    run.cancel()


def test_reads_of_a_session_without_a_process_come_from_the_store(
    make_ray_manager: MakeManager, namespace: str, tmp_path: Path
) -> None:
    manager = make_ray_manager(config=SessionConfig(idle_s=0.2))
    chat = manager.open("chat")
    turn = chat.run("hello").wait(WAIT_S)
    deadline = time.monotonic() + WAIT_S
    name = actor_name(store_id_of(namespace, f"sqlite:///{tmp_path}/chats.db"), SessionKey("chat"))
    while find_actor(namespace, name):  # to ask it would keep it
        assert time.monotonic() < deadline
        time.sleep(0.1)
    again = manager.open("chat")
    assert again.latest() == turn == again.turn(0) == again.turns()[0]
    assert again.runs()[0].state == "completed" and again.events()
    assert again.execution(again.runs()[0].run_id).wait() == turn
    assert again.info().pid is None
    assert again.run("more").wait(WAIT_S).text == "more"


def test_reading_needs_no_ray(tmp_path: Path) -> None:
    """In a process of its own, since this one has a Ray."""
    script = """
import sys
from turnwise import EchoEngine, SessionManager, SessionNotFoundError, StoreError
import ray
for url in sys.argv[1:]:
    with SessionManager(url, engine=EchoEngine(), read_only=True) as manager:
        try:
            print(manager.open("chat").latest())
        except (SessionNotFoundError, StoreError) as error:
            print(type(error).__name__)
assert not ray.is_initialized()
"""
    existing, absent = f"sqlite:///{tmp_path}/chats.db", f"sqlite:///{tmp_path}/missing.db"
    assert run_with(open_store(existing), lambda store: store.count()) == 0
    command = [sys.executable, "-c", script, existing, absent]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["SessionNotFoundError", "StoreError"]
    assert not list(tmp_path.glob("missing*"))


if __name__ == "__main__":
    program(*sys.argv[1:])
