"""Recalls that are limited in each category by itself: many facts do not displace what has happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stored.open_stores import closing
from turnwise.actors.hosting.memory.memory_host import MemoryHost
from turnwise.memory.longterm.base import MemoryItem, Reminder, Scope, limits_categories
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.static import StaticMemory
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.testing.embedding import HashEmbedding

ADA = Scope(user_id="ada")
QUERY = "What about the harbour crane?"
FACTS = [
    MemoryItem(
        id=f"f{number}",
        text=f"The harbour crane needs harbour oil {number}.",
        type=MemoryType.FACTS,
        created_at=1.0 + number,
    )
    for number in range(12)
]
EPISODES = [
    MemoryItem(id="e1", text="Talked on Monday of the harbour crane.", type=MemoryType.SESSION_SUMMARY, created_at=1.0),
    MemoryItem(id="e2", text="On a visit the harbour crane stood still.", type=MemoryType.CONTEXT, created_at=2.0),
]
SKILL = MemoryItem(
    id="s", text="Before lifting, sound the horn of the harbour crane.", type=MemoryType.SKILL, created_at=3.0
)
ITEMS = [*FACTS, *EPISODES, SKILL]
MADE: dict[str, Callable[[Path], Any]] = {
    "lexical": lambda _: LexicalMemory(InMemoryItems()),
    "extractive": lambda _: ExtractiveMemory(None, InMemoryItems(), profile=()),
    "words": lambda path: VectorMemory(path / "items.db", embedding=None),
    "vectors": lambda path: VectorMemory(path / "items.db", embedding=HashEmbedding(64), keep_s=0),
}


@pytest.mark.parametrize("make", MADE)
async def test_each_category_has_its_own_limit(make: str, tmp_path: Path) -> None:
    async with closing(MADE[make](tmp_path)) as memory:
        await memory.remember(ADA, ITEMS)
        for limit in (1, 2, 10):
            recalled = await memory.recall(ADA, QUERY, limit=limit, per_category=True)
            counts = Counter(item.type.category for item in recalled)
            assert counts == {"semantic": limit, "episodic": min(limit, 2), "procedural": 1}
            assert [item.score for item in recalled] == sorted((item.score for item in recalled), reverse=True)
            profiled = await memory.remind(ADA, QUERY, limit=limit, per_category=True)
            assert [item.id for item in profiled.items] == [item.id for item in recalled]
        types = [MemoryType.FACTS, MemoryType.SKILL]
        recalled = await memory.recall(ADA, QUERY, limit=3, types=types, per_category=True)
        assert Counter(item.type for item in recalled) == {"facts": 3, "skill": 1}
        assert len(await memory.recall(ADA, QUERY, limit=3)) == 3
        assert await memory.recall(ADA, QUERY, limit=0, per_category=True) == []


async def test_static_facts_are_limited_likewise() -> None:
    memory = StaticMemory(ITEMS)
    recalled = await memory.recall(ADA, QUERY, limit=1, per_category=True)
    assert Counter(item.type.category for item in recalled) == {"semantic": 1, "episodic": 1, "procedural": 1}


class Own:
    """An application's own memory without categories."""

    def __init__(self) -> None:
        self.limits: list[Any] = []
        self.inner = LexicalMemory(InMemoryItems())

    async def recall(self, scope: Scope, query: str, **options: Any) -> Sequence[MemoryItem]:
        assert "per_category" not in options
        self.limits.append(options["limit"])
        return await self.inner.recall(scope, query, **options)

    async def remind(self, scope: Scope, query: str, **options: Any) -> Reminder:
        return Reminder(profile=FACTS[:1], items=await self.recall(scope, query, **options))

    async def pin(self, scope: Scope, id: str, pinned: bool) -> bool:
        return False


async def test_a_memory_that_cannot_is_asked_once_for_more() -> None:
    memory: Any = Own()
    host = MemoryHost(lambda: memory)
    assert not limits_categories(memory)
    await memory.inner.remember(ADA, ITEMS)
    recalled = await host.do_recall(ADA, QUERY, limit=5, types=None, as_of=None, per_category=True)
    assert Counter(item.type.category for item in recalled) == {"semantic": 5, "episodic": 2, "procedural": 1}
    assert memory.limits == [15]
    profiled = await host.do_remind(ADA, QUERY, limit=5, types=None, per_category=True)
    assert profiled.profile == FACTS[:1] and len(profiled.items) == 8
    assert len(await host.do_recall(ADA, QUERY, limit=2, types=None, as_of=None)) == 2
