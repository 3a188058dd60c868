"""Commits that share a transaction: each has its own outcome."""

import asyncio
import random
import sqlite3
import threading
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from test_sql_store import stored_turns, using, whole_turn

from patience import until
from processes.forks import Fork
from scale import share
from stored.open_stores import closing, own
from stored.sql_traffic import Write, around_commits, busy, listening, traced
from turnwise.errors import (
    DeliveryChangedError,
    DuplicateKeyError,
    SessionExistsError,
    SessionFencedError,
    SessionNotFoundError,
    StoreClosedError,
    StoreError,
)
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.deliveries.records import DeliveryChange
from turnwise.memory.stores.base import Activation, Commit
from turnwise.memory.stores.conformance.fixtures import a_delivery
from turnwise.memory.stores.group_commit import MAX_GROUP
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.values.frozen_json import freeze


async def owned(store: SQLStore, count: int) -> list[SessionRecord]:
    """Create and activate sessions; return their rows."""
    return [await own(store, f"s{index}") for index in range(count)]


@pytest.fixture
def group_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets the size of each group of commits."""
    sizes: list[int] = []

    def counted(write: Write, _: object, group: Sequence[Any]) -> Any:
        sizes.append(len(group))
        return write()

    around_commits(monkeypatch, counted)
    return sizes


async def together(store: SQLStore, calls: Sequence[Awaitable[Any]]) -> list[Any]:
    """Return the outcomes of calls that all come while the store is busy."""
    async with busy(store):
        tasks = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0)
    return await asyncio.gather(*tasks, return_exceptions=True)


def commit(store: SQLStore, new_commit: Commit, epoch: int = 1) -> Awaitable[None]:
    return store.commit(SessionKey(new_commit.session.session_id), epoch, new_commit)


async def test_commits_that_come_while_the_store_is_busy_share_a_transaction(url: str, group_sizes: list[int]) -> None:
    async with closing(SQLStore(url, connections=1)) as store:
        sessions = await owned(store, MAX_GROUP + 6)
        group_sizes.clear()
        assert await together(store, [commit(store, whole_turn(session, 0)) for session in sessions]) == [None] * len(
            sessions
        )
        assert group_sizes == [MAX_GROUP, 6]
        for session in sessions:
            assert await stored_turns(store, session.session_id) == 1
        await commit(store, whole_turn(whole_turn(sessions[0], 0).session, 1))
        assert group_sizes[2:] == [1]


async def test_a_commit_with_a_locked_session_row_does_not_delay_its_group(database: str) -> None:
    """Also where its commit is alone, and there is but one connection. SQLite has no such rows: it has one writer."""
    async with closing(SQLStore(database, connections=1)) as store:
        sessions = await owned(store, 8)
        with psycopg.connect(database) as connection:
            connection.execute("SELECT 1 FROM turnwise_sessions WHERE session_id = 's3' FOR UPDATE")
            async with busy(store):
                tasks = [asyncio.create_task(awaited(commit(store, whole_turn(session, 0)))) for session in sessions]
                await asyncio.sleep(0)
            locked = tasks.pop(3)
            await asyncio.gather(*tasks)
            commits = [
                commit(store, whole_turn(whole_turn(session, 0).session, 1))
                for session in sessions
                if session != sessions[3]
            ]
            await asyncio.gather(*commits)
            assert not locked.done() and await stored_turns(store, "s3") == 0
            connection.rollback()
            await locked
        await commit(store, whole_turn(whole_turn(sessions[3], 0).session, 1))
        for session in sessions:
            assert await stored_turns(store, session.session_id) == 2


async def test_a_commit_fails_if_its_session_row_stays_locked(database: str) -> None:
    async with closing(SQLStore(database, connections=1, lock_timeout_s=0.5)) as store:
        (session,) = await owned(store, 1)
        with psycopg.connect(database) as connection:
            connection.execute("SELECT 1 FROM turnwise_sessions WHERE session_id = 's0' FOR UPDATE")
            with pytest.raises(StoreError, match="another transaction holds its locks"):
                await commit(store, whole_turn(session, 0))
        await commit(store, whole_turn(session, 0))
        assert await stored_turns(store, "s0") == 1


async def awaited(work: Awaitable[None]) -> None:
    await work


async def test_commits_of_one_session_do_not_share_and_keep_their_order(url: str, group_sizes: list[int]) -> None:
    async with closing(SQLStore(url, connections=1)) as store:
        first, second = await owned(store, 2)
        commits = [whole_turn(first, 0)]
        commits += [whole_turn(commits[0].session, 1), whole_turn(second, 0)]
        group_sizes.clear()
        assert await together(store, [commit(store, each_commit) for each_commit in commits]) == [None] * 3
        assert group_sizes == [2, 1]
        assert [await stored_turns(store, name) for name in ("s0", "s1")] == [2, 1]


def bad_commits(sessions: list[SessionRecord]) -> dict[int, tuple[Commit, int, type[Exception]]]:
    """Return commits that are refused, by the session they are of, with their epoch and error. All have one turn."""
    valid = {index: whole_turn(whole_turn(session, 0).session, 1) for index, session in enumerate(sessions)}
    taken_key = valid[3].events[1].model_copy(update={"key": "end 0"})
    new_run = valid[2].new_run
    assert new_run
    return {
        1: (valid[1], 0, SessionFencedError),
        2: (replace(valid[2], new_run=replace(new_run, run_id="s0-0")), 1, DuplicateKeyError),
        3: (replace(valid[3], events=[valid[3].events[0], taken_key]), 1, DuplicateKeyError),
        4: (replace(valid[4], session=replace(valid[4].session, log_size=3)), 1, SessionFencedError),
        5: (replace(valid[5], session=replace(valid[5].session, metadata=freeze({"x": "\ud800"}))), 1, StoreError),
        6: (replace(valid[6], turns=[TurnRecord(index=2**70)]), 1, StoreError),
        7: (replace(valid[7], session=replace(valid[7].session, log="999999")), 1, SessionFencedError),
        8: (valid[8], 2, SessionFencedError),
    }


@pytest.mark.parametrize("refused", [range(1, 9), [1], [2], [5]], ids=str)
async def test_a_commit_that_is_refused_fails_alone(url: str, refused: list[int], group_sizes: list[int]) -> None:
    """Cases 29 and 47, in one transaction with commits that are not refused: before, between and behind them."""
    async with closing(SQLStore(url, connections=1)) as store:
        sessions = await owned(store, 10)
        for session in sessions:
            await commit(store, whole_turn(session, 0))
        bad = {index: bad_commit for index, bad_commit in bad_commits(sessions).items() if index in refused}
        calls = []
        for index, session in enumerate(sessions):
            new_commit, epoch, _ = bad.get(index, (whole_turn(whole_turn(session, 0).session, 1), 1, None))
            calls.append(store.commit(session.key, epoch, new_commit))
        group_sizes.clear()
        outcomes = await together(store, calls)
        assert group_sizes == [10 - (5 in bad)], "what cannot be encoded is refused before the transaction"
        assert [type(outcome) for outcome in outcomes] == [
            bad[index][2] if index in bad else type(None) for index in range(10)
        ]
        for index, error in enumerate(outcomes):
            assert await stored_turns(store, f"s{index}") == (1 if index in bad else 2)
            if isinstance(error, DuplicateKeyError | SessionFencedError):
                assert error.session_id == f"s{index}"


async def test_one_of_two_commits_of_a_group_with_the_same_run_is_stored(url: str) -> None:
    async with closing(SQLStore(url, connections=1)) as store:
        first, second, third = await owned(store, 3)
        same_run = whole_turn(second, 0)
        assert same_run.new_run
        same_run = replace(same_run, new_run=replace(same_run.new_run, run_id="s0-0"))
        commits = [same_run, whole_turn(first, 0), whole_turn(third, 0)]
        outcomes = await together(store, [commit(store, each_commit) for each_commit in commits])
        assert isinstance(outcomes[0], DuplicateKeyError) and outcomes[1:] == [None, None]
        assert [await stored_turns(store, name) for name in ("s0", "s1", "s2")] == [1, 0, 1]


async def test_a_failed_commit_of_a_group_fails_all_its_calls(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 65: acknowledged only when the COMMIT has returned. What was not stored may be tried again."""
    tables = (
        "CREATE TABLE parent (x INT PRIMARY KEY)",
        "CREATE TABLE child (x INT REFERENCES parent (x) DEFERRABLE INITIALLY DEFERRED)",
    )

    def lose(write: Write, cursor: Any, _: object) -> Any:
        cursor.execute("INSERT INTO child VALUES (1)")  # looked at by the COMMIT, which it makes fail
        return write()

    def check_references(driver: Any, _: object) -> None:
        if url.startswith("sqlite"):
            driver.execute("PRAGMA foreign_keys = ON")

    with listening("connect", check_references):
        async with closing(SQLStore(url, connections=1)) as store:
            sessions = await owned(store, 5)
            connection: Any = psycopg.connect(url) if url.startswith("postgresql") else sqlite3.connect(file_of(url))
            for table in tables:
                connection.execute(table)
            connection.commit()
            connection.close()
            commits = [whole_turn(session, 0) for session in sessions]
            with monkeypatch.context() as patched:
                around_commits(patched, lose)
                outcomes = await together(store, [commit(store, each_commit) for each_commit in commits])
            assert [type(error) for error in outcomes] == [StoreError] * 5
            assert len({id(error) for error in outcomes}) == 5
            for session in sessions:
                assert await stored_turns(store, session.session_id) == 0
            assert await together(store, [commit(store, each_commit) for each_commit in commits]) == [None] * 5


def file_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


async def test_a_cancelled_commit_does_not_affect_its_group(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit is made unless it is cancelled before a thread takes it. The other commits are made in any case."""
    async with closing(SQLStore(url, connections=1)) as store:
        sessions = await owned(store, 3)
        async with busy(store):
            tasks = [asyncio.ensure_future(commit(store, whole_turn(session, 0))) for session in sessions]
            await asyncio.sleep(0)
            tasks[1].cancel()
            await asyncio.wait([tasks[1]])
        await asyncio.gather(tasks[0], tasks[2])
        assert [await stored_turns(store, name) for name in ("s0", "s1", "s2")] == [1, 0, 1]

        is_writing, go_on = threading.Event(), threading.Event()

        def wait(write: Write, *_: object) -> Any:
            is_writing.set()
            go_on.wait(60)
            return write()

        around_commits(monkeypatch, wait)
        sessions = [await store.get(SessionKey(f"s{index}")) for index in range(3)]
        commits = [whole_turn(session, session.next_index) for session in sessions]
        async with busy(store):
            tasks = [asyncio.ensure_future(commit(store, each_commit)) for each_commit in commits]
            await asyncio.sleep(0)
        await asyncio.to_thread(is_writing.wait)
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        go_on.set()
        await asyncio.gather(tasks[0], tasks[2])
        assert [await stored_turns(store, name) for name in ("s0", "s1", "s2")] == [2, 1, 2]


def test_closing_waits_for_queued_work(url: str) -> None:
    """More than fit into a group, and two of one session."""

    async def use() -> None:
        store = SQLStore(url, connections=1)
        sessions = await owned(store, MAX_GROUP + 6)
        commits = [whole_turn(session, 0) for session in sessions]
        commits += [whole_turn(commits[0].session, 1), whole_turn(whole_turn(commits[0].session, 1).session, 2)]
        async with busy(store):
            tasks = [asyncio.ensure_future(commit(store, each_commit)) for each_commit in commits]
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(store.close())
            while not store._threads._shutdown:  # noqa: SLF001 - until its pool takes no more work
                await asyncio.sleep(0)
            with pytest.raises(StoreClosedError):
                await commit(store, commits[1])
        assert await asyncio.gather(*tasks) == [None] * len(commits)
        await closing

    asyncio.run(use())
    for index, turns in ((0, 3), (1, 1), (MAX_GROUP + 5, 1)):
        assert using(url, partial(stored_turns, session_id=f"s{index}")) == turns


def test_callers_on_several_event_loops_get_their_outcomes(url: str) -> None:
    store = SQLStore(url, connections=1)
    sessions = asyncio.run(owned(store, 12))

    async def write(own_sessions: list[SessionRecord]) -> None:
        for index in range(10):
            commits = [whole_turn(session, index) for session in own_sessions]
            await asyncio.gather(*(commit(store, each_commit) for each_commit in commits))
            own_sessions = [each_commit.session for each_commit in commits]

    threads = [threading.Thread(target=asyncio.run, args=[write(sessions[index::3])]) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    asyncio.run(store.close())
    for session in sessions:
        assert using(url, partial(stored_turns, session_id=session.session_id)) == 10


async def test_groups_of_two_processes_never_deadlock(database: str) -> None:
    """Two connections commit to the same sessions at once, one in the order opposite to the other's."""

    stores = [SQLStore(database, connections=1) for _ in range(2)]
    sessions = await owned(stores[0], 40)
    await stores[1].count()
    for number in range(25):
        sessions = [session.committed(updated_at=float(number)) for session in sessions]
        commits = [Commit(session=session) for session in sessions]
        orders = [commits, commits[::-1]]
        outcomes = await asyncio.gather(
            *(
                together(store, [commit(store, each_commit) for each_commit in order])
                for store, order in zip(stores, orders, strict=True)
            )
        )
        for first, second in zip(outcomes[0], reversed(outcomes[1]), strict=True):  # one of them, as the other finds
            assert (first is None) != (second is None)
            assert isinstance(first or second, SessionFencedError)  # PostgreSQL ends a circle by another error
    assert {(await stores[0].get(session.key)).updated_at for session in sessions} == {24.0}
    for store in stores:
        await store.close()


SESSIONS = 30


async def live(store: SQLStore, session: SessionRecord, words: random.Random) -> None:
    """Commit turns and, in between, commits that must be refused. Print each turn that was committed. Never returns."""
    name, index = session.session_id, 0
    while True:
        turn_commit = whole_turn(session, index)
        kind = words.randrange(8)
        if kind == 0:
            await refused(store.commit(SessionKey(name), 0, turn_commit), SessionFencedError)
        if kind == 1 and index:
            stored_run = RunRecord(
                run_id=f"{name}-{index - 1}",
                session_id=name,
                turn_index=index,
                state="queued",
                first_seq=0,
                created_at=0,
            )
            await refused(
                store.commit(SessionKey(name), 1, replace(turn_commit, new_run=stored_run)), DuplicateKeyError
            )
        await store.commit(SessionKey(name), 1, turn_commit)
        print(name, index, flush=True)
        session, index = turn_commit.session, index + 1


async def refused(call: Awaitable[None], kind: type[Exception]) -> None:
    try:
        await call
    except kind:
        return
    raise AssertionError(f"not refused as {kind.__name__}")


async def live_at_once(url: str) -> None:
    store = SQLStore(url)
    async with asyncio.TaskGroup() as tasks:
        for session in await owned(store, SESSIONS):
            tasks.create_task(live(store, session, random.Random(session.session_id)))


@pytest.mark.by_turns
def test_a_kill_during_group_commits_loses_no_acknowledged_commit(url: str) -> None:
    """Cases 45, 47 and 63: of each session all turns that were acknowledged are there, whole, once and in order."""
    with Fork(lambda: asyncio.run(live_at_once(url))) as process:
        lines = [process.out.readline() for _ in range(share(600, 3))]
        assert process.poll() is None
        process.kill()
        lines += process.out.readlines()
    acknowledged = {f"s{index}": 0 for index in range(SESSIONS)}
    for name, index in (line.split() for line in lines if line.endswith("\n")):
        assert int(index) == acknowledged[name], "acknowledged out of order"
        acknowledged[name] += 1

    async def audit(store: SQLStore) -> None:
        for name, number in acknowledged.items():
            assert await stored_turns(store, name) in (number, number + 1), name

    using(url, audit)


async def test_sessions_created_at_once_share_a_transaction_and_are_refused_one_by_one(
    tmp_path: Path,
) -> None:
    """In a file of SQLite. Each session that a database refuses gets an error of its own."""
    with traced() as statements:
        store = SQLStore(f"sqlite:///{tmp_path}/store.db", connections=1)
        await owned(store, 10)
    async with closing(store):
        statements.clear()
        records = [SessionRecord(session_id=f"s{index}") for index in range(5, 40)]
        outcomes = await together(
            store, [*map(store.create, records), store.activate(SessionKey("s1")), store.activate(SessionKey("none"))]
        )
        assert statements.count("BEGIN IMMEDIATE") == 1
        assert [type(outcome) for outcome in outcomes] == [
            *[SessionExistsError] * 5,
            *[SessionRecord] * 30,
            Activation,
            SessionNotFoundError,
        ]
        assert outcomes[35].session.epoch == 2
        assert len({record.log for record in outcomes[5:35]}) == 30 and await store.count() == 40
        strange = SessionRecord(session_id="strange", metadata=freeze({"x": "\ud800"}))
        later = [SessionRecord(session_id=f"later{index}") for index in range(3)]
        outcomes = await together(
            store, [*map(store.create, later), store.create(strange), store.activate(SessionKey("s1"))]
        )
        assert [type(outcome) for outcome in outcomes] == [*[SessionRecord] * 3, StoreError, Activation]
        assert outcomes[4].session.epoch == 3, "what shares a transaction with one that fails is done once"
        assert [(await store.get(record.key)).log for record in later] == [record.log for record in outcomes[:3]]


async def test_all_commits_that_wait_for_a_locked_file_fail_after_one_timeout(tmp_path: Path) -> None:
    """Case 65."""

    store = SQLStore(f"sqlite:///{tmp_path}/store.db", lock_timeout_s=0.3)
    await owned(store, 1)
    connection = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    records = [SessionRecord(session_id=f"new{index}") for index in range(40)]
    outcomes = await together(store, [*map(store.create, records), store.activate(SessionKey("s0"))])
    assert {type(outcome) for outcome in outcomes} == {StoreError}
    assert all("database is locked" in str(outcome) for outcome in outcomes), "one has waited for all"
    connection.close()
    assert [(await store.create(record)).session_id for record in records][-1] == "new39"
    await store.close()


async def test_a_delivery_that_was_changed_refuses_its_own_commit_alone(url: str) -> None:
    """Of a group whose commits all carry deliveries out, or move them; the others are stored."""
    async with closing(SQLStore(url, connections=1)) as store:
        sessions = await owned(store, 8)
        deliveries = [await store.add_delivery(a_delivery("d", session_id=f"s{index}")) for index in range(8)]
        moved = {index: replace(deliveries[index], due_at=20.0, revision=2) for index in range(8)}
        await store.change_delivery(DeliveryChange(deliveries[3], moved[3]))
        await store.change_delivery(DeliveryChange(deliveries[4], None))
        changes = [
            DeliveryChange(delivery, moved[index] if index % 2 else None) for index, delivery in enumerate(deliveries)
        ]
        commits = [
            replace(whole_turn(session, 0), deliveries=[change])
            for session, change in zip(sessions, changes, strict=True)
        ]
        outcomes = await together(store, [commit(store, new_commit) for new_commit in commits])
        assert [type(outcome) for outcome in outcomes if outcome] == [DeliveryChangedError] * 2
        assert outcomes[3].delivery_id == deliveries[3].delivery_id and outcomes[4].session_id == "s4"
        for index in range(8):
            assert await stored_turns(store, f"s{index}") == (0 if index in (3, 4) else 1)
        assert await store.deliveries() == [moved[index] for index in (1, 3, 5, 7)]


async def test_a_turn_without_deliveries_takes_no_statement_about_them(tmp_path: Path) -> None:
    with traced() as statements:
        async with closing(SQLStore(f"sqlite:///{tmp_path}/store.db", connections=1)) as store:
            (session,) = await owned(store, 1)
            await commit(store, whole_turn(session, 0))
            statements.clear()
            await commit(store, whole_turn(whole_turn(session, 0).session, 1))
            assert len(statements) > 3 and not [sql for sql in statements if "turnwise_deliveries" in sql]


async def test_a_statement_inserts_many_rows_of_a_group(tmp_path: Path) -> None:
    """A busy event loop may take Python's lock at each statement, and then all writers of the file wait."""
    with traced() as statements:
        async with closing(SQLStore(f"sqlite:///{tmp_path}/store.db", connections=1)) as store:
            sessions = await owned(store, 41)
            await commit(store, whole_turn(sessions.pop(), 0))
            statements.clear()
            assert await together(store, [commit(store, whole_turn(session, 0)) for session in sessions]) == [None] * 40
            for table in ("turns", "runs"):
                inserts = [sql for sql in statements if sql.startswith(f"INSERT INTO turnwise_{table} ")]
                assert len(inserts) == 2, "32 rows and 8"
            for session in sessions:
                assert await stored_turns(store, session.session_id) == 1


@pytest.fixture
def writing_threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets the thread of each transaction that writes commits."""
    threads: list[int] = []

    def noted(write: Write, _: object, __: Sequence[Any]) -> Any:
        threads.append(threading.get_ident())
        return write()

    around_commits(monkeypatch, noted)
    return threads


async def test_a_quick_commit_that_comes_alone_is_written_by_its_callers_thread(
    tmp_path: Path, writing_threads: list[int]
) -> None:
    async with closing(SQLStore(f"sqlite:///{tmp_path}/alone.db")) as store:
        (session,) = await owned(store, 1)
        first = whole_turn(session, 0)
        await commit(store, first)
        until(lambda: not store._group._at_work)  # noqa: SLF001 - its thread answers before it is free
        store._took_s = 0.0  # noqa: SLF001 - the disk of the tests may be slow
        second = whole_turn(first.session, 1)
        await commit(store, second)
        store._took_s = 1.0  # noqa: SLF001 - the last transaction has taken so long
        await commit(store, whole_turn(second.session, 2))
        assert [thread == threading.get_ident() for thread in writing_threads] == [False, True, False]
        assert await stored_turns(store, "s0") == 3


async def test_commits_that_come_together_are_left_to_the_thread(tmp_path: Path, writing_threads: list[int]) -> None:
    async with closing(SQLStore(f"sqlite:///{tmp_path}/together.db")) as store:
        sessions = await owned(store, 3)
        commits = [whole_turn(session, 0) for session in sessions]
        await commit(store, commits[0])
        store._took_s = 0.0  # noqa: SLF001 - the disk of the tests may be slow
        await asyncio.gather(*(commit(store, each_commit) for each_commit in commits[1:]))
        assert threading.get_ident() not in writing_threads


async def test_a_locked_file_holds_up_no_event_loop(tmp_path: Path, writing_threads: list[int]) -> None:
    path = tmp_path / "locked.db"
    async with closing(SQLStore(f"sqlite:///{path}")) as store:
        (session,) = await owned(store, 1)
        first = whole_turn(session, 0)
        await commit(store, first)
        store._took_s = 0.0  # noqa: SLF001 - the disk of the tests may be slow
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(commit(store, whole_turn(first.session, 1)))
        for _ in range(10):  # the loop goes on meanwhile
            await asyncio.sleep(0)
        assert not waiting.done()
        other.execute("ROLLBACK")
        other.close()
        await waiting
        assert threading.get_ident() not in writing_threads
        assert await stored_turns(store, "s0") == 2
