"""A page of events that is read ahead: a reader gets all events, each once and in order, whatever becomes of it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from test_sessions_on_ray import kill
from test_verbs import service_of

from engines import ScriptedEngine
from turnwise import __version__
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.hosting import events_ahead, verbs
from turnwise.actors.hosting.session_service import SessionService
from turnwise.actors.hosting.wire import PackedEvents, SessionRef
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.session.core import SessionCore
from turnwise.errors import CorruptRecordError, SessionNotFoundError
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.stores.sql.store import SQLStore

KEY = SessionKey("chat", "ada")
LIMIT = 4


class World:
    """A stored session of ten runs, a service that has it, and the numbers after which its store was read."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "chats.db"
        self.store = SQLStore(f"sqlite:///{self.path}")
        self.places: list[int] = []
        self.events: list[Event] = []
        self.service: SessionService
        self._read: Callable[..., Any] = self.store.event_rows
        self.store.event_rows = self._note  # type: ignore[method-assign]

    async def _note(self, key: SessionKey, *, after: int = 0, limit: int = 1000) -> Any:
        self.places.append(after)
        return await self._read(key, after=after, limit=limit)

    async def begin(self) -> None:
        await self.store.create(SessionRecord(session_id=KEY.session_id, user_id=KEY.user_id))
        core = SessionCore(KEY, self.store, ScriptedEngine())
        for number in range(10):
            run = await core.admission.start([f"prompt {number}"], run_id=f"run-{number}")
            await core.reads.wait(run.run_id)
        await core.ownership.leave()
        self.events = await self.store_events()
        self.places.clear()
        self.restart()

    def restart(self) -> None:
        """Have another process take over, in which the session is not activated."""
        self.service = service_of(SessionCore(KEY, self.store, ScriptedEngine()))

    async def store_events(self) -> list[Event]:
        return (await SessionCore(KEY, self.store, ScriptedEngine()).reads.events())[0]

    async def page(self, after: int, run_id: str | None = None) -> tuple[list[Event], int, bool]:
        call = verbs.events(0.0, after, LIMIT, run_id=run_id, decoder=__version__)
        events, last, is_all = (await self.service.carry_out(call.to(SessionRef(KEY)))).answer
        return (events.unpack() if isinstance(events, PackedEvents) else events), last, is_all

    async def two_pages(self) -> int:
        """Read as many as show that the reader reads on; return the number to continue after."""
        _, after, _ = await self.page(0)
        _, after, _ = await self.page(after)
        await asyncio.sleep(0)
        return after

    async def rest(self, after: int) -> list[Event]:
        events: list[Event] = []
        while True:
            page, after, is_all = await self.page(after)
            events += page
            if is_all or not page:
                return events


@asynccontextmanager
async def a_world(folder: Path) -> AsyncIterator[World]:
    world = World(folder)
    await world.begin()
    yield world
    await world.store.close()


async def met(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("is_activated", [False, True])
async def test_the_next_page_is_read_before_it_is_asked_for(tmp_path: Path, is_activated: bool) -> None:
    async with a_world(tmp_path) as world:
        if is_activated:
            await world.service.core.transactor.activate()
        first, after, _ = await world.page(0)
        assert len(world.places) == 1, "who has asked once may want no more"
        second, after, _ = await world.page(after)
        await met(lambda: len(world.places) == 3)
        places = [*world.places]
        assert places[-1] == after
        rest = await world.rest(after)
        assert [*first, *second, *rest] == world.events
        assert world.places == [*sorted({*world.places}), world.places[-1]], "only the last page is read again"


@pytest.mark.parametrize("run_id", ["run-0", "run-9"])
async def test_events_of_one_run_are_the_same(tmp_path: Path, run_id: str) -> None:
    async with a_world(tmp_path) as world:
        expected = [event for event in world.events if event.run_id == run_id]
        events: list[Event] = []
        after, is_all = 0, False
        while not is_all:
            page, after, is_all = await world.page(after, run_id)
            events += page
        assert events == expected


async def test_who_stops_leaves_one_page_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_world(tmp_path) as world:
        monkeypatch.setattr(events_ahead, "HOLD_S", 0.01)
        after = await world.two_pages()
        await met(lambda: len(world.places) == 3)
        await asyncio.sleep(0.05)
        assert world.places[2:] == [after], "and no page after that one"
        assert await world.rest(after) == [event for event in world.events if event.seq > after]
        assert world.places[3] == after, "the page is gone by now"


async def test_two_readers_share_one_page(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        ahead_of_one = await world.two_pages()
        page, _, _ = await world.page(0)
        assert page == world.events[:LIMIT]
        assert await world.rest(0) == world.events
        assert await world.rest(ahead_of_one) == [event for event in world.events if event.seq > ahead_of_one]


@pytest.mark.parametrize("ticks", range(12))
async def test_a_reader_that_is_cancelled_and_asks_again_misses_nothing(tmp_path: Path, ticks: int) -> None:
    async with a_world(tmp_path) as world:
        after = await world.two_pages()
        asking = asyncio.create_task(world.page(after))
        for _ in range(ticks):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        assert await world.rest(after) == [event for event in world.events if event.seq > after]


async def test_another_process_goes_on_where_the_reader_is(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        after = await world.two_pages()
        world.restart()
        assert await world.rest(after) == [event for event in world.events if event.seq > after]


async def test_what_is_cleared_meanwhile_is_not_read_any_more(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        await world.service.core.transactor.activate()
        after = await world.two_pages()
        await met(lambda: len(world.places) == 3)
        await world.service.core.forgetting.clear(2, memory=False)
        rest = await world.rest(after)
        assert rest == [event for event in await world.store_events() if event.seq > after]
        assert "prompt 4" not in str(rest) and "prompt 9" in str(rest)


async def test_a_change_by_another_process_is_seen(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        after = await world.two_pages()
        await met(lambda: len(world.places) == 3)
        other = SessionCore(KEY, world.store, ScriptedEngine())
        await other.forgetting.clear(2, memory=False)
        await other.ownership.leave()
        assert await world.rest(after) == [event for event in await world.store_events() if event.seq > after]


async def test_a_session_that_is_deleted_meanwhile_is_not_found(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        after = await world.two_pages()
        await met(lambda: len(world.places) == 3)
        await world.store.delete(KEY)
        with pytest.raises(SessionNotFoundError):
            await world.page(after)


async def test_an_event_that_cannot_be_read_is_named_to_who_asks_for_it(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        damaged = world.events[2 * LIMIT]
        with closing(sqlite3.connect(world.path)) as connection, connection:
            connection.execute("UPDATE turnwise_events SET body = '{' WHERE seq = ?", (damaged.seq,))
        after = await world.two_pages()
        await met(lambda: len(world.places) >= 3)
        for _ in range(2):
            with pytest.raises(CorruptRecordError, match=f"^corrupt record event chat:{damaged.seq} in the store: "):
                await world.page(after)


def test_a_reader_misses_nothing_if_the_process_is_killed_between_pages(
    make_ray_manager: Callable[..., SessionManager],
) -> None:
    manager = make_ray_manager(engine=EchoEngine())
    chat = manager.open("chat")
    for number in range(8):
        chat.run(f"prompt {number}").wait(60)
    kill(chat)  # the next process does not have these events in memory
    expected = chat.events()
    events: list[Any] = []
    for number in range(1 + len(expected) // 3):
        events += chat.events(events[-1].seq if events else 0, 3)
        if number in (2, 4):
            kill(chat)
    assert events == expected
