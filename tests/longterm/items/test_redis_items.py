"""The laws of `ItemStore` on Redis, and the keys, faults and URLs of `RedisItems`."""

import asyncio
import json
import pickle
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from memories.item_verbs import count, purge, sweep, touch
from scale import share
from servers.redis_server import Line, RedisServer
from stored.open_stores import closing, run_with
from turnwise.errors import (
    ConfigError,
    CorruptRecordError,
    StoreClosedError,
    StoreError,
    StoreURLError,
)
from turnwise.memory.conversation.spans import Span
from turnwise.memory.longterm.base import MemoryItem, Scope, Source
from turnwise.memory.longterm.items import conformance as contract, redis as redis_items
from turnwise.memory.longterm.items.base import ItemFilter, ItemStore, all_items
from turnwise.memory.longterm.items.changes import supersede, update
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.redis import RedisItems
from turnwise.memory.longterm.items.redis_scripts import KEYS
from turnwise.memory.longterm.items.rules import TOMBSTONE_S
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.items.urls import open_items
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.stores.conformance.fixtures import TEXT
from turnwise.memory.stores.conformance.laws import Law, check_law
from turnwise.memory.values.ids import digest_of

USER = Scope(user_id="u")
EVER = ItemFilter(superseded=True)
ITEMS, TEXTS, TIMES, ORDER, USED, SUCCESSORS, DELETED, LAST = (f"{{turnwise:items}}:{key}" for key in KEYS)


def items(count: int, **values: Any) -> list[MemoryItem]:
    return [
        MemoryItem(id=str(number), text=f"text {number}", created_at=float(number), **values) for number in range(count)
    ]


def using(url: str, use: Callable[[RedisItems], Awaitable[Any]], **settings: Any) -> Any:
    """Return the result of `use` with an open store."""
    return run_with(RedisItems(url, **settings), use)


@pytest.fixture
def facts(redis_url: str) -> Iterator[RedisItems]:
    """A store that is closed after the test."""
    facts = RedisItems(redis_url)
    yield facts
    asyncio.run(facts.close())


def audit(server: RedisServer) -> int:
    """Return how many facts there are; fails unless all keys agree."""
    with server.client as client:
        facts: Any = {key.decode(): json.loads(raw) for key, raw in client.hgetall(ITEMS).items()}
        texts: Any = client.hkeys(TEXTS)
        names: dict[str, list[Any]] = {
            key: [name.decode() for name in client.zrange(key, 0, -1)] for key in (TIMES, ORDER, USED, SUCCESSORS)
        }
        deleted: Any = client.zrange(DELETED, 0, -1)
        last = int(client.get(LAST) or 0)
    assert {digest.decode() for digest in texts} == set(facts)
    assert sorted(names[TIMES]) == sorted(fact["place"] + digest for digest, fact in facts.items())
    assert sorted(names[USED]) == sorted(names[ORDER]) == sorted(facts)
    numbers = [int(facts[digest]["place"][-16:]) for digest in names[ORDER]]
    assert numbers == sorted(set(numbers)) and max(numbers, default=0) <= last
    assert sorted(names[SUCCESSORS]) == sorted(
        fact["successor"] + digest for digest, fact in facts.items() if "superseded_by" in fact
    )
    assert not {digest.decode() for digest in deleted} & set(facts)
    return len(facts)


def changed(raw: Any, change: dict[str, Any]) -> str:
    """Return a record with these changes; None removes a value."""
    return json.dumps({name: value for name, value in (json.loads(raw) | change).items() if value is not None})


@pytest.mark.parametrize("law", contract.LAWS, ids=lambda law: law.__name__.removeprefix("check_"))
def test_redis_facts_obey_the_law_that(law: Law, redis_url: str, redis_server: RedisServer) -> None:
    """Cases 48, 50, 51, 53 and 54, as each law says."""
    asyncio.run(check_law(law, partial(RedisItems, redis_url)))
    audit(redis_server)


@pytest.mark.parametrize("seed", range(share(40, 10)))
async def test_random_calls_have_the_same_results_as_in_memory(
    seed: int, facts: RedisItems, redis_server: RedisServer
) -> None:
    chance = random.Random(seed)
    kinds = (MemoryType.FACTS, MemoryType.SKILL, MemoryType.CONTEXT)
    names = [f"i{number}" for number in range(12)]

    def scope() -> Scope:
        return Scope(user_id=chance.choice("uv"), agent=chance.choice((None, "a", "b")))

    def item(name: str | None = None) -> MemoryItem:
        return MemoryItem(
            id=name or chance.choice(names),
            text=f"text {chance.random()}",
            type=chance.choice(kinds),
            topic=chance.choice((None, "t")),
            source=Source(session_id=chance.choice((None, "s", "t")), turn_index=chance.choice((None, 1, 10))),
            created_at=chance.choice((-1.5, -0.0, 0.0, 1.0, 2.0, 2.5)),
            superseded_at=chance.choice((None, None, 3.0)),
            superseded_by=chance.choice((None, None, *names)),
        )

    def verb() -> Callable[[ItemStore], Awaitable[Any]]:
        target_scope, ids, moment, limit = scope(), chance.sample(names, 3), chance.uniform(0, 30), chance.randint(1, 4)
        new_items, kind = [item() for _ in range(3)], chance.choice((None, *kinds))
        successor = replace(new_items[0], id=f"n{chance.randint(0, 9)}", created_at=2.0)
        which = ItemFilter(
            types=chance.choice((None, kinds[:1], kinds[1:])),
            session_id=chance.choice((None, "s")),
            as_of=chance.choice((None, 0.0, 1.0, 2.0, 5.0)),
            superseded=chance.random() < 0.5,
            used_since=chance.choice((None, 15.0)),
        )
        session = chance.choice((None, "s", "t"))
        turn = chance.choice((None, 1)) if session else None
        return chance.choice(
            (
                *[lambda facts: facts.put(target_scope, new_items, at=moment)] * 6,
                *[lambda facts: supersede(facts, target_scope, ids[0], successor)] * 3,
                lambda facts: update(facts, target_scope, ids[0], "else", at=moment, type=kind),
                lambda facts: facts.delete(target_scope, ids[:1]),
                lambda facts: purge(facts, target_scope.user_id, session_id=session, turn_index=turn),
                lambda facts: touch(facts, target_scope.user_id, ids, moment),
                lambda facts: sweep(facts, moment / 3, types=which.types, limit=limit),
                lambda facts: facts.get(target_scope, ids),
                *[lambda facts: pages(facts, target_scope, which, limit)] * 3,
                lambda facts: count(facts, target_scope, which),
            )
        )

    model = InMemoryItems()
    for step in range(250):
        call = verb()
        assert await call(facts) == await call(model), step
        if step % 40 == 0:
            names[:] = [f"{step}-{number}" for number in range(12)]
            assert list(await facts.scan()) == list(await model.scan()), step
            assert list(await facts.scan("u")) == list(await model.scan("u")), step
    audit(redis_server)


async def pages(facts: ItemStore, scope: Scope, which: ItemFilter, limit: int) -> list[list[MemoryItem]]:
    page = await facts.query(scope, which, limit=limit)
    result = [list(page)]
    while page.cursor is not None:
        page = await facts.query(scope, which, cursor=page.cursor, limit=limit)
        result.append(list(page))
    return result


async def test_matching_facts_are_found_among_many_others(facts: RedisItems) -> None:
    goals = items(3, type=MemoryType.GOALS)
    await facts.put(USER, goals)
    await facts.put(USER, [replace(item, id=f"m{item.id}", created_at=9.0) for item in items(1700)])
    which = ItemFilter(types=[MemoryType.GOALS])
    assert [item for page in await pages(facts, USER, which, 2) for item in page] == goals[::-1]
    assert len(await all_items(facts, USER)) == 1703
    await touch(facts, "u", [f"m{number}" for number in range(1700)], 1.0)
    assert await sweep(facts, 1e10, types=[MemoryType.GOALS], limit=2) == 2
    assert await count(facts, USER, which) == 1


async def test_an_update_keeps_all_other_fields(facts: RedisItems, redis_server: RedisServer) -> None:
    source = Source(session_id="s'%\"\\/ü\x7f", turn_index=2**52, spans=(Span("7", 2**52, 2**60), Span("ü", 0, 1)))
    full = replace(items(1)[0], id="i'%\"\\/ü\u2028", topic=TEXT, source=source, created_at=0.1 + 0.2)
    await facts.put(USER, [full])
    changed = replace(full, text=TEXT, updated_at=1763700000.1234567)
    assert await update(facts, USER, full.id, TEXT, at=1763700000.1234567)
    assert await facts.get(USER, [full.id]) == {full.id: changed}
    await supersede(facts, USER, full.id, MemoryItem(id="j'\"\\ü", text="x", created_at=1763700001.7654321))
    ended = replace(changed, superseded_at=1763700001.7654321, superseded_by="j'\"\\ü")
    assert await facts.get(USER, [full.id]) == {full.id: ended}
    await facts.delete(USER, ["j'\"\\ü"])
    assert await facts.get(USER, [full.id]) == {full.id: changed}
    audit(redis_server)


async def test_ids_that_utf_8_cannot_encode_match_nothing(facts: RedisItems) -> None:
    await facts.put(USER, items(2, source=Source(session_id="s")))
    odd = Scope(user_id="u", agent="\ud800")
    assert await count(facts, odd) == 2 and await facts.delete(odd, ["\ud800", "1"]) == ["1"]
    assert await count(facts, USER, ItemFilter(session_id="\ud800")) == 0
    assert await purge(facts, "u", session_id="\ud800") == await purge(facts, "\ud800") == []
    assert not await update(facts, USER, "\ud800", "x", at=1.0)


async def test_a_time_that_is_not_a_number_is_refused(facts: RedisItems, redis_server: RedisServer) -> None:
    nan = float("nan")
    with pytest.raises(ConfigError, match="at=nan: is not a time"):
        await facts.put(USER, items(2), at=nan)
    assert audit(redis_server) == 0
    assert await facts.put(USER, items(2), at=1.0) == ["0", "1"]
    for call in (touch(facts, "u", ["0"], nan), sweep(facts, nan)):
        with pytest.raises(StoreError, match="not a"):
            await call
    assert audit(redis_server) == 2


async def test_equally_old_facts_are_swept_in_order_of_insertion(facts: RedisItems) -> None:
    for number in range(30):
        await facts.put(Scope(user_id=f"u{number % 3}"), [MemoryItem(id=f"{number}", text="x")], at=5.0)
    await facts.put(USER, [MemoryItem(id="later", text="x")], at=6.0)
    expected = [str(number) for number in range(30)] + ["later"]
    for limit in (1, 4, 2):
        assert await sweep(facts, 7.0, limit=limit) == limit
        del expected[:limit]
        assert [fact.item.id for fact in await facts.scan()] == expected


async def test_prefixes_and_databases_are_separate(redis_url: str) -> None:
    stores = [RedisItems(redis_url), RedisItems(redis_url, prefix="other:1"), RedisItems(redis_url[:-1] + "1")]
    for index, facts in enumerate(stores):
        assert await facts.put(USER, items(index + 1)) == [str(n) for n in range(index + 1)]
    assert [await count(facts, USER) for facts in stores] == [1, 2, 3]
    assert await purge(stores[1], "u") == ["0", "1"]
    assert [await count(facts, USER) for facts in stores] == [1, 0, 3]
    await asyncio.gather(*(facts.close() for facts in stores))


def test_a_store_serves_several_event_loops_and_completes_calls_before_closing(redis_url: str) -> None:
    facts = RedisItems(redis_url, connections=2)
    first = asyncio.Runner()
    assert first.run(facts.put(USER, items(3))) == ["0", "1", "2"]
    assert asyncio.run(count(facts, USER)) == 3
    assert first.run(facts.delete(USER, ["1"])) == ["1"]

    async def close() -> list[Any]:
        puts = [asyncio.ensure_future(facts.put(USER, items(200 + number))) for number in range(20)]
        await asyncio.sleep(0)
        await asyncio.gather(facts.close(), facts.close())
        return await asyncio.gather(*puts)

    assert sum(map(len, first.run(close()))) == 216
    for call in (facts.put(USER, []), count(facts, USER)):
        with pytest.raises(StoreClosedError, match=r"store redis://127\.0\.0\.1:\d+/0 is closed"):
            first.run(call)
    first.close()
    assert using(redis_url, lambda reopened: count(reopened, USER)) == 218


def test_a_store_pickles_as_its_settings(redis_url: str) -> None:
    store = RedisItems(redis_url, prefix="p", timeout_s=3.0, connections=2)
    unpickled = pickle.loads(pickle.dumps(store))
    assert type(unpickled) is RedisItems and pickle.dumps(unpickled) == pickle.dumps(store)
    settings: dict[str, Any] = {"prefix": "p", "timeout_s": 3.0, "connections": 2}
    for name in settings:
        others = {other: value for other, value in settings.items() if other != name}
        assert pickle.dumps(RedisItems(redis_url, **others)) != pickle.dumps(store)
    assert repr(unpickled) == repr(store) == f"RedisItems({redis_url!r})"


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        *[(ITEMS, raw) for raw in ("", "{", "5", "null", "[]", "{}", '{"id": 5}')],
        *[(TEXTS, raw) for raw in ("", "{", "5", "null")],
        *[(ITEMS, change) for change in ({"type": "no"}, {"spans": "[[1]]"}, {"user": "v"}, {"turn_index": "x"})],
        *[
            (ITEMS, change)
            for change in ({"created_at": "x"}, {"place": "0"}, {"superseded_at": "x"}, {"id": None}, {"id": "7"})
        ],
    ],
)
async def test_a_corrupt_fact_raises_an_error_that_names_it_and_can_be_deleted(
    facts: RedisItems, redis_server: RedisServer, key: str, raw: Any
) -> None:
    digest = digest_of("u", "0").hex()
    await facts.put(USER, items(4, source=Source(turn_index=1, session_id="s")))
    with redis_server.client as client:
        if isinstance(raw, dict):
            raw = changed(client.hget(ITEMS, digest), raw)
        client.hset(key, digest, raw)
    calls: list[Callable[[RedisItems], Awaitable[Any]]] = [
        lambda facts: facts.query(USER, EVER),
        lambda facts: facts.get(USER, ["1", "0"]),
        lambda facts: facts.scan(),
        lambda facts: facts.scan("u"),
    ]
    for call in calls:
        with pytest.raises(CorruptRecordError, match=r"^corrupt record ") as error:
            await call(facts)
        assert error.value.key == f"{ITEMS} {digest}"
    assert [item.id for item in await facts.query(USER, limit=2)] == ["3", "2"]
    assert len(await purge(facts, "u")) == 4
    assert await facts.put(USER, items(4)) == []
    assert audit(redis_server) == 0


@pytest.mark.parametrize("change", [None, {"agent": 5}, {"superseded_at": "x"}, {"type": None}])
async def test_writes_that_meet_a_corrupt_fact_change_nothing(
    facts: RedisItems, redis_server: RedisServer, change: dict[str, Any] | None
) -> None:
    await facts.put(USER, items(3, source=Source(session_id="s")), at=1.0)
    digest = digest_of("u", "0").hex()
    with redis_server.client as client:
        client.hset(ITEMS, digest, changed(client.hget(ITEMS, digest), change) if change else "{")
        before = {key: client.dump(key) for key in client.scan_iter()}
    calls: list[Callable[[RedisItems], Awaitable[Any]]] = [
        lambda facts: update(facts, USER, "0", "x", at=2.0),
        lambda facts: supersede(facts, USER, "0", MemoryItem(id="n", text="x", created_at=1.0)),
        lambda facts: facts.delete(USER, ["1", "0"]),
        lambda facts: purge(facts, "u", session_id="s"),
        lambda facts: sweep(facts, 2.0),
    ]
    for call in calls:
        with pytest.raises(CorruptRecordError) as error:
            await call(facts)
        assert error.value.key == f"{ITEMS} {digest}"
    with redis_server.client as client:
        assert {key: client.dump(key) for key in client.scan_iter()} == before


def test_fifty_concurrent_writers_are_each_applied_once_and_completely(
    redis_url: str, redis_server: RedisServer
) -> None:
    async def use() -> None:
        stores = [RedisItems(redis_url, connections=count) for count in (1, 4, 8)]
        users = [Scope(user_id=f"u{number}") for number in range(5)]

        async def write(writer: int) -> list[str]:
            facts, scope = stores[writer % 3], users[writer % 5]
            own_items = [MemoryItem(id=f"{writer}-{n}", text="x", created_at=1.0) for n in range(6)]
            shared = [MemoryItem(id=f"shared-{n}", text=f"{writer}", created_at=2.0) for n in range(3)]
            new = await facts.put(scope, [*own_items, *shared])
            await supersede(facts, scope, f"{writer}-0", MemoryItem(id=f"{writer}-new", text="y", created_at=3.0))
            await asyncio.gather(
                facts.delete(scope, [f"{writer}-1", f"{writer}-new"]),
                facts.put(scope, own_items),
                update(facts, scope, f"{writer}-2", "z", at=4.0),
            )
            return new

        new = await asyncio.gather(*(write(writer) for writer in range(50)))
        for index, scope in enumerate(users):
            shared = sorted(name for names in new[index::5] for name in names if name.startswith("shared"))
            assert shared == ["shared-0", "shared-1", "shared-2"]
            stored = {item.id: item for item in await all_items(stores[0], scope, EVER)}
            assert len(stored) == 53 and {item.text for item in stored.values() if item.id.endswith("-2")} >= {"z"}
            assert all(item.superseded_at is None for item in stored.values())
            assert not [name for name in stored if name.endswith(("-1", "-new")) and "shared" not in name]
        await asyncio.gather(*(facts.close() for facts in stores))

    asyncio.run(use())
    assert audit(redis_server) == 265


@pytest.mark.parametrize("acknowledged", [3, 40, 150])
def test_after_a_kill_each_acknowledged_fact_is_there_once(
    own_server: Callable[..., RedisServer], acknowledged: int
) -> None:
    server = own_server()
    done: dict[tuple[int, int], list[MemoryItem]] = {}

    async def load(facts: RedisItems) -> list[Any]:
        async def write(writer: int) -> None:
            scope = Scope(user_id=f"u{writer % 3}")
            for number in range(1000):
                batch = [MemoryItem(id=f"{writer}-{number}-{n}", text="x" * 99, created_at=1.0) for n in range(3)]
                await facts.put(scope, batch)
                done[writer, number] = batch
                if len(done) == acknowledged:
                    server.kill()

        return await asyncio.gather(*(write(writer) for writer in range(8)), return_exceptions=True)

    async def look(facts: RedisItems) -> None:
        stored_ids = [item.id for user in range(3) for item in await all_items(facts, Scope(user_id=f"u{user}"))]
        scanned = [fact.item.id for fact in await facts.scan(limit=100_000)]
        assert sorted(stored_ids) == sorted(set(stored_ids)) == sorted(scanned)
        assert set(stored_ids) >= {item.id for batch in done.values() for item in batch}
        unknown = {name.rpartition("-")[0] for name in stored_ids} - {f"{writer}-{number}" for writer, number in done}
        assert len(unknown) <= 8 and len(stored_ids) == 3 * (len(done) + len(unknown))
        for (writer, _), batch in done.items():
            assert await facts.put(Scope(user_id=f"u{writer % 3}"), batch) == []

    errors = using(server.url, load)
    assert len(errors) == 8 and all(type(error) is StoreError for error in errors)
    assert len(done) >= acknowledged
    server.start()
    using(server.url, look)
    audit(server)


def test_a_stopped_server_is_a_store_error_until_it_is_back(
    own_server: Callable[..., RedisServer],
) -> None:
    server = own_server()

    async def use(facts: RedisItems) -> None:
        await facts.put(USER, items(3))
        server.kill()
        for call in (facts.put(USER, items(4)), facts.query(USER), purge(facts, "u")):
            with pytest.raises(StoreError, match=r"^store redis://127\.0\.0\.1:\d+/0: .*; is it reachable"):
                await call
        server.start()
        assert await facts.put(USER, items(4)) == ["3"]
        assert await count(facts, USER) == 4

    using(server.url, use)


def test_a_server_that_does_not_answer_is_a_store_error(own_server: Callable[..., RedisServer]) -> None:
    server = own_server()

    async def use(facts: RedisItems) -> None:
        await facts.put(USER, items(3))
        with server.frozen():
            for call in (count(facts, USER), facts.put(USER, items(3))):
                with pytest.raises(StoreError, match="Timeout"):
                    await call
        assert await count(facts, USER) == 3

    using(server.url, use, timeout_s=0.3)


async def test_only_idempotent_calls_are_repeated_after_a_lost_answer(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with Line(redis_server.port) as line:
        facts = RedisItems(f"{line.url}?retry_on_timeout=yes", connections=1)
        await facts.put(USER, items(2))
        new = MemoryItem(id="9", text="x", created_at=9.0)
        for call in (facts.delete(USER, ["9-9"]), purge(facts, "v"), sweep(facts, 0.0), touch(facts, "u", [], 1.0)):
            await call  # so that each script is there
        repeated_calls: list[tuple[Callable[[], Awaitable[Any]], Any]] = [
            (lambda: count(facts, USER), 2),
            (lambda: facts.get(USER, ["1"]), {"1": items(2)[1]}),
            (lambda: touch(facts, "u", ["1"], 1.0), None),
        ]
        for verb, expected in repeated_calls:
            line.lose = 1
            assert await verb() == expected
            assert line.lose == 0
        assert await supersede(facts, USER, "1", new)

        def loses_the_next_answer(item: MemoryItem | None) -> MemoryItem | None:
            line.lose = 1
            return item and replace(item, text="else")

        once: list[Callable[[], Awaitable[Any]]] = [
            lambda: facts.change(USER, "0", loses_the_next_answer),
            lambda: facts.put(USER, [MemoryItem(id="once", text="x")], at=1.0),
            lambda: facts.delete(USER, ["0"]),
            lambda: sweep(facts, 2.0),
            lambda: purge(facts, "u"),
        ]
        counts = []
        for verb in once:
            line.lose = 1
            with pytest.raises(StoreError):
                await verb()
            counts.append(await count(facts, USER, EVER))
        assert counts == [3, 4, 3, 2, 0]
        await facts.close()


async def test_a_refused_write_is_a_store_error_and_changes_nothing(
    facts: RedisItems, redis_server: RedisServer
) -> None:
    await facts.put(USER, items(3))
    writes: list[Callable[[], Awaitable[Any]]] = [
        lambda: facts.put(USER, items(9)),
        lambda: update(facts, USER, "1", "else", at=1.0),
        lambda: supersede(facts, USER, "1", MemoryItem(id="n", text="x", created_at=1.0)),
    ]
    with redis_server.client as client:
        try:
            client.config_set("maxmemory", 1)
            for write in writes:
                with pytest.raises(StoreError, match=r"maxmemory.*out of memory"):
                    await write()
            assert list(await facts.query(USER)) == items(3)[::-1]
            assert await facts.delete(USER, ["0"]) == ["0"]  # or nobody could make room
            client.config_set("maxmemory", 0)
            audit(redis_server)
            client.replicaof("127.0.0.1", 1)
            for write in (*writes, lambda: purge(facts, "u")):
                with pytest.raises(StoreError, match="read only replica"):
                    await write()
            assert list(await facts.query(USER)) == items(3)[:0:-1]
        finally:
            client.config_set("maxmemory", 0)
            client.replicaof("NO", "ONE")
    assert await facts.put(USER, items(4)) == ["3"]


def test_a_password_is_needed_and_not_shown(own_server: Callable[..., RedisServer]) -> None:
    server = own_server(requirepass="right secret")
    url = server.url.replace("//", "//:{}@")
    with pytest.raises(StoreError, match=r"^store redis://:\*\*\*@127") as error:
        using(url.format("wrong%20secret"), lambda facts: count(facts, USER))
    assert "secret" not in f"{error.value} {error.value.__cause__}"
    assert using(url.format("right%20secret"), lambda facts: facts.put(USER, items(1))) == ["0"]
    assert "secret" not in f"{RedisItems(url.format('right%20secret'))!r}"


def test_on_a_cluster_every_call_uses_one_node(own_server: Callable[..., RedisServer]) -> None:
    server = own_server(**{"cluster-enabled": "yes"})
    with server.client as client:
        client.execute_command("CLUSTER ADDSLOTS", *range(16384))
        while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
            time.sleep(0.01)

    async def use(facts: RedisItems) -> None:
        await facts.put(USER, items(5), at=1.0)
        await supersede(facts, USER, "1", items(3)[2])
        assert await update(facts, USER, "0", "else", at=2.0) and await count(facts, USER) == 4
        assert await facts.delete(USER, ["2"]) == ["2"] and await sweep(facts, 2.0, limit=1) == 1
        await touch(facts, "u", ["3"], 9.0)
        assert len(await facts.scan()) == len(await facts.get(USER, "0123456")) == 3
        assert len(await purge(facts, "u")) == 3

    using(server.url, use)


async def test_ids_of_deleted_facts_are_refused_for_ninety_days(facts: RedisItems, redis_server: RedisServer) -> None:
    await facts.put(USER, items(4))
    await facts.delete(USER, ["0"])
    with redis_server.client as client:
        assert await facts.put(USER, items(1)) == []
        await facts.delete(USER, ["1"])
        assert client.zcard(DELETED) == 2
        for name, age_s in (("0", TOMBSTONE_S + 60), ("1", TOMBSTONE_S - 60)):
            client.zadd(DELETED, {digest_of("u", name).hex(): time.time() - age_s})
    await facts.delete(USER, ["2"])
    assert await facts.put(USER, items(2)) == ["0"]


def test_deleted_text_is_in_no_key_and_no_rewritten_file(
    own_server: Callable[..., RedisServer],
) -> None:
    server = own_server(**{"aof-use-rdb-preamble": "no"})
    sarah = Scope(user_id="sarah-connor", session_id="sarah-session", agent="agent-x")
    source = Source(session_id="sarah-session")

    def words(contents: bytes) -> set[bytes]:
        return {word for word in (b"Trondheim", b"sarah", b"agent-x") if word in contents}

    def files() -> bytes:
        return b"".join(path.read_bytes() for path in server.folder.iterdir())

    async def use(facts: RedisItems) -> None:
        batch = [
            MemoryItem(id=f"sarah-{number}", text="Trondheim", type=MemoryType.SKILL, source=source)
            for number in range(9)
        ]
        await facts.put(sarah, batch)
        assert words(files()) == {b"Trondheim", b"sarah", b"agent-x"}
        await purge(facts, "sarah-connor")
        with server.client as client:
            keys: Any = client.keys()
            assert sorted(keys) == sorted([DELETED.encode(), LAST.encode()])
            client.bgrewriteaof()
            while client.info("persistence")["aof_rewrite_in_progress"]:
                await asyncio.sleep(0.01)
        assert words(files()) == set()

    using(server.url, use)


def test_a_url_opens_the_item_store_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kinds: dict[str, type] = {
        "memory://": InMemoryItems,
        "memory://name": InMemoryItems,
        "sqlite:///a.db": SQLItems,
        "postgresql://u@h/x": SQLItems,
        "redis://h": RedisItems,
        "rediss://u:p@h:1/2?ssl_cert_reqs=none": RedisItems,
    }
    for url, kind in kinds.items():
        assert type(open_items(url)) is kind
    assert repr(open_items("sqlite:///a.db")) == f"SQLItems('sqlite:///{tmp_path}/a.db')"
    wrong: Any
    for wrong in ("", "mysql://h", "redis:h", "sqlite://", "Redis://h", None):
        with pytest.raises(StoreURLError, match=r"or redis://host:6379/0"):
            open_items(wrong)


@pytest.mark.parametrize(
    "url",
    [
        *("redis://:secret@h/x", "redis://u:a/secret@h", "redis://u:se/cret-secret@h", "redis://:secret@h:port"),
        *("redis://:secret@h?retries=1", "redis://h?password=secret&socket_timeout=x", "sqlite:///secret.db"),
    ],
)
def test_an_invalid_redis_url_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(StoreURLError) as error:
        RedisItems(url)
    assert "secret" not in f"{error.value} {error.value.__cause__}".replace("sqlite:///secret.db", "")


def test_a_setting_out_of_its_range_is_refused() -> None:
    wrong: list[dict[str, Any]] = [
        *[{"prefix": prefix} for prefix in ("", "a b", "{x}", "ä", "x" * 65)],
        *[{"timeout_s": timeout_s} for timeout_s in (0, -1, float("nan"))],
        {"connections": 0},
    ]
    for settings in wrong:
        with pytest.raises(ConfigError, match=next(iter(settings))):
            RedisItems("redis://h", **settings)


def test_url_options_about_decoding_are_ignored(redis_url: str) -> None:
    url = f"{redis_url}?decode_responses=yes&protocol=3&retry_on_timeout=yes"
    assert using(url, lambda facts: facts.put(USER, items(3))) == ["0", "1", "2"]
    assert list(using(url, lambda facts: facts.query(USER))) == items(3)[::-1]


def test_a_missing_client_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(StoreURLError, match=r"pip install 'turnwise\[redis\]'"):
        open_items("redis://h")


@pytest.mark.parametrize(("most", "scripts"), [(1000, 1), (4, 3)])
async def test_a_script_deletes_the_sessions_of_many_users_but_reads_not_too_many_items(
    redis_url: str, most: int, scripts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_items, "_READ", most)
    async with closing(RedisItems(redis_url)) as facts:
        for number in range(5):
            await facts.put(Scope(user_id=f"u{number}"), items(2, source=Source(session_id="s")))
        ran = list[str]()
        run = facts._run  # noqa: SLF001 - which sends each script

        async def noted(name: str, *args: Any, **options: Any) -> Any:
            ran.append(name)
            return await run(name, *args, **options)

        monkeypatch.setattr(facts, "_run", noted)
        names = [f"u{number}" for number in range(5)]
        assert await facts.delete_sessions({name: ["s", "t"] for name in names}) == {name: ["0", "1"] for name in names}
        assert ran == ["purge_sessions"] * scripts
        assert [await count(facts, Scope(user_id=name)) for name in names] == [0] * 5
