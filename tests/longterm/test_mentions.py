"""What memories have about a subject, of turns, and by ids: each memory alone, on each store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stored.open_stores import closing
from turnwise.errors import InvalidInputError
from turnwise.memory.longterm.base import MemoryItem, Mentioning, Scope, Source
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.items import mentions as mentions_of_stores
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.redis import RedisItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.vector import VectorMemory

ADA, CLERK, BOB = Scope(user_id="ada"), Scope(user_id="ada", session_id="t", agent="clerk"), Scope(user_id="bob")
MADE: dict[str, Callable[[str], Any]] = {
    "memory": lambda _: LexicalMemory(InMemoryItems()),
    "sqlite": lambda url: LexicalMemory(SQLItems(url)),
    "postgresql": lambda url: LexicalMemory(SQLItems(url)),
    "redis": lambda url: LexicalMemory(RedisItems(url)),
    "extractive": lambda url: ExtractiveMemory(None, SQLItems(url)),
    "vector": lambda url: VectorMemory(url, embedding=None),
}


@pytest.fixture(params=MADE)
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    fixtures = {"postgresql": "database", "redis": "redis_url"}
    url = f"sqlite:///{tmp_path}/items.db"
    if request.param in fixtures:
        url = request.getfixturevalue(fixtures[request.param])
    return MADE[request.param](url)


def item(id: str, text: str, session: str | None = None, turn: int | None = None, **more: Any) -> MemoryItem:
    return MemoryItem(id=id, text=text, source=Source(session_id=session, turn_index=turn), created_at=1.0, **more)


async def ids(memory: Any, scope: Scope, text: str | None = None, **options: Any) -> list[str]:
    return sorted(entry.id for entry in await memory.mentions(scope, text, **options))


async def test_a_memory_finds_items_by_what_they_say_by_their_turns_and_by_their_ids(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mentions_of_stores, "_PAGE", 2)
    monkeypatch.setattr(mentions_of_stores, "FEW", 2)
    items = [
        item("says", "The user drives a Volvo."),
        item("named", "The user drives to work.", name="Volvo"),
        item("done", "Drove a Volvo.", status="resolved"),
        item("late", "Driving the Volvo.", expires_at=2.0),
        item("shares", "The user has a Volvo."),
        *(item(f"{session}{turn}", "Rain.", session, turn) for session in "st" for turn in (0, 1, 2)),
    ]
    async with closing(memory):
        is_mentioning = isinstance(memory, Mentioning)
        assert is_mentioning
        await memory.remember(ADA, items)
        await memory.remember(CLERK, [item("skill", "Drive a Volvo.", "s", 0, type=MemoryType.SKILL)])
        await memory.remember(BOB, [item("says", "The user drives a Volvo."), item("bob", "Rain.", "s", 0)])
        assert await ids(memory, ADA, "I drive a Volvo") == ["done", "late", "named", "says"]
        assert await ids(memory, CLERK, "I drive a Volvo") == ["done", "late", "named", "says", "skill"]
        assert await ids(memory, BOB, "I drive a Volvo") == ["says"]
        assert await ids(memory, ADA, turns=[("s", 0)]) == ["s0"]
        for turns in ([("s", 0), ("t", 2), ("u", 0)], [("s", 0), ("t", 2)]):
            assert await ids(memory, ADA, turns=turns) == ["s0", "t2"], "one by one, or all at once"
        assert await ids(memory, ADA, "have a Volvo in the rain", turns=[("t", 1)], ids=["s2", "bob"]) == ["s2", "t1"]
        assert await ids(memory, ADA) == []
        with pytest.raises(InvalidInputError, match="no word"):
            await memory.mentions(ADA, "that I am")
