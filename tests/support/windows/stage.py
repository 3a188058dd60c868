"""Sessions with small windows: a stage for them, and engines, summarizers and memories that fail on request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from test_tool_loop import Stage

from turnwise.actors.inference.engine import InferenceRunner, RunContext, SessionView
from turnwise.memory.conversation.blocks import AnyBlock, Block, Summary, Text, User
from turnwise.memory.conversation.turns import Outcome, Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.strategies.summarize import Summarize

WINDOW: dict[str, Any] = {"token_counter": ByteCounter(), "reserve_output_tokens": 0, "max_context_tokens": 600}
"""Of some ten short exchanges."""


class Talker:
    """Answers each prompt with its own words, and notes the blocks of each request."""

    def __init__(self) -> None:
        self.given: list[tuple[Block, ...]] = []

    def build(self, session: SessionView) -> InferenceRunner:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        self.given.append(turn.blocks)
        await asyncio.sleep(0.01)
        return [Text(text=f"as to {said(turn.blocks)[-1]}")]


class Summarizer:
    """Summarizes with the answers that the test gives, and keeps its requests."""

    def __init__(self, *answers: Any, delay_s: float = 0.0) -> None:
        self.answers = list(answers)
        self.delay_s = delay_s
        self.shown: list[tuple[Block, ...]] = []

    def build(self, session: SessionView) -> InferenceRunner:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        self.shown.append(turn.blocks)
        context.report(usage=Usage(input_tokens=100, output_tokens=10), model="small")
        await asyncio.sleep(self.delay_s)
        answer = self.answers.pop(0) if self.answers else f"summary {len(self.shown)}"
        if isinstance(answer, Exception):
            raise answer
        return [Text(text=answer)] if isinstance(answer, str) else answer


def summarize(model: Summarizer, **settings: Any) -> Summarize:
    return Summarize(model, **{"keep_turns": 1, "max_summary_tokens": 100, **settings})


def said(blocks: Sequence[Block]) -> list[str]:
    return [block.text for block in blocks if isinstance(block, User | Summary)]


async def chat(stage: Stage, *prompts: str | Block, pause_s: float = 1.0) -> Outcome:
    """Run each prompt to its end, with time for what follows."""
    outcome: Outcome | None = None
    for prompt in prompts:
        started = await stage.core.admission.start([prompt], run_id=f"run-{prompt}"[:200])
        outcome = await stage.core.reads.wait(started.run_id)
        await asyncio.sleep(pause_s)
    assert outcome
    return outcome


async def opened(overflow: Any, engine: Any = None, **settings: Any) -> Stage:
    stage = Stage(engine or Talker(), overflow=overflow, **{**WINDOW, **settings})
    await stage.create()
    return stage


def prompts(first: int, last: int) -> list[str]:
    return [f"prompt {number:02} {'x' * 20}" for number in range(first, last)]


async def events_of(stage: Stage, kind: type[Any]) -> list[Any]:
    return [event for event in await stage.events() if isinstance(event, kind)]


class SavesOnly:
    """The methods of a memory that finds, changes and forgets nothing."""

    async def recall(self, scope: Scope, query: str, **filters: Any) -> Sequence[MemoryItem]:
        return []

    async def update(self, scope: Scope, id: str, text: str | None = None, **changes: Any) -> bool:
        return False

    async def forget(self, scope: Scope, ids: Any = None, **which: Any) -> int:
        return 0

    async def close(self) -> None:
        pass


class Notebook(SavesOnly):
    """A memory that fails `failures` times, and counts the items that it receives."""

    def __init__(self, failures: int = 0, *, read_only: bool = False) -> None:
        self.failures = failures
        self.read_only = read_only
        self.items: dict[str, MemoryItem] = {}
        self.given = 0
        self.scopes: set[Scope] = set()

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> list[str]:
        assert not self.read_only
        self.given += len(items)
        self.scopes.add(scope)
        await asyncio.sleep(0.1)
        if self.failures:
            self.failures -= 1
            raise OSError("the disk is full")
        self.items.update((item.id, item) for item in items)
        return [item.id for item in items]
