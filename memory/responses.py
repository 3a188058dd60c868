"""Blocks as input items of the Responses API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from turnwise.memory.blocks import Block, Document, Image, Text, Thinking, ToolResult, ToolUse, User
from turnwise.memory.chat import ERROR, INTERRUPTED
from turnwise.memory.transcript import Message, messages_of, system_of


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
    """Return the instructions and the input items that say what the blocks say."""
    items: list[dict[str, Any]] = []
    for message in messages_of(blocks):
        items += _said(message) if message.role == "assistant" else _asked(message)
    return system_of(blocks), items


def _said(message: Message) -> list[dict[str, Any]]:
    thoughts = [_reasoning(block) for block in message.blocks if isinstance(block, Thinking)]
    texts = [block.text + INTERRUPTED * block.interrupted for block in message.blocks if isinstance(block, Text)]
    said: list[dict[str, Any]] = []
    if text := "".join(texts):
        said.append({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]})
    said += [_call(block) for block in message.blocks if isinstance(block, ToolUse)]
    return [*filter(None, thoughts), *said] if said else []


def _reasoning(thought: Thinking) -> dict[str, Any] | None:
    reasoning = unpack_reasoning(thought.signature)
    if reasoning is None:
        return None
    id, content = reasoning
    summary = [{"type": "summary_text", "text": thought.text}] if thought.text else []
    return {"type": "reasoning", "id": id, "summary": summary, "encrypted_content": content}


def _call(use: ToolUse) -> dict[str, Any]:
    arguments = json.dumps(use.input, ensure_ascii=False)
    return {"type": "function_call", "call_id": use.call_id, "name": use.name, "arguments": arguments}


def _asked(message: Message) -> list[dict[str, Any]]:
    items = [_output(block) for block in message.blocks if isinstance(block, ToolResult)]
    if parts := [_part(block) for block in message.blocks if isinstance(block, User | Image | Document)]:
        items.append({"type": "message", "role": "user", "content": parts})
    return items


def _output(result: ToolResult) -> dict[str, Any]:
    output = ERROR * result.is_error + result.text
    return {"type": "function_call_output", "call_id": result.call_id, "output": output}


def _part(block: User | Image | Document) -> dict[str, Any]:
    match block:
        case User(text=text):
            return {"type": "input_text", "text": text}
        case Image():
            return {"type": "input_image", "image_url": block.url or _data_uri(block), "detail": "auto"}
        case Document(data=str()):
            return {"type": "input_file", "filename": block.name, "file_data": _data_uri(block)}
        case Document(url=str()):
            return {"type": "input_file", "file_url": block.url}
    return {"type": "input_text", "text": f"{block.name}:\n{block.text}"}


def _data_uri(block: Image | Document) -> str:
    return f"data:{block.media_type};base64,{block.data}"
