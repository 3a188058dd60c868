"""The laws of a `LongTermMemory` that is for reading; see `stores/conformance` for how to run laws."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from turnwise.errors import ReadOnlyMemoryError
from turnwise.memory.longterm.base import LongTermMemory, MemoryItem, Scope, is_read_only
from turnwise.memory.longterm.types import MemoryType
from turnwise.memory.stores.conformance.laws import equal, refuses

ITEMS = (
    MemoryItem(id="leave", text="Parental leave is sixteen weeks.", type=MemoryType.FACTS, created_at=1.5),
    MemoryItem(id="lift", text="In a fire nobody takes the elevator.", type=MemoryType.INSTRUCTIONS, created_at=2.5),
    *(MemoryItem(id=f"desk {at}", text=f"Desk {at} stands in hall{at}.", created_at=3.5) for at in range(20)),
)
"""What the memory holds."""

_READERS = (
    Scope(user_id="u", session_id="s", agent="a"),
    Scope(user_id="user-1"),
    Scope(user_id="user-10", session_id="t"),
)


async def check_read_only_memory(make_memory: Callable[[Sequence[MemoryItem]], LongTermMemory]) -> None:
    """Check that everybody recalls what it has, by its words and best first, and that nobody changes it.

    Args:
        make_memory: makes a memory that holds these items.

    Raises:
        AssertionError: it breaks a law; says which.
    """
    memory = make_memory(ITEMS)
    equal(is_read_only(memory), True, "whether it says that it is for reading")
    for _ in range(2):
        for scope in _READERS:
            for item in ITEMS:
                equal(list(await memory.recall(scope, item.text))[:1], [item], f"what is first by {item.text!r}")
        await _check_filters(memory)
        for scope in _READERS:
            await _check_refusals(memory, scope)
    found = await asyncio.gather(*(memory.recall(scope, "parental leave", limit=1) for scope in _READERS * 20))
    equal({tuple(item.id for item in each) for each in found}, {("leave",)}, "what many recall at once")
    await memory.close()
    await memory.close()


async def _check_filters(memory: LongTermMemory) -> None:
    scope = _READERS[0]
    equal(len(await memory.recall(scope, "Which desk stands where?", limit=3)), 3, "how many of 3")
    typed = await memory.recall(scope, "fire elevator leave", types=[MemoryType.INSTRUCTIONS])
    equal([item.id for item in typed], ["lift"], "what is of a type")
    past = await memory.recall(scope, "fire elevator leave", as_of=2.0)
    equal([item.id for item in past], ["leave"], "what held before the other came")
    equal(list(await memory.recall(scope, "Quantum chromodynamics?")), [], "what has to do with nothing")


async def _check_refusals(memory: LongTermMemory, scope: Scope) -> None:
    item = MemoryItem(id="new", text="Parental leave is a year.", created_at=9.0)
    await refuses(ReadOnlyMemoryError, memory.remember(scope, [item]), "remember")
    await refuses(ReadOnlyMemoryError, memory.update(scope, "leave", item.text), "update")
    await refuses(ReadOnlyMemoryError, memory.forget(scope, ["leave"]), "forget one")
    await refuses(ReadOnlyMemoryError, memory.forget(scope), "forget all")
