"""Databases that were created again, are read-only, or lack something that stores need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from test_sql_store import stored_turns, whole_turn

from servers.redis_server import RedisServer
from stored.open_stores import own
from turnwise.errors import SessionFencedError, SessionNotFoundError, StoreError
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.event_store.sql import SQLHistory
from turnwise.memory.stores.redis.store import RedisStore
from turnwise.memory.stores.sql.store import SQLStore

WITHIN_S = 5.0
"""The most time until an error is raised, in seconds."""

pytestmark = pytest.mark.timeout(120, func_only=True)


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.mark.parametrize("dropped", ["database", "tables"])
async def test_a_postgres_database_that_is_dropped_and_created_again_can_be_used(dropped: str, postgres: str) -> None:
    """Its data is lost, and owners of sessions get an error."""

    execute(postgres.format("postgres"), 'CREATE DATABASE "made_again"')
    try:
        url = postgres.format("made_again")
        store, history = SQLStore(url), SQLHistory(url)
        session = await own(store)
        await store.commit(SessionKey("s"), 1, whole_turn(session, 0))
        assert await history.last_seq(SessionKey("s")) == 0
        if dropped == "database":
            drop = 'DROP DATABASE "made_again" WITH (FORCE)'
            execute(postgres.format("postgres"), drop, 'CREATE DATABASE "made_again"')
        else:
            execute(url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
        with pytest.raises((SessionFencedError, StoreError)):
            await store.commit(SessionKey("s"), 1, whole_turn(whole_turn(session, 0).session, 1))
        with pytest.raises(SessionNotFoundError):
            await store.get(SessionKey("s"))
        session = await own(store)
        await store.commit(SessionKey("s"), 1, whole_turn(session, 0))
        assert await stored_turns(store, "s") == 1 and await history.last_seq(SessionKey("s")) == 0
        await store.close()
        await history.close()
    finally:
        execute(postgres.format("postgres"), 'DROP DATABASE "made_again" WITH (FORCE)')


async def test_a_sqlite_file_whose_tables_were_dropped_works_again(tmp_path: Path) -> None:
    """A file that was replaced is refused until it is restored: see test_outages."""
    import sqlite3

    store = SQLStore(f"sqlite:///{tmp_path}/store.db")
    await own(store)
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            if not table.startswith("sqlite_"):
                connection.execute(f"DROP TABLE {table}")
    connection.close()
    with pytest.raises(SessionNotFoundError):
        await store.get(SessionKey("s"))
    session = await own(store)
    await store.commit(SessionKey("s"), 1, whole_turn(session, 0))
    assert await stored_turns(store, "s") == 1
    await store.close()


async def test_a_read_only_postgres_can_be_read_and_its_error_says_why_writes_fail(database: str) -> None:
    store = SQLStore(database)
    session = await own(store)
    await store.commit(SessionKey("s"), 1, whole_turn(session, 0))
    await store.close()
    with psycopg.connect(database, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'.encode())
    store = SQLStore(database)
    assert await stored_turns(store, "s") == 1
    assert [event.seq for event in await store.events(SessionKey("s"))]
    for write in (
        store.activate(SessionKey("s")),
        store.create(SessionRecord(session_id="another")),
        store.delete(SessionKey("s")),
    ):
        with pytest.raises(StoreError, match=r"standby.*write to the primary"):
            await asyncio.wait_for(write, WITHIN_S)
    with pytest.raises(StoreError, match=r"standby.*write to the primary"):
        await store.commit(SessionKey("s"), 1, whole_turn(whole_turn(session, 0).session, 1))
    assert await stored_turns(store, "s") == 1
    await store.close()


async def refusal(store: SQLStore | RedisStore) -> str:
    """Return the message of a store's error at its first use."""
    try:
        with pytest.raises(StoreError) as refused:
            await asyncio.wait_for(store.get(SessionKey("s")), WITHIN_S)
    finally:
        await store.close()
    return str(refused.value)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_postgres_database_without_utf_8_is_refused(encoding: str, postgres: str) -> None:
    name = f"of_{encoding.lower()}"
    make = f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    execute(postgres.format("postgres"), make)
    message = await refusal(SQLStore(postgres.format(name)))
    assert f"'{name}' has the encoding {encoding}" in message and "ENCODING 'UTF8'" in message
    execute(postgres.format("postgres"), f"DROP DATABASE {name}")


async def test_a_search_path_with_a_schema_is_used_and_one_without_is_refused(database: str) -> None:
    url = f"{database}&options={quote('-c search_path=a,b')}"
    assert "search_path" in await refusal(SQLStore(url))
    execute(database, "CREATE SCHEMA b")
    store = SQLStore(url)
    await store.create(SessionRecord(session_id="s"))
    await store.close()
    store = SQLStore(f"{database}&options={quote('-c search_path=b')}")
    assert (await store.get(SessionKey("s"))).session_id == "s"
    await store.close()


async def test_the_error_for_an_invalid_search_path_option_shows_the_valid_form(database: str) -> None:
    message = await refusal(SQLStore(f"{database}&search_path=a,b"))
    assert 'invalid connection option "search_path"' in message and "?options=-c%20search_path%3Da%2Cb" in message


async def test_the_error_for_tls_to_a_redis_without_tls_says_so(redis_url: str) -> None:
    message = await refusal(RedisStore(redis_url.replace("redis:", "rediss:")))
    assert "does it speak TLS?" in message and "redis:// instead of rediss://" in message


async def test_a_node_of_a_redis_cluster_is_named(own_server: Callable[..., RedisServer], tmp_path: Path) -> None:
    node = own_server(**{"cluster-enabled": "yes"})
    assert "it is a node of a Redis Cluster" in await refusal(RedisStore(node.url)), "it has no slots"
    (tmp_path / "other").mkdir()
    second_server = RedisServer(tmp_path / "other", **{"cluster-enabled": "yes"})
    second_server.start()
    try:
        with node.client as first, second_server.client as second:
            second.execute_command("CLUSTER ADDSLOTS", *range(16384))
            second.execute_command("CLUSTER MEET", "127.0.0.1", node.port)
            while "ok" not in str(first.execute_command("CLUSTER INFO")["cluster_state"]):
                await asyncio.sleep(0.05)
        assert "it is a node of a Redis Cluster" in await refusal(RedisStore(node.url)), "others have them"
    finally:
        second_server.kill()
