"""Installs without Chroma, without Ray, and of a client alone: docs/deployment.md."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pages.small_locks import CLIENT, LOCKS, ROOT, direct, lock_without
from processes.clean_install import clean_install
from scale import one_a_day
from servers.threaded_service import served
from turnwise import EchoEngine, InProcess

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


SMALL = [name for name in LOCKS if name != CLIENT]
"""The locks of sessions; each day one of them is installed."""


@pytest.mark.parametrize("name", LOCKS)
def test_the_locks_of_small_installs_are_made_from_the_lock(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == lock_without(LOCKS[name])


@one_a_day("name", SMALL, SMALL)
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


REMOTE = """
import asyncio, sys
from turnwise import external_tool
from turnwise.client import AsyncRemoteManager, RemoteManager
from turnwise.errors import InvalidInputError

with RemoteManager(sys.argv[1]) as manager:
    chat = manager.open("chat", user_id="ada")
    run = chat.run("The heron stands in the reeds.")
    print(len(list(run.events())) > 2, run.wait().text)
    print(manager.search("ada", "heron").items[0].turn_index, chat.files.put("a.txt", b"heron").size)
    for options in {"output": {"type": "object"}}, {"tools": [external_tool("t", "Does.", {"type": "object"})]}:
        try:
            chat.run("more", **options)
        except InvalidInputError as error:
            print(str(error).partition("=")[0])


async def main():
    async with AsyncRemoteManager(sys.argv[1]) as manager:
        print((await (await manager.get("chat", user_id="ada")).latest()).text)


asyncio.run(main())
print(*sorted({"ray", "chromadb", "numpy", "sqlalchemy", "openai", "tiktoken"} & sys.modules.keys()))
"""


def test_a_client_works_where_only_its_lock_was_installed(tmp_path: Path) -> None:
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": clean_install(tmp_path, CLIENT), "HOME": str(tmp_path)}
    with served(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine(), placement=InProcess()) as service:
        command = [sys.executable, "-P", "-c", REMOTE, service.url]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    text = "The heron stands in the reeds."
    assert done.stdout.splitlines() == [f"True {text}", "0 5", "output", "tools", text, ""]


def test_the_page_of_placements_names_what_turnwise_needs_without_ray() -> None:
    page = (ROOT / "docs/concepts/placement.md").read_text(encoding="utf-8")
    (names,) = re.findall(r"^\$ pip install ((?:[a-z0-9]+ )+[a-z0-9]+)$", page, re.MULTILINE)
    assert names.split() == sorted(direct() - LOCKS["requirements-in-process.lock"])
