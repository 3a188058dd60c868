"""What readers of messages share: the fields of a message, and how a reader refuses one."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NoReturn
from urllib.parse import urlsplit

import pydantic_core

from turnwise.memory.conversation.blocks import AnyBlock, Content, Document, Image, Text, Unknown
from turnwise.memory.providers.openai_chat import INTERRUPTED
from turnwise.memory.values.frozen_json import FrozenDict, freeze
from turnwise.memory.values.ids import is_file_id

_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)


class UnreadableError(ValueError):
    """A message cannot be read. `place` is the place in it, such as `.content[0].text`."""

    def __init__(self, place: str, value: object, reason: str) -> None:
        super().__init__(place, value, reason)
        self.place, self.value, self.reason = place, value, reason


def refuse(place: str, value: object, reason: str) -> NoReturn:
    """Raise `UnreadableError`."""
    raise UnreadableError(place, value, reason)


def mapping(value: Any, place: str) -> Mapping[str, Any]:
    """Return a value that must be an object."""
    return value if isinstance(value, Mapping) else refuse(place, value, "must be an object: a dict")


def text(item: Mapping[str, Any], name: str, place: str) -> str:
    """Return a field that must be text."""
    value = item.get(name)
    return value if isinstance(value, str) else refuse(f"{place}.{name}", value, "must be a text")


def parts(content: Any, place: str, kind: str) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield the parts of a content, each with its kind and its place; a plain text is one part of the given kind."""
    if isinstance(content, str):
        content = [{"type": kind, "text": content}]
    if not isinstance(content, Sequence):
        raise UnreadableError(place, content, "must be a text or a list of parts")
    for number, part in enumerate(content):
        entry = mapping(part, f"{place}[{number}]")
        yield text(entry, "type", f"{place}[{number}]"), entry, f"{place}[{number}]"


def assistant_text(text: str) -> Text:
    """Return a text of the model. The mark of a text that was cut short is removed."""
    return Text(text=text.removesuffix(INTERRUPTED), interrupted=text.endswith(INTERRUPTED))


def pop_text(contents: list[Content]) -> str:
    """Remove the text that a result begins with, and return it; an empty one if it begins with something else."""
    first = contents[0] if contents else None
    if not isinstance(first, Text):
        return ""
    del contents[0]
    return first.text


def arguments(item: Mapping[str, Any], place: str) -> FrozenDict:
    """Return the arguments of a call, which are the JSON text of an object."""
    arguments_text = text(item, "arguments", place)
    try:
        value = pydantic_core.from_json(arguments_text or "{}")
        if isinstance(value, dict):
            return FrozenDict(freeze(value))
    except (TypeError, ValueError, RecursionError):
        pass
    return refuse(
        f"{place}.arguments", arguments_text, "must be the JSON text of an object: send the arguments as the model did"
    )


def picture(url: str) -> Image:
    """Return the picture of a URL, which may hold its data."""
    match = _DATA_URL.fullmatch(url)
    return Image(data=match[2], media_type=match[1]) if match else Image(url=url)


def own_file(file_id: Any, place: str, other: str) -> str:
    """Return the id of a file of the session; refuse that of a provider's file, naming what to send in its place."""
    if is_file_id(file_id):
        return str(file_id)
    return refuse(place, file_id, f"files of a provider are not read: send {other}, or leave it out")


def file(item: Mapping[str, Any], place: str) -> Document:
    """Return the file of `file_data` or `file_url`, and a `filename`."""
    name = item.get("filename")
    if (file_id := item.get("file_id")) is not None:
        return Document(name=name or "", file=own_file(file_id, f"{place}.file_id", "file_data"))
    if isinstance(url := item.get("file_url"), str):
        return Document(name=name or _name_in(url) or "file", url=url)
    data = text(item, "file_data", place)
    match = _DATA_URL.fullmatch(data)
    media_type = match[1] if match else mimetypes.guess_type(name or "")[0]
    if media_type is None:
        raise UnreadableError(
            f"{place}.file_data", data, "its type is unknown: send a data URL, or a filename with an extension"
        )
    return Document(name=name or "file", data=match[2] if match else data, media_type=media_type)


def unknown_block(format: str, item: Mapping[str, Any]) -> AnyBlock:
    """Return an item of a kind that turnwise does not know: it is stored unchanged, and never sent."""
    try:
        return Unknown(stored_kind=f"{format}.{item.get('type')}", payload=FrozenDict(freeze(dict(item))))
    except (TypeError, ValueError) as error:
        raise UnreadableError("", item, f"it cannot be stored ({error}): leave it out") from error


def _name_in(url: str) -> str:
    try:
        return PurePosixPath(urlsplit(url).path).name
    except ValueError:  # brackets without an IP address in them
        return ""
