"""Searches of SQLite files for the bytes of deleted texts."""

import json
import sqlite3
import tempfile
from collections.abc import Collection, Iterable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from turnwise.memory.longterm.retention import byte_search
from turnwise.memory.longterm.retention.byte_search import (
    LEAST,
    STRETCH,
    Found,
    Needles,
    forms,
    pieces,
    search,
)


def search_here(file: Path, numbers: Collection[int] | None, texts: Iterable[str]) -> Found:
    """Search in this process."""
    return byte_search.search_files({str(file): numbers}, texts)


def database_of(file: Path, *rows: str) -> Path:
    """Make a database with these texts, of which those that contain "gone" are deleted and not overwritten."""
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("PRAGMA secure_delete = OFF")
        database.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, text TEXT)")
        database.executemany("INSERT INTO rows (text) VALUES (?)", [(row,) for row in rows])
        database.execute("DELETE FROM rows WHERE text LIKE '%gone%'")
    return file


parts = st.sampled_from(["a", "b", "ab", "ä", '"', "\0", "\n", "\\", "aaaaaaaa"])
strings = st.lists(parts, min_size=1, max_size=12).map("".join)


@given(st.lists(strings, min_size=1, max_size=6), st.lists(parts, max_size=60).map("".join), st.data())
def test_exactly_the_contained_texts_are_found(texts: list[str], rest: str, draw: st.DataObject) -> None:
    planted = sorted({form for text in texts for form in forms(text)})
    data = rest.encode() + draw.draw(st.sampled_from([b"", *planted])) + draw.draw(strings).encode()
    all_pieces = {piece for text in texts for piece in pieces(text)}
    assert Needles(texts).within(data) == {piece for piece in all_pieces if any(form in data for form in forms(piece))}


def test_long_texts_are_searched_for_in_pieces() -> None:
    assert pieces("zyzzyva") == pieces("\0zyzzyva") == {"zyzzyva"}
    assert pieces("1234") == pieces("") == pieces("\0" * 500) == set() and pieces("12345") == {"12345"}
    long = "".join(f"{number:05d}" for number in range(51))
    parts = pieces(long)
    assert parts == {long[:100], long[100:200], long[-100:]}
    assert max(map(len, parts)) == STRETCH
    text = "ok\nThe first line is so long.\nThe second is, too, also.\nhm"
    assert pieces(text) == {text, "The first line is so long.", "The second is, too, also."}
    assert all(len(piece.encode()) >= LEAST for piece in pieces("é\n" * 500))


@given(st.text(alphabet='aä\n"\\\0🦀', min_size=1, max_size=20))
def test_the_forms_of_a_text_include_plain_and_json(piece: str) -> None:
    encoded = forms(piece)
    assert piece.encode() in encoded
    for escaped in (True, False):
        assert any(form in json.dumps({"x": f"a{piece}b"}, ensure_ascii=escaped).encode() for form in encoded)


def test_text_in_free_space_is_found(tmp_path: Path) -> None:
    file = database_of(tmp_path / "x.db", "a zyzzyva", "a quokka is gone", "a tapir")
    texts = ["zyzzyva", "quokka", "tapir"]
    assert search_here(file, [1, 2], texts) == Found(1, {"quokka": [str(file)]})
    assert search_here(file, None, texts) == Found(1, {"quokka": [str(file)]})
    assert search_here(file, [1], texts) == Found(1, {})


def test_a_separate_process_gives_the_same_result(tmp_path: Path) -> None:
    first = database_of(tmp_path / "one.db", "The zyzzyva “is” gone.", "a tapir")
    second = database_of(tmp_path / "two.db", json.dumps("it “is” gone\n"), "a quokka")
    pages: dict[Path, Collection[int] | None] = {first: {2, 1}, second: None, tmp_path / "missing.db": None}
    assert search(pages, ["“is” gone", "zyzzyva", "the\nend of it", "four"]) == Found(
        2, {"“is” gone": [str(first), str(second)], "zyzzyva": [str(first)]}
    )
    assert search({}, ["zyzzyva"]) == search(pages, []) == Found(0, {})


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"ended with 1(.|\n)*IsADirectoryError"):
        search({tmp_path: [1]}, ["zyzzyva"])


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9000)), min_size=1, max_size=60),
    st.sampled_from([512, 4096]),
)
def test_only_free_space_of_pages_is_searched(rows: list[tuple[int, int]], size: int) -> None:
    """Rows and keys of any size, in tables and indexes, and the names of these: they are not found."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x.db"
        with closing(sqlite3.connect(file)) as database, database:
            database.execute(f"PRAGMA page_size = {size}")
            database.execute("CREATE TABLE quaggas (id INTEGER PRIMARY KEY, text TEXT)")
            database.execute("CREATE TABLE words (word TEXT PRIMARY KEY, id INTEGER) WITHOUT ROWID")
            for index, (key, length) in enumerate(rows):
                text = f"zyzzyva{key:03}at{index:03}" + "x" * length
                database.execute("INSERT OR REPLACE INTO quaggas VALUES (?, ?)", (key, text))
                database.execute("INSERT OR REPLACE INTO words VALUES (?, ?)", (text, key))
        with closing(sqlite3.connect(file)) as database:
            database.execute("VACUUM")  # which leaves nothing free
            query = "SELECT text FROM quaggas UNION SELECT word FROM words"
            stored_texts = {text[:15] for (text,) in database.execute(query)} | {"quaggas", "words"}
            (pages,) = database.execute("PRAGMA page_count").fetchone()
        assert Needles(stored_texts).within(file.read_bytes()) == stored_texts
        assert (
            search_here(file, range(1, pages + 1), stored_texts)
            == search_here(file, None, stored_texts)
            == Found(1, {})
        )


def test_the_log_and_pages_that_it_has_are_searched_whole(tmp_path: Path) -> None:
    """The file still has the row that is deleted in the log; names of tables do not count there either."""
    file = tmp_path / "x.db"
    with closing(sqlite3.connect(file)) as database, closing(sqlite3.connect(file)) as reader:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA secure_delete = ON")
        database.execute("CREATE TABLE quaggas (id INTEGER PRIMARY KEY, text TEXT)")
        database.executemany("INSERT INTO quaggas (text) VALUES (?)", [("a zyzzyva",), ("a quokka",), ("a tapir",)])
        database.commit()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        texts = ["zyzzyva", "quokka", "tapir", "quaggas"]
        assert search_here(file, [1, 2], texts) == Found(2, {})
        reader.execute("BEGIN")
        assert len(reader.execute("SELECT * FROM quaggas").fetchall()) == 3
        database.execute("DELETE FROM quaggas WHERE id = 2")
        database.execute("PRAGMA user_version = 2")  # which writes page 1
        database.commit()
        log = f"{file}-wal"
        assert search_here(file, [1, 2], texts) == Found(
            2, {"quokka": [str(file)], "tapir": [log, str(file)], "zyzzyva": [log, str(file)]}
        )
