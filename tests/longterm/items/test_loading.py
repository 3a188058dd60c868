"""What `SQLItems` gives to memories that hold indexes and vectors of its items."""

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from memories.vector_memories import bytes_in, item
from stored.sql_traffic import driver_connections
from turnwise.errors import CorruptRecordError, InvalidMemoryError, StoreClosedError, StoreURLError
from turnwise.memory.conversation.spans import Span
from turnwise.memory.longterm.base import MemoryItem, Scope, Source
from turnwise.memory.longterm.items.changes import update
from turnwise.memory.longterm.items.rows import NOTHING, key_of
from turnwise.memory.longterm.items.rules import TOMBSTONE_S
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall.ranking import Weights
from turnwise.memory.longterm.recall.user_index import find, index_of
from turnwise.memory.stores.sql.touched_pages import noting

ANN = Scope(user_id="ann")


@pytest.fixture
def text(tmp_path: Path) -> Iterator[SQLItems]:
    """A store that is closed after the test."""
    text = SQLItems(f"sqlite:///{tmp_path}/memory.db")
    yield text
    asyncio.run(text.close())


async def ids_with(text: SQLItems, user: str, query: str) -> list[str]:
    """Return the ids of the user's items that have a word of the query."""
    loaded = await text.load([user], {})
    items = [row.item for row in loaded[user].more]
    loose = Weights(reach=0, margin=float("-inf"), part=0.0)
    return [item.id for item in find(index_of(items), query, limit=1000, weights=loose)]


async def test_items_are_found_by_forms_accents_scripts_and_days(text: SQLItems) -> None:
    items = [
        item("go", "She goes hiking"),
        item("cafe", "Das Café ist zu"),
        item("tokyo", "東京タワーに行った"),
        item("may", "nothing to see", created_at=1683547200.0),
    ]
    await text.add([(ANN, items)])
    assert await ids_with(text, "ann", "Did she go on a hike?") == ["go"]
    assert await ids_with(text, "ann", "cafe") == ["cafe"]
    assert await ids_with(text, "ann", "東京") == ["tokyo"]
    assert await ids_with(text, "ann", "What was in May?") == ["may"]


async def test_ids_of_forgotten_items_are_refused_for_ninety_days(
    text: SQLItems, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    items = [item("1", "a zebra"), item("2", "a zebra")]
    await text.add([(ANN, items)])
    await text.delete(ANN, ["1"])
    now += TOMBSTONE_S - 60
    await text.delete(ANN, ["2"])
    await text.add([(ANN, items)])
    assert await ids_with(text, "ann", "zebra") == []
    now += 120
    await text.delete(ANN, ["3"])
    await text.add([(ANN, items)])
    assert await ids_with(text, "ann", "zebra") == ["1"]


async def test_items_are_returned_as_they_were_saved(text: SQLItems) -> None:
    full = MemoryItem(
        id="'%_",
        text="NUL \0 and 🦀",
        type=MemoryType.SKILL,
        topic="t",
        source=Source(session_id="s", turn_index=3, spans=(Span("log", 1, 2),)),
        created_at=1.5,
        superseded_at=2.5,
        superseded_by="x",
    )
    await text.add([(Scope(user_id="ann", agent="hr"), [full])])
    loaded = (await text.load(["ann"], {}))["ann"]
    (row,) = loaded.more
    assert (row.item, row.agent, row.key) == (full, "hr", key_of("ann", full.id, full.text))
    loaded = (await text.load(["ann"], {"ann": loaded.revision}))["ann"]
    assert (loaded.base, loaded.more) == (loaded.revision, [])
    await text.add([(ANN, [item("2")])])
    later = (await text.load(["ann"], {"ann": loaded.revision}))["ann"]
    assert (later.base, [row.item.id for row in later.more]) == (loaded.revision, ["2"])
    await text.delete(ANN, ["2"])
    last = (await text.load(["ann"], {"ann": later.revision}))["ann"]
    assert (last.base, [row.item.id for row in last.more]) == (NOTHING, [full.id])


async def test_one_invalid_item_refuses_the_whole_call(text: SQLItems) -> None:
    for bad in (" ", "\ud800"):
        with pytest.raises(InvalidMemoryError):
            await text.add([(ANN, [item("1"), item("2", bad)])])
    assert await text.count() == 0


async def test_forgetting_a_session_or_a_user_keeps_the_others(text: SQLItems) -> None:
    for user in ("ann", "bob"):
        items = [item(f"{name}{number}", source=Source(session_id=name)) for name in "st" for number in range(3)]
        await text.add([(Scope(user_id=user, agent="hr"), items)], with_vectors=True)
    assert len(await text.delete(Scope(user_id="ann", session_id="s"))) == 3
    assert len(await text.delete(Scope(user_id="ann"))) == 3
    assert len(await text.delete(Scope(user_id="ann"))) == 0
    assert await text.count() == 6
    assert len(await text.dropped()) == 6


async def test_agents_change_only_what_they_see(text: SQLItems) -> None:
    hr, it = Scope(user_id="ann", agent="hr"), Scope(user_id="ann", agent="it")
    await text.add([(hr, [item("1", type=MemoryType.SKILL), item("2")])])
    assert await update(text, it, "1", "x", at=9.0) is None
    assert len(await text.delete(it, ["1"])) == 0
    assert await update(text, it, "2", "changed", at=9.0) is not None
    assert await update(text, hr, "1", "shared now", type=MemoryType.FACTS, at=9.0) is not None
    assert len(await text.delete(it, ["1"])) == 1


async def test_items_without_vectors_are_pending_until_they_have_them(text: SQLItems) -> None:
    await text.add([(ANN, [item("1"), item("2")])], with_vectors=True)
    await text.add([(ANN, [item("without")])])
    pending = await text.pending("a", 10)
    assert [entry.key for entry in pending] == [key_of("ann", "1", "A fact"), key_of("ann", "2", "A fact")]
    await update(text, ANN, "2", "B fact", at=9.0)
    await text.mark(pending, "a")
    assert [entry.text for entry in await text.pending("a", 10)] == ["B fact"]
    assert len(await text.pending("b", 10)) == 2
    assert await text.dropped() == [key_of("ann", "2", "A fact")]
    await update(text, ANN, "2", "A fact", at=9.0)
    assert await text.dropped() == [key_of("ann", "2", "B fact")]


async def test_keys_of_vectors_are_listed_from_the_latest_item_on(text: SQLItems) -> None:
    await text.add([(ANN, [item("1"), item("2"), item("3")])], with_vectors=True)
    first, second, third = await text.pending("a", 10)
    await text.mark([first, third], "a")
    assert await text.keys("a") == ([third.key, first.key], [second.key])


async def test_words_of_forgotten_items_are_in_no_file(text: SQLItems, tmp_path: Path) -> None:
    await text.add(
        [
            (
                ANN,
                [item(str(number), f"xylophone{number} quizzical") for number in range(50)]
                + [item("stays", "lighthouse")],
            )
        ]
    )
    await text.delete(ANN, [str(number) for number in range(50)])
    await text.close()
    contents = bytes_in(tmp_path)
    assert b"lighthouse" in contents
    assert b"xylophon" not in contents
    assert b"quizzic" not in contents


async def test_deleting_one_user_writes_only_that_users_pages(tmp_path: Path) -> None:
    """In pages of the file that were written, and in rows: as many when others have ten times as much."""
    counts = []
    for user_count in (10, 100):
        text = SQLItems(f"sqlite:///{tmp_path}/{user_count}.db")
        with driver_connections() as connections:
            for user in range(user_count):
                items = [
                    item(str(number), f"fact {number} of user {user}: the zyzzyva is a weevil {number}")
                    for number in range(20)
                ]
                await text.add([(Scope(user_id=f"user-{user}"), items)])
            await text.count()
        with closing(sqlite3.connect(tmp_path / f"{user_count}.db")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        before = sum(connection.total_changes for connection in connections)
        pages: dict[Path, set[int]] = {}
        with noting(pages):
            assert len(await text.delete(Scope(user_id="user-5"))) == 20
        after = sum(connection.total_changes for connection in connections)
        counts.append((sum(map(len, pages.values())), after - before))
        assert await text.count() == 20 * (user_count - 1)
        await text.close()
        assert b"of user 5:" not in (tmp_path / f"{user_count}.db").read_bytes()
    (few, rows), (many, more_rows) = counts
    assert few > 0 and many < 2 * few and rows == more_rows


async def test_many_items_are_deleted_in_several_transactions(text: SQLItems, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.memory.longterm.items.sql.AT_ONCE", 3)
    await text.add([(ANN, [item(str(number), f"xylophone {number}") for number in range(20)])])
    done: list[str] = []

    async def forget() -> None:
        assert len(await text.delete(ANN)) == 20
        done.append("forgotten")

    async def write() -> None:
        for number in range(3):
            await text.add([(Scope(user_id="bob"), [item(str(number))])])
            done.append("written")

    await asyncio.gather(forget(), write())
    assert done == ["written", "written", "written", "forgotten"]
    assert await text.count() == 3
    assert await ids_with(text, "ann", "xylophone") == []


async def test_a_corrupt_record_is_an_error(text: SQLItems, tmp_path: Path) -> None:
    await text.add([(ANN, [item("1")])])
    with closing(sqlite3.connect(tmp_path / "memory.db")) as database, database:
        database.execute("UPDATE turnwise_items SET spans = '{'")
    with pytest.raises(CorruptRecordError, match="'1'"):
        await text.load(["ann"], {})


async def test_other_databases_are_refused_and_closing_is_final(tmp_path: Path) -> None:
    with pytest.raises(StoreURLError):
        SQLItems("redis://host")
    text = SQLItems(f"sqlite:///{tmp_path}/memory.db")
    await text.close()
    with pytest.raises(StoreClosedError):
        await text.count()
