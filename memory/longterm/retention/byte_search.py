"""Searches what a deletion wrote in SQLite files for the deleted texts. `search` runs this file as a program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    os.nice(10)  # a low priority, so that it does not slow down other users' calls

LEAST = 5
"""Shorter texts, in bytes of UTF-8, are not searched for, since they occur in any file by chance."""

STRETCH = 100
"""Texts are searched for in pieces of this many characters, since databases split long texts over pages."""

LINE = 20
"""Lines of a text with at least this many characters are also searched for separately."""


@dataclass(frozen=True)
class Found:
    """The result of a search."""

    files: int
    """How many files were searched."""
    pieces: dict[str, list[str]]
    """The pieces of texts that were found, each with the files that contain it."""


def search(pages: Mapping[Path, Collection[int] | None], texts: Collection[str]) -> Found:
    """Search the free space of pages of SQLite files, and the files' logs, for texts: O(size of the pages). Blocks.

    Rows that a page has do not count, unless the page is in the log, too, and may be as it was before the deletion. A
    separate process reads the files, because a process loses SQLite's locks on a database when it closes the same file.

    Args:
        pages: the pages of each file, counted from 1; None for all pages.
        texts: the texts, of which each piece is searched for; see `pieces`.

    Raises:
        OSError: the process cannot be started, or it failed.
    """
    if not (pages and texts):
        return Found(0, {})
    numbers = {str(file): chosen if chosen is None else sorted(chosen) for file, chosen in pages.items()}
    done = subprocess.run(  # noqa: S603 - this file
        [sys.executable, "-I", __file__],
        input=json.dumps({"pages": numbers, "texts": list(texts)}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise OSError(f"the search of files ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return Found(**json.loads(done.stdout))


def pieces(text: str) -> set[str]:
    """Return the pieces to search for, so that a part or a line of the text is found as well."""
    lines = [line for line in text.splitlines() if len(line) >= LINE]
    cut = (piece.lstrip("\0") for part in (text, *lines) for piece in _stretches(part))  # free space is null bytes
    return {piece for piece in cut if len(piece.encode()) >= LEAST}


def _stretches(text: str) -> Iterator[str]:
    for start in range(0, len(text) - STRETCH, STRETCH):
        yield text[start : start + STRETCH]
    yield text[-STRETCH:]


def forms(piece: str) -> set[bytes]:
    """Return the bytes that a text may be in a file: plain, or as JSON escapes it."""
    escaped = (json.dumps(piece, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False))
    return {form.encode() for form in (piece, *escaped)}


class Needles:
    """Searches data for the pieces of many texts at once."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._pieces: dict[bytes, set[str]] = {}
        """The pieces by their bytes in a file."""
        for piece in {piece for text in texts for piece in pieces(text)}:
            for form in forms(piece):
                self._pieces.setdefault(form, set()).add(piece)
        self._lengths: dict[bytes, set[int]] = {}
        """The lengths of the byte strings by how they begin."""
        for form in self._pieces:
            self._lengths.setdefault(form[:LEAST], set()).add(len(form))
        first_bytes = bytes({form[0] for form in self._pieces})
        self._first = re.compile(b"[%b]" % re.escape(first_bytes) if first_bytes else b"(?!)")

    def within(self, data: bytes) -> set[str]:
        """Return the pieces that the data contains."""
        contained: set[str] = set()
        for match in self._first.finditer(data):
            start = match.start()
            for length in self._lengths.get(data[start : start + LEAST], ()):
                contained |= self._pieces.get(data[start : start + length], set())
        return contained


def search_files(pages: Mapping[str, Collection[int] | None], texts: Iterable[str]) -> Found:
    needles = Needles(texts)
    files: dict[str, list[str]] = {}
    searched = 0
    for file, numbers in pages.items():
        log = f"{file}-wal"
        logged: set[int] = set()
        for path, spaces in ((log, _pages_of_log(log, logged)), (file, _free_space(file, numbers, logged))):
            try:
                contained = {piece for space in spaces for piece in needles.within(space)}
            except FileNotFoundError:
                continue  # a log that was removed meanwhile
            searched += 1
            for piece in sorted(contained):
                files.setdefault(piece, []).append(path)
    return Found(searched, files)


# Files of SQLite (https://www.sqlite.org/fileformat.html)

_MAGIC = b"SQLite format 3\0"
_LOG_HEADER, _FRAME_HEADER = 32, 24
_INNER_INDEX, _INNER_TABLE, _INDEX, _TABLE = 2, 5, 10, 13


def _pages_of_log(log: str, logged: set[int]) -> Iterator[bytes]:
    """Yield the pages in a log, outdated ones too, and add their numbers to `logged`. Of page 1, omit the schema."""
    with Path(log).open("rb") as opened:
        size = int.from_bytes(opened.read(_LOG_HEADER)[8:12], "big")
        while len(frame := opened.read(_FRAME_HEADER + size)) > _FRAME_HEADER:
            number, page = int.from_bytes(frame[:4], "big"), frame[_FRAME_HEADER:]
            logged.add(number)
            yield from _gaps(page, number, size) if number == 1 else [page]


def _free_space(file: str, numbers: Collection[int] | None, logged: Collection[int]) -> Iterator[bytes]:
    """Yield the free space of these pages, or of all pages if None.

    Of these pages, one that is in the log is yielded whole, since it may be as it was before the deletion.
    """
    with Path(file).open("rb") as opened:
        head = opened.read(100)
        if head[: len(_MAGIC)] != _MAGIC:
            return
        size = int.from_bytes(head[16:18], "big")
        size = 65536 if size == 1 else size
        all_numbers = range(1, Path(file).stat().st_size // size + 1)
        for number in all_numbers if numbers is None else numbers:
            opened.seek((number - 1) * size)
            page = opened.read(size)
            is_whole = numbers is not None and number in logged and number != 1
            yield from [page] if is_whole else _gaps(page, number, size - head[20])


def _gaps(page: bytes, number: int, usable: int) -> Iterator[bytes]:
    """Yield what is between the rows and keys of a table or index page. A page of another kind is yielded whole."""
    try:
        used = _used(page, 100 if number == 1 else 0, usable)
    except IndexError:  # the page is being written
        used = []
    end = 0
    for start, stop in sorted(used):
        yield page[end:start]
        end = max(end, stop)
    yield page[end:]


def _used(page: bytes, head: int, usable: int) -> list[tuple[int, int]]:
    """Return the start and stop of the header of a table or index page, and of each of its rows and keys."""
    kind = page[head]
    if kind not in (_INNER_INDEX, _INNER_TABLE, _INDEX, _TABLE):
        return []
    start = head + (12 if kind in (_INNER_INDEX, _INNER_TABLE) else 8)
    stop = start + 2 * int.from_bytes(page[head + 3 : head + 5], "big")
    cells = [int.from_bytes(page[position : position + 2], "big") for position in range(start, stop, 2)]
    return [(0, stop), *((position, _cell_end(page, position, kind, usable)) for position in cells)]


def _cell_end(page: bytes, position: int, kind: int, usable: int) -> int:
    if kind in (_INNER_INDEX, _INNER_TABLE):
        position += 4
    payload, position = _number(page, position)  # on an inner page of a table this is the key, and the end
    if kind == _INNER_TABLE:
        return position
    if kind == _TABLE:
        _, position = _number(page, position)
    most = usable - 35 if kind == _TABLE else (usable - 12) * 64 // 255 - 23
    if payload <= most:
        return position + payload
    least = (usable - 12) * 32 // 255 - 23
    local = least + (payload - least) % (usable - 4)
    return position + (local if local <= most else least) + 4


def _number(page: bytes, position: int) -> tuple[int, int]:
    """Return the variable-length integer at this place, and where it ends."""
    number = 0
    for _ in range(8):
        number = number << 7 | page[position] & 0x7F
        position += 1
        if page[position - 1] < 0x80:  # noqa: PLR2004
            return number, position
    return number << 8 | page[position], position + 1


if __name__ == "__main__":
    request = json.load(sys.stdin)
    result = search_files(request["pages"], request["texts"])
    json.dump({"files": result.files, "pieces": result.pieces}, sys.stdout)
