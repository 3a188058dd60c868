"""Whether a store takes writes, as on a full disk; and SQLite's log, which must not be deleted while it is open."""

import asyncio
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from test_failed_verbs import ON_SQL
from test_sql_store import whole_turn

from processes.forks import Fork
from servers.redis_server import RedisServer
from stored.open_stores import closing
from stored.sql_traffic import Write, around_commits
from turnwise.errors import StoreClosedError, StoreError
from turnwise.http.health import Readiness
from turnwise.http.service import Service
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.conformance.fixtures import eventful, of_everything, own, state_of
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.redis.store import RedisStore
from turnwise.memory.stores.sql.store import SQLStore


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SessionStore:
    if request.param == "memory":
        return InMemoryStore()
    if request.param == "redis":
        return RedisStore(request.getfixturevalue("redis_url"))
    url = f"sqlite:///{tmp_path}/store.db"
    return SQLStore(url if request.param == "sqlite" else request.getfixturevalue("database"))


async def test_a_check_for_writes_leaves_nothing_and_refuses_a_closed_store(store: SessionStore) -> None:
    await eventful(store)
    before = await state_of(store, "s")
    await asyncio.gather(*(store.try_writing() for _ in range(5)))
    assert await state_of(store, "s") == before and await store.count() == 1
    await store.close()
    with pytest.raises(StoreClosedError):
        await store.try_writing()


async def fill_up(store: SQLStore, limit_pages: Callable[[int], None]) -> None:
    """Do not let a SQLite file grow, and fill the free space in its pages."""
    owner = await own(store, "t")
    await owner.commit("first")
    limit_pages(1)

    async def use_what_is_left() -> None:
        while True:
            await owner.commit("x" * 10_000)

    with pytest.raises(StoreError, match="database or disk is full; free space on its disk"):
        await use_what_is_left()


async def test_a_full_sqlite_file_is_not_writable_until_there_is_space(
    tmp_path: Path, limit_pages: Callable[[int], None]
) -> None:
    async with closing(SQLStore(f"sqlite:///{tmp_path}/store.db")) as store:
        await eventful(store)
        await store.try_writing()
        await fill_up(store, limit_pages)
        with pytest.raises(StoreError, match="database or disk is full; free space on its disk"):
            await store.try_writing()
        limit_pages(2**30)
        await store.try_writing()


async def fill(url: str) -> None:
    """Commit until a file cannot grow; then check the store, and check it again when the file can grow."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = SQLStore(url)
    session = (await own(store)).session
    await store.try_writing()
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
    try:
        for index in range(1_000_000):
            commit = whole_turn(session, index)
            await store.commit(SessionKey("s"), 1, commit)
            session = commit.session
    except StoreError:
        pass
    try:
        await store.try_writing()
    except StoreError as error:
        print("refused:", error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.try_writing()
    print("writable")
    await store.close()


def test_a_log_that_cannot_grow_is_not_writable(tmp_path: Path) -> None:
    """The disk is full, or the quota used up."""
    url = f"sqlite:///{tmp_path}/store.db"
    with Fork(lambda: asyncio.run(fill(url))) as process:
        output = process.out.read()
        assert process.wait() == 0
    assert "refused: store" in output and output.strip().endswith("writable")


async def test_a_postgresql_that_only_reads_is_not_writable(database: str) -> None:
    async with closing(SQLStore(database)) as store:
        await eventful(store)
        with psycopg.connect(database, autocommit=True) as connection:
            name = connection.info.dbname
            connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'.encode())
    async with closing(SQLStore(database)) as store:
        assert await store.count() == 1
        with pytest.raises(StoreError, match="or default_transaction_read_only is set: write to the primary"):
            await store.try_writing()


async def test_a_redis_that_is_full_or_cannot_save_is_not_writable(redis_url: str, redis_server: RedisServer) -> None:
    async with closing(RedisStore(redis_url)) as store:
        await eventful(store)
        with redis_server.client as client:
            for setting, value, reset, word in (
                ("maxmemory", "1", "0", "out of memory"),
                ("min-replicas-to-write", "1", "0", "NOREPLICAS"),
            ):
                await store.try_writing()
                client.config_set(setting, value)
                try:
                    with pytest.raises(StoreError, match=word):
                        await store.try_writing()
                    assert await store.count() == 1
                finally:
                    client.config_set(setting, reset)
            await store.try_writing()
            assert not client.keys("*probe*")


class Manager:
    """A manager whose store may be full."""

    def __init__(self) -> None:
        self.checks, self.is_full = 0, False
        self.goes_on = asyncio.Event()

    async def count(self, **_: object) -> int:
        return 0

    async def check_store(self) -> None:
        self.checks += 1
        await self.goes_on.wait()
        if self.is_full:
            raise StoreError("the disk is full")


async def test_callers_during_a_check_get_its_outcome() -> None:
    manager = Manager()
    service: Any = type("Services", (), {"manager": manager})
    readiness = Readiness(cast(Service, service))
    checks = [asyncio.ensure_future(readiness.check()) for _ in range(10)]
    await asyncio.sleep(0)
    checks.pop().cancel()
    manager.goes_on.set()
    await asyncio.gather(*checks)
    assert manager.checks == 1
    manager.is_full = True
    with pytest.raises(StoreError, match="full"):
        await readiness.check()
    manager.is_full = False
    await readiness.check()
    assert manager.checks == 3


@pytest.mark.parametrize("side", ["wal", "shm"])
@pytest.mark.parametrize("change", ["deleted", "replaced"])
@pytest.mark.parametrize("kind", ON_SQL)
async def test_a_log_of_sqlites_that_goes_while_it_is_open_is_noticed(
    kind: str, change: str, side: str, tmp_path: Path
) -> None:
    """Later commits to it would be acknowledged and lost."""
    make, fill_it = ON_SQL[kind]
    async with closing(make(f"sqlite:///{tmp_path}/store.db")) as store:
        verbs = await fill_it(store)
        log = tmp_path / f"store.db-{side}"
        log.rename(tmp_path / "kept")
        if change == "replaced":
            log.write_bytes((tmp_path / "kept").read_bytes())
        for verb in verbs.values():
            with pytest.raises(StoreError, match=rf"\(-{side}\) was {change} while it was open"):
                await verb()
        log.unlink(missing_ok=True)
        (tmp_path / "kept").rename(log)
        await next(iter(verbs.values()))()


async def test_a_commit_whose_log_is_deleted_meanwhile_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with closing(SQLStore(f"sqlite:///{tmp_path}/store.db")) as store:
        owner = await eventful(store)

        def unlink(write: Write, *_: object) -> Any:
            (tmp_path / "store.db-wal").unlink()
            return write()

        around_commits(monkeypatch, unlink)
        with pytest.raises(StoreError, match=r"log \(-wal\) was deleted"):
            await store.commit(SessionKey("s"), 1, of_everything(owner))


async def test_other_stores_of_a_sqlite_file_come_and_go(tmp_path: Path) -> None:
    """The last to close deletes the log, and whoever opens the file next has another."""
    url = f"sqlite:///{tmp_path}/store.db"
    for _ in range(2):
        async with closing(SQLStore(url)) as store:
            await own(store)
            for _ in range(3):
                async with closing(SQLStore(url)) as second:
                    assert await second.count() == 1
            await store.delete(SessionKey("s"))
            await store.scrub()
            assert await store.count() == 0
