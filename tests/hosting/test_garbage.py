"""What sessions leave to the garbage collector when they leave a packed host."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from processes.packed_hosts import Hosting
from turnwise.actors.hosting.placement import Packed
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.inference.named_engines import NamedEngines
from turnwise.actors.inference.tools.tool import tool
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing.scripted_engine import ScriptedEngine


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
def divide(a: int, b: int) -> float:
    """Divide."""
    return a / b


ENGINES: dict[str, EngineBuilder] = {
    "an answer": EchoEngine(),
    "one of two engines": NamedEngines({"a": EchoEngine(), "b": EchoEngine()}),
    "a tool": ScriptedEngine([("add", {"a": 1, "b": 2}), "3"], tools=[add]),
    "a tool that fails": ScriptedEngine([("divide", {"a": 1, "b": 0}), "?"], tools=[divide]),
    "an engine that fails": ScriptedEngine([["Let me", ConnectionError("lost")]]),
}


async def objects_left(engine: EngineBuilder) -> list[int]:
    """Return how many objects only the collector could free after a turn in each of 20 sessions, three times."""
    hosting = Hosting(InMemoryStore(), engine, Packed(hosts=1, max_resident=5))
    names = [f"chat{number}" for number in range(60)]
    await hosting.create(*names)

    async def visit(names: Sequence[str]) -> int:
        gc.collect()
        gc.disable()
        try:
            for name in names:
                await hosting.run(name, "hello", f"run-{name}")
            return gc.collect()
        finally:
            gc.enable()

    return [await visit(names[start : start + 20]) for start in range(0, 60, 20)]


@pytest.mark.by_turns
def test_a_session_that_leaves_leaves_nothing_to_the_garbage_collector() -> None:
    """A host looks for garbage rarely, so each session would stay in its memory for hours.

    A process of its own counts, since threads that other tests have left in this one leave garbage at any time.
    """
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", __file__]
    done = subprocess.run(command, check=False, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts.keys() == ENGINES.keys()
    # What is done once, as a first import, is in one of the three at most.
    assert not {name: numbers for name, numbers in counts.items() if min(numbers) >= 20}, counts


if __name__ == "__main__":
    print(json.dumps({name: asyncio.run(objects_left(engine)) for name, engine in ENGINES.items()}))
