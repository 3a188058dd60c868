"""`NoteStore`: the protocol of stores for notes, one text per session and one per user, which are often rewritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from turnwise.errors import StoreClosedError
from turnwise.memory.conversation.codec import decode_text, decoded
from turnwise.memory.conversation.ids import check_names
from turnwise.memory.longterm.base import Scope

Change = Callable[[str | None], str | None]
"""Takes the stored text, None if there is none; returns the new text. Must be pure, since it may be called again."""


@runtime_checkable
class NoteStore(Protocol):
    """Durable storage of notes. A scope with a session has that session's note, another scope the user's.

    The agent of a scope does not matter. A note is not an item: recall does not find it, it has no history, and it can
    be written again after a deletion. Methods raise `StoreError` if the store cannot be reached, read or written.
    """

    async def read(self, scope: Scope) -> str | None:
        """Return the note, None if there is none."""

    async def change(self, scope: Scope, change: Change) -> str | None:
        """Replace the note by the result of `change`; return the new note.

        Each change is one transaction: of two concurrent changes, the second gets the note that the first one stored.
        If `change` raises, nothing changes.
        """

    async def purge(self, user_id: str, *, session_id: str | None = None) -> int:
        """Delete a session's note, or all notes of a user and the user's sessions; return how many existed."""

    async def close(self) -> None:
        """Close connections and files. Closing twice is fine; any other call afterwards raises StoreClosedError."""


def check_scope(scope: Scope) -> None:
    """Raise unless each store can keep a note of this scope.

    Raises:
        NameRefusedError: see `check_names`.
    """
    check_names("user_id, session_id", scope.user_id, scope.session_id)


def decode_note(scope: Scope, stored: str | None) -> str | None:
    """Return the note from its stored JSON text; None if there is none.

    Raises:
        CorruptRecordError: the stored text is damaged.
    """
    key = f"note of session {scope.session_id!r} of user {scope.user_id!r}"
    return None if stored is None else decoded(key, lambda: decode_text(stored))


class InMemoryNotes:
    """Stores notes in memory while the process lives."""

    def __init__(self) -> None:
        self._notes: dict[tuple[str, str | None], str] = {}
        self._closed = False

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("InMemoryNotes lives in its process and cannot be sent to another: use SQLNotes")

    async def read(self, scope: Scope) -> str | None:
        self._check_open()
        return self._notes.get((scope.user_id, scope.session_id))

    async def change(self, scope: Scope, change: Change) -> str | None:
        self._check_open()
        check_scope(scope)
        key = (scope.user_id, scope.session_id)
        text = change(self._notes.get(key))
        if text is None:
            self._notes.pop(key, None)
        else:
            self._notes[key] = text
        return text

    async def purge(self, user_id: str, *, session_id: str | None = None) -> int:
        self._check_open()
        found = [key for key in self._notes if key[0] == user_id and session_id in (None, key[1])]
        for key in found:
            del self._notes[key]
        return len(found)

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("InMemoryNotes()")
