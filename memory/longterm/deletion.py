"""Forgetting so that nothing is left in the files, and looking whether it is so."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from turnwise.errors import CorruptRecordError, StoreError
from turnwise.memory.longterm.base import LongTermMemory, MemoryItem, Scope, is_read_only
from turnwise.memory.stores.sql.touched_pages import noting

Verify = bool | Literal["files"]
"""How what is forgotten is looked for afterwards.

`False`: not at all. It is deleted, and overwritten as far as the store does that by itself.

`True`: the memory is asked whether it has anything of it still, vectors are overwritten, and what is free in the pages
of SQLite that the deletion wrote is read. It costs what was forgotten, however much others have. If something is found
there, since SQLite leaves a copy of a row now and then when it moves it to another page, that file is written anew. A
copy in a page that the deletion did not write is not found.

`"files"`: that, and then all files of the memory are searched, by its process, behind everything else: O(all that is
kept). The report says at once how far it has come; the same call again says so again, and goes on where the search was
if it was killed. Where something is found the file is written anew and searched once more.

Whichever it is: of what a server keeps nobody here can tell, so `verified` is false there, and `why` says so.
"""


@runtime_checkable
class Scrubbing(Protocol):
    """A store that can leave nothing of what was deleted."""

    async def scrub(self) -> None:
        """Leave nothing of what was deleted in the files: O(all that is kept). Others may have to wait meanwhile.

        Raises:
            StoreError: the store fails, or others hold on to what was there. Nothing is lost; again.
        """

    def paths(self) -> Sequence[Path]:
        """Return all files and folders of this machine that something is kept in; empty if a server keeps any of it."""


@runtime_checkable
class Erasing(Scrubbing, Protocol):
    """A memory of which it can be seen whether it has forgotten."""

    async def texts(
        self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None
    ) -> list[str]:
        """Return texts and topics of all that `forget` would delete if it were called so, superseded ones too."""

    async def scrub(self, files: Collection[str] | None = None) -> None:
        """Write the files anew, or only these: see `Scrubbing`."""

    async def keeps(self, texts: Collection[str]) -> set[str]:
        """Return those of these texts that some item still says, of whomever, be it as a part of what it says."""


@runtime_checkable
class Settling(Protocol):
    """A memory that keeps more than the texts of items may have this too."""

    async def keys(
        self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None
    ) -> list[str]:
        """Return names of what it has of the items that `forget` would delete if it were called so."""

    async def settle(self, keys: Collection[str]) -> None:
        """Overwrite what deletions have left behind, and see that nothing of these names is there: O(what is new).

        Raises:
            StoreError: it cannot, or something is there. Nothing is lost; again.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """What was forgotten, and whether anything of it was found afterwards."""

    items: int
    """How many there were."""
    files: int
    """How many files were searched for their texts, as a whole or in parts."""
    found: tuple[str, ...]
    """The files in which something of it stands still."""
    verified: bool
    """Whether all that was to be searched was, and nothing was found."""
    why: str | None = None
    """Why not, if nothing was found."""
    progress: float = 1.0
    """How much of what is to be searched was, from 0 to 1. Below 1 the same call again tells how it goes on."""


async def erase(  # noqa: PLR0911 - each outcome is told where it is known
    memory: LongTermMemory,
    scope: Scope,
    ids: Collection[str] | None = None,
    *,
    turn_index: int | None = None,
    texts: Collection[str] | None = None,
) -> Erasure:
    """Have a memory forget, and verify that as `Verify` says of `True`.

    Each text and topic is looked for in UTF-8 and within JSON, in pieces, so that a part of it is found too. What an
    item that is kept says as well may stand there; so may texts of less than 5 bytes, which are in any file by chance.
    A memory that nobody may write has nothing to forget.

    Args:
        texts: what `memory.texts` has just returned, if that is known.

    Raises:
        InvalidInputError: a turn without its session, or together with ids; nothing is forgotten.
        StoreError: the memory cannot be read or does not forget. If it forgot, and that could not be verified, that is
            no error: `why` says so.
    """
    if is_read_only(memory):
        return Erasure(items=0, files=0, found=(), verified=True)
    which: dict[str, Any] = {} if turn_index is None else {"turn_index": turn_index}
    if not isinstance(memory, Erasing):
        items = await memory.forget(scope, ids, **which)
        return _unverified(items, f"{type(memory).__name__} does not say where it keeps what it is told")
    from turnwise.memory.longterm import byte_search  # whose numpy a process that erases nothing need not load

    try:
        texts = await memory.texts(scope, ids, **which) if texts is None else texts
    except CorruptRecordError as error:  # what cannot be read can be forgotten, and not looked for
        return _unverified(await memory.forget(scope, ids, **which), str(error))
    keys = await memory.keys(scope, ids, **which) if isinstance(memory, Settling) else []
    pages: dict[Path, set[int]] = {}
    with noting(pages):
        items = await memory.forget(scope, ids, **which)
    try:
        if isinstance(memory, Settling):
            await memory.settle(keys)
        paths = memory.paths()
        if not paths:
            return _unverified(items, "it is not kept in files of this machine, so nobody here can look")
        if await memory.texts(scope, ids, **which):
            return _unverified(items, "it was given more meanwhile; forget it again")
        salt = secrets.token_bytes(16)
        prints = await asyncio.to_thread(byte_search.prints_of, texts, salt)
        logs = [path.with_name(f"{path.name}-{kind}") for path in pages for kind in ("wal", "journal")]
        parts = byte_search.parts_of([*pages, *logs], pages)
        found = await asyncio.to_thread(byte_search.search, parts, prints, salt)
        files = await still_there(memory, found.pieces)
        if files:  # SQLite leaves a copy of a row now and then when it moves it to another page
            await memory.scrub(files)
            found = await asyncio.to_thread(byte_search.search, byte_search.parts_of(map(Path, files)), prints, salt)
            files = await still_there(memory, found.pieces)
    except (StoreError, OSError) as error:
        return _unverified(items, str(error))
    why = f"cannot be read: {'; '.join(found.unread)}" if found.unread else None
    return Erasure(items=items, files=found.files, found=files, verified=not files and why is None, why=why)


async def still_there(memory: Erasing, pieces: dict[str, list[str]]) -> tuple[str, ...]:
    """Return the files that pieces were found in, but for those that some item still says."""
    kept = await memory.keeps(pieces)
    return tuple(sorted({file for piece, files in pieces.items() if piece not in kept for file in files}))


def searches_of(memory: Erasing) -> list[Path]:
    """Return the files of all searches of this memory's files: see `FileSearch`."""
    if not memory.paths():
        return []
    first = search_file(memory, "")
    named = re.compile(re.escape(first.name) + "[0-9a-f]{32}")
    return [file for file in first.parent.glob("*-search-*") if named.fullmatch(file.name)]


def search_file(memory: Erasing, name: str) -> Path:
    """Return the file of a search of this memory's files. Memories of several kinds may share a file."""
    first = memory.paths()[0]
    return first.with_name(f"{first.name}-{type(memory).__name__}-search-{name}")


def texts_of(items: Iterable[MemoryItem]) -> list[str]:
    """Return all that items say, each text once: their texts, topics, names and aliases."""
    return list(dict.fromkeys(text for item in items for text in said_by(item)))


def said_by(item: MemoryItem) -> list[str]:
    """Return the texts of an item: what it says, its topic, its name and its aliases."""
    return [text for text in (item.text, item.topic, item.name, *item.aliases) if text]


def said_in(text: str | None, wanted: Collection[str]) -> set[str]:
    """Return those of the wanted texts that are a part of this."""
    return {each for each in wanted if text and each in text}


def _unverified(items: int, why: str) -> Erasure:
    return Erasure(items=items, files=0, found=(), verified=False, why=why)
