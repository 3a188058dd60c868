"""turnwise with its SQLite store, each session in a process of its own, or packed into two; and its vector memory."""

from __future__ import annotations

import importlib
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

# Ray reads these when it is imported: send no statistics, and do not report the processes that are killed on purpose.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}

from peers.peer import History, Model
from turnwise import AsyncSession, AsyncSessionManager, EchoEngine, Packed, RunCancelledError
from turnwise.actors.session.memory import memory_retrieval
from turnwise.memory.conversation.blocks import User
from turnwise.memory.longterm.base import MemoryItem, Scope, Source
from turnwise.memory.longterm.index.locations import ChromaFolder
from turnwise.memory.longterm.index.vector_index import VectorIndex
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.testing import ScriptedEngine


class Turnwise:
    packages: Sequence[str] = ("turnwise", "ray")

    def __init__(self, folder: Path, model: Model, *, packed: bool = False) -> None:
        # Echo answers with as many characters as it is asked with.
        engine = ScriptedEngine([model.text], repeat=True, word_s=model.pause_s) if model.pause_s else EchoEngine()
        url = f"sqlite:///{folder}/store.db"
        if packed:
            self.manager = AsyncSessionManager(url, engine=engine, placement=Packed(hosts=2))
        else:
            self.manager = AsyncSessionManager(url, engine=engine)
        self.chats: dict[str, AsyncSession] = {}

    async def chat(self, name: str) -> AsyncSession:
        if name not in self.chats:
            self.chats[name] = await self.manager.open(name)
        return self.chats[name]

    async def turn(self, chat: str, prompt: str) -> None:
        run = await (await self.chat(chat)).run(prompt)
        await run.wait()

    async def one_of_many(self, chat: str, prompt: str) -> None:
        await self.turn(chat, prompt)

    async def words(self, chat: str, prompt: str) -> AsyncIterator[str]:
        run = await (await self.chat(chat)).run(prompt)
        async for event in run.events():
            if event.kind == "text_delta":
                yield event.text

    async def stop(self, chat: str, prompt: str, after: int) -> float:
        run = await (await self.chat(chat)).run(prompt)
        count = 0
        async for event in run.events():
            count += event.kind == "text_delta"
            if count == after:
                break
        began = time.perf_counter()
        await run.cancel()
        try:
            await run.wait()
        except RunCancelledError:
            return time.perf_counter() - began
        raise AssertionError("the run ended before it was cancelled")

    async def history(self, chat: str) -> History:
        return [(message.role, message.text) for message in await (await self.chat(chat)).messages()]

    async def close(self) -> None:
        await self.manager.close()


def dedicated(folder: Path, model: Model) -> Turnwise:
    return Turnwise(folder, model)


def packed(folder: Path, model: Model) -> Turnwise:
    return Turnwise(folder, model, packed=True)


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
    return memory_retrieval._query(prompt, before[-1] if before else ())


def words(folder: Path, model: Model) -> Remembering:
    return Remembering(folder, model, embeds=False)
