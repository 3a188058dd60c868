"""The laws of `ItemStore` in memory and in SQL, and the schema and files of `SQLItems`."""

import asyncio
import pickle
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from memories.item_verbs import count, purge, sweep
from stored.open_stores import closing as closing_async, run_with
from turnwise.errors import ConfigError, CorruptRecordError, SchemaVersionError, StoreError, StoreURLError
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.longterm.base import MemoryItem, Scope, Source
from turnwise.memory.longterm.items import conformance as contract
from turnwise.memory.longterm.items.base import ALL, SPACE, ItemStore
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.rules import TOMBSTONE_S
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.items.sql_statements import Statements
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.stores.conformance.laws import Law, check_law
from turnwise.memory.stores.sql.store import SQLStore

MakeItems = Callable[[], ItemStore]

USER = Scope(user_id="u")


def items(count: int, **values: Any) -> list[MemoryItem]:
    return [
        MemoryItem(id=str(number), text=f"text {number}", created_at=float(number), **values) for number in range(count)
    ]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database, empty at first."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/facts.db"
    return str(request.getfixturevalue("database"))


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def make_items(request: pytest.FixtureRequest, tmp_path: Path) -> MakeItems:
    """Opens stores on the same data, empty at first."""
    if request.param == "memory":
        facts = InMemoryItems()
        return lambda: facts
    url = f"sqlite:///{tmp_path}/facts.db" if request.param == "sqlite" else request.getfixturevalue("database")
    return partial(SQLItems, url)


def using(url: str, use: Callable[[SQLItems], Awaitable[Any]]) -> Any:
    """Return the result of `use` with an open store."""
    return run_with(SQLItems(url), use)


@pytest.mark.parametrize("law", contract.LAWS, ids=lambda law: law.__name__.removeprefix("check_"))
def test_item_stores_obey_the_law_that(law: Law, make_items: MakeItems) -> None:
    """Cases 50, 51, 53 and 54, as each law says."""
    asyncio.run(check_law(law, make_items))


def test_a_broken_law_of_item_stores_is_named() -> None:
    class Forgetful(InMemoryItems):
        def _forget(self, user_id: str, ids: Any) -> None:
            """Keep the rows, but report them as deleted."""

    stores: dict[str, ItemStore] = {}
    with pytest.raises(AssertionError, match=r"^check_a_scope_sees_.*: |^check_deleted_items_.*: "):
        asyncio.run(contract.check_item_store(lambda law: stores.setdefault(law, Forgetful())))


def test_the_suite_contains_every_law() -> None:
    checks = [value for name, value in vars(contract).items() if name.startswith("check_")]
    assert [check for check in checks if check not in (contract.check_item_store, check_law)] == list(contract.LAWS)


async def test_facts_and_sessions_share_a_database(url: str) -> None:
    store, facts = SQLStore(url), SQLItems(url)
    await asyncio.gather(store.create(SessionRecord(session_id="s")), facts.put(USER, items(3)))
    await store.delete(SessionKey("s"))
    assert await count(facts, USER) == 3
    await store.create(SessionRecord(session_id="s"))
    await purge(facts, "u")
    assert (await store.get(SessionKey("s"))).session_id == "s"
    await asyncio.gather(store.close(), facts.close())


async def test_stores_that_open_a_new_database_at_once_all_work(url: str) -> None:
    stores = [SQLItems(url) for _ in range(6)]
    await asyncio.gather(*(facts.put(Scope(user_id=f"u{number}"), items(3)) for number, facts in enumerate(stores)))
    for number in range(6):
        assert await count(stores[0], Scope(user_id=f"u{number}")) == 3
    await asyncio.gather(*(facts.close() for facts in stores))


def test_facts_and_deletions_survive_reopening_the_store(url: str) -> None:
    using(url, lambda facts: facts.put(USER, items(2000)))
    assert len(using(url, lambda facts: facts.delete(USER, [str(number) for number in range(1000)]))) == 1000
    assert using(url, lambda facts: facts.put(USER, items(2001))) == ["2000"]
    assert list(using(url, lambda facts: facts.query(USER, limit=2000))) == items(2001)[:999:-1]


def test_a_store_of_facts_pickles_as_its_settings(url: str) -> None:
    facts = SQLItems(url, lock_timeout_s=3.0, connections=2)
    unpickled = pickle.loads(pickle.dumps(facts))
    assert repr(unpickled) == repr(facts) and pickle.dumps(unpickled) == pickle.dumps(facts)
    for setting in ({"lock_timeout_s": 3.0}, {"connections": 2}):
        assert pickle.dumps(SQLItems(url, **setting)) != pickle.dumps(facts)
    asyncio.run(facts.close())
    asyncio.run(unpickled.close())
    in_memory = InMemoryItems()
    assert isinstance(pickle.loads(pickle.dumps(in_memory)), InMemoryItems)
    asyncio.run(in_memory.put(USER, items(1)))
    with pytest.raises(TypeError, match="that has items"):
        pickle.dumps(in_memory)


async def test_deleted_text_is_in_no_file(tmp_path: Path) -> None:
    """Case 54: neither in SQLite's file nor in its log, while the store is open; the owner's name is in no file
    either."""
    text = "She was born in Trondheim. " * 300
    sarah = Scope(user_id="sarah-connor", agent="agent-x")

    source = Source(session_id="sarah-session")
    secret_items = [
        MemoryItem(id=f"sarah-{number}", text=text, topic="Trondheim", source=source) for number in range(20)
    ]

    def words() -> set[bytes]:
        contents = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        return {word for word in (b"Trondheim", b"sarah", b"once-more", b"agent-x") if word in contents}

    facts = SQLItems(f"sqlite:///{tmp_path}/facts.db")
    await facts.put(USER, items(50))
    await facts.put(sarah, secret_items)
    assert words() == {b"Trondheim", b"sarah"}
    await purge(facts, "sarah-connor")
    assert words() == set()
    await facts.put(sarah, [MemoryItem(id="once-more", text=text, type=MemoryType.SKILL)])
    assert words() == {b"Trondheim", b"sarah", b"once-more", b"agent-x"}
    await facts.delete(sarah, ["once-more", "sarah-5"])
    assert words() == set()
    assert await count(facts, USER) == 50
    await facts.close()


def edit(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        assert connection.execute(statement).rowcount == 1
    connection.close()


@pytest.mark.parametrize(
    "change",
    ["text = x'ff'", "type = 'no'", "topic = x'00'", "spans = '[[1]]'", "aliases = '{'", "status = 'no'", "uses = 'x'"],
)
def test_a_corrupt_fact_raises_an_error_that_names_it_and_can_be_deleted(tmp_path: Path, change: str) -> None:
    url = f"sqlite:///{tmp_path}/facts.db"
    using(url, lambda facts: facts.put(USER, items(4)))
    edit(tmp_path / "facts.db", f"UPDATE turnwise_items SET {change} WHERE id = '0'")
    for use in (lambda facts: facts.query(USER), lambda facts: facts.get(USER, ["1", "0"]), lambda facts: facts.scan()):
        with pytest.raises(CorruptRecordError, match=r"^corrupt record item '0' of user 'u' in the store: ") as error:
            using(url, use)
        assert error.value.key == "item '0' of user 'u'"
    assert list(using(url, lambda facts: facts.query(USER, limit=2))) == items(4)[:1:-1]
    assert using(url, lambda facts: purge(facts, "u")) == ["0", "1", "2", "3"]


async def test_ids_of_deleted_facts_are_refused_for_ninety_days(
    make_items: MakeItems, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    facts = make_items()
    await facts.put(USER, items(3))
    assert await facts.delete(USER, ["0", "never there"]) == ["0"]
    now += TOMBSTONE_S - 60
    assert await purge(facts, "u", session_id="of nobody") == []
    assert await facts.delete(USER, ["1"]) == ["1"]
    late_items = [*items(2), replace(items(1)[0], id="never there")]
    assert await facts.put(USER, late_items) == [], "given again by who was away for long"
    now += 120
    assert await facts.delete(USER, ["2"]) == ["2"]
    assert await facts.put(USER, late_items) == ["0", "never there"]
    await facts.close()


def test_facts_of_a_newer_schema_are_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/facts.db"
    using(url, lambda facts: facts.put(USER, items(2)))
    edit(tmp_path / "facts.db", "UPDATE turnwise_meta SET value = '2' WHERE name = 'items_version'")
    with pytest.raises(SchemaVersionError, match="has schema version 2, this turnwise writes 1"):
        using(url, lambda facts: facts.query(USER))


def test_a_missing_database_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"unable to open database file; is it reachable, writable"):
        using(f"sqlite:///{tmp_path}/missing/facts.db", lambda facts: facts.query(USER))
    with pytest.raises(StoreURLError):
        SQLItems("redis://h")


def test_pages_are_read_by_an_index(tmp_path: Path) -> None:
    """So that a page costs the same however many items its user and others have."""

    async def plan(facts: SQLItems) -> str:
        await facts.put(USER, items(2))
        statements: list[tuple[str, Any]] = []

        class Spy:
            def execute(self, statement: str, values: Any) -> None:
                statements.append((statement, values))

            def fetchall(self) -> list[Any]:
                return []

        Statements(Spy(), SPACE).query(USER, ALL, None, 10)
        statement, values = statements[-1]
        with closing(sqlite3.connect(tmp_path / "facts.db")) as connection, connection:
            return str(connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall())

    plan_text = using(f"sqlite:///{tmp_path}/facts.db", plan)
    assert "turnwise_items_created (owner=?)" in plan_text and "TEMP B-TREE" not in plan_text


async def test_spaces_of_one_database_are_separate(url: str) -> None:
    stores = [SQLItems(url), SQLItems(url, space="other")]
    for number, store in enumerate(stores):
        assert await store.put(USER, items(number + 1)) == [str(index) for index in range(number + 1)]
    assert [len(await store.scan()) for store in stores] == [1, 2]
    assert await purge(stores[1], "u") == ["0", "1"]
    assert [len(await store.query(USER)) for store in stores] == [1, 0]
    assert await sweep(stores[1], 1e12) == 0 and await sweep(stores[0], 1e12) == 1
    await asyncio.gather(*(store.close() for store in stores))


def test_the_name_of_a_space_is_checked(tmp_path: Path) -> None:
    for space in ("", "a b", "ä", "x" * 65):
        with pytest.raises(ConfigError, match="space="):
            SQLItems(f"sqlite:///{tmp_path}/facts.db", space=space)


async def test_postgresql_keeps_null_characters_and_what_stands_for_them(database: str) -> None:
    texts = ["\0", "\ufdd00", "\ufdd0\ufdd0", "\0\ufdd00"]
    async with closing_async(SQLItems(database)) as facts:
        await facts.put(USER, [MemoryItem(id=str(number), text=text) for number, text in enumerate(texts)])
        assert [stored.item.text for stored in await facts.scan()] == texts


async def test_postgresql_deletes_any_number_of_sessions_by_the_same_statements(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So neither the driver nor the server reads a statement again; and it knows what it looks for."""
    said = list[str]()
    execute = psycopg.Cursor.execute

    def noted(cursor: Any, statement: Any, *args: Any, **options: Any) -> Any:
        said.append(str(statement))
        return execute(cursor, statement, *args, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", noted)
    async with closing_async(SQLItems(database)) as facts:
        statements = []
        for users in (range(2), range(2, 152)):
            for number in users:
                for name in ("goes \ufdd0", "stays"):
                    about = Source(session_id=name)
                    await facts.put(Scope(user_id=f"u{number}"), [MemoryItem(id=name, text=name, source=about)])
            said.clear()
            deleted = await facts.delete_sessions({f"u{number}": ["goes \ufdd0"] for number in users})
            assert deleted == {f"u{number}": ["goes \ufdd0"] for number in users}
            statements.append([text for text in said if "turnwise_item" in text])
        assert statements[0] == statements[1] and 5 < len(statements[0]) < 9
        assert {stored.item.id for stored in await facts.scan()} == {"stays"} and await facts.count() == 152
        said.clear()
        assert await facts.delete_sessions({f"unknown {number}": ["s"] for number in range(100)}) == {}
        assert len([text for text in said if "turnwise_item" in text or "lock" in text]) == 1, "nobody has anything"
