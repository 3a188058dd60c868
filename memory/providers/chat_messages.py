"""Messages of OpenAI's Chat Completions, as lists that other programs keep: read as blocks, and made of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnwise.memory.conversation.blocks import AnyBlock, Block, System, Thinking, ToolResult, ToolUse, User
from turnwise.memory.providers.openai_chat import ERROR, encode
from turnwise.memory.providers.parts import (
    UnreadableError,
    arguments,
    assistant_text,
    file,
    mapping,
    parts,
    picture,
    text,
)
from turnwise.memory.providers.validation import CHAT


def to_messages(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """Return the messages; see `openai_chat.encode`."""
    return encode(blocks)


def is_left_out(block: Block) -> bool:
    """Return whether the messages do not have the block."""
    return not isinstance(block, System) and not CHAT.sends(block)


def read(messages: Sequence[Any]) -> Iterator[list[AnyBlock]]:
    """Yield the blocks of each message.

    System prompts, texts, pictures and files by data or URL, calls of functions and their results are read, and what a
    server has added as `reasoning_content`. Other fields of a message, such as the name of its author, are left out.

    Raises:
        UnreadableError: it is not valid, or has something else.
    """
    for message in messages:
        yield _message(mapping(message, ""))


def _message(message: Mapping[str, Any]) -> list[AnyBlock]:
    match message.get("role"):
        case "system" | "developer":
            return [System(text=_texts(message.get("content"), ".content"))]
        case "user":
            return [_user_part(*part) for part in parts(message.get("content"), ".content", "text")]
        case "assistant":
            return _assistant_blocks(message)
        case "tool":
            content = _texts(message.get("content"), ".content")
            is_error = content.startswith(ERROR)
            call_id = text(message, "tool_call_id", "")
            return [ToolResult(call_id=call_id, text=content.removeprefix(ERROR), is_error=is_error)]
        case role:
            reason = "must be system, developer, user, assistant or tool; calls of the old form `function` are not read"
            raise UnreadableError(".role", role, reason)


def _user_part(kind: str, part: Mapping[str, Any], place: str) -> AnyBlock:
    match kind:
        case "text":
            return User(text=text(part, "text", place))
        case "image_url":
            return picture(text(mapping(part.get("image_url"), f"{place}.image_url"), "url", f"{place}.image_url"))
        case "file":
            return file(mapping(part.get("file"), f"{place}.file"), f"{place}.file")
        case _:
            raise UnreadableError(f"{place}.type", kind, "must be text, image_url or file: leave the part out")


def _assistant_blocks(message: Mapping[str, Any]) -> list[AnyBlock]:
    content, thought = message.get("content"), message.get("reasoning_content")
    spoken = "" if content is None else _texts(content, ".content")
    spoken += message["refusal"] if isinstance(message.get("refusal"), str) else ""
    if message.get("audio") or message.get("function_call"):
        name = "audio" if message.get("audio") else "function_call"
        raise UnreadableError(f".{name}", message[name], "it is not read: send content and tool_calls")
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, Sequence):
        raise UnreadableError(".tool_calls", calls, "must be a list")
    uses = [
        _call(mapping(call, place), place)
        for place, call in ((f".tool_calls[{n}]", call) for n, call in enumerate(calls))
    ]
    if not (spoken or uses):
        raise UnreadableError("", message, "an answer needs content or tool_calls: leave the message out")
    thoughts = [Thinking(text=thought)] if isinstance(thought, str) and thought else []
    return [*thoughts, *([assistant_text(spoken)] if spoken else []), *uses]


def _call(call: Mapping[str, Any], place: str) -> ToolUse:
    if call.get("type", "function") != "function":
        raise UnreadableError(
            f"{place}.type", call["type"], "only calls of functions are read: leave the call and its result out"
        )
    function = mapping(call.get("function"), f"{place}.function")
    name, call_input = text(function, "name", f"{place}.function"), arguments(function, f"{place}.function")
    return ToolUse(call_id=text(call, "id", place), name=name, input=call_input)


def _texts(content: Any, place: str) -> str:
    texts: list[str] = []
    for kind, part, part_place in parts(content, place, "text"):
        if kind not in ("text", "refusal"):
            raise UnreadableError(f"{part_place}.type", kind, "must be text: leave the part out")
        texts.append(text(part, kind, part_place))
    return "".join(texts)
