"""Sources of a migration: read as they were at one moment, left unchanged, in pages, and refused with a reason."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest

from stored.flat_stores import (
    SARAH,
    facts_in,
    lines_of,
    many,
    postgresql_store,
    record,
    run,
    sqlite_store,
    texts,
)
from turnwise.errors import ConfigError, InvalidIdError, InvalidInputError, StoreError
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.migration.migrate import migrate

CHILD = """
import asyncio, sys
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.migration import migrate as module
def told(read):
    print(read, flush=True)
    sys.stdin.readline()
module._PAGE = 100
asyncio.run(module.migrate(sys.argv[1], SQLItems(sys.argv[2]), progress=told))
"""


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a hundred memories."""
    monkeypatch.setattr("turnwise.memory.longterm.migration.migrate._PAGE", 100)


def test_a_killed_migration_can_be_repeated(tmp_path: Path) -> None:
    source = sqlite_store(tmp_path / "flat.db", many(500, 7))
    url = f"sqlite:///{tmp_path}/facts.db"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(source), url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None and child.stdout is not None
    with child:
        for read in (100, 200):
            assert int(child.stdout.readline()) == read
            child.stdin.write("\n")
            child.stdin.flush()
        os.kill(child.pid, signal.SIGKILL)  # in the midst of the next page, wherever that is
    target = SQLItems(url)
    stored_count = sum(map(len, facts_in(target).values()))
    assert 200 <= stored_count <= 500
    report = run(source, target)
    assert (report.written, report.known) == (500 - stored_count, stored_count)
    stored_texts = texts(target)
    assert sorted(text for of_user in stored_texts.values() for text in of_user) == sorted(
        value["content"] for _, _, value in many(500, 7)
    )
    assert len(stored_texts["u3"]) == len(range(3, 500, 7))
    asyncio.run(target.close())


class Watched(InMemoryItems):
    """Stores nothing, and records the size of each put."""

    most = 0

    async def put(self, scope: Scope, items: Sequence[MemoryItem], *, at: float | None = None) -> list[str]:
        self.most = max(self.most, len(items))
        return [item.id for item in items]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "lines"])
@pytest.mark.usefixtures("small_pages")
def test_only_one_page_is_held_in_memory(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    count = 1_000
    rows = many(count, 3, size=5_000)
    source: str | Path
    if kind == "sqlite":
        source = sqlite_store(tmp_path / "flat.db", rows)
    elif kind == "postgresql":
        source = postgresql_store(request.getfixturevalue("database"), rows)
    else:
        source = lines_of(tmp_path / "flat.jsonl", (record(*row) for row in rows))
    facts, reported = Watched(), list[int]()
    run(source, Watched())  # so that what is imported at first use is not counted
    tracemalloc.start()
    try:
        report = run(source, facts, progress=reported.append)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report.written == count
    assert facts.most <= 100
    assert reported == [*range(100, count + 1, 100)]
    assert peak < count * 5_000 / 2  # of all characters


# The source


def open_count(path: Path) -> int:
    """Return how often this process has the file open."""
    return [link.resolve() for link in Path("/proc/self/fd").iterdir()].count(path)


def test_the_source_is_not_changed(tmp_path: Path) -> None:
    for mode in ("DELETE", "WAL"):
        folder = tmp_path / mode
        folder.mkdir()
        path = sqlite_store(folder / "fl at%20.db", SARAH)
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.close()
        before, times = path.read_bytes(), path.stat().st_mtime_ns
        run(path, InMemoryItems())
        run(f"sqlite:///{path}", InMemoryItems(), users=["sarah"])
        assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, times)
        assert not [file for file in folder.iterdir() if file != path and file.stat().st_size and mode == "DELETE"]


def test_the_log_of_a_crashed_writer_is_read_and_not_changed(tmp_path: Path) -> None:
    writer = sqlite3.connect(sqlite_store(tmp_path / "flat.db", []))
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("PRAGMA wal_autocheckpoint = 0")
    with writer:
        writer.execute("INSERT INTO store (prefix, key, value) VALUES ('u.memories', 'k', '{\"content\": \"x\"}')")
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for name in ("flat.db", "flat.db-wal"):
        (crashed / name).write_bytes((tmp_path / name).read_bytes())
    writer.close()
    before = {path.name: path.read_bytes() for path in crashed.iterdir()}
    assert run(crashed / "flat.db", InMemoryItems()).written == 1
    assert {name: (crashed / name).read_bytes() for name in before} == before


def test_postgresql_is_read_in_a_transaction_that_cannot_write(database: str) -> None:
    postgresql_store(database, SARAH)
    with psycopg.connect(database) as server:
        server.execute("CREATE TABLE seen (mode text)")
        server.execute(
            "CREATE FUNCTION spy(text) RETURNS text LANGUAGE plpgsql AS "
            "$$ BEGIN INSERT INTO seen VALUES ($1); RETURN $1; END $$"
        )
        server.execute("ALTER TABLE store RENAME TO kept")
        server.execute(
            "CREATE VIEW store AS SELECT spy(prefix) AS prefix, key, value, created_at, updated_at FROM kept"
        )
    with pytest.raises(StoreError, match="read-only transaction"):
        run(database, InMemoryItems())


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
@pytest.mark.usefixtures("small_pages")
def test_a_source_is_read_at_one_moment_without_blocking_writers(mode: str, tmp_path: Path) -> None:
    path = sqlite_store(tmp_path / "flat.db", many(300, 2))
    writer = sqlite3.connect(path, timeout=0)  # the first wait is an error
    writer.execute(f"PRAGMA journal_mode = {mode}")
    later, opened_before = iter(range(100)), open_count(path)

    def write(read: int) -> None:
        assert open_count(path) == opened_before
        with writer:
            writer.execute('UPDATE store SET value = \'{"content": "late"}\'')
            writer.execute("INSERT INTO store (prefix, key, value) VALUES ('z.memories', ?, '{}')", (str(next(later)),))

    facts = InMemoryItems()
    report = run(path, facts, progress=write)
    assert (report.read, report.written) == (300, 300)
    assert "late" not in {text for of_user in texts(facts).values() for text in of_user}
    assert run(path, facts).read == 303
    writer.close()


def test_postgresql_is_read_at_one_moment(database: str) -> None:
    postgresql_store(database, many(3_000, 2))

    statement = (
        "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
    )

    def write(read: int) -> None:
        with psycopg.connect(database) as server:
            assert [query for (query,) in server.execute(statement) if query.startswith("FETCH")]  # page by page
            server.execute("UPDATE store SET value = '{}'")

    report = run(database, InMemoryItems(), progress=write)
    assert report.written == 3000


def test_lines_appended_during_a_migration_are_left_for_the_next(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "flat.jsonl", [record(*row) for row in many(1_500, 2)])

    def write(read: int) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record("z.memories", str(read), {"content": "late"})) + "\n")

    facts = InMemoryItems()
    assert run(path, facts, progress=write).read == 1500
    assert run(path, facts).written == 2


def test_a_line_that_grows_during_a_migration_is_read_as_it_was(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "flat.jsonl", (record(*row) for row in many(1_500, 2)))
    path.write_text(path.read_text(encoding="utf-8").rstrip(), encoding="utf-8")

    def write(read: int) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write("{")

    assert run(path, InMemoryItems(), progress=write).written == 1500


async def test_a_cancelled_migration_closes_its_source(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "flat.jsonl", (record(*row) for row in many(3_000, 2)))

    begun = asyncio.Event()

    class Stuck(InMemoryItems):
        async def put(self, scope: Scope, items: Sequence[MemoryItem], *, at: float | None = None) -> list[str]:
            begun.set()
            return await asyncio.Future[list[str]]()

    task = asyncio.create_task(migrate(path, Stuck()))
    await begun.wait()
    assert open_count(path) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await task
    assert open_count(path) == 0, cancelled  # which has all frames, so nothing was closed for want of a reference


# What cannot be used


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("missing.db", "there is no such file"),
        ("sqlite:///missing.db", "there is no such file"),
        (".", "there is no such file"),
        ("mysql://u:secret@h/d", "pass sqlite:///"),
        ("sqlite://relative.db", "pass sqlite:///"),
        ("postgresql://u:secret@h:port/d", "not a database URL"),
        ("sqlite:///lines.jsonl", "not a SQLite database"),
        ("facts.db", "no table 'store'"),
    ],
)
def test_an_invalid_source_is_refused_with_a_reason(
    source: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines_of(tmp_path / "lines.jsonl", [])
    sqlite3.connect(tmp_path / "facts.db").execute("CREATE TABLE store (id text)").connection.close()
    with pytest.raises(ConfigError, match=reason) as error:
        run(source, InMemoryItems())
    assert "secret" not in str(error.value)


def test_a_database_that_cannot_be_read_is_a_store_error(tmp_path: Path) -> None:
    path = sqlite_store(tmp_path / "flat.db", many(2_000, 2))
    path.write_bytes(path.read_bytes()[:50_000] + b"\0" * 200_000)
    with pytest.raises(StoreError, match=r"^source .*flat\.db: .*malformed"):
        run(path, InMemoryItems())
    with pytest.raises(StoreError, match="check that it is reachable") as error:
        run("postgresql://u:secret@localhost:1/d", InMemoryItems())
    assert "secret" not in str(error.value)


def test_a_database_without_a_store_is_refused(database: str) -> None:
    with pytest.raises(ConfigError, match="no table 'store'"):
        run(database, InMemoryItems())


@pytest.mark.parametrize("namespace", ["", " ", "a\0b", "\ud800", "{user}", "{user}.", "{user}.{user}.a"])
def test_an_invalid_namespace_is_refused(namespace: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="namespace"):
        run(lines_of(tmp_path / "flat.jsonl", []), InMemoryItems(), namespace=namespace)


def test_invalid_users_and_agents_are_refused(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "flat.jsonl", [])
    with pytest.raises(ConfigError, match="users"):
        run(path, InMemoryItems(), users="sarah")
    for user in ("", "a\0b", "\ud800"):
        with pytest.raises(InvalidIdError, match="user"):
            run(path, InMemoryItems(), users=["sarah", user])
    with pytest.raises(InvalidIdError, match="agent"):
        run(path, InMemoryItems(), agent=" ")
