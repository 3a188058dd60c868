"""turnwise with its SQLite store, by each placement."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Literal

# Ray reads these when it is imported: send no statistics, and do not report the processes that are killed on purpose.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}

from peers.peer import PROMPT, History, Model
from turnwise import (
    AsyncSession,
    AsyncSessionManager,
    Dedicated,
    EchoEngine,
    InProcess,
    Packed,
    RunCancelledError,
    SessionConfig,
)
from turnwise.engines import agent_tool
from turnwise.testing import ScriptedEngine


class Turnwise:
    packages: Sequence[str] = ("turnwise", "ray")

    def __init__(
        self,
        folder: Path,
        model: Model,
        placement: Dedicated | Packed | InProcess,
        on_lost: Literal["interrupt", "resume"] = "interrupt",
    ) -> None:
        # Echo answers with as many characters as it is asked with.
        engine = ScriptedEngine([model.text], repeat=True, word_s=model.pause_s) if model.pause_s else EchoEngine()
        member = agent_tool("member", engine="words", description="Does one task.")
        lead = ScriptedEngine([[("member", {"task": PROMPT})], model.text], tools=[member], repeat=True)
        engines = {"words": engine, "lead": lead}
        self.manager = AsyncSessionManager(
            f"sqlite:///{folder}/store.db", engine=engines, placement=placement, config=SessionConfig(on_lost=on_lost)
        )
        self.chats: dict[str, AsyncSession] = {}
        self.read: dict[str, int] = {}

    async def chat(self, name: str, engine: str = "words") -> AsyncSession:
        if name not in self.chats:
            self.chats[name] = await self.manager.open(name, engine=engine)
        return self.chats[name]

    async def turn(self, chat: str, prompt: str) -> None:
        run = await (await self.chat(chat)).run(prompt)
        await run.wait()

    async def one_of_many(self, chat: str, prompt: str) -> None:
        await self.turn(chat, prompt)

    async def team(self, chat: str, prompt: str) -> None:
        run = await (await self.chat(chat, "lead")).run(prompt)
        await run.wait()

    async def timer(self, chat: str, prompt: str, due_at: float) -> list[float]:
        session, after = await self.chat(chat), self.read.get(chat, 0)
        await session.schedule(prompt, at=due_at)
        while True:
            for event in await session.events(after, wait_s=10.0):
                self.read[chat] = after = event.seq
                if event.kind == "run_completed" and event.run_id:
                    run = await (await self.manager.execution(event.run_id)).info()
                    if run.started_at and run.ended_at and run.started_at >= due_at:
                        return [run.started_at, run.ended_at]

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


def resuming(folder: Path, model: Model) -> Turnwise:
    return Turnwise(folder, model, InProcess(), on_lost="resume")
