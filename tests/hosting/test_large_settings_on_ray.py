"""Processes that are killed come back with large settings, though the program that made them has ended."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import large_settings
from conftest import end_actors
from engines import ScriptedEngine
from large_settings import RESUMED, Librarian, handbook, text_of
from turnwise.actors.client.manager import SessionManager
from turnwise.actors.cluster.remote_memory import RemoteMemory
from turnwise.memory.longterm.base import Scope

BACK_S = 100.0
"""How long a process may take to come back on a busy machine, in seconds."""


def play(ray: ModuleType, folder: Path, placement: str, megabytes: float) -> dict[str, Any]:
    """Run the program to its end; return what it prints."""
    address = ray.get_runtime_context().gcs_address
    arguments = [address, f"sqlite:///{folder}/chats.db", f"large-{placement}", str(folder), placement, str(megabytes)]
    ended = subprocess.run(
        [sys.executable, large_settings.__file__, *arguments], stdout=subprocess.PIPE, text=True, timeout=200, check=True
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
        assert manager.get("chat").run("And now?").wait(BACK_S).text == "later: And now?"


def test_a_memory_comes_back_with_a_large_handbook_after_its_program_ended(ends: ModuleType, tmp_path: Path) -> None:
    play(ends, tmp_path, "packed", 0.2)
    name = RemoteMemory(handbook(), namespace="large-packed").actor_name
    actor = ends.get_actor(name, namespace="large-packed")
    request = pickle.dumps(("recall", (Scope(user_id="ada"), "rule 7"), {"limit": 3, "types": None, "as_of": None}))
    before = pickle.loads(ends.get(actor.call.remote(request), timeout=BACK_S))
    ends.kill(actor, no_restart=False)
    after = pickle.loads(ends.get(actor.call.remote(request), timeout=BACK_S))
    assert [item.text for item in after] == [item.text for item in before] != []
