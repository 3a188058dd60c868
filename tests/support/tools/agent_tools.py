"""Tools for agents in processes of their own, and a model that does what its prompt says.

What a tool does it notes in the file that the run's label `notes` names, so that it is known whatever becomes of its
process.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from turnwise.actors.inference.engine import InferenceRunner, RunContext, StepContext
from turnwise.actors.inference.tools.context import ToolContext
from turnwise.actors.inference.tools.loop import Phase
from turnwise.actors.inference.tools.tool import external_tool, tool
from turnwise.errors import ToolError
from turnwise.memory.conversation.blocks import AnyBlock
from turnwise.memory.conversation.turns import Turn

LONG_S = 60.0
"""Longer than any test waits."""

Calls = Sequence[tuple[str, Mapping[str, Any]]]


def prompt(*steps: str | Calls, thought: str | None = None) -> str:
    """Return a prompt that says what the model does: calls, step by step, or a text; the last step is repeated."""
    return json.dumps({"steps": steps, "thought": thought})


def write(labels: Mapping[str, str], note: str) -> int:
    """Note something; return how often it has been noted."""
    path = Path(labels["notes"])
    with path.open("a", encoding="utf-8") as notes:
        notes.write(f"{note}\n")
    return path.read_text(encoding="utf-8").splitlines().count(note)


@tool
def note(text: str, context: ToolContext) -> str:
    """Note a text."""
    write(context.labels, text)
    return f"noted {text}"


@tool
async def pause(seconds: float, context: ToolContext) -> str:
    """Wait for a while."""
    write(context.labels, "paused")
    await asyncio.sleep(seconds)
    return f"waited {seconds}"


@tool
def fail(how: str) -> str:
    """Fail."""
    if how == "tool":
        raise ToolError("there is no such train")
    raise KeyError(how)


@tool
def stubborn(context: ToolContext) -> str:
    """Stay on a thread until somebody notes `let go`, and hear nothing else."""
    write(context.labels, "began")
    while "let go" not in Path(context.labels["notes"]).read_text(encoding="utf-8").splitlines():
        time.sleep(0.02)
    write(context.labels, "ended")
    return "late result"


@tool
async def charge(euros: int, context: ToolContext) -> str:
    """Charge the user, which takes long."""
    write(context.labels, f"charge {euros}")
    await asyncio.sleep(LONG_S)
    return f"charged {euros}"


@tool(repeatable=True)
async def search(text: str, context: ToolContext) -> str:
    """Search, which takes long the first time."""
    if write(context.labels, f"search {text}") == 1:
        await asyncio.sleep(LONG_S)
    return f"found {text}"


@tool(approval=True)
def pay(euros: int, context: ToolContext) -> str:
    """Pay, if somebody allows it."""
    write(context.labels, f"paid {euros}")
    return f"paid {euros}"


@tool
def whoami(user_id: str, context: ToolContext) -> str:
    """Say for whom it works, whatever the model says."""
    return f"{context.session.user_id} in {context.session.session_id}, not {user_id}"


driver = external_tool("driver", "Asks the driver.", {"type": "object", "properties": {"question": {"type": "string"}}})


def far(text: str, context: ToolContext) -> str:
    """Say something in another process."""
    return f"{text} for {context.session.user_id} by {context.call_id}"


class Counter:
    """The body of an actor."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, number: int) -> int:
        """Add to the total."""
        self.total += number
        return self.total


far_away = tool(ray.remote(num_cpus=0)(far))


def watch(phase: Phase, turn: Turn, context: RunContext) -> None:
    """Note the phase and how much of an answer there is."""
    write(context.labels, f"{phase} {len(turn.blocks)}")


async def trip(phase: Phase, turn: Turn, context: RunContext) -> None:
    """Fail after tools."""
    await asyncio.sleep(0)
    if phase == "after_tools":
        raise ValueError("the hook broke")


class Named:
    """A middleware that notes when it is entered and left."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def run(self, turn: Turn, context: StepContext, runner: InferenceRunner) -> Sequence[AnyBlock]:
        write(context.labels, f"{self.name} in")
        try:
            return await runner.run(turn, context)
        finally:
            write(context.labels, f"{self.name} out")
