"""`MemorySlot`: a long-term memory that is attached to sessions, with its name and section."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

from turnwise.memory.longterm.base import LongTermMemory, Scope, has_profiles, limits_categories
from turnwise.memory.longterm.retention.deletion import Erasure


@dataclass(frozen=True, kw_only=True)
class MemorySlot:
    """A memory with its name. The memory limits the duration of each call itself."""

    memory: LongTermMemory
    name: str
    section: str | None
    """The heading of the memory's items in requests; see `prompt_sections.RetrievalResult`."""
    is_used: bool = True
    """Whether sessions search it and save in it automatically. False for a memory that only an overflow strategy writes
    to; it must forget like the others."""
    max_tokens: int | None = None
    """How many tokens its items may take in a request; None for no limit of its own."""

    @cached_property
    def has_profiles(self) -> bool:
        """Whether the memory has user profiles."""
        return has_profiles(self.memory)

    @cached_property
    def limits_categories(self) -> bool:
        """Whether its recalls can be limited for each category by itself."""
        return limits_categories(self.memory)


@runtime_checkable
class Eraser(Protocol):
    """A memory in another process, which verifies deletions there."""

    async def erase(
        self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None
    ) -> Erasure:
        """See `deletion.erase`."""
