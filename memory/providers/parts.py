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
from turnwise.memory.conversation.frozen_json import FrozenDict, freeze
from turnwise.memory.providers.openai_chat import INTERRUPTED

_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)


class UnreadableError(ValueError):
    """A message cannot be read. `at` is the place in it, such as `.content[0].text`."""

    def __init__(self, at: str, value: object, reason: str) -> None:
        super().__init__(at, value, reason)
        self.at, self.value, self.why = at, value, reason


def refuse(at: str, value: object, reason: str) -> NoReturn:
    """Raise `UnreadableError`."""
    raise UnreadableError(at, value, reason)


def mapping(value: Any, at: str) -> Mapping[str, Any]:
    """Return a value that must be an object."""
    return value if isinstance(value, Mapping) else refuse(at, value, "must be an object: a dict")


def text(item: Mapping[str, Any], name: str, at: str) -> str:
    """Return a field that must be text."""
    value = item.get(name)
    return value if isinstance(value, str) else refuse(f"{at}.{name}", value, "must be a text")


def parts(content: Any, at: str, kind: str) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield the parts of a content, each with its kind and its place; a plain text is one part of the given kind."""
    if isinstance(content, str):
        content = [{"type": kind, "text": content}]
    if not isinstance(content, Sequence):
        raise UnreadableError(at, content, "must be a text or a list of parts")
    for number, part in enumerate(content):
        found = mapping(part, f"{at}[{number}]")
        yield text(found, "type", f"{at}[{number}]"), found, f"{at}[{number}]"


def said(text: str) -> Text:
    """Return a text of the model; the mark of one that was cut short is taken off."""
    return Text(text=text.removesuffix(INTERRUPTED), interrupted=text.endswith(INTERRUPTED))


def pop_text(contents: list[Content]) -> str:
    """Remove the text that a result begins with, and return it; an empty one if it begins with something else."""
    first = contents[0] if contents else None
    if not isinstance(first, Text):
        return ""
    del contents[0]
    return first.text


def arguments(item: Mapping[str, Any], at: str) -> FrozenDict:
    """Return the arguments of a call, which are the JSON text of an object."""
    given = text(item, "arguments", at)
    try:
        found = pydantic_core.from_json(given or "{}")
        if isinstance(found, dict):
            return FrozenDict(freeze(found))
    except (TypeError, ValueError, RecursionError):
        pass
    return refuse(f"{at}.arguments", given, "must be the JSON text of an object: send the arguments as the model did")


def picture(url: str) -> Image:
    """Return the picture of a URL, which may hold its data."""
    found = _DATA_URL.fullmatch(url)
    return Image(data=found[2], media_type=found[1]) if found else Image(url=url)


def file(item: Mapping[str, Any], at: str) -> Document:
    """Return the file of `file_data` or `file_url`, and a `filename`."""
    if item.get("file_id") is not None:
        raise UnreadableError(
            f"{at}.file_id", item["file_id"], "files of a provider are not read: send file_data, or leave it out"
        )
    name = item.get("filename")
    if isinstance(url := item.get("file_url"), str):
        return Document(name=name or _name_in(url) or "file", url=url)
    data = text(item, "file_data", at)
    found = _DATA_URL.fullmatch(data)
    media_type = found[1] if found else mimetypes.guess_type(name or "")[0]
    if media_type is None:
        raise UnreadableError(
            f"{at}.file_data", data, "its type is unknown: send a data URL, or a filename with an extension"
        )
    return Document(name=name or "file", data=found[2] if found else data, media_type=media_type)


def kept(format: str, item: Mapping[str, Any]) -> AnyBlock:
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
