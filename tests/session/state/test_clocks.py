"""Nodes whose clocks are wrong: the store's clock tells the times of sessions, and turns tell the order of facts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Self

import pytest

from turnwise.actors.client.expiry import sweep
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.session.core import SessionCore
from turnwise.memory.archive.expiry import Swept
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.longterm.base import MemoryItem, Scope, Source
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory, _is_older_news
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.conformance.fixtures import a_session
from turnwise.memory.stores.in_memory import InMemoryStore

DAY_S = 86400.0


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def call() -> None:
        await asyncio.wait_for(story(), 30)

    asyncio.run(call())


async def run(store: SessionStore, prompt: str) -> None:
    """Run a prompt in a process of its own."""
    core = SessionCore(SessionKey("s"), store, EchoEngine())
    await core.admission.start([prompt], run_id=prompt)
    await core.reads.wait(prompt)
    await core.ownership.leave()


def test_the_clock_of_the_store_tells_when_a_session_was_used_and_not_that_of_a_node() -> None:
    async def story() -> None:
        store = InMemoryStore(clock=lambda: DAY_S)  # decades from what this node says
        await store.create(a_session())
        await run(store, "hello")
        assert DAY_S <= (await store.get(SessionKey("s"))).updated_at < DAY_S + 60
        assert all(DAY_S <= event.at < DAY_S + 60 for event in await store.events(SessionKey("s")))
        (turn,) = await store.turns(SessionKey("s"))
        assert DAY_S <= turn.created_at < DAY_S + 60

    play(story)


def test_the_time_of_the_last_commit_never_goes_back() -> None:
    async def story() -> None:
        now = 2 * DAY_S
        store = InMemoryStore(clock=lambda: now)
        await store.create(a_session())
        await run(store, "on a server")
        before = (await store.get(SessionKey("s"))).updated_at
        now = DAY_S  # as after a failover to one that is behind
        await run(store, "on another")
        assert (await store.get(SessionKey("s"))).updated_at >= before

    play(story)


class NoProcesses:
    """The realm of a store that no process uses."""

    portal = None
    has_files = False

    def open_history(self) -> None:
        return None

    @property
    def processes(self) -> Self:
        return self

    async def loaded(self, keys: Collection[SessionKey]) -> Collection[SessionKey]:
        return []

    def drop(self, session_id: str) -> None:
        """It holds no blocks."""


def test_a_sweeper_whose_clock_is_ahead_deletes_nothing_that_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        ahead_s, real = 0.0, time.time
        store = InMemoryStore(clock=lambda: real() + ahead_s)
        await store.create(a_session(ttl_s=60.0))
        await run(store, "hello")
        any_client: Any = NoProcesses()
        monkeypatch.setattr(time, "time", lambda: real() + 300.0)
        assert await sweep(any_client, store, None) == Swept()
        ahead_s = 300.0  # the store's own clock
        assert await sweep(any_client, store, None) == Swept(deleted=(SessionKey("s"),))

    play(story)


def of(session_id: str, turn_index: int) -> Source:
    return Source(session_id=session_id, turn_index=turn_index)


def test_a_later_turn_is_newer_than_an_earlier_one_whatever_clocks_say() -> None:
    async def story() -> None:
        user, facts = Scope(user_id="u"), InMemoryItems()
        old = MemoryItem(id="old", text="Lives in Graz", topic="home", created_at=1000.0, source=of("s", 1))
        new = MemoryItem(id="new", text="Lives in Linz", topic="home", created_at=700.0, source=of("s", 2))
        await facts.put(user, [old, new])
        assert not _is_older_news(new, old) and _is_older_news(old, new)
        memory = ExtractiveMemory(None, facts)
        assert await memory._supersede(user, [("old", "new")]) == ["new"]  # noqa: SLF001 - without a model that decides it
        assert [item.text for item in await memory.recall(user, "lives")] == ["Lives in Linz"]
        elsewhere = MemoryItem(id="x", text="Lives in Wels", topic="home", created_at=900.0, source=of("t", 9))
        assert _is_older_news(elsewhere, old) and not _is_older_news(elsewhere, new)

    play(story)
