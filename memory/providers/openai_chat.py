"""Converts blocks to messages of the Chat Completions API and back."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import pydantic_core

from turnwise.errors import EngineError
from turnwise.memory.conversation.blocks import (
    Block,
    Document,
    Image,
    Recalled,
    Summary,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    User,
)
from turnwise.memory.conversation.transcript import messages_of, system_of
from turnwise.memory.providers.endpoints import OPENAI, Profile, unpack_attached
from turnwise.memory.providers.validation import CHAT, fit

INTERRUPTED = " [interrupted]"
"""The text after an answer that was cut short, so that the model knows it."""

ERROR = "[error] "
"""The text before the result of a failed tool call."""

SUMMARY = "[summary of the conversation so far]\n"
"""The text before a summary, so that the model does not mistake it for a prompt."""


ATTACHED = ("reasoning_details", "thinking_blocks")
"""What OpenRouter and LiteLLM attach to thoughts: lists, which go back in fields of these names."""

PARAGRAPH = "\n\n"
"""The separator between consecutive texts of the user, which are sent as one."""


def encode(blocks: Sequence[Block], profile: Profile = OPENAI) -> list[dict[str, Any]]:
    """Return the messages for the blocks.

    The last `System` leads, the others are not sent. Then, in order: neighbours of the user are one message, a plain
    string if it is text alone, joined by a blank line, since many servers take no list of texts; neighbours of the
    assistant are one message, their texts joined, their calls in `tool_calls`; results follow, each a message, in the
    order in which their calls were declared. Not sent: citations, cache checkpoints, unknown kinds, empty texts, and
    thoughts, but to a server whose profile says that it wants them. The messages are as valid as the blocks: see
    `repair` and `validation.check`. A document that is known by its `url` alone is sent as its name and address, a
    summary as a text behind `SUMMARY`.

    Args:
        profile: of the server. What it attached to a call or a thought goes back to it, and to no other.

    Raises:
        UnsupportedBlockError: an image or document in no form that chat takes.
    """
    system = system_of(blocks)
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    has_thought = profile.returns_thoughts == "always" or (
        profile.returns_thoughts == "known" and any(isinstance(block, Thinking) for block in blocks)
    )
    rules = replace(CHAT, id_limit=sys.maxsize) if profile.has_long_ids else CHAT
    for message in fit(messages_of(_sent(blocks)), rules):
        if message.role == "assistant":
            messages.append(_assistant_message(message.blocks, profile, has_thought=has_thought))
        else:
            results = [block for block in message.blocks if isinstance(block, ToolResult)]
            messages += [_tool_message(block, profile) for block in results]
            if prompts := [block for block in message.blocks if not isinstance(block, ToolResult)]:
                if results and profile.answers_results:
                    messages.append({"role": "assistant", "content": INTERRUPTED.strip()})
                messages.append(_user_message(prompts))
    return messages


def _sent(blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield the blocks that a chat server gets, each with the thoughts before it."""
    telling = [block for block in blocks if CHAT.sends(block) or isinstance(block, Thinking)]
    for is_assistant, neighbours in groupby(telling, key=lambda block: block.role == "assistant"):
        group = list(neighbours)
        if not is_assistant or any(not isinstance(block, Thinking) for block in group):
            yield from group


def decode(messages: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return the blocks that the messages hold: `decode(encode(blocks)) == blocks` for what chat can carry.

    What it cannot carry: which texts of one side were apart, where a call stood between them, all but the last
    system prompt, the names of text documents, that a text is a summary, signatures, and whatever `encode` does not
    send.

    Raises:
        EngineError: a message of no known form; names it by its index.
    """
    blocks: list[Block] = []
    for index, message in enumerate(messages):
        try:
            blocks += _blocks(message)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise EngineError(f"messages[{index}] cannot be read: {error!r}") from error
    return blocks


def _user_message(prompts: Sequence[Block]) -> dict[str, Any]:
    parts = list(map(_part, prompts))
    if all(part["type"] == "text" for part in parts):
        return {"role": "user", "content": PARAGRAPH.join(part["text"] for part in parts)}
    return {"role": "user", "content": parts}


def _part(block: Block) -> dict[str, Any]:
    match block:
        case User(text=text) | Recalled(text=text):
            return {"type": "text", "text": text}
        case Summary(text=text):
            return {"type": "text", "text": SUMMARY + text}
        case Image():
            return {
                "type": "image_url",
                "image_url": {"url": block.url if CHAT.form(block) == "url" else data_uri(block)},
            }
        case Document() if CHAT.form(block) == "data":
            return {"type": "file", "file": {"filename": block.name, "file_data": data_uri(block)}}
        case Document():
            # Chat servers fetch no documents. The model gets the URL as text, since the turn is in the history already.
            return {"type": "text", "text": f"{block.name}:\n{block.text or block.url}"}
        case _:
            raise TypeError(f"{block.kind} is not a block of the user")


def data_uri(block: Image | Document) -> str:
    """Return the block's data as a data URL."""
    return f"data:{block.media_type};base64,{block.data}"


def _assistant_message(said: Sequence[Block], profile: Profile, *, has_thought: bool) -> dict[str, Any]:
    """Return the message.

    Args:
        has_thought: whether each message that calls tools has to have thoughts, if empty ones.
    """
    texts = [block.text + INTERRUPTED * block.interrupted for block in said if isinstance(block, Text)]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or None}
    thoughts = [block for block in said if isinstance(block, Thinking)]
    for name in ATTACHED:
        found = [unpack_attached(thought.signature, profile.name, name) for thought in thoughts]
        if attached := [each for some in found for each in some or ()]:
            message[name] = attached
    if calls := [_call(block, profile) for block in said if isinstance(block, ToolUse)]:
        message["tool_calls"] = calls
        if profile.has_content:
            message["content"] = message["content"] or ""
        if profile.signs_calls:  # of parallel calls, the first is signed
            calls[0].setdefault("extra_content", _UNSIGNED)
        if has_thought:
            message["reasoning_content"] = PARAGRAPH.join(thought.text for thought in thoughts if thought.text)
    return message


_UNSIGNED = {"google": {"thought_signature": "skip_thought_signature_validator"}}
"""What Google's documentation has in place of a signature, for calls that another model has made."""

_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")


def _id(call_id: str, profile: Profile) -> str:
    """Return the id as the server takes it: always the same for the same id."""
    if not profile.has_short_ids or _SHORT_ID.fullmatch(call_id):
        return call_id
    return base64.b32encode(hashlib.sha256(call_id.encode()).digest())[:9].decode()


def _call(use: ToolUse, profile: Profile) -> dict[str, Any]:
    function = {"name": use.name, "arguments": arguments_of(use)}
    call = {"id": _id(use.call_id, profile), "type": "function", "function": function}
    if extra := unpack_attached(use.signature, profile.name, "extra_content"):
        call["extra_content"] = extra
    return call


def arguments_of(use: ToolUse) -> str:
    """Return the call's input as JSON text."""
    return json.dumps(use.input, ensure_ascii=False)


def _tool_message(result: ToolResult, profile: Profile) -> dict[str, Any]:
    return {
        "role": "tool",
        "tool_call_id": _id(result.call_id, profile),
        "content": ERROR * result.is_error + result.text,
    }


def _blocks(message: Mapping[str, Any]) -> list[Block]:
    content = message.get("content")
    match message["role"]:
        case "system" | "developer":
            return [System(text=_text(content))]
        case "user":
            return [User(text=content)] if isinstance(content, str) else [_prompt(part) for part in content or ()]
        case "assistant":
            text = _text(content)
            cut = text.endswith(INTERRUPTED)
            said: list[Block] = [Text(text=text.removesuffix(INTERRUPTED), interrupted=cut)] if text else []
            return said + [_use(call) for call in message.get("tool_calls") or ()]
        case "tool":
            text = _text(content)
            failed = text.startswith(ERROR)
            return [ToolResult(call_id=message["tool_call_id"], text=text.removeprefix(ERROR), is_error=failed)]
        case role:
            raise ValueError(f"unknown role {role!r}")


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content or ())


def _prompt(part: Mapping[str, Any]) -> Block:
    match part["type"]:
        case "text":
            return User(text=part["text"])
        case "image_url":
            url = part["image_url"]["url"]
            if not url.startswith("data:"):
                return Image(url=url)
            media_type, data = _split_data_uri(url)
            return Image(data=data, media_type=media_type)
        case "file":
            media_type, data = _split_data_uri(part["file"]["file_data"])
            return Document(name=part["file"]["filename"], data=data, media_type=media_type)
        case kind:
            raise ValueError(f"unknown part {kind!r}")


def _split_data_uri(uri: str) -> tuple[str, str]:
    found = re.fullmatch(r"data:([^;,]+);base64,(.*)", uri, re.DOTALL)
    if not found:
        raise ValueError("not a base64 data: URI with a media type")
    return found[1], found[2]


def _use(call: Mapping[str, Any]) -> ToolUse:
    function = call["function"]
    arguments = pydantic_core.from_json(function["arguments"] or "{}")
    return ToolUse(call_id=call["id"], name=function["name"], input=arguments)
