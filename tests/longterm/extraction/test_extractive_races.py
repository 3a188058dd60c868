"""`ExtractiveMemory` when facts are forgotten while the model reads, and when its process crashes."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from memories.extraction_models import USER, Model, fact, texts, told
from turnwise.errors import StoreError
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.items.base import ItemStore
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.stores.base import Page


@pytest.fixture(params=["memory", "sqlite"])
def facts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ItemStore]:
    """A store that is closed after the test."""
    facts = InMemoryItems() if request.param == "memory" else SQLItems(f"sqlite:///{tmp_path}/facts.db")
    yield facts
    asyncio.run(facts.close())


async def test_only_one_of_several_concurrent_readers_of_an_item_stores_facts(facts: ItemStore) -> None:
    item = told(1, "I live in Graz, and I work as a nurse.")
    started = asyncio.Barrier(3)
    memories = []
    for number in range(3):
        wording = [fact(f"{start} {number} Graz nurse", item.blocks[0].text) for start in ("Lives", "Works")]  # type: ignore[union-attr]
        model = Model(lambda lines, wording=wording: wording[: 1 + len(lines) % 2])  # type: ignore[misc]
        model.during = started.wait
        memories.append(ExtractiveMemory(model, facts))
    await asyncio.gather(*(memory.remember(USER, [item]) for memory in memories))
    stored_texts = await texts(facts)
    assert len({text.split()[1] for text in stored_texts}) == 1, stored_texts
    assert sum(memory.stats["added"] for memory in memories) == len(stored_texts)
    # in one memory, the second waits for the first
    memory = ExtractiveMemory(Model(), facts)
    await asyncio.gather(*(memory.remember(USER, [told(2, "I like figs.")]) for _ in range(5)))
    assert (memory.stats["calls"], memory.stats["checks"]) == (2, 1)


class BreakingItems(InMemoryItems):
    """A store that fails at the call of this number."""

    calls_left = 10**9

    def _check_open(self) -> None:
        self.calls_left -= 1
        if self.calls_left == 0:
            raise StoreError("the power went")


def test_a_crash_at_any_moment_loses_no_fact_and_duplicates_none() -> None:
    async def use(crash: int) -> bool:
        facts = BreakingItems()
        number = 0

        def say(lines: list[dict[str, str]]) -> list[dict[str, Any]]:
            nonlocal number
            number += 1
            old = [line["known"] for line in lines if line.get("text") == "Lives in Vienna"]
            return [
                fact(
                    f"Moved to Graz in {2000 + number}",
                    f"I moved to Graz in {2000 + number}",
                    action="supersede",
                    of=old[:1],
                    topic="home",
                ),
                fact(f"Has worked as a nurse since {2000 + number}", f"I've worked as a nurse since {2000 + number}"),
            ]

        memory = ExtractiveMemory(Model(say), facts)
        await memory.remember(USER, [MemoryItem(id="0", text="Lives in Vienna", topic="Home")])
        years = range(2001, 2003)
        sentences = [f"I moved to Graz in {year}. I've worked as a nurse since {year}." for year in years]
        item = told(1, " ".join(sentences))
        facts.calls_left = crash
        try:
            await memory.remember(USER, [item])
            is_finished = True
        except StoreError:
            is_finished = False
        facts.calls_left = 10**9
        await memory.remember(USER, [item])
        stored_texts = await texts(facts)
        assert [text[:-5] for text in stored_texts] == ["Has worked as a nurse since", "Moved to Graz in"], stored_texts
        assert len({text[-4:] for text in stored_texts}) == 1
        return is_finished

    crash = 1
    while not asyncio.run(use(crash)):
        crash += 1
    assert crash > 6


@pytest.mark.parametrize("call", ["during", "during_check"])
@pytest.mark.parametrize("method", ["session", "user", "item", "turn"])
async def test_items_forgotten_during_a_model_call_give_no_facts(method: str, call: str, facts: ItemStore) -> None:
    model = Model()
    memory = ExtractiveMemory(model, facts)
    item, other_item = told(1, "I live in Graz."), told(2, "I like figs.", session="s2")

    async def forget() -> None:
        if method == "session":
            assert await memory.forget(USER) == 0
        elif method == "user":
            assert await memory.forget(Scope(user_id="u")) == 0
        elif method == "turn":
            await facts.delete(USER, turn_index=1)
        else:
            assert await memory.forget(USER, [item.id]) == 0

    setattr(model, call, forget)
    assert await memory.remember(USER, [item, other_item]) == [item.id, other_item.id]
    remaining = [] if method == "user" else ["I like figs."]
    assert await texts(facts) == remaining
    setattr(model, call, None)
    assert await memory.remember(USER, [item, other_item]) == [item.id, other_item.id]
    assert len(model.calls) == 1 and await texts(facts) == remaining
    assert memory.stats["added"] == len(remaining)


class Gated(InMemoryItems):
    """Lets two tasks make one call at a time, in a given order."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[str, asyncio.Future[None]] = {}

    async def pass_gate(self) -> None:
        if (name := _WHO.get()) is not None:
            self.waiting[name] = asyncio.get_running_loop().create_future()
            await self.waiting[name]

    async def put(self, *args: Any, **kwargs: Any) -> list[str]:
        await self.pass_gate()
        return await super().put(*args, **kwargs)

    async def get(self, *args: Any) -> dict[str, MemoryItem]:
        await self.pass_gate()
        return await super().get(*args)

    async def query(self, *args: Any, **kwargs: Any) -> Page[MemoryItem]:
        await self.pass_gate()
        return await super().query(*args, **kwargs)

    async def change(self, *args: Any, **kwargs: Any) -> MemoryItem | None:
        await self.pass_gate()
        return await super().change(*args, **kwargs)

    async def delete(self, *args: Any, **kwargs: Any) -> list[str]:
        await self.pass_gate()
        return await super().delete(*args, **kwargs)


_WHO: contextvars.ContextVar[str | None] = contextvars.ContextVar("who", default=None)


async def interleave(facts: Gated, first: Awaitable[Any], second: Awaitable[Any], start: int, count: int) -> bool:
    """Let the first task make `start` calls, then the second `count`, then the first all and the second the rest.

    Returns whether both made that many calls.
    """

    async def named(name: str, call: Awaitable[Any]) -> None:
        _WHO.set(name)
        await call

    tasks = {
        "first": asyncio.create_task(named("first", first)),
        "second": asyncio.create_task(named("second", second)),
    }

    async def step(name: str) -> bool:
        while name not in facts.waiting:
            if tasks[name].done():
                return False
            await asyncio.wait([tasks[name]], timeout=0.001)  # something may be on a thread
        facts.waiting.pop(name).set_result(None)
        return True

    async def settled(name: str) -> None:
        while name not in facts.waiting and not tasks[name].done():
            await asyncio.wait([tasks[name]], timeout=0.001)

    enough = True
    for name, steps in (("first", start), ("second", count), ("first", 99), ("second", 99)):
        for _ in range(steps):
            has_called = await step(name)
            enough = enough and (has_called or steps == 99)
            if not has_called:
                break
            await settled(name)
    await asyncio.gather(*tasks.values())
    return enough


@pytest.mark.parametrize("method", ["item", "turn", "session", "user", "old"])
@pytest.mark.parametrize("older", [False, True], ids=["newer", "older"])
def test_no_fact_of_a_forgotten_item_stays_in_any_interleaving(method: str, older: bool) -> None:
    """At each call of one task with any number of calls of the other; the fact to be superseded stays valid."""

    async def story(start: int, count: int) -> bool:
        facts = Gated()
        old = MemoryItem(id="old", text="Lives in Vienna", topic="home", created_at=50.0)

        def say(lines: list[dict[str, str]]) -> list[dict[str, Any]]:
            names = [line["known"] for line in lines if line.get("text") == "Lives in Vienna"]
            moved = fact("Moved to Graz", "I moved to Graz", topic="home", action="supersede", of=names[:1])
            return [moved, fact("I own a boat.", "I own a boat")]

        memory = ExtractiveMemory(Model(say), facts)
        item = told(1, "I moved to Graz. I own a boat.", at=40.0 if older else 60.0)
        await memory.remember(USER, [old])
        ways: dict[str, Callable[[], Awaitable[int]]] = {
            "item": lambda: memory.forget(USER, [item.id]),
            "turn": lambda: memory.forget(USER, turn_index=1),
            "session": lambda: memory.forget(USER),
            "user": lambda: memory.forget(Scope(user_id="u")),
            "old": lambda: memory.forget(USER, ["old"]),
        }
        enough = await interleave(facts, memory.remember(USER, [item]), ways[method](), start, count)
        stored_texts = await texts(facts)
        if method == "old":
            assert stored_texts == ["I own a boat.", "Moved to Graz"], (start, count)
        elif start or method == "item":
            # the record of what is to be read is there when it is forgotten, or was forgotten before
            assert stored_texts == ([] if method == "user" else ["Lives in Vienna"]), (start, count)
        return enough

    for start in range(99):
        if not asyncio.run(story(start, 0)):
            break
        for count in range(1, 99):
            if not asyncio.run(story(start, count)):
                break
    assert start > 5


async def test_facts_left_by_a_crash_after_a_deletion_are_deleted_later() -> None:
    """The next call with the forgotten item deletes the facts extracted from it."""

    facts = BreakingItems()
    model = Model()
    memory = ExtractiveMemory(model, facts)
    item = told(1, "I own a boat.")

    async def forget() -> None:
        await memory.forget(USER, [item.id])
        facts.calls_left = 4  # the forgotten item's facts are put, and the look for its record fails

    model.during = forget
    with pytest.raises(StoreError):
        await memory.remember(USER, [item])
    facts.calls_left = 10**9
    await ExtractiveMemory(model, facts).remember(USER, [item])
    assert await texts(facts) == []
    assert len(model.calls) == 1


@pytest.mark.parametrize("call", ["during", "during_check"])
async def test_a_fact_forgotten_during_a_model_call_is_extracted_again(call: str, facts: ItemStore) -> None:
    for number, action in enumerate(("add", "supersede", "update")):
        model = Model(lambda _, action=action: [fact("I own a boat.", action=action, of=["f1"])])  # type: ignore[misc]
        memory = ExtractiveMemory(model, facts)
        await memory.remember(USER, [MemoryItem(id=f"boat{number}", text="Own a boat")])
        setattr(model, call, partial(memory.forget, Scope(user_id="u"), [f"boat{number}"]))
        await memory.remember(USER, [told(number, "I own a boat.")])
        assert await texts(facts) == ["I own a boat."]
        assert (memory.stats["added"], memory.stats["superseded"]) == (1, 0)
        await memory.forget(USER, [told(number, "I own a boat.").id])
