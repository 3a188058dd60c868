"""Searches of files for the bytes of deleted texts."""

import json
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from turnwise.memory.longterm import byte_search
from turnwise.memory.longterm.byte_search import (
    LEAST,
    STRETCH,
    Found,
    Needles,
    Part,
    fingerprints_of,
    forms,
    parts_of,
    pieces,
    print_of,
)

SALT = b"pepper and salt."


def search(paths: list[Path], texts: list[str]) -> Found:
    return byte_search.search(parts_of(paths), fingerprints_of(texts, SALT), SALT)


def search_here(paths: list[Path], texts: list[str]) -> Found:
    """Search in this process."""
    return byte_search._search(parts_of(paths), Needles(fingerprints_of(texts, SALT), SALT))


letters = st.sampled_from([b"a", b"b", b"ab", b"\0", b"aaaaaaaa"])
strings = st.lists(letters, min_size=1, max_size=12).map(b"".join)


@given(st.lists(strings, min_size=1, max_size=6), st.lists(letters, max_size=60).map(b"".join), st.data())
def test_exactly_the_contained_strings_are_found(needles: list[bytes], data: bytes, draw: st.DataObject) -> None:
    data += draw.draw(st.sampled_from([b"", *needles])) + draw.draw(strings)
    found = Needles([print_of(needle, SALT) for needle in needles], SALT).within(data)
    assert found == {(needle, False) for needle in needles if needle in data}


def test_long_texts_are_searched_for_in_pieces() -> None:
    assert pieces("zyzzyva") == {"zyzzyva"}
    assert pieces("1234") == pieces("") == set() and pieces("12345") == {"12345"}
    long = "".join(f"{at:05d}" for at in range(51))
    found = pieces(long)
    assert found == {long[:100], long[100:200], long[-100:]}
    assert max(map(len, found)) == STRETCH
    text = "ok\nThe first line is so long.\nThe second is, too, also.\nhm"
    assert pieces(text) == {text, "The first line is so long.", "The second is, too, also."}
    assert all(len(each.encode()) >= LEAST for each in pieces("é\n" * 500))


@given(st.text(alphabet='aä\n"\\\0🦀', min_size=1, max_size=20))
def test_the_forms_of_a_text_include_plain_and_json(piece: str) -> None:
    found = forms(piece)
    assert piece.encode() in found
    for escaped in (True, False):
        assert any(form in json.dumps({"x": f"a{piece}b"}, ensure_ascii=escaped).encode() for form in found)


def test_texts_are_found_across_the_borders_of_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "file").write_bytes(b"x" * 95 + b"zyzzyva" + b"x" * 200 + b"a long quokka, really long")
    (tmp_path / "one").write_bytes(b"quokka?" + b"y" * 91 + b"short")
    (tmp_path / "empty").write_bytes(b"")
    monkeypatch.setattr(byte_search, "_CHUNK", 100)
    asked = [tmp_path / "deep", tmp_path / "one", tmp_path / "missing", tmp_path / "empty"]
    found = search_here(asked, ["zyzzyva", "a long quokka, really", "quokka", "short", "nothing here"])
    deep, one = str(tmp_path / "deep" / "er" / "file"), str(tmp_path / "one")
    assert found.files == 3 and found.unread == []
    assert found.pieces == {
        "zyzzyva": [deep],
        "a long quokka, really": [deep],
        "quokka": [deep, one],
        "short": [one],
    }


def test_a_separate_process_gives_the_same_result(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("The zyzzyva “is” a weevil.")
    (tmp_path / "b").write_text(json.dumps("x “is” a weevil\n"))
    found = search([tmp_path], ["“is” a weevil", "zyzzyva", "the\nend of it", "four"])
    assert found.files == 2 and found.unread == []
    assert found.pieces == {
        "“is” a weevil": [str(tmp_path / "a"), str(tmp_path / "b")],
        "zyzzyva": [str(tmp_path / "a")],
    }
    assert search([], ["zyzzyva"]).files == 0
    assert search([tmp_path], []).pieces == {}


def test_unreadable_files_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("zyzzyva")
    (tmp_path / "b").write_text("zyzzyva")
    within = byte_search._within

    def refuse(part: Part, needles: Needles) -> set[tuple[bytes, bool]]:
        if part.path.endswith("a"):
            raise PermissionError(13, "Permission denied")
        return within(part, needles)

    monkeypatch.setattr(byte_search, "_within", refuse)
    found = search_here([tmp_path], ["zyzzyva"])
    assert (found.files, found.unread) == (1, [f"{tmp_path}/a: Permission denied"])
    assert found.pieces == {"zyzzyva": [f"{tmp_path}/b"]}


def test_texts_of_the_schema_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE quokkas (zyzzyva TEXT, tapir TEXT)")
        database.execute("CREATE TABLE turnwise_meta (name TEXT, value TEXT)")
        database.execute("INSERT INTO turnwise_meta VALUES ('walrus', '1')")
        database.execute("INSERT INTO quokkas VALUES ('marmot', 'a zyzzyva that is said')")
    database.close()
    found = search_here([file], ["zyzzyva", "marmot", "walrus", "quokkas", "zyzzyva that"])
    assert set(found.pieces) == {"marmot", "zyzzyva that"}
    broken = tmp_path / "broken.db"
    broken.write_bytes(file.read_bytes()[:100] + b"zyzzyva")
    assert set(search_here([broken], ["zyzzyva"]).pieces) == {"zyzzyva"}


def test_prints_depend_on_the_salt_and_reveal_no_text() -> None:
    (one,) = fingerprints_of(["zyzzyva"], SALT)
    (other,) = fingerprints_of(["zyzzyva"], SALT[::-1])
    assert one.length == other.length == 7
    assert one.code != other.code and one.digest != other.digest
    assert one.code < 1 << 32


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9000)), min_size=1, max_size=60),
    st.sampled_from([512, 4096]),
)
def test_only_free_space_of_pages_is_searched(rows: list[tuple[int, int]], size: int) -> None:
    """Rows and keys of any size, in tables and indexes: they are not found."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x.db"
        with closing(sqlite3.connect(file)) as database, database:
            database.execute(f"PRAGMA page_size = {size}")
            database.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, text TEXT)")
            database.execute("CREATE TABLE words (word TEXT PRIMARY KEY, id INTEGER) WITHOUT ROWID")
            for at, (key, length) in enumerate(rows):
                text = f"zyzzyva{key:03}at{at:03}" + "x" * length
                database.execute("INSERT OR REPLACE INTO rows VALUES (?, ?)", (key, text))
                database.execute("INSERT OR REPLACE INTO words VALUES (?, ?)", (text, key))
        with closing(sqlite3.connect(file)) as database:
            database.execute("VACUUM")  # which leaves nothing free
            there = [text[:15] for (text,) in database.execute("SELECT text FROM rows UNION SELECT word FROM words")]
            (pages,) = database.execute("PRAGMA page_count").fetchone()
        (part,) = parts_of([file], {file: range(1, pages + 1)})
        needles = Needles(fingerprints_of(there, SALT), SALT)
        assert len(needles.within(file.read_bytes())) == len(set(there))
        assert byte_search._within(part, needles) == set()


def test_text_in_free_space_is_found(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("PRAGMA secure_delete = OFF")
        database.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, text TEXT)")
        database.executemany("INSERT INTO rows VALUES (?, ?)", [(1, "a zyzzyva"), (2, "a quokka"), (3, "a tapir")])
        database.execute("DELETE FROM rows WHERE id = 2")
    needles = Needles(fingerprints_of(["zyzzyva", "quokka", "tapir"], SALT), SALT)
    found = byte_search._search(parts_of([file], {file: [1, 2]}), needles)
    assert (found.files, found.pieces) == (1, {"quokka": [str(file)]})
    assert byte_search._search(parts_of([file], {file: [1]}), needles).pieces == {}
