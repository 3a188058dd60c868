"""Changes of `TurnwiseSession` whose answer was lost are made once if they are repeated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from turnwise.actors.client.session import AsyncSession
from turnwise.actors.inference.no_answer import NoAnswer
from turnwise.actors.session.core import SessionCore
from turnwise.adapters import TurnwiseSession
from turnwise.errors import StoreError
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.views.notebook_display import ListPage
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.values.ids import new_id
from turnwise.testing.schedules import inline

HELLO, AGAIN = {"role": "user", "content": "hello"}, {"role": "user", "content": "again"}


class Direct(AsyncSession):
    """A session that asks its core without Ray, and loses answers of `append`."""

    def __init__(self, core: SessionCore) -> None:
        self.session_id = "s"
        self.core = core
        self.fault: str | None = None
        """Whether the next append is lost before it is stored (`call`), or its answer behind it (`answer`)."""

    async def turns(self, after: int = -1, limit: int = 100) -> ListPage[Turn]:
        return ListPage(await self.core.reads.turns(after, limit))

    async def append(self, *prompts: Any) -> Turn:
        fault, self.fault = self.fault, None
        if fault == "call":
            raise StoreError("the store is away")
        index = await self.core.admission.append(prompts, new_id())
        if fault == "answer":
            raise StoreError("the connection broke")
        return (await self.turns(index - 1, 1))[0]


async def opened() -> tuple[TurnwiseSession, Direct]:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id="s"))
    session = Direct(SessionCore(SessionKey("s"), store, NoAnswer(), off_loop=inline))
    return TurnwiseSession(session), session


@pytest.mark.parametrize("fault", ["call", "answer"])
async def test_items_that_are_added_again_are_there_once(fault: str) -> None:
    history, session = await opened()
    await history.add_items([AGAIN])
    for items in ([HELLO, HELLO], [AGAIN]):
        session.fault = fault
        with pytest.raises(StoreError):
            await history.add_items(items)
        await history.add_items(items)
    assert await history.get_items() == [AGAIN, HELLO, HELLO, AGAIN]
    await history.add_items([AGAIN])
    assert await history.get_items() == [AGAIN, HELLO, HELLO, AGAIN, AGAIN], "another call is another change"


@pytest.mark.parametrize("fault", ["call", "answer"])
async def test_a_pop_that_is_repeated_removes_one_item_and_returns_it(fault: str) -> None:
    history, session = await opened()
    await history.add_items([HELLO, AGAIN])
    for item in (AGAIN, HELLO):
        session.fault = fault
        with pytest.raises(StoreError):
            await history.pop_item()
        assert await history.pop_item() == item
    assert await history.pop_item() is None and await history.get_items() == []


@pytest.mark.parametrize("fault", ["call", "answer"])
async def test_another_change_after_a_lost_answer_is_made(fault: str) -> None:
    history, session = await opened()
    session.fault = fault
    with pytest.raises(StoreError):
        await history.add_items([HELLO])
    await history.add_items([AGAIN])
    await history.add_items([HELLO])
    assert await history.get_items() == [HELLO] * (fault == "answer") + [AGAIN, HELLO]


@pytest.mark.parametrize("fault", ["call", "answer"])
async def test_a_run_that_is_repeated_adds_its_items_once(fault: str) -> None:
    history, session = await opened()
    session.fault = fault
    with pytest.raises(StoreError):
        await history.add_items([HELLO], wrapper=SimpleNamespace)
    await history.get_items(wrapper=SimpleNamespace)
    await history.add_items([HELLO], wrapper=SimpleNamespace)
    assert await history.get_items() == [HELLO]
