"""Blocks that name files: what they become in requests, and large attachments that become files."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from turnwise.errors import CorruptRecordError, FileNotStoredError
from turnwise.memory.conversation.blocks import Block, Document, Image, Text, ToolResult, User, left_out
from turnwise.memory.conversation.prompts import Refuses
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.files.access import FileAccess
from turnwise.memory.files.records import FileRecord, file_id_of
from turnwise.memory.values.plain_text import decoded_text

Attachment = Image | Document
AnyKind = TypeVar("AnyKind", bound=Block)

DELETED = "its file was deleted"
DAMAGED = "its file cannot be read"
NO_FILES = "there is no place for files"

_PLACEHOLDER = base64.b64encode(b"-").decode()


def stand_in(block: Attachment) -> Attachment:
    """Return what a request will have in place of a block that names a file, with other bytes, for checks."""
    if block.file is None:
        return block
    if isinstance(block, Image):
        return Image(data=_PLACEHOLDER, media_type=block.media_type or "application/octet-stream")
    return _document(block, block.media_type or "application/octet-stream", b"-")


def refusal_by(refuses: Refuses) -> Refuses:
    """Return a check of attachments, by that of an engine, which takes blocks that name files as well."""
    return lambda block: refuses(stand_in(block))


def described_by(block: Attachment, file: FileRecord) -> Attachment:
    """Return a block that names a file with the file's size, and with its type and its name if the block has none."""
    values: dict[str, Any] = {"size": file.size, "media_type": block.media_type or file.media_type}
    if isinstance(block, Document) and not block.name:
        values["name"] = file.name
    return block.model_copy(update=values)


def with_parts(block: AnyKind, parts: Mapping[int, Text | Attachment]) -> AnyKind:
    """Return a block with other attachments, by the ids of the objects in whose places they are."""
    if isinstance(block, ToolResult):
        return block.model_copy(update={"blocks": tuple(parts.get(id(part), part) for part in block.blocks)})
    return parts.get(id(block), block)  # type: ignore[return-value]  # of the class of the block


async def with_bytes(access: FileAccess | None, key: SessionKey, block: Block) -> Block:
    """Return what a request has in place of a block: its bytes; a text where they cannot be had.

    Args:
        access: None if there is no place for files any more.
    """
    if isinstance(block, ToolResult):
        parts = [await _filled(access, key, part) for part in block.blocks]
        return block.model_copy(update={"blocks": tuple(parts)})
    if not isinstance(block, Image | Document):
        return block
    filled = await _filled(access, key, block)
    return User(text=filled.text) if isinstance(filled, Text) else filled


async def _filled(access: FileAccess | None, key: SessionKey, block: Text | Attachment) -> Text | Attachment:
    if isinstance(block, Text) or block.file is None:
        return block
    if access is None:
        return Text(text=left_out(block, NO_FILES))
    try:
        file = await access.info(key, block.file)
        data = await access.bytes_of(file)
    except FileNotStoredError:
        return Text(text=left_out(block, DELETED))
    except CorruptRecordError:
        return Text(text=left_out(block, DAMAGED))
    media_type = block.media_type or file.media_type
    if isinstance(block, Document):
        return _document(block, media_type, data)
    return Image(data=base64.b64encode(data).decode(), media_type=media_type)


def _document(block: Document, media_type: str, data: bytes) -> Document:
    if media_type.startswith("text/"):
        # An empty text would be no document.
        return Document(name=block.name, text=decoded_text(data) or " ", cite=block.cite)
    encoded = base64.b64encode(data or b"\n").decode()
    return Document(name=block.name, data=encoded, media_type=media_type, cite=block.cite)


Put = Callable[[str, bytes, str, str], Awaitable[object]]
"""Stores a file: its name, its bytes, its type, and its id."""


async def as_file(block: Attachment, max_bytes: int, put: Put) -> Attachment:
    """Return a block with more than `max_bytes` of data as one that names a file, once that is stored.

    Texts of documents stay, since search and long-term memories read them. The file's id is made of its content, so
    that a call that is repeated stores it once.
    """
    if not block.data or not block.media_type or block.url or getattr(block, "plain", None):
        return block
    if len(block.data) * 3 // 4 - 2 <= max_bytes or len(data := base64.b64decode(block.data)) <= max_bytes:
        return block
    file_id = _moved_id(block, data)
    await put(_name_of(block), data, block.media_type, file_id)
    return block.model_copy(update={"data": None, "file": file_id, "size": len(data)})


def moved_id(block: Attachment) -> str | None:
    """Return the id that `as_file` gives the file of a block with data; None if the block has none."""
    return _moved_id(block, base64.b64decode(block.data)) if block.data and block.media_type else None


def _moved_id(block: Attachment, data: bytes) -> str:
    return file_id_of(_name_of(block), block.media_type or "", hashlib.sha256(data).digest())


def _name_of(block: Attachment) -> str:
    return (block.name if isinstance(block, Document) else "") or block.kind


async def with_files(blocks: Sequence[AnyKind], max_bytes: int, put: Put) -> list[AnyKind]:
    """Return the blocks with their large attachments, also those of tools' results, as files; see `as_file`."""
    moved: list[AnyKind] = []
    for block in blocks:
        new: Block = block
        if isinstance(block, Image | Document):
            new = await as_file(block, max_bytes, put)
        elif isinstance(block, ToolResult) and block.attachments:
            parts = [part if isinstance(part, Text) else await as_file(part, max_bytes, put) for part in block.blocks]
            new = block.model_copy(update={"blocks": tuple(parts)})
        moved.append(new)  # type: ignore[arg-type]  # of the class of the block
    return moved
