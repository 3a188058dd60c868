"""The vector memory of turnwise."""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from peers.peer import Model
from turnwise.actors.session.memory import memory_retrieval
from turnwise.memory.conversation.blocks import User
from turnwise.memory.longterm.base import MemoryItem, Scope, Source
from turnwise.memory.longterm.index.locations import ChromaFolder
from turnwise.memory.longterm.index.vector_index import VectorIndex
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.vector import VectorMemory


class Remembering:
    """A memory that is asked directly, without the process that shares it among sessions."""

    packages: Sequence[str] = ("turnwise", "chromadb")

    def __init__(self, folder: Path, model: Model, *, embeds: bool = True) -> None:
        index = (
            VectorIndex(
                ChromaFolder(folder / "chroma"),
                importlib.import_module("long_term.minilm").MiniLM(Path(os.environ["MINILM"])),
            )
            if embeds
            else None
        )
        self.saved = Counter[str]()
        text = SQLItems(f"sqlite:///{folder}/memory.db")
        self.memory = VectorMemory(text, index, query_s=600.0) if index else VectorMemory(text, embedding=None)

    async def save(self, user: str, items: Sequence[tuple[str, str]]) -> None:
        new_items = [
            MemoryItem(id=key, text=text, source=Source(session_id=user, turn_index=index))
            for index, (key, text) in enumerate(items, self.saved[user])
        ]
        self.saved[user] += len(new_items)
        await self.memory.remember(Scope(user_id=user), new_items)

    async def find(self, user: str, prompts: Sequence[str]) -> list[str]:
        return [item.id for item in await self.memory.recall(Scope(user_id=user), _query(prompts), limit=10)]

    async def remind(self, user: str, prompts: Sequence[str]) -> list[str]:
        """Return the ids of up to ten texts that a session would put into its request for these prompts."""
        return [item.id for item in (await self.memory.remind(Scope(user_id=user), _query(prompts), limit=10)).items]

    async def close(self) -> None:
        await self.memory.close()


def _query(prompts: Sequence[str]) -> str:
    """Return the query that a session makes of prompts, the newest last."""
    *before, prompt = [[User(text=text)] for text in prompts]
    return memory_retrieval.query_of(prompt, before[-1] if before else ())


def words(folder: Path, model: Model) -> Remembering:
    return Remembering(folder, model, embeds=False)
