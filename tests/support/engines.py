"""Engines that tests need and users do not."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from turnwise.actors.hosting.wire import SessionInfo
from turnwise.actors.inference.engine import InferenceRunner, RunContext, SessionView, StepContext, Suspend
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.tools.context import ToolContext
from turnwise.actors.inference.tools.loop import ToolLoop
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import tool
from turnwise.memory.conversation.blocks import AnyBlock, Text, Thinking, ToolResult, ToolUse
from turnwise.memory.conversation.calls.tool_calls import CallState
from turnwise.memory.conversation.turns import Turn


class ScriptedEngine:
    """Does what the prompt's first word says, see the cases below, or echoes it."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def build(self, session: SessionView) -> InferenceRunner:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:  # noqa: PLR0911 - one a case
        prompt: str = turn.new_blocks[-1].text  # type: ignore[union-attr, assignment]
        word, _, arguments = prompt.partition(" ")
        match word:
            case "slow":
                for number in range(int(arguments)):
                    context.emit(f"{number} ")
                    await asyncio.sleep(0.02)
            case "raise":
                raise ValueError(arguments or "the engine broke")
            case "exit":
                raise SystemExit(3)
            case "nothing":
                return []
            case "thoughts":
                return [Thinking(text="hm")]
            case "parrot":
                return turn.new_blocks
            case "surrogate":
                return [Text(text="\ud800")]
            case "curse":
                context.emit(ToolUse(call_id="1", name="look"))
                raise ValueError("\ud800")
            case "dangling":
                context.emit("let me look")
                context.emit(ToolUse(call_id="1", name="look"))
                await asyncio.sleep(60)
            case "stubborn":
                context.emit("so far")
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    await asyncio.sleep(1.0)
                    context.emit("too late")
                    return [Text(text="too late")]
            case "where":
                return [Text(text=f"{turn.id} of {context.session.session_id}")]
            case "who":
                return [Text(text=f"{self.name} {context.session.user_id}")]
        return [Text(text=f"{self.name}{prompt}")]


class BrokenBuilder:
    """Cannot be built."""

    def build(self, session: SessionView) -> InferenceRunner:
        raise RuntimeError("no such model")


class Inventory:
    """Answers with what its process has loaded, a line for each module, and with how often it looks for garbage."""

    def build(self, session: SessionView) -> Inventory:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        return [Text(text="\n".join([str(gc.get_threshold()), *sys.modules]))]


class SlowlyBuilt(OpenAIEngine):
    """Takes so long to be built that every clock has gone on: that of an actor's event loop tells milliseconds."""

    def build(self, session: SessionView) -> ToolLoop:
        time.sleep(0.01)
        return super().build(session)


class UnpicklableThere:
    """Pickles here and cannot be unpickled anywhere."""

    def build(self, session: SessionView) -> InferenceRunner:
        raise AssertionError("unreachable")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _refuse, ()


def _refuse() -> None:
    raise ImportError("not installed here")


def process_of(info: SessionInfo) -> int:
    """Return the process that hosts a session, which one does."""
    assert info.pid is not None, f"no process has session {info.session.session_id!r}"
    return info.pid


class Asking:
    """Asks for approval, and answers when it has it."""

    def build(self, session: SessionView) -> Asking:
        return self

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        if not any(state.verdict for state in context.calls.values()):
            raise Suspend({"call": CallState(name="act", wants="approval", why="it acts")})
        return [Text(text="done")]


@tool
def search_db(query: str, context: ToolContext) -> dict[str, list[str]]:
    """Search the database."""
    with context.step("query"):
        context.event("rows", {"count": 1})
    return {"results": [f"{query}: item1"]}


class Researcher:
    """Thinks, looks something up, and answers with what it found."""

    def build(self, session: SessionView) -> InferenceRunner:
        return ToolLoop(self, ToolRegistry(search_db))

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        if results := [block for block in turn.output if isinstance(block, ToolResult)]:
            context.emit("I found ")
            context.annotate(sources=len(results))
            return [Text(text=f"I found {results[-1].text}")]
        context.note("search first")
        return [
            Thinking(text="Let me search for that...", signature="cHJvdmlkZXItc2ln"),
            Text(text="I'll search the database."),
            ToolUse(call_id="tu-1", name="search_db", input={"query": "status"}),
        ]
