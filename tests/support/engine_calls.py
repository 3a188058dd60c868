"""Calls an engine with an HTTP client without a session, with a `LocalProvider` or a `QuirkServer` as its server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import pytest

from quirks import EVENTS, JSON, STREAM, QuirkServer, Reply, chunk, completed, events, spoken
from turnwise.actors.inference.engine import SessionView
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.openai.runner import OpenAIRunner
from turnwise.actors.inference.tools.tool import ToolDefinition
from turnwise.adapters.anthropic.engine import AnthropicEngine
from turnwise.errors import EngineError
from turnwise.memory.conversation.blocks import AnyBlock, Block, User, encode
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import Turn, TurnRecord, turn_of
from turnwise.memory.conversation.usage import Usage
from turnwise.testing import LocalProvider

SESSION = SessionView(session_id="chat-1", user_id="sarah", agent=None, metadata={})

HTTPEngine = OpenAIEngine | AnthropicEngine

HEALTHY: dict[str, Reply] = {
    "chat": (200, EVENTS, events(*STREAM, chunk("stop"))),
    "responses": (200, EVENTS, events(completed(spoken("Hi there")))),
}
"""An answer in each API: "Hi there"."""


def refusal(text: str, status: int = 400, param: str | None = None) -> Reply:
    """Return a refusal in the format of OpenAI."""
    return status, JSON, json.dumps({"error": {"message": text, "param": param, "code": None}}).encode()


class Recorder:
    """A run's context that keeps what its engine tells it."""

    session = SESSION
    run_id = "run-1"
    prefix_key = "0123456789abcdef0123456789abcdef"
    labels: Mapping[str, str] = {}
    params: Mapping[str, Any] = {}
    output_type = None
    instructions: str | None = None
    tools: Mapping[str, Mapping[str, Any]] = {}
    memory = None
    schedules = None
    files = None

    def __init__(self) -> None:
        self.parts: list[str | Block] = []
        self.usage: Usage | None = None
        self.stop_reason: str | None = None
        self.model: str | None = None
        self.began = asyncio.Event()

    def emit(self, part: str | Block) -> None:
        self.parts.append(part)
        self.began.set()

    def report(
        self,
        *,
        usage: Usage | None = None,
        stop_reason: str | None = None,
        model: str | None = None,
        tool: str | None = None,
    ) -> None:
        self.usage, self.stop_reason, self.model = usage, stop_reason, model

    @property
    def text(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))


def turn(*blocks: Block | str) -> Turn:
    encoded = [encode(User(text=block) if isinstance(block, str) else block) for block in blocks]
    spans = (Span("chat-1", 0, len(encoded)),)
    return turn_of("chat-1", TurnRecord(index=0, input=spans), spans, encoded)


def run(
    engine: HTTPEngine,
    use: Callable[[OpenAIRunner, Recorder], Coroutine[Any, Any, Any]],
    tools: Sequence[ToolDefinition] = (),
) -> tuple[Any, Recorder]:
    """Run `use` with a runner of the engine and a context; close the runner's connections."""

    async def body() -> tuple[Any, Recorder]:
        runner, context = engine._runner(tools), Recorder()  # noqa: SLF001 - one step, without a loop of tools
        try:
            return await use(runner, context), context
        finally:
            await runner.close()

    return asyncio.run(body())


def answer(engine: HTTPEngine, *blocks: Block | str) -> tuple[list[Block], Recorder]:
    """Return the engine's answer to a conversation, and its context."""

    async def use(runner: OpenAIRunner, context: Recorder) -> list[AnyBlock]:
        return list(await runner.run(turn(*(blocks or ("Hello",))), context))

    return run(engine, use)


def failure(engine: HTTPEngine, *blocks: Block | str) -> tuple[EngineError, Recorder]:
    """Return the error that answering ends in, and the context."""

    async def use(runner: OpenAIRunner, context: Recorder) -> EngineError:
        with pytest.raises(EngineError) as caught:
            await runner.run(turn(*(blocks or ("Hello",))), context)
        return caught.value

    return run(engine, use)


def engine_of(provider: LocalProvider, model: str = "local", **settings: Any) -> OpenAIEngine:
    return OpenAIEngine(model, base_url=provider.base_url, **settings)


def engine_at(server: QuirkServer, **settings: Any) -> OpenAIEngine:
    return OpenAIEngine("local", **{"base_url": server.base_url, "max_retries": 0, **settings})
