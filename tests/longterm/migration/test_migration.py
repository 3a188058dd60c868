"""Migration: each memory of a flat namespace becomes one item of its category."""

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stored.flat_stores import (
    CREATED,
    SARAH,
    UPDATED,
    Row,
    dated,
    facts_in,
    lines_of,
    postgresql_store,
    record,
    run,
    sqlite_store,
    texts,
)
from turnwise.memory.longterm.base import MemoryItem, Scope, Source
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.items.changes import update
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.memory_types import MemoryCategory, MemoryType
from turnwise.memory.longterm.migration.migrate import SKIPS_LISTED, migrate
from turnwise.memory.longterm.migration.skips import Skipped, SkipReason

"""Prefix, key and value."""


@pytest.fixture(params=["sqlite", "postgresql", "lines"])
def make_source(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Iterable[Row]], str]:
    """Makes a source of these rows."""
    if request.param == "sqlite":
        return lambda rows: f"sqlite:///{sqlite_store(tmp_path / 'flat.db', rows)}"
    if request.param == "postgresql":
        url = request.getfixturevalue("database")
        return lambda rows: postgresql_store(url, rows)
    return lambda rows: str(lines_of(tmp_path / "flat.jsonl", dated(rows)))


def value_of(value: Any, tmp_path: Path) -> MemoryItem | SkipReason:
    """Return the item of a value, or why it is skipped."""
    facts = InMemoryItems()
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
    facts = SQLItems(f"sqlite:///{tmp_path}/facts.db")
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
    results = []
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
        facts = InMemoryItems()
        assert run(source, facts).written == 4
        results.append({fact.item.id: fact.item for fact in facts_in(facts)["sarah"]})
    assert len(results[0]) == 4 and all(result == results[0] for result in results)


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
        ({"content": 0, "text": "x"}, "x", "general"),
        ({"content": {"a": None}, "text": "x"}, "x", "general"),
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
        ({"kind": "Habits", "content": {"smokes": False, "cats": 0, "x": []}}, "smokes: false; cats: 0", "general"),
        ({"content": {"content": " ", "text": "likes tea"}}, "likes tea", "general"),
        ({"content": {"content": " ", "cats": 2}}, "cats: 2", "general"),
        ({"content": "a\0b"}, "a\0b", "general"),
    ],
)
def test_values_of_all_forms_are_read(value: Any, text: str, kind: str, tmp_path: Path) -> None:
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
def test_values_without_text_are_skipped(value: Any, reason: SkipReason, tmp_path: Path) -> None:
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
    facts = InMemoryItems()
    run(lines_of(tmp_path / "one.jsonl", [{**record("u.memories", "k", {"content": "x"}), **times}]), facts)
    ((fact,),) = facts_in(facts).values()
    assert (fact.item.created_at, fact.item.updated_at) == (created, updated)


def test_a_time_without_an_offset_is_utc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        facts = InMemoryItems()
        run(sqlite_store(tmp_path / "flat.db", SARAH[:1]), facts)
    finally:
        monkeypatch.undo()
        time.tzset()
    ((fact,),) = facts_in(facts).values()
    assert fact.item.created_at == CREATED.timestamp()


def test_an_unknown_type_is_general_and_counted(tmp_path: Path) -> None:
    rows = [
        ("u.memories", str(number), {"content": "x", "memory_type": kind})
        for number, kind in enumerate(("hobby", 5, "facts"))
    ]
    report = run(sqlite_store(tmp_path / "flat.db", rows), InMemoryItems())
    assert report.unknown_types == 2
    assert run(
        lines_of(tmp_path / "none.jsonl", [record("u.memories", "k", {"content": "x"})]), InMemoryItems()
    ) == replace(report, read=1, written=1, unknown_types=0, by_user={"u": 1}, by_type={MemoryType.GENERAL: 1})
    assert dict(report.by_type) == {MemoryType.GENERAL: 2, MemoryType.FACTS: 1}


def test_episodic_and_procedural_memories_belong_to_the_given_agent(
    make_source: Callable[[Iterable[Row]], str],
) -> None:
    source = make_source(SARAH)
    shared, owned = InMemoryItems(), InMemoryItems()
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
def test_only_the_requested_user_is_copied(user: str, make_source: Callable[[Iterable[Row]], str]) -> None:
    facts = InMemoryItems()
    report = run(make_source(TENANTS), facts, users=[user])
    expected = {user: [f"{user}.memories"]} if f"{user}.memories" in [prefix for prefix, *_ in TENANTS] else {}
    assert texts(facts) == expected
    assert dict(report.by_user) == {user: len(expected)}


def test_without_users_all_direct_memories_are_copied(make_source: Callable[[Iterable[Row]], str]) -> None:
    facts = InMemoryItems()
    report = run(make_source(TENANTS), facts)
    users = {"user-1", "user-10", "user%1", "user_1", "USER-1"}
    assert texts(facts) == {user: [f"{user}.memories"] for user in users}
    assert set(report.skipped) <= {SkipReason.AMBIGUOUS_USER, SkipReason.REFUSED}


def test_other_namespaces_can_be_copied(make_source: Callable[[Iterable[Row]], str]) -> None:
    source = make_source(TENANTS)
    facts = InMemoryItems()
    run(source, facts, namespace="other")
    run(source, facts, namespace="memories.{user}", users=["user-1"])
    run(source, facts, namespace="memories.old", users=["user-1"])
    assert texts(facts) == {"user-1": ["memories.user-1", "user-1.memories.old", "user-1.other"]}


def test_a_user_with_a_dot_is_ambiguous_until_requested(tmp_path: Path, database: str) -> None:
    rows = [("sarah@x.org.memories", "k1", {"content": "x"}), ("sarah.memories", "k2", {"content": "y"})]
    for source in (sqlite_store(tmp_path / "flat.db", rows), postgresql_store(database, rows)):
        facts = InMemoryItems()
        report = run(source, facts)
        assert texts(facts) == {"sarah": ["y"]}
        (skip,) = report.skips
        assert (skip.where, skip.key, skip.reason) == ("sarah@x.org.memories", "k1", SkipReason.AMBIGUOUS_USER)
        assert "'sarah@x.org'" in skip.why
        assert dict(run(source, facts, users=["sarah@x.org"]).skipped) == {}
        assert texts(facts) == {"sarah": ["y"], "sarah@x.org": ["x"]}


def test_lists_of_segments_are_not_ambiguous(tmp_path: Path) -> None:
    lines = [
        {"namespace": ["sarah@x.org", "memories"], "key": "k", "value": {"content": "hers"}},
        {"namespace": ["sarah@x", "org", "memories"], "key": "k", "value": {"content": "below another's"}},
        {"namespace": "tom@x.org.memories", "key": "k", "value": {"content": "open"}},
    ]
    facts = InMemoryItems()
    report = run(lines_of(tmp_path / "flat.jsonl", lines), facts)
    assert texts(facts) == {"sarah@x.org": ["hers"]}
    assert dict(report.skipped) == {SkipReason.AMBIGUOUS_USER: 1}


def test_many_users_are_selected_at_once(make_source: Callable[[Iterable[Row]], str]) -> None:
    facts = InMemoryItems()
    report = run(make_source(SARAH), facts, users=[f"user{number}" for number in range(70_000)] + ["sarah"])
    assert set(texts(facts)) == {"sarah"}
    assert report.written == 4


# What is left where it is


def test_malformed_lines_are_reported_and_the_others_copied(tmp_path: Path) -> None:
    good, second_line = (json.dumps(record("u.memories", key, {"content": key})).encode() for key in "kl")
    bad = [
        *(b"{", b'"x"', b"[]", b"\xff\xfe", b"[" * 100_000, b'{"key": "k", "value": {}}'),
        b'{"namespace": ["u", 5], "key": "k"}',
        b'{"namespace": ["u", "memories"], "key": 5}',
        b'{"namespace": ["u", "memories"], "key": "j", "value": "{"}',
    ]
    path = tmp_path / "flat.jsonl"
    path.write_bytes(b"\n".join([b"\xef\xbb\xbf" + good, b"", *bad, second_line, good[:-5]]))
    facts = InMemoryItems()
    report = run(path, facts)
    assert texts(facts) == {"u": ["k", "l"]}
    assert (report.read, report.written, report.skipped[SkipReason.UNREADABLE]) == (12, 2, 10)
    assert [skip.where for skip in report.skips] == [f"line {number}" for number in (*range(3, 12), 13)]
    assert {skip.reason for skip in report.skips} == {SkipReason.UNREADABLE}


def test_malformed_rows_are_reported_with_their_keys(tmp_path: Path) -> None:
    path = sqlite_store(tmp_path / "flat.db", SARAH)
    values = (b"{", b"\xff", None, 5, "[" * 100_000, b'{"content": "\xff"}')
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE store RENAME TO strict")
        connection.execute("CREATE TABLE store AS SELECT * FROM strict")  # without NOT NULL
        rows = [(f"bad{number}", value) for number, value in enumerate(values)]
        connection.executemany("INSERT INTO store (prefix, key, value) VALUES ('u.memories', ?, ?)", rows)
        connection.execute("INSERT INTO store (prefix, key, value) VALUES ('u.memories', CAST(x'ff' AS TEXT), '{}')")
    report = run(path, InMemoryItems())
    assert (report.read, report.written) == (len(SARAH) + 7, len(SARAH))
    unreadable = {skip.key for skip in report.skips if skip.reason is SkipReason.UNREADABLE}
    assert unreadable == {"bad0", "bad1", "bad2", "bad4", "bad5", "\\xff"}
    assert [skip.key for skip in report.skips if skip.reason is SkipReason.NO_TEXT] == ["bad3"]
    assert {skip.where for skip in report.skips} == {"u.memories"}


def test_invalid_items_are_reported_and_the_others_copied(tmp_path: Path) -> None:
    long = "u" * 300
    rows = [(f"{long}.memories", "k", {"content": "x"}), *SARAH]
    facts = InMemoryItems()
    report = run(sqlite_store(tmp_path / "flat.db", rows), facts)
    assert set(texts(facts)) == {"sarah"}
    (skip,) = report.skips
    assert (skip.where, skip.reason, "300 characters" in skip.why) == (f"{long}.memories", SkipReason.REFUSED, True)


def test_deeply_nested_records_are_reported_and_the_others_copied(tmp_path: Path) -> None:
    def nested(depth: int) -> str:
        inner = '{"a": ' * depth + "1" + "}" * depth
        return f'{{"namespace": ["u", "memories"], "key": "{depth}", "value": {{"content": {inner}}}}}\n'

    path = lines_of(tmp_path / "flat.jsonl", [record("u.memories", "k", {"content": "x"})])
    with path.open("a", encoding="utf-8") as file:
        file.writelines(map(nested, range(700, 1000)))
    report = run(path, InMemoryItems())
    assert (report.read, report.written + report.skipped.get(SkipReason.UNREADABLE, 0)) == (301, 301)


def test_expired_memories_are_skipped_and_later_expiries_counted(tmp_path: Path, database: str) -> None:
    path = sqlite_store(tmp_path / "flat.db", SARAH)
    with closing(sqlite3.connect(path)) as connection, connection:
        for key, time in (("p", "2025-02-01 00:00:00.000001+00:00"), ("f", "2125-02-01 00:00:00+00:00")):
            connection.execute("UPDATE store SET expires_at = ? WHERE key = ?", (time, key))
    connection.close()
    with psycopg.connect(postgresql_store(database, SARAH)) as server:
        server.execute("UPDATE store SET expires_at = '2025-02-01' WHERE key = 'p'")
        server.execute("UPDATE store SET expires_at = '2125-02-01' WHERE key = 'f'")
    for source in (path, database):
        report = run(source, InMemoryItems())
        assert report.skips == (Skipped("sarah.memories", "p", SkipReason.EXPIRED),)
        assert (report.written, report.without_expiry) == (3, 1)


def test_a_report_lists_some_skips_and_counts_all(tmp_path: Path) -> None:
    path = lines_of(
        tmp_path / "flat.jsonl", [record("u.memories", str(number), {}) for number in range(SKIPS_LISTED + 5)]
    )
    report = run(path, InMemoryItems())
    assert report.skipped[SkipReason.NO_TEXT] == report.read == SKIPS_LISTED + 5
    assert [skip.key for skip in report.skips] == [str(number) for number in range(SKIPS_LISTED)]


# Once


def test_a_second_migration_changes_nothing(make_source: Callable[[Iterable[Row]], str], tmp_path: Path) -> None:
    source, url = make_source(SARAH), f"sqlite:///{tmp_path}/facts.db"
    target = SQLItems(url)
    first = run(source, target)
    before = facts_in(target)
    second = run(source, target, agent="another")
    assert (second.read, second.written, second.known) == (4, 0, 4)
    assert (second.by_user, second.by_type) == (first.by_user, first.by_type)
    assert facts_in(target) == before
    asyncio.run(target.close())


def test_deleted_and_changed_items_stay_so_after_a_repeated_migration(tmp_path: Path) -> None:
    path, facts = sqlite_store(tmp_path / "flat.db", SARAH), InMemoryItems()
    run(path, facts)
    scope = Scope(user_id="sarah")
    ids = {fact.item.text: fact.item.id for fact in facts_in(facts)["sarah"]}
    asyncio.run(facts.delete(scope, [ids["Sarah lives in Warsaw"]]))
    asyncio.run(update(facts, scope, ids["Sarah prefers oat milk in coffee"], "Sarah drinks tea", at=1.0))
    assert run(path, facts).known == 4
    assert texts(facts)["sarah"] == [
        "Run the tests before a commit",
        "Sarah drinks tea",
        "We planned the move to Berlin",
    ]


def test_the_same_key_of_two_users_is_two_memories(tmp_path: Path) -> None:
    rows = [("u1.memories", "k", {"content": "x"}), ("u1.memories", "l", {"content": "x"}), ("u.memories", "1k", "x")]
    facts = InMemoryItems()
    run(lines_of(tmp_path / "flat.jsonl", [record(*row) for row in rows]), facts)
    ids = [fact.item.id for stored in facts_in(facts).values() for fact in stored]
    assert len(ids) == len(set(ids)) == 3


def test_the_same_letters_of_two_namespaces_are_two_memories(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "flat.jsonl", [record("u.a", "bc", "x"), record("u.ab", "c", "y")])
    facts = InMemoryItems()
    run(path, facts, namespace="a")
    run(path, facts, namespace="ab")
    assert texts(facts) == {"u": ["x", "y"]}


def test_of_lines_with_one_key_the_first_is_copied(tmp_path: Path) -> None:
    lines = [record("u.memories", "k", {"content": text}) for text in ("first", "second")]
    facts = InMemoryItems()
    report = run(lines_of(tmp_path / "flat.jsonl", lines), facts)
    assert (report.read, report.written, report.known) == (2, 1, 1)
    assert texts(facts) == {"u": ["first"]}


def test_a_dry_run_counts_a_key_on_two_pages_once(tmp_path: Path) -> None:
    keys = [*map(str, range(1500)), "0"]
    path = lines_of(tmp_path / "flat.jsonl", [record("u.memories", key, {"content": key}) for key in keys])
    dry, real = run(path, InMemoryItems(), dry_run=True), run(path, InMemoryItems())
    assert dry == replace(real, dry_run=True) and (dry.written, dry.known) == (1500, 1)


def test_a_dry_run_reports_and_writes_nothing(tmp_path: Path) -> None:
    path, facts = sqlite_store(tmp_path / "flat.db", SARAH), InMemoryItems()
    dry = run(path, facts, dry_run=True)
    assert facts_in(facts) == {}
    assert dry.dry_run and dry.written == 4
    run(lines_of(tmp_path / "one.jsonl", [record(*SARAH[0])]), facts)
    assert (run(path, facts, dry_run=True).written, run(path, facts, dry_run=True).known) == (3, 1)
    assert len(facts_in(facts)["sarah"]) == 1
