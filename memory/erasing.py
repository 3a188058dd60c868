"""Forgetting so that nothing is left in the files, and looking whether it is so."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from turnwise.errors import StoreError
from turnwise.memory.long_term import LongTermMemory, MemoryItem, Scope, is_read_only


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

    async def keeps(self, texts: Collection[str]) -> set[str]:
        """Return those of these texts that some item still says, of whomever, be it as a part of what it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """What was forgotten, and whether anything of it was found afterwards."""

    items: int
    """How many there were."""
    files: int
    """How many files were searched for their texts."""
    found: tuple[str, ...]
    """The files in which something of it stands still."""
    verified: bool
    """Whether all files were searched, and nothing was found."""
    why: str | None = None
    """Why not, if nothing was found."""


async def erase(
    memory: LongTermMemory, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None
) -> Erasure:
    """Have a memory forget, scrub its files, and search their bytes for what the forgotten items said.

    Each text and topic is looked for in UTF-8 and within JSON, in pieces, so that a part of it is found too. What an
    item that is kept says as well may stand there; so may texts of less than 5 bytes, which are in any file by chance.
    A file is searched whole: what other stores have in it is found too. A memory that nobody may write has nothing to
    forget.

    Raises:
        InvalidInputError: a turn without its session, or together with ids; nothing is forgotten.
        StoreError: the memory cannot be read or does not forget. If it forgot, and its files could not be scrubbed or
            searched, that is no error: `why` says so.
    """
    if is_read_only(memory):
        return Erasure(items=0, files=0, found=(), verified=True)
    which: dict[str, Any] = {} if turn_index is None else {"turn_index": turn_index}
    if not isinstance(memory, Erasing):
        items = await memory.forget(scope, ids, **which)
        return _unverified(items, f"{type(memory).__name__} does not say where it keeps what it is told")
    from turnwise.memory.byte_search import search  # whose numpy a process that erases nothing need not load

    texts = await memory.texts(scope, ids, **which)
    items = await memory.forget(scope, ids, **which)
    try:
        await memory.scrub()
        paths = memory.paths()
        if not paths:
            return _unverified(items, "it is not kept in files of this machine, so nobody here can look")
        found = await asyncio.to_thread(search, paths, texts)
        kept = await memory.keeps(found.pieces)
    except (StoreError, OSError) as error:
        return _unverified(items, str(error))
    files = sorted({file for piece, files in found.pieces.items() if piece not in kept for file in files})
    why = f"cannot be read: {'; '.join(found.unread)}" if found.unread else None
    verified = not files and why is None
    return Erasure(items=items, files=found.files, found=tuple(files), verified=verified, why=why)


def texts_of(items: Iterable[MemoryItem]) -> list[str]:
    """Return the texts and topics of items, each once."""
    return list(dict.fromkeys(text for item in items for text in (item.text, item.topic) if text))


def said_in(text: str | None, wanted: Collection[str]) -> set[str]:
    """Return those of the wanted texts that are a part of this."""
    return {each for each in wanted if text and each in text}


def _unverified(items: int, why: str) -> Erasure:
    return Erasure(items=items, files=0, found=(), verified=False, why=why)
