"""Converts blocks to messages of the Chat Completions API and back."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pydantic_core

from turnwise.errors import EngineError
from turnwise.memory.conversation.blocks import (
    Block,
    Citations,
    Content,
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
    described,
)
from turnwise.memory.conversation.transcript import prompts_apart, system_of
from turnwise.memory.providers.arrangement import name_of, ready
from turnwise.memory.providers.endpoints import OPENAI, Profile, unpack_attached
from turnwise.memory.providers.validation import CHAT

INTERRUPTED = " [interrupted]"
"""The text after an answer that was interrupted, for the model to see."""

CONTINUED = "[continued]"
"""The assistant's message between tool results and their pictures, for servers that take no prompt there."""

ERROR = "[error] "
"""The text before the result of a failed tool call."""

SUMMARY = "[summary of the conversation so far]\n"
"""The text before a summary, so that the model does not mistake it for a prompt."""


THOUGHT_FIELDS = ("reasoning_details", "thinking_blocks")
"""Fields in which OpenRouter and LiteLLM attach lists to thoughts. The engine packs them into the thoughts' signatures,
and they are sent back in the same fields."""

PARAGRAPH = "\n\n"
"""The separator between texts that are sent as one."""


def encode(blocks: Sequence[Block], profile: Profile = OPENAI, *, checks: bool = False) -> list[dict[str, Any]]:
    """Return the messages for the blocks.

    - The last `System` is the first message; other system prompts are not sent.
    - Each text of the user is a message with its images and files (see `prompts_apart`), so a prompt that was not
      answered stays apart from the next one. If the profile says that roles alternate, they are one message, and the
      user begins and ends: see `arranged`. A content is a string, with a blank line between texts, unless it has images
      or files, since many servers accept no list of texts.
    - In a shared session, a message of the user has the `name` of its author, where the profile says so and prompts are
      messages of their own; elsewhere a line of its text says it: see `arranged`.
    - Consecutive blocks of the assistant are one message, with its text (see `text_of`) and the calls in `tool_calls`.
    - Each tool result is a message, in the order in which the calls were declared. Such a message takes text only. So
      the pictures and files of the results are in a message of the user after the last result, each after a text that
      names its call, and the results say so. Documents of text, or with only a URL, are in the result itself.
    - A document with only a `url` is sent as its name and URL, a summary as a text after `SUMMARY`.
    - Citations, cache checkpoints, unknown kinds and empty texts are not sent. Thoughts are sent only to servers whose
      profile requires them.

    The messages are valid if the blocks are: see `repair` and `validation.check`.

    Args:
        profile: the profile of the server. Data that this server attached to a call or a thought is sent back.
        checks: see `ready`.

    Raises:
        InvalidRequestError: see `ready`.
        UnsupportedBlockError: the API accepts an image or document in none of its forms.
    """
    system = system_of(blocks)
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    has_thought = profile.returns_thoughts == "always" or (
        profile.returns_thoughts == "known" and any(isinstance(block, Thinking) for block in blocks)
    )
    rules = replace(CHAT, id_limit=sys.maxsize) if profile.has_long_ids else CHAT
    if profile.alternates:
        rules = replace(rules, user_begins=True, user_ends=True)
    elif profile.names_authors:
        rules = replace(rules, names_authors=True)
    for message in ready(filter(_is_read, blocks), rules, checks=checks):
        if message.role == "assistant":
            messages.append(_assistant_message(message.blocks, profile, has_thought=has_thought))
        else:
            messages += _user_messages(message.blocks, profile)
    return messages


def _user_messages(blocks: Sequence[Block], profile: Profile) -> list[dict[str, Any]]:
    """Return the messages for the blocks between two answers."""
    results = [block for block in blocks if isinstance(block, ToolResult)]
    messages = [_tool_message(block, profile) for block in results]
    prompts = prompts_apart(blocks[len(results) :])
    contents = [(list(map(_part, prompt)), _author_of(prompt)) for prompt in prompts]
    if media := [part for result in results for part in _media_parts(result, profile)]:
        contents.insert(0, (media, None))
    if contents and results and profile.answers_results:
        # If a prompt follows the results, the answer to them never came.
        messages.append({"role": "assistant", "content": INTERRUPTED.strip() if prompts else CONTINUED})
    if contents and profile.alternates:
        contents = [(list(chain.from_iterable(parts for parts, _ in contents)), None)]
    messages += [_user_message(parts, author) for parts, author in contents]
    return messages


def _is_read(block: Block) -> bool:
    """Return whether the messages depend on the block.

    Thoughts are sent to some servers only; citations are not sent, but say how texts are joined: see `text_of`.
    """
    return CHAT.sends(block) or isinstance(block, Thinking | Citations)


def decode(messages: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return the blocks of these messages: `decode(encode(blocks)) == blocks` for everything that the format contains.

    The format does not contain: the borders between texts of one message, the place of a call between texts, system
    prompts but the last, the names of text documents, whether a text is a summary, whether a picture or file is of a
    result, signatures, authors, and blocks that `encode` does not send.

    Raises:
        EngineError: a message has an unknown form; names it by its index.
    """
    blocks: list[Block] = []
    for index, message in enumerate(messages):
        try:
            blocks += _read_message(message)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise EngineError(f"messages[{index}] cannot be read: {error!r}") from error
    return blocks


def _author_of(prompt: Sequence[Block]) -> str | None:
    return next((block.author for block in prompt if isinstance(block, User)), None)


def _user_message(parts: list[dict[str, Any]], author: str | None) -> dict[str, Any]:
    name = {} if author is None else {"name": name_of(author)}
    if all(part["type"] == "text" for part in parts):
        return {"role": "user", "content": PARAGRAPH.join(part["text"] for part in parts), **name}
    return {"role": "user", "content": parts, **name}


def _part(block: Block) -> dict[str, Any]:
    match block:
        case User(text=text) | Recalled(text=text) | Text(text=text):
            return {"type": "text", "text": text}
        case Summary(text=text):
            return {"type": "text", "text": SUMMARY + text}
        case Image():
            return {
                "type": "image_url",
                "image_url": {"url": block.url if CHAT.form(block) == "url" else data_uri(block)},
            }
        case Document() if CHAT.form(block) == "data":
            return {"type": "file", "file": {"filename": block.name or "file", "file_data": data_uri(block)}}
        case Document():
            # Chat servers fetch no documents. The model gets the URL as text, since the turn is in the history already.
            return {"type": "text", "text": f"{block.name}:\n{block.plain or block.url}"}
        case _:
            raise TypeError(f"{block.kind} is not a block of the user")


def data_uri(block: Image | Document) -> str:
    """Return the block's data as a data URL."""
    return f"data:{block.media_type};base64,{block.data}"


def _assistant_message(blocks: Sequence[Block], profile: Profile, *, has_thought: bool) -> dict[str, Any]:
    """Return the assistant's message.

    Args:
        has_thought: whether each message with calls must have thoughts, which may be empty.
    """
    message: dict[str, Any] = {"role": "assistant", "content": text_of(blocks) or None}
    thoughts = [block for block in blocks if isinstance(block, Thinking)]
    for name in THOUGHT_FIELDS if thoughts else ():
        lists = [unpack_attached(thought.signature, profile.name, name) for thought in thoughts]
        if returned := [entry for entries in lists for entry in entries or ()]:
            message[name] = returned
    if calls := [_call(block, profile) for block in blocks if isinstance(block, ToolUse)]:
        message["tool_calls"] = calls
        if profile.has_content:
            message["content"] = message["content"] or ""
        if profile.signs_calls:  # of parallel calls, only the first has a signature
            calls[0].setdefault("extra_content", _UNSIGNED)
        if has_thought:
            message["reasoning_content"] = PARAGRAPH.join(thought.text for thought in thoughts if thought.text)
    return message


def text_of(blocks: Sequence[Block]) -> str:
    """Return the assistant's texts as one. Blank lines are between them, unless citations cut one text into them."""
    texts = [block.text + INTERRUPTED * block.interrupted for block in blocks if isinstance(block, Text)]
    is_cited = any(isinstance(block, Citations) for block in blocks)
    return ("" if is_cited else PARAGRAPH).join(texts)


_UNSIGNED = {"google": {"thought_signature": "skip_thought_signature_validator"}}
"""The placeholder in Google's documentation for the signature of a call that another model made."""

_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
"""The ids of calls that Mistral's API accepts."""


def _id(call_id: str, profile: Profile) -> str:
    """Return the id in the form that the server accepts. It depends on the id only."""
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
    text = PARAGRAPH.join(filter(None, (result.text, *map(_part_text, filter(CHAT.sends, result.blocks)))))
    return {"role": "tool", "tool_call_id": _id(result.call_id, profile), "content": ERROR * result.is_error + text}


def _part_text(block: Content) -> str:
    """Return the text of a result's block in the tool's message."""
    if not isinstance(block, Text) and _is_shown(block):
        return f"[{described(block)}: in the next message]"
    text: str = _part(block)["text"]
    return text


def _media_parts(result: ToolResult, profile: Profile) -> Iterator[dict[str, Any]]:
    """Yield the parts of the result that a tool's message cannot have, each after a text that says what it is."""
    for block in filter(_is_shown, result.attachments):
        label = f"[{described(block)} of the result of call {_id(result.call_id, profile)}]"
        yield from ({"type": "text", "text": label}, _part(block))


def _is_shown(block: Image | Document) -> bool:
    """Return whether the block is sent as a picture or a file, not as text."""
    return isinstance(block, Image) or CHAT.form(block) == "data"


def _read_message(message: Mapping[str, Any]) -> list[Block]:
    content = message.get("content")
    match message["role"]:
        case "system" | "developer":
            return [System(text=_read_text(content))]
        case "user":
            return [User(text=content)] if isinstance(content, str) else [_read_part(part) for part in content or ()]
        case "assistant":
            text = _read_text(content)
            is_cut = text.endswith(INTERRUPTED)
            texts: list[Block] = [Text(text=text.removesuffix(INTERRUPTED), interrupted=is_cut)] if text else []
            return texts + [_read_call(call) for call in message.get("tool_calls") or ()]
        case "tool":
            text = _read_text(content)
            failed = text.startswith(ERROR)
            return [ToolResult(call_id=message["tool_call_id"], text=text.removeprefix(ERROR), is_error=failed)]
        case role:
            raise ValueError(f"unknown role {role!r}")


def _read_text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content or ())


def _read_part(part: Mapping[str, Any]) -> Block:
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
    match = re.fullmatch(r"data:([^;,]+);base64,(.*)", uri, re.DOTALL)
    if not match:
        raise ValueError("not a base64 data: URI with a media type")
    return match[1], match[2]


def _read_call(call: Mapping[str, Any]) -> ToolUse:
    function = call["function"]
    arguments = pydantic_core.from_json(function["arguments"] or "{}")
    return ToolUse(call_id=call["id"], name=function["name"], input=arguments)
