"""`FullText`: items of users in a SQLite file, found by word."""

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.errors import CorruptRecordError, InvalidMemoryError, StoreClosedError, StoreURLError
from turnwise.memory.categories import MemoryType
from turnwise.memory.full_text import FullText
from turnwise.memory.full_text_rows import NOTHING, key_of
from turnwise.memory.long_term import MemoryItem, Scope, Source
from turnwise.memory.spans import Span
from turnwise.memory.terms import MAX_TERMS, match_expression, terms
from vectorbox import bytes_in, item, sync

ANN = Scope(user_id="ann")
LOOKALIKES = [
    "user-1",
    "user-10",
    "user_1",
    "user%",
    "%",
    "_",
    "'",
    '"',
    "'; DROP TABLE x; --",
    "User-1",
    " user-1",
    "ü",
    "文",
]


@pytest.fixture
def text(tmp_path: Path) -> FullText:
    return FullText(f"sqlite:///{tmp_path}/memory.db")


async def ids_with(text: FullText, user: str, query: str) -> list[str]:
    """Return the ids of the user's items that have any word of the query."""
    (found,) = await text.match([(user, terms(query))], {})
    rows = {row for rows in found.rows for row in rows}
    return [row.item.id for row in found.more if row.row in rows]


@given(st.text(max_size=300))
def test_any_query_is_safe(query: str) -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE VIRTUAL TABLE words USING fts5(word, tokenize = porter)")
    for term in terms(query):
        database.execute("SELECT * FROM words WHERE words MATCH ?", (match_expression(term.forms),)).fetchall()
    assert len(terms(query)) <= MAX_TERMS


@pytest.mark.parametrize(
    "query", ['"', "a AND", "NEAR(", "x*", "^x", "text:x", "-x", "(", "'; --", "\0", "", "?!", "the"]
)
@sync
async def test_what_is_syntax_elsewhere_is_text_here(text: FullText, query: str) -> None:
    await text.add([(ANN, [item("1", "x marks the spot")])])
    assert await ids_with(text, "ann", query) in ([], ["1"])


@sync
async def test_items_are_found_by_forms_accents_scripts_and_days(text: FullText) -> None:
    items = [
        item("go", "She went hiking"),
        item("cafe", "Das Café ist zu"),
        item("tokyo", "東京タワーに行った"),
        item("may", "nothing to see", created_at=1683547200.0),
    ]
    await text.add([(ANN, items)])
    assert await ids_with(text, "ann", "Did she go on a hike?") == ["go"]
    assert await ids_with(text, "ann", "cafe") == ["cafe"]
    assert await ids_with(text, "ann", "東京") == ["tokyo"]
    assert await ids_with(text, "ann", "What was in May?") == ["may"]


@sync
async def test_nobody_finds_what_is_anothers(text: FullText) -> None:
    await text.add([(Scope(user_id=user), [item("1", f"secret {at}")]) for at, user in enumerate(LOOKALIKES)])
    for at, user in enumerate(LOOKALIKES):
        (found,) = await text.match([(user, terms("secret"))], {})
        assert [row.item.text for row in found.more] == [f"secret {at}"]
        assert len(found.rows[0]) == 1
    assert await ids_with(text, "user", "secret") == []


@sync
async def test_items_come_out_as_they_went_in(text: FullText) -> None:
    whole = MemoryItem(
        id="'%_",
        text="NUL \0 and 🦀",
        type=MemoryType.SKILL,
        topic="t",
        source=Source(session_id="s", turn_index=3, spans=(Span("log", 1, 2),)),
        created_at=1.5,
        superseded_at=2.5,
        superseded_by="x",
    )
    await text.add([(Scope(user_id="ann", agent="hr"), [whole])])
    (found,) = await text.match([("ann", [])], {})
    (row,) = found.more
    assert (row.item, row.agent, row.key) == (whole, "hr", key_of("ann", whole.id, whole.text))
    (found,) = await text.match([("ann", [])], {"ann": found.revision})
    assert (found.base, found.more) == (found.revision, ())
    await text.add([(ANN, [item("2")])])
    (later,) = await text.match([("ann", [])], {"ann": found.revision})
    assert (later.base, [row.item.id for row in later.more]) == (found.revision, ["2"])
    await text.forget(ANN, ["2"])
    (last,) = await text.match([("ann", [])], {"ann": later.revision})
    assert (last.base, [row.item.id for row in last.more]) == (NOTHING, [whole.id])


@sync
async def test_an_id_is_kept_once_and_never_comes_back(text: FullText) -> None:
    assert len(await text.add([(ANN, [item("1"), item("1", "again"), item("2")])])) == 2
    assert await text.add([(ANN, [item("1", "again")])]) == []
    assert await text.forget(ANN, ["1", "3", "4"]) == 1
    assert await text.add([(ANN, [item("1"), item("3")])]) == []
    assert await text.forget(ANN, ["1"]) == 0
    assert await text.count() == 1


@sync
async def test_one_bad_item_keeps_all_out(text: FullText) -> None:
    for bad in (" ", "\ud800"):
        with pytest.raises(InvalidMemoryError):
            await text.add([(ANN, [item("1"), item("2", bad)])])
    assert await text.count() == 0


@sync
async def test_forgetting_a_session_or_a_user_leaves_the_rest(text: FullText) -> None:
    for user in ("ann", "bob"):
        items = [item(f"{name}{at}", source=Source(session_id=name)) for name in "st" for at in range(3)]
        await text.add([(Scope(user_id=user, agent="hr"), items)])
    assert await text.forget(Scope(user_id="ann", session_id="s"), None) == 3
    assert await text.forget(Scope(user_id="ann"), None) == 3
    assert await text.forget(Scope(user_id="ann"), None) == 0
    assert await text.count() == 6
    assert len(await text.dropped()) == 6


@sync
async def test_agents_change_only_what_they_see(text: FullText) -> None:
    hr, it = Scope(user_id="ann", agent="hr"), Scope(user_id="ann", agent="it")
    await text.add([(hr, [item("1", type=MemoryType.SKILL), item("2")])])
    assert await text.update(it, "1", "x", None, 9.0) is None
    assert await text.forget(it, ["1"]) == 0
    assert await text.update(it, "2", "changed", None, 9.0) is not None
    assert await text.update(hr, "1", "shared now", MemoryType.FACTS, 9.0) is not None
    assert await text.forget(it, ["1"]) == 1


@sync
async def test_what_needs_vectors_is_told_until_it_has_them(text: FullText) -> None:
    await text.add([(ANN, [item("1"), item("2")])])
    pending = await text.pending("a", 10)
    assert [one.key for one in pending] == [key_of("ann", "1", "A fact"), key_of("ann", "2", "A fact")]
    await text.update(ANN, "2", "B fact", None, 9.0)
    await text.mark(pending, "a")
    assert [one.text for one in await text.pending("a", 10)] == ["B fact"]
    assert len(await text.pending("b", 10)) == 2
    assert await text.dropped() == [key_of("ann", "2", "A fact")]
    await text.update(ANN, "2", "A fact", None, 9.0)
    assert await text.dropped() == [key_of("ann", "2", "B fact")]


@sync
async def test_a_search_of_the_files_bytes_finds_nothing_of_what_was_forgotten(text: FullText, tmp_path: Path) -> None:
    await text.add(
        [(ANN, [item(str(at), f"xylophone{at} quizzical") for at in range(50)] + [item("stays", "lighthouse")])]
    )
    await text.forget(ANN, [str(at) for at in range(50)])
    await text.scrub()
    await text.close()
    held = bytes_in(tmp_path)
    assert b"lighthous" in held
    assert b"xylophon" not in held
    assert b"quizzic" not in held


@sync
async def test_a_corrupt_record_is_told(text: FullText, tmp_path: Path) -> None:
    await text.add([(ANN, [item("1")])])
    with sqlite3.connect(tmp_path / "memory.db") as database:
        database.execute("UPDATE turnwise_vector_items SET record = '{}'")
    with pytest.raises(CorruptRecordError, match="'1'"):
        await text.match([("ann", [])], {})


@sync
async def test_other_databases_are_refused_and_closing_is_final(tmp_path: Path) -> None:
    with pytest.raises(StoreURLError):
        FullText("postgresql://user@host/name")
    text = FullText(f"sqlite:///{tmp_path}/memory.db")
    await text.close()
    with pytest.raises(StoreClosedError):
        await text.count()
