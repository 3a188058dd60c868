"""Converts blocks to input items of the Responses API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.memory.conversation.blocks import (
    Block,
    Document,
    Image,
    Recalled,
    Summary,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    User,
)
from turnwise.memory.conversation.transcript import messages_of, system_of
from turnwise.memory.providers.openai_chat import ERROR, INTERRUPTED, PARAGRAPH, SUMMARY, arguments_of, data_uri
from turnwise.memory.providers.validation import RESPONSES, Rules, fit

_BETWEEN = "\n\n"
"""The separator between two parts of one thought."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A reasoning item as it came, but for its text: what `encode` needs to send it back."""

    id: str
    encrypted_content: str
    model: str = ""
    """The model that made it, since another model cannot read it. Empty if unknown."""
    before: int = 0
    """How many other items stand before it in its message: the text counts as one, and so does each call."""
    parts: tuple[int, ...] = ()
    """The lengths of the parts of its summary, in characters; one part if empty."""


def pack_reasoning(
    id: str, encrypted_content: str, model: str = "", before: int = 0, parts: tuple[int, ...] = ()
) -> str:
    """Return the signature of a thought that came as a reasoning item; for the arguments see `Reasoning`."""
    packed: dict[str, Any] = {"id": id, "encrypted_content": encrypted_content}
    if model:
        packed["model"] = model
    if before:
        packed["before"] = before
    if len(parts) > 1:
        packed["parts"] = parts
    return json.dumps(packed, separators=(",", ":"))


def unpack_reasoning(signature: str | None) -> Reasoning | None:
    """Return what was packed, unchanged; None for a signature that `pack_reasoning` did not make."""
    if not signature or not signature.startswith("{"):
        return None
    try:
        packed = json.loads(signature)
    except ValueError:
        return None
    match packed:
        case {"id": str(id), "encrypted_content": str(content)} if id and content:
            model, before, parts = packed.get("model", ""), packed.get("before", 0), packed.get("parts", ())
            if isinstance(model, str) and isinstance(before, int) and all(isinstance(part, int) for part in parts):
                return Reasoning(id, content, model, before, tuple(parts))
    return None


def encode(
    blocks: Sequence[Block], model: str = "", rules: Rules = RESPONSES
) -> tuple[str | None, list[dict[str, Any]]]:
    """Return the instructions and the input items for the blocks, to send with `store` off.

    The last `System` is the instructions. Then, in order: what the assistant said is one message with its texts joined,
    and its calls, with its reasoning items among them where they stood; what the user said is the outputs, in the order
    in which their calls were declared, and one message of parts, in which neighbouring texts are one. A thought goes
    back if this API has signed it for this model and something follows from it, and, if it is there twice, once. Not
    sent: other thoughts, citations, cache checkpoints, unknown kinds, empty texts. The items are as valid as the
    blocks: see `repair` and `validation.check`.

    Args:
        model: who is asked; any may have signed the thoughts if left out.
        rules: what the server takes.

    Raises:
        UnsupportedBlockError: an image or document in no form that the API takes.
    """
    items: list[dict[str, Any]] = []
    thought_of: set[str] = set()
    for message in fit(messages_of(filter(rules.sends, blocks)), rules):
        if message.role == "user":
            items += _asked(message.blocks)
        elif said := _said(message.blocks):
            items += _placed(said, _reasoning(message.blocks, thought_of, model))
    return system_of(blocks) or None, items


def _reasoning(said: Sequence[Block], thought_of: set[str], model: str) -> list[tuple[int, dict[str, Any]]]:
    """Return the reasoning items with their places, without those whose ids are in `thought_of`, which grows."""
    items: list[tuple[int, dict[str, Any]]] = []
    for block in said:
        found = unpack_reasoning(block.signature) if isinstance(block, Thinking) else None
        if found is None or found.id in thought_of or (model and found.model not in ("", model)):
            continue
        thought_of.add(found.id)
        texts = _parted(block.text, found.parts) if isinstance(block, Thinking) else []
        summary = [{"type": "summary_text", "text": text} for text in texts]
        item = {"type": "reasoning", "id": found.id, "summary": summary, "encrypted_content": found.encrypted_content}
        items.append((found.before, item))
    return items


def _placed(said: list[dict[str, Any]], reasoning: list[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the items with each reasoning item before the one that it led to: there is always one behind it."""
    placed: list[dict[str, Any]] = []
    for at, item in enumerate(said):
        placed += [thought for before, thought in reasoning if min(before, len(said) - 1) == at]
        placed.append(item)
    return placed


def _parted(text: str, lengths: Sequence[int]) -> list[str]:
    """Return the parts of a thought, which a blank line stands between; the whole, if they do not add up to it."""
    parts, at = list[str](), 0
    for length in lengths:
        parts.append(text[at : at + length])
        at += length + len(_BETWEEN)
    if parts and _BETWEEN.join(parts) == text:
        return parts
    return [text] if text else []


def _said(said: Sequence[Block]) -> list[dict[str, Any]]:
    text = "".join(block.text + INTERRUPTED * block.interrupted for block in said if isinstance(block, Text))
    parts = [{"type": "output_text", "text": text}]
    items: list[dict[str, Any]] = [{"type": "message", "role": "assistant", "content": parts}] if text else []
    return items + [_call(block) for block in said if isinstance(block, ToolUse)]


def _call(use: ToolUse) -> dict[str, Any]:
    return {"type": "function_call", "call_id": use.call_id, "name": use.name, "arguments": arguments_of(use)}


def _asked(asked: Sequence[Block]) -> list[dict[str, Any]]:
    items = [_output(block) for block in asked if isinstance(block, ToolResult)]
    parts: list[dict[str, Any]] = []
    for part in [_part(block) for block in asked if not isinstance(block, ToolResult)]:
        if parts and parts[-1]["type"] == part["type"] == "input_text":  # some servers put nothing between two texts
            parts[-1] = {**part, "text": parts[-1]["text"] + PARAGRAPH + part["text"]}
        else:
            parts.append(part)
    if parts:
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
