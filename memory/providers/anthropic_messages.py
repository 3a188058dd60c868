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
from turnwise.memory.conversation.frozen_json import FrozenDict, freeze
from turnwise.memory.providers.anthropic import encode, is_kept
from turnwise.memory.providers.openai_chat import ERROR
from turnwise.memory.providers.parts import UnreadableError, kept, mapping, parts, pop_text, refuse, said, text
from turnwise.memory.providers.validation import ANTHROPIC

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
    for kind, part, at in parts(message.get("content"), ".content", "text"):
        blocks += _part(kind, part, at, role)
        if part.get("cache_control") is not None:
            blocks.append(CacheCheckpoint())
    return blocks or refuse(".content", message.get("content"), "it is empty: leave the message out")


def _part(kind: str, part: Mapping[str, Any], at: str, role: str) -> list[AnyBlock]:  # noqa: PLR0911 - a table
    match kind, role:
        case "text", "system":
            return [System(text=text(part, "text", at))]
        case "text", "assistant":
            cited = part.get("citations") or ()
            items = tuple(FrozenDict(freeze(mapping(one, f"{at}.citations"))) for one in cited)
            return [said(text(part, "text", at)), *([Citations(items=items)] if items else [])]
        case "thinking", "assistant":
            return [Thinking(text=text(part, "thinking", at), signature=part.get("signature"))]
        case "redacted_thinking", "assistant":
            return [Thinking(redacted=text(part, "data", at))]
        case "tool_use", "assistant":
            given = FrozenDict(freeze(mapping(part.get("input"), f"{at}.input")))
            return [ToolUse(call_id=text(part, "id", at), name=text(part, "name", at), input=given)]
        case "text", "user":
            return [User(text=text(part, "text", at))]
        case (("image" | "document"), "user"):
            return [_attached(kind, part, at)]
        case "tool_result", "user":
            return [_result(part, at)]
        case (("thinking" | "redacted_thinking" | "tool_use" | "tool_result" | "image" | "document"), _):
            raise UnreadableError(f"{at}.type", kind, f"a message of the {role} has no such part: leave it out")
        case _:
            return [kept("anthropic", part)]


def _result(part: Mapping[str, Any], at: str) -> ToolResult:
    found: list[Content] = []
    for kind, inner, place in parts(part.get("content") or "", f"{at}.content", "text"):
        if kind == "text":
            found.append(Text(text=text(inner, "text", place)))
        elif kind in ("image", "document"):
            found.append(_attached(kind, inner, place))
        else:
            raise UnreadableError(f"{place}.type", kind, "must be text, image or document: leave the part out")
    own = pop_text(found)
    failed = bool(part.get("is_error"))
    is_error = failed or own.startswith(ERROR)
    return ToolResult(
        call_id=text(part, "tool_use_id", at),
        text=own if failed else own.removeprefix(ERROR),
        is_error=is_error,
        blocks=tuple(found),
    )


def _attached(kind: str, part: Mapping[str, Any], at: str) -> Image | Document:
    source = mapping(part.get("source"), f"{at}.source")
    held: dict[str, Any] = {}
    match source.get("type"):
        case "base64":
            held = {"data": text(source, "data", f"{at}.source"), "media_type": source.get("media_type")}
        case "url":
            held = {"url": text(source, "url", f"{at}.source")}
        case "text" if kind == "document":
            held = {"text": text(source, "data", f"{at}.source")}
        case "content" if kind == "document":
            held = {"chunks": tuple(_chunks(source, f"{at}.source.content"))}
        case other:
            raise UnreadableError(f"{at}.source.type", other, "must be base64 or url: files of Anthropic are not read")
    if kind == "image":
        return Image(**held)
    cites = part.get("citations") or {}
    return Document(name=part.get("title") or "", cite=bool(cites.get("enabled")), **held)


def _chunks(source: Mapping[str, Any], at: str) -> Iterator[str]:
    for kind, part, place in parts(source.get("content"), at, "text"):
        yield text(part, "text", place) if kind == "text" else refuse(f"{place}.type", kind, "must be text")
