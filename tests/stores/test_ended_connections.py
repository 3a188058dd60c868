"""A call whose connection PostgreSQL ends says what ended it, whatever fails after that, such as the rollback."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from test_failed_verbs import ITEMS, ON_SQL, USER

from stored.open_stores import closing
from turnwise.adapters import TurnwiseSaver, TurnwiseStore
from turnwise.adapters.langgraph.items import Batch
from turnwise.errors import StoreError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Span
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.stores.conformance.fixtures import eventful, of_everything, own
from turnwise.memory.stores.sql.store import SQLStore

ENDED = "terminating connection due to administrator command"

END = """
CREATE OR REPLACE FUNCTION end_it() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(0); RETURN NULL; END $$
"""


def tables(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'turnwise%'").fetchall()
    return sorted(name for (name,) in rows if name != "turnwise_meta")


def end_writers(url: str) -> None:
    """Let each statement that writes to a table of turnwise's end its connection."""
    with psycopg.connect(url) as connection:
        connection.execute(END.encode())
        for table in tables(url):
            connection.execute(
                f"CREATE TRIGGER end_it AFTER INSERT OR UPDATE OR DELETE ON {table}"
                " FOR EACH ROW EXECUTE FUNCTION end_it()".encode()
            )


def check_named(error: object) -> None:
    assert isinstance(error, StoreError) and ENDED in str(error), error
    assert error.__cause__ is not None and ENDED in str(error.__cause__)


@pytest.mark.parametrize("kind", ON_SQL)
async def test_a_write_whose_connection_is_ended_says_so(kind: str, database: str) -> None:
    make, fill = ON_SQL[kind]
    async with closing(make(database)) as store:
        verbs = await fill(store)
        end_writers(database)
        for verb in verbs.values():
            (error,) = await asyncio.gather(verb(), return_exceptions=True)
            check_named(error)


async def test_each_commit_of_a_group_says_what_ended_its_connection(database: str) -> None:
    async with closing(SQLStore(database, connections=1)) as store:
        owners = [await own(store, f"s{index}") for index in range(5)]
        end_writers(database)
        commits = [owner.commit("text") for owner in owners]
        for error in await asyncio.gather(*commits, return_exceptions=True):
            check_named(error)


def reads_of_sessions(store: Any) -> Mapping[str, Callable[[], Awaitable[object]]]:
    return {
        "get": lambda: store.get(SessionKey("s")),
        "state": lambda: store.state(SessionKey("s")),
        "turns": lambda: store.turns(SessionKey("s")),
        "runs": lambda: store.runs(SessionKey("s")),
        "events": lambda: store.events(SessionKey("s")),
        "blocks": lambda: store.blocks([Span("1", 0, 2)]),
        "query": store.query,
    }


def empty_batch() -> Batch:
    return Batch(now=1.0, gets=[("n.", "a")], searches=(), lists_namespaces=True, puts={})


READS: Mapping[str, Callable[[Any], Mapping[str, Callable[[], Awaitable[object]]]]] = {
    "sessions": reads_of_sessions,
    "events": lambda store: {
        "events": lambda: store.events(SessionKey("s")),
        "last": lambda: store.last_seq(SessionKey("s")),
    },
    "items": lambda store: {"get": lambda: store.get(USER, ["1"]), "query": lambda: store.query(USER)},
    "indexed items": lambda store: {"load": lambda: store.load(["u"], {})},
    "checkpoints": lambda store: {
        "read": lambda: asyncio.to_thread(store.read, ("t", ""), None),
        "spaces": lambda: asyncio.to_thread(store.spaces, "t"),
    },
    "graph items": lambda store: {"read": lambda: store.read(empty_batch())},
}


async def ended(url: str, verb: Callable[[], Awaitable[object]]) -> object:
    """Return the outcome of a verb whose connection is ended while it waits for a table."""
    connection = await psycopg.AsyncConnection.connect(url)
    async with connection:
        for table in tables(url):
            await connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        call = asyncio.ensure_future(verb())
        waiting = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as looking:
            while not (waiting_row := await (await looking.execute(waiting)).fetchone()):
                assert not call.done()
                await asyncio.sleep(0.01)
            await looking.execute("SELECT pg_terminate_backend(%s)", waiting_row)
        (outcome,) = await asyncio.gather(call, return_exceptions=True)
    return outcome


@pytest.mark.parametrize("kind", READS)
async def test_a_read_whose_connection_is_ended_says_so(kind: str, database: str) -> None:
    make, fill = ON_SQL[kind]
    async with closing(make(database)) as store:
        await fill(store)
        for verb in READS[kind](store).values():
            check_named(await ended(database, verb))


async def test_a_memory_whose_connection_is_ended_says_so(database: str) -> None:
    async with closing(LexicalMemory(SQLItems(database))) as memory:
        await memory.remember(USER, ITEMS)
        end_writers(database)
        (error,) = await asyncio.gather(memory.forget(USER), return_exceptions=True)
        check_named(error)


async def test_langgraphs_saver_and_store_say_what_ended_their_connection(database: str) -> None:
    checkpoint: Any = {"id": "1", "channel_values": {}, "channel_versions": {}, "versions_seen": {}}
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    async with TurnwiseSaver(database) as saver, TurnwiseStore(database) as store:
        await store.aput(("n",), "k", {"a": 1})
        await saver.aget_tuple(config)
        end_writers(database)
        calls = [saver.aput(config, checkpoint, {}, {}), store.aput(("n",), "k", {"a": 2})]
        for error in await asyncio.gather(*calls, return_exceptions=True):
            check_named(error)


async def test_the_error_of_sqlite_is_raised_even_if_the_file_is_lost_after_it(
    tmp_path: Path,
) -> None:
    """A savepoint ends with its transaction. The error of the failed rollback must not hide the cause."""
    async with closing(SQLStore(f"sqlite:///{tmp_path}/store.db")) as store:
        owners = [await eventful(store), await own(store, "t")]
        # SQLite rolls back itself if its disk is full, too.
        with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
            connection.execute(
                "CREATE TRIGGER full BEFORE UPDATE ON turnwise_sessions"
                " BEGIN SELECT RAISE(ROLLBACK, 'the first error'); END"
            )
        connection.close()
        commits = [store.commit(SessionKey("s"), 1, of_everything(owners[0])), owners[1].commit("x")]
        errors = await asyncio.gather(*commits, return_exceptions=True)
        assert all(isinstance(error, StoreError) and "the first error" in str(error) for error in errors)
