"""Blocks as the messages of OpenTelemetry's conventions, for those who ask for content in their spans."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from turnwise.memory.conversation.blocks import Block, Document, Image, System, Thinking, ToolResult, ToolUse


def messages(blocks: Iterable[Block], finish_reason: str | None = None) -> str:
    """Return the blocks without system prompts as messages: the JSON of a list, in which neighbours share a role."""
    messages: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, System) or not (part := _part(block)):
            continue
        if not messages or messages[-1]["role"] != block.role:
            messages.append({"role": block.role, "parts": []})
        messages[-1]["parts"].append(part)
    if messages and finish_reason:
        messages[-1]["finish_reason"] = finish_reason
    return _json(messages)


def instructions(blocks: Iterable[Block]) -> str | None:
    """Return the system prompts as JSON; None if there are none."""
    prompts = [{"type": "text", "content": block.text} for block in blocks if isinstance(block, System)]
    return _json(prompts) if prompts else None


def documents(items: Sequence[Any]) -> str:
    """Return found items of a memory as JSON, with their ids and texts."""
    return _json([{"id": item.id, "content": item.text} for item in items])


def arguments(value: Any) -> str:
    """Return the arguments of a tool call as JSON."""
    return _json(value)


def _part(block: Block) -> dict[str, Any] | None:
    if isinstance(block, ToolUse):
        return {"type": "tool_call", "id": block.call_id, "name": block.name, "arguments": block.input}
    if isinstance(block, ToolResult):
        return {"type": "tool_call_response", "id": block.call_id, "response": block.text}
    if isinstance(block, Thinking):
        return {"type": "reasoning", "content": block.text}
    if isinstance(block, Image | Document):
        return {"type": block.kind}  # never the file itself
    text = getattr(block, "text", None)
    return {"type": "text", "content": text} if text else None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
