"""Reads the items that clients send: messages, reasoning, calls and their outputs, approvals."""

from __future__ import annotations

import json
import mimetypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from turnwise.http.openai.errors import invalid, unsupported
from turnwise.http.openai.items import unpack
from turnwise.http.openai.json_fields import arguments_of, file_of, text_of
from turnwise.memory.conversation.blocks import (
    Block,
    Document,
    Image,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    User,
)
from turnwise.memory.values.limits import MAX_BLOCKS, check_count

_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)


@dataclass(frozen=True)
class Approval:
    """A client's decision about a call of a tool of the service."""

    request_id: str
    approve: bool
    reason: str


@dataclass(slots=True)
class ResponseInput:
    """What a client has sent, in order."""

    blocks: list[Block] = field(default_factory=list)
    """Messages, and earlier calls with their outputs."""
    outputs: dict[str, ToolResult] = field(default_factory=dict)
    """Outputs of calls that are not among the items: answers to a response that waits for them."""
    approvals: list[Approval] = field(default_factory=list)

    @property
    def is_answer(self) -> bool:
        """Whether it answers a response that waits."""
        return bool(self.outputs or self.approvals)


def read_input(request_input: str | Sequence[Any]) -> ResponseInput:
    """Return the input of a response.

    Raises:
        OpenAIError: an item is not valid or is not supported; the error names the item.
    """
    if isinstance(request_input, str):
        return ResponseInput(blocks=[User(text=request_input)])
    return read_items(request_input, "input")


def read_items(items: Sequence[Any], param: str, *, answers: bool = True) -> ResponseInput:
    """Return the items of a request.

    Args:
        param: the name of the field with the items.
        answers: whether an output whose call is not among the items is apart; otherwise it is a block too.

    Raises:
        TooManyError: there are too many items, or parts of them.
        OpenAIError: an item is not valid or is not supported; the error names the item.
    """
    check_count(param, sum(map(_parts_of, items)), "MAX_BLOCKS", MAX_BLOCKS)
    reader = _Reader(answers)
    for index, item in enumerate(items):
        try:
            reader.read(item, f"{param}[{index}]")
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            raise invalid(f"{param}[{index}]", str(first["msg"]).removeprefix("Value error, ")) from None
    return reader.whole()


def _parts_of(item: Any) -> int:
    """Return how many parts an item has, itself included if it has no list of them."""
    lists = (item.get(name) for name in ("content", "output", "summary")) if isinstance(item, Mapping) else ()
    return max([1, *(len(parts) for parts in lists if isinstance(parts, list))])


class _Reader:
    def __init__(self, answers: bool) -> None:
        self.result = ResponseInput()
        self._answers = answers
        self._systems: list[str] = []
        """The texts of system and developer messages."""
        self._calls: set[str] = set()
        """The ids of calls that are among the items."""

    def whole(self) -> ResponseInput:
        """Return what was read. System messages are one block, since the last one replaces those before it."""
        if texts := self._systems:
            self.result.blocks.insert(0, System(text="\n\n".join(texts)))
        return self.result

    def read(self, item: Any, path: str) -> None:
        if not isinstance(item, Mapping):
            raise invalid(path, "an item must be an object")
        kind = item.get("type", "message" if "role" in item else None)
        match kind:
            case "message":
                self._message(item, path)
            case "reasoning":
                self._reasoning(item, path)
            case "function_call":
                self._call(item, path)
            case "function_call_output":
                self._output(item, path)
            case "mcp_call":
                self._server_call(item, path)
            case "mcp_approval_response":
                self._approval(item, path)
            case None:
                raise invalid(
                    f"{path}.type", f"Missing required parameter: '{path}.type'.", "missing_required_parameter"
                )
            case _:
                raise unsupported(f"{path}.type", f"items of type {kind!r:.99} are not supported")

    def _message(self, item: Mapping[str, Any], path: str) -> None:
        role, content = item.get("role"), item.get("content")
        if role not in ("user", "assistant", "system", "developer"):
            raise invalid(f"{path}.role", "must be 'user', 'assistant', 'system' or 'developer'")
        parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
        if not isinstance(parts, list):
            raise invalid(f"{path}.content", "must be a text or a list of parts")
        blocks = [self._part(part, f"{path}.content[{number}]", role) for number, part in enumerate(parts)]
        if not blocks:
            raise invalid(f"{path}.content", "must not be empty")
        if role in ("system", "developer"):
            self._systems += [block.text for block in blocks if isinstance(block, User)]
            return
        if role == "assistant" and item.get("status") == "incomplete":
            blocks[-1] = Text(text=getattr(blocks[-1], "text", ""), interrupted=True)
        if role == "user":  # a picture belongs to the text before it
            blocks.sort(key=lambda block: not isinstance(block, User))
        self.result.blocks += blocks

    def _part(self, part: Any, path: str, role: str) -> Block:
        if not isinstance(part, Mapping):
            raise invalid(path, "a part must be an object")
        kind = part.get("type")
        if kind in ("input_text", "output_text", "text"):
            text = text_of(part, "text", path)
            return Text(text=text) if role == "assistant" else User(text=text)
        if role == "assistant" and kind == "refusal":
            return Text(text=text_of(part, "refusal", path))
        if role == "user" and kind == "input_image":
            return _image(part, path)
        if role == "user" and kind == "input_file":
            return _file(part, path)
        raise unsupported(f"{path}.type", f"parts of type {kind!r:.99} are not supported in a message of role {role!r}")

    def _reasoning(self, item: Mapping[str, Any], path: str) -> None:
        encrypted, summary = item.get("encrypted_content"), item.get("summary") or []
        if not isinstance(summary, list) or not all(isinstance(part, Mapping) for part in summary):
            raise invalid(f"{path}.summary", "must be a list of parts")
        if encrypted is None:
            texts = [text_of(part, "text", f"{path}.summary[{number}]") for number, part in enumerate(summary)]
            self.result.blocks += [Thinking(text=text) for text in texts]
            return
        try:
            self.result.blocks += unpack(text_of(item, "encrypted_content", path))
        except ValueError as error:
            raise invalid(f"{path}.encrypted_content", str(error)) from None

    def _call(self, item: Mapping[str, Any], path: str) -> None:
        call_id, name = text_of(item, "call_id", path), text_of(item, "name", path)
        self._calls.add(call_id)
        self.result.blocks.append(ToolUse(call_id=call_id, name=name, input=arguments_of(item, path)))

    def _output(self, item: Mapping[str, Any], path: str) -> None:
        call_id = text_of(item, "call_id", path)
        result = _result(call_id, item.get("output"), f"{path}.output")
        if call_id in self._calls or not self._answers:
            self.result.blocks.append(result)
        elif self.result.outputs.setdefault(call_id, result) is not result:
            raise invalid(path, f"There are two outputs of the call {call_id}.")

    def _server_call(self, item: Mapping[str, Any], path: str) -> None:
        """Read a call of a tool of the service that an earlier response has shown."""
        call_id, output, error = text_of(item, "id", path), item.get("output"), item.get("error")
        use = ToolUse(call_id=call_id, name=text_of(item, "name", path), input=arguments_of(item, path))
        if error is None and not isinstance(output, str):
            raise invalid(f"{path}.output", "must be a text: a call that has not ended cannot be sent back")
        text = output if isinstance(output, str) else json.dumps(error, ensure_ascii=False)
        self.result.blocks += [use, ToolResult(call_id=call_id, text=text, is_error=error is not None)]

    def _approval(self, item: Mapping[str, Any], path: str) -> None:
        approve, reason = item.get("approve"), item.get("reason")
        if not isinstance(approve, bool):
            raise invalid(f"{path}.approve", "must be true or false")
        if reason is not None and not isinstance(reason, str):
            raise invalid(f"{path}.reason", "must be a text")
        self.result.approvals.append(Approval(text_of(item, "approval_request_id", path), approve, reason or ""))


def _result(call_id: str, output: Any, path: str) -> ToolResult:
    """Return a call's output: a text, or a list of texts, pictures and files."""
    if isinstance(output, str):
        return ToolResult(call_id=call_id, text=output)
    if not isinstance(output, list):
        raise invalid(path, "must be a text or a list of parts")
    parts = [_output_part(part, f"{path}[{number}]") for number, part in enumerate(output)]
    if all(isinstance(part, Text) for part in parts):
        return ToolResult(call_id=call_id, text="".join(part.text for part in parts if isinstance(part, Text)))
    return ToolResult(call_id=call_id, text="", blocks=tuple(parts))


def _output_part(part: Any, path: str) -> Text | Image | Document:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in ("input_text", "output_text"):
        return Text(text=text_of(part, "text", path))
    if kind == "input_image":
        return _image(part, path)
    if kind == "input_file":
        return _file(part, path)
    raise unsupported(f"{path}.type", f"parts of type {kind!r:.99} are not supported in outputs")


def _image(part: Mapping[str, Any], path: str) -> Image:
    _refuse_others(part, path)
    if (file_id := file_of(part, path, "image_url")) is not None:
        return Image(file=file_id)
    url = text_of(part, "image_url", path)
    if match := _DATA_URL.fullmatch(url):
        return Image(data=match[2], media_type=match[1])
    return Image(url=url)


def _file(part: Mapping[str, Any], path: str) -> Document:
    _refuse_others(part, path)
    name, url, data = part.get("filename"), part.get("file_url"), part.get("file_data")
    if name is not None and not isinstance(name, str):
        raise invalid(f"{path}.filename", "must be a text")
    if (file_id := file_of(part, path, "file_url", "file_data")) is not None:
        return Document(file=file_id, name=name or "")
    if (url is None) == (data is None):
        raise invalid(path, "a file needs one of file_id, file_data and file_url")
    if url is not None:
        url = text_of(part, "file_url", path)
        return Document(name=name or _name_in(url) or "file", url=url)
    data = text_of(part, "file_data", path)
    match = _DATA_URL.fullmatch(data)
    media_type = match[1] if match else mimetypes.guess_type(name or "")[0]
    if media_type is None:
        raise invalid(f"{path}.file_data", "its type is unknown: send a data URL, or a filename with an extension")
    return Document(name=name or "file", data=match[2] if match else data, media_type=media_type)


def _name_in(url: str) -> str:
    try:
        return PurePosixPath(urlsplit(url).path).name
    except ValueError:  # brackets without an IP address in them
        return ""


def _refuse_others(part: Mapping[str, Any], path: str) -> None:
    """Refuse what is not supported in pictures and files."""
    if part.get("detail") not in (None, "auto"):
        raise unsupported(f"{path}.detail", "only 'auto' is supported")
    if part.get("prompt_cache_breakpoint") is not None:
        raise unsupported(f"{path}.prompt_cache_breakpoint")
