"""Damaged rows: errors name them and do not quote them, and other rows of the user can still be used."""

import asyncio
import contextlib
import logging
import os
import shutil
import sqlite3
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from engines import ScriptedEngine
from scale import ONE_PLACEMENT
from stored.open_stores import closing, run_with
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import Placement
from turnwise.actors.session.core import SessionCore
from turnwise.errors import (
    CorruptRecordError,
    EncryptionError,
    NotFoundError,
    RunNotFoundError,
    StoreError,
    TurnwiseError,
)
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.longterm.base import MemoryItem, Scope, Source
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.retention.deletion import erase
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.encrypted.records import SEALED
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.encrypted.store import EncryptedStore
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.redis.store import RedisStore
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.values.frozen_json import freeze
from turnwise.memory.working.memory import WorkingMemory

SECRET = "canary-4711"

IDS = {"session_id", "user_id"}
"""Columns by which rows are found. Without them the row cannot be read."""


def check_quiet(error: BaseException | None, log: str = "") -> None:
    """Check that neither an error, nor its causes, nor a log shows stored text."""
    while error is not None:
        texts = [str(error), repr(error), repr(error.args), repr(vars(error)), *traceback.format_exception(error)]
        assert not [text for text in texts if SECRET in text.replace(f'SECRET = "{SECRET}"', "")], texts
        error = error.__cause__
    assert SECRET not in log


async def talk(store: SessionStore, session_id: str, user_id: str = "ada") -> None:
    """Store a session that has the secret in every table."""
    record = SessionRecord(session_id=session_id, user_id=user_id, metadata=freeze({SECRET: SECRET}), ttl_s=0.0)
    await store.create(record)
    core = SessionCore(SessionKey(session_id, user_id), store, ScriptedEngine())
    run = await core.admission.start(
        [f"{SECRET} of {session_id}"], run_id=f"run of {session_id}", labels={SECRET: SECRET}
    )
    await core.reads.wait(run.run_id)
    await core.admission.append([SECRET], key="appended")
    await core.ownership.leave()


async def read_all(store: SessionStore, session_id: str, log: str) -> list[TurnwiseError]:
    """Read everything of a session, and return the errors of what cannot be read."""
    reads: list[Callable[[], Awaitable[Any]]] = [
        lambda: store.get(SessionKey(session_id, "ada")),
        lambda: store.activate(SessionKey(session_id, "ada")),
        lambda: store.turns(SessionKey(session_id, "ada")),
        lambda: store.runs(SessionKey(session_id, "ada")),
        lambda: store.run(f"run of {session_id}", "ada"),
        lambda: store.events(SessionKey(session_id, "ada")),
        lambda: store.blocks([Span(log, 0, 2)]),
        lambda: store.event_of_key(SessionKey(session_id, "ada"), "appended"),
    ]
    errors = []
    for read in reads:
        try:
            await read()
        except TurnwiseError as error:
            check_quiet(error)
            errors.append(error)
    core = SessionCore(SessionKey(session_id, "ada"), store, ScriptedEngine())
    try:
        for turn in await core.reads.turns():
            assert turn.blocks
    except TurnwiseError as error:
        check_quiet(error)
        errors.append(error)
    return errors


async def check_damage(store: SessionStore, log: str, *, is_found: bool = True) -> bool:
    """Check a store with a damaged row of session "s"; return whether a call raised an error for the row."""
    errors = await read_all(store, "s", log)
    assert all(isinstance(error, CorruptRecordError | NotFoundError) for error in errors), errors
    for page in (await store.query(user_id="ada"), await store.expired(1e12)):
        assert "t" in [session.session_id for session in page]
        assert not is_found or len(page.items) + len(page.unreadable) == 2
        assert not is_found or page.unreadable in ((), (SessionKey("s", "ada"),))
    assert (await store.query(user_id="ada", limit=1)).cursor or not is_found
    if is_found:
        try:
            await SessionCore(SessionKey("s", "ada"), store, ScriptedEngine()).forgetting.delete()
        except CorruptRecordError as error:
            check_quiet(error)
            await store.delete(SessionKey("s", "ada"))
        assert [session.session_id for session in await store.query()] == ["t"]
    assert not await read_all(store, "t", (await store.get(SessionKey("t", "ada"))).log)
    return bool(errors)


TABLES = [
    *(("turnwise_sessions", name) for name in ("session_id", "user_id", "agent", "metadata", "status", "parent")),
    *(("turnwise_turns", name) for name in ("status", "prompt", "input", "output", "metadata", "usage", "stop_reason")),
    *(("turnwise_runs", name) for name in ("run_id", "state", "labels", "why", "usage", "calls", "fingerprint")),
    *(("turnwise_events", name) for name in ("kind", "body", "event_key", "run_id")),
    ("turnwise_blocks", "body"),
]
DAMAGES = {
    "not UTF-8": "CAST(CAST({0} AS BLOB) || x'ff' AS TEXT)",
    "no JSON": '\'{{"kind":"text",\' || {0}',
    "something else": "'[\"canary-4711\"]'",
}


@pytest.mark.by_turns
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_row_in_sqlite_is_named_but_not_quoted_and_blocks_nothing_else(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    undamaged = tmp_path / "whole.db"

    async def fill(store: SQLStore) -> str:
        await talk(store, "s")
        await talk(store, "t")
        return (await store.get(SessionKey("s", "ada"))).log

    async def use(path: Path, table: str, column: str) -> bool:
        shutil.copy(undamaged, path)
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            owner = {"turnwise_sessions": "key", "turnwise_blocks": "log"}.get(table, "session")
            new = DAMAGES[damage].format(f"COALESCE({column}, '')")
            condition = f"{owner} = ?{' AND event_key IS NOT NULL' if column == 'event_key' else ''}"
            connection.execute(f"UPDATE {table} SET {column} = {new} WHERE {condition}", (key,))
        connection.close()
        async with closing(SQLStore(f"sqlite:///{path}")) as store:
            return await check_damage(store, key, is_found=column not in IDS)

    key = run_with(SQLStore(f"sqlite:///{undamaged}"), fill)
    noticed = {}
    for table, column in TABLES:
        if damage == "not UTF-8" or column in ("metadata", "prompt", "output", "usage", "labels", "calls", "body"):
            path = tmp_path / f"{table}-{column}.db"
            noticed[table, column] = asyncio.run(use(path, table, column))
    check_quiet(None, caplog.text)
    assert all(noticed.values()), noticed


@pytest.mark.by_turns
async def test_a_damaged_row_in_postgresql_is_named_but_not_quoted_and_blocks_nothing_else(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    for table, column in TABLES:
        if column not in ("metadata", "labels", "body", "prompt"):
            continue
        store = SQLStore(database)
        await talk(store, "s")
        await talk(store, "t")
        key = (await store.get(SessionKey("s", "ada"))).log
        with psycopg.connect(database) as connection:
            owner = {"turnwise_sessions": "key", "turnwise_blocks": "log"}.get(table, "session")
            connection.execute(
                f"UPDATE {table} SET {column} = '{{\"kind\":' || COALESCE({column}, '') WHERE {owner} = %s",
                (int(key),),
            )
        assert await check_damage(store, key)
        await store.delete(SessionKey("t", "ada"))
        await store.close()
    check_quiet(None, caplog.text)


def test_a_damaged_record_in_redis_is_named_but_not_quoted_and_blocks_nothing_else(
    redis_url: str, redis_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def damage(client: Any, number: int, other_log: str) -> bool:
        """Damage the value of this number with the secret, outside the other log; return whether there is one."""
        for key in sorted(client.scan_iter("*")):
            if client.type(key) == b"hash":
                for field, value in sorted(client.hgetall(key).items()):
                    if SECRET.encode() in value and b"of t" not in value + field and other_log.encode() not in key:
                        if not number:
                            client.hset(key, field, b"\xff" + value[1:])
                            return True
                        number -= 1
        return False

    async def use() -> int:
        number = 0
        while True:
            store = RedisStore(redis_url)
            with redis_server.client as client:
                client.flushall()
                await talk(store, "s")
                await talk(store, "t")
                key = (await store.get(SessionKey("s", "ada"))).log
                if not damage(client, number, (await store.get(SessionKey("t", "ada"))).log):
                    await store.close()
                    return number
            assert await check_damage(store, key), number
            await store.close()
            number += 1

    assert asyncio.run(use()) > 1
    check_quiet(None, caplog.text)


@pytest.mark.parametrize("damage", ["no id", "no fields", "no hash"])
async def test_a_session_in_redis_that_lost_its_id_does_not_hide_the_others(
    damage: str, redis_url: str, redis_server: Any
) -> None:
    store = RedisStore(redis_url)
    with redis_server.client as client:
        await talk(store, "s")
        await talk(store, "t")
        number = (await store.get(SessionKey("s", "ada"))).log
        (home,) = (key for key in client.scan_iter(f"*:{number}") if client.hget(key, "id"))
        match damage:
            case "no id":
                client.hdel(home, "id")
            case "no fields":
                client.delete(home)
            case _:
                client.delete(home)
                client.set(home, "text")
    for page in (await store.query(), await store.query(user_id="ada"), await store.expired(1e12)):
        assert [session.session_id for session in page] == ["t"]
        assert page.unreadable == (SessionKey(home.decode(), ""),)
    await store.close()


def damage_runs(store: SessionStore, redis: Any, url: str = "") -> None:
    """Damage all stored runs; of an SQL store by its URL."""
    if isinstance(store, SQLStore):
        engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        with engine.begin() as connection:
            connection.execute(sa.text("UPDATE turnwise_runs SET labels = '[1', calls = '[1'"))
        engine.dispose()
    elif isinstance(store, InMemoryStore):
        for row in store._rows.values():  # noqa: SLF001 - to damage them
            row.runs = {name: replace(run, labels=freeze({SEALED: "tw1:cut off"})) for name, run in row.runs.items()}
    else:
        for key in redis.scan_iter("*:runs", _type="zset"):
            (entry,) = redis.zrange(key, 0, -1)
            redis.zrem(key, entry)
            redis.zadd(key, {entry[:25] + b"\xff": 0})


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgresql", "redis"])
async def test_a_damaged_run_looks_missing_to_other_users(
    kind: str, encrypted: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """By its id, in another session, and as the parent of a run."""
    redis = request.getfixturevalue("redis_server").client if kind == "redis" else None
    inner: SessionStore = InMemoryStore()
    url = request.getfixturevalue("database") if kind == "postgresql" else f"sqlite:///{tmp_path}/s.db"
    if redis:
        inner = RedisStore(request.getfixturevalue("redis_url"))
    elif kind != "memory":
        inner = SQLStore(url)
    keys = {name: os.urandom(32) for name in ("ada", "bob")}
    store: SessionStore = EncryptedStore(inner, Encryption(keys.__getitem__)) if encrypted else inner
    await talk(store, "s")
    await store.create(SessionRecord(session_id="s", user_id="bob"))
    core = SessionCore(SessionKey("s", "bob"), store, ScriptedEngine())
    damage_runs(inner, redis, url)
    if kind != "memory" or encrypted:  # a store in memory has no text that could be damaged
        with pytest.raises((CorruptRecordError, EncryptionError)):
            await store.run("run of s", "ada")
    asks: list[Callable[[str], Awaitable[Any]]] = [
        lambda run_id: store.run(run_id, "bob"),
        core.reads.run,
        lambda run_id: core.admission.start(["hello"], run_id="new", parent=run_id),
    ]
    for ask in asks:
        errors = []
        for run_id in ("run of s", "no such run"):
            with pytest.raises(RunNotFoundError) as raised:
                await ask(run_id)
            assert raised.value.__cause__ is None
            errors.append(str(raised.value).replace(repr(run_id), "it"))
        assert errors[0] == errors[1]
    await core.ownership.leave()
    await store.close()


async def test_a_manager_tells_nobody_of_another_users_damaged_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    async with closing(SQLStore(url)) as store:
        await talk(store, "s")
        damage_runs(store, None, url)
    async with AsyncSessionManager(url, engine=ScriptedEngine(), read_only=True) as manager:
        with pytest.raises(CorruptRecordError):
            await manager.execution("run of s", user_id="ada")
        with pytest.raises(RunNotFoundError, match=r"^no run 'run of s' in the store: "):
            await manager.execution("run of s", user_id="bob")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_item_of_a_memory_is_not_quoted_and_its_user_can_be_forgotten(damage: str, tmp_path: Path) -> None:
    scope, source = Scope(user_id="ada"), Source(session_id="s", spans=(Span("1", 0, 1),))
    items = [MemoryItem(id=name, text=f"{SECRET} {name}", source=source) for name in ("one", "two")]
    url = f"sqlite:///{tmp_path}/memory.db"

    async def use(memory: Any, store: SQLItems, space: str, column: str, ids: list[str] | None) -> None:
        await memory.remember(scope, items)
        await memory.remember(Scope(user_id="bob"), items)
        with contextlib.closing(sqlite3.connect(tmp_path / "memory.db")) as connection, connection:
            new = DAMAGES[damage].format(column)
            of_ada = "owner = (SELECT owner FROM turnwise_item_owners WHERE space = ? AND user_id = 'ada')"
            update = f"UPDATE turnwise_items SET {column} = {new} WHERE id = 'one' AND {of_ada}"
            assert connection.execute(update, (space,)).rowcount == 1
        connection.close()
        with pytest.raises(StoreError) as raised:
            await memory.recall(scope, f"{SECRET} one", limit=5)
        check_quiet(raised.value)
        assert len((await store.keys("no vectors"))[1]) >= 3
        done = await erase(memory, scope, ids)
        assert done.items == (1 if ids else 2) and not done.verified and done.why
        assert SECRET not in done.why
        assert await memory.forget(scope) == 2 - done.items
        assert not await memory.recall(scope, SECRET, limit=5)
        assert len(await memory.recall(Scope(user_id="bob"), SECRET, limit=5)) == 2
        await memory.forget(Scope(user_id="bob"))
        await memory.close()

    for number, column in enumerate(("text", "id") if damage == "not UTF-8" else ("spans",)):
        for ids in [None] if column == "id" else [None, ["one"]]:
            space = f"lexical-{number}-{bool(ids)}"
            store = SQLItems(url, space=space)
            asyncio.run(use(LexicalMemory(store), store, space, column, ids))
            space = f"vectors-{number}-{bool(ids)}"
            store = SQLItems(url, space=space)
            asyncio.run(use(VectorMemory(store, embedding=None), store, space, column, ids))

    async def note() -> None:
        notes = WorkingMemory(url, per="user")
        await notes.replace(scope, SECRET)
        with contextlib.closing(sqlite3.connect(tmp_path / "memory.db")) as connection, connection:
            new = DAMAGES["not UTF-8"].format("text")
            connection.execute(f"UPDATE turnwise_items SET text = {new}")
        connection.close()
        with pytest.raises(CorruptRecordError) as raised:
            await notes.read(scope)
        check_quiet(raised.value)
        assert await notes.forget(scope) == 1
        await notes.close()

    asyncio.run(note())


def test_a_text_that_a_database_refuses_is_not_quoted(database: str, tmp_path: Path) -> None:
    async def use(url: str) -> None:
        store = SQLStore(url)
        await talk(store, "s")
        with pytest.raises(TurnwiseError) as raised:
            await store.create(SessionRecord(session_id="v", agent=SECRET, status=None))  # type: ignore[arg-type]
        check_quiet(raised.value)
        await store.close()

    for url in (database, f"sqlite:///{tmp_path}/store.db"):
        asyncio.run(use(url))


@ONE_PLACEMENT
def test_a_user_with_damaged_sessions_is_listed_and_forgotten(
    placement: Placement,
    make_ray_manager: Callable[..., SessionManager],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    manager = make_ray_manager(placement=placement)
    for name in ("whole", "its record", "its turns", "its blocks"):
        chat = manager.open(name, user_id="ada", metadata={"about": SECRET})
        chat.run(SECRET).wait(60)
    make_ray_manager(placement=placement).open("another's", user_id="bob").run("hello").wait(60)
    with contextlib.closing(sqlite3.connect(tmp_path / "chats.db")) as connection, connection:
        rows = connection.execute("SELECT session_id, key FROM turnwise_sessions")
        keys = dict(rows)
        for name, table, column in (
            ("its record", "turnwise_sessions", "metadata"),
            ("its turns", "turnwise_turns", "input"),
            ("its blocks", "turnwise_blocks", "body"),
        ):
            owner = {"turnwise_sessions": "key", "turnwise_blocks": "log"}.get(table, "session")
            new = DAMAGES["not UTF-8"].format(column)
            connection.execute(f"UPDATE {table} SET {column} = {new} WHERE {owner} = ?", (keys[name],))
    connection.close()
    with caplog.at_level(logging.WARNING):
        page = manager.list(user_id="ada")
    assert {session.session_id for session in page} == {"whole", "its turns", "its blocks"}
    assert page.unreadable == (SessionKey("its record", "ada"),) and "its record" in caplog.text
    with pytest.raises(CorruptRecordError) as raised:
        manager.open("its record", user_id="ada")
    check_quiet(raised.value, caplog.text)
    assert manager.get("its turns", user_id="ada").delete().sessions == 1
    assert manager.forget("ada").sessions == 3
    assert manager.count(user_id="ada") == 0 == len(manager.list(user_id="ada").unreadable)
    assert manager.count(user_id="bob") == 1
