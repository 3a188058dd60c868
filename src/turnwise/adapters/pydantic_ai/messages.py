"""Converts blocks to Pydantic AI's messages and back."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pydantic_core

from turnwise.adapters.version_checks import framework
from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.blocks import (
    AnyBlock,
    Block,
    CacheCheckpoint,
    Document,
    Image,
    Recalled,
    Summary,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
    User,
)
from turnwise.memory.conversation.calls.call_arguments import UNPARSED, read_call
from turnwise.memory.conversation.output_type import as_said
from turnwise.memory.conversation.transcript import begins_prompt, system_of
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.providers.endpoints import pack_attached, unpack_attached
from turnwise.memory.providers.openai_chat import INTERRUPTED, SUMMARY
from turnwise.memory.values.frozen_json import FrozenDict, freeze
from turnwise.memory.values.growing_text import whole_json

with framework("pydantic-ai-slim", extra="pydantic-ai", tested="2.68"):
    from pydantic_ai.messages import (
        BinaryContent,
        CachePoint,
        DocumentUrl,
        ImageUrl,
        ModelMessage,
        ModelMessagesTypeAdapter,
        ModelRequest,
        ModelRequestPart,
        ModelResponse,
        ModelResponsePart,
        RetryFeedbackPart,
        SystemPromptPart,
        TextContent,
        TextPart,
        ThinkingPart,
        ToolCallPart,
        ToolReturnPart,
        UserContent,
        UserPromptPart,
    )

KIND = "pydantic_ai"
"""The kind of blocks that hold what no other block can; providers never get them."""

_REDACTED = "redacted_thinking"
"""The id of a thought that Anthropic has redacted."""

_ANTHROPIC = "anthropic"

_SIGNED = ("id", "signature", "provider_name", "provider_details", "tool_kind")
"""The fields of thoughts and calls that a provider wants back."""


def from_pydantic_ai(messages: Iterable[ModelMessage]) -> list[AnyBlock]:
    """Return Pydantic AI's messages as blocks; `to_pydantic_ai` returns the same messages again.

    After the blocks of each message stands a block of kind `pydantic_ai` with what they do not hold, such as times,
    ids, usage and the details of providers. It is stored with them, and no provider gets it.

    Raises:
        InvalidInputError: something is not one of Pydantic AI's messages.
    """
    return [block for index, message in enumerate(messages) for block in _exact(index, message)]


def to_pydantic_ai(source: Turn | Iterable[Block]) -> list[ModelMessage]:
    """Return a turn, or blocks, as Pydantic AI's messages, for `message_history=`.

    Blocks of `from_pydantic_ai` become the messages that they were made of; where one was removed or replaced since,
    its message is made of the remaining blocks. Others become messages of the same content: thoughts without a
    provider's signature are left out, a summary is a text of the user, and the last system prompt comes first.
    """
    blocks = as_said(source.blocks if isinstance(source, Turn) else source)
    messages: list[ModelMessage] = []
    rest: list[Block] = []
    for block in blocks:
        whole = _rebuilt(rest, block)
        if whole is None:
            rest.append(block)
        else:
            message, count = whole
            messages += [*_messages(rest[: len(rest) - count]), message]
            rest = []
    return [*messages, *_messages(rest)]


def plain_blocks(message: ModelMessage) -> list[AnyBlock]:
    """Return a message's blocks, with what its provider wants back, without its times, ids and usage."""
    dumped = _dump(message)["parts"]
    is_cut = isinstance(message, ModelResponse) and message.finish_reason == "length"
    return [
        block
        for part, part_fields in zip(message.parts, dumped, strict=True)
        for block in _blocks(part, part_fields, message.kind, is_cut=is_cut)
    ]


def whole_part(part: ModelResponsePart) -> ModelResponsePart:
    """Return a part of an answer, with texts that UTF-8 can hold: see `growing_text.whole_json`."""
    if isinstance(part, TextPart | ThinkingPart):
        content = whole_json(part.content)
        return part if content == part.content else replace(part, content=content)
    if isinstance(part, ToolCallPart):
        arguments = whole_json(part.args)
        return part if arguments == part.args else replace(part, args=arguments)
    return part


def use_of(part: ToolCallPart, *, is_cut: bool = False, signature: str | None = None) -> ToolUse:
    """Return a call; with a flaw, if its arguments are no JSON object.

    Args:
        is_cut: whether the answer ended at its maximum length.
    """
    arguments = part.args if isinstance(part.args, str) else json.dumps(part.args or {}, ensure_ascii=False)
    return read_call(part.tool_call_id, part.tool_name, arguments, is_cut=is_cut, signature=signature)


def result_of(part: ToolReturnPart, more: str | Sequence[UserContent] | None = None) -> ToolResult:
    """Return a tool's result.

    Args:
        more: content for the model beside the result.
    """
    extra = [] if more is None else [Text(text=more)] if isinstance(more, str) else list(map(_content, more))
    files = [block for block in map(_content, part.files) if isinstance(block, Image | Document)]
    texts = [Text(text=block.text) if isinstance(block, User) else block for block in extra]
    return ToolResult(
        call_id=part.tool_call_id,
        text=part.model_response_str(wrap_if_error=False),
        is_error=part.outcome != "success",
        is_json=part.outcome == "success" and _is_json(part),
        blocks=(*files, *(block for block in texts if isinstance(block, Text | Image | Document))),
    )


def content_of(result: ToolResult) -> Any:
    """Return a recorded result as what a tool of Pydantic AI returns."""
    value = _plain(result.data) if result.is_json else result.text
    files = [_user_content(block) for block in result.blocks]
    return [value, *files] if files else value


# Parts to blocks


def _is_json(part: ToolReturnPart) -> bool:
    return not isinstance(part.content, str) and part.content is not None and not part.files


def _blocks(
    part: ModelRequestPart | ModelResponsePart, dumped: Mapping[str, Any], side: str, *, is_cut: bool = False
) -> list[AnyBlock]:
    """Return a part as blocks.

    Args:
        dumped: the part as JSON.
        side: the kind of its message.
        is_cut: whether the message ended at its maximum length.
    """
    blocks: list[AnyBlock]
    match part:
        case SystemPromptPart():
            blocks = [System(text=part.content)]
        case UserPromptPart(content=str(text)):
            blocks = [User(text=text)]
        case UserPromptPart():
            blocks = [_content(content) for content in part.content]
        case RetryFeedbackPart():
            blocks = [User(text=part.model_response())]
        case ToolReturnPart():
            blocks = [result_of(part)]
        case TextPart():
            blocks = [Text(text=part.content)] if part.content else []
        case ThinkingPart():
            blocks = [_thought(part, dumped)]
        case ToolCallPart():
            fields = _fields_of(dumped, ("id", "provider_details", "tool_kind"))
            signature = pack_attached(KIND, part=fields | _fields_of(dumped, ("provider_name",))) if fields else None
            blocks = [use_of(part, is_cut=is_cut, signature=signature)]
        case _:
            blocks = [_unknown(part=dumped, side=side)]
    return blocks


def _unknown(**payload: Any) -> Unknown:
    return Unknown(stored_kind=KIND, payload=FrozenDict(freeze(payload)))


def _thought(part: ThinkingPart, dumped: Mapping[str, Any]) -> Thinking:
    if part.provider_name == _ANTHROPIC and part.signature and not part.provider_details:
        if part.id == _REDACTED:
            return Thinking(redacted=part.signature)
        if part.id is None:
            return Thinking(text=part.content, signature=part.signature)
    fields = _fields_of(dumped, _SIGNED)
    return Thinking(text=part.content, signature=pack_attached(KIND, part=fields) if fields else None)


def _fields_of(dumped: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: dumped[name] for name in names if dumped.get(name) is not None}


def _content(content: UserContent) -> AnyBlock:
    block: AnyBlock
    match content:
        case str():
            block = User(text=content)
        case TextContent():
            block = User(text=content.content)
        case CachePoint():
            block = CacheCheckpoint()
        case ImageUrl():
            block = Image(url=content.url)
        case DocumentUrl():
            block = Document(name=content.identifier, url=content.url)
        case BinaryContent() if content.is_image:
            block = Image(data=base64.b64encode(content.data).decode(), media_type=content.media_type)
        case BinaryContent():
            data = base64.b64encode(content.data).decode()
            block = Document(name=content.identifier, data=data, media_type=content.media_type)
        case _:
            message = ModelRequest(parts=[UserPromptPart(content=[content])])
            block = _unknown(part=_dump(message)["parts"][0], side=message.kind)
    return block


# Blocks to messages


def _messages(blocks: Sequence[Block], *, apart: bool = True) -> Iterator[ModelMessage]:
    """Yield the blocks as messages: requests and responses, in order.

    Args:
        apart: whether each text of the user is a part of its own, as a prompt that was not answered is.
    """
    names = {block.call_id: block.name for block in blocks if isinstance(block, ToolUse)}
    system = system_of(blocks)
    request_parts: list[ModelRequestPart] = [SystemPromptPart(content=system)] if system else []
    response_parts: list[ModelResponsePart] = []
    prompt: list[Block] = []
    for block in blocks:
        begins = apart and begins_prompt(block, prompt)
        is_theirs = block.role in ("assistant", "tool")
        prompt = [] if is_theirs else [*([] if begins else prompt), block]
        for part in _parts(block, names):
            if (isinstance(block, Unknown) and block.payload["side"] == "request") or isinstance(part, _REQUEST_PARTS):
                if response_parts:
                    yield ModelResponse(parts=response_parts)
                    response_parts = []
                _add(request_parts, part, begins=begins)
            else:
                if request_parts:
                    yield ModelRequest(parts=request_parts)
                    request_parts = []
                response_parts.append(part)
    if response_parts:
        yield ModelResponse(parts=response_parts)
    if request_parts:
        yield ModelRequest(parts=request_parts)


_REQUEST_PARTS = (SystemPromptPart, UserPromptPart, ToolReturnPart, RetryFeedbackPart)


def _add(request_parts: list[ModelRequestPart], part: ModelRequestPart, *, begins: bool) -> None:
    """Add a part to a request; one prompt of several contents is one part."""
    last = request_parts[-1] if request_parts else None
    if begins or not (isinstance(last, UserPromptPart) and isinstance(part, UserPromptPart)):
        request_parts.append(part)
        return
    contents = [prompt.content if not isinstance(prompt.content, str) else [prompt.content] for prompt in (last, part)]
    request_parts[-1] = UserPromptPart(
        content=[content for prompt_contents in contents for content in prompt_contents], timestamp=last.timestamp
    )


def _parts(block: Block, names: Mapping[str, str]) -> list[Any]:
    """Return a block as parts of messages.

    Args:
        names: the tools of the calls, by call id.
    """
    parts: list[Any]
    match block:
        case Summary():
            parts = [UserPromptPart(content=SUMMARY + block.text)]
        case User() | Recalled():
            parts = [UserPromptPart(content=block.text)]
        case Image() | Document():
            parts = [UserPromptPart(content=[_user_content(block)])]
        case CacheCheckpoint():
            parts = [UserPromptPart(content=[CachePoint()])]
        case ToolResult():
            outcome: Any = "failed" if block.is_error else "success"
            name = names.get(block.call_id, "unknown")
            parts = [ToolReturnPart(name, content_of(block), block.call_id, outcome=outcome)]
        case Text():
            parts = [TextPart(content=block.text + INTERRUPTED * block.interrupted)]
        case Thinking():
            parts = _thoughts(block)
        case ToolUse():
            fields = unpack_attached(block.signature, KIND, "part") or {}
            arguments = _plain(block.input) if block.flaw is None else block.input[UNPARSED]
            parts = [ToolCallPart(block.name, arguments, block.call_id, **fields)]
        case Unknown(stored_kind="pydantic_ai") if "part" in block.payload:
            message = {"kind": block.payload["side"], "parts": [block.payload["part"]]}
            parts = list(_load(message).parts)
        case _:
            parts = []
    return parts


def _thoughts(block: Thinking) -> list[ThinkingPart]:
    if block.redacted:
        return [ThinkingPart(content="", id=_REDACTED, signature=block.redacted, provider_name=_ANTHROPIC)]
    if fields := unpack_attached(block.signature, KIND, "part"):
        return [ThinkingPart(content=block.text, **fields)]
    if block.signature and not block.signature.startswith("{"):
        return [ThinkingPart(content=block.text, signature=block.signature, provider_name=_ANTHROPIC)]
    return []


def _user_content(block: Text | Image | Document) -> UserContent:
    if isinstance(block, Text):
        return block.text
    if isinstance(block, Document) and block.plain:
        return f"{block.name}:\n{block.plain}"
    if block.data:
        name = block.name if isinstance(block, Document) else None
        data, media_type = base64.b64decode(block.data), block.media_type or ""
        return BinaryContent(data=data, media_type=media_type, identifier=name)
    return ImageUrl(url=block.url or "") if isinstance(block, Image) else DocumentUrl(url=block.url or "")


# Exact messages


def _exact(index: int, message: Any) -> list[AnyBlock]:
    if not isinstance(message, ModelRequest | ModelResponse):
        reason = "must be one of Pydantic AI's messages, such as those of result.new_messages()"
        raise InvalidInputError(f"messages[{index}]", shown(message), reason)
    blocks: list[AnyBlock] = []
    rests: list[dict[str, Any]] = []
    dumped = _dump(message)
    for part, whole in zip(message.parts, dumped["parts"], strict=True):
        part_blocks = _blocks(part, whole, message.kind)
        again = _dump_parts(part_blocks)
        is_like = len(again) == 1 and again[0].keys() <= whole.keys()
        rest = {name: value for name, value in whole.items() if not is_like or again[0].get(name, value) != value}
        rest |= {name: value for name, value in whole.items() if is_like and name not in again[0]}
        rests.append({"kinds": [block.kind for block in part_blocks], "rest": rest, "is_like": is_like})
        blocks += part_blocks
    head = {name: value for name, value in dumped.items() if name != "parts"}
    return [*blocks, _unknown(message=head, parts=rests)]


def _rebuilt(before: Sequence[Block], last: Block) -> tuple[ModelMessage, int] | None:
    """Return the message that `_exact` took apart, and its number of blocks; None if there is none.

    Args:
        before: the blocks, at whose end those of the message are.
        last: the block after them.
    """
    if not (isinstance(last, Unknown) and last.stored_kind == KIND and "message" in last.payload):
        return None
    payload = _plain(last.payload)
    number = sum(len(entry["kinds"]) for entry in payload["parts"])
    start, parts = len(before) - number, []
    for entry in payload["parts"]:
        part_blocks = before[max(start, 0) : start + len(entry["kinds"])]
        if start < 0 or [block.kind for block in part_blocks] != entry["kinds"]:
            return None
        parts.append((_dump_parts(part_blocks)[0] if entry["is_like"] else {}) | entry["rest"])
        start += len(part_blocks)
    return _load({**payload["message"], "parts": parts}), number


def _dump_parts(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    return [part for message in _messages(blocks, apart=False) for part in _dump(message)["parts"]]


def _dump(message: ModelMessage) -> dict[str, Any]:
    dumped: dict[str, Any] = pydantic_core.from_json(ModelMessagesTypeAdapter.dump_json([message]))[0]
    return dumped


def _load(dumped: Mapping[str, Any]) -> ModelMessage:
    return ModelMessagesTypeAdapter.validate_json(pydantic_core.to_json([dumped]))[0]


def _plain(value: Any) -> Any:
    """Return a frozen JSON value as plain lists and dictionaries."""
    return pydantic_core.from_json(pydantic_core.to_json(value))
