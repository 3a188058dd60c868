"""Working memory: notes and their formats, on each store of notes."""

import asyncio
import contextlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator

from memories.item_verbs import count
from stored.open_stores import closing
from turnwise.errors import ConfigError, CorruptRecordError, InvalidInputError, StoreClosedError, WorkingMemoryError
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.items.base import ItemStore
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.recall.quoting import quote
from turnwise.memory.stores.conformance.fixtures import IDS, TEXT
from turnwise.memory.working.formats import Form, FreeText, JsonForm, Markdown, merge_json
from turnwise.memory.working.memory import WorkingMemory, forget_apart

SESSION = Scope(user_id="u", session_id="s", agent="a")
USER = Scope(user_id="u")

MakeNotes = Callable[[], ItemStore]


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def make_notes(request: pytest.FixtureRequest, tmp_path: Path) -> MakeNotes:
    """Opens stores on the same data, empty at first."""
    if request.param == "memory":
        notes = InMemoryItems()
        return lambda: notes
    url = f"sqlite:///{tmp_path}/notes.db" if request.param == "sqlite" else request.getfixturevalue("database")
    return lambda: SQLItems(url, space="notes")


class Profile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    age: int | None = Field(default=None, ge=0)
    tags: list[str] = []
    home: dict[str, str] = {}

    @field_validator("name")
    @classmethod
    def _is_one_word(cls, name: str) -> str:
        if " " in name:
            raise ValueError("one word, please")
        return name


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3}},
    "required": ["n"],
    "additionalProperties": False,
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=3),
    max_leaves=8,
)


def has_null(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and any(map(has_null, value.values())))


def test_objects_are_merged_lists_joined_null_removes_and_the_rest_is_replaced() -> None:
    before = {"a": {"b": 1, "c": [1, 2]}, "d": "old", "e": 5, "f": [1]}
    content = {
        "a": {"c": [2, 3, 2], "x": None, "y": {"z": None}},
        "d": "new",
        "e": None,
        "f": {"g": 1},
        "h": [[1], [1]],
    }
    copies = json.dumps([before, content])
    merged = {"a": {"b": 1, "c": [1, 2, 3], "y": {}}, "d": "new", "f": {"g": 1}, "h": [[1]]}
    assert merge_json(before, content) == merged
    assert json.dumps([before, content]) == copies
    assert merge_json({"l": [1, True, 1.0, "1", {"b": 1, "a": 2}]}, {"l": [{"a": 2, "b": 1}, 1]})["l"] == [
        *(1, True, 1.0, "1"),
        {"b": 1, "a": 2},
    ]


@given(st.dictionaries(st.text("ab", max_size=1), json_values), st.dictionaries(st.text("ab", max_size=1), json_values))
def test_merging_twice_is_the_same_as_merging_once(before: dict[str, Any], content: dict[str, Any]) -> None:
    once = merge_json(before, content)
    assert merge_json(once, content) == once
    assert merge_json(before, {}) == before
    assert set(once) == (set(before) | set(content)) - {key for key, value in content.items() if value is None}
    assert not has_null(merge_json({}, content))


async def test_a_note_is_replaced_merged_and_stored(make_notes: MakeNotes) -> None:
    memory, other_memory = (WorkingMemory(make_notes()) for _ in range(2))
    assert await memory.read(SESSION) == ""
    assert await memory.section(SESSION) == ""
    assert await memory.merge(SESSION, "Plans a trip.\n") == "Plans a trip."
    assert await other_memory.merge(SESSION, "To Narvik.") == "Plans a trip.\n\nTo Narvik."
    assert await memory.replace(SESSION, TEXT) == TEXT.strip() == await other_memory.read(SESSION)
    assert await memory.section(SESSION) == f"<working_memory>\n{quote(TEXT.strip())}\n</working_memory>"
    assert await memory.replace(SESSION, "") == ""
    assert await other_memory.clear(SESSION) is True and await memory.clear(SESSION) is False
    for handle in (memory, memory, other_memory):
        await handle.close()
    with pytest.raises(StoreClosedError):
        await memory.read(SESSION)
    with pytest.raises(StoreClosedError):
        await memory.merge(SESSION, "x")


@pytest.mark.parametrize(
    ("form", "first", "wrong"),
    [
        (FreeText(), "a", [("replace", 5), ("merge", {"a": 1}), ("merge", "\ud800"), ("merge", "x" * 201)]),
        (
            Markdown("# Goal\n\n## Steps #"),
            "# Goal\nrest\n## Steps\n- one\n# More",
            [("replace", "# Goal"), ("replace", "## Steps\n# Goal"), ("replace", "#Goal\n## Steps"), ("replace", 5)],
        ),
        (
            JsonForm(Profile),
            {"name": "Sarah", "tags": ["x"]},
            [
                *[("merge", {"age": -1}), ("merge", {"agE": 1}), ("merge", {"name": "two words"}), ("merge", [])],
                *[("merge", {"name": None}), ("merge", None), ("replace", {"age": 5}), ("replace", '{"name": "x"')],
                *[("replace", "[]"), ("replace", {"name": float("nan")}), ("replace", {1: set()})],
                ("merge", {"tags": ["x" * 201]}),
            ],
        ),
        (
            JsonForm(SCHEMA),
            '{"n": 1, "tags": ["a", "b"]}',
            [("merge", {"tags": ["c", "d"]}), ("merge", {"n": "1"}), ("replace", {}), ("merge", {"x": 1})],
        ),
    ],
)
async def test_content_that_does_not_fit_the_format_is_refused_and_nothing_changes(
    make_notes: MakeNotes, form: Form, first: Any, wrong: list[tuple[str, Any]]
) -> None:
    memory = WorkingMemory(make_notes(), form=form, max_bytes=200)
    for start in (None, first):
        if start is not None:
            await memory.replace(SESSION, start)
        before = await memory.read(SESSION)
        for verb, content in wrong:
            with pytest.raises(WorkingMemoryError, match=r"^the change to .* session 's' of user 'u' is invalid"):
                await getattr(memory, verb)(SESSION, content)
            assert await memory.read(SESSION) == before, (verb, content)
    await memory.close()
    assert issubclass(WorkingMemoryError, InvalidInputError)


async def test_a_schema_is_checked_after_the_merge() -> None:
    memory = WorkingMemory(InMemoryItems(), form=JsonForm(Profile, initial={"tags": ["new"]}))
    assert json.loads(await memory.read(SESSION)) == {"tags": ["new"]}
    with pytest.raises(WorkingMemoryError, match="name: Field required"):
        await memory.merge(SESSION, {"age": 40})
    text = await memory.merge(SESSION, {"name": "Zoë", "tags": ["new", "old"], "home": {"city": "Graz"}})
    assert json.loads(text) == {"name": "Zoë", "tags": ["new", "old"], "home": {"city": "Graz"}} and "Zoë" in text
    text = await memory.merge(SESSION, '{"age": "41", "tags": null, "home": {"street": "A", "city": null}}')
    assert json.loads(text) == {"name": "Zoë", "age": 41, "home": {"street": "A"}}
    assert json.loads(await memory.replace(SESSION, {"name": "Sarah"})) == {"name": "Sarah"}


async def test_markdown_begins_with_its_template() -> None:
    memory = WorkingMemory(InMemoryItems(), form=Markdown("# Goal\n"), per="user")
    assert await memory.read(SESSION) == "# Goal"
    assert await memory.merge(SESSION, "Narvik") == "# Goal\n\nNarvik" == await memory.read(USER)
    assert await memory.clear(USER) is True and await memory.clear(USER) is False
    assert await memory.read(USER) == "# Goal"


async def test_each_session_and_each_user_has_its_own_note(make_notes: MakeNotes) -> None:
    """Case 50: whatever the ids are."""
    sessions, users = WorkingMemory(make_notes()), WorkingMemory(make_notes(), per="user")
    for name in IDS:
        await sessions.replace(Scope(user_id=name, session_id=name), f"session {name}")
        await sessions.replace(Scope(user_id=name, session_id="x"), f"x {name}")
        await users.replace(Scope(user_id=name, session_id="any", agent="any"), f"user {name}")
    for name in IDS:
        assert await sessions.read(Scope(user_id=name, session_id=name)) == f"session {name}".strip()
        assert await users.read(Scope(user_id=name)) == f"user {name}".strip()
        assert await users.forget(Scope(user_id=name, session_id="nothing")) == 0
    for name in IDS:
        assert await sessions.forget(Scope(user_id=name, session_id=name)) == 1  # so nobody before took it away
        assert await users.forget(Scope(user_id=name)) == 2
        assert await users.read(Scope(user_id=name)) == ""
    await asyncio.gather(sessions.close(), users.close())


async def test_a_user_s_note_is_no_session_s(make_notes: MakeNotes) -> None:
    of_user, of_session = WorkingMemory(make_notes(), per="user"), WorkingMemory(make_notes())
    scopes = {name: Scope(user_id="u", session_id=name) for name in ("user", "session user", "s")}
    for name, scope in scopes.items():
        assert await of_session.read(scope) == ""
        assert await of_session.replace(scope, name) == name
    assert await of_user.read(USER) == "" and await of_user.replace(USER, "the user's") == "the user's"
    assert await of_session.forget(scopes["user"]) == 1
    assert [await of_session.read(scope) for scope in scopes.values()] == ["", "session user", "s"]
    assert await of_user.clear(USER) and not await of_user.clear(USER)
    assert await of_user.forget(USER) == 2
    await asyncio.gather(of_user.close(), of_session.close())


async def test_an_empty_note_differs_from_none_and_a_deleted_note_can_be_written_again(make_notes: MakeNotes) -> None:
    memory = WorkingMemory(make_notes(), form=Markdown("Write here."))
    for _ in range(2):
        assert await memory.read(SESSION) == "Write here."
        assert await memory.replace(SESSION, "") == "" == await memory.read(SESSION)
        assert await memory.clear(SESSION)
    await memory.close()


async def test_notes_that_are_forgotten_apart_leave_no_connection_open(database: str) -> None:
    memory = WorkingMemory(SQLItems(database, space="notes"))
    assert await memory.replace(SESSION, "Trondheim") == "Trondheim"
    with psycopg.connect(database, autocommit=True) as observer:

        def connections() -> int:
            of_database = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
            return observer.execute(of_database).rowcount

        before = connections()
        assert [await forget_apart(memory, USER) for _ in range(2)] == [1, 0]
        async with asyncio.timeout(30):
            while connections() > before:
                await asyncio.sleep(0.02)
    assert await memory.read(SESSION) == ""
    await memory.close()


async def test_no_concurrent_merge_is_lost(make_notes: MakeNotes) -> None:
    form = JsonForm({"type": "object"})
    handles = [WorkingMemory(make_notes(), form=form, per="user") for _ in range(3)]
    await asyncio.gather(
        *(handles[number % 3].merge(SESSION, {"seen": [number], str(number): number}) for number in range(30))
    )
    notes = json.loads(await handles[0].read(SESSION))
    assert sorted(notes.pop("seen")) == list(range(30)) and notes == {str(number): number for number in range(30)}
    for handle in handles:
        await handle.close()


def test_a_note_of_a_session_needs_a_session_and_settings_are_checked() -> None:
    memory = WorkingMemory(InMemoryItems())
    for scope in (USER, Scope(user_id="", session_id="s"), Scope(user_id="u", session_id="\0")):
        for call in (memory.read(scope), memory.merge(scope, "x"), memory.clear(scope)):
            with pytest.raises(WorkingMemoryError):
                asyncio.run(call)
    with pytest.raises(ConfigError, match=r"WorkingMemory.per='all'"):
        WorkingMemory(InMemoryItems(), per="all")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"max_bytes=3"):
        WorkingMemory(InMemoryItems(), form=Markdown("# Goal"), max_bytes=3)
    for schema in (int, {"type": "no"}, "x"):
        with pytest.raises(ConfigError, match=r"JsonForm.schema"):
            JsonForm(schema)  # type: ignore[arg-type]


async def test_notes_share_a_file_with_facts_and_deleted_notes_are_overwritten(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/all.db"

    def is_legible() -> bool:
        return any(b"Trondheim" in path.read_bytes() for path in tmp_path.iterdir())

    facts, memory = SQLItems(url), WorkingMemory(SQLItems(url, space="notes"))
    await asyncio.gather(facts.put(USER, [MemoryItem(id="1", text="x")]), memory.replace(SESSION, "Trondheim " * 99))
    assert is_legible()
    assert await memory.forget(SESSION) == 1
    assert not is_legible()
    assert await count(facts, USER) == 1
    await asyncio.gather(facts.close(), memory.close())


def test_a_store_pickles_as_its_settings(tmp_path: Path) -> None:
    memory = WorkingMemory(SQLItems(f"sqlite:///{tmp_path}/n.db", space="notes"), form=JsonForm(Profile), max_bytes=100)
    unpickled = pickle.loads(pickle.dumps(memory))

    async def use() -> str:
        await memory.merge(SESSION, {"name": "Sarah"})
        text = await unpickled.read(SESSION)
        await asyncio.gather(memory.close(), unpickled.close())
        return str(text)

    assert json.loads(asyncio.run(use())) == {"name": "Sarah"}
    with pytest.raises(TypeError, match="use SQLItems"):
        pickle.dumps(WorkingMemory(InMemoryItems()))


def test_a_corrupt_note_is_named(tmp_path: Path) -> None:
    import sqlite3

    async def use(call: str) -> Any:
        async with closing(WorkingMemory(SQLItems(f"sqlite:///{tmp_path}/n.db", space="notes"))) as memory:
            return await (memory.replace(SESSION, "x") if call == "replace" else getattr(memory, call)(SESSION))

    asyncio.run(use("replace"))
    with contextlib.closing(sqlite3.connect(tmp_path / "n.db")) as connection, connection:
        connection.execute("UPDATE turnwise_items SET text = '{'")
    connection.close()
    for call in ("read", "replace"):
        with pytest.raises(CorruptRecordError, match="note of session 's' of user 'u'"):
            asyncio.run(use(call))
    assert asyncio.run(use("forget")) == 1
    assert asyncio.run(use("read")) == ""
