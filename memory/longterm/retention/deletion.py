"""Secure deletion: forgets items, and verifies that what the deletion changed no longer contains their texts."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from turnwise.errors import CorruptRecordError, StoreError
from turnwise.memory.longterm.base import LongTermMemory, MemoryItem, Scope, is_read_only
from turnwise.memory.longterm.retention import byte_search
from turnwise.memory.stores.sql.touched_pages import noting


@runtime_checkable
class Scrubbing(Protocol):
    """Methods of a store that can remove all traces of deleted data from its files."""

    async def scrub(self) -> None:
        """Remove all traces of deleted data from the files: O(all stored data). Other calls may wait meanwhile.

        Raises:
            StoreError: the store fails, or other processes use the files. Nothing is lost; try again.
        """

    def paths(self) -> Sequence[Path]:
        """Return all files and folders of this machine that hold data; empty if a server holds any of it."""


@runtime_checkable
class Erasing(Scrubbing, Protocol):
    """Methods of a memory whose deletions can be verified."""

    async def texts(
        self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None
    ) -> list[str]:
        """Return texts and topics of the items that `forget` would delete with these arguments, superseded ones too."""

    async def scrub(self, files: Collection[str] | None = None) -> None:
        """Rewrite the files, or only these: see `Scrubbing`."""

    async def still_contains(self, texts: Collection[str]) -> set[str]:
        """Return those of these texts that an item of any user still contains, whole or as a part of its text."""


@runtime_checkable
class Overwriting(Protocol):
    """Methods of a memory that stores more than the texts of items, such as vectors."""

    async def keys(
        self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None
    ) -> list[str]:
        """Return the keys of the data beside texts of the items that `forget` would delete with these arguments."""

    async def overwrite(self, keys: Collection[str]) -> None:
        """Overwrite deleted data, and check that nothing with these keys is left: O(recent changes).

        Raises:
            StoreError: the overwriting failed, or data is left. Nothing is lost; try again.
        """


@dataclass(frozen=True, kw_only=True)
class Erasure:
    """The report of a deletion: how many items, and whether any of their texts was found afterwards."""

    items: int
    """How many items were deleted."""
    files: int
    """How many files were searched for the texts, whole or in parts. Of several deletions, the most that one took."""
    found: tuple[str, ...]
    """The files that still contain some of the texts."""
    verified: bool
    """Whether the search is complete and found nothing."""
    why: str | None = None
    """Why the deletion is not verified although nothing was found."""

    def __add__(self, other: Erasure) -> Erasure:
        """Return the report of both deletions. It is verified if both are."""
        return Erasure(
            items=self.items + other.items,
            files=max(self.files, other.files),
            found=tuple(sorted({*self.found, *other.found})),
            verified=self.verified and other.verified,
            why=self.why or other.why,
        )


async def erase(  # noqa: PLR0911 - each outcome is returned where it is known
    memory: LongTermMemory,
    scope: Scope,
    ids: Collection[str] | None = None,
    *,
    turn_index: int | None = None,
) -> Erasure:
    """Delete items from a memory, and verify that what the deletion changed no longer contains their texts.

    The memory is asked whether it still has the items, vectors are overwritten, and the log and the free space of the
    SQLite pages that the deletion wrote are searched. The cost depends on the deleted items only. If a text is found
    there, the file is rewritten: SQLite sometimes leaves a copy of a row when it moves the row to another page. A copy
    in a page that the deletion did not write is not found.

    Each text and topic is searched for in UTF-8 and within JSON, in pieces, so that a part of it is found too. Texts
    that a remaining item also contains are allowed, and so are texts of less than 5 bytes, which occur in any file by
    chance. A read-only memory has nothing to delete. Data on a server cannot be verified from here: `verified` is then
    false, and `why` says so.

    Raises:
        InvalidInputError: `turn_index` was given without a session or together with ids; nothing is deleted.
        StoreError: the memory cannot be read or the deletion fails. A deletion that could not be verified is not an
            error: `why` says so.
    """
    if is_read_only(memory):
        return Erasure(items=0, files=0, found=(), verified=True)
    which: dict[str, Any] = {} if turn_index is None else {"turn_index": turn_index}
    if not isinstance(memory, Erasing):
        items = await memory.forget(scope, ids, **which)
        return _unverified(items, f"{type(memory).__name__} does not say in which files it stores items")
    try:
        texts = await memory.texts(scope, ids, **which)
    except CorruptRecordError as error:  # unreadable items can be deleted, but not searched for
        return _unverified(await memory.forget(scope, ids, **which), str(error))
    keys = await memory.keys(scope, ids, **which) if isinstance(memory, Overwriting) else []
    pages: dict[Path, set[int]] = {}
    with noting(pages):
        items = await memory.forget(scope, ids, **which)
    try:
        if isinstance(memory, Overwriting):
            await memory.overwrite(keys)
        if not memory.paths():
            return _unverified(items, "the data is not in files of this machine, so it cannot be searched")
        if await memory.texts(scope, ids, **which):
            return _unverified(items, "matching items were saved meanwhile; repeat the deletion")
        result = await asyncio.to_thread(byte_search.search, pages, texts)
        files = await _still_there(memory, result.pieces)
        if files:  # SQLite sometimes leaves a copy of a row that it moves to another page
            await memory.scrub(files)
            result = await asyncio.to_thread(byte_search.search, dict.fromkeys(pages), texts)
            files = await _still_there(memory, result.pieces)
    except (StoreError, OSError) as error:
        return _unverified(items, str(error))
    return Erasure(items=items, files=result.files, found=files, verified=not files)


async def _still_there(memory: Erasing, pieces: dict[str, list[str]]) -> tuple[str, ...]:
    """Return the files in which pieces were found that no remaining item contains."""
    remaining = await memory.still_contains(pieces)
    return tuple(sorted({file for piece, files in pieces.items() if piece not in remaining for file in files}))


def texts_of(items: Iterable[MemoryItem]) -> list[str]:
    """Return the texts, topics, names and aliases of items, each once."""
    return list(dict.fromkeys(text for item in items for text in texts_in_item(item)))


def texts_in_item(item: MemoryItem) -> list[str]:
    """Return an item's text, topic, name and aliases."""
    return [text for text in (item.text, item.topic, item.name, *item.aliases) if text]


def contained_texts(text: str | None, texts: Collection[str]) -> set[str]:
    """Return which of these texts are a part of `text`."""
    return {candidate for candidate in texts if text and candidate in text}


def _unverified(items: int, reason: str) -> Erasure:
    return Erasure(items=items, files=0, found=(), verified=False, why=reason)
