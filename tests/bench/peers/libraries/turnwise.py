"""turnwise with its SQLite store, by each placement."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

# Ray reads these when it is imported: send no statistics, and do not report the processes that are killed on purpose.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}

from peers.peer import History, Model
from turnwise import AsyncSession, AsyncSessionManager, Dedicated, EchoEngine, InProcess, Packed, RunCancelledError
from turnwise.testing import ScriptedEngine


class Turnwise:
    packages: Sequence[str] = ("turnwise", "ray")

    def __init__(self, folder: Path, model: Model, placement: Dedicated | Packed | InProcess) -> None:
        # Echo answers with as many characters as it is asked with.
        engine = ScriptedEngine([model.text], repeat=True, word_s=model.pause_s) if model.pause_s else EchoEngine()
        self.manager = AsyncSessionManager(f"sqlite:///{folder}/store.db", engine=engine, placement=placement)
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
    return Turnwise(folder, model, Dedicated())


def packed(folder: Path, model: Model) -> Turnwise:
    return Turnwise(folder, model, Packed(hosts=2))


def in_process(folder: Path, model: Model) -> Turnwise:
    return Turnwise(folder, model, InProcess())
