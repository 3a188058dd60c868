"""Where static facts come from: lists with ids, JSON files, tables of an application's own."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from stored.open_stores import closing
from turnwise.errors import ConfigError, InvalidMemoryError, StoreError, StoreURLError
from turnwise.memory.longterm.base import MemoryItem, Scope, is_local, trouble_of
from turnwise.memory.longterm.fact_table import FactTable
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.static import StaticMemory

ANN = Scope(user_id="ann")
FACTS = [
    {"id": "fact1", "content": "The capital of France is Paris."},
    {"id": "fact2", "content": "The tallest mountain in the world is Mount Everest."},
]


async def facts_of(memory: StaticMemory) -> list[tuple[str, str]]:
    return [(item.id, item.text) for item in await memory.list_items(ANN)]


async def test_facts_have_ids_of_their_own() -> None:
    memory = StaticMemory(
        [*FACTS, "No id.", MemoryItem(id="x", text="An item."), {"text": "By text.", "type": "skill"}]
    )
    assert await facts_of(memory) == [
        ("fact1", "The capital of France is Paris."),
        ("fact2", "The tallest mountain in the world is Mount Everest."),
        *(("3", "No id."), ("x", "An item."), ("5", "By text.")),
    ]
    assert [item.id for item in await memory.recall(ANN, "What is the capital of France?", limit=1)] == ["fact1"]
    wrong: list[Any] = [
        {"id": "a"},
        {"id": "a", "content": " "},
        {"text": "x", "colour": "red"},
        7,
        {"text": "x", "type": "y"},
    ]
    for wrong_fact in wrong:
        with pytest.raises(InvalidMemoryError):
            StaticMemory([wrong_fact])
    with pytest.raises(ConfigError, match=r"fact1.*two facts"):
        StaticMemory([FACTS[0], FACTS[0]])
    for one in (FACTS[0], {"key": "rooms", "value": "12"}):
        with pytest.raises(ConfigError, match="is one fact: pass a list"):
            StaticMemory(one)


async def test_a_fact_may_be_a_key_and_its_value() -> None:
    memory = StaticMemory([{"key": "opening hours", "value": "nine to five"}, {"key": "rooms", "value": 12, "id": "r"}])
    assert await facts_of(memory) == [("1", "opening hours: nine to five"), ("r", "rooms: 12")]
    (first, *_) = await memory.recall(ANN, "What are your opening hours?")
    assert (first.id, first.topic) == ("1", "opening hours")


@pytest.mark.parametrize(
    "facts",
    [
        {"opening hours": "nine to five", "rooms": "12"},
        [("opening hours", "nine to five"), ("rooms", "12")],
    ],
    ids=["mapping", "tuples"],
)
async def test_facts_may_be_pairs(facts: Any) -> None:
    memory = StaticMemory(facts)
    assert await facts_of(memory) == [("1", "opening hours: nine to five"), ("2", "rooms: 12")]
    (first, *_) = await memory.recall(ANN, "What are your opening hours?")
    assert (first.id, first.topic) == ("1", "opening hours")
    for wrong in ([("a",)], [("a", "b", "c")], [("rooms", 12)], {"rooms": 12}, {"rooms": ""}, {"": ""}):
        with pytest.raises(InvalidMemoryError):
            StaticMemory(wrong)  # type: ignore[arg-type]


async def test_a_list_and_a_store_are_one_memory(tmp_path: Path) -> None:
    """Of two facts with the same id, that of the list counts. The store may be a URL, and be given alone."""
    url = f"sqlite:///{tmp_path}/facts.db"
    stored = [MemoryItem(id="fact1", text="Paris is in Texas."), MemoryItem(id="s", text="The canteen closes at two.")]
    async with closing(SQLItems(url)) as store:
        await store.put(Scope(user_id="everyone"), stored, at=1.0)
    async with closing(pickle.loads(pickle.dumps(StaticMemory(FACTS, url, all_up_to=0)))) as memory:
        assert [item.id for item in await memory.recall(ANN, "When does the canteen close?")][:1] == ["s"]
        assert [item.text for item in await memory.recall(ANN, "Paris")] == [FACTS[0]["content"]]
        items, cursor = list[MemoryItem](), None
        while True:
            page = await memory.list_items(ANN, cursor=cursor, limit=1)
            items += page
            if (cursor := page.cursor) is None:
                break
        assert [item.id for item in items] == ["fact1", "fact2", "s"]
        assert is_local(memory)
    async with closing(StaticMemory(url)) as memory:
        assert {item.id for item in await memory.list_items(ANN)} == {"fact1", "s"}
    with pytest.raises(ConfigError, match="second store"):
        StaticMemory(url, url)


async def test_static_facts_are_found_by_vectors_too() -> None:
    facts = ["Staff may work from abroad for twenty days.", *(f"Room {number} has a lamp." for number in range(12))]

    class Meaning:
        def __call__(self, input: Sequence[str]) -> list[list[float]]:
            return [[1.0, 0.0] if "abroad" in text or "telecommute" in text else [0.0, 1.0] for text in input]

    words, vectors = (StaticMemory(facts, embedding=embedding) for embedding in (None, Meaning()))
    for memory, expected in ((words, []), (vectors, [facts[0]])):
        question = "Can I telecommute?"
        assert [item.text for item in await memory.recall(ANN, question)] == expected
        assert [item.text for item in (await memory.remind(ANN, question)).items] == expected
        assert (await memory.remind(ANN, "Hello!")).items == []
        await memory.close()


async def test_facts_of_json_files_keep_their_ids(tmp_path: Path) -> None:
    expected = [("fact1", FACTS[0]["content"]), ("fact2", FACTS[1]["content"]), ("3", "Plain.")]
    facts = [*FACTS, "Plain."]
    (tmp_path / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    (tmp_path / "facts.jsonl").write_text("\n".join(map(json.dumps, facts)), encoding="utf-8")
    for name in ("facts.json", "facts.jsonl"):
        memory = StaticMemory.from_file(tmp_path / name, topic="geography", type=MemoryType.GENERAL)
        assert await facts_of(memory) == expected
        assert {(item.topic, item.type) for item in await memory.list_items(ANN)} == {("geography", MemoryType.GENERAL)}
    for text in ("{}", "[", '["a"'):
        (tmp_path / "bad.json").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"bad\.json"):
            StaticMemory.from_file(tmp_path / "bad.json")


def engine_of(url: str) -> sa.Engine:
    return sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))


def write(url: str, *statements: str) -> None:
    engine = engine_of(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


MADE = (
    'CREATE TABLE "HR policies" (number INTEGER PRIMARY KEY, "the text" TEXT, about TEXT)',
    "INSERT INTO \"HR policies\" VALUES (2, 'Sick leave needs a note.', NULL), (1, 'Vacation is 25 days.', 'leave')",
)


async def test_a_table_of_an_application_is_read_and_never_written(url: str) -> None:
    write(url, *MADE)
    table = FactTable(url, "HR policies", id="number", text="the text", topic="about", refresh_s=0)
    memory: StaticMemory = pickle.loads(pickle.dumps(StaticMemory(table)))
    async with closing(memory):
        assert is_local(memory) is url.startswith("sqlite")
        assert await facts_of(memory) == [("1", "Vacation is 25 days."), ("2", "Sick leave needs a note.")]
        (first, *_) = await memory.recall(ANN, "How many days of vacation do I get?")
        assert (first.id, first.topic, first.type) == ("1", "leave", MemoryType.FACTS)
        write(url, 'UPDATE "HR policies" SET "the text" = \'Vacation is 30 days.\' WHERE number = 1')
        assert (await facts_of(memory))[0] == ("1", "Vacation is 30 days.")
        write(url, 'ALTER TABLE "HR policies" RENAME TO elsewhere')
        recalled = await memory.recall(ANN, "How many days of vacation do I get?")
        assert recalled[0].text == "Vacation is 30 days." and "HR policies" in (trouble_of(recalled) or "")
        write(url, 'ALTER TABLE elsewhere RENAME TO "HR policies"')
        assert trouble_of(await memory.recall(ANN, "vacation days")) is None
    engine = engine_of(url)
    assert sa.inspect(engine).get_table_names() == ["HR policies"]
    engine.dispose()


async def test_rows_are_read_again_after_a_while_only(url: str) -> None:
    write(url, *MADE)
    async with closing(FactTable(url, "HR policies", id="number", text="the text")) as table:
        assert len(await table.items()) == 2
        write(url, 'DELETE FROM "HR policies"')
        assert len(await table.items()) == 2


async def test_tables_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    write(url, *MADE, 'INSERT INTO "HR policies" VALUES (3, NULL, NULL)')
    async with closing(StaticMemory(FactTable(url, "HR policies", id="number", text="the text"))) as memory:
        with pytest.raises(InvalidMemoryError, match=r"'3'.*no id or no text"):
            await memory.recall(ANN, "vacation")
    async with closing(FactTable(url, "HR policies", id="about", text="number")) as table:
        with pytest.raises(InvalidMemoryError, match="no id or no text"):
            await table.items()
    async with closing(FactTable(url, "nowhere")) as table:
        with pytest.raises(StoreError, match="nowhere"):
            await table.items()
    with pytest.raises(StoreURLError):
        FactTable("redis://host", "t")
    with pytest.raises(ConfigError, match="refresh_s"):
        FactTable(url, "t", refresh_s=-1)
