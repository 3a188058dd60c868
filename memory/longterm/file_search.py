"""`FileSearch`: a resumable search of all files of a memory for deleted texts."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from turnwise.errors import CorruptRecordError, StoreError
from turnwise.memory.longterm import byte_search
from turnwise.memory.longterm.base import LongTermMemory, Scope
from turnwise.memory.longterm.byte_search import Fingerprint, Part
from turnwise.memory.longterm.deletion import Erasing, Erasure, erase, search_file, searches_of, still_there

STEP_BYTES = 64 << 20
"""The most bytes that one step searches."""

KEPT_S = 86_400.0
"""How long the report of a finished search is stored, in seconds."""


class FileSearch:
    """A search for deleted texts. `begin` stores its progress in a state file beside the memory's first file.

    The state file contains salted fingerprints of the texts instead of the texts. After the search it contains only the
    report, which further calls return for a day. Only the process that owns the memory may run a search.

    Args:
        memory: a memory with files.
        name: the name of the deletion: see `name_of`.

    Raises:
        CorruptRecordError: the state file cannot be read.
    """

    def __init__(self, memory: Erasing, name: str) -> None:
        self._memory = memory
        self._file = search_file(memory, name)
        self._writing = asyncio.Lock()
        self._state: dict[str, Any] = {}
        if self._file.exists():
            try:
                self._state = json.loads(self._file.read_bytes())
            except ValueError as error:
                why = f"{error}; delete the file to abandon the search"
                raise CorruptRecordError(f"file {self._file}", why) from error

    @property
    def is_through(self) -> bool:
        """Whether the search is complete."""
        return self._is_noted and not self._state["parts"]

    @property
    def is_under_way(self) -> bool:
        """Whether the texts are deleted and some data is not searched yet."""
        return self._is_noted and bool(self._state["parts"])

    @property
    def _is_noted(self) -> bool:
        return bool(self._state.get("noted"))

    async def begin(self, texts: Collection[str]) -> None:
        """Add texts to search for, before they are deleted. All data is searched again."""
        before = self._state
        salt = bytes.fromhex(before["salt"]) if before else secrets.token_bytes(16)
        prints = await asyncio.to_thread(byte_search.fingerprints_of, texts, salt)
        known = {Fingerprint(*each) for each in before.get("prints", ())}
        self._state = {
            "salt": salt.hex(),
            "prints": sorted(known.union(prints)),
            "parts": [],
            "bytes": 0,
            "items": 0 if self.is_through else before.get("items", 0),
            "files": [],
            "found": [],
            "unread": [],
            "noted": False,
            "why": None,
            "rewritten": False,
        }
        await self._write()
        await asyncio.to_thread(_remove_old, searches_of(self._memory))

    async def note(self, erasure: Erasure) -> None:
        """Record the report of `erase`. The search then covers all files that exist now."""
        parts = [step for part in byte_search.parts_of(self._memory.paths()) for step in _cut(part)]
        self._state |= {"noted": True, "parts": parts, "bytes": sum(_size(*part) for part in parts)}
        self._state["items"] += erasure.items
        if not erasure.verified:
            self._state["why"] = erasure.why or f"found in {', '.join(erasure.found)}"
        await self._write()

    async def step(self) -> None:
        """Search the next parts. At the end, rewrite the files in which texts were found, and search them once more.

        Raises:
            StoreError: the memory cannot be read, or its files cannot be rewritten. Call it again.
            OSError: the search failed. Call it again.
        """
        state, parts = self._state, self._state["parts"]
        some = list(_first(parts))
        prints = [Fingerprint(*each) for each in state["prints"]]
        asked = [Part(path=path, start=start, stop=stop) for path, start, stop in some]
        found = await asyncio.to_thread(byte_search.search, asked, prints, bytes.fromhex(state["salt"]))
        there = await still_there(self._memory, found.pieces)
        left = parts[len(some) :]
        news = {
            "found": sorted({*state["found"], *there}),
            "unread": sorted({*state["unread"], *found.unread}),
            "files": sorted({*state["files"], *(path for path, *_ in some)}),
            "parts": left,
        }
        if not left and news["found"] and not state["rewritten"]:
            await self._memory.scrub(news["found"])
            again = byte_search.parts_of(map(Path, news["found"]))
            news |= {"rewritten": True, "found": [], "parts": [step for part in again for step in _cut(part)]}
        state |= news
        if self.is_through:
            state["prints"] = []  # they are not needed any more
        await self._write()

    def report(self) -> Erasure:
        """Return the current report."""
        state = self._state
        left = sum(_size(*part) for part in state["parts"])
        total = max(state["bytes"], left)
        done = Erasure(
            items=state["items"],
            files=len(state["files"]),
            found=tuple(state["found"]),
            verified=False,
            progress=1 - left / total if total else 1.0,
        )
        if not self.is_through:
            return replace(done, why=f"{total - left:,} of {total:,} bytes are searched; ask again")
        why = f"cannot be read: {'; '.join(state['unread'])}" if state["unread"] else state["why"]
        return replace(done, verified=not done.found and why is None, why=why, progress=1.0)

    async def _write(self) -> None:
        """Store the state durably. After a crash, the file has the new state or the previous one."""
        async with self._writing:
            await asyncio.to_thread(self._replace, json.dumps(self._state))

    def _replace(self, state: str) -> None:
        fresh = self._file.with_name(f"{self._file.name}.new")
        try:
            with fresh.open("w") as opened:
                opened.write(state)
                opened.flush()
                os.fsync(opened.fileno())
            fresh.replace(self._file)
        except OSError as error:
            raise StoreError(f"the search of files cannot store its progress in {self._file}: {error}") from error


async def erase_and_search(
    memory: LongTermMemory, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None
) -> Erasure:
    """Call `begin`, and search to the end."""
    erasure, search = await begin(memory, scope, ids, turn_index=turn_index)
    while search is not None and search.is_under_way:
        await search.step()
    return erasure if search is None else search.report()


def name_of(scope: Scope, ids: Collection[str] | None, turn_index: int | None) -> str:
    """Return the name of the search for a deletion. It reveals neither user nor items."""
    what = [scope.user_id, scope.session_id, scope.agent, ids if ids is None else sorted(ids), turn_index]
    return blake2b(json.dumps(what).encode(), digest_size=16).hexdigest()


async def begin(
    memory: LongTermMemory,
    scope: Scope,
    ids: Collection[str] | None = None,
    *,
    turn_index: int | None = None,
    search: FileSearch | None = None,
) -> tuple[Erasure, FileSearch | None]:
    """Delete items as `erase` does, and begin a search of all files; return the report, and the search if there is one.

    An unfinished search continues: `search` if given, else the one that an earlier process left.
    """
    which: dict[str, Any] = {} if turn_index is None else {"turn_index": turn_index}
    if not (isinstance(memory, Erasing) and memory.paths()):
        return await erase(memory, scope, ids, **which), None
    search = search or FileSearch(memory, name_of(scope, ids, turn_index))
    texts = await memory.texts(scope, ids, **which)
    if texts or not (search.is_under_way or search.is_through):
        await search.begin(texts)
        await search.note(await erase(memory, scope, ids, texts=texts, **which))
    return search.report(), search


_Stretch = tuple[str, int, int]
"""A file, and the start and stop of a part of it."""


def _cut(part: Part) -> Iterator[_Stretch]:
    stop = part.stop or 0
    return ((part.path, start, min(start + STEP_BYTES, stop)) for start in range(0, stop, STEP_BYTES))


def _first(parts: list[_Stretch]) -> Iterator[_Stretch]:
    """Yield as many parts as a step takes, at least one."""
    size = 0
    for part in parts:
        size += _size(*part)
        if size > STEP_BYTES and size > _size(*part):
            return
        yield part


def _size(_: str, start: int, stop: int) -> int:
    return stop - start


def _remove_old(files: Iterable[Path]) -> None:
    """Remove reports that are older than `KEPT_S`."""
    for file in files:
        if time.time() - file.stat().st_mtime > KEPT_S and not json.loads(file.read_bytes())["prints"]:
            file.unlink()
