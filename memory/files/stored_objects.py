"""`StoredObjects`: objects in the session store itself, for sessions in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from turnwise.memory.files.base import PIECE_BYTES


@runtime_checkable
class ObjectKeeper(Protocol):
    """A session store in memory, which keeps objects too."""

    async def put_object(self, object_id: str, data: bytes) -> None:
        """Store an object."""

    async def get_object(self, object_id: str) -> bytes:
        """Return an object.

        Raises:
            CorruptRecordError: it is missing.
        """

    async def delete_object(self, object_id: str) -> None:
        """Delete an object, if it exists."""


class StoredObjects:
    """Keeps objects in a session store in memory. Each is held whole, so limits of files are limits of memory."""

    is_local = False

    def __init__(self, store: ObjectKeeper) -> None:
        self._store = store

    async def write(self, object_id: str, user_id: str, pieces: AsyncIterator[bytes]) -> None:
        """See `FileStore.write`."""
        await self._store.put_object(object_id, b"".join([piece async for piece in pieces]))

    async def read(self, object_id: str, user_id: str, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
        """See `FileStore.read`."""
        data = (await self._store.get_object(object_id))[start:stop]
        for place in range(0, len(data), PIECE_BYTES):
            yield data[place : place + PIECE_BYTES]

    async def delete(self, object_id: str) -> None:
        """See `FileStore.delete`."""
        await self._store.delete_object(object_id)

    async def close(self) -> None:
        """See `FileStore.close`. The store is closed by whoever opened it."""
