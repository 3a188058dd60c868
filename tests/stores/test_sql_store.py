"""What is special about `SQLStore` on SQLite: files, locks, processes, damage, size."""

import asyncio
import random
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine

from processes.forks import Fork
from scale import share
from stored.open_stores import closing, own, run_with
from stored.sql_traffic import driver_connections, traced
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.errors import CorruptRecordError, SchemaVersionError, StoreError, StoreURLError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import Text, User, encode
from turnwise.memory.conversation.events import Event, RunCompleted, RunStarted, UnknownEvent
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.stores.base import Commit
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.search.query import parse_query
from turnwise.memory.stores.search.records import MessageText, TextFilter
from turnwise.memory.stores.sql.schema import SCHEMA
from turnwise.memory.stores.sql.statements import Statements, statements_of
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.stores.sql.texts import BATCH, PostgresTexts
from turnwise.memory.stores.urls import open_store, resolve_url
from turnwise.memory.values.frozen_json import freeze


def whole_turn(session: SessionRecord, index: int) -> Commit:
    """Return a commit with records of all kinds, each of which has `index` in its content."""
    name, seq, time = session.session_id, 2 * index + 1, float(index)
    about: dict[str, Any] = {"session_id": name, "turn_index": index, "run_id": f"{name}-{index}", "at": time}
    span = Span(session.log, session.log_size, session.log_size + 2)
    turn = TurnRecord(index=index, status="completed", run_id=f"{name}-{index}", input=(span,), created_at=time)
    return Commit(
        session=session.committed(
            log_size=span.stop,
            next_index=index + 1,
            seq=seq + 1,
            updated_at=time,
            usage=Usage(input_tokens=index * (index + 1) // 2, seconds=0.25 * (index + 1)),
        ),
        blocks=[encode(User(text=f"prompt {index}")), encode(Text(text=f"answer {index}"))],
        turns=[replace(turn, metadata=freeze({"n": index}), usage=Usage(input_tokens=index))],
        new_run=RunRecord(
            run_id=f"{name}-{index}",
            session_id=name,
            turn_index=index,
            state="completed",
            first_seq=seq,
            created_at=time,
            labels=freeze({"n": str(index)}),
            usage=Usage(input_tokens=index, seconds=0.25),
            calls=freeze({str(index): {"name": "x"}}),
        ),
        events=[
            RunStarted(seq=seq, **about),
            RunCompleted(
                seq=seq + 1,
                key=f"end {index}",
                span=(span.start + 1, span.stop),
                usage=Usage(input_tokens=index),
                **about,
            ),
        ],
    )


async def write(url: str, session_id: str, count: int) -> None:
    """Commit whole turns, ten for each line that comes in; print the index of each after its commit has returned."""
    store = SQLStore(url)
    session = await own(store, session_id)
    print("ready", flush=True)
    for index in range(count):
        if index % 10 == 0:
            sys.stdin.readline()  # returns at once when there is nobody to write one
        commit = whole_turn(session, index)
        await store.commit(SessionKey(session_id), 1, commit)
        session = commit.session
        print(index, flush=True)
    await store.close()


def writing(url: str, session_id: str, count: int) -> None:
    asyncio.run(write(url, session_id, count))


@contextmanager
def writers(url: str, count: int, *session_ids: str) -> Iterator[dict[str, Fork]]:
    """Processes that write, ready for their first line."""
    with ExitStack() as stack:
        forks = {name: stack.enter_context(Fork(partial(writing, url, name, count))) for name in session_ids}
        for fork in forks.values():
            assert fork.out.readline() == "ready\n"
        yield forks


async def stored_turns(store: SQLStore, session_id: str) -> int:
    """Return how many turns of `whole_turn` are stored. Fails unless each is whole and nothing else is stored."""
    record = await store.get(SessionKey(session_id))
    revision = record.revision - record.next_index
    session = replace(record, log_size=0, next_index=0, revision=revision, seq=0, updated_at=0.0, usage=Usage())
    blocks: list[str] = []
    turns: list[TurnRecord] = []
    runs: list[RunRecord | None] = []
    events: list[Event] = []
    for index in range(record.next_index):
        commit = whole_turn(session, index)
        session = commit.session
        blocks += commit.blocks
        turns += commit.turns
        runs.append(commit.new_run)
        events += commit.events
    assert record == session
    assert await store.blocks([Span(session.log, 0, session.log_size)] if blocks else []) == blocks
    assert await store.turns(SessionKey(session_id), limit=10_000) == turns
    assert await store.runs(SessionKey(session_id), limit=10_000) == runs
    assert await store.events(SessionKey(session_id), limit=10_000) == events
    with pytest.raises(CorruptRecordError):
        await store.blocks([Span(session.log, session.log_size, session.log_size + 1)])
    return record.next_index


def using(url: str, use: Callable[[SQLStore], Awaitable[Any]]) -> Any:
    """Return what `use` returns of an open store."""
    return run_with(SQLStore(url), use)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def filled(url: str, tmp_path: Path) -> Path:
    """A database with three turns in one session `s`."""

    async def fill(store: SQLStore) -> None:
        session = await own(store, metadata=freeze({"a": 1}))
        for index in range(3):
            commit = whole_turn(session, index)
            await store.commit(SessionKey("s"), 1, commit)
            session = commit.session

    using(url, fill)
    return tmp_path / "store.db"


def test_commits_are_on_disk_before_they_return(url: str) -> None:
    """WAL alone would lose the last commits with the power: synchronous must be FULL (2)."""

    names = ("journal_mode", "synchronous", "busy_timeout")

    async def pragmas(store: SQLStore) -> list[list[object]]:
        await own(store)
        return [[connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names] for connection in connections]

    with driver_connections() as connections:
        settings = using(url, pragmas)
    assert ["wal", 2, 30_000] in settings and all(setting[:2] == ["wal", 2] for setting in settings)


def test_the_log_of_a_busy_file_begins_anew_again_and_again(url: str, tmp_path: Path) -> None:
    """SQLite begins it anew only when all of it is in the file, which commits by the event loop must not prevent."""

    async def commit_on_and_on(store: SQLStore) -> int:
        session = await own(store)
        sizes = []
        for index in range(1500):
            commit = whole_turn(session, index)
            await store.commit(session.key, session.epoch, commit)
            session = commit.session
            sizes.append((tmp_path / "store.db-wal").stat().st_size)
        return max(sizes)

    assert using(url, commit_on_and_on) < 12_000_000


def test_all_that_open_a_new_file_at_once_get_it(tmp_path: Path) -> None:
    """Case 45: SQLite lets one of them switch the file to WAL and refuses the others without waiting."""

    async def use(url: str) -> None:
        stores = [SQLStore(url) for _ in range(6)]
        await asyncio.gather(
            *(store.create(SessionRecord(session_id=str(index))) for index, store in enumerate(stores))
        )
        assert [await store.count() for store in stores] == [6] * 6
        for store in stores:
            await store.close()

    for number in range(share(20, 2)):
        asyncio.run(use(f"sqlite:///{tmp_path}/{number}.db"))


def test_two_processes_commit_to_two_sessions_of_one_file_at_the_same_time(url: str) -> None:
    """Case 45."""
    with writers(url, 200, "a", "b") as processes:
        for index in range(0, 200, 10):
            for process in processes.values():
                process.into.write("go\n")
                process.into.flush()
            for process in processes.values():
                assert [process.out.readline() for _ in range(10)] == [f"{index + offset}\n" for offset in range(10)]
        assert [process.wait() for process in processes.values()] == [0, 0]
    assert [using(url, partial(stored_turns, session_id=name)) for name in ("a", "b")] == [200, 200]


def test_a_kill_during_many_commits_loses_no_acknowledged_commit(url: str, tmp_path: Path) -> None:
    """Case 63: the commits of a killed process that had returned are stored whole, and at most one more commit."""
    kills = {"a": 3, "b": 40, "c": 150}
    with writers(url, 1_000_000, *kills) as processes:
        for process in processes.values():
            process.into.close()
        for name, process in processes.items():
            while process.out.readline() != f"{kills[name]}\n":
                assert process.poll() is None
            process.kill()
        acknowledged = {name: kills[name] + 1 + len(process.out.readlines()) for name, process in processes.items()}
    for name, number in acknowledged.items():
        assert using(url, partial(stored_turns, session_id=name)) in (number, number + 1)
    connection = sqlite3.connect(tmp_path / "store.db")
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.by_turns
def test_a_turn_takes_at_most_twice_its_text_and_a_constant_number_of_rows(url: str, tmp_path: Path) -> None:
    """Section 4 of the design: 666 turns, or 2,000, with prompts and answers of 500 characters each."""
    words = random.Random(0)
    prompts = ["".join(words.choices("abcdefghijklmnopqrstuvwxyz     ", k=499)) + "." for _ in range(share(2000, 3))]

    def changes() -> int:
        return sum(connection.total_changes for connection in connections)

    async def talk(store: SQLStore) -> list[int]:
        await store.create(SessionRecord(session_id="s"))
        core = SessionCore(SessionKey("s"), store, EchoEngine(), SessionConfig())
        await core.transactor.activate()
        rows = [changes()]
        for number, prompt in enumerate(prompts):
            run = await core.admission.start([prompt], run_id=f"{number:024}")
            outcome = await core.reads.wait(run.run_id)
            assert outcome.turn and outcome.turn.text == prompt
            rows.append(changes())
        return [after - before for before, after in pairwise(rows)]

    using(url, count)
    empty = (tmp_path / "store.db").stat().st_size
    with driver_connections() as connections:
        rows = using(url, talk)
    assert 0 < rows[-1] <= rows[9]
    connection = sqlite3.connect(tmp_path / "store.db")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    of_search = "name LIKE 'turnwise_words%' OR name LIKE 'turnwise_texts%'"
    (index,) = connection.execute(f"SELECT sum(pgsize) FROM dbstat WHERE {of_search}").fetchone()
    (indexed,) = connection.execute("SELECT CAST(value AS INTEGER) FROM turnwise_meta WHERE name = 'indexed_texts'")
    connection.close()
    assert 2 * len(prompts) - indexed[0] < BATCH + 16, "a search reads the texts that are not in the index yet"
    text = 2 * sum(map(len, prompts))
    assert empty < text / 4 and (tmp_path / "store.db").stat().st_size - empty - index <= 2 * text
    assert index <= 1.25 * text, "what search takes, of words that each occur once"


async def test_reads_do_not_wait_for_another_process_that_writes_and_commits_wait_at_most_the_timeout(
    filled: Path,
) -> None:
    """Case 65: calls to a slow store raise a typed error, and later calls succeed."""

    store, hasty = SQLStore(f"sqlite:///{filled}"), SQLStore(f"sqlite:///{filled}", lock_timeout_s=0.5)
    session = await hasty.get(SessionKey("s"))
    connection = sqlite3.connect(filled, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    assert await store.count() == 1
    with pytest.raises(StoreError, match=r"store\.db: database is locked"):
        await hasty.commit(SessionKey("s"), 1, whole_turn(session, 3))
    connection.close()
    await hasty.close()
    await store.commit(SessionKey("s"), 1, whole_turn(session, 3))
    assert await stored_turns(store, "s") == 4
    await store.close()


def test_usage_is_stored_as_short_text_without_zeros(filled: Path) -> None:
    """Because every run has it. The row of its turn has only that it is the run's."""
    usage = Usage(input_tokens=12, calls=1, tool_calls=3, seconds=1.23456789, cost=0.1 + 0.2)

    async def spend(store: SQLStore) -> tuple[object, ...]:
        session, run, turn = (
            await store.get(SessionKey("s")),
            await store.run("s-1"),
            (await store.turns(SessionKey("s")))[1],
        )
        turns, runs = [replace(turn, usage=usage)], [replace(run, usage=usage)]
        await store.commit(SessionKey("s"), 1, Commit(session=session.committed(usage=usage), turns=turns, runs=runs))
        return (
            (await store.run("s-1")).usage,
            (await store.turns(SessionKey("s")))[1].usage,
            (await store.get(SessionKey("s"))).usage,
        )

    rounded = replace(usage, seconds=1.234568, cost=0.3)
    assert using(f"sqlite:///{filled}", spend) == (rounded, rounded, usage)
    connection = sqlite3.connect(filled)
    text = '{"in":12,"calls":1,"tools":3,"s":1.234568,"cost":0.3}'
    for table, column, expected in (("runs", "turn_index", text), ("turns", "idx", "")):
        rows = connection.execute(f"SELECT usage FROM turnwise_{table} ORDER BY {column}").fetchall()
        assert rows[1] == (expected,)
    connection.close()


async def count(store: SQLStore) -> int:
    return await store.count()


async def create(store: SQLStore) -> SessionRecord:
    return await store.create(SessionRecord(session_id="new"))


def test_stores_of_one_driver_share_statements_and_those_of_another_have_their_own(tmp_path: Path) -> None:
    first, second = create_engine(f"sqlite:///{tmp_path}/one.db"), create_engine(f"sqlite:///{tmp_path}/two.db")
    of_postgres = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")  # which nothing connects to
    assert statements_of(first.dialect) is statements_of(second.dialect)
    assert "?" in statements_of(first.dialect).session.text
    assert "%(session_id)s" in statements_of(of_postgres.dialect).session.text


def test_a_statement_is_compiled_at_its_first_use(tmp_path: Path) -> None:
    statements = Statements(create_engine(f"sqlite:///{tmp_path}/one.db").dialect)
    assert not [name for name, statement in vars(statements).items() if "_compiled" in vars(statement)]
    assert statements.session.text.startswith("SELECT")
    assert [name for name, statement in vars(statements).items() if "_compiled" in vars(statement)] == ["session"]


def test_unsettled_and_expired_sessions_are_found_by_an_index(filled: Path) -> None:
    """By the partial indexes: ended runs and sessions without expiry are not read."""

    async def read(store: SQLStore) -> list[str]:
        await store.count()
        statements.clear()
        await store.unsettled(limit=10)
        await store.expired(0.0, limit=10)
        return [sql for sql in statements if sql.startswith("SELECT")]

    with traced() as statements:
        selects = using(f"sqlite:///{filled}", read)
    unsettled, expired = plans_of(filled, selects)
    assert "USING INDEX turnwise_runs_open (session>?)" in unsettled and "SCAN turnwise" not in unsettled
    assert "USING INDEX turnwise_sessions_ttl (key>?)" in expired and "TEMP B-TREE" not in expired


def plans_of(file: Path, selects: Sequence[str]) -> list[str]:
    """Return how SQLite carries each of these out."""
    connection = sqlite3.connect(file)
    plans = [connection.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall() for sql in selects]
    connection.close()
    return ["; ".join(row[-1] for row in plan) for plan in plans]


class PlanningCursor:
    """Has PostgreSQL plan the statements that it gets, and finds nothing."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.plans: list[str] = []

    def execute(self, statement: str, values: Sequence[object]) -> None:
        rows = self.connection.execute(f"EXPLAIN {statement}".encode(), values).fetchall()
        self.plans.append("\n".join(row[0] for row in rows))

    def fetchall(self) -> list[tuple[Any, ...]]:
        return []

    def fetchone(self) -> tuple[int]:
        return (0,)


@pytest.mark.parametrize("analyzed", [False, True])
def test_postgresql_reads_what_matches_by_the_index_of_words(database: str, *, analyzed: bool) -> None:
    """And not all users' texts, the newest first, though it may expect to find a page of hits soon."""

    async def fill(store: SQLStore) -> None:
        for number in range(100):
            await store.create(SessionRecord(session_id=f"s{number}", user_id="user"))

    run_with(SQLStore(database), fill)
    texts = PostgresTexts()
    text = MessageText(turn_index=0, number=0, role="user", at=0.0, spans=(), text="a phrase, two words")
    words = texts.row_of(1, "user", text).words
    with psycopg.connect(database) as connection:
        connection.execute(
            "INSERT INTO turnwise_texts (session, idx, number, role, spans, words) "
            "SELECT 1 + n / 100, n, 0, 'u', '', array_to_tsvector(ARRAY("
            "SELECT 'word' || n * k FROM generate_series(1, 30) k)) || "
            "CAST(CASE WHEN n %% 20 = 0 THEN %s ELSE '' END AS tsvector) FROM generate_series(1, 9000) n",
            (words,),
        )
        connection.execute("SELECT gin_clean_pending_list('turnwise_texts_words')")
        if analyzed:
            connection.execute("ANALYZE")
        cursor = PlanningCursor(connection)
        for query in ("word", "two words", '"a phrase"', "word "):
            text_filter = TextFilter(query=parse_query(query), user_id="user")
            texts.search(cursor, text_filter, 2**62, 21)
            texts.count(cursor, text_filter, 100)
    assert len(cursor.plans) == 8
    for plan in cursor.plans:
        assert "turnwise_texts_words" in plan and "turnwise_texts_pkey" not in plan, plan


def test_a_deleted_session_leaves_no_row(filled: Path) -> None:
    using(f"sqlite:///{filled}", lambda store: store.delete(SessionKey("s")))
    connection = sqlite3.connect(filled)
    for table in ("sessions", "borrowed", "blocks", "turns", "runs", "events", "deliveries"):
        assert connection.execute(f"SELECT count(*) FROM turnwise_{table}").fetchone() == (0,), table
    connection.close()


def test_a_file_that_is_no_database_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, and longer than the header of one would be: " * 20)
    before = path.read_bytes()
    for use in (count, create):
        with pytest.raises(StoreError, match=r"notes\.txt: file is not a database; is it .* a turnwise store\?"):
            using(f"sqlite:///{path}", use)
    assert path.read_bytes() == before


def test_a_path_in_a_missing_folder_is_a_store_error(tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "store.db", tmp_path):
        with pytest.raises(StoreError, match=r"unable to open database file; is it reachable, writable"):
            using(f"sqlite:///{path}", count)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_can_be_read(filled: Path) -> None:
    """Opened as read-only instead of made so, since root may write to any file."""
    url = f"sqlite:///file:{filled}?mode=ro&uri=true"
    assert using(url, count) == 1
    with pytest.raises(StoreError, match=r"attempt to write a readonly database; is it reachable, writable"):
        using(url, create)
    assert using(f"sqlite:///{filled}", partial(stored_turns, session_id="s")) == 3


def test_a_store_of_a_newer_schema_is_refused_and_left_as_it_is(filled: Path) -> None:
    version = SCHEMA.version
    edit(filled, f"UPDATE turnwise_meta SET value = '{version + 1}' WHERE name = 'schema_version'")
    for use in (count, create):
        reason = f"schema version {version + 1}, this turnwise writes {version}: use a turnwise with .* {version + 1}"
        with pytest.raises(SchemaVersionError, match=reason) as error:
            using(f"sqlite:///{filled}", use)
        assert (error.value.found, error.value.known) == (str(version + 1), version)
    edit(filled, f"UPDATE turnwise_meta SET value = '{version}' WHERE name = 'schema_version'")
    assert using(f"sqlite:///{filled}", count) == 1


async def log_of(store: SQLStore) -> str:
    return (await store.get(SessionKey("s"))).log


def edit(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        assert connection.execute(statement).rowcount == 1
    connection.close()


async def read_turns(store: SQLStore) -> object:
    return await store.turns(SessionKey("s"))


async def read_events(store: SQLStore) -> object:
    return await store.events(SessionKey("s"))


async def read_blocks(store: SQLStore) -> object:
    spans = [Span((await store.get(SessionKey("s"))).log, 0, 6)]
    cache = BlockCache()
    cache.add_spans(spans, await store.blocks(spans))
    return cache.read(spans)


@pytest.mark.parametrize(
    ("statement", "key", "verbs"),
    [
        ("UPDATE turnwise_blocks SET body = '{' WHERE at = 3", "block {log}:3", [read_blocks]),
        ("UPDATE turnwise_blocks SET body = '5' WHERE at = 3", "block {log}:3", [read_blocks]),
        ('UPDATE turnwise_blocks SET body = \'{"kind":"text"}\' WHERE at = 3', "block {log}:3", [read_blocks]),
        ("DELETE FROM turnwise_blocks WHERE at = 3", "block {log}:3", [read_blocks]),
        ("UPDATE turnwise_turns SET input = '[[1,' WHERE idx = 1", "turn s#1", [read_turns]),
        ("UPDATE turnwise_turns SET input = '[[1]]' WHERE idx = 1", "turn s#1", [read_turns]),
        ("UPDATE turnwise_turns SET usage = '{\"x\":1}' WHERE idx = 1", "turn s#1", [read_turns]),
        (
            "UPDATE turnwise_turns SET metadata = '[' WHERE idx = 2",
            "turn s#2",
            [read_turns, lambda s: s.activate(SessionKey("s"))],
        ),
        (
            "UPDATE turnwise_turns SET output = '' WHERE idx = 2",
            "turn s#2",
            [read_turns, lambda s: s.activate(SessionKey("s"))],
        ),
        ("UPDATE turnwise_events SET body = '{' WHERE seq = 4", "event s:4", [read_events]),
        ("UPDATE turnwise_events SET body = '{\"x\":1}' WHERE seq = 3", "event s:3", [read_events]),
        (
            "UPDATE turnwise_events SET body = 'null' WHERE seq = 4",
            "event s:4",
            [read_events, lambda s: s.event_of_key(SessionKey("s"), "end 1")],
        ),
        (
            "UPDATE turnwise_runs SET labels = '[' WHERE turn_index = 1",
            "run s-1",
            [lambda s: s.run("s-1"), lambda s: s.runs(SessionKey("s"))],
        ),
        ("UPDATE turnwise_runs SET why = 'x' WHERE turn_index = 1", "run s-1", [lambda s: s.runs(SessionKey("s"))]),
        (
            "UPDATE turnwise_runs SET usage = '{\"x\":1}' WHERE turn_index = 1",
            "run s-1",
            [lambda s: s.runs(SessionKey("s"))],
        ),
        ("UPDATE turnwise_runs SET usage = '[1]' WHERE turn_index = 1", "run s-1", [lambda s: s.runs(SessionKey("s"))]),
        ("UPDATE turnwise_runs SET calls = '[1' WHERE turn_index = 1", "run s-1", [lambda s: s.runs(SessionKey("s"))]),
        ("UPDATE turnwise_sessions SET cost = 'x'", "session s", [lambda s: s.get(SessionKey("s"))]),
        (
            "UPDATE turnwise_sessions SET metadata = '{'",
            "session s",
            [lambda s: s.get(SessionKey("s")), lambda s: s.activate(SessionKey("s"))],
        ),
    ],
)
def test_a_corrupt_record_is_named_and_never_skipped(
    filled: Path, statement: str, key: str, verbs: list[Callable[[SQLStore], Awaitable[Any]]]
) -> None:
    for verb in verbs:
        using(f"sqlite:///{filled}", verb)
    key = key.format(log=using(f"sqlite:///{filled}", log_of))
    edit(filled, statement)
    for verb in verbs:
        with pytest.raises(CorruptRecordError, match=f"^corrupt record {key} in the store: ") as error:
            using(f"sqlite:///{filled}", verb)
        assert error.value.key == key


async def test_a_value_that_cannot_be_stored_is_a_store_error_and_nothing_is_written(filled: Path) -> None:
    """Text with half a character, and numbers that no column holds."""
    async with closing(SQLStore(f"sqlite:///{filled}")) as store:
        session = await store.get(SessionKey("s"))
        valid = whole_turn(session, 3)
        half = RunCompleted(session_id="s", seq=7, at=0.0, stop_reason="\ud800")
        for bad in (
            replace(valid, session=replace(valid.session, metadata=freeze({"a": "\ud800"}))),
            replace(valid, events=[half]),
            replace(valid, turns=[TurnRecord(index=2**70)]),
        ):
            with pytest.raises(StoreError, match=r"store\.db: "):
                await store.commit(SessionKey("s"), 1, bad)
        assert await stored_turns(store, "s") == 3


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "x",
            "sqlite",
            "sqlite:",
            "sqlite:/x.db",
            "sqlite://",
            "sqlite:///",
            "sqlite:///:memory:",
            "sqlite://x.db",
            "sqlite:///file:x.db?uri=true",
            "sqlite:///file:/x?mode=memory&cache=shared&uri=true",
        ),
        *(
            "sqlite+aiosqlite:///x.db",
            "postgresql+asyncpg://h/x",
            "mysql://x",
            "postgres//",
            "postgres://h/x",
        ),
        *("postgresql:/h/x", "file:///x.db", "://", "memory:", "Sqlite:///x.db"),
    ],
)
def test_a_url_of_no_store_is_refused(url: str) -> None:
    for make in (open_store, SQLStore, resolve_url):
        with pytest.raises(StoreURLError, match=r"; use memory://, sqlite:///path/to/file\.db, postgresql://") as error:
            make(url)
        assert error.value.url == url


@pytest.mark.parametrize(
    "url",
    [
        *("mysql://u:secret@h/x", "postgres//u:secret@h/x", "postgres:u:secret@h", "postgres://:secret@h"),
        *("postgresql://u:secret@h:port/x", "postgresql://u:se@secret@h:port/x", "postgresql://u:a/secret@h:port"),
        *("mysql://h/x?password=secret", "mysql://h/x?a=b&password=secret&c=d", "sqlite://u:secret@h"),
        *("mysql://u:secret\n@h/x", "host=h user=u password=secret", "host=h password = 'a secret' user=u"),
    ],
)
def test_a_refused_url_is_shown_without_its_password(url: str) -> None:
    for make in (open_store, SQLStore):
        with pytest.raises(StoreURLError) as error:
            make(url)
        assert "secret" not in f"{error.value} {error.value.url} {error.value.__cause__}"
        assert "***" in error.value.url


def test_a_server_that_cannot_be_reached_is_named_without_its_password() -> None:
    url = "postgresql://u:secret@127.0.0.1:1/x?password=secret"
    with pytest.raises(StoreError, match=r"^store postgresql://u:\*\*\*@127\.0\.0\.1:1/x.* failed") as error:
        using(url, count)
    assert "secret" not in f"{error.value} {error.value.__cause__} {SQLStore(url)!r}"


def test_a_url_means_the_same_file_in_every_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/sarah")
    assert resolve_url("sqlite:///a.db") == f"sqlite:///{tmp_path}/a.db"
    assert resolve_url("sqlite:///b/../a.db?timeout=5") == f"sqlite:///{tmp_path}/a.db?timeout=5"
    assert resolve_url("sqlite:////data/a.db") == "sqlite:////data/a.db"
    assert resolve_url("sqlite:///~/a.db") == "sqlite:////home/sarah/a.db"
    for url in ("memory://", "memory://x", "postgresql://u:p@h/x", "postgresql+psycopg:///x?host=/run"):
        assert resolve_url(url) == url
    assert isinstance(open_store("memory://"), InMemoryStore)
    assert repr(open_store("sqlite:///a.db")) == f"SQLStore('sqlite:///{tmp_path}/a.db')"


def test_the_files_have_nothing_of_a_deleted_session(tmp_path: Path) -> None:
    """Case 54: neither in the file nor in SQLite's log, also while another process has it open."""

    async def use() -> None:
        store, second = SQLStore(f"sqlite:///{tmp_path}/store.db"), SQLStore(f"sqlite:///{tmp_path}/store.db")
        for name in ("gone", "stays"):
            session = await own(store, name, user_id=f"user of {name}")
            for index in range(40):
                text = f"the secret {index} of {name} {'x' * 5000 * (index % 2)}"
                session = session.committed(log_size=index + 1, next_index=index + 1, metadata=freeze({"note": text}))
                turn = TurnRecord(
                    index=index, prompt=(Span(session.log, index, index + 1),), metadata=freeze({"note": text})
                )
                event = UnknownEvent(
                    stored_kind="x", session_id=name, seq=index + 1, at=1.0, payload=freeze({"note": text})
                )
                await store.commit(session.key, 1, Commit(session=session, blocks=[text], turns=[turn], events=[event]))
        assert await second.count() == 2
        await store.delete(SessionKey("gone", "user of gone"))
        check()
        await store.close()
        await second.close()

    def check() -> None:
        stored_bytes = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert b"of stays" in stored_bytes and b"of gone" not in stored_bytes

    asyncio.run(use())
