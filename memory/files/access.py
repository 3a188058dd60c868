"""`FileAccess`: puts, reads, lists and deletes files of sessions and users, and deletes bytes that nobody needs.

**What holds.** Bytes are stored before the record that names them, and deleted after the last one: at no moment, and
after no crash, does a record name bytes that are missing. In a put, while it awaits:

| awaited | what else may run | what a crash leaves |
|---|---|---|
| the reservation | everything | nothing, or a reserved object |
| the bytes | everything; `collect` leaves the object alone for a day | a reserved object, and some of its bytes |
| the record | everything; the last file with the content may be deleted | a reserved object, or the file |

`collect` finds reserved and unused objects in the store, not in the folder, so it needs no listing of the folder. It
makes a reserved object unused in one transaction, and then no file can be added with it; so a put that was thought dead
is refused with `FileExpiredError`, and never gets a record without bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TypeAlias

from turnwise.errors import (
    CorruptRecordError,
    FileExpiredError,
    FileNotStoredError,
    FileRefusedError,
    FilesUnavailableError,
    InvalidInputError,
    TurnwiseError,
    shown,
)
from turnwise.memory.background import log_failure
from turnwise.memory.conversation.blocks import is_media_type
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.files.base import FileData, FileStore, pieces_of
from turnwise.memory.files.index import FileIndex, file_index
from turnwise.memory.files.records import (
    HEAD_BYTES,
    OF_USER,
    FileLimits,
    FileRecord,
    check_file_name,
    media_type_of,
    new_file_id,
)
from turnwise.memory.values.ids import new_id
from turnwise.memory.values.records import replace

RESERVED_S = 86_400.0
"""How long a put may take, in seconds: a day. After that its bytes count as left behind by a crash."""

COLLECTED_AT_ONCE = 100
"""How many unused objects are read at once."""


@dataclass
class _Measure:
    """What is found out about data while it passes."""

    name: str
    most: int
    size: int = 0
    head: bytes = b""

    def __post_init__(self) -> None:
        self.digest = hashlib.sha256()

    async def of(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the pieces.

        Raises:
            FileRefusedError: they are more than allowed.
        """
        async for piece in pieces:
            self.size += len(piece)
            if self.size > self.most:
                reason = f"it has more than max_file_bytes, {self.most}: store less, or raise it in SessionConfig"
                raise FileRefusedError(shown(self.name), reason)
            self.head += piece[: HEAD_BYTES - len(self.head)]
            self.digest.update(piece)
            yield piece


_Files: TypeAlias = list[FileRecord]
"""In the class below, `list` is a method."""


class FileAccess:
    """The files of a store's sessions and users. `key` says whose: a session's, or with an empty id the user's own."""

    def __init__(self, index: FileIndex, store: FileStore, limits: FileLimits) -> None:
        self._index = index
        self._store = store
        self._limits = limits

    @property
    def limits(self) -> FileLimits:
        """How much may be stored."""
        return self._limits

    async def put(
        self,
        key: SessionKey,
        name: str,
        data: FileData,
        media_type: str | None = None,
        file_id: str | None = None,
    ) -> FileRecord:
        """Store a file, and return it. On return it survives a crash. Data is read once, in pieces.

        Args:
            media_type: told by its first bytes and its name if omitted.
            file_id: an id that is the same each time the same is stored; a new one if omitted.

        Raises:
            FileRefusedError: a name, a type or a size that cannot be stored; nothing was stored.
            SessionNotFoundError: there is no such session; nothing was stored.
        """
        name = check_file_name(name)
        if media_type is not None and not is_media_type(media_type):
            raise FileRefusedError(shown(name), f"{shown(media_type)} is no media type, such as image/png")
        object_id, measure = new_id(), _Measure(name, self._limits.file_bytes)
        await self._index.reserve_object(object_id, key.user_id)
        try:
            await self._store.write(object_id, key.user_id, measure.of(pieces_of(name, data)))
            added = await self._index.add_file(
                FileRecord(
                    file_id=file_id or new_file_id(),
                    user_id=key.user_id,
                    session_id=key.session_id,
                    name=name,
                    media_type=media_type or media_type_of(name, measure.head),
                    size=measure.size,
                    digest=measure.digest.hexdigest(),
                    object_id=object_id,
                    created_at=await self._index.now(),
                ),
                self._limits,
            )
        except FileExpiredError:
            await self._store.delete(object_id)  # its bytes came after its reservation was dropped
            raise
        except Exception:
            # It may be stored after all, if only the answer was lost: then releasing it does nothing.
            await self._let_go(object_id, release=True)
            raise
        if added.object_id != object_id:
            await self._let_go(object_id, release=False)
        return added

    async def _let_go(self, object_id: str, *, release: bool) -> None:
        """Delete the bytes of an object that no file got. If that fails, `collect` does so later."""
        try:
            if release:
                await self._index.release_object(object_id)
            await self.collect()
        except TurnwiseError as error:
            log_failure(f"deleting the bytes of file object {object_id!r}", error, ", and is done later")

    async def use(self, key: SessionKey, file_id: str) -> FileRecord:
        """Return a file of a session. If its user has the file, and not the session, the session gets it too.

        Raises:
            FileNotStoredError: neither has it.
            FileRefusedError: the session can have no more.
        """
        file = await self.find(key, file_id)
        if file.key == key:
            return file
        return await self._index.add_file(replace(file, session_id=key.session_id), self._limits)

    async def find(self, key: SessionKey, file_id: str) -> FileRecord:
        """Return a file of a session, or of its user.

        Raises:
            FileNotStoredError: neither has it.
        """
        for owner in (key, SessionKey(OF_USER, key.user_id)):
            if file := await self._index.file(owner, file_id):
                return file
        raise FileNotStoredError(file_id, _owner(key))

    async def has(self, key: SessionKey, file_id: str) -> bool:
        """Return whether a session, or a user, has a file."""
        return await self._index.file(key, file_id) is not None

    async def info(self, key: SessionKey, file_id: str) -> FileRecord:
        """Return a file's record.

        Raises:
            FileNotStoredError: there is none.
        """
        if file := await self._index.file(key, file_id):
            return file
        raise FileNotStoredError(file_id, _owner(key))

    async def get(self, key: SessionKey, file_id: str) -> bytes:
        """Return the bytes of a file.

        Raises:
            FileNotStoredError: there is none.
            CorruptRecordError: its bytes are missing, or are not those that were stored.
        """
        return await self.bytes_of(await self.info(key, file_id))

    async def bytes_of(self, file: FileRecord) -> bytes:
        """Return the bytes of a file; see `get`."""
        data = b"".join([piece async for piece in self.read(file)])
        if len(data) != file.size:
            raise CorruptRecordError(f"file {file.file_id}", f"it has {len(data)} bytes instead of {file.size}")
        if hashlib.sha256(data).hexdigest() != file.digest:
            raise CorruptRecordError(f"file {file.file_id}", "its bytes are not those that were stored")
        return data

    def read(self, file: FileRecord, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
        """Yield the bytes of a file in pieces; see `FileStore.read`."""
        return self._store.read(file.object_id, file.user_id, start, stop)

    async def part(self, file: FileRecord, start: int, stop: int) -> bytes:
        """Return some of the bytes of a file, at least one if there are any between `start` and `stop`.

        Raises:
            CorruptRecordError: they are missing, or were changed.
        """
        data = b"".join([piece async for piece in self.read(file, start, stop)])
        if not data and start < min(stop, file.size):
            raise CorruptRecordError(f"file {file.file_id}", f"it has no bytes from {start} on")
        return data

    async def list(self, key: SessionKey, *, after: str = "", limit: int = 100) -> _Files:
        """Return up to `limit` files with an id above `after`, by id: the order in which they were put."""
        if limit < 1:
            raise InvalidInputError("limit", shown(limit), "must be at least 1")
        return await self._index.files(key, after=after, limit=limit)

    async def delete(self, key: SessionKey, file_id: str) -> bool:
        """Delete a file, and its bytes if no other file of the user has them; return whether there was one."""
        is_deleted = await self._index.delete_file(key, file_id)
        if is_deleted:
            await self.collect_later()
        return is_deleted

    async def forget(self, user_id: str) -> int:
        """Delete all files of a user; return how many there were."""
        count = await self._index.forget_files(user_id)
        await self.collect()
        return count

    async def collect(self) -> int:
        """Delete the bytes that nobody needs: of unused objects, and of puts that began `RESERVED_S` ago.

        Returns how many objects these were. May be called at any time, by any number of processes.
        """
        before, count = await self._index.now() - RESERVED_S, 0
        while object_ids := await self._index.unused_objects(before, limit=COLLECTED_AT_ONCE):
            for object_id in object_ids:
                await self._store.delete(object_id)
            await self._index.drop_objects(object_ids)
            count += len(object_ids)
        return count

    async def collect_later(self) -> None:
        """Do `collect`. If it fails, log that: the records are gone, and the next call deletes the bytes."""
        try:
            await self.collect()
        except TurnwiseError as error:
            log_failure("deleting the bytes of files that nobody has any more", error, ", and is done later")


def _owner(key: SessionKey) -> str:
    return f"session {key.session_id!r}" if key.session_id else f"user {key.user_id!r}"


NO_PLACE = "pass files='/path/of/a/folder', or a URL that fsspec opens, to SessionManager"
"""What to do where a store has no place for the bytes of files."""


def access_to(store: object, files: FileStore | None, limits: FileLimits) -> FileAccess:
    """Return access to the files of a session store.

    Raises:
        FilesUnavailableError: the store keeps no records of files, or there is no place for their bytes.
    """
    index = file_index(store)
    if files is None:
        raise FilesUnavailableError(str(store), NO_PLACE)
    return FileAccess(index, files, limits)
