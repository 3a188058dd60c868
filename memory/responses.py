"""Blocks as input items of the Responses API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from turnwise.memory.blocks import Block, Document, Image, Recalled, Summary, Text, Thinking, ToolResult, ToolUse, User
from turnwise.memory.chat import ERROR, INTERRUPTED, SUMMARY, arguments_of, data_uri
from turnwise.memory.rules import RESPONSES, fit
from turnwise.memory.transcript import messages_of, system_of


def pack_reasoning(id: str, encrypted_content: str) -> str:
    """Return the signature of a thought that came as a reasoning item: what `encode` needs to send it back."""
    return json.dumps({"id": id, "encrypted_content": encrypted_content}, separators=(",", ":"))


def unpack_reasoning(signature: str | None) -> tuple[str, str] | None:
    """Return the id and the encrypted content, unchanged; None for a signature that `pack_reasoning` did not make."""
    if not signature or not signature.startswith("{"):
        return None
    try:
        packed = json.loads(signature)
    except ValueError:
        return None
    match packed:
        case {"id": str(id), "encrypted_content": str(content)} if id and content:
            return id, content
    return None


def encode(blocks: Sequence[Block]) -> tuple[str | None, list[dict[str, Any]]]:
    """Return the instructions and the input items that say what the blocks say; to be sent with `store` off.

    The last `System` is the instructions. Then, in order: what the assistant said is its reasoning items, one message
    with its texts joined, and its calls; what the user said is the outputs, in the order in which their calls were
    declared, and one message of parts. A thought goes back if this API has signed it and something follows from it,
    and, if it is there twice, once. Not sent: other thoughts, citations, cache checkpoints, unknown kinds, empty texts.
    The items are as valid as the blocks: see `settle` and `rules.check`.

    Raises:
        UnsupportedBlockError: an image or document in no form that the API takes.
    """
    items: list[dict[str, Any]] = []
    thought_of: set[str] = set()
    for message in fit(messages_of(filter(RESPONSES.sends, blocks)), RESPONSES):
        if message.role == "user":
            items += _asked(message.blocks)
        elif said := _said(message.blocks):
            items += _reasoning(message.blocks, thought_of)
            items += said
    return system_of(blocks) or None, items


def _reasoning(said: Sequence[Block], thought_of: set[str]) -> list[dict[str, Any]]:
    """Return the reasoning items, without those whose ids are in `thought_of`, which grows."""
    items: list[dict[str, Any]] = []
    for block in said:
        if isinstance(block, Thinking) and (reasoning := unpack_reasoning(block.signature)):
            item_id, content = reasoning
            summary = [{"type": "summary_text", "text": block.text}] if block.text else []
            if item_id not in thought_of:
                items.append({"type": "reasoning", "id": item_id, "summary": summary, "encrypted_content": content})
            thought_of.add(item_id)
    return items


def _said(said: Sequence[Block]) -> list[dict[str, Any]]:
    text = "".join(block.text + INTERRUPTED * block.interrupted for block in said if isinstance(block, Text))
    parts = [{"type": "output_text", "text": text}]
    items: list[dict[str, Any]] = [{"type": "message", "role": "assistant", "content": parts}] if text else []
    return items + [_call(block) for block in said if isinstance(block, ToolUse)]


def _call(use: ToolUse) -> dict[str, Any]:
    return {"type": "function_call", "call_id": use.call_id, "name": use.name, "arguments": arguments_of(use)}


def _asked(asked: Sequence[Block]) -> list[dict[str, Any]]:
    items = [_output(block) for block in asked if isinstance(block, ToolResult)]
    if parts := [_part(block) for block in asked if not isinstance(block, ToolResult)]:
        items.append({"type": "message", "role": "user", "content": parts})
    return items


def _output(result: ToolResult) -> dict[str, Any]:
    output = ERROR * result.is_error + result.text
    return {"type": "function_call_output", "call_id": result.call_id, "output": output}


def _part(block: Block) -> dict[str, Any]:
    match block:
        case User(text=text) | Recalled(text=text):
            return {"type": "input_text", "text": text}
        case Summary(text=text):
            return {"type": "input_text", "text": SUMMARY + text}
        case Image():
            url = block.url if RESPONSES.form(block) == "url" else data_uri(block)
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        case Document():
            form = RESPONSES.form(block)
            if form == "data":
                return {"type": "input_file", "filename": block.name, "file_data": data_uri(block)}
            if form == "url":
                return {"type": "input_file", "file_url": block.url}
            return {"type": "input_text", "text": f"{block.name}:\n{block.text}"}
        case _:
            raise TypeError(f"{block.kind} is not a block of the user")
