"""How many expired sessions a sweep deletes in a second, each of two turns; on PostgreSQL beside plain SQL.

Plain SQL deletes the same rows of a copy of the database, by a statement for each table and as many sessions in a
transaction: what no sweep can be faster than.

PYTHONPATH=tests/support python tests/bench/sweeping.py postgresql --sessions 10000
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from servers.postgres_server import PostgresServer
from servers.redis_server import RedisServer
from turnwise import AsyncSessionManager, EchoEngine, InProcess, SessionConfig
from turnwise.memories import LexicalMemory
from turnwise.memory.archive.expiry import TOGETHER, sweep
from turnwise.memory.event_store.urls import open_history
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.reading import pages_by_cursor
from turnwise.memory.stores.urls import open_store

AT_ONCE = 50
TTL_S = 0.5

BY_SESSION = ("texts", "turns", "borrowed", "runs", "events", "deliveries", "members")
"""The tables, but for the prefix of their names, whose rows name their session in the column `session`."""


@dataclass
class Target:
    """A store to sweep."""

    url: str
    server_s: Callable[[], float] = lambda: 0.0
    """Returns the CPU time of its server so far, in seconds."""
    copy: Callable[[], str] | None = None
    """Copies the database, if the store has one; returns the copy's URL."""
    history_url: str | None = None
    """The event store, if it cannot be the store."""


@contextmanager
def store_of(kind: str) -> Iterator[Target]:
    """Yield an empty store, which goes at the end."""
    with tempfile.TemporaryDirectory() as folder:
        if kind == "sqlite":
            yield Target(f"sqlite:///{folder}/sweep.db")
        elif kind == "postgresql":
            postgres = PostgresServer(Path(folder))
            name = postgres.make_database()
            try:
                yield Target(
                    postgres.address.format(name),
                    lambda: postgres.cpu_s,
                    lambda: postgres.address.format(postgres.copy_database(name)),
                )
            finally:
                postgres.stop("immediate")
        else:
            redis = RedisServer(Path(folder))
            redis.start()
            try:
                yield Target(redis.url, history_url=f"sqlite:///{folder}/events.db")
            finally:
                redis.kill()


class Measurement:
    """Measures deletions, from when it is made to `print`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._began = self._times()

    def _times(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), self._target.server_s()

    def print(self, what: str, sessions: int, deleted: int) -> float:
        """Print how long it took; return the CPU time, of this process and the server, in seconds."""
        wall, own, server = (now - before for now, before in zip(self._times(), self._began, strict=True))
        rate, own_ms, server_ms = deleted / wall, own / deleted * 1000, server / deleted * 1000
        print(
            f"{what}: {deleted} of {sessions} sessions deleted, {rate:.0f} a second; "
            f"CPU of each: {own_ms:.3f} ms here, {server_ms:.3f} ms in the server"
        )
        return own + server


def settings_of(target: Target, *, history: bool, memory: bool) -> dict[str, Any]:
    """Return the settings of a manager whose events, and memories if any, are in the database of the sessions.

    Events and memories of sessions in Redis are in a SQLite file, or in Redis.
    """
    settings: dict[str, Any] = {"engine": EchoEngine(), "placement": InProcess()}
    settings["config"] = SessionConfig(sweep_every_s=None)
    if history:
        settings["history_store"] = target.history_url or target.url
    if memory:
        settings["memory"] = [LexicalMemory(target.url)]
    return settings


async def fill(url: str, sessions: int, settings: dict[str, Any]) -> None:
    """Fill a store with sessions; return when all have expired, as memories still save what was said."""
    async with AsyncSessionManager(url, **settings) as manager:

        async def talk(number: int) -> None:
            user_id = f"u{number}" if "memory" in settings else None  # as memories are those of users
            session = await manager.open(f"s{number}", user_id=user_id, ttl_s=TTL_S)
            for prompt in ("Where is the Colosseum?", "And how old is it?"):
                await (await session.run(prompt)).wait()

        for start in range(0, sessions, AT_ONCE):
            await asyncio.gather(*map(talk, range(start, min(sessions, start + AT_ONCE))))
    store = open_store(url)
    while await expired(store) < sessions:
        await asyncio.sleep(TTL_S)
    await store.close()


async def expired(store: SessionStore) -> int:
    """Return how many sessions have expired."""
    now = await store.now()
    return sum([len(page) async for page in pages_by_cursor(partial(store.expired, now, limit=1000))])


def delete_by_sql(url: str) -> int:
    """Delete all sessions of a database by plain SQL; return how many."""
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT key, session_id FROM turnwise_sessions ORDER BY key").fetchall()
        for start in range(0, len(rows), TOGETHER):
            keys, names = map(list, zip(*rows[start : start + TOGETHER], strict=True))
            for table in BY_SESSION:
                connection.execute(f"DELETE FROM turnwise_{table} WHERE session = ANY(%s)".encode(), (keys,))
            connection.execute("DELETE FROM turnwise_blocks WHERE log = ANY(%s)", (keys,))
            owned = "DELETE FROM turnwise_ledger WHERE user_id = 'default' AND session_id = ANY(%s)"
            connection.execute(owned, (names,))
            connection.execute("DELETE FROM turnwise_sessions WHERE key = ANY(%s)", (keys,))
            connection.commit()
    return len(rows)


async def sweep_store(url: str, settings: dict[str, Any]) -> int:
    """Sweep as the command line does."""
    store, events = open_store(url), settings.get("history_store")
    history = open_history(events) if events else None
    swept = await sweep(store, await store.now(), history=history)
    await store.close()
    if history:
        await history.close()
    return len(swept.deleted)


async def sweep_by_manager(url: str, settings: dict[str, Any]) -> int:
    """Sweep as a program does that has no session loaded."""
    async with AsyncSessionManager(url, **settings) as manager:
        return len((await manager.sweep(memory="memory" in settings)).deleted)


def measure(target: Target, sessions: int, *, by_manager: bool, history: bool, memory: bool) -> None:
    settings = settings_of(target, history=history, memory=memory)
    asyncio.run(fill(target.url, sessions, settings))
    floor_s = 0.0
    if target.copy and not memory:  # whose connections stay open in this process
        url = target.copy()
        measurement = Measurement(target)
        floor_s = measurement.print("plain SQL", sessions, delete_by_sql(url))
    measurement = Measurement(target)
    deleted = asyncio.run((sweep_by_manager if by_manager else sweep_store)(target.url, settings))
    what = "manager.sweep" if by_manager else "sweep"
    what += " with an event store" * history + " with memory=True" * memory
    took_s = measurement.print(what, sessions, deleted)
    if floor_s:
        print(f"the sweep takes {took_s / floor_s:.2f} times as much CPU as plain SQL")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", choices=["sqlite", "postgresql", "redis"])
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--manager", action="store_true", help="sweep by a manager, and not as the command line does")
    parser.add_argument("--history", action="store_true", help="with events in an event store")
    parser.add_argument("--memory", action="store_true", help="with memory=True, which takes a manager")
    options = parser.parse_args()
    with store_of(options.store) as target:
        by_manager = options.manager or options.memory
        measure(target, options.sessions, by_manager=by_manager, history=options.history, memory=options.memory)


if __name__ == "__main__":
    main()
