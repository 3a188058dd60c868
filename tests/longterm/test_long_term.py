"""The laws of `LongTermMemory` on `LexicalMemory`, with each item store."""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from turnwise import EchoEngine, ExtractiveMemory, VectorMemory, WorkingMemory
from turnwise.errors import ConfigError, InvalidMemoryError
from turnwise.memory.longterm import conformance as contract
from turnwise.memory.longterm.base import LongTermMemory, MemoryItem, Scope, is_read_only
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.stores.conformance.laws import Law, check_law

USER = Scope(user_id="u")


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def make_memory(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], LongTermMemory]:
    """Opens memories on the same data, empty at first."""
    if request.param == "memory":
        facts = InMemoryItems()
        return lambda: LexicalMemory(facts)
    url = f"sqlite:///{tmp_path}/facts.db" if request.param == "sqlite" else request.getfixturevalue("database")
    return lambda: LexicalMemory(SQLItems(url))


@pytest.mark.parametrize("law", contract.LAWS, ids=lambda law: law.__name__.removeprefix("check_"))
def test_memories_obey_the_law_that(law: Law, make_memory: Callable[[], LongTermMemory]) -> None:
    """Cases 50, 51, 52 and 54, as each law says."""
    asyncio.run(check_law(law, make_memory))


def test_a_broken_law_of_memories_is_named() -> None:
    class Chatty(LexicalMemory):
        async def forget(self, scope: Scope, ids: Collection[str] | None = None, **which: Any) -> int:
            return len(ids or ())

    memories: dict[str, LongTermMemory] = {}
    make = partial(Chatty, InMemoryItems())
    with pytest.raises(AssertionError, match=r"^check_an_agent_recalls_its_items.*: how many were there of another"):
        asyncio.run(contract.check_memory(lambda law: memories.setdefault(law, Chatty(InMemoryItems()))))
    assert not is_read_only(make())


def test_the_suite_contains_every_law() -> None:
    checks = [value for name, value in vars(contract).items() if name.startswith("check_")]
    laws = [
        check for check in checks if check not in (contract.check_memory, contract.check_read_only_memory, check_law)
    ]
    assert laws == list(contract.LAWS)


async def test_items_without_a_time_get_the_present_time() -> None:
    times = iter((5.0, 5.5, 6.0, 7.0))
    memory = LexicalMemory(InMemoryItems(), clock=lambda: next(times))
    await memory.remember(
        USER, [MemoryItem(id="1", text="Likes figs."), MemoryItem(id="2", text="Figs", created_at=1.0)]
    )
    created_at = {item.id: item.created_at for item in await memory.recall(USER, "figs")}
    assert created_at == {"1": 5.0, "2": 1.0}
    assert await memory.update(USER, "1", "Loves figs.", type=MemoryType.PREFERENCES)
    (item,) = await memory.recall(USER, "figs", types=[MemoryType.PREFERENCES])
    assert (item.text, item.created_at, item.updated_at) == ("Loves figs.", 5.0, 6.0)


async def test_one_invalid_item_refuses_the_whole_call() -> None:
    memory = LexicalMemory(InMemoryItems())
    no_type = MemoryItem(id="2", text="x", type="no")  # type: ignore[arg-type]
    for wrong in (MemoryItem(id="2", text=" "), MemoryItem(id="", text="x"), no_type):
        with pytest.raises(InvalidMemoryError):
            await memory.remember(USER, [MemoryItem(id="1", text="figs"), wrong])
    assert await memory.recall(USER, "figs") == []
    assert repr(memory).startswith("LexicalMemory(<turnwise.memory.longterm.items.in_memory.InMemoryItems")


@pytest.mark.parametrize("place", [7, None, b"facts.db", ["facts.db"]], ids=repr)
def test_a_place_that_is_none_is_refused_before_anything_is_saved(place: Any) -> None:
    for make in (LexicalMemory, VectorMemory, WorkingMemory, partial(ExtractiveMemory, EchoEngine())):
        with pytest.raises(ConfigError, match="pass the path of a SQLite file"):
            make(place)
