"""Memories and engines for tests, where the processes of sessions and memories can import them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from turnwise.actors.inference.engine import InferenceRunner, RunContext, SessionView
from turnwise.memory.conversation.blocks import AnyBlock, Recalled, Text, User
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.testing.embedding import HashEmbedding
from windows.models import Switch


class Mirror:
    """Answers a prompt that asks when or where with the recalled texts, any other with "noted"."""

    def build(self, session: SessionView) -> InferenceRunner:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        prompt = next(block.text for block in reversed(turn.blocks) if isinstance(block, User))
        recalled = [block.text for block in turn.blocks if isinstance(block, Recalled)]
        is_question = prompt.startswith(("When", "Where"))
        return [Text(text="\n".join(recalled) if is_question and recalled else "noted")]


class BrokenMemory:
    """Fails at whatever it is asked."""

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        raise OSError("the disk is full")

    async def recall(self, scope: Scope, query: str, **filters: Any) -> Sequence[MemoryItem]:
        raise OSError("the disk is full")

    async def update(self, scope: Scope, id: str, text: str | None = None, **changes: Any) -> bool:
        raise OSError("the disk is full")

    async def forget(self, scope: Scope, ids: Collection[str] | None = None, **which: Any) -> int:
        raise OSError("the disk is full")

    async def close(self) -> None:
        pass


class SlowMemory(BrokenMemory):
    """Takes as long as the query says, in seconds; then has one item, which names its process."""

    def __init__(self, name: str = "slow") -> None:
        self.name = name
        self.requests = 0

    async def recall(self, scope: Scope, query: str, **filters: Any) -> Sequence[MemoryItem]:
        self.requests += 1
        await asyncio.sleep(float(query))
        return [MemoryItem(id=str(self.requests), text=str(os.getpid()))]


def pid_of(_: object) -> int:
    """Return the process that an actor is in."""
    return os.getpid()


class SteeredEmbedding(HashEmbedding):
    """An embedding function that a test steers by files.

    Args:
        folder: where the files are.
    """

    def __init__(self, folder: Path, dimensions: int = 64) -> None:
        super().__init__(dimensions)
        self.down = Switch(folder / "embedding-down")
        self.held = Switch(folder / "embedding-held")

    def __call__(self, input: Sequence[str]) -> list[Any]:
        while self.held.is_on:
            time.sleep(0.01)
        if self.down.is_on:
            raise ConnectionError("no embeddings today")
        return super().__call__(input)

    def get_config(self) -> dict[str, Any]:
        """Return the same for all dimensions, as a model does that its provider has replaced."""
        return {}


class Plan(BaseModel):
    """The form of a working memory."""

    stops: list[str] = []
    nights: int = 0
