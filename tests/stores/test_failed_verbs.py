"""A verb that fails leaves nothing behind: in each kind of store, wherever in the verb something fails."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing as closed
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from servers.redis_server import RedisServer
from stored.open_stores import closing
from stored.sql_traffic import busy, listening
from turnwise.adapters.langgraph.checkpoints import Commit as CheckpointCommit, Row, Space
from turnwise.adapters.langgraph.checkpoints_sql import SQLCheckpoints
from turnwise.adapters.langgraph.items import Batch
from turnwise.adapters.langgraph.items_sql import SQLGraphItems
from turnwise.errors import CorruptRecordError, KeyMissingError, SessionNotFoundError, StoreError, TurnwiseError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Span
from turnwise.memory.deliveries.records import DeliveryChange
from turnwise.memory.event_store.sql import SQLHistory
from turnwise.memory.longterm.base import MemoryItem, Scope, Source
from turnwise.memory.longterm.items.changes import pin, supersede, update
from turnwise.memory.longterm.items.redis import RedisItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.retention.retention import Use
from turnwise.memory.stores.base import Activation, SessionStore
from turnwise.memory.stores.conformance.fixtures import (
    Owner,
    a_delivery,
    a_session,
    a_turn,
    an_event,
    eventful,
    of_everything,
)
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.encrypted.store import EncryptedStore
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.redis.store import RedisStore
from turnwise.memory.stores.sql.sqlite_file import SQLiteFile
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.values.frozen_json import FrozenDict

USER = Scope(user_id="u")
SESSION = Scope(user_id="u", session_id="s")

Verbs = Mapping[str, Callable[[], Awaitable[object]]]


async def of_sessions(store: Any) -> Verbs:
    owner = await eventful(store)
    await owner.commit(events=[an_event(4, turn_index=0)], session=replace(owner.session, seq=4))
    await store.create(a_session("fork"), a_turn(0, input=(Span(owner.session.log, 0, 1),)))
    full_commit = replace(of_everything(owner), forget_events=0, forget_turns=0, cleared_blocks=[(0, "-"), (1, "-")])
    return {
        "create": lambda: store.create(a_session("new", ttl_s=5.0), a_turn(0, input=(Span(owner.session.log, 0, 2),))),
        "activate": lambda: store.activate(SessionKey("s")),
        "commit": lambda: store.commit(SessionKey("s"), 1, full_commit),
        "add a delivery": lambda: store.add_delivery(a_delivery("d9")),
        "change a delivery": lambda: store.change_delivery(
            DeliveryChange(a_delivery("d1"), a_delivery("d1", 20.0, revision=2))
        ),
        "cancel a delivery": lambda: store.change_delivery(DeliveryChange(a_delivery("d3"), None)),
        "delete a fork": lambda: store.delete(SessionKey("fork")),
        "delete": lambda: store.delete(SessionKey("s")),
    }


async def of_events(store: Any) -> Verbs:
    await store.append(SessionKey("s"), [an_event(1, "a", turn_index=0), an_event(2, turn_index=1)])
    return {
        "append": lambda: store.append(SessionKey("s"), [an_event(2, turn_index=1), an_event(3, "b"), an_event(4)]),
        "delete": lambda: store.delete(
            SessionKey("s"), turns_up_to=0, instead=[an_event(2, turn_index=1), an_event(5, "c")]
        ),
    }


def an_item(id: str, **values: Any) -> MemoryItem:
    return MemoryItem(id=id, **{"text": f"text of {id}", "created_at": 1.5, **values})


ITEMS = [an_item("1"), an_item("2", type=MemoryType.SKILL), an_item("3", source=Source(session_id="s", turn_index=0))]


async def of_items(store: Any) -> Verbs:
    await store.put(USER, ITEMS, at=1.0)
    await supersede(store, USER, "3", an_item("4", created_at=3.0))
    await store.delete(USER, ["gone"])
    return {
        "put": lambda: store.put(USER, [an_item("5"), an_item("6")]),
        "update": lambda: update(store, USER, "2", "else", at=9.0, type=MemoryType.FACTS),
        "pin": lambda: pin(store, USER, "1", True),
        "supersede": lambda: supersede(store, USER, "1", an_item("7", created_at=4.0)),
        "delete": lambda: store.delete(USER, ["4", "1", "unknown"]),
        "delete a turn": lambda: store.delete(replace(USER, session_id="s"), turn_index=0),
        "touch": lambda: store.touch([Use("u", ("1", "2", "4"), 1e10, True)]),
        "sweep": lambda: store.sweep(2e9),
    }


async def of_indexed_items(store: Any) -> Verbs:
    await store.add([(USER, ITEMS)], at=1.0, with_vectors=True)
    await store.delete(USER, ["gone"])
    pending = await store.pending("vectors", 9)
    await store.mark(pending[:1], "vectors")
    batches = [(USER, [an_item("5"), an_item("6")]), (Scope(user_id="v"), [an_item("5")])]
    return {
        "add": lambda: store.add(batches, with_vectors=True),
        "update": lambda: update(store, USER, "1", "else", at=9.0),
        "delete": lambda: store.delete(USER, ["1", "unknown"]),
        "mark": lambda: store.mark(pending, "vectors"),
        "unmark": store.unmark,
    }


async def of_checkpoints(store: Any) -> Verbs:
    first = Space(key=11, revision=1, written=1, head="a")
    row = Row("a", None, "run-a", b"record")
    values = [("channel", 0, b"0"), ("channel", 1, b"1")]
    place = ("t", "")
    store.commit(place, CheckpointCommit(before=None, after=first, rows=[row], values=values, writes=[("a", 1, b"w")]))
    second = replace(first, revision=2, head="b")
    more = CheckpointCommit(
        before=first,
        after=second,
        rows=[Row("b", "a", "run-b", b"record")],
        values=[("channel", 2, b"2")],
        writes=[("b", 2, b"w")],
        removed=["a"],
        removed_values={"channel": [(0, 1)]},
    )
    return {
        "commit": partial(asyncio.to_thread, store.commit, place, more),
        "copy": partial(asyncio.to_thread, store.copy, "t", "other"),
        "delete": partial(asyncio.to_thread, store.delete, "t"),
    }


async def of_graph_items(store: Any) -> Verbs:
    def row(ttl_s: float | None, expires_at: float | None) -> dict[str, Any]:
        return {"value": b"v", "vectors": None, "updated_at": 1.0, "ttl_s": ttl_s, "expires_at": expires_at}

    def batch(now: float, **puts: Any) -> Batch:
        named_puts = {("n.", name): value for name, value in puts.items()}
        return Batch(now=now, gets=(), searches=(), lists_namespaces=False, puts=named_puts)

    await store.write(batch(1.0, a=row(None, None), b=row(5.0, 6.0), c=row(50.0, 51.0), d=row(60.0, 61.0)))
    return {
        "refresh": lambda: store.refresh([("n.", "c"), ("n.", "d")], 9.0),
        "write": lambda: store.write(batch(10.0, a=None, c=row(None, None), e=row(5.0, 15.0))),
        "sweep": lambda: store.sweep(55.0),
    }


Fill = Callable[[Any], Awaitable[Verbs]]

ON_SQL: Mapping[str, tuple[Callable[[str], Any], Fill]] = {
    "sessions": (SQLStore, of_sessions),
    "events": (SQLHistory, of_events),
    "items": (SQLItems, of_items),
    "indexed items": (SQLItems, of_indexed_items),
    "checkpoints": (SQLCheckpoints, of_checkpoints),
    "graph items": (SQLGraphItems, of_graph_items),
}

ON_REDIS: Mapping[str, tuple[Callable[[str], Any], Fill]] = {
    "sessions": (RedisStore, of_sessions),
    "items": (RedisItems, of_items),
}


@dataclass
class Database:
    """An SQL database, seen past the store."""

    url: str

    def run(self, *statements: str) -> list[list[Any]]:
        """Run statements in one transaction; return the rows of each."""
        if self.url.startswith("sqlite"):
            with closed(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as connection, connection:
                return [connection.execute(statement).fetchall() for statement in statements]
        with psycopg.connect(self.url) as postgres:
            cursors = [postgres.execute(statement.encode()) for statement in statements]
            return [cursor.fetchall() if cursor.description else [] for cursor in cursors]

    def tables(self) -> list[str]:
        of_sqlite = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'turnwise%'"
        of_postgres = "SELECT tablename FROM pg_tables WHERE tablename LIKE 'turnwise%'"
        (rows,) = self.run(of_sqlite if self.url.startswith("sqlite") else of_postgres)
        return sorted(name for (name,) in rows if name != "turnwise_meta")

    def contents(self) -> dict[str, list[str]]:
        tables = self.tables()
        rows = self.run(*(f"SELECT * FROM {table}" for table in tables))
        return {table: sorted(map(repr, of_table)) for table, of_table in zip(tables, rows, strict=True)}

    def refuse_writes_to(self, table: str) -> None:
        """Let each statement that writes a row of the table fail."""
        if self.url.startswith("sqlite"):
            kinds = ("INSERT", "UPDATE", "DELETE")
            make = "CREATE TRIGGER refuse_{0} AFTER {0} ON {1} BEGIN SELECT RAISE(ABORT, 'refused by a test'); END"
            self.run(*(make.format(kind, table) for kind in kinds))
        else:
            self.run(
                "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN RAISE EXCEPTION 'refused by a test'; END $$",
                f"CREATE TRIGGER refuse AFTER INSERT OR UPDATE OR DELETE ON {table}"
                " FOR EACH ROW EXECUTE FUNCTION refuse()",
            )

    def allow_writes_to(self, table: str) -> None:
        if self.url.startswith("sqlite"):
            self.run(*(f"DROP TRIGGER refuse_{kind}" for kind in ("INSERT", "UPDATE", "DELETE")))
        else:
            self.run(f"DROP TRIGGER refuse ON {table}")

    def clear(self) -> None:
        self.run(*(f"DELETE FROM {table}" for table in self.tables()))


@pytest.mark.by_turns
@pytest.mark.parametrize("kind", ON_SQL)
async def test_a_verb_that_a_table_refuses_leaves_nothing_behind(kind: str, url: str) -> None:
    """Each verb, with each of the tables that it writes to."""
    make, fill = ON_SQL[kind]
    database, refused = Database(url), set()
    async with closing(make(url)) as store:
        verbs = await fill(store)
        for table in database.tables():
            for name in verbs:
                database.clear()
                verb = (await fill(store))[name]
                before = database.contents()
                database.refuse_writes_to(table)
                (error,) = await asyncio.gather(verb(), return_exceptions=True)
                if isinstance(error, BaseException):
                    assert isinstance(error, StoreError) and "refused by a test" in str(error), error
                    assert database.contents() == before, (table, name)
                    refused.add(name)
                database.allow_writes_to(table)
    assert not set(verbs) - refused, set(verbs) - refused


@pytest.mark.by_turns
@pytest.mark.parametrize("kind", ON_REDIS)
async def test_a_verb_that_a_redis_key_stops_leaves_nothing_behind(
    kind: str, redis_url: str, redis_server: RedisServer
) -> None:
    """Each verb, with each key in turn of another kind, and each value and member in turn damaged."""
    make, fill = ON_REDIS[kind]
    failed: set[str] = set()
    with redis_server.client as client:
        async with closing(make(redis_url)) as store:
            verbs = await fill(store)
            dumps = {key: client.dump(key) for key in client.keys("*")}
            for damage in damages(client):
                for name, verb in verbs.items():
                    damage()
                    before = stored(client)
                    try:
                        await verb()
                    except TurnwiseError:
                        failed.add(name)
                        assert stored(client) == before, name
                    at_once = client.pipeline()
                    at_once.flushdb()
                    for key, value in dumps.items():
                        at_once.restore(key, 0, value)
                    at_once.execute()
    assert failed >= set(verbs)


def stored(client: Any) -> dict[bytes, Any]:
    """Return all that is in a database. Not as dumps, which differ with the order that a hash happens to be in."""
    keys, at_once = client.keys("*"), client.pipeline()
    read = {
        b"hash": at_once.hgetall,
        b"zset": lambda key: at_once.zrange(key, 0, -1, withscores=True),
        b"string": at_once.get,
        b"list": lambda key: at_once.lrange(key, 0, -1),
    }
    for key in keys:
        at_once.type(key)
    for key, kind in zip(keys, at_once.execute(), strict=True):
        read[kind](key)
    return dict(zip(keys, at_once.execute(), strict=True))


def damages(client: Any) -> Iterator[Callable[[], object]]:
    """Yield functions that each damage one thing in a database that is as it is now."""

    def replace_key(key: bytes, kind: bytes) -> None:
        client.delete(key)
        client.lpush(key, "x") if kind == b"string" else client.set(key, "x")

    def replace_member(key: bytes, member: bytes, replacement: bytes) -> None:
        score = client.zscore(key, member)
        client.zrem(key, member)
        client.zadd(key, {replacement: score})

    for key in sorted(client.keys("*")):
        kind = client.type(key)
        yield lambda key=key, kind=kind: replace_key(key, kind)  # type: ignore[misc]
        if kind == b"hash":
            for field in sorted(client.hkeys(key)):
                yield lambda key=key, field=field: client.hset(key, field, b"\xff{")  # type: ignore[misc]
        elif kind == b"zset":
            for member in client.zrange(key, 0, -1):
                yield lambda key=key, member=member: replace_member(key, member, member[:20] + b"\xff")  # type: ignore[misc]
        elif kind == b"string":
            yield lambda key=key: client.set(key, "x")  # type: ignore[misc]


class Broken(Sequence[Any]):
    """A list that cannot be read to its end."""

    def __init__(self, *values: Any) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values) + 1

    def __getitem__(self, index: Any) -> Any:
        if index < len(self._values):
            return self._values[index]
        raise ValueError("refused by a test")


@pytest.mark.parametrize("part", ["turns", "runs", "events", "cleared_blocks", "dropped_turns", "deliveries"])
async def test_a_commit_that_cannot_be_read_to_its_end_leaves_nothing_in_memory(part: str) -> None:
    store = InMemoryStore()
    commit = of_everything(await eventful(store))
    before = repr(vars(store))
    parts: dict[str, Any] = {part: Broken(*getattr(commit, part))}
    with pytest.raises(ValueError, match="refused by a test"):
        await store.commit(SessionKey("s"), 1, replace(commit, **parts))
    assert repr(vars(store)) == before


def damage_head(url: str, redis: RedisServer) -> None:
    """Damage a turn of session `s`."""
    if url.startswith("redis"):
        with redis.client as client:
            (key,) = client.keys("*:turns")
            (member, *_) = client.zrange(key, 0, 0)
            client.zrem(key, member)
            client.zadd(key, {member[:20] + b"{": 0})
    else:
        Database(url).run("UPDATE turnwise_turns SET prompt = '{' WHERE idx = 0")


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return str(request.getfixturevalue("redis_url" if request.param == "redis" else "database"))


def opened(url: str) -> SessionStore:
    return RedisStore(url) if url.startswith("redis") else SQLStore(url)


@pytest.mark.parametrize("companions", [0, 5])
async def test_an_activation_that_meets_a_damaged_turn_leaves_the_session_to_its_owner(
    companions: int, any_url: str, redis_server: RedisServer
) -> None:
    """Also if it shares a transaction with other activations, which succeed."""
    async with closing(opened(any_url)) as store:
        owner = await eventful(store)
        for index in range(companions):
            await store.create(a_session(f"t{index}"))
        damage_head(any_url, redis_server)
        before = await store.get(SessionKey("s"))
        verbs = [
            store.activate(SessionKey("s")),
            store.activate(SessionKey("missing")),
            *(store.activate(SessionKey(f"t{index}")) for index in range(companions)),
        ]
        damaged, missing, *rest = await asyncio.gather(*verbs, return_exceptions=True)
        assert isinstance(damaged, CorruptRecordError) and isinstance(missing, SessionNotFoundError)
        assert [outcome.session.epoch for outcome in rest if not isinstance(outcome, BaseException)] == [1] * companions
        assert await store.get(SessionKey("s")) == before
        await owner.commit("the owner goes on")


def key_of(user_id: str) -> bytes | None:
    return b"k" * 32


@pytest.mark.parametrize("failure", ["no key", "a damaged turn"])
async def test_an_activation_that_cannot_decrypt_leaves_the_session_to_its_owner(
    failure: str, any_url: str, redis_server: RedisServer
) -> None:
    async with closing(opened(any_url)) as inner:
        store = EncryptedStore(inner, Encryption(key=key_of))
        await store.create(a_session("s", user_id="u"))
        owner = Owner(store, (await store.activate(SessionKey("s", "u"))).session)
        await owner.commit("text", turns=[a_turn(0, status="completed"), a_turn(1, status="running")])
        before, failing = await inner.get(SessionKey("s", "u")), store
        if failure == "no key":
            failing = EncryptedStore(inner, Encryption(key=lambda _: None))
        else:
            damage_head(any_url, redis_server)
        with pytest.raises(KeyMissingError if failure == "no key" else CorruptRecordError):
            await failing.activate(SessionKey("s", "u"))
        assert await inner.get(SessionKey("s", "u")) == before
        await owner.commit("the owner goes on")


async def test_an_activation_needs_no_key_after_it_has_raised_the_epoch() -> None:
    fetched = 0

    def once(user_id: str) -> bytes:
        nonlocal fetched
        fetched += 1
        if fetched > 1:
            raise OSError("the service of keys is away")
        return b"k" * 32

    inner = InMemoryStore()
    writer = EncryptedStore(inner, Encryption(key=key_of))
    await writer.create(a_session("s", user_id="u", title="secret"))
    activation = await EncryptedStore(inner, Encryption(key=once, cache_s=0.0)).activate(SessionKey("s", "u"))
    stored = await inner.get(SessionKey("s", "u"))
    assert activation.session == replace(
        stored, title="secret", metadata=FrozenDict(), params=activation.session.params
    )
    assert stored.epoch == 1


class Overtaken(InMemoryStore):
    """Does something between the first read of a state and the activation after it."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def activate(self, key: SessionKey, *, revision: int | None = None, jump: int | None = None) -> Activation:
        if meanwhile := self.meanwhile:
            self.meanwhile = None
            await meanwhile()
        return await super().activate(key, revision=revision, jump=jump)


@pytest.mark.parametrize("by", ["a commit", "another session of this id"])
async def test_an_encrypted_activation_returns_the_state_that_it_has_taken(by: str) -> None:
    inner = Overtaken()
    store = EncryptedStore(inner, Encryption(key=key_of))
    await store.create(a_session("s", user_id="u"))
    owner = Owner(store, a_session("s", user_id="u"))

    async def commit() -> None:
        await owner.commit("text", turns=[a_turn(0, status="completed")])

    async def replaced() -> None:
        await store.delete(SessionKey("s", "u"))
        await store.create(a_session("s", user_id="u", title="new"))

    if by == "a commit":
        owner = Owner(store, (await store.activate(SessionKey("s", "u"))).session)
    inner.meanwhile = commit if by == "a commit" else replaced
    activation = await store.activate(SessionKey("s", "u"))
    assert (activation.head is not None) == (by == "a commit")
    assert activation.session == await store.get(SessionKey("s", "u")) and activation.session.epoch == (
        2 if by == "a commit" else 1
    )


async def test_work_whose_shared_commit_got_no_answer_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call may have stored the session: a second call would then report that the session exists."""
    async with closing(SQLStore(f"sqlite:///{tmp_path}/store.db")) as store:
        await store.create(a_session("s"))
        check, committed = SQLiteFile.check, list[object]()

        def lose_answer(file: SQLiteFile) -> None:
            if committed:
                committed.clear()
                raise StoreError("store: the answer to COMMIT is lost")
            check(file)

        def note_commit(connection: sa.Connection) -> None:
            if not connection.get_execution_options().get("turnwise_read"):
                committed.append(connection)

        monkeypatch.setattr(SQLiteFile, "check", lose_answer)
        with listening("commit", note_commit):
            async with busy(store):
                calls = (store.create(a_session("new")), store.activate(SessionKey("s")))
                verbs = [asyncio.create_task(call) for call in calls]
                await asyncio.sleep(0)
            outcomes = await asyncio.gather(*verbs, return_exceptions=True)
        assert ["is lost" in str(outcome) for outcome in outcomes] == [True, True]
        assert (await store.get(SessionKey("new"))).epoch == 0 and (await store.get(SessionKey("s"))).epoch == 1
