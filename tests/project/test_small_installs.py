"""Installs without Chroma, and without Ray: docs/deployment.md."""

import subprocess
import sys
from pathlib import Path

import pytest

from pages.small_locks import LOCKS, ROOT, lock_without
from processes.clean_install import clean_install

SESSIONS = """
import sys
from turnwise import Dedicated, EchoEngine, InProcess, SessionManager
from turnwise.errors import ConfigError
from turnwise.memories import LexicalMemory, VectorMemory

folder = sys.argv[1]
memories = [LexicalMemory(f"{folder}/facts.db"), VectorMemory(f"{folder}/said.db", embedding=None)]


def talk(placement):
    url, settings = f"sqlite:///{folder}/chats.db", dict(engine=EchoEngine(), memory=memories)
    with SessionManager(url, placement=placement, **settings) as manager:
        chat = manager.open("chat", if_exists="keep")
        chat.run("The heron stands in the reeds.").wait()
        chat.memory.wait()
        print(len(chat.turns()), bool(chat.memory.recall("heron")))


talk(InProcess())
try:
    talk(Dedicated())
except ConfigError as error:
    print(error)
try:
    VectorMemory(f"{folder}/vectors.db", embedding=lambda texts: [[1.0, 0.0] for _ in texts])
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize("name", LOCKS)
def test_the_locks_of_small_installs_are_made_from_the_lock(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == lock_without(LOCKS[name])


@pytest.mark.parametrize("name", LOCKS)
def test_sessions_work_where_only_a_small_lock_was_installed(name: str, tmp_path: Path) -> None:
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": clean_install(tmp_path, name), "HOME": str(tmp_path)}
    command = [sys.executable, "-P", "-c", SESSIONS, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    in_process, on_ray, vectors = done.stdout.splitlines()
    assert in_process == "1 True"
    if "ray" in LOCKS[name]:
        assert "pip install ray" in on_ray and "InProcess()" in on_ray
    else:
        assert on_ray == "2 True"
    assert "pip install chromadb" in vectors
