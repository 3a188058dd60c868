"""Calls of single tools through a `ToolRegistry`, without a session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from turnwise.actors.inference.engine import SessionView
from turnwise.actors.inference.tools.context import ToolContext
from turnwise.actors.inference.tools.registry import ToolOutcome, ToolRegistry
from turnwise.actors.inference.tools.tool import Tool
from turnwise.memory.conversation.blocks import ToolUse

LONG_S = 10.0
"""More than any test takes, so what waits for it has hung."""

SESSION = SessionView(session_id="s1", user_id="ada", agent="helper", metadata={})


def context(**values: Any) -> ToolContext:
    return ToolContext(**{"session": SESSION, "run_id": "r1", "turn_index": 3, "call_id": "c1", **values})


def use(name: str, arguments: Mapping[str, Any] | None = None, call_id: str = "c1") -> ToolUse:
    return ToolUse(call_id=call_id, name=name, input=dict(arguments or {}))


def call(registry: ToolRegistry, name: str, /, **arguments: Any) -> ToolOutcome:
    """Make one call on an event loop of its own."""
    return asyncio.run(registry.call(use(name, arguments), context()))


def answer(*tools: Tool, **arguments: Any) -> str:
    """Return the text that the one tool gives, and that it is no error."""
    outcome = call(ToolRegistry(*tools), tools[0].name, **arguments)
    assert not outcome.result.is_error, outcome.result.text
    return outcome.result.text


def error(tool: Tool, settings: Mapping[str, Any] | None = None, /, **arguments: Any) -> str:
    """Return the text of the error that the tool gives."""
    outcome = call(ToolRegistry(tool, **settings or {}), tool.name, **arguments)
    assert outcome.result.is_error, outcome.result.text
    return outcome.result.text


async def until(condition: Callable[[], object]) -> None:
    """Wait for what another thread or task brings about."""
    async with asyncio.timeout(LONG_S):
        while not condition():
            await asyncio.sleep(0.005)
