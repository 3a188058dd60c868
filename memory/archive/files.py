"""The files of a session in an archive: lines with a file's record, each followed by lines with pieces of its bytes."""

from __future__ import annotations

import base64
import binascii

from turnwise.errors import ArchiveError, FileRefusedError, FilesUnavailableError
from turnwise.memory.archive.format import Line, LineWriter
from turnwise.memory.conversation.blocks import is_media_type
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.files.access import FileAccess
from turnwise.memory.files.index import FileIndex, keeps_files
from turnwise.memory.values.ids import is_file_id

_FIELDS: dict[str, type[str | int]] = {"file_id": str, "name": str, "media_type": str, "size": int, "digest": str}

PAGE = 100

NEEDS_FILES = "the session has files: say where, by files="


async def write_files(lines: LineWriter, store: object, key: SessionKey, files: FileAccess | None) -> None:
    """Write the files of a session.

    Args:
        files: the files of the store; None if they cannot be read here.

    Raises:
        FilesUnavailableError: the session has files, and they cannot be read here.
    """
    if not keeps_files(store) or not isinstance(store, FileIndex):
        return
    after = ""
    while page := await store.files(key, after=after, limit=PAGE):
        if files is None:
            raise FilesUnavailableError(str(store), NEEDS_FILES)
        for file in page:
            lines.add("file", {name: getattr(file, name) for name in _FIELDS})
            async for piece in files.read(file):
                lines.add("file", base64.b64encode(piece).decode())
        after = page[-1].file_id


class FileLines:
    """Reads the lines of files, and stores each file once it is whole.

    Args:
        key: the session that gets them.
        files: where they are stored; None if they cannot be stored here.
    """

    def __init__(self, key: SessionKey, files: FileAccess | None) -> None:
        self._key = key
        self._files = files
        self._header: Line | None = None
        self._pieces = list[bytes]()
        self._size = 0

    async def add(self, line: Line) -> None:
        """Check a line, and store the file before it if this one begins another.

        Raises:
            ArchiveError: it is wrong, the file before it is not whole, or nothing can be stored here.
        """
        if isinstance(line.value, str):
            self._add_piece(line)
            return
        await self.finish()
        if self._files is None:
            line.refuse("the session has files, and there is no place for them: say where, by files=")
        value = line.value
        if not isinstance(value, dict) or value.keys() != _FIELDS.keys():
            line.refuse(f"a file must be an object with {', '.join(_FIELDS)}")
        if wrong := [name for name, kind in _FIELDS.items() if type(value[name]) is not kind]:
            line.refuse(f"the {wrong[0]} of a file has the wrong type")
        if not is_file_id(value["file_id"]) or not is_media_type(value["media_type"]):
            line.refuse("a file has an id or a media type that cannot be used")
        if not 0 <= value["size"] <= self._files.limits.file_bytes:
            line.refuse(f"a file has {value['size']} bytes, and may have {self._files.limits.file_bytes}")
        self._header, self._pieces, self._size = line, [], 0

    def _add_piece(self, line: Line) -> None:
        if self._header is None:
            line.refuse("bytes follow no file")
        try:
            piece = base64.b64decode(line.value, validate=True)
        except (ValueError, binascii.Error):
            line.refuse("the bytes of a file are not base64")
        self._size += len(piece)
        if self._size > self._header.value["size"]:
            line.refuse("a file has more bytes than it says")
        self._pieces.append(piece)

    async def finish(self) -> None:
        """Store the last file, if there is one.

        Raises:
            ArchiveError: it is not whole, or cannot be stored.
        """
        header, self._header = self._header, None
        if header is None or self._files is None:
            return
        value = header.value
        try:
            file = await self._files.put(
                self._key, value["name"], b"".join(self._pieces), value["media_type"], value["file_id"]
            )
        except FileRefusedError as error:
            raise ArchiveError(header.number, str(error)) from error
        self._pieces = []
        if (file.size, file.digest) != (value["size"], value["digest"]):
            header.refuse("the bytes of the file are not those that it says")
