"""Names that one store takes are taken by each; others are refused by each, with an error that names them."""

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.store.base import InvalidNamespaceError
from test_failed_verbs import an_item

from memories.item_verbs import count
from stored.open_stores import closing
from turnwise.adapters import TurnwiseSaver, TurnwiseStore
from turnwise.errors import InvalidInputError, InvalidMemoryError, NameRefusedError, StoreError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.event_store.in_memory import InMemoryHistory
from turnwise.memory.event_store.sql import SQLHistory
from turnwise.memory.longterm.base import Scope
from turnwise.memory.longterm.items.base import MAX_ID_BYTES
from turnwise.memory.longterm.items.changes import supersede
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.redis import RedisItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.stores.conformance.fixtures import a_run, a_session, a_turn, an_event, own
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.redis.store import RedisStore
from turnwise.memory.stores.sql.error_hints import remedy
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.values.ids import MAX_INDEXED_BYTES
from turnwise.memory.working.memory import WorkingMemory


def varied(size: int) -> str:
    """Return a name of so many bytes that cannot be compressed: PostgreSQL compresses what it indexes."""
    dice = random.Random(size)
    return "".join(chr(dice.randrange(0x20000, 0x2A000)) for _ in range(size // 4))


LONG = varied(MAX_INDEXED_BYTES + 4)
BAD = {"too long": LONG, "null": "a\0b", "surrogate": "a\ud800b"}

OPENED: Mapping[str, Mapping[str, Any]] = {
    "sessions": {"memory": InMemoryStore, "sql": SQLStore, "redis": RedisStore},
    "events": {"memory": InMemoryHistory, "sql": SQLHistory},
    "items": {"memory": InMemoryItems, "sql": SQLItems, "redis": RedisItems},
}


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Any]:
    """Opens stores of a kind; returns None for what Redis does not keep: events apart from sessions."""

    def make(kind: str) -> Any:
        if request.param == "memory":
            return OPENED[kind]["memory"]()
        if request.param == "redis":
            make_one = OPENED[kind].get("redis")
            return make_one and make_one(request.getfixturevalue("redis_url"))
        sqlite = f"sqlite:///{tmp_path}/store.db"
        return OPENED[kind]["sql"](sqlite if request.param == "sqlite" else request.getfixturevalue("database"))

    return make


async def refused(verb: Awaitable[object], name: str) -> None:
    """Check that a verb is refused with an error that shows the beginning of the name."""
    with pytest.raises(InvalidInputError) as raised:
        await verb
    assert isinstance(raised.value, NameRefusedError | InvalidMemoryError)
    assert name[:1] in str(raised.value)
    assert name != LONG or str(MAX_INDEXED_BYTES) in str(raised.value) or str(MAX_ID_BYTES) in str(raised.value)


@pytest.mark.parametrize("name", BAD.values(), ids=BAD)
async def test_each_session_store_refuses_a_name_that_one_could_not_keep(
    name: str, opened: Callable[[str], Any]
) -> None:
    async with closing(opened("sessions")) as store:
        for values in ({"session_id": name}, {"user_id": name}, {"agent": name}):
            await refused(store.create(a_session(**{"session_id": "t", **values})), name)
        owner = await own(store)
        before = await store.get(SessionKey("s"))
        for parts in (
            {"new_run": a_run(name, 0)},
            {"new_run": a_run("r", 0, idempotency_key=name)},
            {"turns": [a_turn(0, turn_id=name)]},
            {"events": [an_event(1, name)]},
        ):
            await refused(store.commit(SessionKey("s"), 1, owner.prepare(**parts)), name)
        assert await store.get(SessionKey("s")) == before and await store.count() == 1


@pytest.mark.parametrize("name", BAD.values(), ids=BAD)
async def test_each_event_and_item_store_refuses_such_a_name(name: str, opened: Callable[[str], Any]) -> None:
    async with closing(opened("items")) as items:
        await refused(items.put(Scope(user_id="u"), [an_item("good"), an_item(name)]), name)
        assert await count(items, Scope(user_id="u")) == 0
    if history := opened("events"):
        async with closing(history) as events:
            await refused(events.append(SessionKey("s"), [an_event(1), an_event(2, name)]), name)
            await refused(events.append(SessionKey(name), [an_event(1, session_id=name)]), name)
            assert await events.events(SessionKey("s")) == []


async def test_the_longest_names_are_taken_by_each_store(opened: Callable[[str], Any]) -> None:
    user, session = varied(4 * 192), varied(4 * 192)[::-1]
    async with closing(opened("items")) as items:
        scope, item = Scope(user_id=user), an_item(varied(MAX_ID_BYTES))
        await items.put(scope, [an_item("1"), replace(item, id="2")])
        assert await supersede(items, scope, "1", replace(item, created_at=3.0))
    async with closing(opened("sessions")) as store:
        name = varied(MAX_INDEXED_BYTES - len(user.encode()))
        await store.create(a_session(name, user_id=user))
        assert (await store.get(SessionKey(name, user))).session_id == name
    async with closing(WorkingMemory(opened("items"))) as notes:
        assert await notes.replace(Scope(user_id=user, session_id=session), "text") == "text"


@pytest.fixture(params=["sqlite", "postgresql"])
def sql_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return str(request.getfixturevalue("database"))


@pytest.mark.parametrize("name", BAD.values(), ids=BAD)
def test_langgraphs_store_refuses_such_a_name_before_anything_is_done(name: str, sql_url: str) -> None:
    with TurnwiseStore(sql_url) as store:
        for verb in (
            lambda: store.put(("n",), name, {"a": 1}),
            lambda: store.put(("n", name), "k", {"a": 1}),
            lambda: store.get(("n",), name),
            lambda: store.search(("n", name)),
            lambda: store.delete(("n",), name),
        ):
            with pytest.raises((InvalidInputError, InvalidNamespaceError)) as raised:
                verb()
            assert name[:1] in str(raised.value)
        key = varied(MAX_INDEXED_BYTES - 4)
        store.put(("n",), key, {"a": 1})
        item = store.get(("n",), key)
        assert item and item.value == {"a": 1}


@pytest.mark.parametrize("name", BAD.values(), ids=BAD)
def test_langgraphs_saver_refuses_such_a_name(name: str, sql_url: str) -> None:
    def config(**options: str) -> Any:
        return {"configurable": {"thread_id": "t", "checkpoint_ns": "", **options}}

    def checkpoint(channel: str) -> Any:
        return {"id": "1", "channel_values": {channel: 1}, "channel_versions": {channel: "1"}, "versions_seen": {}}

    with TurnwiseSaver(sql_url) as saver:
        for verb in (
            lambda: saver.put(config(checkpoint_ns=name), checkpoint("c"), {}, {"c": "1"}),
            lambda: saver.put(config(), checkpoint(name), {}, {name: "1"}),
            # LangGraph itself leaves null characters out of it.
            lambda: saver.put(config(), checkpoint("c"), {"run_id": name.replace("\0", LONG)}, {"c": "1"}),
            lambda: saver.put_writes(config(checkpoint_id="1"), [(name, 1)], "task"),
            lambda: saver.get_tuple(config(checkpoint_id=name)),
            lambda: saver.get_tuple(config(checkpoint_ns=name)),
        ):
            with pytest.raises(InvalidInputError) as raised:
                verb()
            assert name[:1] in str(raised.value)
        assert saver.get_tuple(config()) is None


REACHED = "is it reachable"


async def test_a_server_that_was_reached_is_not_asked_whether_it_is(database: str, redis_server: Any) -> None:
    """Its answer names the remedy."""
    with psycopg.connect(database, autocommit=True) as connection:
        for statement in (
            "SELECT 1/0",
            "SELECT * FROM no_such_table",
            "SELEC 1",
            (
                "CREATE TABLE t (a TEXT PRIMARY KEY);"
                " INSERT INTO t SELECT string_agg(md5(i::text), '') FROM generate_series(1, 400) i"
            ),
        ):
            with pytest.raises(psycopg.Error) as raised:
                connection.execute(statement.encode())
            assert REACHED not in remedy(raised.value), statement
    with pytest.raises(psycopg.OperationalError) as unknown:
        psycopg.connect(database, dbname="no such database")
    assert "there is no such database" in remedy(unknown.value)
    with pytest.raises(psycopg.OperationalError) as away:
        psycopg.connect("postgresql://127.0.0.1:1/x")
    assert REACHED in remedy(away.value)
    with redis_server.client as client:
        client.flushall()
        async with closing(RedisStore(redis_server.url)) as store:
            await store.create(a_session("s"))
            client.config_set("maxmemory", 1)
            try:
                with pytest.raises(StoreError, match="out of memory") as full:
                    await store.create(a_session("t"))
            finally:
                client.config_set("maxmemory", 0)
            assert REACHED not in str(full.value)
            (key,) = client.keys("*:meta")
            client.delete(key)
            client.set(key, "x")
            with pytest.raises(StoreError, match="something else has written") as refusal:
                await store.get(SessionKey("s"))
            assert REACHED not in str(refusal.value)
