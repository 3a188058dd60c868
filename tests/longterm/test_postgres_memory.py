"""`VectorMemory("postgresql://...")`: items and vectors in PostgreSQL, without a file and without Chroma."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import psycopg
import pytest
import sqlalchemy as sa
from ray import cloudpickle

from memories.vector_memories import FlakyEmbedding
from stored.open_stores import closing
from turnwise.errors import ConfigError, StoreError
from turnwise.memory.longterm import conformance as contract
from turnwise.memory.longterm.base import MemoryItem, Scope, is_local, trouble_of
from turnwise.memory.longterm.index import conformance as vector_contract
from turnwise.memory.longterm.index.locations import PostgresVectors
from turnwise.memory.longterm.index.vector_index import VectorIndex
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.retention.deletion import erase
from turnwise.memory.longterm.retention.retention import Retention
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.memory.stores.conformance.laws import Law, check_law
from turnwise.testing.embedding import HashEmbedding

ANN = Scope(user_id="ann", session_id="s", agent="clerk")
WORDS = "Her cousin Odile grows dates in Marrakesh."
ASKED = "Where does cousin Odile grow dates?"


@pytest.fixture
def make(database: str) -> Callable[..., VectorMemory]:
    """Makes memories on the same data."""
    return lambda **settings: VectorMemory(database, **{"embedding": HashEmbedding(64), "keep_s": 0, **settings})


@pytest.mark.parametrize("law", contract.LAWS, ids=lambda law: law.__name__.removeprefix("check_"))
def test_memories_obey_the_law_that(law: Law, make: Callable[..., VectorMemory]) -> None:
    asyncio.run(check_law(law, make))


async def test_items_and_vectors_are_in_the_database_and_nothing_is_local(
    make: Callable[..., VectorMemory], database: str
) -> None:
    async with closing(make()) as memory:
        assert not is_local(memory) and memory.paths() == []
        await memory.remember(ANN, [MemoryItem(id="1", text=WORDS), MemoryItem(id="2", text="null \0 \ufdd0 \ufdd00")])
        assert (await memory.recall(ANN, ASKED))[0].text == WORDS
        assert {item.text for item in await memory.list_items(ANN)} == {WORDS, "null \0 \ufdd0 \ufdd00"}
        health = await memory.check()
        assert health.ok and (health.count, health.strays) == (2, 0)
    async with closing(pickle.loads(cloudpickle.dumps(make()))) as unpickled:
        recalled, *_ = await unpickled.recall(ANN, ASKED)
        assert recalled.id == "1" and recalled.words
        assert await unpickled.forget(ANN, ["1"]) == 1
        assert not [item for item in await unpickled.recall(ANN, ASKED) if item.words]
        assert not await unpickled.catch_up() and (await unpickled.check()).count == 1
    with psycopg.connect(database) as connection:
        tables = {name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}
        (count,) = connection.execute("SELECT count(*) FROM turnwise_vectors").fetchone() or ()
    assert {"turnwise_vectors", "turnwise_items"} <= tables and count == 1


async def test_vectors_are_made_later_where_the_embedding_function_failed(make: Callable[..., VectorMemory]) -> None:
    class Flaky(HashEmbedding):
        fails = True

        def __call__(self, input: Any) -> list[Any]:
            if Flaky.fails:
                raise ConnectionError("no embeddings today")
            return super().__call__(input)

    async with closing(make(embedding=Flaky(64), pause_s=0)) as memory:
        await memory.remember(ANN, [MemoryItem(id="1", text=WORDS)])
        recalled = await memory.recall(ANN, ASKED)
        assert [item.id for item in recalled] == ["1"] and "no embeddings today" in (trouble_of(recalled) or "")
        Flaky.fails = False
        while await memory.catch_up():
            pass
        assert trouble_of(await memory.recall(ANN, ASKED)) is None and (await memory.check()).ok
        assert await memory.rebuild() == 1 and (await memory.check()).ok


async def test_processes_that_write_at_once_lose_and_double_nothing(make: Callable[..., VectorMemory]) -> None:
    async with closing(make(embedding=None)) as first, closing(make(embedding=None)) as second:
        batches = [
            [MemoryItem(id=f"{number}-{n}", text=f"Fig number {number} {n}.") for n in range(5)] for number in range(20)
        ]
        await asyncio.gather(*(memory.remember(ANN, batch) for batch in batches for memory in (first, second)))
        ids = {item.id for batch in batches for item in batch}
        for memory in (first, second):
            listed = [item.id for item in await memory.list_items(ANN, limit=1000)]
            assert len(listed) == 100 and set(listed) == ids
            assert {item.id for item in await memory.recall(ANN, "Fig number", limit=1000)} == ids
        deleted_ids = [f"{number}-0" for number in range(20)]
        counts = await asyncio.gather(
            *(memory.forget(ANN, [name]) for name in deleted_ids for memory in (first, second))
        )
        assert sum(counts) == 20
        assert len(await first.recall(ANN, "Fig number", limit=1000)) == 80


async def test_of_two_embeddings_at_once_the_later_makes_vectors_and_the_earlier_says_so(
    make: Callable[..., VectorMemory], caplog: pytest.LogCaptureFixture
) -> None:
    """Each would otherwise make all vectors anew, after each item that the other one saves."""
    earlier, later = FlakyEmbedding(made_of="one"), FlakyEmbedding(made_of="another")

    async def save(memory: VectorMemory, name: str) -> None:
        await memory.remember(ANN, [MemoryItem(id=f"{name}{n}", text=f"Fig {name} {n}.") for n in range(10)])
        while await memory.catch_up():
            pass

    async with closing(make(embedding=earlier)) as first, closing(make(embedding=later)) as second:
        await save(first, "a")
        await save(second, "b")
        for number in range(4):
            await save(first, f"c{number}-")
            await save(second, f"d{number}-")
        assert sum(earlier.calls) <= 30 and sum(later.calls) == 100, "each item once, but for what came before it knew"
        trouble = trouble_of(await first.recall(ANN, "Fig a 1")) or ""
        assert '"another"' in trouble and '"one"' in trouble and "the same embedding" in trouble
        assert trouble_of(await second.recall(ANN, "Fig a 1")) is None and (await second.check()).ok
        assert {"a1", "b1", "d3-9"} <= {item.id for item in await first.recall(ANN, "Fig", limit=200)}
    assert 'are made anew by turnwise_hash_v1 {"made_of": "another"}' in caplog.text
    async with closing(make(embedding=earlier)) as again:  # and when the other one has ended, it has them again
        await save(again, "e")
        assert trouble_of(await again.recall(ANN, "Fig a 1")) is None and (await again.check()).ok


async def test_unused_items_expire_and_users_are_deleted(make: Callable[..., VectorMemory]) -> None:
    now = [1e9]
    async with closing(make(retention=Retention(100.0), clock=lambda: now[0])) as memory:
        await memory.remember(ANN, [MemoryItem(id="1", text=WORDS), MemoryItem(id="2", text="Figs.")])
        now[0] += 60
        assert await memory.recall(ANN, ASKED)
        now[0] += 60
        assert await memory.sweep() == 1
        assert [item.id for item in await memory.list_items(ANN)] == ["1"]
        done = await erase(memory, Scope(user_id="ann"))
        assert done.items == 1 and not done.verified  # nobody can search a server's files
        assert await memory.remember(ANN, [MemoryItem(id="1", text=WORDS)]) and not await memory.recall(ANN, ASKED)


@pytest.mark.parametrize("law", vector_contract.LAWS, ids=lambda law: law.__name__.removeprefix("check_"))
def test_vectors_in_postgresql_obey_the_law_that(law: Law, database: str) -> None:
    asyncio.run(check_law(law, lambda: PostgresVectors(database).open("test", "an embedding")))


def test_names_and_embeddings_have_vectors_of_their_own(database: str) -> None:
    index = VectorIndex(PostgresVectors(database), HashEmbedding(64), name="a%")
    other_index = VectorIndex(PostgresVectors(database), HashEmbedding(128), name="a%")
    stranger = VectorIndex(PostgresVectors(database), HashEmbedding(128), name="a%b")
    assert "secret" not in repr(PostgresVectors("postgresql://u:secret@h/d")) and index.paths() is None
    vectors = index.embed(["figs", "dates", "boats"])
    for _ in range(2):
        index.add(["f", "d", "d#1"], ["ann", "ann", "bob"], vectors, items=["f", "d", "d"])
    assert len(index.keys()) == 3 and index.keys() == {"f", "d", "d#1"}
    assert np.allclose(index.get(["f", "?"])["f"], vectors[0])
    for vector_index in (other_index, stranger):
        vector_index.add(["f"], ["ann"], vector_index.embed(["figs"]))
    with pytest.raises(ConfigError, match="64 dimensions, the stored ones 128"):
        other_index.add(["x"], ["ann"], vectors[:1])
    index.delete(["d"])
    assert index.keys() == {"f"} and index.overwrite(["d", "f"]) == 1
    index.delete(["f"])
    assert (len(index.keys()), len(other_index.keys()), len(stranger.keys())) == (0, 0, 1)
    other_index.add(["f"], ["ann"], other_index.embed(["figs"]))
    index.delete(None)
    assert (len(other_index.keys()), len(stranger.keys())) == (0, 1)
    for vector_index in (index, other_index, stranger):
        vector_index.close()
        vector_index.close()


async def test_a_database_that_is_away_is_a_store_error_and_comes_back(postgres_server: Any) -> None:
    name = postgres_server.make_database()
    memory = VectorMemory(postgres_server.address.format(name), embedding=HashEmbedding(64), keep_s=0, pause_s=0)
    async with closing(memory):
        await memory.remember(ANN, [MemoryItem(id="1", text=WORDS, type=MemoryType.FACTS)])
        postgres_server.stop("fast")
        try:
            with pytest.raises(StoreError):
                await memory.remember(ANN, [MemoryItem(id="2", text="Figs.")])
        finally:
            postgres_server.start()
        assert [item.id for item in await memory.recall(ANN, ASKED)] == ["1"]


class WritableItems(SQLItems):
    async def write(self, work: Callable[[sa.Connection], None]) -> None:
        await self._write(work)


async def test_the_error_of_a_connection_that_is_ended_says_what_ended_it(database: str) -> None:
    """After it, the transaction cannot be rolled back either, which says no more than that there is no connection."""
    items = WritableItems(database)

    def end(connection: sa.Connection) -> None:
        connection.connection.cursor().execute("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(StoreError, match="terminating connection due to administrator command"):
        await items.write(end)
    assert await items.count() == 0
    await items.close()


def test_a_store_object_needs_its_own_index(database: str) -> None:
    items = SQLItems(database)
    with pytest.raises(ConfigError, match="PostgresVectors"):
        VectorMemory(items)
    asyncio.run(VectorMemory(items, VectorIndex(PostgresVectors(database), HashEmbedding(64))).close())
