"""Items of the Agents SDK, which are those of the Responses API, as blocks, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from turnwise.actors.inference.openai.fields import tool_use
from turnwise.adapters.version_checks import framework
from turnwise.memory.conversation.blocks import (
    AnyBlock,
    Block,
    Content,
    Document,
    Image,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from turnwise.memory.providers.openai_chat import arguments_of
from turnwise.memory.providers.openai_responses import encode, pack_reasoning, unpack_reasoning
from turnwise.memory.values.frozen_json import freeze, plain_json
from turnwise.memory.values.growing_text import whole_json

with framework("openai-agents", extra="openai-agents", tested="0.24"):
    from agents.items import TResponseOutputItem
    from agents.models.fake_id import FAKE_RESPONSES_ID
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputItem,
        ResponseOutputMessage,
        ResponseOutputText,
        ResponseReasoningItem,
    )

BETWEEN = "\n\n"
"""The separator between two messages of one answer, and between two parts of one thought."""

_HELD = "agents_sdk_item"
"""The key under which a signature holds an item that blocks cannot say."""

_PLAIN_CALL = {"type", "id", "call_id", "name", "arguments", "status", "provider_data"}

_NAMES = {"model", "response_id"}
"""What the SDK notes with a call of Chat Completions. Some providers attach more, such as signatures."""

_MOST = 4_000_000
"""The most bytes of an item that is kept whole."""

_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)


def plain(item: Any) -> dict[str, Any]:
    """Return an item as a JSON object, whether it is one or a model of the client library."""
    fields = item.model_dump(mode="json", exclude_unset=True) if hasattr(item, "model_dump") else dict(item)
    return {name: value for name, value in fields.items() if value is not None}


def whole_items(output: Iterable[Any]) -> list[Any]:
    """Return the items that a model answered with, with texts that UTF-8 can hold: see `growing_text.whole`."""
    return [_whole_item(item) for item in output]


def _whole_item(item: Any) -> Any:
    fields = plain(item)
    whole = whole_json(fields)
    return item if whole == fields else _item(whole)


def answer_of(output: Iterable[Any], model: str, *, is_cut: bool = False) -> list[AnyBlock]:
    """Return what a model answered as blocks: thoughts, at most one text, calls.

    A call that is no plain function call has its item in its signature, and so has a thought that stands for an item
    which is neither, such as the search of a hosted tool: `output_of` returns them.

    Args:
        model: the name of the model, since no other can read its encrypted reasoning.
        is_cut: whether the answer ended at its maximum length.

    Raises:
        ValueError: a call has no name.
    """
    thoughts: list[AnyBlock] = []
    texts: list[str] = []
    calls: list[AnyBlock] = []
    for item in map(plain, output):
        kind, call_id = item.get("type"), item.get("call_id")
        if kind == "message":
            parts = item.get("content") or ()
            texts.append("".join(part.get("text") or part.get("refusal") or "" for part in parts))
        elif kind == "reasoning":
            thoughts += _thought(item, model, len(calls) + bool(texts))
        elif kind == "function_call":
            attached = (item.get("provider_data") or {}).keys() - _NAMES or item.keys() - _PLAIN_CALL
            held = _pack(item) if attached else None
            use = tool_use(
                len(calls), call_id or "", item["name"], item.get("arguments", ""), is_cut=is_cut, signature=held
            )
            calls.append(use)
        elif call_id and not str(kind).endswith("_output"):
            name = item.get("name") or str(kind).removesuffix("_call")
            arguments = item.get("action") or item.get("operation") or {"input": item.get("input")}
            calls.append(ToolUse(call_id=call_id, name=name, input=freeze(arguments), signature=_pack(item)))
        else:
            thoughts.append(Thinking(signature=_pack(item)))
    text = BETWEEN.join(filter(None, texts))
    return [*thoughts, *([Text(text=text)] if text else []), *calls]


def _thought(item: Mapping[str, Any], model: str, before: int) -> list[AnyBlock]:
    parts = [str(part.get("text", "")) for part in item.get("summary") or item.get("content") or ()]
    signature, own_id = None, item.get("id")
    if own_id and own_id != FAKE_RESPONSES_ID and (encrypted := item.get("encrypted_content")):
        signature = pack_reasoning(own_id, encrypted, model, before, tuple(map(len, parts)))
    text = BETWEEN.join(parts)
    return [Thinking(text=text, signature=signature)] if text or signature else []


def _pack(item: Mapping[str, Any]) -> str:
    return json.dumps({_HELD: plain_json("item", item, _MOST)}, separators=(",", ":"))


def _unpack(signature: str | None) -> dict[str, Any] | None:
    if not signature or not signature.startswith(f'{{"{_HELD}"'):
        return None
    held: dict[str, Any] = json.loads(signature)[_HELD]
    return held


def output_of(answer: Sequence[Block]) -> list[TResponseOutputItem]:
    """Return a recorded answer as the items that a model answers with."""
    thoughts: list[Any] = []
    texts = [block.text for block in answer if isinstance(block, Text)]
    calls: list[Any] = []
    for block in answer:
        if isinstance(block, Thinking):
            if held := _unpack(block.signature):
                thoughts.append((0, _item(held)))
            elif reasoning := unpack_reasoning(block.signature):
                summary = [{"type": "summary_text", "text": block.text}] if block.text else []
                item = {"type": "reasoning", "id": reasoning.id, "summary": summary}
                thought = ResponseReasoningItem.model_validate(
                    {**item, "encrypted_content": reasoning.encrypted_content}
                )
                thoughts.append((reasoning.before, thought))
        elif isinstance(block, ToolUse):
            calls.append(_call(block))
    spoken: list[Any] = []
    if texts:
        content = ResponseOutputText(type="output_text", text="".join(texts), annotations=[])
        message = {"id": FAKE_RESPONSES_ID, "type": "message", "role": "assistant", "status": "completed"}
        spoken.append(ResponseOutputMessage.model_validate({**message, "content": [content]}))
    spoken += calls
    placed: list[Any] = []
    for index, spoken_item in enumerate(spoken):
        placed += [thought for before, thought in thoughts if min(before, len(spoken) - 1) == index]
        placed.append(spoken_item)
    return placed or [thought for _, thought in thoughts]


def _call(use: ToolUse) -> Any:
    """Return a call as an item; with the arguments that a person may have edited."""
    held = _unpack(use.signature)
    if held and held.get("type") != "function_call":
        return _item(held)
    own = {"type": "function_call", "call_id": use.call_id, "name": use.name, "arguments": arguments_of(use)}
    return ResponseFunctionToolCall.model_validate({**(held or {}), **own})


def _item(held: Mapping[str, Any]) -> Any:
    return _ITEMS.validate_python(held)


_ITEMS: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)


# Results of tools


def result_of(call_id: str, output: Any) -> ToolResult:
    """Return the output of a call as a block.

    Args:
        output: a text, a list of parts as the Responses API takes them, or another JSON value.
    """
    if isinstance(output, str):
        return ToolResult(call_id=call_id, text=output)
    if not isinstance(output, list) or not all(isinstance(part, Mapping) for part in output):
        return ToolResult.of(output).model_copy(update={"call_id": call_id})
    blocks = tuple(map(_content, output))
    if blocks and isinstance(first := blocks[0], Text):
        return ToolResult(call_id=call_id, text=first.text, blocks=blocks[1:])
    return ToolResult(call_id=call_id, text="", blocks=blocks)


def _content(part: Mapping[str, Any]) -> Content:
    """Return a part of an output; as its JSON, if no block can say it."""
    content: Image | Document | None = None
    match part:
        case {"type": "input_text", "text": str(text)}:
            return Text(text=text)
        case {"type": "input_image", "image_url": str(url)}:
            data = _DATA_URL.fullmatch(url)
            content = Image(data=data[2], media_type=data[1]) if data and data[2] else Image(url=url)
        case {"type": "input_file", "file_data": str(url)} if data := _DATA_URL.fullmatch(url):
            content = Document(name=str(part.get("filename") or "file"), data=data[2], media_type=data[1])
        case {"type": "input_file", "file_url": str(url)}:
            content = Document(name=str(part.get("filename") or "file"), url=url)
    return content if content and not content.flaw else Text(text=json.dumps(dict(part)))


def tool_output_of(use: ToolUse, result: ToolResult) -> str | list[dict[str, Any]]:
    """Return a recorded result as a tool returns it: what the model got when it was recorded."""
    output: str | list[dict[str, Any]] = encode([use, result])[1][-1]["output"]
    return output if isinstance(output, str) else [_returned(part) for part in output]


def _returned(part: Mapping[str, Any]) -> dict[str, Any]:
    return {**part, "type": str(part["type"]).removeprefix("input_")}
