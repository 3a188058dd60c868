"""Which programs may make, read and write the tables of a store while it is upgraded, and what the others are told."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from filled import turnwise

from servers.postgres_server import PostgresServer
from turnwise.errors import SchemaMissingError, SchemaVersionError
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.stores.sql import database as sql_database
from turnwise.memory.stores.sql.schema_version import Schema
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.stores.urls import read_only

ROLE = "turnwise_app"
ADDED = {1: ["ALTER TABLE turnwise_turns ADD COLUMN mood TEXT"]}
BREAKING = replace(SQLStore.schema, version=2, migrations=ADDED)
READABLE = replace(BREAKING, readable_from=1)
WRITABLE = replace(BREAKING, readable_from=1, writable_from=1)


def store_of(url: str, schema: Schema = SQLStore.schema, **settings: bool) -> SQLStore:
    kind: type[SQLStore] = type("_OfSchema", (SQLStore,), {"schema": schema})
    return kind(url, **settings)


async def use(store: SQLStore, session_id: str = "s") -> int:
    """Write to a store, read it, and close it."""
    try:
        await store.create(SessionRecord(session_id=session_id))
        return await store.count()
    finally:
        await store.close()


async def read(store: SQLStore) -> int:
    try:
        return await store.count()
    finally:
        await store.close()


@pytest.fixture
def url_of_role(database: str) -> Iterator[str]:
    """The URL of an empty database, as a role that may make no tables."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {ROLE} LOGIN")
    yield database.replace("//postgres@", f"//{ROLE}@")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}")


async def test_a_role_that_may_not_make_tables_names_the_command_that_does(database: str, url_of_role: str) -> None:
    with pytest.raises(SchemaMissingError, match=r"permission denied .* run `turnwise migrate` on it"):
        await use(SQLStore(url_of_role))
    ran = await asyncio.to_thread(turnwise, "migrate", database, "--grant", ROLE, "--json")
    assert [(row["tables"], row["state"]) for row in json.loads(ran.stdout)] == [("sessions", "made")], ran.output
    assert await use(SQLStore(url_of_role)) == 1
    with pytest.raises(SchemaVersionError, match=r"has schema version 1, .* writes 2: its role may not make it"):
        await use(store_of(url_of_role, WRITABLE))
    upgrader = store_of(database, WRITABLE)
    await upgrader.migrate()
    await upgrader.close()
    assert await use(store_of(url_of_role, WRITABLE), "later") == 2


async def test_a_store_that_is_told_so_makes_no_tables(url: str) -> None:
    with pytest.raises(SchemaMissingError, match="make_schema=False"):
        await use(SQLStore(url, make_schema=False))
    assert await use(SQLStore(url)) == 1
    with pytest.raises(SchemaVersionError, match=r"make_schema=False.*: run `turnwise migrate`"):
        await use(store_of(url, WRITABLE, make_schema=False))


async def test_code_before_an_added_column_goes_on_reading_and_writing(url: str) -> None:
    earlier, later = SQLStore(url), store_of(url, WRITABLE)
    await earlier.create(SessionRecord(session_id="before"))
    assert await later.count() == 1
    await earlier.create(SessionRecord(session_id="during"))
    await later.create(SessionRecord(session_id="later"))
    assert await read(earlier) == await read(later) == 3
    assert await use(SQLStore(url), "opened afterwards") == 4


async def test_code_that_may_only_read_is_refused_when_it_writes(url: str) -> None:
    assert await use(store_of(url, READABLE)) == 1
    assert await read(SQLStore(read_only(url))) == 1
    with pytest.raises(SchemaVersionError, match=r"use a turnwise with schema version 2 .* 1 or later to read"):
        await use(SQLStore(url), "refused")


async def test_code_that_may_not_read_is_refused(url: str) -> None:
    assert await use(store_of(url, BREAKING)) == 1
    for refused in (SQLStore(url), SQLStore(read_only(url))):
        with pytest.raises(SchemaVersionError, match=r"has schema version 2, .* writes 1: use a turnwise with"):
            await read(refused)


async def test_a_version_to_which_no_migration_leads_is_refused(url: str) -> None:
    assert await use(SQLStore(url)) == 1
    with pytest.raises(SchemaVersionError, match="no migration leads from 1 to 3"):
        await use(store_of(url, replace(BREAKING, version=3)), "refused")
    assert await use(SQLStore(url), "as before") == 2


async def test_no_migration_takes_the_tables_from_programs_that_use_them(database: str) -> None:
    earlier = SQLStore(database)
    await earlier.create(SessionRecord(session_id="s"))
    with pytest.raises(SchemaVersionError, match=r"have it open \(turnwise\): stop them, then migrate it"):
        await use(store_of(database, BREAKING), "refused")
    await earlier.create(SessionRecord(session_id="t"))
    await earlier.close()
    assert await use(store_of(database, BREAKING), "u") == 3


async def test_a_migration_is_refused_to_programs_of_two_versions_before(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may write what the version between them added, and not what comes now."""
    monkeypatch.setattr(sql_database, "UNUSED_MS", 300)
    third = replace(WRITABLE, version=3, writable_from=2, migrations={**ADDED, 2: ["SELECT 1"]})
    earlier = SQLStore(database)
    await earlier.create(SessionRecord(session_id="s"))
    second = store_of(database, WRITABLE)
    await second.migrate()
    await second.close()
    await earlier.create(SessionRecord(session_id="t"))
    with pytest.raises(SchemaVersionError, match=r"have it open \(turnwise\)"):
        await use(store_of(database, third), "refused")
    await earlier.create(SessionRecord(session_id="u"))
    await earlier.close()
    assert await use(store_of(database, third), "v") == 4


async def test_a_migration_that_is_refused_holds_nobody_up(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others write meanwhile, also what takes the lock of the whole store, and connect anew."""
    monkeypatch.setattr(sql_database, "UNUSED_MS", 500)
    earlier = SQLStore(database, lock_timeout_s=1.0)
    await earlier.create(SessionRecord(session_id="s"))
    later = store_of(database, BREAKING)
    refused = asyncio.create_task(use(later, "refused"))
    with psycopg.connect(database, autocommit=True) as admin:
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND (mode = 'ExclusiveLock' OR NOT granted)"
        locks += " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        seen: list[int] = []
        while not refused.done():
            row = await asyncio.to_thread(lambda: admin.execute(locks).fetchone())
            seen.append(row[0] if row else 0)
            assert await use(SQLStore(database, lock_timeout_s=1.0), f"meanwhile-{len(seen)}") == len(seen) + 1
    assert seen and not any(seen)
    with pytest.raises(SchemaVersionError, match=r"have it open \(turnwise\)"):
        await refused
    await earlier.close()


async def test_the_rights_on_tables_are_given_to_no_other_than_a_role(database: str) -> None:
    for name in ("public", "PUBLIC", "none"):
        ran = await asyncio.to_thread(turnwise, "migrate", database, "--grant", name)
        assert ran.exit_code == 1 and "name a role" in ran.output


async def test_a_program_that_was_away_does_not_come_back_to_tables_that_it_may_not_use(
    database: str, postgres_server: PostgresServer
) -> None:
    earlier = SQLStore(database)
    await earlier.create(SessionRecord(session_id="s"))
    with psycopg.connect(database, autocommit=True) as admin:  # as a server does that is restarted
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        )
    assert await use(store_of(database, BREAKING), "t") == 2
    with pytest.raises(SchemaVersionError, match="has schema version 2, this turnwise writes 1"):
        await earlier.get(SessionKey("s"))
    await earlier.close()


async def test_of_many_that_migrate_at_once_one_does_it(url: str) -> None:
    assert await use(SQLStore(url)) == 1
    stores = [store_of(url, BREAKING) for _ in range(5)]
    before = await asyncio.gather(*(store.migrate() for store in stores))
    assert {stored.version for stored in before if stored} <= {1, 2} and 1 in {
        stored.version for stored in before if stored
    }
    assert await asyncio.gather(*(store.count() for store in stores)) == [1] * 5
    for store in stores:
        await store.close()


def test_the_printed_sql_makes_the_tables(database: str) -> None:
    assert turnwise("migrate", database, "--check").exit_code == 1
    printed = turnwise("migrate", database, "--print-sql", "--tables", "sessions", "--tables", "events")
    assert printed.exit_code == 0, printed.output
    with closing(psycopg.connect(database)) as connection, connection:
        assert connection.execute("SELECT to_regclass('turnwise_meta')").fetchone() == (None,)
        connection.execute(printed.stdout.encode())
    checked = turnwise("migrate", database, "--check", "--json")
    assert [(row["tables"], row["state"]) for row in json.loads(checked.stdout)] == [
        ("sessions", "up to date"),
        ("events", "up to date"),
    ]
    assert turnwise("migrate", database, "--print-sql").stdout.strip() == ""
    assert asyncio.run(use(SQLStore(database, make_schema=False))) == 1
    made = _shape(database)
    with closing(psycopg.connect(database)) as connection, connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    assert turnwise("migrate", database, "--tables", "sessions", "--tables", "events").exit_code == 0
    assert _shape(database) == made


def _shape(database: str) -> list[tuple[object, ...]]:
    with closing(psycopg.connect(database)) as connection, connection:
        columns = connection.execute(
            "SELECT table_name, column_name, data_type, is_nullable, collation_name FROM information_schema.columns"
            " WHERE table_schema = 'public' ORDER BY 1, 2"
        ).fetchall()
        return (
            columns
            + connection.execute("SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1").fetchall()
        )


def test_a_file_is_made_checked_and_printed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    assert turnwise("migrate", url).exit_code == 0
    assert turnwise("migrate", url, "--check").exit_code == 0
    assert asyncio.run(use(SQLStore(url, make_schema=False))) == 1
    refused = turnwise("migrate", url, "--grant", ROLE)
    assert refused.exit_code == 1 and "a SQLite file has no roles" in refused.output


def test_a_store_in_redis_needs_no_tables(redis_url: str) -> None:
    ran = turnwise("migrate", redis_url, "--check")
    assert ran.exit_code == 0 and "up to date" in ran.stdout


WITHOUT_FRAMEWORKS = """
from importlib.metadata import PackageNotFoundError
from turnwise.adapters import version_checks
from turnwise.cli import app

def version(package):
    raise PackageNotFoundError(package)

version_checks.version = version
app()
"""


@pytest.mark.by_turns
def test_tables_of_a_framework_that_is_not_installed_are_left_out(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_FRAMEWORKS, "migrate", f"sqlite:///{tmp_path}/chats.db"]
    ran = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and [table["tables"] for table in json.loads(ran.stdout)] == ["sessions"], ran.stderr
    refused = subprocess.run([*command, "--tables", "checkpoints"], capture_output=True, text=True, check=False)
    assert refused.returncode == 1 and "its package is not installed" in refused.stderr
