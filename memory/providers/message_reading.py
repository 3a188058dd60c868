"""Reads messages of other libraries as blocks: finds their format, and checks that a conversation can go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from turnwise.errors import EmptyTurnError, InvalidInputError, InvalidPromptError, InvalidRequestError, shown
from turnwise.memory.conversation.blocks import AnyBlock, CacheCheckpoint, System, ToolResult, ToolUse, Unknown
from turnwise.memory.conversation.prompts import Refuses, accept, takes_all
from turnwise.memory.conversation.transcript import messages_of
from turnwise.memory.conversation.views.message_formats import FORMATS, MessageFormat, functions_of
from turnwise.memory.providers.message_times import message_times
from turnwise.memory.providers.parts import UnreadableError
from turnwise.memory.providers.validation import CHAT, check
from turnwise.memory.values.limits import MAX_MESSAGES, check_count

_RULES = replace(
    CHAT, name="a session", kinds=CHAT.kinds | {"thinking"}, image_types=frozenset(), document_types=frozenset()
)
"""Rules that hold for each provider: a result follows right after its call, and a text or a call follows thoughts."""

_REMEDIES = {
    "missing": "add the message with its result, or leave the call out",
    "partial": "add the message with its result, or leave the call out",
    "orphan": "add the message with the call before it, or leave the result out",
    "late": "move it to the place right after the message with the call",
    "duplicate_id": "give each call an id of its own",
    "thinking_only": "leave the thought out, or add the answer after it",
}


MAX_BYTES = 1 << 40
"""A limit above the size of any block, for conversations whose prompts no session limits."""


@dataclass(frozen=True)
class Given:
    """A conversation that was read."""

    blocks: Sequence[AnyBlock]
    places: Sequence[int]
    """The index of the message that each block is from; -1 for the system prompt that was given beside them."""
    times: Sequence[float | None] = ()
    """When the message of each block was written, in seconds since the epoch; empty if no message says so."""

    def encoded(self, max_bytes: int = MAX_BYTES, refuses: Refuses = takes_all) -> list[str]:
        """Return the blocks as stored texts.

        Args:
            max_bytes: the most bytes of one of them.
            refuses: the check of the session's engine for pictures and files.

        Raises:
            InvalidInputError: names the message of a block that cannot be stored.
        """
        texts: list[str] = []
        for index, block in enumerate(self.blocks):
            try:
                texts += accept("", [block], max_bytes, refuses)[1]
            except EmptyTurnError:
                raise self.refused(index, "its text is blank: leave the message out") from None
            except InvalidPromptError as error:
                raise self.refused(index, f"{error.why}: change the message, or leave it out") from None
        return texts

    def part(self, start: int, stop: int) -> Given:
        """Return a part of the conversation: the blocks from `start` up to `stop`."""
        return Given(self.blocks[start:stop], self.places[start:stop], self.times[start:stop])

    def refused(self, index: int, reason: str) -> InvalidInputError:
        """Return the error that names the message of a block."""
        field = f"messages[{self.places[index]}]" if self.places[index] >= 0 else "system"
        return InvalidInputError(field, shown(self.blocks[index]), reason)


def from_messages(
    messages: Sequence[Any], format: MessageFormat | None = None, *, system: str | None = None
) -> list[AnyBlock]:
    """Return the blocks of another library's conversation, checked as `import_messages` checks it. O(messages).

    Args:
        messages: dicts, or objects of the provider's client or of the library; see `MessageFormat`.
        format: their format; by default it is found, which fails where two formats are mixed.
        system: the system prompt, where it is not among the messages.

    Raises:
        TooManyError: there are more messages than `MAX_MESSAGES`.
        InvalidInputError: names the first message that cannot be read, or that cannot be continued, by its index.
        ConfigError: the format needs a package that is not installed.
    """
    return list(read_messages(messages, format, system=system).blocks)


def read_messages(messages: Any, format: str | None = None, *, system: str | None = None) -> Given:
    """Return what `from_messages` returns, and where each block is from."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidInputError("messages", shown(messages), "pass a list of messages")
    check_count("messages", len(messages), "MAX_MESSAGES", MAX_MESSAGES)
    plain_messages = list(messages) if _is_own(messages) else [_plain(message) for message in messages]
    blocks: list[AnyBlock] = [System(text=system)] if system else []
    places = [-1] * len(blocks)
    index = 0
    try:
        for blocks_read in _read(plain_messages, format or _format_of(messages, plain_messages)):
            blocks += blocks_read
            places += [index] * len(blocks_read)
            index += 1
    except UnreadableError as error:
        raise InvalidInputError(f"messages[{index}]{error.place}", shown(error.value), error.reason) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"messages[{index}]", shown(messages[index]), f"it cannot be read: {_reason_of(error)}"
        ) from None
    conversation = _with_one_system(blocks, places)
    _check(conversation)
    times = message_times(messages)
    return (
        replace(conversation, times=[times[max(place, 0)] for place in conversation.places]) if times else conversation
    )


def _reason_of(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return str(error.errors(include_url=False, include_context=False)[0]["msg"]).removeprefix("Value error, ")
    return str(error) or type(error).__name__


def _with_one_system(blocks: list[AnyBlock], places: list[int]) -> Given:
    """Return the conversation with one system prompt, at its beginning: a session sends only the last one it has."""
    system_indexes = [index for index, block in enumerate(blocks) if isinstance(block, System)]
    if system_indexes in ([], [0]):
        return Given(blocks, places)
    system = System(text="\n\n".join(block.text for block in blocks if isinstance(block, System)))
    rest = [index for index, block in enumerate(blocks) if not isinstance(block, System)]
    return Given(
        [system, *(blocks[index] for index in rest)], [places[system_indexes[0]], *(places[index] for index in rest)]
    )


def _read(messages: Sequence[Any], format: str) -> Iterator[list[AnyBlock]]:
    reader = functions_of(format, "read")
    if FORMATS[format].read == "read":
        yield from reader(messages)
        return
    # A reader of an adapter returns the blocks of all messages that it gets.
    sizes: list[int] = []
    for start, message in enumerate(messages):
        try:
            sizes.append(len(reader([message])))
        except InvalidInputError as error:
            raise InvalidInputError(f"messages[{start}]", shown(message), getattr(error, "why", str(error))) from error
    blocks: list[AnyBlock] = list(reader(messages))
    start = 0
    for size in sizes:
        yield blocks[start : start + size]
        start += size


def _check(conversation: Given) -> None:
    """Raise InvalidInputError if no provider would take the conversation with a next prompt."""
    if not conversation.blocks:
        raise InvalidInputError("messages", "[]", "there is nothing to read: pass at least one message")
    conversation.encoded()
    for position, block in enumerate(conversation.blocks):
        if isinstance(block, System) and not block.text.strip():
            raise conversation.refused(position, "its text is blank: leave the message out")
        if isinstance(block, ToolUse) and not (block.call_id and block.name):
            raise conversation.refused(position, "a call needs an id and a name: add them, or leave the call out")
    grouped = messages_of(conversation.blocks)
    try:
        if any(_RULES.sends(block) for block in conversation.blocks):
            check(grouped, _RULES)
    except InvalidRequestError as error:
        wrong_block = grouped[error.index].blocks[error.block]
        position = next(index for index, block in enumerate(conversation.blocks) if block is wrong_block)
        raise conversation.refused(
            position, f"{error.why}: {_REMEDIES.get(error.kind, 'change the message, or leave it out')}"
        ) from error
    last = None
    for position, block in enumerate(conversation.blocks):
        if isinstance(block, ToolResult) and last is not None and last.role == "user":
            raise conversation.refused(
                position, f"a prompt is between the call {block.call_id!r} and its result: {_REMEDIES['late']}"
            )
        last = last if isinstance(block, CacheCheckpoint | Unknown) else block


# The format


_CLASSES = {
    "openai.types.chat": "openai_chat",
    "openai.types.responses": "openai_responses",
    "anthropic.types": "anthropic",
    "langchain_core.": "langchain",
    "langchain.": "langchain",
    "pydantic_ai.": "pydantic_ai",
}
"""The beginnings of the modules whose classes belong to a format."""

_PARTS = {
    **dict.fromkeys(("image_url", "file", "input_audio"), "openai_chat"),
    **dict.fromkeys(("input_text", "output_text", "input_image", "input_file"), "openai_responses"),
    **dict.fromkeys(("tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"), "anthropic"),
    **dict.fromkeys(("server_tool_use", "web_search_tool_result", "web_fetch_tool_result"), "anthropic"),
}
"""The kinds of parts of a message that only one format has."""


def _class_format(message: Any) -> str | None:
    module = f"{type(message).__module__}."
    return next((format_name for beginning, format_name in _CLASSES.items() if module.startswith(beginning)), None)


def _is_own(messages: Sequence[Any]) -> bool:
    """Return whether these are objects that an adapter reads as they are."""
    return any(_class_format(message) in ("langchain", "pydantic_ai") for message in messages)


def _plain(message: Any) -> Any:
    """Return a client's object as the dict that it stands for."""
    return message.model_dump(mode="json", exclude_none=True) if isinstance(message, BaseModel) else message


def _format_of(messages: Sequence[Any], plain_messages: Sequence[Any]) -> str:
    """Return the format of the messages.

    Messages that are the same in all formats, such as plain texts, do not decide.
    """
    formats: dict[str, int] = {}
    for index, (message, plain) in enumerate(zip(messages, plain_messages, strict=True)):
        if name := _class_format(message) or _dict_format(plain):
            formats.setdefault(name, index)
    if len(formats) > 1:
        (first_format, first), (second_format, second) = list(formats.items())[:2]
        reason = (
            f"it looks like {second_format}, and messages[{first}] like {first_format}: "
            "pass format=, or messages of one format"
        )
        raise InvalidInputError(f"messages[{second}]", shown(messages[second]), reason)
    return next(iter(formats), "openai_chat")


def _dict_format(message: Any) -> str | None:
    if not isinstance(message, Mapping):
        return None
    kind, content = message.get("type"), message.get("content")
    if message.get("role") == "tool" or "tool_calls" in message or "tool_call_id" in message:
        return "openai_chat"
    if isinstance(kind, str) and kind != "message":
        return "openai_responses"
    kinds = [part.get("type") for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
    return next((_PARTS[kind] for kind in kinds if isinstance(kind, str) and kind in _PARTS), None)
