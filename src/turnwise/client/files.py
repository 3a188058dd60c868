"""`AsyncRemoteFiles`: put, read, list and delete files of a session of a service, or of a user."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, TypeAlias

from turnwise.actors.client.shared.arguments import FileId, Limit, Text, checked
from turnwise.client import steps
from turnwise.client.connection import AsyncConnection
from turnwise.client.shared.answers import Request, Whose, path_of
from turnwise.client.shared.reading import file_of
from turnwise.memory.conversation.views.notebook_display import Rows
from turnwise.memory.files.base import FileData
from turnwise.memory.files.records import FileRecord

_Files: TypeAlias = list[FileRecord]
"""In the class below, `list` is a method."""


class AsyncRemoteFiles:
    """`RemoteFiles` with its verbs as coroutines.

    The bytes go over HTTP, in pieces; this process needs no access to where the service keeps them. The verbs are those
    of `Files`, which says more.
    """

    def __init__(self, connection: AsyncConnection, whose: Whose, session_id: str | None) -> None:
        self._connection = connection
        self._whose = whose
        self._place = ("files",) if session_id is None else ("sessions", session_id, "files")

    @checked(name=Text, media_type=Text | None)
    async def put(self, name: str, data: FileData, *, media_type: str | None = None) -> FileRecord:
        """Store a file, and return it; blocks and tools name it by its `file_id`. Each call stores a file of its own.

        Args:
            name: for people and models; it names nothing in a folder, and may be used twice.
            data: bytes, a binary file that is open for reading, or what yields pieces of bytes. It is read once.
            media_type: such as application/pdf; if omitted, told by the first bytes, or by the name.

        Raises:
            FileRefusedError: it is too large, there are too many, or its name or its type cannot be used.
            ServiceAwayError: if its `word` is "unknown", the file may have been stored. Bytes are sent again when
                an answer was lost; a file that is read is not.
        """
        headers = {"Content-Type": media_type or "application/octet-stream"}
        request = Request(
            method="POST",
            path=path_of(*self._place),
            query={"name": name},
            headers=headers,
            content=partial(steps.pieces, name, data),
            is_sent_once=not isinstance(data, Sequence),
            is_repeatable=False,
        )
        return file_of((await self._connection.ask(request, self._whose)).data)

    @checked(file_id=FileId)
    async def get(self, file_id: str) -> bytes:
        """Return the bytes of a file.

        Raises:
            FileNotStoredError: there is no such file.
        """
        content = bytearray()
        async for piece in self.read(file_id):
            content += piece
        return bytes(content)

    @checked(file_id=FileId)
    async def info(self, file_id: str) -> FileRecord:
        """Return a file's name, type, size and digest.

        Raises:
            FileNotStoredError: there is no such file.
        """
        return file_of(await self._ask("GET", file_id))

    async def read(self, file_id: str, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
        """Yield the bytes of a file in pieces, from `start` up to, and without, `stop`; see `get`."""
        file = await self.info(file_id)
        stop = file.size if stop is None else min(stop, file.size)
        if start < stop:
            headers = {"Range": f"bytes={start}-{stop - 1}"}
            async for piece in self._connection.read(path_of(*self._place, file_id, "content"), headers, self._whose):
                yield piece

    @checked(after=Text, limit=Limit)
    async def list(self, after: str = "", limit: int = 100) -> _Files:
        """Return up to `limit` files with an id above `after`, by id."""
        return Rows(map(file_of, (await self._ask("GET", query={"after": after, "limit": limit}))["items"]))

    @checked(file_id=FileId)
    async def delete(self, file_id: str) -> bool:
        """Delete a file; return whether there was one."""
        return bool((await self._ask("DELETE", file_id))["deleted"])

    async def _ask(self, method: str, *parts: str, query: dict[str, Any] | None = None) -> Any:
        request = Request(method=method, path=path_of(*self._place, *parts), query=query or {})
        return (await self._connection.ask(request, self._whose)).data
