"""A memory's process loads ahead of the first recall what recalls need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, sys

import psutil

from turnwise.actors.hosting.memory.memory_host import MemoryHost
from turnwise.actors.wire_version import packed, unpacked
from turnwise.memories import LexicalMemory, VectorMemory
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.testing.embedding import HashEmbedding

kind, folder, step = sys.argv[1:]
ADA = Scope(user_id="ada")
path = f"{folder}/items.db"
memory = LexicalMemory(path) if kind == "lexical" else VectorMemory(path, embedding=HashEmbedding())


async def ask(host, verb, **arguments):
    answer, _ = unpacked(await host.call(packed((verb, arguments, None))))
    return answer


async def main():
    host = MemoryHost(lambda: memory)
    if step == "save":
        await ask(host, "remember", scope=ADA, items=[MemoryItem(id="a", text="The night train goes to Paris.")])
    else:
        assert await ask(host, "warm") is None
        modules, children = set(sys.modules), psutil.Process().children()
        reminder = await ask(host, "remind", scope=ADA, prompt="When does the train to Paris leave?", limit=5)
        items = await ask(host, "recall", scope=ADA, query="the tran to Paris", limit=5)
        assert [item.id for item in reminder.items] == [item.id for item in items] == ["a"]
        print(sorted(set(sys.modules) - modules), len(children), psutil.Process().children() == children)
    await host.close()


asyncio.run(main())
"""


@pytest.mark.parametrize(("kind", "children"), [("lexical", 0), ("vector", 1)])
def test_once_its_process_is_warm_a_recall_loads_nothing(kind: str, children: int, tmp_path: Path) -> None:
    def program(step: str) -> str:
        command = [sys.executable, "-c", PROGRAM, kind, str(tmp_path), step]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    program("save")
    assert program("recall") == f"[] {children} True\n"  # Chroma has a process of its own
