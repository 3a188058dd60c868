"""Measures which share of requests a cache of prefixes reuses: of a chat, an agent, memory, strategies, forks.

The sessions are real, and so are the bytes of their requests, which a local provider records; the cache is simulated.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from harness import Table, prompt_of
from prefixes.cache import Reuse
from turnwise import (
    AsyncSession,
    AsyncSessionManager,
    DeleteOldest,
    FlushToMemory,
    InProcess,
    LexicalMemory,
    OpenAIEngine,
    SessionConfig,
    Summarize,
    Trim,
    tool,
)
from turnwise.memory.values.ids import new_id
from turnwise.stores import InMemoryItems
from turnwise.strategies import ByteCounter, KeepLast
from turnwise.testing import LocalProvider, attentive_reply, tool_script
from turnwise.testing.local_provider.replies import SUMMARY_WANTED, text_of

GOAL = 0.9
"""The least share of what is possible."""

SYSTEM = f"You help the employees of Northwind. {prompt_of(1200, seed=1)}"

WINDOW = 24_000
"""The model's window in bytes, which are counted as tokens here."""

MEMORIES = 40

Session = AsyncSession
Talk = Callable[[AsyncSessionManager], Awaitable[None]]


@tool
async def look_up(word: str) -> str:
    """Look up a word in the handbook, and return the rules that have it."""
    return prompt_of(500, seed=len(word))


@tool
async def colleagues(city: str) -> str:
    """Return who works in a city, with their telephone numbers and their rooms."""
    return prompt_of(300, seed=len(city))


class Recorder:
    """Answers requests, and counts what a cache reuses of them.

    Args:
        reply: the answer to a request's messages.
    """

    def __init__(self, reply: Callable[[list[dict[str, Any]]], Any]) -> None:
        self.reuse = Reuse()
        self._reply = reply
        self._answers: list[Any] = []
        self._dice = random.Random(3)

    def __call__(self, messages: list[dict[str, Any]]) -> Any:
        is_summary = SUMMARY_WANTED in text_of(messages[-1])
        answer = attentive_reply(messages) if is_summary else self._reply(messages)
        self._answers.append(answer)
        return answer

    def count(self, bodies: Sequence[dict[str, Any]]) -> None:
        """Count the requests of the conversation, without those that ask for a summary."""
        for body, answer in zip(bodies, self._answers, strict=True):
            if SUMMARY_WANTED not in text_of(body["messages"][-1]):
                self.reuse.add(body, {"content": answer} if isinstance(answer, str) else answer)


def chatty(messages: list[dict[str, Any]]) -> str:
    """Answer at some length, always the same for the same number of messages and prompt."""
    last = text_of(messages[-1])[-60:]
    return prompt_of(300, seed=sum(map(ord, last)))


async def talk(session: Session, turns: int, first: int = 0) -> None:
    """Hold some turns, whose prompts differ."""
    for number in range(first, first + turns):
        await (await session.run(f"Question {number}: {prompt_of(150, seed=1000 + number)}")).wait()


def chat(turns: int) -> Talk:
    """Return a conversation."""

    async def hold(manager: AsyncSessionManager) -> None:
        session = await manager.open("chat")
        await talk(session, turns)

    return hold


def forks(turns: int) -> Talk:
    """Return a conversation that is forked three times, each of which goes on."""

    async def hold(manager: AsyncSessionManager) -> None:
        session = await manager.open("chat")
        await talk(session, turns)
        for number in range(3):
            await talk(await session.fork(), turns // 2, first=100 * number + 100)

    return hold


def remembering(turns: int, *, learns: bool) -> Talk:
    """Return a conversation of a user about whom much is known, and who is learnt more about if `learns`."""

    async def hold(manager: AsyncSessionManager) -> None:
        session = await manager.open("chat")
        for number in range(MEMORIES):
            await session.memory.save(f"Fact {number} is {prompt_of(80, seed=1000 + number)}")
        for number in range(8):
            wish = await session.memory.save(f"She wants, as wish {number}, that {prompt_of(60, seed=500 + number)}")
            await session.memory.pin(wish)
        for number in range(turns):
            if learns and number % 5 == 4:
                await session.memory.pin(await session.memory.save(f"Newly, {prompt_of(70, seed=700 + number)}"))
            await talk(session, 1, first=number)

    return hold


async def _measured(
    hold: Talk, reply: Callable[[list[dict[str, Any]]], Any], *, tools: Sequence[Any] = (), **settings: Any
) -> Reuse:
    recorder = Recorder(reply)
    is_bounded = "overflow" in settings
    bounds: dict[str, Any] = {
        "max_context_tokens": WINDOW,
        "reserve_output_tokens": 1000,
        "token_counter": ByteCounter(),
    }
    config = SessionConfig(**bounds) if is_bounded else SessionConfig()
    with LocalProvider(reply=recorder) as provider:
        engine = OpenAIEngine("local", base_url=provider.base_url, system=SYSTEM, tools=tools)
        overflow = settings.pop("overflow", lambda engine: None)(engine)
        settings |= {"engine": engine, "overflow": overflow, "config": config, "placement": InProcess()}
        async with AsyncSessionManager(f"memory://prefix-{new_id()}", **settings) as manager:
            await hold(manager)
        recorder.count([request.body for request in provider.requests])
    return recorder.reuse


STRATEGIES: dict[str, Callable[[Any], Any]] = {
    "Trim": lambda engine: Trim(),
    "DeleteOldest, 10 at once": lambda engine: DeleteOldest(10),
    "KeepLast, 20 turns": lambda engine: KeepLast(turns=20),
    "Summarize": Summarize,
    "FlushToMemory": lambda engine: FlushToMemory(),
}


def measure(table: Table, *, turns: int) -> None:
    """Measure and print all of it."""
    script = tool_script([[("look_up", {"word": "leave"})], [("colleagues", {"city": "Ghent"})], "That is all."])

    def memory() -> list[LexicalMemory]:
        return [LexicalMemory(InMemoryItems())]

    cases: dict[str, Any] = {
        "a chat": _measured(chat(turns), chatty),
        "an agent with tools": _measured(chat(turns // 2), script, tools=[look_up, colleagues]),
        "three forks of a chat": _measured(forks(turns // 2), chatty),
        "a chat with memory": _measured(remembering(turns, learns=False), chatty, memory=memory()),
        "a chat with memory that learns": _measured(remembering(turns, learns=True), chatty, memory=memory()),
        "an agent with tools and memory": _measured(
            remembering(turns // 2, learns=False), script, tools=[look_up, colleagues], memory=memory()
        ),
        **{
            f"a long chat, {name}": _measured(
                chat(turns * 4), chatty, overflow=strategy, memory=memory() if name == "FlushToMemory" else []
            )
            for name, strategy in STRATEGIES.items()
        },
    }
    for name, case in cases.items():
        reuse = asyncio.run(case)
        shown = f"{reuse.share:.1%} reused of {reuse.tokens:,} tokens, {reuse.possible / reuse.tokens:.1%} possible"
        table.line(f"prefix of {name}", result=shown)
        table.judge("  of what is possible", reuse.of_possible, GOAL, "", bound="least")
