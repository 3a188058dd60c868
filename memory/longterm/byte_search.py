"""Searches files for deleted texts, of which it gets only fingerprints. `search` runs this file as a program."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    os.nice(10)  # a low priority, since nobody waits for the result

import numpy as np

LEAST = 5
"""Shorter texts, in bytes of UTF-8, are not searched for, since they occur in any file by chance."""

STRETCH = 100
"""Texts are searched for in pieces of this many characters, since databases split long texts over pages."""

LINE = 20
"""Lines of a text with at least this many characters are also searched for separately."""

_CHUNK = 32 << 20
_ANCHOR = 8
_CODE, _BITS, _FACTOR = 32, 20, 0x9E3779B97F4A7C15


class Fingerprint(NamedTuple):
    """The fingerprint of bytes to search for. It identifies the bytes where they occur, but does not reveal them."""

    width: int
    """How many of the bytes are compared first."""
    at: int
    """The offset of the bytes that are compared first."""
    length: int
    """The number of all bytes."""
    code: int
    """A 32-bit hash of the bytes that are compared first."""
    digest: str
    """A digest of all bytes."""
    is_json: bool
    """Whether the bytes are the text as JSON escapes it, which differs from the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a file."""

    path: str
    start: int = 0
    stop: int | None = None
    """None for the end of the file."""
    pages: Sequence[int] | None = None
    """Search only the free space of these pages of a SQLite file, counted from 1, and not the rows that it has."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search."""

    files: int
    """How many files were searched."""
    pieces: dict[str, list[str]]
    """The pieces of texts that were found, each with the files that contain it."""
    unread: list[str]
    """The files that could not be read, each with the reason."""


def search(parts: Iterable[Part], prints: Iterable[Fingerprint], salt: bytes) -> Found:
    """Search parts of files for the bytes of these fingerprints: O(size of the parts). Blocks.

    Texts that also occur in the schema of a SQLite file do not count. A separate process reads the files, because a
    process loses SQLite's locks on a database when it closes the same file.

    Raises:
        OSError: the process cannot be started, or it failed.
    """
    asked = {"parts": [asdict(part) for part in parts], "prints": list(prints), "salt": salt.hex()}
    if not asked["parts"]:
        return Found(0, {}, [])
    done = subprocess.run(  # noqa: S603 - this file
        [sys.executable, "-I", __file__], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(f"the search of files ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return Found(**json.loads(done.stdout))


def parts_of(paths: Iterable[Path], pages: Mapping[Path, Collection[int]] | None = None) -> list[Part]:
    """Return the existing files and all files in folders, at their current size; of some files only these pages."""
    pages = pages or {}
    return [
        Part(path=str(file), pages=sorted(pages[file]))
        if file in pages
        else Part(path=str(file), stop=file.stat().st_size)
        for file in _files(paths)
        if file.exists()
    ]


def fingerprints_of(texts: Iterable[str], salt: bytes) -> list[Fingerprint]:
    """Return the fingerprints of all pieces of these texts, in all forms in which a file may contain them."""
    wanted = {piece for text in texts for piece in pieces(text)}
    return sorted({print_of(form, salt, is_json=is_json) for piece in wanted for form, is_json in forms(piece).items()})


def print_of(needle: bytes, salt: bytes, *, is_json: bool = False) -> Fingerprint:
    """Return the print of some bytes, which depends on the salt."""
    width = min(_ANCHOR, len(needle))
    at = (len(needle) - width) // 2
    number = int.from_bytes(needle[at : at + width], "little") ^ int.from_bytes(salt[:8], "little")
    code = number * _FACTOR % (1 << 64) >> (64 - _CODE)
    return Fingerprint(width, at, len(needle), code, _digest(needle, salt), is_json)


def pieces(text: str) -> set[str]:
    """Return the pieces to search for, so that a part or a line of the text is found as well."""
    lines = [line for line in text.splitlines() if len(line) >= LINE]
    return {piece for part in (text, *lines) for piece in _stretches(part) if len(piece.encode()) >= LEAST}


def _stretches(text: str) -> Iterator[str]:
    for start in range(0, len(text) - STRETCH, STRETCH):
        yield text[start : start + STRETCH]
    yield text[-STRETCH:]


def forms(piece: str) -> dict[bytes, bool]:
    """Return the bytes that a text may be in a file, plain or as JSON escapes it; True if they are JSON only."""
    escaped = (json.dumps(piece, ensure_ascii=each)[1:-1] for each in (True, False))
    return {form.encode(): form != piece for form in (*escaped, piece)}


class Needles:
    """Searches data for many byte strings at once, by their fingerprints."""

    def __init__(self, prints: Iterable[Fingerprint], salt: bytes) -> None:
        self._salt = salt
        self.longest = 1
        self._of: dict[int, dict[int, list[Fingerprint]]] = {}
        """The fingerprints by width, then by code."""
        for each in prints:
            self.longest = max(self.longest, each.length)
            self._of.setdefault(each.width, {}).setdefault(each.code, []).append(each)
        self._codes = {width: np.array(sorted(of_code), dtype=np.uint64) for width, of_code in self._of.items()}
        self._tables = {width: np.zeros(1 << _BITS, dtype=bool) for width in self._of}
        for width, codes in self._codes.items():
            self._tables[width][codes >> np.uint64(_CODE - _BITS)] = True

    def within(self, data: bytes) -> set[tuple[bytes, bool]]:
        """Return the byte strings that occur in the data, each with whether it is JSON."""
        found: dict[Fingerprint, bytes] = {}
        padded = data + bytes(_ANCHOR)
        for offset in range(_ANCHOR if self._of else 0):
            numbers = np.frombuffer(padded, dtype="<u8", offset=offset, count=(len(padded) - offset) // _ANCHOR)
            for width, of_code in self._of.items():
                codes = _codes(numbers & np.uint64((1 << 8 * width) - 1), self._salt)
                places = np.flatnonzero(self._tables[width][codes >> np.uint64(_CODE - _BITS)])
                for place in places[np.isin(codes[places], self._codes[width])].tolist():
                    for each in of_code[int(codes[place])]:
                        start = place * _ANCHOR + offset - each.at
                        needle = data[max(start, 0) : start + each.length]
                        if each not in found and start >= 0 and _digest(needle, self._salt) == each.digest:
                            found[each] = needle
        return {(needle, each.is_json) for each, needle in found.items()}


def _codes(numbers: Any, salt: bytes) -> Any:
    salted = numbers ^ np.uint64(int.from_bytes(salt[:8], "little"))
    return (salted * np.uint64(_FACTOR)) >> np.uint64(64 - _CODE)


def _digest(needle: bytes, salt: bytes) -> str:
    return blake2b(needle, digest_size=16, key=salt).hexdigest()


def _search(parts: Iterable[Part], needles: Needles) -> Found:
    found: dict[str, list[str]] = {}
    unread = []
    schemas = []
    searched = set()
    for part in parts:
        try:
            there = _within(part, needles)
            schemas.append(_schema_text(Path(part.path)))
        except FileNotFoundError:
            continue  # a log that was removed meanwhile
        except OSError as error:
            unread.append(f"{part.path}: {error.strerror}")
            continue
        searched.add(part.path)
        for needle, is_json in sorted(there):
            piece = json.loads(f'"{needle.decode()}"') if is_json else needle.decode()
            if part.path not in found.setdefault(piece, []):
                found[piece].append(part.path)
    known = "\n".join(schemas)
    return Found(len(searched), {piece: files for piece, files in found.items() if piece not in known}, unread)


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        yield from (file for file in sorted(path.rglob("*")) if file.is_file()) if path.is_dir() else [path]


def _within(part: Part, needles: Needles) -> set[tuple[bytes, bool]]:
    found: set[tuple[bytes, bool]] = set()
    with Path(part.path).open("rb") as opened:
        if part.pages is not None:
            return needles.within(b"".join(_free_of(opened, part.pages)))
        at = opened.seek(max(part.start - needles.longest, 0))  # a text may begin in the previous part
        before = b""
        while data := opened.read(_CHUNK if part.stop is None else min(_CHUNK, part.stop - at)):
            at += len(data)
            found |= needles.within(before + data)
            before = (before + data)[-needles.longest :]
    return found


# Pages of SQLite (https://www.sqlite.org/fileformat.html)

_MAGIC = b"SQLite format 3\0"
_INNER_INDEX, _INNER_TABLE, _INDEX, _TABLE = 2, 5, 10, 13


def _free_of(opened: Any, pages: Sequence[int]) -> Iterator[bytes]:
    """Yield these pages, with the space in use blanked."""
    head = opened.read(100)
    size = int.from_bytes(head[16:18], "big")
    size = 65536 if size == 1 else size
    for number in pages if head[: len(_MAGIC)] == _MAGIC else ():
        opened.seek((number - 1) * size)
        page = bytearray(opened.read(size))
        with suppress(IndexError):  # the page is being written: then the space in use is searched as well
            _blank_cells(page, 100 if number == 1 else 0, size - head[20])
        yield bytes(page)


def _blank_cells(page: bytearray, head: int, usable: int) -> None:
    """Blank the rows and keys of a table or index page. Pages of other kinds are not changed."""
    kind = page[head]
    if kind not in (_INNER_INDEX, _INNER_TABLE, _INDEX, _TABLE):
        return
    start = head + (12 if kind in (_INNER_INDEX, _INNER_TABLE) else 8)
    count = int.from_bytes(page[head + 3 : head + 5], "big")
    cells = [int.from_bytes(page[at : at + 2], "big") for at in range(start, start + 2 * count, 2)]
    ends = [_cell_end(page, at, kind, usable) for at in cells]
    for at, end in zip(cells, ends, strict=True):
        page[at:end] = bytes(len(page[at:end]))


def _cell_end(page: bytearray, at: int, kind: int, usable: int) -> int:
    if kind in (_INNER_INDEX, _INNER_TABLE):
        at += 4
    payload, at = _number(page, at)  # on an inner page of a table this is the key, and the end
    if kind == _INNER_TABLE:
        return at
    if kind == _TABLE:
        _, at = _number(page, at)
    most = usable - 35 if kind == _TABLE else (usable - 12) * 64 // 255 - 23
    if payload <= most:
        return at + payload
    least = (usable - 12) * 32 // 255 - 23
    local = least + (payload - least) % (usable - 4)
    return at + (local if local <= most else least) + 4


def _number(page: bytearray, at: int) -> tuple[int, int]:
    """Return the variable-length integer at this place, and where it ends."""
    number = 0
    for _ in range(8):
        number = number << 7 | page[at] & 0x7F
        at += 1
        if page[at - 1] < 0x80:  # noqa: PLR2004
            return number, at
    return number << 8 | page[at], at + 1


def _schema_text(file: Path) -> str:
    """Return the text in a SQLite file that no user wrote: the schema, and rows about tables and collections."""
    with file.open("rb") as opened:
        if opened.read(len(_MAGIC)) != _MAGIC:
            return ""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?immutable=1", uri=True)) as connection:
            schema = connection.execute("SELECT name, sql FROM sqlite_master").fetchall()
            names = [name for name, _ in schema if name in _ABOUT]
            rows = [row for name in names for row in connection.execute(f'SELECT * FROM "{name}"')]  # noqa: S608
    except sqlite3.Error:
        return ""  # then no text counts as part of the schema
    return "\n".join(str(value) for row in (*schema, *rows) for value in row)


_ABOUT = (
    *("turnwise_meta", "collections", "collection_metadata", "databases", "embeddings_queue_config", "migrations"),
    *("segments", "segment_metadata", "tenants"),
)


if __name__ == "__main__":
    given = json.load(sys.stdin)
    salt = bytes.fromhex(given["salt"])
    asked = Needles([Fingerprint(*each) for each in given["prints"]], salt)
    result = _search([Part(**each) for each in given["parts"]], asked)
    json.dump({"files": result.files, "pieces": result.pieces, "unread": result.unread}, sys.stdout)
