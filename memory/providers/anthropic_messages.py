"""Messages of Anthropic's Messages API, as lists that other programs keep: read as blocks, and made of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pydantic_core

from turnwise.memory.conversation.blocks import (
    AnyBlock,
    Block,
    CacheCheckpoint,
    Citations,
    Content,
    Document,
    Image,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    User,
)
from turnwise.memory.providers.anthropic import encode, is_kept
from turnwise.memory.providers.openai_chat import ERROR
from turnwise.memory.providers.parts import (
    UnreadableError,
    assistant_text,
    mapping,
    parts,
    pop_text,
    refuse,
    text,
    unknown_block,
)
from turnwise.memory.providers.validation import ANTHROPIC
from turnwise.memory.values.frozen_json import FrozenDict, freeze

_AS_IT_IS = replace(ANTHROPIC, user_begins=False, user_ends=False)
"""The rules of a conversation that is no request: it may begin and end with the assistant."""


def to_messages(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """Return the messages as plain JSON, without the system prompt; see `anthropic.encode`."""
    messages: list[dict[str, Any]] = pydantic_core.from_json(pydantic_core.to_json(encode(blocks, _AS_IT_IS)[1]))
    return messages


def is_left_out(block: Block) -> bool:
    """Return whether the messages do not have the block."""
    if isinstance(block, Thinking):
        return not is_kept(block)
    return not isinstance(block, System | CacheCheckpoint) and not ANTHROPIC.sends(block)


def read(messages: Sequence[Any]) -> Iterator[list[AnyBlock]]:
    """Yield the blocks of each message.

    Texts with their citations, pictures, documents, thoughts, calls, their results and marks of the cache are read.
    Parts of other kinds, such as searches that Anthropic made, are stored unchanged and never sent.

    Raises:
        UnreadableError: it is not valid.
    """
    for message in messages:
        yield _message(mapping(message, ""))


def _message(message: Mapping[str, Any]) -> list[AnyBlock]:
    role = message.get("role")
    if role not in ("user", "assistant", "system"):
        raise UnreadableError(".role", role, "must be user or assistant")
    blocks: list[AnyBlock] = []
    for kind, part, place in parts(message.get("content"), ".content", "text"):
        blocks += _part(kind, part, place, role)
        if part.get("cache_control") is not None:
            blocks.append(CacheCheckpoint())
    return blocks or refuse(".content", message.get("content"), "it is empty: leave the message out")


def _part(kind: str, part: Mapping[str, Any], place: str, role: str) -> list[AnyBlock]:  # noqa: PLR0911 - a table
    match kind, role:
        case "text", "system":
            return [System(text=text(part, "text", place))]
        case "text", "assistant":
            cited = part.get("citations") or ()
            items = tuple(FrozenDict(freeze(mapping(citation, f"{place}.citations"))) for citation in cited)
            return [assistant_text(text(part, "text", place)), *([Citations(items=items)] if items else [])]
        case "thinking", "assistant":
            return [Thinking(text=text(part, "thinking", place), signature=part.get("signature"))]
        case "redacted_thinking", "assistant":
            return [Thinking(redacted=text(part, "data", place))]
        case "tool_use", "assistant":
            arguments = FrozenDict(freeze(mapping(part.get("input"), f"{place}.input")))
            return [ToolUse(call_id=text(part, "id", place), name=text(part, "name", place), input=arguments)]
        case "text", "user":
            return [User(text=text(part, "text", place))]
        case (("image" | "document"), "user"):
            return [_attached(kind, part, place)]
        case "tool_result", "user":
            return [_result(part, place)]
        case (("thinking" | "redacted_thinking" | "tool_use" | "tool_result" | "image" | "document"), _):
            raise UnreadableError(f"{place}.type", kind, f"a message of the {role} has no such part: leave it out")
        case _:
            return [unknown_block("anthropic", part)]


def _result(part: Mapping[str, Any], place: str) -> ToolResult:
    contents: list[Content] = []
    for kind, inner, part_place in parts(part.get("content") or "", f"{place}.content", "text"):
        if kind == "text":
            contents.append(Text(text=text(inner, "text", part_place)))
        elif kind in ("image", "document"):
            contents.append(_attached(kind, inner, part_place))
        else:
            raise UnreadableError(f"{part_place}.type", kind, "must be text, image or document: leave the part out")
    own = pop_text(contents)
    failed = bool(part.get("is_error"))
    is_error = failed or own.startswith(ERROR)
    return ToolResult(
        call_id=text(part, "tool_use_id", place),
        text=own if failed else own.removeprefix(ERROR),
        is_error=is_error,
        blocks=tuple(contents),
    )


def _attached(kind: str, part: Mapping[str, Any], place: str) -> Image | Document:
    source = mapping(part.get("source"), f"{place}.source")
    content: dict[str, Any] = {}
    match source.get("type"):
        case "base64":
            content = {"data": text(source, "data", f"{place}.source"), "media_type": source.get("media_type")}
        case "url":
            content = {"url": text(source, "url", f"{place}.source")}
        case "text" if kind == "document":
            content = {"text": text(source, "data", f"{place}.source")}
        case "content" if kind == "document":
            content = {"chunks": tuple(_chunks(source, f"{place}.source.content"))}
        case unknown:
            raise UnreadableError(
                f"{place}.source.type", unknown, "must be base64 or url: files of Anthropic are not read"
            )
    if kind == "image":
        return Image(**content)
    cites = part.get("citations") or {}
    return Document(name=part.get("title") or "", cite=bool(cites.get("enabled")), **content)


def _chunks(source: Mapping[str, Any], place: str) -> Iterator[str]:
    for kind, part, part_place in parts(source.get("content"), place, "text"):
        yield text(part, "text", part_place) if kind == "text" else refuse(f"{part_place}.type", kind, "must be text")
