"""Managers that have opened a session with a `ttl_s` delete expired sessions by themselves."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from patience import within
from stored.open_stores import own
from turnwise.actors.client import expiry, steps
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.in_process.runtime import SharedStore, share_store, unshare_store
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import StoreError
from turnwise.memory.archive.expiry import Swept
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.stores.base import Page
from turnwise.memory.stores.in_memory import InMemoryStore

URL = "memory://scheduled-sweeps"

until = within(30.0)

SOON_S = 0.01
"""How often managers ask here whether a sweep is due."""


class Watched(InMemoryStore):
    """A store with a clock that the test sets, which counts what sweeps ask for."""

    def __init__(self) -> None:
        self.time = 100.0
        self.claims: list[float] = []
        self.reads = 0
        """How many pages of expired sessions were read."""
        self.groups: list[int] = []
        """How many sessions each transaction has deleted."""
        self.is_away = False
        super().__init__(clock=lambda: self.time)

    async def claim_sweep(self, every_s: float) -> float:
        self.claims.append(await super().claim_sweep(every_s))
        return self.claims[-1]

    async def expired(self, now: float, *, cursor: str | None = None, limit: int = 100) -> Page[SessionRecord]:
        self.reads += 1
        if self.is_away and cursor is not None:
            raise StoreError("the store is away in the middle of a sweep")
        return await super().expired(now, cursor=cursor, limit=limit)

    async def delete_unchanged(self, sessions: Sequence[SessionRecord]) -> list[SessionKey]:
        deleted = await super().delete_unchanged(sessions)
        self.groups.append(len(deleted))
        return deleted


@pytest.fixture
def store() -> Iterator[Watched]:
    store = Watched()
    share_store(URL, SharedStore(store))  # type: ignore[arg-type]
    yield store
    unshare_store(URL)


def settings(**config: Any) -> dict[str, Any]:
    return {"engine": EchoEngine(), "placement": InProcess(), "config": SessionConfig(**config)}


async def expire(store: Watched, *names: str) -> None:
    """Add sessions of no process, which have expired."""
    for name in names:
        await own(store, name, ttl_s=10.0, updated_at=50.0)


async def seen(holds: Callable[[], object]) -> None:
    """Wait until a condition holds, while the manager of this loop works."""
    await asyncio.to_thread(until, holds)


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def names_in(store: Watched) -> list[str]:
    return sorted(session.session_id for session in await store.query())


async def test_expired_sessions_are_deleted_while_a_manager_is_open(store: Watched) -> None:
    async with AsyncSessionManager(URL, **settings(sweep_every_s=SOON_S)) as manager:
        await manager.open("old", ttl_s=10.0)
        await manager.open("newer", ttl_s=30.0)
        await manager.open("for ever")
        await seen(lambda: store.claims)
        store.time += 20.0
        await seen(lambda: sum(store.groups) == 1)
        assert await names_in(store) == ["for ever", "newer"]


async def test_a_manager_that_is_closed_leaves_no_work_behind(store: Watched) -> None:
    before = asyncio.all_tasks()
    async with AsyncSessionManager(URL, **settings(sweep_every_s=SOON_S)) as manager:
        await manager.open("old", ttl_s=10.0)
        await seen(lambda: store.claims)
    assert asyncio.all_tasks() == before


def test_a_manager_that_blocks_sweeps_in_a_thread_of_its_own(store: Watched) -> None:
    with SessionManager(URL, **settings(sweep_every_s=SOON_S)) as manager:
        manager.open("old", ttl_s=10.0)
        until(lambda: store.claims)
        store.time += 20.0
        until(lambda: manager.count() == 0)


@pytest.mark.parametrize(("every_s", "ttl_s"), [(None, 10.0), (SOON_S, None)])
async def test_no_store_is_swept_unasked(store: Watched, every_s: float | None, ttl_s: float | None) -> None:
    await expire(store, "old")
    async with AsyncSessionManager(URL, **settings(sweep_every_s=every_s)) as manager:
        session = await manager.open("new", ttl_s=ttl_s)
        await (await session.run("hello"))
    assert store.claims == [] and await names_in(store) == ["new", "old"]


async def test_a_session_that_exists_with_a_ttl_begins_the_schedule(store: Watched) -> None:
    await own(store, "kept", ttl_s=10.0, updated_at=99.0)
    async with AsyncSessionManager(URL, **settings()) as manager:
        await manager.open("kept")
        await seen(lambda: store.claims)
    assert store.claims == [3600.0], "the first sweep is due in an hour"


async def test_of_two_managers_one_does_each_sweep(store: Watched) -> None:
    await expire(store, "old")
    both = settings(sweep_every_s=SOON_S)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            manager = await stack.enter_async_context(AsyncSessionManager(URL, **both))
            await manager.open("stays", ttl_s=1e6)
        await seen(lambda: len(store.claims) > 4)
        assert store.reads == 0, "a sweep before it is due"
        store.time += SOON_S
        claims_before = len(store.claims)
        await seen(lambda: len(store.claims) > claims_before + 8)
        assert store.reads == 1 and store.claims.count(0.0) == 1
    assert await names_in(store) == ["stays"]


async def test_a_sweep_that_fails_is_left_to_the_next_manager(store: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "TOGETHER", 2)
    await expire(store, "a", "b", "c")
    store.is_away = True
    async with AsyncSessionManager(URL, **settings(sweep_every_s=SOON_S)) as manager:
        await manager.open("stays", ttl_s=1e6)
        await seen(lambda: store.claims)
        store.time += SOON_S
        await seen(lambda: store.reads == 2)
    assert await names_in(store) == ["c", "stays"]
    store.is_away = False
    async with AsyncSessionManager(URL, **settings(sweep_every_s=SOON_S)) as manager:
        await manager.open("stays")
        store.time += SOON_S
        await seen(lambda: len(store.groups) == 2)
    assert await names_in(store) == ["stays"]


KILLED = """
import os, signal, sys, time
from turnwise import EchoEngine, InProcess, SessionConfig, SessionManager
from turnwise.actors.client.blocking import expiry

expiry.TOGETHER = 2
expiry.damaged = lambda page: os.kill(os.getpid(), signal.SIGKILL)  # after the first page
manager = SessionManager(
    sys.argv[1], engine=EchoEngine(), placement=InProcess(), config=SessionConfig(sweep_every_s=0.05)
)
manager.open("stays", ttl_s=1e6)
time.sleep(60)
"""


@pytest.mark.by_turns
def test_a_kill_during_a_sweep_leaves_the_rest_to_the_next_program(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with SessionManager(url, **settings(sweep_every_s=None)) as manager:
        for name in "abcde":
            manager.open(name, ttl_s=0.0)
    assert subprocess.run([sys.executable, "-c", KILLED, url], check=False).returncode == -signal.SIGKILL
    with SessionManager(url, **settings(sweep_every_s=0.05)) as manager:
        assert manager.count() == 4
        manager.open("stays")
        until(lambda: manager.count() == 1)


async def test_scheduled_sweeps_export_sessions_to_a_folder_and_delete_them_in_groups(
    store: Watched, tmp_path: Path
) -> None:
    await expire(store, "old", "older")
    async with AsyncSessionManager(URL, **settings(sweep_every_s=SOON_S, sweep_archive=str(tmp_path))) as manager:
        await manager.open("stays", ttl_s=1e6)
        await seen(lambda: store.claims)
        store.time += SOON_S
        await seen(lambda: store.reads == 1 and store.claims[-1] > 0.0)
    assert sorted(path.name.partition("@")[0] for path in files_in(tmp_path)) == ["old", "older"]
    assert store.groups == [2]


class Paused(steps.Background):
    """Notes pauses, without pausing, and is stopped after some."""

    def __init__(self, most: int) -> None:
        super().__init__("paused")
        self.pauses: list[float] = []
        self.most = most

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) == self.most:
            self.stop()


@pytest.mark.parametrize(("most", "left"), [(9, 0), (2, 3)])
async def test_a_sweep_beside_others_pauses_after_each_page(
    store: Watched, monkeypatch: pytest.MonkeyPatch, most: int, left: int
) -> None:
    """So it never has a store for long; a manager that closes stops it there."""
    monkeypatch.setattr(expiry, "TOGETHER", 2)
    await expire(store, *"abcdefg")
    async with AsyncSessionManager(URL, **settings()) as manager:
        beside = Paused(most)
        swept = await expiry.sweep(manager.client, store, None, beside=beside)
    assert len(swept.deleted) == 7 - left and await store.count() == left
    assert max(store.groups) == 2 and len(beside.pauses) == len(store.groups) and min(beside.pauses) > 0.0


async def test_sessions_that_no_process_has_loaded_share_a_transaction(store: Watched) -> None:
    await expire(store, "a", "b", "c")
    async with AsyncSessionManager(URL, **settings()) as manager:
        loaded = await manager.open("loaded", ttl_s=10.0)
        await (await loaded.run("hello"))
        store.time += 20.0
        swept = await manager.sweep()
        assert await names_in(store) == [] and store.groups == [3]
        assert isinstance(swept, Swept) and len(swept.deleted) == 4


async def test_a_sweep_with_a_limit_says_where_the_next_one_goes_on(store: Watched, monkeypatch: Any) -> None:
    """Behind sessions that stay, too."""
    monkeypatch.setattr(expiry, "PAGE", 2)

    async def waits(_: Turn) -> str:
        await asyncio.Event().wait()
        return "never"

    async with AsyncSessionManager(URL, **settings() | {"engine": FunctionEngine(waits)}) as manager:
        busy = await manager.open("a", ttl_s=10.0)
        run = await busy.run("hello")
        await expire(store, "b", "c", "d", "e")
        store.time += 20.0
        first = await manager.sweep(limit=3)
        assert [key.session_id for key in first.deleted] == ["b", "c"] and first.cursor
        assert [key.session_id for key in first.busy] == ["a"]
        rest = await manager.sweep(cursor=first.cursor, limit=3)
        assert [key.session_id for key in rest.deleted] == ["d", "e"] and rest.cursor is None
        await run.cancel()
