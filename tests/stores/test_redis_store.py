"""What is special about `RedisStore`. The laws of stores are checked in test_store_contract.py."""

import asyncio
import itertools
import json
import logging
import pickle
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from scale import share
from servers.redis_server import Line, RedisServer
from stored.open_stores import closing, run_with
from turnwise.errors import (
    ConfigError,
    CorruptRecordError,
    DuplicateKeyError,
    RunNotFoundError,
    SchemaVersionError,
    SessionFencedError,
    SessionNotFoundError,
    StoreError,
    TurnwiseError,
)
from turnwise.memory.conversation.ledger import COLUMNS, LedgerQuery
from turnwise.memory.conversation.runs import UNSETTLED, RunOrigin, RunRecord, RunState
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import TurnStatus
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.deliveries.records import DeliveryChange
from turnwise.memory.stores import in_memory
from turnwise.memory.stores.base import Activation, Commit, Page, SessionOrder, SessionStore
from turnwise.memory.stores.conformance.fixtures import (
    USAGE,
    Owner,
    a_delivery,
    a_run,
    a_session,
    a_turn,
    an_event,
    eventful,
    held,
    of_everything,
    own,
    state_after,
    state_of,
)
from turnwise.memory.stores.conformance.ledger import a_row
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.redis import store as store_redis
from turnwise.memory.stores.redis.store import RedisStore
from turnwise.memory.values.frozen_json import FrozenDict

BASE = "{turnwise:sessions}"
OwnServer = Callable[..., RedisServer]


def using(url: str, use: Callable[[RedisStore], Awaitable[Any]], **settings: Any) -> Any:
    """Return what `use` returns of an open store."""
    return run_with(RedisStore(url, **settings), use)


def everything(server: RedisServer) -> dict[str, Any]:
    """Return all keys of the store and what they have."""
    keys: dict[str, Any] = {}
    with server.client as client:
        for name in client.scan_iter(f"{BASE}:*", count=10_000):
            kind: Any = client.type(name)
            is_hash = kind == b"hash"
            raw: Any = client.hgetall(name) if is_hash else client.zrange(name, 0, -1, withscores=True)
            values = raw.items() if is_hash else raw
            keys[name.decode().removeprefix(f"{BASE}:")] = {
                field.decode(errors="surrogatepass"): value if isinstance(value, float) else value.decode("latin-1")
                for field, value in values
            }
    return keys


def audit(server: RedisServer) -> int:
    """Return the number of sessions. Fails unless all keys agree about each session and there is no other key."""
    keys = everything(server)
    lookup = {number: home for number, home in keys.items() if number.isdigit()}
    expected: dict[str, Any] = {"meta": keys.get("meta", {}), "ids": {}, "runs": {}, "unsettled": {}, "expiring": {}}
    expected |= lookup
    expected |= {name: values for name, values in keys.items() if name.startswith("ledger:")}
    expected["ledgers"] = {name.removeprefix("ledger:"): 0.0 for name in expected if name.startswith("ledger:")}
    lent: dict[str, dict[str, str]] = {}
    for number, home in lookup.items():
        member, places = number.zfill(16), home["places"].split()
        row = json.loads(home["row"].encode("latin-1"))
        expected["ids"][home["id"].encode("latin-1").decode()] = number
        assert home["status"] == row.get("status", "active")
        for place in places:
            for order in ("created", "updated"):
                when = float(home["created"]) if order == "created" else row.get("updated_at", 0.0)
                expected.setdefault(f"{order}:{home['status']}:{place}", {})[member] = when
        if "ttl_s" in row:
            expected["expiring"][member] = row.get("updated_at", 0.0) + row["ttl_s"]
        open_: dict[str, float] = {}
        for turn in keys.get(f"{number}:turns", ()):
            letter, record = turn[19], json.loads(turn[20:])
            assert (letter == "o") == (record.get("status", "pending") in ("pending", "queued", "running"))
            open_ |= {f"t{turn[:19]}": 0.0} if letter == "o" else {}
        of_keys: dict[str, str] = {}
        for run in keys.get(f"{number}:runs", ()):
            place, letter, record = run[:19], run[19], json.loads(run[20:])
            assert (letter == "u") == (record["state"] in UNSETTLED) and int(place) == record["turn_index"]
            open_ |= {f"r{place}": 0.0} if letter != "e" else {}
            open_ |= {f"u{place}": 0.0} if letter == "u" else {}
            expected["unsettled"] |= {member: 0.0} if letter == "u" else {}
            expected["runs"][record["run_id"]] = number
            of_keys[f"i{record['run_id']}"] = place
            of_keys |= {f"k={record['origin']['key']}": place} if record.get("origin", {}).get("key") else {}
        for name in ("events", "keyed"):
            for event in keys.get(f"{number}:{name}", ()):
                key = json.loads(event[19:].split("\n")[0])[4]
                assert (key is None) == (name == "events")
                of_keys |= {} if key is None else {f"e={key}": event[:19]}
        for part, values in {"open": open_, "keys": of_keys}.items():
            expected |= {f"{number}:{part}": values}
        user_place = next(place for place in places if place.startswith("user-"))
        if ledger := keys.get(f"{number}:ledger"):
            expected[f"{number}:ledger"] = ledger
            for name in ("ledgers", f"ledgers:{user_place}"):
                expected.setdefault(name, {})[number] = 0.0
        for delivery_key, delivery_id in keys.get(f"{number}:deliveries", {}).items():
            text = keys["deliveries"][delivery_id]
            delivery = json.loads(text.encode("latin-1").split(b" ", 2)[2])
            assert text.split(" ")[:2] == [number, str(delivery.get("revision", 1))]
            assert (delivery["key"], delivery["delivery_id"]) == (delivery_key, delivery_id.encode("latin-1").decode())
            expected.setdefault("deliveries", {})[delivery_id] = text
            expected.setdefault(f"{number}:deliveries", {})[delivery_key] = delivery_id
            member_id = delivery["delivery_id"]
            for place in ("all", user_place):
                expected.setdefault(f"deliveries:{place}", {})[member_id] = 0.0
            if delivery["due_at"] is not None:
                expected.setdefault("due", {})[member_id] = delivery["due_at"]
        for part in ("turns", "runs", "events", "keyed", "log"):  # which are where the others come from
            expected[f"{number}:{part}"] = keys.get(f"{number}:{part}", {})
        for log in home["borrowed"].split():
            lent.setdefault(log, {})[number] = keys[f"{log}:lent"][number]
    for log, spans in lent.items():
        expected[f"{log}:lent"] = spans
        numbers = [[int(number) for number in text.split()] for text in spans.values()]
        held_positions = {
            number
            for span_numbers in numbers
            for first in range(0, len(span_numbers), 2)
            for number in range(*span_numbers[first : first + 2])
        }
        blocks = keys[f"{log}:log"]
        assert held_positions <= set(map(int, blocks)) and (log in lookup or held_positions == set(map(int, blocks)))
        expected[f"{log}:log"] = blocks
    assert keys == {name: values for name, values in expected.items() if values}
    return len(lookup)


# It is what the store in memory is


def comparable(page: Page[Any] | Any) -> Any:
    if isinstance(page, Activation):
        return replace(page, now=0.0)
    return (list(page), page.cursor) if isinstance(page, Page) else page


async def outcome(verb: Callable[[SessionStore], Awaitable[Any]], store: SessionStore) -> Any:
    try:
        return comparable(await verb(store))
    except TurnwiseError as error:
        return type(error), getattr(error, "session_id", None)


@pytest.mark.by_turns
@pytest.mark.parametrize("seed", range(share(6, 2)))
async def test_random_calls_give_the_same_answers_as_a_store_in_memory(
    seed: int, redis_url: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (in_memory, store_redis):  # both give the same names
        monkeypatch.setattr(module, "new_key", itertools.count(1).__next__)
        monkeypatch.setattr(module, "new_jump", lambda: 2)
    chance = random.Random(seed)
    serial = iter(range(10_000))
    names = [SessionKey(f"s{index % 4}", "uv"[index // 4]) for index in range(8)]
    sessions: dict[SessionKey, SessionRecord] = {}

    def any_session() -> tuple[SessionKey, SessionRecord]:
        name = chance.choice(names)
        return name, sessions.get(name, a_session(*name))

    def spans() -> tuple[Span, ...]:
        some_sessions = chance.choices([*sessions.values()] or [a_session("none", log="77")], k=2)
        return tuple(
            Span(session.log, start, start + chance.randint(0, 2))
            for session in some_sessions
            for start in [chance.randint(0, 3)]
        )

    def usage() -> Usage:
        return Usage(
            input_tokens=chance.choice((0, 2**62, 7)), calls=chance.randint(0, 3), cost=chance.random() // 2**-20
        )

    def created() -> Callable[[SessionStore], Awaitable[Any]]:
        values: dict[str, Any] = {
            "agent": chance.choice((None, "a", "b")),
            "created_at": chance.choice((-1.5, 0.0, 1.0, 1e9)),
            "updated_at": chance.choice((0.0, 5.0)),
            "usage": chance.choice((Usage(), usage())),
            "ttl_s": chance.choice((None, None, 3.0)),
        }
        session = a_session(*chance.choice(names), **values)
        turn = chance.choice((None, a_turn(chance.randint(0, 3), status="completed", input=spans())))
        also = spans()
        return lambda store: store.create(session, turn, also)

    def committed() -> Callable[[SessionStore], Awaitable[Any]]:
        name, old = any_session()
        blocks = [f"block {next(serial)}" for _ in range(chance.randint(0, 3))]
        session = old.committed(
            log_size=old.log_size + len(blocks),
            updated_at=chance.choice((old.updated_at, 1.0, 9.0, float(next(serial)))),
            status=chance.choice(("active", "active", "ended")),
            usage=chance.choice((old.usage, old.usage, usage())),
            ttl_s=chance.choice((None, 3.0, 5.0)),
            seq=old.seq + 10,
        )
        runs_: list[RunState] = ["queued", "running", "awaiting_approval", "completed"]
        turns: list[TurnStatus] = ["pending", "queued", "running", "completed", "failed"]
        number = next(serial)
        new = a_run(f"r{chance.choice((number, 3))}", number, chance.choice(runs_), **name._asdict())
        new = replace(new, origin=chance.choice((RunOrigin(), RunOrigin(f"k{number % 7}", "f"))))
        changed_runs = [replace(run, state=chance.choice(runs_)) for run in runs.get(name, []) if chance.random() < 0.3]
        commit = Commit(
            session=session,
            blocks=blocks,
            turns=[a_turn(chance.randint(0, 6), status=chance.choice(turns), created_at=float(next(serial)))],
            dropped_turns=[chance.randint(0, 6)] if chance.random() < 0.3 else [],
            new_run=chance.choice((None, new)),
            runs=changed_runs,
            events=[
                an_event(old.seq + number, chance.choice((None, f"e{chance.randint(0, 30)}")), **name._asdict())
                for number in range(chance.randint(0, 3))
            ],
            forget_events=chance.choice((0, 0, old.seq - 5 if old.seq > 5 else 0)),
            spent=[a_row(chance.choice(days), chance.choice("mn"), usage=usage()) for _ in range(chance.randint(0, 2))],
        )
        epoch = old.epoch + chance.choice((0, 0, 0, 0, 1))
        return lambda store: store.commit(name, epoch, commit)

    runs: dict[SessionKey, list[RunRecord]] = {}
    days = ("2026-11-29", "2026-11-30")

    def verb() -> Callable[[SessionStore], Awaitable[Any]]:
        name, _ = any_session()
        after, limit = chance.randint(-1, 20), chance.randint(1, 4)
        filters: dict[str, Any] = {"user_id": chance.choice((None, "u", "v")), "agent": chance.choice((None, "a"))}
        status: Any = chance.choice((None, "active", "ended"))
        order_by: SessionOrder = chance.choice(("created_at", "updated_at"))
        cursor = chance.choice((None, f"{chance.choice((0.0, 1.0, 5.0, 9.0))}:{chance.randint(0, 30)}"))
        page: dict[str, Any] = {"cursor": cursor, "limit": limit}
        wanted_spans = spans()
        by = tuple(name for name in COLUMNS if chance.random() < 0.5)
        since = chance.choice((None, *days))
        reads: list[Callable[[SessionStore], Awaitable[Any]]] = [
            lambda store: store.query(**filters, status=status, order_by=order_by, **page),
            lambda store: store.query(**filters, status=status, order_by=order_by, **page),
            lambda store: store.count(**filters, status=status),
            lambda store: store.ledger(LedgerQuery(**filters, by=by, since=since)),
            lambda store: store.unsettled(**page),
            lambda store: store.expired(9.0, **page),
            lambda store: store.turns(name, after=after, limit=limit),
            lambda store: store.runs(name, after=after * 50, limit=limit),
            lambda store: store.events(name, after=after * 5, limit=limit),
            lambda store: store.blocks(wanted_spans),
            lambda store: store.event_of_key(name, f"e{after}"),
            lambda store: store.run_of_key(name, f"k{limit}"),
            lambda store: store.run("r3"),
        ]
        if chance.random() < 0.4:
            return chance.choice(reads)
        epoch = chance.choice((None, 1))
        write = chance.random()
        if write < 0.2 or not sessions:
            return created()
        if write < 0.3:
            return lambda store: store.activate(name)
        if write < 0.32:
            return lambda store: store.forget_in_ledger(name.user_id)
        return committed() if write < 0.9 else lambda store: store.delete(name, epoch=epoch)

    async with closing(RedisStore(redis_url)) as store:
        model = InMemoryStore()
        for step in range(400):
            call = verb()
            expected = await outcome(call, model)
            assert await outcome(call, store) == expected, step
            for name in names:
                try:
                    sessions[name] = await model.get(name)
                    runs[name] = await model.runs(name)
                except SessionNotFoundError:
                    sessions.pop(name, None)
            if step % 40 == 39:
                for name in sessions:
                    assert await state_of(store, name) == await state_of(model, name), step
                assert audit(redis_server) == len(sessions)
        for name in [*sessions]:
            await store.delete(name)
    kept = {name for name in everything(redis_server) if not name.startswith("ledger")}
    assert kept == {"meta"}, "beside what was spent"


# What is acknowledged is there


def step_of(owner: Owner, number: int) -> dict[str, Any]:
    """Return the parts of a commit that leaves something of all kinds under a number."""
    name = owner.session.session_id
    return {
        "session": replace(owner.session, usage=Usage(calls=number + 1), updated_at=float(number)),
        "turns": [a_turn(number, status="completed")],
        "new_run": a_run(f"{name}.{number}", number, session_id=name, idempotency_key=f"k{number}"),
        "events": [an_event(2 * number + 1, session_id=name), an_event(2 * number + 2, f"e{number}", name)],
        "spent": [a_row()],
    }


async def steps_of(store: SessionStore, name: str) -> int:
    """Return how many such commits a session has. Fails unless each is stored whole, and once."""
    session, blocks, turns, runs, events, deliveries, spent = await state_of(store, name)
    assert isinstance(session, SessionRecord) and deliveries == []
    count = session.log_size
    assert blocks == [*(f"block {index}" for index in range(count)), "missing", "missing"]
    assert turns == [a_turn(index, status="completed") for index in range(count)]
    assert [run.run_id for run in runs] == [f"{name}.{index}" for index in range(count)]  # type: ignore[attr-defined]
    assert [event.seq for event in events] == [*range(1, 2 * count + 1)]  # type: ignore[attr-defined]
    assert session.usage == Usage(calls=count)
    assert sum(row.runs for row in spent) == count  # type: ignore[attr-defined]
    return count


@pytest.mark.by_turns
@pytest.mark.parametrize("acknowledged", [7, 150])
def test_after_a_kill_of_the_server_each_acknowledged_commit_is_stored_once_and_whole(
    own_server: OwnServer, acknowledged: int
) -> None:
    """Case 65."""
    server = own_server()
    done = {f"s{index}": 0 for index in range(20)}

    async def load(store: RedisStore) -> list[Any]:
        async def write(name: str) -> None:
            owner = await own(store, name)
            while True:
                await owner.commit(f"block {done[name]}", **step_of(owner, done[name]))
                done[name] += 1
                if sum(done.values()) == acknowledged:
                    server.kill()

        return await asyncio.gather(*map(write, done), return_exceptions=True)

    async def look(store: RedisStore) -> None:
        total = 0
        for name, least in done.items():
            try:
                count = await steps_of(store, name)
            except SessionNotFoundError:
                count = 0
            assert least <= count <= least + 1
            total += count
            if count:
                owner = Owner(store, (await store.activate(SessionKey(name))).session)
                await owner.commit(f"block {count}", **step_of(owner, count))
                assert await steps_of(store, name) == count + 1
                total += 1
        assert [row.runs for row in await store.ledger(LedgerQuery())] == [total]

    errors = using(server.url, load)
    assert {type(error) for error in errors} == {StoreError} and sum(done.values()) >= acknowledged
    server.start()
    using(server.url, look)
    audit(server)


async def test_a_lost_answer_is_an_error_and_the_commit_is_not_repeated(
    redis_url: str, redis_server: RedisServer
) -> None:
    """Cases 64 and 65: the outcome is unknown until the next activation."""

    async with Line(redis_server.port) as line:
        store = RedisStore(line.url, connections=1)
        await store.create(a_session("t"))
        await store.delete(SessionKey("t"))  # so that each script is there
        await store.count()
        owner = await eventful(store)
        commit = of_everything(owner)
        line.lose = 1
        with pytest.raises(StoreError) as error:
            await store.commit(SessionKey("s"), 1, commit)
        assert type(error.value) is StoreError and line.lose == 0
        assert await state_of(store, "s") == state_after(commit)
        with pytest.raises(SessionFencedError):
            await store.commit(SessionKey("s"), 1, commit)
        repeated = replace(commit, session=commit.session.committed(log_size=6))
        with pytest.raises(DuplicateKeyError):
            await store.commit(SessionKey("s"), 1, repeated)
        read = store.state

        async def read_and_lose_the_next_answer(key: SessionKey) -> Activation:
            activation = await read(key)
            line.lose = 1
            return activation

        store.state = read_and_lose_the_next_answer  # type: ignore[method-assign]
        with pytest.raises(StoreError):
            await store.activate(SessionKey("s"))
        store.state = read  # type: ignore[method-assign]
        assert (await store.get(SessionKey("s"))).epoch == 2
        with pytest.raises(SessionFencedError):
            await store.commit(SessionKey("s"), 1, commit)
        line.lose = 1
        assert await store.count() == 1 and line.lose == 0  # what only reads is read again
        line.lose = 1
        with pytest.raises(StoreError):
            await store.delete(SessionKey("s"))
        with pytest.raises(SessionNotFoundError):
            await store.delete(SessionKey("s"))
        await store.close()
    assert audit(redis_server) == 0


async def test_calls_to_an_absent_server_fail_and_succeed_when_it_is_back(own_server: OwnServer) -> None:
    """Case 65."""
    server = own_server()
    async with closing(RedisStore(server.url)) as store:
        owner = await own(store)
        await asyncio.gather(*(store.get(SessionKey("s")) for _ in range(20)))  # so that all connections are open
        verbs: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.get(SessionKey("s")),
            store.query,
            lambda: owner.commit("block 0", **step_of(owner, 0)),
            lambda: store.create(a_session("t")),
        ]
        server.kill()
        for verb in verbs:
            with pytest.raises(StoreError, match=r"^store redis://127\.0\.0\.1:\d+/0: .*; is it reachable"):
                await verb()
        server.start()
        await owner.commit("block 0", **step_of(owner, 0))
        assert await steps_of(store, "s") == 1
        with server.client as client:
            assert client.client_kill_filter(_type="normal", skipme=True) >= 1
        await owner.commit("block 1", **step_of(owner, 1))
        assert await steps_of(store, "s") == 2
    audit(server)


async def test_a_server_that_does_not_answer_is_an_error_within_the_timeout(own_server: OwnServer) -> None:
    """Case 65. The server may still carry out what it was sent, so the session is activated again."""
    server = own_server()
    async with closing(RedisStore(server.url, timeout_s=0.3)) as store:
        with server.frozen(), pytest.raises(StoreError, match="Timeout"):
            await store.count()
        owner = await own(store)
        with server.frozen():
            with pytest.raises(StoreError, match="Timeout"):
                await store.get(SessionKey("s"))
            with pytest.raises(StoreError, match="Timeout"):
                await owner.commit("block 0", **step_of(owner, 0))
        owner = Owner(store, (await store.activate(SessionKey("s"))).session)
        count = await steps_of(store, "s")
        await owner.commit(f"block {count}", **step_of(owner, count))
        assert await steps_of(store, "s") == count + 1
    audit(server)


async def test_a_redis_out_of_memory_refuses_commits_whole_and_still_reads_and_deletes(
    redis_url: str, redis_server: RedisServer
) -> None:
    """Case 65."""
    async with closing(RedisStore(redis_url)) as store:
        owner = await eventful(store)
        await own(store, "t", a_turn(0, prompt=(Span(owner.session.log, 0, 1),)), usage=USAGE)
        commit = of_everything(owner)
        owner.session = owner.session.committed()
        await store.commit(
            SessionKey("s"), 1, replace(commit, blocks=(), session=owner.session)
        )  # so that each script is there
        await store.create(a_session("u"))
        await store.delete(SessionKey("u"))
        before, keys = await state_of(store, "s"), everything(redis_server)
        more = replace(of_everything(owner), new_run=a_run("r8", 8), turns=[a_turn(3)], events=[an_event(99)])
        more = replace(more, deliveries=[DeliveryChange(None, a_delivery("d8"))])
        verbs: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.commit(SessionKey("s"), 1, more),
            lambda: store.create(a_session("u")),
            lambda: store.activate(SessionKey("s")),
            lambda: store.add_delivery(a_delivery("d9")),
        ]
        with redis_server.client as client:
            try:
                client.config_set("maxmemory", 1)
                for verb in verbs:
                    with pytest.raises(StoreError, match=r"maxmemory.*out of memory"):
                        await verb()
                assert await state_of(store, "s") == before and everything(redis_server) == keys
                await store.change_delivery(DeliveryChange(a_delivery("d3"), None))
                await store.delete(SessionKey("s"))  # or nobody could make room
                assert await held(store, Span(owner.session.log, 0, 2)) == ["a", "missing"]
            finally:
                client.config_set("maxmemory", 0)
        audit(redis_server)
        await store.create(a_session("u"))
    assert audit(redis_server) == 2


async def test_a_stale_owner_writes_nothing_however_many_commits_it_has_started(
    redis_url: str, redis_server: RedisServer
) -> None:
    """Cases 47 and 64."""

    store, new_store = RedisStore(redis_url), RedisStore(redis_url, connections=1)
    old = await own(store)
    for round_ in range(5):
        first = old.session.log_size
        late = [
            store.commit(
                SessionKey("s"),
                old.session.epoch,
                replace(old.prepare(f"late {number}"), events=[an_event(900 + number)]),
            )
            for number in range(10)
        ]
        outcomes = asyncio.gather(*late, return_exceptions=True)
        new = Owner(new_store, (await new_store.activate(SessionKey("s"))).session)
        size, events = new.session.log_size, await new_store.events(SessionKey("s"), after=899)
        errors = [error for error in await outcomes if error is not None]
        assert len(errors) == 10 - (size - first) and size - first == len(events) <= 1, round_
        assert {type(error) for error in errors} <= {SessionFencedError, StoreError}
        assert (
            await new_store.get(SessionKey("s")) == new.session
            and await new_store.events(SessionKey("s"), after=899) == events
        )
        await new.commit("x", forget_events=2000)
        with pytest.raises(SessionFencedError):
            await store.commit(SessionKey("s"), old.session.epoch, old.prepare("late"))
        old = new
    await asyncio.gather(store.close(), new_store.close())
    audit(redis_server)


# What it costs


def calls_of(server: RedisServer) -> dict[str, int]:
    with server.client as client:
        statistics: Any = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in statistics.items()}


def test_the_cost_of_a_page_does_not_depend_on_the_number_of_sessions(
    redis_url: str, redis_server: RedisServer
) -> None:
    async def use(store: RedisStore) -> dict[str, int]:
        owner = await own(store, "long")
        for part in range(4):
            numbers = range(100 * part, 100 * part + 100)
            events = [an_event(index + 1, session_id="long") for index in numbers]
            turns = [a_turn(index, status="completed") for index in numbers]
            await owner.commit(*["x" * 100] * 100, turns=turns, events=events)
        await asyncio.gather(
            *(store.create(a_session(f"s{index}", user_id="u", agent="a", ttl_s=1e9)) for index in range(400))
        )
        with redis_server.client as client:
            client.config_resetstat()
        costs = {}
        for name, verb in {
            "query": store.query(user_id="u", agent="a", limit=3, cursor="0.0:200"),
            "ended": store.query(status="ended", order_by="updated_at", limit=3),
            "count": store.count(user_id="u"),
            "ledger": store.ledger(LedgerQuery()),
            "turns": store.turns(SessionKey("long"), after=200, limit=3),
            "events": store.events(SessionKey("long"), after=200, limit=3),
            "blocks": store.blocks([Span(owner.session.log, 200, 203)]),
            "activate": store.activate(SessionKey("long")),
            "unsettled": store.unsettled(limit=3),
            "expired": store.expired(0.0, limit=3),
        }.items():
            before = sum(calls_of(redis_server).values())
            await verb
            costs[name] = sum(calls_of(redis_server).values()) - before - 1  # and the question what it was
        with redis_server.client as client:
            bytes_before = client.info("stats")["total_net_output_bytes"]
            await store.turns(SessionKey("long"), after=200, limit=3)
            assert client.info("stats")["total_net_output_bytes"] - bytes_before < 10_000
        return costs

    costs = using(redis_url, use)
    assert max(costs.values()) <= 40, costs


async def test_a_commit_takes_the_same_number_of_commands_in_a_long_session(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with closing(RedisStore(redis_url)) as store:
        owner, costs = await own(store), []
        for number in range(100):
            before = sum(calls_of(redis_server).values())
            await owner.commit(f"block {number}", **step_of(owner, number))
            costs.append(sum(calls_of(redis_server).values()) - before)
        assert len(set(costs[5:])) == 1 and costs[-1] < 60


# Records


async def test_numbers_keep_every_digit_and_sums_never_round(redis_url: str, redis_server: RedisServer) -> None:
    async with closing(RedisStore(redis_url)) as store:
        big = 2**63 - 1
        usage = Usage(input_tokens=big, output_tokens=2**53 + 1, seconds=0.1 + 0.2, cost=1e-9 / 3)
        owner = await own(store, seq=big, usage=usage)
        turn = a_turn(big, usage=usage, metadata=FrozenDict({"n": 2**60 + 1}))
        run = a_run("r", big - 1, first_seq=big, created_at=1763700000.1234567)
        await owner.commit(turns=[turn], new_run=run, events=[an_event(big), an_event(big - 1, "k")])
        assert await store.get(SessionKey("s")) == owner.session and owner.session.seq == big
        assert (
            await store.turns(SessionKey("s"), after=big - 1) == [turn]
            and await store.turns(SessionKey("s"), after=big) == []
        )
        assert await store.runs(SessionKey("s"), after=big - 2) == [run] == [await store.run("r")]
        assert await store.events(SessionKey("s"), after=big - 2) == [an_event(big - 1, "k"), an_event(big)]
        assert await store.turns(SessionKey("s"), after=10**30) == []
        spent = Usage(input_tokens=2**53, cost=1e-9, seconds=0.1)
        for _ in range(100):
            await owner.commit(spent=[a_row(usage=spent)])
        (total,) = await store.ledger(LedgerQuery())
        assert total.usage == Usage(input_tokens=100 * 2**53, cost=1e-7, seconds=10.0)
    audit(redis_server)


@pytest.mark.parametrize("raw", ["", "{", "5", "null", "[]", '{"status":"no"}', '{"index":"0"}', '{"spans":[[1]]}'])
@pytest.mark.parametrize("part", ["row", "turns", "runs", "events", "keyed"])
def test_a_corrupt_record_is_named_and_never_skipped(
    redis_url: str, redis_server: RedisServer, part: str, raw: str
) -> None:
    async def use(store: RedisStore) -> None:
        number = (await eventful(store)).session.log
        key = f"{BASE}:{number}"
        with redis_server.client as client:
            if part == "row":
                client.hset(key, "row", raw)
            else:
                (entry, *_) = client.zrange(f"{key}:{part}", 0, 0)
                client.zrem(f"{key}:{part}", entry)
                client.zadd(f"{key}:{part}", {entry[: 19 if part in ("events", "keyed") else 20] + raw.encode(): 0})
        verbs: dict[str, list[Callable[[], Awaitable[Any]]]] = {
            "row": [lambda: store.get(SessionKey("s")), lambda: store.activate(SessionKey("s"))],
            "turns": [lambda: store.turns(SessionKey("s")), lambda: store.activate(SessionKey("s"))],
            "runs": [
                lambda: store.runs(SessionKey("s")),
                lambda: store.run("r0"),
                lambda: store.run_of_key(SessionKey("s"), "k0"),
            ],
            "events": [lambda: store.events(SessionKey("s"))],
            "keyed": [lambda: store.events(SessionKey("s")), lambda: store.event_of_key(SessionKey("s"), "e1")],
        }
        for verb in verbs[part]:
            with pytest.raises(CorruptRecordError) as error:
                await verb()
            assert error.value.key.startswith(key), error.value
        assert (await store.query()).unreadable == ((SessionKey("s"),) if part == "row" else ())
        await store.delete(SessionKey("s"))  # what cannot be read can be deleted

    if (part, raw) in {("row", '{"index":"0"}'), ("row", '{"spans":[[1]]}')} or part != "row" or raw != "{}":
        using(redis_url, use)
        assert audit(redis_server) == 0


async def test_a_run_is_found_by_its_user_alone(redis_url: str) -> None:
    async with closing(RedisStore(redis_url)) as store:
        await (await own(store, user_id="ann")).commit(new_run=a_run("run", 0, user_id="ann"))
        assert (await store.run("run", "ann")).user_id == "ann"
        for user in ("bob", "an", "nn", ""):
            with pytest.raises(RunNotFoundError):
                await store.run("run", user)


async def test_a_session_without_its_hash_or_epoch_is_corrupt_and_nothing_is_written(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with closing(RedisStore(redis_url)) as store:
        owner = await eventful(store)
        home = f"{BASE}:{owner.session.log}"
        with redis_server.client as client:
            for name in ("epoch", "places", "id"):
                value: Any = client.hget(home, name)
                client.hdel(home, name)
                keys = everything(redis_server)
                verbs: dict[str, list[Callable[[], Awaitable[Any]]]] = {
                    "epoch": [
                        lambda: store.get(SessionKey("s")),
                        lambda: store.activate(SessionKey("s")),
                        lambda: store.delete(SessionKey("s")),
                    ],
                    "places": [lambda: owner.commit("c"), lambda: store.delete(SessionKey("s"))],
                    "id": [lambda: store.get(SessionKey("s")), store.unsettled],
                }
                for verb in verbs[name]:
                    with pytest.raises(CorruptRecordError, match="missing") as error:
                        await verb()
                    assert error.value.key == home
                if name == "id":
                    with pytest.raises(RunNotFoundError):
                        await store.run("r0")  # nobody knows whose it is
                assert everything(redis_server) == keys
                client.hset(home, name, value)
        assert await store.unsettled() == Page((SessionKey("s"),), None)
    audit(redis_server)


async def test_a_commit_with_a_value_that_cannot_be_stored_is_refused_whole(
    redis_url: str, redis_server: RedisServer
) -> None:
    async with closing(RedisStore(redis_url)) as store:
        owner = await eventful(store)
        commit, nan, session = of_everything(owner), float("nan"), owner.session
        keys = everything(redis_server)
        for invalid in (
            replace(commit, session=replace(commit.session, updated_at=nan)),
            replace(commit, session=replace(commit.session, ttl_s=float("inf"))),
            replace(commit, session=replace(commit.session, usage=Usage(cost=nan))),
            replace(commit, blocks=["\ud800", "x"]),
            replace(commit, turns=[a_turn(-1)]),
            replace(commit, events=[an_event(10**19)]),
            replace(commit, events=[an_event(8), an_event(8)]),
            replace(commit, new_run=a_run("r9", 0)),  # another run's index
        ):
            with pytest.raises(StoreError):
                await store.commit(SessionKey("s"), 1, invalid)
            assert everything(redis_server) == keys
        for session in (a_session("t", created_at=nan), a_session("\ud800"), a_session("t", usage=Usage(seconds=nan))):
            with pytest.raises(StoreError):
                await store.create(session)
        assert everything(redis_server) == keys
        for verb in (store.get, store.activate, store.turns, store.delete):
            with pytest.raises(SessionNotFoundError):
                await verb(SessionKey("\ud800"))
        assert await store.count(user_id="\ud800") == 0 and await store.event_of_key(SessionKey("s"), "\ud800") is None
        assert await store.events(SessionKey("s"), after=-(10**30), limit=2**70) == await store.events(SessionKey("s"))
    audit(redis_server)


# Settings


async def test_a_store_of_another_version_is_not_touched(redis_url: str, redis_server: RedisServer) -> None:
    async with closing(RedisStore(redis_url)) as store:
        owner = await eventful(store)
        with redis_server.client as client:
            client.hset(f"{BASE}:meta", "version", "2")
        keys = everything(redis_server)
        verbs = (
            store.get(SessionKey("s")),
            owner.commit("x"),
            store.create(a_session("t")),
            store.count(),
            store.delete(SessionKey("s")),
        )
        for verb in verbs:
            with pytest.raises(SchemaVersionError, match=r"^store redis://.* has schema version 2, .* writes 1:"):
                await verb
        assert everything(redis_server) == keys
        with redis_server.client as client:
            client.hset(f"{BASE}:meta", "writable_from", "1")
        await owner.commit("x")
        await store.create(a_session("t"))
        with redis_server.client as client:
            assert client.hget(f"{BASE}:meta", "version") == b"2"  # which nobody lowers


@pytest.mark.parametrize(
    ("settings", "warnings"),
    [
        ({}, []),
        ({"appendonly": "no"}, ["appendonly no; set appendonly yes"]),
        ({"appendfsync": "everysec", "maxmemory-policy": "allkeys-lru"}, ["appendfsync everysec, which may lose"]),
        ({"maxmemory": "1gb", "maxmemory-policy": "allkeys-lru"}, ["maxmemory-policy allkeys-lru, which drops"]),
        ({"appendonly": "no", "maxmemory": "9gb"}, []),
    ],
)
def test_settings_that_may_lose_acknowledged_writes_are_logged_once(
    own_server: OwnServer, settings: dict[str, str], warnings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    server = own_server(**settings)
    if "maxmemory" in settings and not warnings:
        with server.client as client:
            client.execute_command("ACL", "SETUSER", "default", "-config")  # or it would tell

    async def use(store: RedisStore) -> None:
        await asyncio.gather(*(store.count() for _ in range(5)))
        await store.create(a_session())

    with caplog.at_level(logging.WARNING):
        using(server.url, use)
    assert len(caplog.messages) == len(warnings)
    for message, part in zip(caplog.messages, warnings, strict=True):
        assert message.startswith(f"store {server.url} may lose what it has acknowledged: it has ") and part in message


def test_a_password_is_shown_nowhere(own_server: OwnServer, caplog: pytest.LogCaptureFixture) -> None:
    server = own_server(requirepass="right secret", appendonly="no")
    url = server.url.replace("//", "//:{}@")
    with pytest.raises(StoreError, match=r"^store redis://:\*\*\*@127") as error:
        using(url.format("wrong%20secret"), lambda store: store.count())
    assert using(url.format("right%20secret"), lambda store: store.count()) == 0
    shown = f"{error.value} {error.value.__cause__} {RedisStore(url.format('secret'))!r} {caplog.text}"
    assert "secret" not in shown and "may lose" in shown


async def test_on_a_cluster_each_method_uses_one_node(own_server: OwnServer) -> None:
    server = own_server(**{"cluster-enabled": "yes"})
    with server.client as client:
        client.execute_command("CLUSTER ADDSLOTS", *range(16384))
        while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
            await asyncio.sleep(0.01)
        slots: set[Any] = set()
    async with closing(RedisStore(server.url)) as store:
        owner = await eventful(store)
        await store.create(a_session("t"), a_turn(0, prompt=(Span(owner.session.log, 0, 1),)))
        await store.commit(SessionKey("s"), 1, of_everything(owner))
        with server.client as client:
            slots.update(client.execute_command("CLUSTER", "KEYSLOT", key) for key in client.scan_iter())
        await store.delete(SessionKey("s"))
        assert (await store.count(), len(await store.query()), len(await store.ledger(LedgerQuery()))) == (1, 1, 1)
    assert len(slots) == 1
    audit(server)


async def test_stores_with_different_prefixes_share_no_data_and_pickle_as_their_settings(
    redis_url: str,
) -> None:
    plain, set_up = RedisStore(redis_url), RedisStore(redis_url, prefix="p", timeout_s=3.0)
    stores = [plain, pickle.loads(pickle.dumps(set_up))]
    assert pickle.dumps(stores[1]) == pickle.dumps(set_up)
    others = ({"timeout_s": 3.0}, {"prefix": "p"}, {"prefix": "p", "timeout_s": 3.0, "connections": 2})
    assert pickle.dumps(set_up) not in [pickle.dumps(RedisStore(redis_url, **other)) for other in others]
    assert repr(stores[1]) == f"RedisStore({redis_url!r})"
    for index, store in enumerate(stores):
        await store.create(a_session("s", title=f"{index}"))
    assert [(await store.get(SessionKey("s"))).title for store in stores] == ["0", "1"]
    await stores[1].delete(SessionKey("s"))
    assert [await store.count() for store in stores] == [1, 0]
    await asyncio.gather(*(store.close() for store in stores))
    with pytest.raises(ConfigError, match="prefix"):
        RedisStore(redis_url, prefix="{x}")
