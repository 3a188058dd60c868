"""A search of files for the bytes of texts. Run as a program: see `search`."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LEAST = 5
"""So many bytes a text must have, in UTF-8, to be searched for: fewer are in any file by chance."""

STRETCH = 100
"""How many characters are searched for at once: a database cuts longer texts up."""

LINE = 20
"""From so many characters on a line of a text is searched for by itself."""

_CHUNK = 32 << 20
_ANCHOR = 8
_BITS = 20


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came upon."""

    files: int
    """How many were searched."""
    pieces: dict[str, list[str]]
    """The pieces of texts that were found, each with the files that it stands in."""
    unread: list[str]
    """Files that could not be read, and why."""


def search(paths: Iterable[Path], texts: Iterable[str]) -> Found:
    """Look for all pieces of these texts in files, and in all files of folders. O(the files + the texts); blocks.

    What a SQLite file says of its own tables does not count. The files are read by another process: as long as one has
    a database open, it must not close the file otherwise, since its locks would be gone.

    Raises:
        OSError: there can be no other process, or it failed.
    """
    asked = {
        "paths": [str(path) for path in paths],
        "pieces": sorted({each for text in texts for each in pieces(text)}),
    }
    done = subprocess.run(  # noqa: S603 - this file
        [sys.executable, "-I", __file__], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(f"the search of files ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return Found(**json.loads(done.stdout))


def pieces(text: str) -> set[str]:
    """Return what to look for so that a text is found, also if only a part of it is there, or a line."""
    lines = [line for line in text.splitlines() if len(line) >= LINE]
    return {piece for part in (text, *lines) for piece in _stretches(part) if len(piece.encode()) >= LEAST}


def _stretches(text: str) -> Iterator[str]:
    for start in range(0, len(text) - STRETCH, STRETCH):
        yield text[start : start + STRETCH]
    yield text[-STRETCH:]


def forms(piece: str) -> set[bytes]:
    """Return the bytes that a text may be in a file: as it is, or within JSON of either kind."""
    return {form.encode() for form in (piece, *(json.dumps(piece, ensure_ascii=each)[1:-1] for each in (True, False)))}


class Needles:
    """Byte strings that are looked for all at once."""

    def __init__(self, needles: Sequence[bytes]) -> None:
        self.longest = max(map(len, needles), default=1)
        self._short = [needle for needle in needles if len(needle) < _ANCHOR]
        self._long: dict[int, list[tuple[int, bytes]]] = {}
        """Those that have these 8 bytes in their middle, and where that is."""
        for needle in needles:
            if len(needle) >= _ANCHOR:
                at = (len(needle) - _ANCHOR) // 2
                anchor = int.from_bytes(needle[at : at + _ANCHOR], "little")
                self._long.setdefault(anchor, []).append((at, needle))
        self._anchors = np.array(sorted(self._long), dtype=np.uint64)
        self._table = np.zeros(1 << _BITS, dtype=bool)
        self._table[_hash(self._anchors)] = True

    def within(self, data: bytes) -> set[bytes]:
        """Return those that are in the data."""
        found = {needle for needle in self._short if needle in data}
        for offset in range(_ANCHOR if self._long else 0):
            count = (len(data) - offset) // _ANCHOR
            if count <= 0:
                break
            numbers = np.frombuffer(data, dtype="<u8", offset=offset, count=count)
            places = np.flatnonzero(self._table[_hash(numbers)])
            for place in places[np.isin(numbers[places], self._anchors)].tolist():
                for at, needle in self._long[int(numbers[place])]:
                    start = place * _ANCHOR + offset - at
                    if start >= 0 and needle not in found and data.startswith(needle, start):
                        found.add(needle)
        return found


def _hash(numbers: Any) -> Any:
    return (numbers * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - _BITS)


def _search(paths: Iterable[str], wanted: Iterable[str]) -> Found:
    of_form: dict[bytes, set[str]] = {}
    for piece in wanted:
        for form in forms(piece):
            of_form.setdefault(form, set()).add(piece)
    needles = Needles(sorted(of_form))
    found: dict[str, list[str]] = {}
    unread = []
    told = []
    count = 0
    for file in _files(paths):
        try:
            there = _within(file, needles)
        except FileNotFoundError:
            continue  # a log that was emptied meanwhile
        except OSError as error:
            unread.append(f"{file}: {error.strerror}")
            continue
        count += 1
        told.append(_told_of_tables(file))
        for piece in sorted({piece for needle in there for piece in of_form[needle]}):
            found.setdefault(piece, []).append(str(file))
    known = "\n".join(told)
    return Found(count, {piece: files for piece, files in found.items() if piece not in known}, unread)


def _files(paths: Iterable[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        yield from (file for file in sorted(path.rglob("*")) if file.is_file()) if path.is_dir() else [path]


def _within(file: Path, needles: Needles) -> set[bytes]:
    found: set[bytes] = set()
    with file.open("rb") as opened:
        before = b""
        while data := opened.read(_CHUNK):
            found |= needles.within(before + data)
            before = (before + data)[-needles.longest :]
    return found


def _told_of_tables(file: Path) -> str:
    """Return what a SQLite file has in it that nobody said: its schema, and rows about tables and collections."""
    with file.open("rb") as opened:
        if opened.read(len(_MAGIC)) != _MAGIC:
            return ""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?immutable=1", uri=True)) as connection:
            schema = connection.execute("SELECT name, sql FROM sqlite_master").fetchall()
            names = [name for name, _ in schema if name in _ABOUT]
            rows = [row for name in names for row in connection.execute(f'SELECT * FROM "{name}"')]  # noqa: S608
    except sqlite3.Error:
        return ""  # then nothing that is found is put down to it
    return "\n".join(str(value) for row in (*schema, *rows) for value in row)


_MAGIC = b"SQLite format 3\0"
_ABOUT = (
    *("turnwise_meta", "collections", "collection_metadata", "databases", "embeddings_queue_config", "migrations"),
    *("segments", "segment_metadata", "tenants"),
)


if __name__ == "__main__":
    given = json.load(sys.stdin)
    result = _search(given["paths"], given["pieces"])
    json.dump({"files": result.files, "pieces": result.pieces, "unread": result.unread}, sys.stdout)
