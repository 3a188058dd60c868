"""What the memories of a session do for whoever acts in it, such as a tool."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol, Unpack

from turnwise.memory.longterm.base import ItemChanges, MemoryItem
from turnwise.memory.longterm.types import MemoryType

DESK_TOOLS = frozenset(
    {"save_memory", "recall_memories", "update_memory", "delete_memory", "read_notes", "replace_notes", "add_to_notes"}
)
"""Tools by which a model uses the memories. What they are told and what they tell is not remembered itself."""


class MemoryAccess(Protocol):
    """Saves, recalls, changes and deletes for one session, and keeps its notes.

    The session says whose memory it is: user, session and agent are no arguments, so none leads to another's. Each verb
    is one change or nothing, and what it has acknowledged stays, however the run ends. Its verbs are for the event loop
    of the session.

    Raises, beside what the verbs say:
        LongTermMemoryError: a long-term memory failed, so what was asked may have been done or not.
        StoreError: the notes could not be read or written.
        NoMemoryError: the session has no memory of the kind.
    """

    async def save(
        self,
        text: str,
        *,
        type: MemoryType = MemoryType.GENERAL,
        topic: str | None = None,
        id: str | None = None,
        name: str | None = None,
        aliases: Sequence[str] = (),
        expires_at: float | None = None,
    ) -> str:
        """Keep a text in long-term memory; return its id.

        Args:
            topic: what it is about, in a word or two.
            name: its own name, and `aliases` other names of the same, by which it is found first.
            expires_at: from when on it is not recalled, in seconds since the epoch; never if left out.
            id: what to keep it under, so that the call may be repeated: what the user has under this id, or has
                deleted, stays as it is. A new one if left out.

        Raises:
            InvalidMemoryError: it cannot be kept.
            ReadOnlyMemoryError: the session's memories are for reading.
        """

    async def recall(
        self, query: str, *, limit: int = 10, types: Collection[MemoryType] | None = None, as_of: float | None = None
    ) -> list[MemoryItem]:
        """Return up to `limit` items that bear on the query, the best first. See `LongTermMemory.recall`.

        A memory that fails is left out; LongTermMemoryError is raised if all do.
        """

    async def update(
        self, id: str, text: str | None = None, *, type: MemoryType | None = None, **changes: Unpack[ItemChanges]
    ) -> bool:
        """Change what is given of an item, see `LongTermMemory.update`; return whether it was there.

        Raises:
            InvalidMemoryError: it could not be kept.
            ReadOnlyMemoryError: it is of a memory that is for reading.
        """

    async def delete(self, ids: Collection[str]) -> int:
        """Delete these items; return how many were there. An id that is not there, or is another's, is no error.

        Raises:
            ReadOnlyMemoryError: one is of a memory that is for reading.
        """

    async def read_notes(self) -> str:
        """Return what the working memory says."""

    async def replace_notes(self, content: Any) -> str:
        """Put the content in the place of what the working memory says; return that. See `WorkingMemory.replace`.

        Raises:
            WorkingMemoryError: it would not be of the form, or too long; it stays as it was.
        """

    async def merge_notes(self, content: Any) -> str:
        """Add the content to the working memory, as its form says; return what it says then.

        Raises:
            WorkingMemoryError: it would not be of the form, or too long; it stays as it was.
        """
