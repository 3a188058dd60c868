"""`OwnedFiles`: the files of one session or user, as tools of its runs have them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeAlias

from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.files.access import FileAccess
from turnwise.memory.files.base import FileData
from turnwise.memory.files.records import FileRecord

_Files: TypeAlias = list[FileRecord]
"""In the class below, `list` is a method."""


class OwnedFiles:
    """The files of one session. It is no argument, so no call reaches another session's.

    A change is durable on return, and stays if the run is cancelled or fails. Call the methods on the session's event
    loop. Each may raise StoreError.

    Args:
        only_own: whether files that the user has put into no session are left out.
    """

    def __init__(self, access: FileAccess, key: SessionKey, *, only_own: bool = False) -> None:
        self._access = access
        self._key = key
        self._find = access.info if only_own else access.use

    async def put(self, name: str, data: FileData, media_type: str | None = None) -> FileRecord:
        """Store a file, and return it; see `FileAccess.put`.

        Raises:
            FileRefusedError: a name, a type or a size that cannot be stored; nothing was stored.
        """
        return await self._access.put(self._key, name, data, media_type)

    async def get(self, file_id: str) -> bytes:
        """Return the bytes of a file of the session, or of its user.

        Raises:
            FileNotStoredError: there is none.
        """
        return await self._access.bytes_of(await self._find(self._key, file_id))

    async def info(self, file_id: str) -> FileRecord:
        """Return the record of a file of the session, or of its user; see `get`."""
        return await self._find(self._key, file_id)

    async def read(self, file_id: str) -> AsyncIterator[bytes]:
        """Yield the bytes of a file in pieces; see `get`."""
        async for piece in self._access.read(await self._find(self._key, file_id)):
            yield piece

    async def list(self, after: str = "", limit: int = 100) -> _Files:
        """Return up to `limit` files of the session with an id above `after`, by id."""
        return await self._access.list(self._key, after=after, limit=limit)

    async def delete(self, file_id: str) -> bool:
        """Delete a file of the session; return whether there was one."""
        return await self._access.delete(self._key, file_id)
