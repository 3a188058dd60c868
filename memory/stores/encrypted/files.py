"""`EncryptedFiles`: encrypts the bytes of files with the keys of their users, and stores them in another file store.

An object is a row of frames, each encrypted by itself: `PIECE_BYTES` of the file; the last has as many or fewer. A
frame is bound to its user, its object, its number, and to whether it is the last. So frames cannot be moved, left out
or cut off unnoticed, and a part of a file is read without the frames before it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from turnwise.errors import CorruptRecordError
from turnwise.memory.files.base import PIECE_BYTES, FileStore
from turnwise.memory.stores.encrypted.keys import OVERHEAD_BYTES, KeyRing, Place, UserKey
from turnwise.memory.stores.encrypted.settings import Encryption

_FRAME_BYTES = PIECE_BYTES + OVERHEAD_BYTES


class EncryptedFiles:
    """See `FileStore`. Methods also raise `KeyMissingError` for a user without a key, and `WrongKeyError`.

    Raises:
        ConfigError: `cryptography` is not installed.
    """

    def __init__(self, inner: FileStore, encryption: Encryption) -> None:
        self._inner = inner
        self._keys = KeyRing(encryption)
        self.is_local = inner.is_local

    async def write(self, object_id: str, user_id: str, pieces: AsyncIterator[bytes]) -> None:
        """See `FileStore.write`."""
        await self._inner.write(object_id, user_id, _sealed(await self._keys.of(user_id), object_id, pieces))

    async def read(self, object_id: str, user_id: str, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
        """See `FileStore.read`."""
        key = await self._keys.of(user_id)
        number = start // PIECE_BYTES
        place, held = number * PIECE_BYTES, bytearray()
        async with aclosing(self._inner.read(object_id, user_id, number * _FRAME_BYTES)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                held += piece
                while len(held) > _FRAME_BYTES:  # so it is not the last one
                    plain = key.open_bytes(_place(object_id, number, is_last=False), bytes(held[:_FRAME_BYTES]))
                    del held[:_FRAME_BYTES]
                    yield _between(plain, place, start, stop)
                    number, place = number + 1, place + len(plain)
                    if stop is not None and place >= stop:
                        return
        if not held and number == 0:
            raise CorruptRecordError(f"file object {object_id}", "its bytes are missing")
        if held:
            plain = key.open_bytes(_place(object_id, number, is_last=True), bytes(held))
            yield _between(plain, place, start, stop)

    async def delete(self, object_id: str) -> None:
        """See `FileStore.delete`. Needs no key."""
        await self._inner.delete(object_id)

    async def close(self) -> None:
        """See `FileStore.close`."""
        await self._inner.close()


async def _sealed(key: UserKey, object_id: str, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    held, number = bytearray(), 0
    async for piece in pieces:
        held += piece
        while len(held) > PIECE_BYTES:
            yield key.seal_bytes(_place(object_id, number, is_last=False), bytes(held[:PIECE_BYTES]))
            del held[:PIECE_BYTES]
            number += 1
    yield key.seal_bytes(_place(object_id, number, is_last=True), bytes(held))


def _place(object_id: str, number: int, *, is_last: bool) -> Place:
    return Place("file object", object_id, (object_id, number, int(is_last)))


def _between(plain: bytes, place: int, start: int, stop: int | None) -> bytes:
    """Return the part of a frame's bytes, which begin at `place`, that was asked for."""
    return plain[max(0, start - place) : None if stop is None else max(0, stop - place)]
