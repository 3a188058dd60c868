"""`session.files` and `manager.files`: put, read, list and delete files of a session, or of a user."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TypeAlias

from turnwise.actors.client import steps
from turnwise.actors.client.shared.arguments import FileId, Limit, Text, checked
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.session.acting import Acting, check_stored
from turnwise.errors import FileNotStoredError, FilesUnavailableError, InvalidPromptError, ReadOnlyStoreError
from turnwise.memory.conversation.blocks import Block, Document, Image, Text as TextBlock, named_files
from turnwise.memory.conversation.prompts import Prompt
from turnwise.memory.conversation.sessions import MemberRole, SessionKey
from turnwise.memory.conversation.views.notebook_display import Rows
from turnwise.memory.files.attachments import described_by, stand_in, with_bytes, with_parts
from turnwise.memory.files.base import PIECE_BYTES, FileData
from turnwise.memory.files.index import keeps_files
from turnwise.memory.files.records import OF_USER, FileRecord

_Files: TypeAlias = list[FileRecord]
"""In the class below, `list` is a method."""


class AsyncFiles:
    """`Files` with its verbs as coroutines.

    The bytes go from this process to where files are kept, and back, without the session's process. So this process
    must reach that place, and the store. Each change is durable on return.

    Readers of a shared session list and read its files, members put files, and owners delete them.

    Every method may raise, beside the errors that it documents:
        NotAllowedError, SessionNotFoundError: the member for whom it is may not do this, or is no member any more.
        FilesUnavailableError: there is no place for files: pass `files=` to the manager.
        StoreError: the store, or the place of files, cannot be reached.
    """

    def __init__(self, client: SessionsClient, key: SessionKey, as_user: str | None = None) -> None:
        self._client = client
        self._key = key
        self._as_user = as_user

    @checked(name=Text, media_type=Text | None)
    async def put(self, name: str, data: FileData, *, media_type: str | None = None) -> FileRecord:
        """Store a file, and return it; blocks and tools name it by its `file_id`.

        Each call stores a file of its own; the bytes of equal files are kept once for each user.

        Args:
            name: for people and models; it names nothing in a folder, and may be used twice.
            data: bytes, a binary file that is open for reading, or what yields pieces of bytes. It is read once.
            media_type: such as application/pdf; if omitted, told by the first bytes, or by the name.

        Raises:
            FileRefusedError: it is larger than `SessionConfig` allows, there are too many, or its name or its type
                cannot be used; nothing was stored.
            SessionNotFoundError: the session was deleted; nothing was stored.
        """
        self._check_writes("put")
        await self._check_role("member", "put files")
        return await steps.run(self._client.portal, self._client.files.put, self._key, name, data, media_type)

    @checked(file_id=FileId)
    async def get(self, file_id: str) -> bytes:
        """Return the bytes of a file.

        Raises:
            FileNotStoredError: there is no such file.
            CorruptRecordError: its bytes are missing, or were changed.
        """
        await self._check_role("reader", "read files")
        return await steps.run(self._client.portal, self._client.files.get, self._key, file_id)

    @checked(file_id=FileId)
    async def info(self, file_id: str) -> FileRecord:
        """Return a file's name, type, size and digest.

        Raises:
            FileNotStoredError: there is no such file.
        """
        await self._check_role("reader", "read files")
        return await steps.run(self._client.portal, self._client.files.info, self._key, file_id)

    async def read(self, file_id: str, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
        """Yield the bytes of a file in pieces, from `start` up to, and without, `stop`; see `get`."""
        file = await self.info(file_id)
        stop = file.size if stop is None else min(stop, file.size)
        while start < stop:
            piece = await steps.run(
                self._client.portal, self._client.files.part, file, start, min(stop, start + PIECE_BYTES)
            )
            start += len(piece)
            yield piece

    @checked(after=Text, limit=Limit)
    async def list(self, after: str = "", limit: int = 100) -> _Files:
        """Return up to `limit` files with an id above `after`, by id."""
        await self._check_role("reader", "list files")
        return Rows(await steps.run(self._client.portal, self._client.files.list, self._key, after=after, limit=limit))

    @checked(file_id=FileId)
    async def delete(self, file_id: str) -> bool:
        """Delete a file; return whether there was one. Its bytes go with the last file of the user that has them.

        Blocks that name it stay; later requests have a text in their place, which says that the file was deleted.
        """
        self._check_writes("delete")
        await self._check_role("owner", "delete files")
        return await steps.run(self._client.portal, self._client.files.delete, self._key, file_id)

    async def _check_role(self, needed: MemberRole, action: str) -> None:
        if self._as_user is not None:
            acting = Acting(self._as_user, needed, action)
            await steps.run(self._client.portal, check_stored, self._client.session_store, self._key, acting)

    def _check_writes(self, verb: str) -> None:
        if self._client.read_only:
            raise ReadOnlyStoreError(self._key.session_id or "*", f"files.{verb}")


async def collect_files(client: SessionsClient) -> None:
    """Delete the bytes of files that nobody has any more, after their sessions were deleted.

    If it fails, that is logged: the files are gone, and the next call deletes their bytes.
    """
    if client.has_files and keeps_files(client.session_store):
        await steps.run(client.portal, client.files.collect_later)


async def with_bytes_of(client: SessionsClient, user_id: str, prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """Return prompts with the bytes of the user's files that they name, for a session that can name none.

    Raises:
        InvalidPromptError: the user has no such file, or there is no place for files.
    """
    key, filled = SessionKey(OF_USER, user_id), list[Prompt]()
    for prompt in prompts:
        if isinstance(prompt, Block) and named_files(prompt):
            await check_files(client, key, [prompt])
            prompt = await steps.run(client.portal, with_bytes, client.files, key, prompt)  # noqa: PLW2901
        filled.append(prompt)
    return tuple(filled)


async def check_files(client: SessionsClient, key: SessionKey, prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """Return prompts with stand-ins for the files that they name, once it is known that there are such files.

    Raises:
        InvalidPromptError: neither the session nor its user has a file, or there is no place for files.
    """
    checked_prompts = list[Prompt]()
    for prompt in prompts:
        stand_ins = dict[int, TextBlock | Image | Document]()
        for part in named_files(prompt) if isinstance(prompt, Block) else ():
            if part.file is None or part.flaw:
                continue
            try:
                file = await steps.run(client.portal, client.files.find, key, part.file)
            except (FileNotStoredError, FilesUnavailableError) as error:
                raise InvalidPromptError(key.session_id, str(error)) from error
            stand_ins[id(part)] = stand_in(described_by(part, file))
        checked_prompts.append(with_parts(prompt, stand_ins) if isinstance(prompt, Block) else prompt)
    return tuple(checked_prompts)
