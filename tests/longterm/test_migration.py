"""Memories of a flat namespace become items: each in its category, once, with the source left as it is."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from scale import share
from turnwise.errors import ConfigError, InvalidIdError, InvalidInputError, StoreError
from turnwise.memory.longterm.base import MemoryItem, Scope, Source
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.items.base import Fact, FactStore
from turnwise.memory.longterm.items.in_memory import InMemoryFacts
from turnwise.memory.longterm.items.sql import SQLFacts
from turnwise.memory.longterm.keyword import LexicalMemory
from turnwise.memory.longterm.migration.migrate import SKIPS_LISTED, MigrationReport, migrate
from turnwise.memory.longterm.migration.skips import Skipped, SkipReason
from turnwise.memory.longterm.types import MemoryCategory, MemoryType

# As langgraph-checkpoint-sqlite makes it; versions before 2.0.8 lack the last two columns.
SQLITE = """
CREATE TABLE IF NOT EXISTS store (
    prefix text NOT NULL,
    key text NOT NULL,
    value text NOT NULL,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (prefix, key)
);
CREATE INDEX IF NOT EXISTS store_prefix_idx ON store (prefix);
"""
SQLITE_TTL = """
ALTER TABLE store ADD COLUMN expires_at TIMESTAMP;
ALTER TABLE store ADD COLUMN ttl_minutes REAL;
CREATE INDEX IF NOT EXISTS idx_store_expires_at ON store (expires_at) WHERE expires_at IS NOT NULL;
"""
# As langgraph-checkpoint-postgres makes it.
POSTGRESQL = """
CREATE TABLE IF NOT EXISTS store (
    prefix text NOT NULL,
    key text NOT NULL,
    value jsonb NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT CURRENT_TIMESTAMP,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (prefix, key)
);
ALTER TABLE store
ADD COLUMN IF NOT EXISTS expires_at TIMESTAMP WITH TIME ZONE,
ADD COLUMN IF NOT EXISTS ttl_minutes INT;
"""

CREATED, UPDATED = datetime(2025, 1, 15, 10, 30, tzinfo=UTC), datetime(2025, 3, 1, 12, 0, tzinfo=UTC)

Row = tuple[str, str, Any]
"""Prefix, key and value."""

Put = Callable[[Iterable[Row]], None]

SARAH: list[Row] = [
    ("sarah.memories", "p", {"content": "Sarah prefers oat milk in coffee", "memory_type": "preferences"}),
    ("sarah.memories", "f", {"content": "Sarah lives in Warsaw", "memory_type": "facts", "topic": "home"}),
    ("sarah.memories", "s", {"content": "We planned the move to Berlin", "memory_type": "session_summary"}),
    ("sarah.memories", "w", {"content": "Run the tests before a commit", "memory_type": "instructions"}),
]


def sqlite_store(path: Path, rows: Iterable[Row], *, ttl: bool = True) -> Path:
    """Make a store as LangGraph does, with values as bytes, which is how SqliteStore binds them."""
    connection = sqlite3.connect(path)
    with connection:
        connection.executescript(SQLITE + (SQLITE_TTL if ttl else ""))
        connection.executemany(
            "INSERT OR REPLACE INTO store (prefix, key, value, created_at, updated_at) VALUES (?, ?, ?, ?, ?)",
            (
                (
                    prefix,
                    key,
                    json.dumps(value).encode(),
                    f"{CREATED:%Y-%m-%d %H:%M:%S}",
                    f"{UPDATED:%Y-%m-%d %H:%M:%S}",
                )
                for prefix, key, value in rows
            ),
        )
    connection.close()
    return path


def postgresql_store(url: str, rows: Iterable[Row]) -> str:
    with psycopg.connect(url) as connection:
        connection.execute(POSTGRESQL)
        connection.cursor().executemany(
            "INSERT INTO store (prefix, key, value, created_at, updated_at) VALUES (%s, %s, %s, %s, %s)",
            [(prefix, key, json.dumps(value), CREATED, UPDATED) for prefix, key, value in rows],
        )
    return url


def lines_of(path: Path, records: Iterable[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    return path


def record(prefix: str, key: str, value: Any, **more: Any) -> dict[str, Any]:
    return {"namespace": prefix.split("."), "key": key, "value": value, **more}


def dated(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    times = {"created_at": CREATED.isoformat(), "updated_at": UPDATED.isoformat()}
    return (record(*row, **times) for row in rows)


@pytest.fixture(params=["sqlite", "postgresql", "lines"])
def make_source(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Iterable[Row]], str]:
    """Makes a source of these rows."""
    if request.param == "sqlite":
        return lambda rows: f"sqlite:///{sqlite_store(tmp_path / 'flat.db', rows)}"
    if request.param == "postgresql":
        url = request.getfixturevalue("database")
        return lambda rows: postgresql_store(url, rows)
    return lambda rows: str(lines_of(tmp_path / "flat.jsonl", dated(rows)))


def run(source: str | Path, facts: FactStore, **settings: Any) -> MigrationReport:
    return asyncio.run(migrate(source, facts, **settings))


def facts_in(facts: FactStore, user_id: str | None = None) -> dict[str, list[Fact]]:
    """Return all that is in the store by user."""

    async def scan() -> dict[str, list[Fact]]:
        found: dict[str, list[Fact]] = {}
        for fact in await facts.scan(user_id, limit=100_000):
            found.setdefault(fact.user_id, []).append(fact)
        return found

    return asyncio.run(scan())


def texts(facts: FactStore) -> dict[str, list[str]]:
    return {user: sorted(fact.item.text for fact in found) for user, found in facts_in(facts).items()}


def value_of(value: Any, tmp_path: Path) -> MemoryItem | SkipReason:
    """Return what a value becomes."""
    facts = InMemoryFacts()
    report = run(lines_of(tmp_path / "one.jsonl", [record("u.memories", "k", value)]), facts)
    if report.written:
        ((fact,),) = facts_in(facts).values()
        return fact.item
    (reason,) = report.skipped
    return reason


# What becomes of them


async def test_each_memory_is_recalled_in_its_category(
    make_source: Callable[[Iterable[Row]], str], tmp_path: Path
) -> None:
    facts = SQLFacts(f"sqlite:///{tmp_path}/facts.db")
    report = await migrate(make_source(SARAH), facts)
    assert (report.read, report.written, report.known, dict(report.skipped)) == (4, 4, 0, {})
    assert dict(report.by_user) == {"sarah": 4}
    assert {str(kind): count for kind, count in report.by_type.items()} == {
        "preferences": 1,
        "facts": 1,
        "session_summary": 1,
        "instructions": 1,
    }
    scope = Scope(user_id="sarah", agent="any")
    for memory in (LexicalMemory(facts), ExtractiveMemory(None, facts)):
        for query, text, category in (
            ("Does she take milk in her coffee?", "Sarah prefers oat milk in coffee", MemoryCategory.SEMANTIC),
            ("Where does Sarah live?", "Sarah lives in Warsaw", MemoryCategory.SEMANTIC),
            ("the move to Berlin", "We planned the move to Berlin", MemoryCategory.EPISODIC),
            ("Shall I commit without tests?", "Run the tests before a commit", MemoryCategory.PROCEDURAL),
        ):
            best = (await memory.recall(scope, query))[0]
            assert (best.text, best.type.category) == (text, category)
            assert (best.created_at, best.updated_at) == (CREATED.timestamp(), UPDATED.timestamp())
            assert best.source == Source()
    (home,) = [item for item in await facts.query(scope) if item.topic]
    assert (home.text, home.topic) == ("Sarah lives in Warsaw", "home")
    await facts.close()


def test_all_sources_give_the_same_items(tmp_path: Path, database: str) -> None:
    found = []
    for source in (
        sqlite_store(tmp_path / "flat.db", SARAH),
        sqlite_store(tmp_path / "old.db", SARAH, ttl=False),
        postgresql_store(database, SARAH),
        database.replace("postgresql://", "postgres://"),
        lines_of(tmp_path / "a.jsonl", dated(SARAH)),
        lines_of(
            tmp_path / "b.jsonl", ({**line, "prefix": "sarah.memories"} for line in map(without_place, dated(SARAH)))
        ),
    ):
        facts = InMemoryFacts()
        assert run(source, facts).written == 4
        found.append({fact.item.id: fact.item for fact in facts_in(facts)["sarah"]})
    assert len(found[0]) == 4 and all(each == found[0] for each in found)


def without_place(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line as a dump of the table has it."""
    return {"key": line["key"], "value": json.dumps(line["value"])} | {
        name: value for name, value in line.items() if name.endswith("_at")
    }


@pytest.mark.parametrize(
    ("value", "text", "kind"),
    [
        ({"content": "x", "memory_type": "skill"}, "x", "skill"),
        ({"content": "x", "memory_type": "Preference"}, "x", "preferences"),
        ({"content": "x", "memory_type": "session-summary"}, "x", "session_summary"),
        ({"content": "x"}, "x", "general"),
        ({"text": "x"}, "x", "general"),
        ({"content": " ", "memory": "x"}, "x", "general"),
        ({"data": "x"}, "x", "general"),
        ("x", "x", "general"),
        ({"kind": "Memory", "content": {"content": "likes tea"}}, "likes tea", "general"),
        ({"kind": "Preferences", "content": {"content": "likes tea"}}, "likes tea", "preferences"),
        (
            {
                "kind": "Profile",
                "content": {"name": "Bö", "age": 7, "none": None, "speaks": ["fr", "de"], "at": {"x": 1}},
            },
            'name: Bö; age: 7; speaks: fr, de; at: {"x": 1}',
            "general",
        ),
        ({"content": "a\0b"}, "a\0b", "general"),
    ],
)
def test_a_value_is_read_as_it_comes(value: Any, text: str, kind: str, tmp_path: Path) -> None:
    item = value_of(value, tmp_path)
    assert isinstance(item, MemoryItem)
    assert (item.text, str(item.type)) == (text, kind)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"memory_type": "facts"}, SkipReason.NO_TEXT),
        ({"content": " \n"}, SkipReason.NO_TEXT),
        ({"content": 5}, SkipReason.NO_TEXT),
        ({"content": {"a": None}}, SkipReason.NO_TEXT),
        (None, SkipReason.NO_TEXT),
        ([], SkipReason.NO_TEXT),
        ({"content": "\ud800"}, SkipReason.REFUSED),
    ],
)
def test_a_value_that_says_nothing_is_skipped(value: Any, reason: SkipReason, tmp_path: Path) -> None:
    assert value_of(value, tmp_path) is reason


@pytest.mark.parametrize(
    ("times", "created", "updated"),
    [
        ({"created_at": "2025-01-15T10:30:00"}, CREATED.timestamp(), None),
        ({"created_at": "2025-01-15T10:30:00Z"}, CREATED.timestamp(), None),
        ({"created_at": "2025-01-15T12:30:00+02:00"}, CREATED.timestamp(), None),
        ({"created_at": CREATED.timestamp()}, CREATED.timestamp(), None),
        ({"created_at": int(CREATED.timestamp() * 1000)}, CREATED.timestamp(), None),
        ({"created_at": str(CREATED.timestamp())}, CREATED.timestamp(), None),
        ({"created_at": 5, "updated_at": 5}, 5.0, None),
        ({"created_at": 5, "updated_at": 6}, 5.0, 6.0),
        ({"created_at": 5, "value": {"content": "x", "created_at": 3, "updated_at": 4}}, 3.0, 4.0),
        ({"created_at": "yesterday"}, 0.0, None),
        ({"created_at": True}, 0.0, None),
        ({"created_at": float("inf")}, 0.0, None),
        ({}, 0.0, None),
    ],
)
def test_times_are_kept(times: dict[str, Any], created: float, updated: float | None, tmp_path: Path) -> None:
    facts = InMemoryFacts()
    run(lines_of(tmp_path / "one.jsonl", [{**record("u.memories", "k", {"content": "x"}), **times}]), facts)
    ((fact,),) = facts_in(facts).values()
    assert (fact.item.created_at, fact.item.updated_at) == (created, updated)


def test_a_time_without_a_zone_is_utc_wherever_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        facts = InMemoryFacts()
        run(sqlite_store(tmp_path / "flat.db", SARAH[:1]), facts)
    finally:
        monkeypatch.undo()
        time.tzset()
    ((fact,),) = facts_in(facts).values()
    assert fact.item.created_at == CREATED.timestamp()


def test_an_unknown_type_is_general_and_counted(tmp_path: Path) -> None:
    rows = [
        ("u.memories", str(at), {"content": "x", "memory_type": kind}) for at, kind in enumerate(("hobby", 5, "facts"))
    ]
    report = run(sqlite_store(tmp_path / "flat.db", rows), InMemoryFacts())
    assert report.unknown_types == 2
    assert run(
        lines_of(tmp_path / "none.jsonl", [record("u.memories", "k", {"content": "x"})]), InMemoryFacts()
    ) == replace(report, read=1, written=1, unknown_types=0, by_user={"u": 1}, by_type={MemoryType.GENERAL: 1})
    assert dict(report.by_type) == {MemoryType.GENERAL: 2, MemoryType.FACTS: 1}


def test_what_is_no_users_own_belongs_to_the_agent_that_is_named(
    make_source: Callable[[Iterable[Row]], str],
) -> None:
    source = make_source(SARAH)
    shared, owned = InMemoryFacts(), InMemoryFacts()
    run(source, shared)
    run(source, owned, agent="planner")
    assert {fact.agent for fact in facts_in(shared)["sarah"]} == {None}
    assert {str(fact.item.type): fact.agent for fact in facts_in(owned)["sarah"]} == {
        "preferences": None,
        "facts": None,
        "session_summary": "planner",
        "instructions": "planner",
    }


# Whose they are

TENANTS: list[Row] = [
    (prefix, "k", {"content": prefix})
    for prefix in (
        *("user-1.memories", "user-10.memories", "user%1.memories", "user_1.memories", "USER-1.memories"),
        *("a.b.memories", "user-1.memories.old", "user-1.memoriesX", "user-1.Memories", "memories", ".memories"),
        *("user-1.other", "memories.user-1"),
    )
]


@pytest.mark.parametrize("user", ["user-1", "user%1", "user_1", "USER-1", "user", "user-", "%"])
def test_a_user_is_that_user_and_nobody_else(user: str, make_source: Callable[[Iterable[Row]], str]) -> None:
    facts = InMemoryFacts()
    report = run(make_source(TENANTS), facts, users=[user])
    expected = {user: [f"{user}.memories"]} if f"{user}.memories" in [prefix for prefix, *_ in TENANTS] else {}
    assert texts(facts) == expected
    assert dict(report.by_user) == {user: len(expected)}


def test_everybodys_are_those_directly_in_the_namespace(make_source: Callable[[Iterable[Row]], str]) -> None:
    facts = InMemoryFacts()
    report = run(make_source(TENANTS), facts)
    users = {"user-1", "user-10", "user%1", "user_1", "USER-1"}
    assert texts(facts) == {user: [f"{user}.memories"] for user in users}
    assert set(report.skipped) <= {SkipReason.AMBIGUOUS_USER, SkipReason.REFUSED}


def test_another_namespace_is_taken_where_it_is_named(make_source: Callable[[Iterable[Row]], str]) -> None:
    source = make_source(TENANTS)
    facts = InMemoryFacts()
    run(source, facts, namespace="other")
    run(source, facts, namespace="memories.{user}", users=["user-1"])
    run(source, facts, namespace="memories.old", users=["user-1"])
    assert texts(facts) == {"user-1": ["memories.user-1", "user-1.memories.old", "user-1.other"]}


def test_a_dot_in_a_prefix_leaves_it_open_whose_it_is_until_the_user_is_named(tmp_path: Path, database: str) -> None:
    rows = [("sarah@x.org.memories", "k1", {"content": "x"}), ("sarah.memories", "k2", {"content": "y"})]
    for source in (sqlite_store(tmp_path / "flat.db", rows), postgresql_store(database, rows)):
        facts = InMemoryFacts()
        report = run(source, facts)
        assert texts(facts) == {"sarah": ["y"]}
        (skip,) = report.skips
        assert (skip.where, skip.key, skip.reason) == ("sarah@x.org.memories", "k1", SkipReason.AMBIGUOUS_USER)
        assert "'sarah@x.org'" in skip.why
        assert dict(run(source, facts, users=["sarah@x.org"]).skipped) == {}
        assert texts(facts) == {"sarah": ["y"], "sarah@x.org": ["x"]}


def test_segments_say_whose_it_is(tmp_path: Path) -> None:
    lines = [
        {"namespace": ["sarah@x.org", "memories"], "key": "k", "value": {"content": "hers"}},
        {"namespace": ["sarah@x", "org", "memories"], "key": "k", "value": {"content": "below another's"}},
        {"namespace": "tom@x.org.memories", "key": "k", "value": {"content": "open"}},
    ]
    facts = InMemoryFacts()
    report = run(lines_of(tmp_path / "flat.jsonl", lines), facts)
    assert texts(facts) == {"sarah@x.org": ["hers"]}
    assert dict(report.skipped) == {SkipReason.AMBIGUOUS_USER: 1}


def test_many_users_are_selected_at_once(make_source: Callable[[Iterable[Row]], str]) -> None:
    facts = InMemoryFacts()
    report = run(make_source(SARAH), facts, users=[f"user{at}" for at in range(70_000)] + ["sarah"])
    assert set(texts(facts)) == {"sarah"}
    assert report.written == 4


# What is left where it is


def test_broken_lines_are_reported_and_the_others_taken(tmp_path: Path) -> None:
    good, other = (json.dumps(record("u.memories", key, {"content": key})).encode() for key in "kl")
    bad = [
        *(b"{", b'"x"', b"[]", b"\xff\xfe", b"[" * 100_000, b'{"key": "k", "value": {}}'),
        b'{"namespace": ["u", 5], "key": "k"}',
        b'{"namespace": ["u", "memories"], "key": 5}',
        b'{"namespace": ["u", "memories"], "key": "j", "value": "{"}',
    ]
    path = tmp_path / "flat.jsonl"
    path.write_bytes(b"\n".join([b"\xef\xbb\xbf" + good, b"", *bad, other, good[:-5]]))
    facts = InMemoryFacts()
    report = run(path, facts)
    assert texts(facts) == {"u": ["k", "l"]}
    assert (report.read, report.written, report.skipped[SkipReason.UNREADABLE]) == (12, 2, 10)
    assert [skip.where for skip in report.skips] == [f"line {at}" for at in (*range(3, 12), 13)]
    assert {skip.reason for skip in report.skips} == {SkipReason.UNREADABLE}


def test_a_broken_row_is_reported_with_its_key(tmp_path: Path) -> None:
    path = sqlite_store(tmp_path / "flat.db", SARAH)
    values = (b"{", b"\xff", None, 5, "[" * 100_000, b'{"content": "\xff"}')
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE store RENAME TO strict")
        connection.execute("CREATE TABLE store AS SELECT * FROM strict")  # without NOT NULL
        rows = [(f"bad{at}", value) for at, value in enumerate(values)]
        connection.executemany("INSERT INTO store (prefix, key, value) VALUES ('u.memories', ?, ?)", rows)
        connection.execute("INSERT INTO store (prefix, key, value) VALUES ('u.memories', CAST(x'ff' AS TEXT), '{}')")
    report = run(path, InMemoryFacts())
    assert (report.read, report.written) == (len(SARAH) + 7, len(SARAH))
    unreadable = {skip.key for skip in report.skips if skip.reason is SkipReason.UNREADABLE}
    assert unreadable == {"bad0", "bad1", "bad2", "bad4", "bad5", "\\xff"}
    assert [skip.key for skip in report.skips if skip.reason is SkipReason.NO_TEXT] == ["bad3"]
    assert {skip.where for skip in report.skips} == {"u.memories"}


def test_what_cannot_be_kept_is_reported_and_harms_no_other(tmp_path: Path) -> None:
    long = "u" * 300
    rows = [(f"{long}.memories", "k", {"content": "x"}), *SARAH]
    facts = InMemoryFacts()
    report = run(sqlite_store(tmp_path / "flat.db", rows), facts)
    assert set(texts(facts)) == {"sarah"}
    (skip,) = report.skips
    assert (skip.where, skip.reason, "300 characters" in skip.why) == (f"{long}.memories", SkipReason.REFUSED, True)


def test_a_record_that_can_be_read_but_not_written_harms_no_other(tmp_path: Path) -> None:
    def nested(depth: int) -> str:
        inner = '{"a": ' * depth + "1" + "}" * depth
        return f'{{"namespace": ["u", "memories"], "key": "deep", "value": {{"content": {inner}}}}}\n'

    path = tmp_path / "flat.jsonl"
    for depth in range(700, 1000):
        path.write_text(nested(depth) + json.dumps(record("u.memories", "k", {"content": "x"})), encoding="utf-8")
        report = run(path, InMemoryFacts())
        assert (report.read, report.written + report.skipped.get(SkipReason.UNREADABLE, 0)) == (2, 2)


def test_what_has_expired_is_left_and_what_will_is_counted(tmp_path: Path, database: str) -> None:
    path = sqlite_store(tmp_path / "flat.db", SARAH)
    with sqlite3.connect(path) as connection:
        for key, time in (("p", "2025-02-01 00:00:00.000001+00:00"), ("f", "2125-02-01 00:00:00+00:00")):
            connection.execute("UPDATE store SET expires_at = ? WHERE key = ?", (time, key))
    connection.close()
    with psycopg.connect(postgresql_store(database, SARAH)) as server:
        server.execute("UPDATE store SET expires_at = '2025-02-01' WHERE key = 'p'")
        server.execute("UPDATE store SET expires_at = '2125-02-01' WHERE key = 'f'")
    for source in (path, database):
        report = run(source, InMemoryFacts())
        assert report.skips == (Skipped("sarah.memories", "p", SkipReason.EXPIRED),)
        assert (report.written, report.without_expiry) == (3, 1)


def test_a_report_lists_some_skips_and_counts_all(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "flat.jsonl", [record("u.memories", str(at), {}) for at in range(SKIPS_LISTED + 5)])
    report = run(path, InMemoryFacts())
    assert report.skipped[SkipReason.NO_TEXT] == report.read == SKIPS_LISTED + 5
    assert [skip.key for skip in report.skips] == [str(at) for at in range(SKIPS_LISTED)]


# Once


def test_a_second_migration_changes_nothing(make_source: Callable[[Iterable[Row]], str], tmp_path: Path) -> None:
    source, url = make_source(SARAH), f"sqlite:///{tmp_path}/facts.db"
    target = SQLFacts(url)
    first = run(source, target)
    before = facts_in(target)
    again = run(source, target, agent="another")
    assert (again.read, again.written, again.known) == (4, 0, 4)
    assert (again.by_user, again.by_type) == (first.by_user, first.by_type)
    assert facts_in(target) == before
    asyncio.run(target.close())


def test_what_was_forgotten_or_changed_since_stays_so(tmp_path: Path) -> None:
    path, facts = sqlite_store(tmp_path / "flat.db", SARAH), InMemoryFacts()
    run(path, facts)
    scope = Scope(user_id="sarah")
    ids = {fact.item.text: fact.item.id for fact in facts_in(facts)["sarah"]}
    asyncio.run(facts.delete(scope, [ids["Sarah lives in Warsaw"]]))
    asyncio.run(facts.update(scope, ids["Sarah prefers oat milk in coffee"], "Sarah drinks tea", at=1.0))
    assert run(path, facts).known == 4
    assert texts(facts)["sarah"] == [
        "Run the tests before a commit",
        "Sarah drinks tea",
        "We planned the move to Berlin",
    ]


def test_the_same_key_of_two_users_is_two_memories(tmp_path: Path) -> None:
    rows = [("u1.memories", "k", {"content": "x"}), ("u1.memories", "l", {"content": "x"}), ("u.memories", "1k", "x")]
    facts = InMemoryFacts()
    run(lines_of(tmp_path / "flat.jsonl", [record(*row) for row in rows]), facts)
    ids = [fact.item.id for found in facts_in(facts).values() for fact in found]
    assert len(ids) == len(set(ids)) == 3


def test_the_same_letters_of_two_namespaces_are_two_memories(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "flat.jsonl", [record("u.a", "bc", "x"), record("u.ab", "c", "y")])
    facts = InMemoryFacts()
    run(path, facts, namespace="a")
    run(path, facts, namespace="ab")
    assert texts(facts) == {"u": ["x", "y"]}


def test_of_lines_with_one_key_the_first_is_taken(tmp_path: Path) -> None:
    lines = [record("u.memories", "k", {"content": text}) for text in ("first", "second")]
    facts = InMemoryFacts()
    report = run(lines_of(tmp_path / "flat.jsonl", lines), facts)
    assert (report.read, report.written, report.known) == (2, 1, 1)
    assert texts(facts) == {"u": ["first"]}


def test_a_dry_run_tells_what_would_be_and_writes_nothing(tmp_path: Path) -> None:
    path, facts = sqlite_store(tmp_path / "flat.db", SARAH), InMemoryFacts()
    dry = run(path, facts, dry_run=True)
    assert facts_in(facts) == {}
    assert dry.dry_run and dry.written == 4
    run(lines_of(tmp_path / "one.jsonl", [record(*SARAH[0])]), facts)
    assert (run(path, facts, dry_run=True).written, run(path, facts, dry_run=True).known) == (3, 1)
    assert len(facts_in(facts)["sarah"]) == 1


# Many


def many(count: int, users: int, *, size: int = 10) -> Iterator[Row]:
    return ((f"u{at % users}.memories", f"k{at}", {"content": f"{at} {'x' * size}"}) for at in range(count))


CHILD = """
import asyncio, sys
from turnwise.memory.longterm.items.sql import SQLFacts
from turnwise.memory.longterm.migration.migrate import migrate
def told(read):
    print(read, flush=True)
    sys.stdin.readline()
asyncio.run(migrate(sys.argv[1], SQLFacts(sys.argv[2]), progress=told))
"""


@pytest.mark.parametrize("pages", [0, 1, 3])
def test_what_was_killed_goes_on(pages: int, tmp_path: Path) -> None:
    source = sqlite_store(tmp_path / "flat.db", many(5_000, 7))
    url = f"sqlite:///{tmp_path}/facts.db"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(source), url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None and child.stdout is not None
    with child:
        for at in range(pages):
            assert int(child.stdout.readline()) == (at + 1) * 1000
            child.stdin.write("\n")
            child.stdin.flush()
        os.kill(child.pid, signal.SIGKILL)  # in the midst of the next page, wherever that is
    target = SQLFacts(url)
    there = sum(map(len, facts_in(target).values()))
    assert pages * 1000 <= there <= 5000
    report = run(source, target)
    assert (report.written, report.known) == (5000 - there, there)
    found = texts(target)
    assert sorted(text for of_user in found.values() for text in of_user) == sorted(
        value["content"] for _, _, value in many(5_000, 7)
    )
    assert len(found["u3"]) == len(range(3, 5000, 7))
    asyncio.run(target.close())


class Watched(InMemoryFacts):
    """Keeps nothing, and sees how much it is given."""

    most = 0

    async def put(self, scope: Scope, items: Sequence[MemoryItem], *, at: float | None = None) -> list[str]:
        self.most = max(self.most, len(items))
        return [item.id for item in items]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "lines"])
def test_no_more_than_a_page_is_held(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    count = share(20_000, 2)
    rows = many(count, 3, size=5_000)
    source: str | Path
    if kind == "sqlite":
        source = sqlite_store(tmp_path / "flat.db", rows)
    elif kind == "postgresql":
        source = postgresql_store(request.getfixturevalue("database"), rows)
    else:
        source = lines_of(tmp_path / "flat.jsonl", (record(*row) for row in rows))
    facts, seen = Watched(), list[int]()
    run(lines_of(tmp_path / "first.jsonl", [record(*SARAH[0])]), facts)  # what is imported at first use is
    tracemalloc.start()
    try:
        report = run(source, facts, progress=seen.append)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report.written == count
    assert facts.most <= 1000
    assert seen == [*range(1000, count + 1, 1000)]
    assert peak < count * 5_000 / 2  # of all characters


# The source


def open_count(path: Path) -> int:
    """Return how often this process has the file open."""
    return [link.resolve() for link in Path("/proc/self/fd").iterdir()].count(path)


def test_the_source_is_as_it_was(tmp_path: Path) -> None:
    for mode in ("DELETE", "WAL"):
        folder = tmp_path / mode
        folder.mkdir()
        path = sqlite_store(folder / "fl at%20.db", SARAH)
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.close()
        before, times = path.read_bytes(), path.stat().st_mtime_ns
        run(path, InMemoryFacts())
        run(f"sqlite:///{path}", InMemoryFacts(), users=["sarah"])
        assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, times)
        assert not [other for other in folder.iterdir() if other != path and other.stat().st_size and mode == "DELETE"]


def test_what_a_writer_left_in_its_log_is_read_and_stays_there(tmp_path: Path) -> None:
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
    assert run(crashed / "flat.db", InMemoryFacts()).written == 1
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
        run(database, InMemoryFacts())


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_a_source_that_is_written_meanwhile_gives_one_moment_and_keeps_no_writer_waiting(
    mode: str, tmp_path: Path
) -> None:
    path = sqlite_store(tmp_path / "flat.db", many(3_000, 2))
    writer = sqlite3.connect(path, timeout=0)  # the first wait is an error
    writer.execute(f"PRAGMA journal_mode = {mode}")
    later, held = iter(range(100)), open_count(path)

    def write(read: int) -> None:
        assert open_count(path) == held
        with writer:
            writer.execute('UPDATE store SET value = \'{"content": "late"}\'')
            writer.execute("INSERT INTO store (prefix, key, value) VALUES ('z.memories', ?, '{}')", (str(next(later)),))

    facts = InMemoryFacts()
    report = run(path, facts, progress=write)
    assert (report.read, report.written) == (3000, 3000)
    assert "late" not in {text for of_user in texts(facts).values() for text in of_user}
    assert run(path, facts).read == 3003
    writer.close()


def test_postgresql_gives_one_moment_while_it_is_written(database: str) -> None:
    postgresql_store(database, many(3_000, 2))

    asked = "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"

    def write(read: int) -> None:
        with psycopg.connect(database) as server:
            assert [query for (query,) in server.execute(asked) if query.startswith("FETCH")]  # page by page
            server.execute("UPDATE store SET value = '{}'")

    report = run(database, InMemoryFacts(), progress=write)
    assert report.written == 3000


def test_lines_that_come_meanwhile_are_for_the_next_time(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "flat.jsonl", [record(*row) for row in many(1_500, 2)])

    def write(read: int) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record("z.memories", str(read), {"content": "late"})) + "\n")

    facts = InMemoryFacts()
    assert run(path, facts, progress=write).read == 1500
    assert run(path, facts).written == 2


def test_a_line_that_grows_meanwhile_is_taken_as_it_was(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "flat.jsonl", (record(*row) for row in many(1_500, 2)))
    path.write_text(path.read_text(encoding="utf-8").rstrip(), encoding="utf-8")

    def write(read: int) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write("{")

    assert run(path, InMemoryFacts(), progress=write).written == 1500


async def test_a_migration_that_is_cancelled_lets_go_of_its_source(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "flat.jsonl", (record(*row) for row in many(3_000, 2)))

    begun = asyncio.Event()

    class Stuck(InMemoryFacts):
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
    ("source", "why"),
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
def test_what_is_no_source_is_said(source: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines_of(tmp_path / "lines.jsonl", [])
    sqlite3.connect(tmp_path / "facts.db").execute("CREATE TABLE store (id text)").connection.close()
    with pytest.raises(ConfigError, match=why) as error:
        run(source, InMemoryFacts())
    assert "secret" not in str(error.value)


def test_a_database_that_cannot_be_read_is_a_store_error(tmp_path: Path) -> None:
    path = sqlite_store(tmp_path / "flat.db", many(2_000, 2))
    path.write_bytes(path.read_bytes()[:50_000] + b"\0" * 200_000)
    with pytest.raises(StoreError, match=r"^source .*flat\.db: .*malformed"):
        run(path, InMemoryFacts())
    with pytest.raises(StoreError, match="can it be reached") as error:
        run("postgresql://u:secret@localhost:1/d", InMemoryFacts())
    assert "secret" not in str(error.value)


def test_a_database_that_has_no_store_is_said(database: str) -> None:
    with pytest.raises(ConfigError, match="no table 'store'"):
        run(database, InMemoryFacts())


@pytest.mark.parametrize("namespace", ["", " ", "a\0b", "\ud800", "{user}", "{user}.", "{user}.{user}.a"])
def test_a_namespace_needs_a_name(namespace: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="namespace"):
        run(lines_of(tmp_path / "flat.jsonl", []), InMemoryFacts(), namespace=namespace)


def test_users_are_a_list_and_an_agent_has_a_name(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "flat.jsonl", [])
    with pytest.raises(ConfigError, match="users"):
        run(path, InMemoryFacts(), users="sarah")
    for user in ("", "a\0b", "\ud800"):
        with pytest.raises(InvalidIdError, match="user"):
            run(path, InMemoryFacts(), users=["sarah", user])
    with pytest.raises(InvalidIdError, match="agent"):
        run(path, InMemoryFacts(), agent=" ")
