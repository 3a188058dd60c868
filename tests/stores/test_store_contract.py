"""The laws of `SessionStore`, on every store of turnwise."""

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from open_stores import closing
from turnwise.errors import StoreError
from turnwise.memory.conversation.frozen_json import freeze
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.stores.base import Commit, SessionStore
from turnwise.memory.stores.conformance import (
    commits as contract_commits,
    failures as contract_failures,
    forks as contract_forks,
    listing as contract_listing,
    records as contract_records,
    sessions as contract_sessions,
    suite as contract,
)
from turnwise.memory.stores.conformance.laws import Law, check_law
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.redis.store import RedisStore
from turnwise.memory.stores.sql.migrations import MIGRATIONS
from turnwise.memory.stores.sql.store import SQLStore

MakeStore = Callable[[], SessionStore]


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    """Opens stores on the same data, empty at first."""
    if request.param == "memory":
        store = InMemoryStore()
        return lambda: store
    if request.param == "redis":
        return partial(RedisStore, request.getfixturevalue("redis_url"))
    url = f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else request.getfixturevalue("database")
    return partial(SQLStore, url)


@pytest.mark.parametrize("law", contract.LAWS, ids=lambda law: law.__name__.removeprefix("check_"))
def test_a_store_obeys(law: Law, make_store: MakeStore) -> None:
    """Cases 29, 30, 44, 45, 46, 47 and 64, as each law says."""
    asyncio.run(check_law(law, make_store))


async def test_no_call_fails_after_a_restart_of_the_server(database: str) -> None:
    """Case 65."""

    store = SQLStore(database)
    await store.create(SessionRecord(session_id="s"))
    session = (await store.activate("s")).session
    for at in range(3):
        await asyncio.gather(*(store.get("s") for _ in range(20)))  # so that all connections are open
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        session = session.committed(updated_at=float(at))
        await store.commit("s", 1, Commit(session=session))
        assert await store.get("s") == session
    await store.close()


SESSIONS_1 = """
CREATE TABLE turnwise_sessions (key {key}, session_id TEXT NOT NULL UNIQUE, user_id TEXT NOT NULL, agent TEXT,
  metadata TEXT, status TEXT NOT NULL, created_at DOUBLE PRECISION NOT NULL, updated_at DOUBLE PRECISION NOT NULL,
  parent TEXT, log_size BIGINT NOT NULL, next_index BIGINT NOT NULL, epoch BIGINT NOT NULL, seq BIGINT NOT NULL);
"""
SESSIONS_2 = """
CREATE TABLE turnwise_sessions (key {key}, session_id TEXT NOT NULL UNIQUE, user_id TEXT NOT NULL, agent TEXT,
  metadata TEXT, status TEXT NOT NULL, created_at DOUBLE PRECISION NOT NULL, updated_at DOUBLE PRECISION NOT NULL,
  parent TEXT, log_size BIGINT NOT NULL, next_index BIGINT NOT NULL, epoch BIGINT NOT NULL, seq BIGINT NOT NULL,
  input_tokens BIGINT DEFAULT 0 NOT NULL, output_tokens BIGINT DEFAULT 0 NOT NULL,
  cached_tokens BIGINT DEFAULT 0 NOT NULL, reasoning_tokens BIGINT DEFAULT 0 NOT NULL, calls BIGINT DEFAULT 0 NOT NULL,
  tool_calls BIGINT DEFAULT 0 NOT NULL, seconds DOUBLE PRECISION DEFAULT 0 NOT NULL,
  cost DOUBLE PRECISION DEFAULT 0 NOT NULL);
"""
RUNS_1 = """
CREATE TABLE turnwise_runs (run_id TEXT NOT NULL UNIQUE, session BIGINT NOT NULL, turn_index BIGINT NOT NULL,
  state TEXT NOT NULL, first_seq BIGINT NOT NULL, created_at DOUBLE PRECISION NOT NULL, started_at DOUBLE PRECISION,
  ended_at DOUBLE PRECISION, why TEXT, labels TEXT, timeout_s DOUBLE PRECISION, idempotency_key TEXT,
  fingerprint TEXT, PRIMARY KEY (session, turn_index));
CREATE INDEX turnwise_runs_open ON turnwise_runs (session, turn_index) WHERE state IN ('queued', 'running');
"""
RUNS_2 = """
CREATE TABLE turnwise_runs (run_id TEXT NOT NULL UNIQUE, session BIGINT NOT NULL, turn_index BIGINT NOT NULL,
  state TEXT NOT NULL, first_seq BIGINT NOT NULL, created_at DOUBLE PRECISION NOT NULL, started_at DOUBLE PRECISION,
  ended_at DOUBLE PRECISION, why TEXT, labels TEXT, timeout_s DOUBLE PRECISION, idempotency_key TEXT,
  fingerprint TEXT, code TEXT, usage TEXT, stop_reason TEXT, calls TEXT, resumes BIGINT DEFAULT 0 NOT NULL,
  PRIMARY KEY (session, turn_index));
CREATE INDEX turnwise_runs_open ON turnwise_runs (session, turn_index)
  WHERE state IN ('queued', 'running', 'awaiting_approval');
"""
OTHERS = """
CREATE TABLE turnwise_meta (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE INDEX turnwise_sessions_created ON turnwise_sessions (created_at, key);
CREATE INDEX turnwise_sessions_user ON turnwise_sessions (user_id, created_at, key);
CREATE TABLE turnwise_borrowed (session BIGINT NOT NULL, log BIGINT NOT NULL, start BIGINT NOT NULL,
  stop BIGINT NOT NULL, PRIMARY KEY (session, log, start));
CREATE INDEX turnwise_borrowed_log ON turnwise_borrowed (log);
CREATE TABLE turnwise_blocks (log BIGINT NOT NULL, at BIGINT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (log, at));
CREATE TABLE turnwise_turns (session BIGINT NOT NULL, idx BIGINT NOT NULL, parent TEXT, run_id TEXT,
  status TEXT NOT NULL, prompt TEXT NOT NULL, appended TEXT, input TEXT NOT NULL, output TEXT NOT NULL, usage TEXT,
  stop_reason TEXT, created_at DOUBLE PRECISION NOT NULL, metadata TEXT, PRIMARY KEY (session, idx));
CREATE INDEX turnwise_turns_open ON turnwise_turns (session, idx) WHERE status IN ('pending', 'queued', 'running');
CREATE UNIQUE INDEX turnwise_runs_key ON turnwise_runs (session, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE TABLE turnwise_events (session BIGINT NOT NULL, seq BIGINT NOT NULL, at DOUBLE PRECISION NOT NULL,
  turn_index BIGINT, run_id TEXT, event_key TEXT, kind TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (session, seq));
CREATE UNIQUE INDEX turnwise_events_key ON turnwise_events (session, event_key) WHERE event_key IS NOT NULL;
"""
ROWS = """
INSERT INTO turnwise_sessions (session_id, user_id, agent, metadata, status, created_at, updated_at, parent, log_size,
  next_index, epoch, seq) VALUES ('s', 'u', 'a', '{{"n":1}}', 'active', 1.5, 9.5, NULL, 4, 3, 1, 10000006);
INSERT INTO turnwise_blocks VALUES (1, 0, 'p0'), (1, 1, 'a0'), (1, 2, 'p1'), (1, 3, 'p2');
INSERT INTO turnwise_turns VALUES
  (1, 0, NULL, 'r0', 'completed', '[[1,0,1]]', '[[1,0,1]]', '[[1,0,1]]', '[[1,1,2]]', '{{"input_tokens":3}}', '"stop"',
   2.5, '{{"n":2}}'),
  (1, 1, 's#0', 'r1', 'running', '[[1,2,3]]', NULL, '[[1,0,3]]', '[]', NULL, NULL, 3.5, NULL),
  (1, 2, 's#1', 'r2', 'queued', '[[1,3,4]]', NULL, '[]', '[]', NULL, NULL, 4.5, NULL);
INSERT INTO turnwise_runs (run_id, session, turn_index, state, first_seq, created_at, started_at, ended_at, why, labels,
  timeout_s, idempotency_key, fingerprint) VALUES
  ('r0', 1, 0, 'completed', 2, 2.5, 2.5, 3.0, NULL, '{{"l":"x"}}', 0.5, 'k0', 'f'),
  ('r1', 1, 1, 'running', 4, 3.5, 3.5, NULL, NULL, NULL, NULL, NULL, NULL),
  ('r2', 1, 2, 'queued', 5, 4.5, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO turnwise_events VALUES
  (1, 1, 1.5, 0, NULL, 'e1', 'prompt_appended', '{{}}'), (1, 2, 2.5, 0, 'r0', NULL, 'run_started', '{{}}'),
  (1, 3, 3.0, 0, 'r0', NULL, 'run_completed', '{{"stop_reason":"stop","usage":{{"input_tokens":3}}}}'),
  (1, 4, 3.5, 1, 'r1', NULL, 'run_started', '{{}}'), (1, 5, 4.5, 2, 'r2', NULL, 'run_queued', '{{}}');
"""
OLD = {
    1: f"{SESSIONS_1}{RUNS_1}{OTHERS}{ROWS} INSERT INTO turnwise_meta VALUES ('schema_version', '1');",
    2: f"""{SESSIONS_2}{RUNS_2}{OTHERS}{ROWS} INSERT INTO turnwise_meta VALUES ('schema_version', '2');
    UPDATE turnwise_runs SET usage = '{{{{"in":3}}}}', stop_reason = '"stop"' WHERE run_id = 'r0';""",
}
OLD[3] = f"""{OLD[2]} ALTER TABLE turnwise_turns ADD COLUMN carried TEXT;
UPDATE turnwise_meta SET value = '3' WHERE name = 'schema_version';"""
OLD[4] = f"""{OLD[3]} ALTER TABLE turnwise_sessions ADD COLUMN memory TEXT;
ALTER TABLE turnwise_sessions ADD COLUMN saved BIGINT DEFAULT -1 NOT NULL; UPDATE turnwise_sessions SET saved = 2;
ALTER TABLE turnwise_turns ADD COLUMN forgotten BOOLEAN; ALTER TABLE turnwise_runs ADD COLUMN memory TEXT;
UPDATE turnwise_meta SET value = '4' WHERE name = 'schema_version';"""
OLD[5] = f"""{OLD[4]} ALTER TABLE turnwise_sessions ADD COLUMN ttl_s DOUBLE PRECISION;
CREATE INDEX turnwise_sessions_ttl ON turnwise_sessions (key) WHERE ttl_s IS NOT NULL;
UPDATE turnwise_meta SET value = '5' WHERE name = 'schema_version';"""
OLD[6] = f"""{OLD[5]} ALTER TABLE turnwise_sessions ADD COLUMN revision BIGINT DEFAULT 0 NOT NULL;
UPDATE turnwise_meta SET value = '6' WHERE name = 'schema_version';"""
OLD[7], OLD[8], OLD[9], OLD[10], OLD[11] = (
    OLD[6]
    + "".join(f"{change};" for version in range(6, newest) for change in MIGRATIONS[version])
    + f" UPDATE turnwise_meta SET value = '{newest}' WHERE name = 'schema_version';"
    for newest in (7, 8, 9, 10, 11)
)
"""The tables of older schema versions, and a session with an answer, a run that runs and one that waits."""


@pytest.fixture(params=[(version, kind) for version in OLD for kind in ("sqlite", "postgresql")], ids=str)
def old_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database of an older schema version."""
    version, kind = request.param
    if kind == "sqlite":
        connection = sqlite3.connect(tmp_path / "old.db")
        connection.executescript(OLD[version].format(key="INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT"))
        connection.close()
        return f"sqlite:///{tmp_path}/old.db"
    url = str(request.getfixturevalue("database"))
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(OLD[version].format(key="BIGSERIAL PRIMARY KEY").encode())
    return url


def tables_of(store: SQLStore) -> dict[str, tuple[object, ...]]:
    """Return what the tables are made of: columns and indexes."""
    found = sa.inspect(store._engine)
    tables: dict[str, tuple[object, ...]] = {}
    for table in found.get_table_names():
        columns = sorted((column["name"], column["nullable"]) for column in found.get_columns(table))
        indexes = {}
        for index in found.get_indexes(table):
            where = [str(option) for name, option in index["dialect_options"].items() if name.endswith("_where")]
            indexes[index["name"]] = (index["column_names"], index["unique"], where)
        tables[table] = (columns, indexes)
    return tables


async def test_a_store_of_an_older_version_is_migrated_and_goes_on(old_url: str) -> None:
    store = SQLStore(old_url)
    usage = Usage(input_tokens=3)
    session = SessionRecord(
        session_id="s",
        user_id="u",
        agent="a",
        metadata=freeze({"n": 1}),
        created_at=1.5,
        updated_at=9.5,
        log="1",
        log_size=4,
        next_index=3,
        epoch=1,
        seq=10_000_006,
        saved=2,
    )
    assert await store.get("s") == session
    runs = await store.runs("s")
    assert [(run.model, run.params, run.output) for run in runs] == [(None, {}, None)] * 3
    assert [(run.run_id, run.state, run.usage, run.stop_reason, run.resumes) for run in runs] == [
        *(("r0", "completed", usage, "stop", 0), ("r1", "running", None, None, 0), ("r2", "queued", None, None, 0)),
    ]
    assert [(run.code, run.calls, run.is_open) for run in runs] == [(None, {}, False), *[(None, {}, True)] * 2]
    assert await store.run_of_key("s", "k0") == runs[0] == await store.run("r0")
    events = await store.events("s")
    assert [(event.seq, event.kind) for event in events] == list(
        enumerate(["prompt_appended", "run_started", "run_completed", "run_started", "run_queued"], 1)
    )
    assert (events[2].usage, events[2].run_id) == (usage, "r0")  # type: ignore[union-attr]
    assert await store.event_of_key("s", "e1") == events[0]
    assert await store.blocks([Span("1", 0, 4)]) == ["p0", "a0", "p1", "p2"]
    assert await store.usage() == Usage()

    found = await store.activate("s")
    assert found.head and found.head.usage == usage and found.head.metadata == {"n": 2}
    assert [turn.index for turn in found.open_turns] == [1, 2] and list(found.open_runs) == runs[1:]
    turns = await store.turns("s")
    assert [(turn.index, turn.carried) for turn in turns] == [(0, ()), (1, ()), (2, ())]
    assert turns == [found.head, *found.open_turns]
    carries = replace(found.head, carried=(Span("1", 1, 2),))
    waits = replace(runs[1], state="awaiting_approval", calls=freeze({"c": {"name": "x"}}), usage=usage, resumes=1)
    asked = {"model": "m", "params": freeze({"seed": 7}), "title": "Old times", "engine": "smart"}
    session = found.session.committed(usage=usage, log_size=5, **asked)
    changed = Commit(session=session, blocks=["a1"], turns=[carries], runs=[waits], forget_events=4)
    await store.commit("s", 2, changed)
    found = await store.activate("s")
    assert found.session == replace(session, epoch=3, revision=found.session.revision) and found.open_runs == (
        waits,
        runs[2],
    )
    turns = await store.turns("s")
    assert [turn.carried for turn in turns] == [(Span("1", 1, 2),), (), ()]
    assert turns == [found.head, *found.open_turns]
    assert await store.usage(user_id="u") == usage
    assert await store.events("s") == [events[0], events[4]]
    created = await store.create(SessionRecord(session_id="new"))
    assert created == await store.get("new") and int(created.log) > 2**60 and created.saved == -1
    assert [session.session_id for session in (await store.query()).items] == ["s", "new"]
    await store.close()


def test_a_migrated_store_has_the_tables_of_a_new_one(old_url: str) -> None:
    async def tables(url: str) -> dict[str, tuple[object, ...]]:
        store = SQLStore(url)
        await store.count()
        found = tables_of(store)
        await store.close()
        return found

    migrated = asyncio.run(tables(old_url))
    assert len(migrated) >= 7 and "awaiting_approval" in str(migrated["turnwise_runs"])
    new_url = f"{old_url}.new"
    if old_url.startswith("postgresql"):
        new_url = old_url
        with psycopg.connect(old_url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    assert asyncio.run(tables(new_url)) == migrated


async def test_all_that_open_an_old_store_at_once_find_it_migrated(old_url: str) -> None:
    """Case 45."""

    stores = [SQLStore(old_url) for _ in range(6)]
    assert await asyncio.gather(*(store.count() for store in stores)) == [1] * 6
    await asyncio.gather(*(store.create(SessionRecord(session_id=str(at))) for at, store in enumerate(stores)))
    assert [await store.count() for store in stores] == [7] * 6
    for store in stores:
        await store.close()


def test_a_migration_that_fails_leaves_the_store_as_it_was(old_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def count() -> int:
        async with closing(SQLStore(old_url)) as store:
            return await store.count()

    with monkeypatch.context() as patch:
        last = max(MIGRATIONS)
        broken = {**MIGRATIONS, last: [*MIGRATIONS[last], "UPDATE turnwise_no_such_table SET x = 1"]}
        patch.setattr(SQLStore, "schema", replace(SQLStore.schema, migrations=broken))
        with pytest.raises(StoreError, match="turnwise_no_such_table"):
            asyncio.run(count())
    assert asyncio.run(count()) == 1


class _Forgetful(InMemoryStore):
    async def run_of_key(self, session_id: str, idempotency_key: str) -> RunRecord | None:
        await super().run_of_key(session_id, idempotency_key)
        return None


def test_the_error_for_a_broken_law_names_the_law() -> None:
    stores: dict[str, SessionStore] = {}
    why = "check_a_commit_is_stored_whole: the run by its key: found None, expected RunRecord"
    with pytest.raises(AssertionError, match=why):
        asyncio.run(contract.check_session_store(lambda law: stores.setdefault(law, _Forgetful())))
    assert list(stores) == [law.__name__ for law in contract.LAWS[: len(stores)]]


def test_the_error_for_an_unexpected_exception_names_the_law() -> None:
    class Rude(InMemoryStore):
        async def get(self, session_id: str) -> SessionRecord:
            raise KeyError(session_id)

    with pytest.raises(AssertionError, match=r"^check_a_session_comes_back_as_it_was_created: KeyError\('s'\)$"):
        asyncio.run(contract.check_session_store(lambda _: Rude()))


def test_the_laws_are_all_checks() -> None:
    parts = (
        contract_sessions,
        contract_listing,
        contract_commits,
        contract_records,
        contract_forks,
        contract_failures,
    )
    checks = [value for part in parts for name, value in vars(part).items() if name.startswith("check_")]
    assert checks == list(contract.LAWS) and len(checks) > 40
    files = {path.stem for path in Path(contract.__file__).parent.glob("*.py")}
    assert files == {part.__name__.rpartition(".")[2] for part in parts} | {"__init__", "fixtures", "laws", "suite"}
