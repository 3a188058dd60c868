"""`recall(as_of=...)`: what memories had at a time, and before a turn, for callers of both families."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from filled import turnwise

from turnwise import AsyncSessionManager, EchoEngine, LexicalMemory, SessionManager, StaticMemory, VectorMemory
from turnwise.actors.hosting.placement import InProcess
from turnwise.errors import InvalidInputError
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.retention.retention import Retention


def manager_of(tmp_path: Path, *memories: Any) -> SessionManager:
    url = f"sqlite:///{tmp_path}/chats.db"
    return SessionManager(url, engine=EchoEngine(), memory=memories, placement=InProcess())


def test_a_turn_is_not_helped_by_itself_and_by_what_came_later(tmp_path: Path) -> None:
    with manager_of(tmp_path, VectorMemory(f"{tmp_path}/memory.db", embedding=None)) as manager:
        chat = manager.open(user_id="ann")
        turns = []
        for place in ("Oslo", "Rome", "Bern"):
            turns.append(chat.run(f"My holiday is in {place}.").wait())
            chat.memory.wait()
        texts = [{item.text.split()[5] for item in chat.memory.recall("holiday", as_of=turn)} for turn in turns]
        assert texts == [set(), {"Oslo."}, {"Oslo.", "Rome."}]
        assert len(chat.memory.recall("holiday", as_of=turns[2].created_at)) == 3
        chat.memory.forget(turn_index=0)
        past = chat.memory.recall("holiday", as_of=turns[2])
        assert [item.source.turn_index for item in past] == [1] and past.trouble is None, "what is forgotten stays so"
        for wrong in ("yesterday", True, float("nan")):
            with pytest.raises(InvalidInputError, match="as_of"):
                chat.memory.recall("holiday", as_of=wrong)  # type: ignore[arg-type]


async def test_what_was_changed_since_is_left_out_and_the_answer_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    items = InMemoryItems()
    texts = {"boat": "Ann's boat is in the harbour.", "bar": "The harbour has a bar."}
    saved = [MemoryItem(id=name, text=text, created_at=100.0) for name, text in texts.items()]
    await items.put(Scope(user_id="ann"), saved)
    memories: list[Any] = [LexicalMemory(items), StaticMemory(["The harbour opens at six."])]
    async with AsyncSessionManager(url, engine=EchoEngine(), memory=memories, placement=InProcess()) as manager:
        chat = await manager.open(user_id="ann")
        turn = await (await chat.run("Hello.")).wait()
        await chat.memory.update("boat", "Ann's boat is not in the harbour any more.")
        past = await chat.memory.recall("harbour", as_of=turn)
        assert {item.text for item in past} == {"The harbour has a bar.", "The harbour opens at six."}
        assert past.trouble == (
            "LexicalMemory: 1 item of that time was changed since and left out, since what was said before a change is"
            " not kept"
        )
        now = await chat.memory.recall("harbour")
        assert len(now) == 3 and now.trouble is None


async def test_looking_back_counts_as_no_use_of_an_item() -> None:
    times = [100.0]
    retention = Retention(86_400)
    memory = LexicalMemory(InMemoryItems(), retention=retention, clock=lambda: times[0])
    scope = Scope(user_id="ann")
    await memory.remember(scope, [MemoryItem(id="boat", text="Ann has a boat.", created_at=100.0)])
    times[0] += 80_000
    assert len(await memory.recall(scope, "boat", as_of=200.0)) == 1
    times[0] += 80_000
    assert await memory.sweep() == 1
    await memory.close()


def test_the_command_line_finds_what_was_valid_then(tmp_path: Path) -> None:
    items = SQLItems(f"sqlite:///{tmp_path}/memory.db")
    at = datetime(2026, 5, 1, tzinfo=UTC).timestamp()
    dated = [MemoryItem(id=f"{day}", text=f"A boat on day {day}.", created_at=at + day * 86_400) for day in (0, 2)]

    async def keep() -> None:
        await items.put(Scope(user_id="ann"), dated)
        await items.close()

    asyncio.run(keep())
    asked = ["memory", "search", f"sqlite:///{tmp_path}/memory.db", "boat", "--user", "ann"]
    ran = turnwise(*asked, "--as-of", "2026-05-02T00:00:00+00:00")
    assert ran.exit_code == 0 and "day 0" in ran.stdout and "day 2" not in ran.stdout
    assert "day 2" in turnwise(*asked).stdout
    assert "is no time such as" in turnwise(*asked, "--as-of", "noon").stderr
