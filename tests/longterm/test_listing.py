"""Lists of what memories keep, page by page and without a query: each memory alone, and all of a session."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from memories.session_memories import Book
from stored.open_stores import closing
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.memory.session_memory_access import SessionMemoryAccess
from turnwise.errors import InvalidInputError, NoMemoryError, ReadOnlyMemoryError
from turnwise.memory.longterm.base import LongTermMemory, MemoryItem, Scope
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.redis import RedisItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.static import StaticMemory
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.memory.working.memory import WorkingMemory

ADA, CLERK = Scope(user_id="ada"), Scope(user_id="ada", session_id="s", agent="clerk")
MADE: dict[str, Callable[[str], Any]] = {
    "facts": lambda _: LexicalMemory(InMemoryItems()),
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


def item(id: str, type: MemoryType = MemoryType.FACTS, **more: Any) -> MemoryItem:
    return MemoryItem(id=id, text=f"Likes figs, as item {id} says.", type=type, **more)


async def ids(memory: Any, scope: Scope = CLERK, **options: Any) -> list[str]:
    """Return the ids of all pages."""
    result: list[str] = []
    cursor = None
    while True:
        page = await memory.list_items(scope, cursor=cursor, **options)
        result += [entry.id for entry in page]
        cursor = page.cursor
        if cursor is None:
            return result
        assert page.items, "a page before the last has items"


async def test_a_memory_lists_what_the_scope_sees_page_by_page(memory: LongTermMemory) -> None:
    async with closing(memory):
        for number in range(1, 8):
            await memory.remember(CLERK, [item(f"{number}", created_at=float(number))])
        await memory.remember(CLERK, [item("rule", MemoryType.SKILL, created_at=8.0)])
        await memory.remember(Scope(user_id="ada", agent="other"), [item("other", MemoryType.SKILL, created_at=9.0)])
        await memory.remember(Scope(user_id="bob"), [item("bob", created_at=10.0)])
        await memory.update(ADA, "2", status="resolved")
        await memory.forget(ADA, ["5"])
        everything = ["rule", "7", "6", "4", "3", "2", "1"]
        for limit in (1, 2, 6, 7, 100):
            assert await ids(memory, limit=limit) == everything
        assert await ids(memory, ADA, limit=3) == everything[1:]
        assert await ids(memory, types=[MemoryType.SKILL]) == ["rule"]
        assert await ids(memory, types=["facts"], limit=2) == everything[1:]
        assert await ids(memory, Scope(user_id="nobody")) == []
        lists: Any = memory
        for wrong in ({"limit": 0}, {"cursor": "over there"}, {"types": ["fact"]}, {"types": "facts"}):
            with pytest.raises(InvalidInputError):
                await lists.list_items(CLERK, **wrong)


async def test_a_recall_of_no_type_is_refused(memory: LongTermMemory) -> None:
    async with closing(memory):
        await memory.remember(ADA, [item("1")])
        assert len(await memory.recall(ADA, "figs", types=["facts"])) == 1  # type: ignore[list-item]
        for wrong in (["fact"], "facts", [7]):
            with pytest.raises(InvalidInputError, match=r"types=.*must be a list of preferences, facts"):
                await memory.recall(ADA, "figs", types=wrong)  # type: ignore[arg-type]


async def test_a_vector_memory_lists_all_of_many_items_of_other_agents(tmp_path: Path) -> None:
    memory = VectorMemory(tmp_path / "items.db", embedding=None)
    async with closing(memory):
        other_scope = Scope(user_id="ada", agent="other")
        await memory.remember(CLERK, [item("first", MemoryType.SKILL)])
        await memory.remember(other_scope, [item(f"{number}", MemoryType.SKILL) for number in range(250)])
        await memory.remember(CLERK, [item("last", MemoryType.SKILL)])
        assert await ids(memory, limit=1) == ["last", "first"]
        assert await ids(memory, other_scope, limit=125) == [f"{number}" for number in reversed(range(250))]


async def test_static_facts_are_listed_in_their_order() -> None:
    assert await ids(StaticMemory(["one", "two", "three"]), limit=2) == ["1", "2", "3"]
    facts = InMemoryItems()
    await facts.put(Scope(user_id="everyone"), [item("a", created_at=1.0), item("b", created_at=2.0)])
    assert await ids(StaticMemory(facts), limit=1) == ["b", "a"]


def access(**memories: Any) -> SessionMemoryAccess:
    slots = [MemorySlot(memory=memory, name=name, section=None) for name, memory in memories.items()]
    return SessionMemoryAccess(CLERK, slots, WorkingMemory(InMemoryItems()))


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 100])
async def test_a_session_lists_one_memory_after_the_other(limit: int) -> None:
    first, empty, last = (LexicalMemory(InMemoryItems()) for _ in range(3))
    memory = access(handbook=StaticMemory(["a rule"]), first=first, book=Book(), empty=empty, last=last)
    for number in (1, 2, 3):
        await memory.save(f"Likes figs {number}.", id=f"first {number}", memory="first")
        await memory.save(f"Likes dates {number}.", id=f"last {number}", memory="last", type=MemoryType.SKILL)

    async def listed(**options: Any) -> list[str]:
        list_page = partial(memory.list_items, **options)

        class Named:
            async def list_items(self, scope: Scope, **page: Any) -> Any:
                result = await list_page(**page)
                assert all(entry.id.startswith(entry.memory or "?") for entry in result if entry.memory != "handbook")
                return result

        return await ids(Named(), limit=limit)

    assert sorted(await listed()) == ["first 1", "first 2", "first 3", "last 1", "last 2", "last 3"]
    assert {text.split()[0] for text in (await listed())[:3]} == {"first"}
    assert sorted(await listed(memory="last")) == ["last 1", "last 2", "last 3"]
    assert await listed(memory="handbook") == ["1"]
    assert await listed(types=[MemoryType.FACTS]) == []
    for cursor in ("over there", "", "nobody:1", "handbook:1", "first:x"):
        with pytest.raises(InvalidInputError, match="cursor"):
            await memory.list_items(cursor=cursor or "?")


async def test_saving_is_told_which_memory_and_wrong_names_are_refused() -> None:
    memory = access(handbook=StaticMemory(["a rule"]), first=LexicalMemory(InMemoryItems()), book=Book())
    await memory.save("Likes figs.", id="kept", memory="book")
    assert [entry.memory for entry in await memory.recall("Likes figs.") if entry.id == "kept"] == ["book"]
    assert [entry.text for entry in await memory.recall("Likes figs.")] == ["Likes figs.", "a rule"]
    ways: list[Callable[..., Any]] = [partial(memory.save, "figs"), memory.list_items]
    for way in ways:
        with pytest.raises(InvalidInputError, match="memory='shelf': must be one of handbook, first, book"):
            await way(memory="shelf")
    with pytest.raises(ReadOnlyMemoryError, match="handbook"):
        await memory.save("figs", memory="handbook")
    with pytest.raises(NoMemoryError, match="list its items"):
        await memory.list_items(memory="book")


@pytest.mark.parametrize("order", [["handbook", "first"], ["first", "handbook"]])
async def test_items_that_do_not_bear_on_the_query_come_after_those_of_all_memories_that_do(order: list[str]) -> None:
    rules = StaticMemory(["Leave is sixteen weeks.", "Warnings are written on Mondays."])
    memories = {"handbook": rules, "first": LexicalMemory(InMemoryItems())}
    memory = access(**{name: memories[name] for name in order})
    for text in ("Sarah likes to be written to.", "Sarah sails at weekends."):
        await memory.save(text)

    *relevant, last = await memory.recall("How does she like to be written to?")
    assert [entry.memory for entry in relevant] == order
    assert (last.text, last.score) == ("Leave is sixteen weeks.", 0.0)

    (best,) = await memory.recall("Does Sarah sail?", limit=1)
    assert best.text == "Sarah sails at weekends."
    (rest,) = await memory.recall("Quantum chromodynamics?", limit=1)
    assert rest.score == 0


async def test_notes_are_cleared_to_the_first_text_of_their_format() -> None:
    memory = access(first=LexicalMemory(InMemoryItems()))
    assert not await memory.clear_notes()
    await memory.replace_notes("buy figs")
    assert await memory.clear_notes() and await memory.read_notes() == ""
    reading = SessionMemoryAccess(CLERK, [], WorkingMemory(InMemoryItems()), is_reading=True)
    with pytest.raises(ReadOnlyMemoryError):
        await reading.clear_notes()
