"""Measures the turns of other users while users are forgotten."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from harness import Samples, Table, prompt_of, retire
from long_term.remembering import Model, vector_memory
from turnwise import Session, SessionManager
from turnwise.memories import Scope
from turnwise.memory.longterm.base import MemoryItem

CHATTERS = 4
"""The number of users who chat, each one turn after the other."""


def forgets(table: Table, manage: Callable[..., SessionManager], folder: Path, users: int, rounds: int) -> None:
    """Measure turns while users with 100 items each are forgotten, alternating with as many turns without that."""
    items_each = 100
    memory = vector_memory(folder, "crowded")

    async def fill() -> None:
        for user in range(users):
            texts = [prompt_of(200, user * items_each + number) for number in range(items_each)]
            items = [MemoryItem(id=str(number), text=text) for number, text in enumerate(texts)]
            await memory.remember(Scope(user_id=f"user-{user}"), items)
        await memory.close()

    asyncio.run(fill())
    alone, beside, turn_samples = Samples(), Samples(), Samples()
    verified = []
    with manage("crowded", Model(), memories=[vector_memory(folder, "crowded")]) as manager:
        chats = [manager.open(user_id=f"user-{number}") for number in range(CHATTERS)]
        for chat in chats:
            chat.run(prompt_of(60)).wait()
        leavers = iter(range(CHATTERS, users))
        for _ in range(rounds):
            with turn_samples.timed():
                _chat(chats, beside, lambda: verified.append(manager.forget(f"user-{next(leavers)}").verified))
            _chat(chats, alone, partial(time.sleep, turn_samples[-1]))
        for chat in chats:
            retire(chat)
    several = f"{users * items_each:,} items of {users} users"
    table.line(
        f"turn beside {CHATTERS - 1} others, {several}", alone, f"floor, p95 {alone.percentile(95) * 1000:.1f} ms"
    )
    table.judge(
        "  while users are forgotten: p95",
        beside.percentile(95) / alone.percentile(95),
        1.5,
        samples=beside,
    )
    table.line("manager.forget() of a user, verified", turn_samples, f"{sum(verified)} of {len(verified)} verified")


def _chat(chats: list[Session], samples: Samples, work: Callable[[], object]) -> None:
    """Let all users chat until the work is done."""
    done = threading.Event()

    def talk(chat: Session) -> None:
        number = 0
        while not done.is_set():
            number += 1
            with samples.timed():
                chat.run(prompt_of(100, number)).wait()

    with ThreadPoolExecutor(len(chats)) as threads:
        talks = [threads.submit(talk, chat) for chat in chats]
        try:
            work()
        finally:
            done.set()
        for task in talks:
            task.result()
