"""Reads what front ends send: parts of messages as blocks. A wrong value is refused with the name of its field."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from pydantic import ValidationError

from turnwise.errors import InvalidIdError, InvalidInputError, shown
from turnwise.memory.conversation.blocks import Block, Document, Image, User, is_media_type
from turnwise.memory.values.ids import check_id, is_file_id

_DATA_URL = re.compile(r"data:([^,]*);base64,(.*)", re.DOTALL)


MAX_ID_CHARS = 240
"""The longest id of a message: the turns that answer it again have longer ones."""


def text_of(item: Mapping[str, Any], name: str, place: str) -> str:
    """Return a field that is a text.

    Raises:
        InvalidInputError: it is missing or no text.
    """
    value = item.get(name)
    if not isinstance(value, str):
        raise InvalidInputError(f"{place}.{name}", shown(value), "it must be a text")
    return value


def message_id(value: Any, place: str) -> str:
    """Return the id of a message, which can be a turn's.

    Raises:
        InvalidInputError: it cannot.
    """
    if isinstance(value, str) and len(value) > MAX_ID_CHARS:
        raise InvalidInputError(place, shown(value), f"it must have at most {MAX_ID_CHARS} characters")
    try:
        return check_id("message", value)
    except InvalidIdError as error:
        raise InvalidInputError(place, shown(value), error.why) from None


def object_of(item: Any, place: str) -> Mapping[str, Any]:
    """Return an object.

    Raises:
        InvalidInputError: it is none.
    """
    if not isinstance(item, Mapping):
        raise InvalidInputError(place, shown(item), "it must be an object")
    return item


def file_of(url: str, media_type: str | None, name: str | None, place: str) -> Image | Document:
    """Return a file, by an address or as a data URL, as a block.

    Raises:
        InvalidInputError: no model could be sent the file.
    """
    match = _DATA_URL.fullmatch(url)
    where = {"data": match[2], "media_type": match[1]} if match else {"url": url}
    kind = (match[1] if match else media_type) or ""
    is_image = kind.startswith("image/") or kind == "image"
    if not match and "/" in kind:
        where["media_type"] = kind
    try:
        block = Image(**where) if is_image else Document(name=name or "file", **where)
    except ValidationError as error:
        reason = str(error.errors(include_url=False, include_context=False)[0]["msg"]).removeprefix("Value error, ")
        raise InvalidInputError(place, shown(url), reason) from None
    if block.flaw:
        raise InvalidInputError(place, shown(url), block.flaw)
    return block


PROVIDER = "turnwise"
"""The provider of files that a part of a message names by id."""

_CONTENT = re.compile(r"(?:https?://[^/?#]+)?(?:/[^?#]*)?/v1/(?:sessions/[^/?#]+/)?files/([^/?#]+)/content(?:\?[^#]*)?")


def file_named_in(url: str) -> str | None:
    """Return the id of the file whose content the native API has at this address; None if it is no such address.

    The host does not matter, as proxies change it: an id that is of another service is of no file here.
    """
    match = _CONTENT.fullmatch(url)
    return unquote(match[1]) if match else None


def named_file(file_id: str, media_type: str | None, name: str | None, place: str) -> Image | Document:
    """Return a file of the session, or of its user, as a block. Whether there is such a file is told by the run.

    Raises:
        InvalidInputError: it is no id of a file.
    """
    if not is_file_id(file_id):
        raise InvalidInputError(place, shown(file_id), "there is no such file: upload it first, by POST /v1/files")
    where: dict[str, Any] = {"file": file_id, "media_type": media_type if is_media_type(media_type) else None}
    is_image = (media_type or "").startswith("image/") or media_type == "image"
    return Image(**where) if is_image else Document(name=name or "", **where)


def in_order(blocks: Sequence[Block], place: str) -> list[Block]:
    """Return the blocks of one prompt: its texts as one, then its pictures and files, which belong to the text before.

    So a message stays one, also in a turn with the prompts of several runs, where each text is a message.

    Raises:
        InvalidInputError: there is nothing in it.
    """
    if not any(not isinstance(block, User) or block.text.strip() for block in blocks):
        raise InvalidInputError(place, "[]", "the message says nothing: send a text or a file")
    texts = [block.text for block in blocks if isinstance(block, User)]
    files = [block for block in blocks if not isinstance(block, User)]
    return [*([User(text="\n".join(texts))] if texts else []), *files]
