"""How many expired sessions a sweep deletes in a second, each of two turns.

PYTHONPATH=tests/support python tests/bench/sweeping.py postgresql --sessions 2000
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers.postgres_server import PostgresServer
from servers.redis_server import RedisServer
from turnwise import AsyncSessionManager, EchoEngine, InProcess
from turnwise.memory.archive.expiry import sweep
from turnwise.memory.stores.urls import open_store

AT_ONCE = 50
TTL_S = 0.5


@contextmanager
def store_of(kind: str) -> Iterator[str]:
    """Yield the URL of an empty store, which goes at the end."""
    with tempfile.TemporaryDirectory() as folder:
        if kind == "sqlite":
            yield f"sqlite:///{folder}/sweep.db"
        elif kind == "postgresql":
            postgres = PostgresServer(Path(folder))
            try:
                yield postgres.address.format(postgres.make_database())
            finally:
                postgres.stop("immediate")
        else:
            redis = RedisServer(Path(folder))
            redis.start()
            try:
                yield redis.url
            finally:
                redis.kill()


async def measure(url: str, sessions: int) -> None:
    async with AsyncSessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:

        async def talk(number: int) -> None:
            session = await manager.open(f"s{number}", ttl_s=TTL_S)
            for prompt in ("Where is the Colosseum?", "And how old is it?"):
                await (await session.run(prompt)).wait()

        for start in range(0, sessions, AT_ONCE):
            await asyncio.gather(*map(talk, range(start, min(sessions, start + AT_ONCE))))
    await asyncio.sleep(2 * TTL_S)
    store = open_store(url)
    began, worked = time.perf_counter(), time.process_time()
    swept = await sweep(store, await store.now())
    took, work = time.perf_counter() - began, time.process_time() - worked
    count = len(swept.deleted)
    each_ms = work / count * 1000
    print(f"{count} of {sessions} sessions deleted: {count / took:.0f} a second, {each_ms:.2f} ms of work each")
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", choices=["sqlite", "postgresql", "redis"])
    parser.add_argument("--sessions", type=int, default=2000)
    options = parser.parse_args()
    with store_of(options.store) as url:
        asyncio.run(measure(url, options.sessions))


if __name__ == "__main__":
    main()
