"""Engines of a team of two levels: a lead calls two researchers, and each of these an assistant."""

from __future__ import annotations

from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.inference.tools.agent_tool import agent_tool
from turnwise.testing.scripted_engine import ScriptedEngine

TASKS = ("tides", "boats")


def team() -> dict[str, EngineBuilder]:
    """Return the engines by name, the lead's first."""
    researcher = agent_tool("researcher", engine="research", description="Finds things out.")
    assistant = agent_tool("assistant", engine="echo", description="Repeats what it is told.")
    return {
        "lead": ScriptedEngine([[("researcher", {"task": task}) for task in TASKS], "done"], tools=[researcher]),
        "research": ScriptedEngine([[("assistant", {"task": "help"})], "found"], tools=[assistant]),
        "echo": EchoEngine(),
    }


LEAD, RESEARCH, ECHO = team().values()
"""The engines, for services that name them in their configuration."""
