"""Reads the messages of a chat: what was said as blocks, and the texts of system messages as instructions."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from turnwise.http.openai.errors import invalid, unsupported
from turnwise.http.openai.json_fields import arguments_of, file_of, text_of
from turnwise.memory.conversation.blocks import AnyBlock, Document, Image, Text, ToolResult, ToolUse, User
from turnwise.memory.values.limits import MAX_BLOCKS, check_count

_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)

_KNOWN = {
    "system": {"role", "content"},
    "developer": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "refusal", "tool_calls"},
    "tool": {"role", "content", "tool_call_id"},
}
"""The fields of a message. Others may be null or empty, as clients send answers back as they got them."""


@dataclass(slots=True)
class Chat:
    """What a request says: blocks, each with the number of its message, and instructions."""

    blocks: list[AnyBlock] = field(default_factory=list)
    message_numbers: list[int] = field(default_factory=list)
    """The numbers of the messages that the blocks are from."""
    instructions: list[str] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """How many messages there are, without the instructions."""
        return len(set(self.message_numbers))

    @property
    def last(self) -> AnyBlock:
        """What was said last."""
        return self.blocks[-1]


def read_messages(messages: Sequence[Any]) -> Chat:
    """Return what a request says.

    Raises:
        TooManyError: there are too many messages, or parts and calls of them.
        OpenAIError: a message is not valid or is not supported; the error names it.
    """
    check_count("messages", sum(map(_parts_of, messages)), "MAX_BLOCKS", MAX_BLOCKS)
    chat = Chat()
    for number, message in enumerate(messages):
        path = f"messages[{number}]"
        try:
            blocks = _message(message, path, chat)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            raise invalid(path, f"{path}: {first['msg'].removeprefix('Value error, ')}") from None
        chat.blocks += blocks
        chat.message_numbers += [number] * len(blocks)
    if not chat.blocks:
        raise invalid("messages", "there is no message of the user")
    if not isinstance(chat.last, ToolResult) and chat.last.role != "user":
        raise invalid("messages", "the last message must be of the user or of a tool: answers are not continued")
    return chat


def _parts_of(message: Any) -> int:
    """Return how many parts and calls a message has; 1 if it has no list of them."""
    lists = (message.get(name) for name in ("content", "tool_calls")) if isinstance(message, Mapping) else ()
    return max(1, sum(len(entries) for entries in lists if isinstance(entries, list)))


def _message(message: Any, path: str, chat: Chat) -> list[AnyBlock]:
    if not isinstance(message, Mapping):
        raise invalid(path, f"{path}: must be an object")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in _KNOWN:
        raise unsupported(f"{path}.role", f"must be one of {', '.join(_KNOWN)}")
    for name, value in message.items():
        if name not in _KNOWN[role] and value not in (None, [], {}):
            raise unsupported(f"{path}.{name}")
    if role in ("system", "developer"):
        chat.instructions.append(_texts(content, f"{path}.content", ("text",)))
        return []
    if role == "user":
        return _user(content, f"{path}.content")
    if role == "tool":
        call_id = text_of(message, "tool_call_id", path)
        return [ToolResult(call_id=call_id, text=_texts(content, f"{path}.content", ("text",)))]
    return _assistant(message, path)


def _user(content: Any, content_path: str) -> list[AnyBlock]:
    """Return a user's message: its text, then what is attached to it."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not parts:
        raise invalid(content_path, f"{content_path}: must be a text or a list of parts")
    texts: list[str] = []
    attached: list[AnyBlock] = []
    for number, part in enumerate(parts):
        path = f"{content_path}[{number}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text":
            texts.append(text_of(part, "text", path))
        elif kind == "image_url":
            attached.append(_image(part, path))
        elif kind == "file":
            attached.append(_file(part, path))
        else:
            raise unsupported(f"{path}.type", f"parts of type {kind!r:.99} are not supported")
    text = "\n".join(texts)
    return [*([User(text=text)] if text.strip() or not attached else []), *attached]


def _assistant(message: Mapping[str, Any], path: str) -> list[AnyBlock]:
    content, refusal, calls = message.get("content"), message.get("refusal"), message.get("tool_calls")
    text = _texts(content, f"{path}.content", ("text", "refusal")) if content is not None else ""
    if refusal is not None:
        text += text_of(message, "refusal", path)
    if not isinstance(calls, list | None):
        raise invalid(f"{path}.tool_calls", f"{path}.tool_calls: must be a list")
    uses = [_call(call, f"{path}.tool_calls[{number}]") for number, call in enumerate(calls or ())]
    if not text and not uses:
        raise invalid(f"{path}.content", f"{path}: an answer needs a content or tool_calls")
    return [*([Text(text=text)] if text else []), *uses]


def _call(call: Any, path: str) -> ToolUse:
    if not isinstance(call, Mapping):
        raise invalid(path, f"{path}: must be an object")
    if call.get("type", "function") != "function":
        raise unsupported(f"{path}.type", "only calls of functions are supported")
    function = call.get("function")
    if not isinstance(function, Mapping):
        reason = f"Missing required parameter: '{path}.function'."
        raise invalid(f"{path}.function", reason, "missing_required_parameter")
    name, arguments = text_of(function, "name", f"{path}.function"), arguments_of(function, f"{path}.function")
    return ToolUse(call_id=text_of(call, "id", path), name=name, input=arguments)


def _texts(content: Any, path: str, kinds: Sequence[str]) -> str:
    """Return a content that is a text, or a list of parts of these kinds."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(path, f"{path}: must be a text or a list of parts")
    texts: list[str] = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in kinds:
            raise unsupported(f"{path}[{number}].type", f"parts of type {kind!r:.99} are not supported")
        texts.append(text_of(part, str(kind), f"{path}[{number}]"))
    return "".join(texts)


def _image(part: Mapping[str, Any], path: str) -> Image:
    image = part.get("image_url")
    if not isinstance(image, Mapping):
        reason = f"Missing required parameter: '{path}.image_url'."
        raise invalid(f"{path}.image_url", reason, "missing_required_parameter")
    if image.get("detail") not in (None, "auto"):
        raise unsupported(f"{path}.image_url.detail", "only 'auto' is supported")
    _refuse_others(part, {"type", "image_url"}, path)
    _refuse_others(image, {"url", "detail"}, f"{path}.image_url")
    url = text_of(image, "url", f"{path}.image_url")
    match = _DATA_URL.fullmatch(url)
    return Image(data=match[2], media_type=match[1]) if match else Image(url=url)


def _file(part: Mapping[str, Any], path: str) -> Document:
    source = part.get("file")
    if not isinstance(source, Mapping):
        raise invalid(f"{path}.file", f"Missing required parameter: '{path}.file'.", "missing_required_parameter")
    _refuse_others(part, {"type", "file"}, path)
    _refuse_others(source, {"file_data", "filename", "file_id"}, f"{path}.file")
    if (file_id := file_of(source, f"{path}.file", "file_data")) is not None:
        name = text_of(source, "filename", f"{path}.file") if source.get("filename") is not None else ""
        return Document(file=file_id, name=name)
    data = text_of(source, "file_data", f"{path}.file")
    name = text_of(source, "filename", f"{path}.file") if source.get("filename") is not None else "file"
    match = _DATA_URL.fullmatch(data)
    media_type = match[1] if match else mimetypes.guess_type(name)[0]
    if media_type is None:
        reason = "its type is unknown: send a data URL, or a filename with an extension"
        raise invalid(f"{path}.file.file_data", f"{path}.file.file_data: {reason}")
    return Document(name=name, data=match[2] if match else data, media_type=media_type)


def _refuse_others(item: Mapping[str, Any], supported: set[str], path: str) -> None:
    for name, value in item.items():
        if name not in supported and value is not None:
            raise unsupported(f"{path}.{name}")
