"""`MemoryAccess`: the protocol by which the tools and engines of a session's runs use its memories.

`SessionMemoryAccess` implements it. Programs use that class through `session.memory`; only they may call its further
methods, `pin` and `recall_apart`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol, Unpack

from turnwise.memory.longterm.base import ItemChanges, MemoryItem
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.retention.about import About, Deleted
from turnwise.memory.stores.base import Page

MEMORY_TOOLS = frozenset(
    {
        *("save_memory", "recall_memories", "update_memory", "delete_memory"),
        *("forget_about", "read_notes", "replace_notes", "add_to_notes"),
    }
)
"""Tools by which a model uses the memories. Their calls are not saved to long-term memory: see `turn_item`."""

FORGETTING_TOOL = "forget_about"
"""The tool by which a model forgets a subject. A turn in which it was called says the subject, so it is not saved."""


class MemoryAccess(Protocol):
    """Saves, recalls, changes and deletes for one session, and keeps its notes: the text of the working memory.

    User, session and agent come from the session and are not arguments, so no call reaches another user's memory.
    When a method has returned, its change stays, even if the run is cancelled or fails. Call the methods on the
    session's event loop.

    Every method may raise, in addition to the errors that it lists:
        LongTermMemoryError: a long-term memory failed; the change may or may not have been made.
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
        memory: str | None = None,
    ) -> str:
        """Keep a text in long-term memory; return its id.

        Args:
            memory: the name of the memory, as in `MemoryItem.memory`; the first writable one if left out.
            topic: the subject of the text, in a word or two.
            name: the proper name of its subject; `aliases` are other names of the same subject. A query with one of
                them ranks the item first.
            expires_at: the time from which it is not recalled, in seconds since the epoch; never if left out.
            id: the item's id, which makes the call idempotent: if the user has an item with this id, or had one that
                was deleted, nothing is saved. A new id if left out.

        Raises:
            InvalidMemoryError: it cannot be kept.
            InvalidInputError: the session has no memory of this name.
            ReadOnlyMemoryError: the memory is read-only, or all are, or the run may only read.
        """

    async def recall(
        self, query: str, *, limit: int = 10, types: Collection[MemoryType] | None = None, as_of: float | None = None
    ) -> list[MemoryItem]:
        """Return up to `limit` items that are relevant to the query, the best first. See `LongTermMemory.recall`.

        A memory may return items with a score of 0 for any query; they come last, after the other items of all
        memories. A memory that fails is left out; LongTermMemoryError is raised if all fail.
        """

    async def list_items(
        self,
        *,
        types: Collection[MemoryType] | None = None,
        limit: int = 100,
        cursor: str | None = None,
        memory: str | None = None,
    ) -> Page[MemoryItem]:
        """Return a page of the items of one memory after the other, the newest of each first. See `Listing`.

        Args:
            types: the types of items to return; all if left out.
            cursor: the cursor of the previous page; None for the first page.
            memory: the name of the memory, which may be read-only; all writable ones if left out.

        Raises:
            InvalidInputError: the session has no memory of this name, or the cursor is invalid.
        """

    async def update(
        self, id: str, text: str | None = None, *, type: MemoryType | None = None, **changes: Unpack[ItemChanges]
    ) -> bool:
        """Change the given fields of an item, see `LongTermMemory.update`; return whether the item exists.

        Raises:
            InvalidMemoryError: the changed item would be invalid; nothing was changed.
            ReadOnlyMemoryError: all memories are read-only, or the run may only read.
        """

    async def delete(self, ids: Collection[str]) -> Deleted:
        """Delete these items; return how many existed, and what is left of the turns that they come from.

        Unknown ids and ids of other users are ignored.

        Raises:
            ReadOnlyMemoryError: all memories are read-only, or the run may only read.
        """

    async def find_about(self, text: str) -> About:
        """Return what `forget_about` would delete for this text, and what is similar.

        Raises:
            InvalidInputError: the text has no content word.
            ReadOnlyMemoryError: all memories are read-only, and there are no notes.
        """

    async def forget_about(self, what: str | About) -> About:
        """Delete what memories and notes have about the subject of a text, or what `find_about` returned of it.

        Returns what was deleted. See `SessionMemory.forget_about` for what belongs to a subject. May be repeated.

        Raises:
            InvalidInputError: the text has no content word; or the session has no writable memory of this name.
            NotForgottenError: a memory or the notes failed; the error says what is left and what is gone.
            ReadOnlyMemoryError: all memories are read-only, and there are no notes; or the run may only read.
        """

    async def read_notes(self) -> str:
        """Return the text of the working memory."""

    async def replace_notes(self, content: Any) -> str:
        """Replace the text of the working memory; return the new text. See `WorkingMemory.replace`.

        Raises:
            WorkingMemoryError: the new text would not fit the format, or be too long; nothing was changed.
        """

    async def clear_notes(self) -> bool:
        """Reset the working memory to the initial text of its format; return whether a text was stored."""

    async def merge_notes(self, content: Any) -> str:
        """Merge the content into the working memory as its format defines; return the new text.

        Raises:
            WorkingMemoryError: the new text would not fit the format, or be too long; nothing was changed.
        """
