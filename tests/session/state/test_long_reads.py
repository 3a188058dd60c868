"""Reads are made in steps: no step of the event loop takes long, and no read of a store returns much."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engines import ScriptedEngine
from scale import share
from schedules import SESSION
from servers.holds import HOLDS, LOOP_S, measure_this_loop, slowness
from stored.open_stores import closing
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.stored_source import StoredSource
from turnwise.actors.hosting.verb_declaration import Reader
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.state.reads import SessionReads
from turnwise.memory.archive.export import export_session
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import Text, User, encode
from turnwise.memory.conversation.events import CustomEvent, Event
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.conformance.fixtures import Owner, own
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.redis.store import RedisStore
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.values.ids import new_id
from turnwise.memory.values.limits import MAX_WINDOW_BLOCKS
from turnwise.memory.values.weights import BLOCK_BYTES, PAGE_BYTES, weight
from turnwise.testing import LocalProvider

PART = 1_000
TURNS = 10_000
"""Of a long conversation: its window has twice as many blocks."""

LARGE = 400_000
"""The size of each content of a conversation of large ones."""


class Measured:
    """Notes the most blocks or records that one read of a store returned."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self.most = 0
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return self._noting(method) if name in ("blocks", "turns", "runs", "events") else method

    def _noting(self, read: Callable[..., Awaitable[Sequence[Any]]]) -> Callable[..., Awaitable[Sequence[Any]]]:
        async def noting(*args: Any, **options: Any) -> Sequence[Any]:
            records = await read(*args, **options)
            self.reads += 1
            largest = max(map(_size, records), default=0)
            self.most = max(self.most, sum(map(_size, records)) - largest)
            return records

        return noting


def _size(record: Any) -> int:
    return weight(record) + (BLOCK_BYTES if isinstance(record, str) else 0)


STORES = ["memory", "sqlite", "postgresql", "redis"]


def every_second(first: int) -> list[str]:
    """Return half of the stores, as fixtures; with `make races` all."""
    return STORES if share(2, 2) == 2 else STORES[first::2]


@pytest.fixture
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], SessionStore]:
    if request.param == "memory":
        return InMemoryStore
    if request.param == "redis":
        return partial(RedisStore, request.getfixturevalue("redis_url"))
    url = f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else request.getfixturevalue("database")
    return partial(SQLStore, url)


async def converse(store: SessionStore, turns: int, text: str = "", data: str = "") -> Owner:
    """Store a conversation with this number of turns, each with a prompt, an answer and an event."""
    owner = await own(store, SESSION)
    for first in range(0, turns, PART):
        numbers = range(first, min(first + PART, turns))
        texts = [encode(kind(text=f"{n} {text}")) for n in numbers for kind in (User, Text)]
        log = owner.session.log
        records = [
            TurnRecord(
                index=n,
                status="completed",
                prompt=(Span(log, 2 * n, 2 * n + 1),),
                input=(Span(log, 0, 2 * n + 1),),
                output=(Span(log, 2 * n + 1, 2 * n + 2),),
            )
            for n in numbers
        ]
        events: list[Event] = [
            CustomEvent(session_id=SESSION, seq=n + 1, at=1.0, name="note", data={"text": f"{n} {data}"})
            for n in numbers
        ]
        after = replace(owner.session, next_index=numbers.stop, seq=numbers.stop)
        await owner.commit(*texts, session=after, turns=records, events=events)
    return owner


async def read_all(store: SessionStore, turns: int) -> None:
    """Read all of a conversation by each verb, from the store and by a process that has the session."""
    stored = SessionReads(StoredSource(SessionKey(SESSION), store, None))
    core = SessionCore(SessionKey(SESSION), store, ScriptedEngine())
    await core.transactor.activate()
    for reads in (stored, core.reads):
        reader = Reader(reads)
        await verbs.turn(turns - 1, ()).read(reader)
        await verbs.latest(()).read(reader)
        cache, count = BlockCache(), 0
        for _ in range(3):
            packed, after = await verbs.turns(count - 1, 1_000, cache.held).read(reader)
            for item in packed:
                item.unpack(cache)
            count += len(packed)
            assert after == packed[-1].record.index if count < turns else after is None
            await asyncio.sleep(0)
        before: str | None = None
        for _ in range(3):
            messages, _ = await reads.messages(before, 1_000)
            before = messages[0].cursor
            await asyncio.sleep(0)
        seq, is_all = 0, False
        while not is_all:
            _, seq, is_all = (await verbs.events(0.0, seq, 1_000).read(reader)).answer
            await asyncio.sleep(0)  # each page is a request of its own, also where a store waits for nothing
        assert seq == turns
    await export_session(store, SessionKey(SESSION), lambda line: None)


@pytest.mark.by_turns
@pytest.mark.parametrize("make_store", every_second(0), indirect=True)
async def test_no_read_of_a_long_conversation_holds_a_loop_or_store(make_store: Callable[[], SessionStore]) -> None:
    async with closing(make_store()) as store:
        await converse(store, TURNS)
        await holds_nobody(store, TURNS)


@pytest.mark.by_turns
@pytest.mark.parametrize("make_store", every_second(1), indirect=True)
async def test_no_read_of_large_contents_holds_a_loop_or_store(make_store: Callable[[], SessionStore]) -> None:
    async with closing(make_store()) as store:
        await converse(store, 60, "x" * LARGE, "y" * LARGE)
        await holds_nobody(store, 60)


async def holds_nobody(store: SessionStore, turns: int) -> None:
    measured = Measured(store)
    await check_holds(lambda: read_all(measured, turns))
    assert measured.most <= PAGE_BYTES, "besides its largest record"


async def check_holds(work: Callable[[], Awaitable[None]]) -> None:
    """Do the work, up to three times, until no step of the event loop takes long: a machine is slow now and then."""
    measure_this_loop()
    held: dict[str, Any] = {}
    for _ in range(3):
        scale = slowness()
        gc.collect()
        gc.disable()  # processes of sessions collect rarely, and this one has all tests to look through
        try:
            await asyncio.sleep(0)
            HOLDS.take()
            await work()
            await asyncio.sleep(0)
            held = HOLDS.take()
        finally:
            gc.enable()
        if held["loop_s"] <= LOOP_S * max(scale, slowness()):
            return
    pytest.fail(f"a step of the event loop took {held['loop_s']:.3f} s: {held['what']}")


async def test_pages_of_large_contents_say_that_there_are_more() -> None:
    store = InMemoryStore()
    await converse(store, 10, "x" * LARGE, "y" * LARGE)
    stored = SessionReads(StoredSource(SessionKey(SESSION), store, None))
    reader = Reader(stored)
    for read in (turns_after, events_after):
        after: int | None = -1
        sizes: list[int] = []
        while after is not None:
            size, after = await read(reader, after)
            sizes.append(size)
        assert sum(sizes) == 10 and len(sizes) > 3 and min(sizes) >= 1
    before: str | None = None
    texts, is_more, pages = list[str](), True, 0
    while is_more:
        messages, is_more = await stored.messages(before, 100)
        texts[:0] = [message.text[:2].strip() for message in messages]
        before, pages = messages[0].cursor, pages + 1
    assert texts == [str(n) for n in range(10) for _ in "ab"] and pages > 3


async def turns_after(reader: Reader, after: int) -> tuple[int, int | None]:
    turns, later = await verbs.turns(after, 100, ()).read(reader)
    return len(turns), later


async def events_after(reader: Reader, after: int) -> tuple[int, int | None]:
    events, later, is_all = (await verbs.events(0.0, after, 100).read(reader)).answer
    assert isinstance(events, list)
    return len(events), None if is_all else later


async def test_a_small_page_costs_no_more_reads_than_before() -> None:
    store = Measured(InMemoryStore())
    await converse(store, 10)
    stored = SessionReads(StoredSource(SessionKey(SESSION), store, None))
    counts = []
    for read in (stored.turns, stored.events, stored.runs):
        store.reads = 0
        await read(limit=100)
        counts.append(store.reads)
    assert counts == [3, 1, 2]  # two of the turns', and one of the runs', say where the session stands


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_no_run_of_a_long_conversation_holds_a_loop(api: Any) -> None:
    """The request of a model is made by a thread, of as many blocks as a request may have."""
    store = InMemoryStore()
    await converse(store, MAX_WINDOW_BLOCKS // 2 - 5)
    with LocalProvider() as provider:
        core = SessionCore(
            SessionKey(SESSION), store, OpenAIEngine("local", base_url=provider.base_url, api_key="none", api=api)
        )

        async def run() -> None:
            run_id = new_id()
            await core.admission.start(["hello"], run_id=run_id)
            outcome = await core.reads.wait(run_id)
            assert outcome.run.state == "completed"

        await check_holds(run)
        await core.engines.close(core.engines.remove_all())
    assert len(str(provider.requests[-1].body)) > 10 * TURNS
