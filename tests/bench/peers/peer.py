"""What each peer can do, and the model that all of them ask."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

PROMPT, ANSWER = "q" * 180, "a" * 180

History = list[tuple[str, str]]
"""Who said something, and what."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model that always gives the same answer, with a pause before each word."""

    text: str = ANSWER
    pause_s: float = 0.0

    @property
    def tokens(self) -> list[str]:
        return re.findall(r"\S+\s*", self.text)

    async def answer(self) -> str:
        if self.pause_s:
            await asyncio.sleep(self.pause_s * len(self.tokens))
        return self.text

    async def stream(self) -> AsyncIterator[str]:
        for token in self.tokens:
            if self.pause_s:
                await asyncio.sleep(self.pause_s)
            yield token


TALKING = Model("one two three four five six seven eight nine ten", 0.05)
READ = 4
"""How many words of an answer are read before it is stopped, or its process killed."""


class Peer(Protocol):
    """A library with a store in one SQLite file, at its defaults. Conversations are made when they are first used."""

    packages: Sequence[str]

    async def turn(self, chat: str, prompt: str) -> None:
        """Have a prompt answered; on return the turn is stored."""
        ...

    async def one_of_many(self, chat: str, prompt: str) -> None:
        """Do the same as `turn` while others do."""
        ...

    def words(self, chat: str, prompt: str) -> AsyncIterator[str]:
        """Have a prompt answered word by word."""
        ...

    async def stop(self, chat: str, prompt: str, after: int) -> float:
        """Stop an answer after some words; return the seconds from that to its outcome."""
        ...

    async def history(self, chat: str) -> History: ...

    async def close(self) -> None: ...


@runtime_checkable
class Team(Protocol):
    """A peer with agents that ask each other."""

    async def team(self, chat: str, prompt: str) -> None:
        """Have a prompt answered by an agent that asks another one; on return the turn is stored."""
        ...


@runtime_checkable
class Timer(Protocol):
    """A peer with turns that begin by themselves."""

    async def timer(self, chat: str, prompt: str, due_at: float) -> Sequence[float]:
        """Have a prompt answered at a time, and return when that began and when it was stored.

        All times are in seconds since the epoch.
        """
        ...


class Memory(Protocol):
    """A long-term memory with files in a folder."""

    packages: Sequence[str]

    async def save(self, user: str, items: Sequence[tuple[str, str]]) -> None:
        """Keep a user's texts, each with its id."""
        ...

    async def find(self, user: str, prompts: Sequence[str]) -> list[str]:
        """Return the ids of up to ten of the user's texts for the last of the prompts, the best first."""
        ...

    async def close(self) -> None: ...


def embedding() -> Callable[[Sequence[str]], Any]:
    """Return what makes vectors: all-MiniLM-L6-v2, with the weights in the folder that the bench has named."""
    model: Callable[[Sequence[str]], Any] = importlib.import_module("long_term.minilm").MiniLM(
        Path(os.environ["MINILM"])
    )
    return model


async def stop_reader(peer: Peer, chat: str, prompt: str, after: int) -> float:
    """Stop an answer as libraries without a verb for it are stopped: cancel the task that reads."""
    enough, ending = asyncio.Event(), asyncio.Event()

    async def read() -> None:
        count = 0
        async for _ in peer.words(chat, prompt):
            count += 1
            if count == after:
                enough.set()
                await ending.wait()  # whoever stops it is not in the middle of a word

    task: asyncio.Task[Any] = asyncio.create_task(read())
    await asyncio.wait([task, asyncio.create_task(enough.wait())], return_when=asyncio.FIRST_COMPLETED)
    began = asyncio.get_running_loop().time()
    task.cancel()
    await asyncio.wait([task])
    return asyncio.get_running_loop().time() - began
