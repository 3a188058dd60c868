"""Case 65: stores that are frozen, restarted, full, locked, damaged or missing fail in bounded time, then recover."""

import asyncio
import resource
import shutil
import signal
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
import sqlalchemy as sa
from test_sql_store import stored_turns, using, whole_turn

from engines import ScriptedEngine
from processes.forks import Fork
from processes.packed_hosts import OpenResources
from scale import share
from servers.postgres_server import PostgresServer
from stored.open_stores import own, run_with
from stored.sql_traffic import Write, around_commits, driver_connections
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.dedicated_host import DedicatedHost
from turnwise.actors.hosting.wire import SessionRef
from turnwise.actors.hosting.worker_resources import SessionSetup
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.errors import CorruptRecordError, NotFoundError, StoreError
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.ledger import LedgerQuery
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.stores.base import Activation, Commit
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.sql.database import SQLDatabase
from turnwise.memory.stores.sql.postgres_connection import PostgresConnection
from turnwise.memory.stores.sql.schema_version import Schema
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.testing.audit import audit

BOUND_S = 60.0
"""A test that takes longer hangs."""

pytestmark = pytest.mark.timeout(2 * BOUND_S, func_only=True)


# PostgreSQL


@pytest.mark.parametrize("mode", ["immediate", "fast"])
async def test_a_restart_loses_no_acknowledged_commit_and_connections_are_replaced(
    mode: Literal["immediate", "fast"], postgres_server: PostgresServer
) -> None:
    """`immediate` is a crash. A commit of unknown outcome is there or not, never in part."""

    store = SQLStore(postgres_server.url())
    sessions = [await own(store, f"s{index}") for index in range(6)]
    counts = [0] * 6
    is_over = asyncio.Event()
    errors: list[str] = []

    async def write(index: int) -> None:
        session = sessions[index]
        while not is_over.is_set():
            commit = whole_turn(session, counts[index])
            try:
                await store.commit(session.key, 1, commit)
            except StoreError as error:
                errors.append(str(error))
                stored = await again(partial(store.get, session.key))
                if stored.next_index == counts[index]:
                    continue
            session = commit.session
            counts[index] += 1

    async def progress() -> None:
        goal = [count + 3 for count in counts]
        while any(count < least for count, least in zip(counts, goal, strict=True)):
            await asyncio.sleep(0.01)

    async def again(ask: Callable[[], Awaitable[SessionRecord]]) -> SessionRecord:
        while True:
            try:
                return await ask()
            except StoreError as error:
                errors.append(str(error))
                await asyncio.sleep(0.01)

    writing = [asyncio.create_task(write(index)) for index in range(6)]
    await progress()
    await asyncio.to_thread(postgres_server.restart, mode)
    await progress()
    is_over.set()
    await asyncio.gather(*writing)
    assert errors and all("is it reachable, writable and a turnwise store?" in error for error in errors)
    assert [await stored_turns(store, f"s{index}") for index in range(6)] == counts
    await store.close()


async def test_calls_to_a_frozen_server_fail_and_succeed_when_it_continues(postgres_server: PostgresServer) -> None:
    """However many calls wait for one connection, a call that did not begin in time does not begin later."""
    url = postgres_server.url(statement_timeout=2000, idle_in_transaction_session_timeout=60_000)
    store = SQLStore(url, lock_timeout_s=0.5, connections=1)
    session = await own(store)
    with postgres_server.frozen():
        calls: list[Awaitable[Any]] = [store.count() for _ in range(200)]
        calls.append(store.commit(SessionKey("s"), 1, whole_turn(session, 0)))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, StoreError) for outcome in outcomes)
    assert "timeout expired; is it reachable" in str(outcomes[0])
    assert {str(outcome) for outcome in outcomes[-2:]} == {str(outcomes[-1])}
    assert "did not begin within 0.5 s" in str(outcomes[-1])
    await store.commit(SessionKey("s"), 1, whole_turn(session, 0))
    assert await stored_turns(store, "s") == 1
    await store.close()


class WritableStore(SQLStore):
    async def write(self, work: Callable[[sa.Connection], None]) -> None:
        await self._write(work)


async def test_a_call_to_a_server_that_freezes_during_a_transaction_fails_in_time(
    postgres_server: PostgresServer,
) -> None:
    store = WritableStore(postgres_server.url(statement_timeout=1000))
    await own(store)

    def work(connection: sa.Connection) -> None:
        connection.exec_driver_sql("UPDATE turnwise_sessions SET epoch = 9")
        with postgres_server.frozen():
            connection.exec_driver_sql("SELECT 1")

    with pytest.raises(StoreError, match=r"no answer for 1\.5 s; is it reachable"):
        await store.write(work)
    assert (await store.get(SessionKey("s"))).epoch == 1
    await store.close()


@pytest.mark.parametrize(
    "lock", ["LOCK TABLE turnwise_sessions IN ACCESS EXCLUSIVE MODE", "SELECT 1 FROM turnwise_sessions FOR UPDATE"]
)
async def test_calls_that_wait_for_a_lock_fail_in_time(lock: str, postgres_server: PostgresServer) -> None:
    url = postgres_server.url()
    store = SQLStore(url, lock_timeout_s=2.0)
    session = await own(store)
    connection = psycopg.connect(url)
    connection.execute(lock.encode())
    for verb in (store.activate(SessionKey("s")), store.commit(SessionKey("s"), 1, whole_turn(session, 0))):
        with pytest.raises(
            StoreError, match=r"canceling statement due to .* timeout; another transaction holds its locks"
        ):
            await verb
    connection.close()
    await store.commit(SessionKey("s"), 1, whole_turn(session, 0))
    assert await stored_turns(store, "s") == 1 and (await store.get(SessionKey("s"))).epoch == 1
    await store.close()


async def test_an_owner_frozen_during_a_transaction_does_not_block_the_next_owner(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 64: the server ends that transaction, so the next owner has the session, and nothing of it is written."""

    url = postgres_server.url()
    frozen, next_one = SQLStore(url, lock_timeout_s=1.0), SQLStore(url)
    session = await own(frozen)
    is_inside, goes_on = threading.Event(), threading.Event()

    def freeze(write: Write, *_: object) -> Any:
        outcomes = write()
        is_inside.set()
        goes_on.wait(BOUND_S)
        return outcomes

    around_commits(monkeypatch, freeze)
    late = asyncio.create_task(frozen.commit(SessionKey("s"), 1, whole_turn(session, 0)))
    await asyncio.to_thread(is_inside.wait, BOUND_S)
    assert (await next_one.activate(SessionKey("s"))).session.epoch == 2
    goes_on.set()
    with pytest.raises(StoreError, match=r"terminating connection due to (transaction|idle-in-transaction) timeout"):
        await late
    assert await stored_turns(next_one, "s") == 0
    await frozen.close()
    await next_one.close()


def settings_of(store: SQLStore) -> tuple[list[str], float | None]:
    """Return the timeouts of a connection, and after how much silence it is given up."""
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")
    timeouts: list[str] = []

    async def read(store: SQLStore) -> float | None:
        await store.count()
        timeouts.extend(connections[-1].execute(f"SHOW {name}").fetchone()[0] for name in names)
        silence_s: float | None = connections[-1].silence_s
        connections[-1].rollback()
        return silence_s

    with driver_connections() as connections:
        return timeouts, run_with(store, read)


def test_timeouts_set_by_the_server_or_the_url_are_kept(postgres_server: PostgresServer) -> None:
    url = postgres_server.url()
    assert settings_of(SQLStore(url, lock_timeout_s=7.0)) == (["7s", "7s", "7s", "14s"], 10.5)
    by_url = SQLStore(postgres_server.url(statement_timeout=1234, lock_timeout=0), lock_timeout_s=7.0)
    assert settings_of(by_url) == (["1234ms", "0", "7s", "14s"], 1.851)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{connection.info.dbname}" SET statement_timeout = 0'.encode())
    assert settings_of(SQLStore(url)) == (["0", "30s", "30s", "1min"], None)


class Readable(SQLDatabase):
    async def read(self, work: Callable[[sa.Connection], Any]) -> Any:
        return await self._read(work)


async def test_a_migration_has_no_time_limit(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the server nor the client limits its steps; both limit later calls, as before."""
    patience: list[float | None] = []
    wait: Any = PostgresConnection.wait

    def noting(connection: PostgresConnection, *args: Any, **settings: Any) -> Any:
        patience.append(connection.silence_s)
        return wait(connection, *args, **settings)

    monkeypatch.setattr(PostgresConnection, "wait", noting)
    url = postgres_server.url(statement_timeout=40_000, transaction_timeout=50_000)
    names = ("statement_timeout", "transaction_timeout")
    steps = (f"CREATE TABLE seen AS SELECT name, setting FROM pg_settings WHERE name IN {names}",)

    for version, migrations in ((1, {}), (2, {1: steps})):
        patience.clear()
        schema = Schema(name="things", version=version, tables=sa.MetaData(), migrations=migrations)
        database = Readable(url, schema, lock_timeout_s=30.0, connections=1)
        settings = await database.read(
            lambda connection: connection.execute(
                sa.text("SELECT name, setting FROM pg_settings WHERE name IN :names").bindparams(
                    sa.bindparam("names", names, expanding=True)
                )
            ).fetchall()
        )
        assert dict(map(tuple, settings)) == {"statement_timeout": "40000", "transaction_timeout": "50000"}
        assert None in patience and patience[-1] == 60.0
        await database.close()
    with psycopg.connect(url) as connection:
        assert dict(connection.execute("SELECT * FROM seen").fetchall()) == dict.fromkeys(names, "0")


# SQLite


async def test_sessions_on_a_full_disk_can_be_read_and_continue_when_there_is_space(
    tmp_path: Path, limit_pages: Callable[[int], None]
) -> None:
    store = SQLStore(f"sqlite:///{tmp_path}/store.db")
    await store.create(SessionRecord(session_id="s"))
    core = SessionCore(SessionKey("s"), store, ScriptedEngine(), SessionConfig(store_retry_s=0.0))
    first = await core.admission.start(["hello"], run_id="first")
    await core.reads.wait(first.run_id)
    limit_pages(1)
    with pytest.raises(StoreError, match=r"store\.db: database or disk is full; free space on its disk") as error:
        await core.admission.start(["long " * 20_000], run_id="long")
    assert "nothing was written" in str(error.value)
    assert [turn.text for turn in await core.reads.turns()] == ["hello"]
    limit_pages(2**30)
    await core.admission.start(["and on " * 20_000], run_id="next")
    outcome = await core.reads.wait("next")
    assert outcome.run.state == "completed"
    report = await audit(store, ["s"])
    report.check()
    assert report.counts["runs"] == 2
    await store.close()


async def fill(url: str) -> None:
    """Commit under a limit of what a file may hold, until it is reached; then without."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = SQLStore(url)
    session = await own(store)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    commit, count = whole_turn(session, 0), 0
    try:
        while True:
            await store.commit(SessionKey("s"), 1, commit)
            count += 1
            commit = whole_turn(commit.session, count)
    except StoreError as error:
        print(error)
    assert await stored_turns(store, "s") == count
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.commit(SessionKey("s"), 1, commit)
    assert await stored_turns(store, "s") == count + 1
    await store.close()


def test_a_log_that_cannot_grow_refuses_the_commit_whole(tmp_path: Path) -> None:
    """The disk is full, or the quota used up, while SQLite writes its log."""
    url = f"sqlite:///{tmp_path}/store.db"
    with Fork(lambda: asyncio.run(fill(url))) as process:
        error = process.out.read()
        assert process.wait() == 0
    assert "store.db: " in error and "disk" in error.partition("; ")[2]


async def test_calls_that_wait_for_a_locked_file_fail_in_time_and_later_ones_succeed(tmp_path: Path) -> None:
    """They all fail after one timeout, not one after the other."""

    store = SQLStore(f"sqlite:///{tmp_path}/store.db", lock_timeout_s=0.2)
    for index in range(50):
        await store.create(SessionRecord(session_id=f"s{index}"))
    connection = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    verbs = (store.delete(SessionKey(f"s{index}")) for index in range(50))
    outcomes = await asyncio.gather(*verbs, return_exceptions=True)
    assert all(isinstance(outcome, StoreError) for outcome in outcomes)
    assert "database is locked; another transaction holds its locks" in str(outcomes[0])
    assert sum("did not begin within 0.2 s" in str(outcome) for outcome in outcomes) >= 45
    connection.close()
    assert {(await store.activate(SessionKey(f"s{index}"))).session.epoch for index in range(50)} == {1}
    await store.close()


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A database with forty turns in one session `s`, some of them long, all in one file."""

    async def fill(store: SQLStore) -> None:
        session = await own(store)
        for index in range(40):
            commit = whole_turn(session, index)
            await store.commit(SessionKey("s"), 1, commit)
            session = commit.session

    path = tmp_path / "store.db"
    using(f"sqlite:///{path}", fill)
    return path


@pytest.mark.parametrize("damage", ["deleted", "replaced"])
async def test_a_deleted_or_replaced_file_is_refused_until_it_is_restored(damage: str, filled: Path) -> None:
    """Writes to a deleted file would be lost. No new file is created in its place."""
    original, copy = filled.with_name("kept.db"), filled.with_name("other.db")

    def take_away() -> None:
        filled.rename(original)
        if damage == "replaced":
            shutil.copy(original, copy)
            shutil.copy(original, filled)

    def put_back() -> None:
        if damage == "deleted":
            assert not filled.exists()
        else:
            assert filled.read_bytes() == copy.read_bytes()
        original.rename(filled)

    store, name = SQLStore(f"sqlite:///{filled}"), filled.name
    session = await store.get(SessionKey("s"))
    take_away()
    for verb in (
        store.count(),
        store.activate(SessionKey("s")),
        store.commit(SessionKey("s"), 1, whole_turn(session, 40)),
    ):
        with pytest.raises(StoreError, match=f"{name}: the database file was {damage} while it was open: restore it"):
            await verb
    put_back()
    await store.commit(SessionKey("s"), 1, whole_turn(session, 40))
    assert await stored_turns(store, "s") == 41
    await store.close()


async def test_a_commit_to_a_file_that_is_deleted_meanwhile_is_not_acknowledged(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SQLStore(f"sqlite:///{filled}")
    session = await store.get(SessionKey("s"))

    def unlink(write: Write, *_: object) -> Any:
        filled.unlink()
        return write()

    around_commits(monkeypatch, unlink)
    with pytest.raises(StoreError, match="database file was deleted"):
        await store.commit(SessionKey("s"), 1, whole_turn(session, 40))
    await store.close()


async def all_of(store: SQLStore) -> list[Any]:
    """Return the answer or the error of a read of each kind."""
    verbs: list[Callable[[], Awaitable[Any]]] = [
        lambda: store.get(SessionKey("s")),
        lambda: store.turns(SessionKey("s")),
        lambda: store.runs(SessionKey("s")),
        lambda: store.events(SessionKey("s")),
        lambda: stored_turns(store, "s"),
        lambda: store.query(user_id="default"),
        lambda: store.run("s-7"),
        lambda: store.ledger(LedgerQuery()),
    ]
    answers: list[Any] = []
    for verb in verbs:
        try:
            answers.append(await verb())
        except (StoreError, NotFoundError) as error:
            answers.append(error)
    return answers


@pytest.mark.by_turns
def test_a_damaged_file_gives_errors_and_never_wrong_answers(filled: Path) -> None:
    """Each page in turn is overwritten in one way or another, or the file cut off in it. Nothing repairs it.

    With `make races` all of this is done to each.

    SQLite has no checksums, so a missing row in a page that looks valid cannot be detected.
    """
    content, url = filled.read_bytes(), f"sqlite:///{filled}"
    undamaged_answers = using(url, all_of)
    assert not any(isinstance(answer, StoreError) for answer in undamaged_answers)
    size = int.from_bytes(content[16:18])
    damages = []
    for number, offset in enumerate(range(0, len(content), size)):
        overwritten = (content[:offset] + page + content[offset + size :] for page in (b"\xff" * size, bytes(size)))
        ways = [*overwritten, content[: offset + size // 2]]
        damages += ways if share(3) == 3 else [ways[number % 3]]
    noticed = 0
    for damaged in damages:
        filled.write_bytes(damaged)
        answers = using(url, all_of)
        assert filled.read_bytes() == damaged
        for answer, expected in zip(answers, undamaged_answers, strict=True):
            assert answer == expected or isinstance(answer, StoreError)
        errors = [str(answer) for answer in answers if isinstance(answer, StoreError)]
        assert all("store.db: " in error or "corrupt record" in error for error in errors)
        noticed += bool(errors)
    assert noticed > len(damages) // 2  # the others are of pages that these reads do not need
    filled.write_bytes(content)
    assert using(url, all_of) == undamaged_answers


def test_tables_without_a_version_are_refused(filled: Path) -> None:
    """The version of existing tables is not guessed."""
    with closing(sqlite3.connect(filled)) as connection, connection:
        connection.execute("DELETE FROM turnwise_meta")
    connection.close()
    before = filled.read_bytes()
    with pytest.raises(
        CorruptRecordError, match=r"schema_version of sqlite:.*store\.db in the store: the row is missing"
    ):
        using(f"sqlite:///{filled}", lambda store: store.count())
    assert filled.read_bytes() == before


# A session whose store is away


class AwayStore(InMemoryStore):
    """Refuses commits and activations while it is unavailable."""

    is_away = False

    async def commit(self, key: SessionKey, epoch: int, commit: Commit) -> None:
        self._check_there()
        await super().commit(key, epoch, commit)

    async def activate(self, *args: Any, **kwargs: Any) -> Activation:
        self._check_there()
        return await super().activate(*args, **kwargs)

    def _check_there(self) -> None:
        if self.is_away:
            raise StoreError("away")


async def test_followers_of_a_run_do_not_see_an_end_that_cannot_be_stored() -> None:
    store = AwayStore()
    await store.create(SessionRecord(session_id="s"))
    core = SessionCore(SessionKey("s"), store, ScriptedEngine(), SessionConfig(store_retry_s=0.0))
    await core.admission.start(["slow 5"], run_id="run")
    store.is_away = True
    followed: list[Event] = []

    async def follow() -> None:
        done = False
        while not done:
            after = followed[-1].seq if followed else 0
            events, _, done = await core.reads.events(after, run_id="run", timeout_s=0.3)
            followed.extend(events)

    following = asyncio.create_task(follow())
    with pytest.raises(StoreError, match="away"):
        await core.reads.wait("run")
    with pytest.raises(StoreError, match="away"):
        await following
    store.is_away = False
    await follow()
    assert followed[-1].kind == "run_interrupted"
    (await audit(store, ["s"])).check()


async def test_an_idle_process_that_cannot_reach_its_store_exits_when_the_store_is_back() -> None:
    """Before it exits it stores which turns its memories have. This commit may fail."""

    store, has_left = AwayStore(), asyncio.Event()
    await store.create(SessionRecord(session_id="s"))
    setup: SessionSetup = (ScriptedEngine(), SessionConfig(idle_s=0.05), None, (), None)
    resources = OpenResources(store, {"first": setup}, "first")
    host = DedicatedHost(
        SessionKey("s"), resources, max_waits=10, node_id="here", leave=has_left.set, save_override=keep_nothing
    )
    await host.call(verbs.info().to(SessionRef(SessionKey("s"))).pickled())
    resident, commit_tried = host._resident, asyncio.Event()  # noqa: SLF001 - has it commit something as it leaves
    assert resident
    core = resident.core

    async def store_mark() -> None:
        commit_tried.set()
        await core.transactor.commit(core.state.journal.session)

    core.ingestion.store_mark = store_mark  # type: ignore[method-assign]
    store.is_away = True
    await commit_tried.wait()
    assert not has_left.is_set()
    store.is_away = False
    await has_left.wait()


async def keep_nothing(*_: object) -> None:
    pass
