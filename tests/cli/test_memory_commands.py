"""`turnwise memory ls`, `search` and `forget`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from filled import HOSTILE, files, on_terminal, rows, text_of, turnwise

from turnwise.memory.longterm.base import MemoryItem, Scope, Source
from turnwise.memory.longterm.index.locations import ChromaFolder
from turnwise.memory.longterm.index.vector_index import VectorIndex
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.testing.embedding import HashEmbedding

ITEMS = [
    MemoryItem(
        id="home",
        text="Ann lives in Oslo",
        topic="home",
        source=Source(session_id="chat", turn_index=0),
        created_at=1e9,
    ),
    MemoryItem(id="tea", text="Ann likes green tea", source=Source(session_id="other", turn_index=2), created_at=2e9),
    MemoryItem(id="bad", text=HOSTILE, created_at=3e9),
]


def keep(url: str) -> str:
    async def work() -> None:
        memory = LexicalMemory(url)
        await memory.remember(Scope(user_id="ann"), ITEMS)
        await memory.remember(Scope(user_id="bob"), [MemoryItem(id="bike", text="Bob has a bike", created_at=4e9)])
        await memory.close()

    asyncio.run(work())
    return url


@pytest.fixture(params=["sqlite", "database", "redis_url"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return keep(f"sqlite:///{tmp_path}/m.db" if request.param == "sqlite" else request.getfixturevalue(request.param))


def test_items_are_listed_and_found(store: str) -> None:
    listed = turnwise("memory", "ls", store, "--user", "ann")
    assert [row["item"] for row in rows(listed.stdout)] == ["bad", "tea", "home"], listed.output
    assert {row["item"]: row["user"] for row in rows(turnwise("memory", "ls", store).stdout)}["bike"] == "bob"
    (page, rest) = (json.loads(turnwise("memory", "ls", store, "--user", "ann", "-n", "2", "--json").stdout), None)
    rest = json.loads(turnwise("memory", "ls", store, "--user", "ann", "--cursor", page["cursor"], "--json").stdout)
    assert [item["id"] for item in [*page["items"], *rest["items"]]] == ["bad", "tea", "home"]
    assert rest["items"][0]["source"] == {"session_id": "chat", "turn_index": 0}
    (item,) = rows(turnwise("memory", "search", store, "Where does Ann live?", "--user", "ann", "-n", "1").stdout)
    assert (item["item"], item["about"], item["session"]) == ("home", "home", "chat") and float(item["score"]) > 0
    assert rows(turnwise("memory", "search", store, "Where does Ann live?", "--user", "carl").stdout) == []


def test_what_is_forgotten_is_gone(store: str) -> None:
    assert turnwise("memory", "forget", store, "tea", "--user", "ann").exit_code == 1, "nobody said yes"
    forgotten = turnwise("memory", "forget", store, "tea", "--user", "ann", "--yes", "--json")
    assert forgotten.exit_code == 0 and json.loads(forgotten.stdout)["items"] == 1
    again = turnwise("memory", "forget", store, "tea", "--user", "ann", "-y")
    assert again.exit_code == 1 and "user 'ann' has no item 'tea'" in again.stderr
    assert turnwise("memory", "forget", store, "--user", "ann", "--session", "chat", "-y").stdout.startswith("1 items")
    assert [row["item"] for row in rows(turnwise("memory", "ls", store, "--user", "ann").stdout)] == ["bad"]
    assert turnwise("memory", "forget", store, "--user", "ann", "--all", "-y").exit_code == 0
    assert [row["item"] for row in rows(turnwise("memory", "ls", store).stdout)] == ["bike"]
    assert turnwise("memory", "forget", store, "--user", "bob", "-y").exit_code == 2, "it must be said what"


def test_reading_changes_nothing_and_makes_nothing(tmp_path: Path) -> None:
    store = keep(f"sqlite:///{tmp_path}/m.db")
    before = files(tmp_path)
    turnwise("memory", "search", store, "tea", "--user", "ann")
    turnwise("memory", "ls", store)
    assert files(tmp_path) == before
    for words in (["ls"], ["search", "tea", "--user", "ann"], ["forget", "--all", "-y", "--user", "ann"]):
        ran = turnwise("memory", words[0], f"sqlite:///{tmp_path}/none.db", *words[1:])
        assert ran.exit_code == 1 and "there is no file" in ran.stderr
    assert files(tmp_path) == before


def test_a_terminal_shows_items_that_do_not_steer_it(tmp_path: Path) -> None:
    shown = text_of(on_terminal("memory", "ls", keep(f"sqlite:///{tmp_path}/m.db"), columns=120))
    assert "\u241b[2J" in shown and "Ann lives in Oslo" in shown


def test_items_of_a_vector_memory_are_listed_found_and_forgotten(tmp_path: Path) -> None:
    """Its vectors go, too: of what was deleted, no text is in its files. What only reads adds no file."""
    url = f"sqlite:///{tmp_path}/memory.db"

    async def work() -> None:
        index = VectorIndex(ChromaFolder(f"{tmp_path}/memory.db-vectors"), HashEmbedding())
        memory = VectorMemory(SQLItems(url, space="vectors"), index)
        await memory.remember(Scope(user_id="ann"), ITEMS)
        await memory.close()

    asyncio.run(work())
    before = files(tmp_path)
    assert {row["item"] for row in rows(turnwise("memory", "ls", url, "--user", "ann").stdout)} == {
        "bad",
        "tea",
        "home",
    }
    (item,) = rows(turnwise("memory", "search", url, "Where does Ann live?", "--user", "ann", "-n", "1").stdout)
    assert item["item"] == "home"
    assert files(tmp_path) == before
    assert {row["user"] for row in rows(turnwise("memory", "ls", url).stdout)} == {"ann"}
    forgotten = turnwise("memory", "forget", url, "tea", "--user", "ann", "--yes", "--json")
    assert forgotten.exit_code == 0 and json.loads(forgotten.stdout)["items"] == 1, forgotten.output
    assert {row["item"] for row in rows(turnwise("memory", "ls", url, "--user", "ann").stdout)} == {"bad", "home"}
    assert rows(turnwise("memory", "ls", url, "--user", "ann", "--space", "items").stdout) == []
