"""Long-term memory: what outlives a conversation's window."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from turnwise.memory.blocks import Block, encode
from turnwise.memory.spans import Spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose memory it is. It comes from the session, never from a model's arguments."""

    user_id: str
    session_id: str | None = None
    """None for what belongs to all of the user's sessions."""
    agent: str | None = None
    """None for what belongs to all of the user's agents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where an item comes from."""

    session_id: str
    turn_index: int | None = None
    spans: Spans = ()
    """Its blocks, by log and position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryItem:
    """Something to remember. The same `id` is the same item: remembering it again changes nothing."""

    id: str
    text: str
    source: Source
    blocks: tuple[Block, ...] = ()
    """What was said, for memories that make more of it than the text."""
    created_at: float = 0.0
    """Seconds since the epoch, UTC."""


class LongTermMemory(Protocol):
    """Keeps items for those whom a scope names, and finds them again.

    A memory that nobody may write has an attribute `read_only` that is true; see `is_read_only`. Each verb may raise;
    one memory's failure is no other's.
    """

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        """Keep the items; return the ids of those that are durable now. Idempotent by id."""

    async def recall(self, scope: Scope, query: str, *, limit: int = 10) -> Sequence[MemoryItem]:
        """Return what bears on the query, the best first."""

    async def update(self, scope: Scope, id: str, text: str) -> bool:
        """Change an item; return whether it was there."""

    async def forget(self, scope: Scope, ids: Collection[str] | None = None) -> int:
        """Delete these items, or all of the scope; return how many were there."""

    async def close(self) -> None:
        """Let go of what it holds. Closing twice is fine."""


def is_read_only(memory: object) -> bool:
    """Return whether nobody may write to the memory, as to one of static facts."""
    return bool(getattr(memory, "read_only", False))


def item_id(spans: Spans, blocks: Sequence[Block]) -> str:
    """Return the id of an item that is made of these blocks, which stand there: the same each time, and no others'.

    It also says what they hold, since another store numbers its logs likewise.
    """
    held = hashlib.sha256("\n".join(map(encode, blocks)).encode()).hexdigest()[:16]
    return ",".join(f"{log}:{start}-{stop}" for log, start, stop in spans) + f"~{held}"
