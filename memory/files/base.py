"""`FileStore`: the protocol of what keeps the bytes of files, and how a caller's data is read in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import BinaryIO, Protocol, TypeAlias, cast

from turnwise.errors import FileRefusedError, shown

PIECE_BYTES = 1 << 20
"""How much is read or written at once."""

FileData: TypeAlias = bytes | bytearray | memoryview | BinaryIO | Iterable[bytes] | AsyncIterable[bytes]
"""The content of a file: bytes, a binary file that is open for reading, or what yields pieces of it."""


class FileStore(Protocol):
    """Keeps objects: bytes by a name that is used once. Written whole or not at all; they do not change.

    Methods raise `StoreError` if the folder or the service cannot be reached.
    """

    is_local: bool
    """Whether only processes of this machine find what was written."""

    async def write(self, object_id: str, user_id: str, pieces: AsyncIterator[bytes]) -> None:
        """Store an object. On return it survives a crash of the machine; if this raises, nothing can be read."""

    def read(self, object_id: str, user_id: str, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
        """Yield the bytes of an object from `start` up to, and without, `stop`.

        Raises:
            CorruptRecordError: it is missing, or was changed.
        """

    async def delete(self, object_id: str) -> None:
        """Delete an object, if it exists."""

    async def close(self) -> None:
        """Close connections. Closing twice is fine."""


async def pieces_of(name: str, data: FileData) -> AsyncIterator[bytes]:
    """Yield a caller's data in pieces of at most `PIECE_BYTES`. What blocks is read in a thread.

    Raises:
        FileRefusedError: it is no data, or yields anything but bytes.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PIECE_BYTES):
            yield bytes(view[start : start + PIECE_BYTES])
        return
    if callable(read := getattr(data, "read", None)):
        while piece := _checked(name, await asyncio.to_thread(read, PIECE_BYTES)):
            yield piece
        return
    if isinstance(data, AsyncIterable):
        async for piece in data:
            for part in _parts(_checked(name, piece)):
                yield part
        return
    if isinstance(cast(object, data), str) or not isinstance(data, Iterable):
        raise FileRefusedError(shown(name), f"pass bytes or a binary file, not {type(data).__name__}")
    iterator = iter(data)

    def following() -> bytes | None:
        return next(iterator, None)

    while (found := await asyncio.to_thread(following)) is not None:
        for part in _parts(_checked(name, found)):
            yield part


def _checked(name: str, piece: object) -> bytes:
    if isinstance(piece, bytes):
        return piece
    if isinstance(piece, bytearray | memoryview):
        return bytes(piece)
    raise FileRefusedError(shown(name), f"its data must be bytes, not {type(piece).__name__}: open it in binary mode")


def _parts(piece: bytes) -> Iterable[bytes]:
    return (piece[start : start + PIECE_BYTES] for start in range(0, len(piece), PIECE_BYTES))
