"""`FileIndex`: what a session store keeps of files: who has which, and which bytes nobody needs any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from turnwise.errors import FilesUnavailableError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.files.records import FileLimits, FileRecord


@runtime_checkable
class FileIndex(Protocol):
    """Optional protocol of a session store that keeps records of files. `stores/conformance/files.py` has its laws.

    **Objects.** The bytes of a file are an *object* of a file store, whose name is never used again. An object is
    *reserved* before its bytes are written, *used* while files have it, and *unused* from then on for good. So whoever
    deletes the bytes of an unused object, however late, deletes nothing that somebody needs.

    The store's `create` gives a fork the files of the session that it was forked from, and its `delete` deletes those
    of the session, in the same transaction. Each method is one transaction, and raises as `SessionStore` says.
    """

    async def now(self) -> float:
        """See `SessionStore.now`."""

    async def reserve_object(self, object_id: str, user_id: str) -> None:
        """Note that the bytes of an object are about to be written."""

    async def release_object(self, object_id: str) -> None:
        """Make a reserved object unused: no file can be added with it any more. Does nothing if it is used."""

    async def add_file(self, file: FileRecord, limits: FileLimits) -> FileRecord:
        """Store a file, and return it as it is stored.

        If the user has a file with its digest, it gets that one's object, and its own becomes unused. If its session
        has a file of its id already, that one is returned, and its own object becomes unused too.

        Raises:
            SessionNotFoundError: there is no such session; nothing was stored.
            FileRefusedError: it would break a limit; nothing was stored.
            FileExpiredError: nobody has its content, and its object is not reserved; nothing was stored.
        """

    async def file(self, key: SessionKey, file_id: str) -> FileRecord | None:
        """Return a file of a session, or of a user: see `FileRecord.key`. None if there is none."""

    async def files(self, key: SessionKey, *, after: str = "", limit: int = 100) -> list[FileRecord]:
        """Return up to `limit` files of a session, or of a user, with an id above `after`, by id."""

    async def delete_file(self, key: SessionKey, file_id: str) -> bool:
        """Delete a file of a session, or of a user; return whether there was one. Its object may become unused."""

    async def forget_files(self, user_id: str) -> int:
        """Delete all files of a user, also those of sessions; return how many there were."""

    async def unused_objects(self, reserved_before: float, *, limit: int = 100) -> list[str]:
        """Return up to `limit` unused objects. Those that were reserved before a time become unused first."""

    async def drop_objects(self, object_ids: Sequence[str]) -> None:
        """Forget unused objects, whose bytes are deleted. Does nothing for others."""


def keeps_files(store: object) -> bool:
    """Return whether the store keeps records of files. One that wraps another has an attribute `keeps_files`."""
    return isinstance(store, FileIndex) and bool(getattr(store, "keeps_files", True))


def file_index(store: object) -> FileIndex:
    """Return the store if it keeps records of files.

    Raises:
        FilesUnavailableError: it does not.
    """
    if keeps_files(store) and isinstance(store, FileIndex):
        return store
    raise FilesUnavailableError(str(store), "the store has no table of files: use one of turnwise's own")
