"""`MemorySlot`: a long-term memory that is attached to sessions, with its name and section."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from turnwise.memory.longterm.base import LongTermMemory, Scope
from turnwise.memory.longterm.deletion import Erasure


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySlot:
    """A memory with its name. The memory itself limits the duration of each call."""

    memory: LongTermMemory
    name: str
    section: str | None
    """See `sections.Recalled`."""
    is_used: bool = True
    """Whether sessions recall from it, and save in it by themselves. One that only an overflow strategy writes is not,
    and yet has to forget."""


@runtime_checkable
class Eraser(Protocol):
    """A memory that lives elsewhere, and has what it forgets looked for there."""

    async def erase(
        self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None, files: bool = False
    ) -> Erasure:
        """See `erasing.erase`; with `files`, `file_search.begin`, and search on behind everything else."""
