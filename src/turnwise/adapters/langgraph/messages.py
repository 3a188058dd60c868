"""Converts blocks to LangChain's messages and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, cast

import pydantic_core

from turnwise.adapters.version_checks import framework
from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.blocks import (
    AnyBlock,
    Block,
    CacheCheckpoint,
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
    Unknown,
    User,
    decode,
    encode,
)
from turnwise.memory.conversation.calls.call_arguments import UNPARSED
from turnwise.memory.conversation.transcript import Message, messages_of, prompts_apart, system_of
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.providers.endpoints import pack_attached, unpack_attached
from turnwise.memory.providers.openai_chat import INTERRUPTED, SUMMARY
from turnwise.memory.values.frozen_json import FrozenDict, freeze
from turnwise.memory.values.growing_text import whole_json

with framework("langgraph", extra="langgraph", tested="1.2"):
    from langchain_core.messages import (
        AIMessage,
        BaseMessage,
        FunctionMessage,
        HumanMessage,
        RemoveMessage,
        SystemMessage,
        ToolMessage,
    )
    from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
    from langchain_core.messages.utils import convert_to_messages

HINTS = "turnwise"
"""The key of `additional_kwargs` for what a message cannot say about its blocks: one entry a block, in order. None: the
next content block says all. An object: fields that it lacks; with `alone`, a block without a content block."""

_ANTHROPIC = "anthropic"
_V1 = {"output_version": "v1"}
"""Says that a message's content is a list of LangChain's standard content blocks, so that each provider converts it."""


def to_langchain(conversation: Turn | Sequence[Block]) -> list[BaseMessage]:
    """Return the messages for a turn or for blocks. `from_langchain` makes the same blocks of them.

    - The last `System` is the first message; other system prompts are not sent.
    - Texts of the user are one message each. One with images or files behind it is a message of a list.
    - Consecutive blocks of the assistant are one message, with the calls in `tool_calls`. Its content is a string if it
      is one text, else a list of LangChain's standard content blocks.
    - Each tool result is a message, in the order in which the calls were declared.
    - A document of text is a text with its name, a summary a text that says so. An interrupted text ends with
      " [interrupted]". Cache checkpoints and unknown blocks are in no content.

    What the format does not contain travels in `additional_kwargs["turnwise"]`, which providers do not get. The usage
    of a `Turn` is that of its last assistant's message.
    """
    blocks = conversation.blocks if isinstance(conversation, Turn) else conversation
    messages = Converter().messages(blocks)
    usage = conversation.usage if isinstance(conversation, Turn) else None
    answer = next((message for message in reversed(messages) if isinstance(message, AIMessage)), None)
    if usage and answer:
        answer.usage_metadata = usage_metadata(usage)
    return messages


class Converter:
    """Converts conversations one after the other. What it converted for the last one is kept for the next."""

    def __init__(self) -> None:
        self._converted: dict[tuple[int, ...], tuple[Message, list[BaseMessage]]] = {}
        """Messages by the identities of their blocks, which are held, so that no identity comes twice."""

    def messages(self, blocks: Sequence[Block]) -> list[BaseMessage]:
        """Return the messages for the blocks, as `to_langchain` does; each call returns objects of its own."""
        system = system_of(blocks)
        messages: list[BaseMessage] = [SystemMessage(system)] if system is not None else []
        names = {block.call_id: block.name for block in blocks if isinstance(block, ToolUse)}
        earlier, self._converted = self._converted, {}
        for group in messages_of(blocks):
            key = tuple(map(id, group.blocks))
            converted = earlier.get(key) or (group, _of_group(group, names))
            self._converted[key] = converted
            messages += [message.model_copy() for message in converted[1]]
        return messages


def from_langchain(messages: Iterable[Any]) -> list[AnyBlock]:
    """Return the blocks of messages, or of what LangChain makes messages of: dicts, pairs of role and text.

    Content that has no block of ours, such as a call that a provider's server made, becomes an `Unknown` of kind
    `langchain`, which is kept and never sent. A call without an id gets one, and so does its result.

    Raises:
        InvalidInputError: a message is of an unknown form; names it by its index.
    """
    blocks: list[AnyBlock] = []
    numbers, waiting = count(1), list[str]()
    for index, source in enumerate(messages):
        try:
            message = source if isinstance(source, BaseMessage) else convert_to_messages([source])[0]
            for block in _blocks(message):
                if isinstance(block, ToolUse) and not block.call_id:
                    block = block.model_copy(update={"call_id": f"call_{next(numbers)}"})  # noqa: PLW2901
                    waiting.append(block.call_id)
                elif isinstance(block, ToolResult) and not block.call_id and waiting:
                    block = block.model_copy(update={"call_id": waiting.pop(0)})  # noqa: PLW2901
                blocks.append(block)
        except (AttributeError, KeyError, TypeError, ValueError, NotImplementedError) as error:
            raise InvalidInputError(f"messages[{index}]", shown(source), f"it cannot be read: {error!r}") from error
    return blocks


def usage_metadata(usage: Usage) -> UsageMetadata:
    """Return a usage as LangChain counts it; calls, time and cost are not part of that."""
    return UsageMetadata(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
        input_token_details=InputTokenDetails(cache_read=usage.cached_tokens),
        output_token_details=OutputTokenDetails(reasoning=usage.reasoning_tokens),
    )


def usage_of(message: BaseMessage) -> Usage | None:
    """Return the usage of one model call; None if the message does not say it."""
    metadata = getattr(message, "usage_metadata", None)
    if not metadata:
        return None
    return Usage(
        input_tokens=metadata.get("input_tokens") or 0,
        output_tokens=metadata.get("output_tokens") or 0,
        cached_tokens=(metadata.get("input_token_details") or {}).get("cache_read") or 0,
        reasoning_tokens=(metadata.get("output_token_details") or {}).get("reasoning") or 0,
        calls=1,
    )


# To messages


class _Parts:
    """The content of a message as it grows, and the hints about its blocks."""

    def __init__(self) -> None:
        self.content: list[dict[str, Any]] = []
        self.hints: list[dict[str, Any] | None] = []

    def add(self, part: dict[str, Any], hint: Mapping[str, Any] | None = None) -> None:
        self.content.append(part)
        self.hints.append(dict(hint) if hint else None)

    def add_alone(self, block: Block) -> None:
        self.hints.append(_alone(block))

    @property
    def kwargs(self) -> dict[str, Any]:
        return {HINTS: self.hints} if any(self.hints) else {}


def _of_group(group: Message, names: Mapping[str, str]) -> list[BaseMessage]:
    if group.role == "assistant":
        return [_assistant_message(group.blocks)]
    results = [block for block in group.blocks if isinstance(block, ToolResult)]
    messages: list[BaseMessage] = [_tool_message(block, names.get(block.call_id)) for block in results]
    for prompt in prompts_apart(block for block in group.blocks if not isinstance(block, ToolResult)):
        _add_prompt_of(messages, prompt)
    return messages


def _alone(block: Block) -> dict[str, Any]:
    return {"alone": json.loads(encode(block))}


def _add_prompt_of(messages: list[BaseMessage], prompts: Sequence[Block]) -> None:
    """Add the message of a prompt's blocks; those without content go to the message before them, if there is one."""
    shown = [block for block in prompts if not _is_silent(block)]
    if all(isinstance(block, User | Recalled | Summary) for block in shown):
        for index, block in enumerate(prompts):
            if not _is_silent(block):
                parts = _Parts()
                if index and block is shown[0] and not _takes_hints(messages):
                    for early in prompts[:index]:
                        parts.add_alone(early)
                _add_prompt(parts, block)
                messages.append(HumanMessage(parts.content[0]["text"], additional_kwargs=parts.kwargs))
            elif _takes_hints(messages):
                _add_hint(messages[-1], block)
            elif not shown:
                parts = _Parts()
                parts.add_alone(block)
                messages.append(HumanMessage([], additional_kwargs=parts.kwargs))
        return
    parts = _Parts()
    for block in prompts:
        if _is_silent(block):
            parts.add_alone(block)
        else:
            _add_prompt(parts, block)
    messages.append(HumanMessage(cast(Any, parts.content), additional_kwargs=parts.kwargs))


def _is_silent(block: Block) -> bool:
    return isinstance(block, CacheCheckpoint | Unknown)


def _takes_hints(messages: Sequence[BaseMessage]) -> bool:
    return bool(messages) and not isinstance(messages[-1], SystemMessage)


def _add_hint(message: BaseMessage, block: Block) -> None:
    hints = message.additional_kwargs.get(HINTS) or [None]  # a message with more blocks than one has its hints
    message.additional_kwargs[HINTS] = [*hints, _alone(block)]


def _add_prompt(parts: _Parts, block: Block) -> None:
    match block:
        case User(text=text):
            parts.add({"type": "text", "text": text})
        case Recalled(text=text):
            parts.add({"type": "text", "text": text}, {"kind": "recalled"})
        case Summary(text=text):
            fields = json.loads(encode(block))
            del fields["text"]
            parts.add({"type": "text", "text": SUMMARY + text}, fields)
        case Image() | Document():
            parts.add(*_attachment(block))
        case _:
            raise TypeError(f"{block.kind} is not a block of the user")


def _attachment(block: Image | Document) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the content block of a picture or a file, and what it does not say."""
    hint: dict[str, Any] = {}
    if isinstance(block, Document) and block.plain is not None and not block.data and not block.url:
        fields = json.loads(encode(block))
        fields.pop("text", None)
        return {"type": "text", "text": f"{block.name}:\n{block.plain}"}, fields
    part: dict[str, Any] = {"type": "image" if isinstance(block, Image) else "file"}
    if block.data:
        part["base64"] = block.data
        if block.url:
            hint["url"] = block.url
    else:
        part["url"] = block.url
    if block.media_type:
        part["mime_type"] = block.media_type
    if isinstance(block, Document):
        part["extras"] = {"filename": block.name}
        if block.text is not None:
            hint["text"] = block.text
        if block.chunks:
            hint["chunks"] = list(block.chunks)
        if block.cite:
            hint["cite"] = True
    return part, hint or None


def _assistant_message(blocks: Sequence[Block]) -> AIMessage:
    parts = _Parts()
    calls: list[dict[str, Any]] = []
    providers: set[str] = set()
    for block in blocks:
        match block:
            case Thinking():
                part, provider = _reasoning(block)
                providers |= {provider} if provider else set()
                parts.add(part)
            case Text(text=text, interrupted=interrupted):
                cut = INTERRUPTED if interrupted else ""
                parts.add({"type": "text", "text": text + cut}, {"interrupted": True} if interrupted else None)
            case Citations(items=items):
                parts.add_alone(block)
                if parts.content and parts.content[-1]["type"] == "text":
                    parts.content[-1]["annotations"] = [_annotation(item) for item in items]
            case ToolUse():
                calls.append({"name": block.name, "args": thawed(block.input), "id": block.call_id})
                fields = {"signature": block.signature, "flaw": block.flaw}
                parts.hints.append({name: value for name, value in fields.items() if value} or None)
            case _:
                parts.add_alone(block)
    only = parts.content[0] if len(parts.content) == 1 else {}
    content: Any = parts.content
    if not parts.content:
        content = ""
    elif only.get("type") == "text" and only["text"] and "annotations" not in only:
        content = only["text"]
    metadata = dict(_V1) if isinstance(content, list) else {}
    if len(providers) == 1:
        metadata["model_provider"] = providers.pop()
    if isinstance(content, list):  # a message of standard blocks has its calls among them, too
        content = [*content, *({"type": "tool_call", **call} for call in calls)]
    return AIMessage(
        content, tool_calls=cast(Any, calls), additional_kwargs=parts.kwargs, response_metadata=cast(Any, metadata)
    )


def _reasoning(block: Thinking) -> tuple[dict[str, Any], str | None]:
    """Return the content block of a thought, and the provider that it came from, if it is known."""
    if packed := unpack_attached(block.signature, "langchain", "block"):
        return {**packed, "reasoning": block.text} if block.text else packed, unpack_attached(
            block.signature, "langchain", "model_provider"
        )
    if block.redacted:
        value = {"type": "redacted_thinking", "data": block.redacted}
        return {"type": "non_standard", "value": value}, _ANTHROPIC
    part: dict[str, Any] = {"type": "reasoning", "reasoning": block.text}
    if block.signature:
        part["extras"] = {"signature": block.signature}
    is_theirs = bool(block.signature) and not str(block.signature).startswith("{")
    return part, _ANTHROPIC if is_theirs else None


def _annotation(item: Mapping[str, Any]) -> dict[str, Any]:
    plain = thawed(item)
    return plain if plain.get("type") == "citation" else {"type": "non_standard_annotation", "value": plain}


def _tool_message(result: ToolResult, name: str | None) -> ToolMessage:
    parts = _Parts()
    if result.text or not result.blocks:
        parts.add({"type": "text", "text": result.text})
    for block in result.blocks:
        if isinstance(block, Text):
            parts.add({"type": "text", "text": block.text}, {"kind": "text"})
        else:
            part, hint = _attachment(block)
            parts.add(part, hint)
    fields = {"is_json": True} if result.is_json else None
    hints = [fields, *parts.hints]  # of the result, then of its parts
    return ToolMessage(
        result.text if not result.blocks else cast(Any, parts.content),
        tool_call_id=result.call_id,
        name=name,
        status="error" if result.is_error else "success",
        additional_kwargs={HINTS: [{"result": hints}]} if any(hints) else {},
    )


def thawed(value: Any) -> Any:
    """Return a JSON value of plain dicts and lists, which LangGraph's serializer keeps as they are."""
    if isinstance(value, Mapping):
        return {key: thawed(item) for key, item in value.items()}
    return [thawed(item) for item in value] if isinstance(value, list | tuple) else value


# From messages


def _blocks(message: BaseMessage) -> Iterator[AnyBlock]:
    """Yield the blocks of a message."""
    hints = message.additional_kwargs.get(HINTS)
    hints = list(hints) if isinstance(hints, list | tuple) else []
    if isinstance(message, ToolMessage | FunctionMessage):
        results = [hint for hint in hints if isinstance(hint, Mapping) and "result" in hint]
        yield _tool_result(message, results[0]["result"] if results else [])
        yield from (
            decode(json.dumps(hint["alone"])) for hint in hints if isinstance(hint, Mapping) and "alone" in hint
        )
    elif isinstance(message, SystemMessage):
        yield System(text=message.text)
    elif isinstance(message, RemoveMessage):
        raise TypeError("a RemoveMessage has no content: apply it first")
    elif isinstance(message, AIMessage):
        yield from _restored(list(_assistant_blocks(message)), hints)
    else:
        is_text = isinstance(message.content, str)
        parts: Any = [{"type": "text", "text": message.content}] if is_text else message.content_blocks
        yield from _restored([prompt for part in parts for prompt in _prompts(part)], hints)


def _restored(read: Sequence[AnyBlock], hints: Sequence[Any]) -> Iterator[AnyBlock]:
    """Yield the blocks that were read, with what the hints say. Hints that do not fit (edited content) are left out."""
    if len([hint for hint in hints if not _is_alone(hint)]) != len(read):
        yield from read
        return
    remaining = iter(read)
    for hint in hints:
        if _is_alone(hint):
            yield decode(json.dumps(hint["alone"]))
        else:
            yield _with_hint(next(remaining), hint)


def _is_alone(hint: Any) -> bool:
    return isinstance(hint, Mapping) and "alone" in hint


def _with_hint(block: AnyBlock, hint: Mapping[str, Any] | None) -> AnyBlock:
    """Return the block with the hint's fields, as a block of the hint's kind if it names one."""
    if not hint:
        return block
    fields = {**json.loads(encode(block)), **hint}
    text = fields.get("text", "")
    match fields["kind"]:
        case "summary":
            fields["text"] = text.removeprefix(SUMMARY)
        case "document" if block.kind in ("user", "text"):
            plain = text.removeprefix(f"{fields['name']}:\n")
            fields |= {"text": plain}
            if "chunks" in fields:
                del fields["text"]
        case "text" if fields.get("interrupted"):
            fields["text"] = text.removesuffix(INTERRUPTED)
    return decode(json.dumps(fields))


def _assistant_blocks(message: AIMessage) -> Iterator[AnyBlock]:
    """Yield the blocks of an assistant's message: thoughts, texts with their citations, calls."""
    own = [hint["alone"] for hint in message.additional_kwargs.get(HINTS) or () if _is_alone(hint)]
    has_own_citations = any(block.get("kind") == "citations" for block in own)
    parts = cast("list[dict[str, Any]]", message.content_blocks)
    for part in parts:
        for block in _assistant_part(part, message.response_metadata.get("model_provider")):
            if not (isinstance(block, Citations) and has_own_citations):
                yield block
    for call in message.tool_calls:
        extras = cast(Mapping[str, Any], call).get("extras")
        yield ToolUse(
            call_id=call.get("id") or "",
            name=call["name"],
            input=FrozenDict(freeze(_json(call["args"]))),
            signature=pack_attached("langchain", extras=extras) if extras else None,
        )
    for bad in message.invalid_tool_calls:
        if bad.get("name"):
            arguments = FrozenDict({UNPARSED: bad.get("args") or ""})
            yield ToolUse(call_id=bad.get("id") or "", name=str(bad["name"]), input=arguments)


_CALLS = ("tool_call", "tool_call_chunk", "invalid_tool_call", "tool_use", "function_call", "input_json_delta")
"""Types of content blocks that are among the message's own calls, too."""


def _assistant_part(part: Mapping[str, Any], provider: str | None) -> Iterator[AnyBlock]:
    """Yield the blocks of a content block of the assistant."""
    value = part.get("value") if part.get("type") == "non_standard" else part
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "text":
        yield Text(text=part.get("text") or "")
        if cited := [_cited(annotation) for annotation in part.get("annotations") or ()]:
            yield Citations(items=tuple(freeze(citation) for citation in cited))
    elif kind == "reasoning":
        yield _thought(part, provider)
    elif kind == "redacted_thinking" and isinstance(value, Mapping):
        yield Thinking(redacted=value["data"])
    elif kind not in _CALLS:
        yield from _prompts(part)


def _cited(annotation: Mapping[str, Any]) -> Any:
    content = annotation["value"] if annotation.get("type") == "non_standard_annotation" else annotation
    return _json(content)


def _thought(part: Mapping[str, Any], provider: str | None) -> Thinking:
    """Return a thought; what its provider attached goes back to that provider only."""
    text = part.get("reasoning") or ""
    extras = part.get("extras") or {}
    own_id = None if str(part.get("id") or "lc_").startswith("lc_") else part["id"]  # LangChain's are random
    if not own_id and not extras:
        return Thinking(text=text)
    if not own_id and extras.keys() == {"signature"} and provider in (None, _ANTHROPIC):
        return Thinking(text=text, signature=extras["signature"])
    fields = {key: value for key, value in part.items() if key not in ("reasoning", "index")}
    return Thinking(text=text, signature=pack_attached("langchain", block=_json(fields), model_provider=provider))


def _prompts(part: Mapping[str, Any]) -> Iterator[AnyBlock]:
    """Yield the block of a content block that a prompt, a result, or a model that draws may have."""
    kind = part.get("type")
    extras = part.get("extras") or {}
    if kind == "text":
        yield User(text=part.get("text") or "")
    elif kind == "text-plain" and part.get("text"):
        yield Document(name=part.get("title") or "document", text=part["text"])
    elif kind in ("image", "file", "audio", "video", "text-plain") and (part.get("url") or part.get("base64")):
        fields: dict[str, Any] = {"data": part["base64"]} if part.get("base64") else {"url": part["url"]}
        if part.get("mime_type"):
            fields["media_type"] = part["mime_type"]
        if kind == "image":
            yield Image(**fields)
        else:
            name = extras.get("filename") or part.get("filename") or part.get("title") or kind
            yield Document(name=str(name), **fields)
    else:
        yield _unknown(part)


def _tool_result(message: ToolMessage | FunctionMessage, hints: Sequence[Any]) -> ToolResult:
    fields, *of_parts = hints or [None]
    parts = [{"type": "text", "text": message.content}] if isinstance(message.content, str) else message.content_blocks
    read = [prompt for part in parts for prompt in _prompts(cast(Mapping[str, Any], part))]
    if len(of_parts) == len(read):
        read = [_with_hint(block, hint) for block, hint in zip(read, of_parts, strict=True)]
    text = ""
    if read and isinstance(first := read[0], User):
        text = first.text
        del read[0]
    content: list[Content] = []
    for block in read:
        if isinstance(block, Text | Image | Document):
            content.append(block)
        elif isinstance(block, User):
            content.append(Text(text=block.text))
        elif isinstance(block, Unknown):
            content.append(Text(text=json.dumps(thawed(block.payload), ensure_ascii=False)))
    return ToolResult(
        call_id=getattr(message, "tool_call_id", None) or "",
        text=text,
        is_error=getattr(message, "status", "success") == "error",
        is_json=bool(fields and fields.get("is_json")),
        blocks=tuple(content),
    )


def _unknown(part: Mapping[str, Any]) -> Unknown:
    return Unknown(stored_kind="langchain", payload=FrozenDict(freeze({"part": _json(part)})))


def _json(value: Any) -> Any:
    """Return a value as JSON would read it back; what JSON does not have becomes text."""
    return pydantic_core.from_json(pydantic_core.to_json(whole_json(value), inf_nan_mode="strings", fallback=str))


def make_whole(message: AIMessage) -> None:
    """Give a message texts that UTF-8 can hold: LangChain joins halves of characters without making them one."""
    for name in ("content", "tool_calls", "invalid_tool_calls", "additional_kwargs"):
        value = getattr(message, name)
        if (whole := whole_json(value)) != value:
            setattr(message, name, whole)


__all__ = ["HINTS", "from_langchain", "to_langchain", "usage_metadata", "usage_of"]
