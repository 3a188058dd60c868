"""`RedisFiles`: the records of files in Redis, as `RedisStore` keeps them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from typing import Any

from turnwise.errors import FileExpiredError
from turnwise.memory.conversation.codec import decode_record
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.files.records import FileLimits, FileRecord
from turnwise.memory.values.ids import digest_of
from turnwise.memory.values.records import record_text

Do = Callable[..., Awaitable[list[Any]]]
"""Runs a script of the store's: its name, its arguments, the session for errors, and whether it may be repeated."""

_TEXT = {field.name for field in fields(FileRecord)} - {"user_id", "session_id", "object_id", "size"}


def place_of(key: SessionKey) -> tuple[str, str]:
    """Return the user and the owner of files, as the names of keys have them."""
    return digest_of(key.user_id, "").hex(), digest_of(key.user_id, key.session_id).hex()


class RedisFiles:
    """See `FileIndex`; each method is one script."""

    def __init__(self, do: Do) -> None:
        self._do = do

    async def reserve(self, object_id: str, user_id: str) -> None:
        await self._do("reserve_object", [object_id, place_of(SessionKey("", user_id))[0]])

    async def release(self, object_id: str) -> None:
        await self._do("release_object", [object_id])

    async def add(self, file: FileRecord, limits: FileLimits, session: bytes) -> FileRecord:
        """See `FileIndex.add_file`.

        Args:
            session: the name under which its session is found; empty for a file of its user alone.
        """
        names = [session, *place_of(file.key), file.file_id, file.digest, file.object_id, file.size]
        bounds = [limits.session_files, limits.session_bytes, limits.user_bytes]
        word, *values = await self._do("add_file", [*names, record_text(file, _TEXT), *bounds], file.key)
        if word == b"expired":
            raise FileExpiredError(file.file_id)
        if word == b"full":
            limits.check_count(file.name, *map(int, values))
        return _read(file.key, values[0])

    async def get(self, key: SessionKey, file_id: str) -> FileRecord | None:
        (text,) = await self._do("file", [*place_of(key), file_id], again=True)
        return None if text is None else _read(key, text)

    async def page(self, key: SessionKey, after: str, limit: int) -> list[FileRecord]:
        (found,) = await self._do("files", [*place_of(key)], again=True)
        texts = {file_id.decode(): text for file_id, text in zip(found[::2], found[1::2], strict=True)}
        return [_read(key, texts[file_id]) for file_id in sorted(texts) if file_id > after][:limit]

    async def delete(self, key: SessionKey, file_id: str) -> bool:
        (count,) = await self._do("delete_file", [*place_of(key), file_id])
        return bool(count)

    async def forget(self, user_id: str) -> int:
        (count,) = await self._do("forget_files", [place_of(SessionKey("", user_id))[0]])
        return int(count)

    async def unused(self, reserved_before: float, limit: int) -> list[str]:
        (object_ids,) = await self._do("unused_objects", [repr(reserved_before), limit])
        return [object_id.decode() for object_id in object_ids]

    async def drop(self, object_ids: Sequence[str]) -> None:
        await self._do("drop_objects", [len(object_ids), *object_ids])


def _read(key: SessionKey, text: bytes) -> FileRecord:
    object_id, size, body = (*text.split(b" ", 2), b"", b"")[:3]
    columns = {**key._asdict(), "object_id": object_id.decode(), "size": int(size) if size.isdigit() else -1}
    return decode_record(FileRecord, f"files of {key.full_name}", body, **columns)
