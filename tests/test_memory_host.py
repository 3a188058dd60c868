"""The body of a memory's actor, without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from turnwise.actors.memory_actor import MemoryHost
from turnwise.memory.long_term import MemoryItem, Scope

ADA, BOB = Scope(user_id="ada"), Scope(user_id="bob")


class Waiting:
    """Keeps Ada waiting for as long as it is told to, as a model may that is asked."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.kept: list[str] = []

    async def _wait(self, scope: Scope) -> None:
        if scope == ADA:
            await self.goes_on.wait()

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        await self._wait(scope)
        self.kept += [scope.user_id for _ in items]
        return [item.id for item in items]

    async def recall(self, scope: Scope, query: str, **filters: Any) -> Sequence[MemoryItem]:
        await self._wait(scope)
        return [MemoryItem(id="1", text=query)]

    async def update(self, scope: Scope, id: str, text: str, **changes: Any) -> bool:
        return False

    async def forget(self, scope: Scope, ids: Collection[str] | None = None, **which: Any) -> int:
        count = self.kept.count(scope.user_id)
        self.kept = [user for user in self.kept if user != scope.user_id]
        return count

    async def close(self) -> None:
        pass


def test_nobody_waits_for_what_another_asks_and_what_is_forgotten_stays_so() -> None:
    async def story() -> None:
        memory, host = Waiting(), MemoryHost(b"")
        host._opening = asyncio.create_task(asyncio.sleep(0, memory))
        items = [MemoryItem(id="1", text="hello")]
        given = asyncio.create_task(host.do_remember(ADA, items))
        asked = asyncio.create_task(host.do_recall(ADA, "hello"))
        await asyncio.sleep(0.01)
        assert await asyncio.wait_for(host.do_remember(BOB, items), 5) == ["1"]
        assert (await asyncio.wait_for(host.do_recall(BOB, "hello"), 5))[0][0].text == "hello"
        assert await asyncio.wait_for(host.do_forget(BOB, None, None), 5) == 1
        forgotten = asyncio.create_task(host.do_forget(ADA, None, None))
        await asyncio.sleep(0.01)
        assert not (given.done() or asked.done() or forgotten.done())
        memory.goes_on.set()
        assert await given == ["1"] and await forgotten == 1 and not memory.kept
        assert (await asked)[0] and not host._gifts

    asyncio.run(story())
