"""Converts blocks to input items of the Responses API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.memory.conversation.blocks import (
    Block,
    Citations,
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
from turnwise.memory.conversation.transcript import prompts_apart, system_of
from turnwise.memory.providers.arrangement import ready
from turnwise.memory.providers.openai_chat import ERROR, PARAGRAPH, SUMMARY, arguments_of, data_uri, text_of
from turnwise.memory.providers.validation import RESPONSES, Rules

BETWEEN = "\n\n"
"""The separator between two parts of one thought."""


@dataclass(frozen=True)
class Reasoning:
    """A received reasoning item without its text: what `encode` needs to send it back."""

    id: str
    encrypted_content: str
    model: str = ""
    """The model that made it, since another model cannot read it. Empty if unknown."""
    before: int = 0
    """The number of other items before it in its message: the text is one, and each call is one."""
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
    """Return the packed values; None for a signature that `pack_reasoning` did not make."""
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
    blocks: Sequence[Block], model: str = "", rules: Rules = RESPONSES, *, apart: bool = True, checks: bool = False
) -> tuple[str | None, list[dict[str, Any]]]:
    """Return the instructions and the input items for the blocks, to send with `store` off.

    - The last `System` is the instructions.
    - Consecutive blocks of the assistant are one message with their text (see `openai_chat.text_of`), then the calls,
      with the reasoning items at their places.
    - The output of a tool that returned images or documents is a list of parts: the text, then these.
    - Consecutive blocks of the user are the tool outputs, in the order in which the calls were declared, then a message
      of parts for each text with its images and documents (see `prompts_apart`). Adjacent texts of one are joined.
    - A thought is sent if this API signed it for this model and a text or call follows. A duplicate is sent once.
    - Other thoughts, citations, cache checkpoints, unknown kinds and empty texts are not sent.

    The items are valid if the blocks are: see `repair` and `validation.check`.

    Args:
        model: the model of the request; if left out, thoughts of all models are sent.
        rules: the rules of the server.
        apart: if not, the user's consecutive texts are one message, for servers whose roles alternate.
        checks: see `ready`.

    Raises:
        InvalidRequestError: see `ready`.
        UnsupportedBlockError: the API accepts an image or document in none of its forms.
    """
    items: list[dict[str, Any]] = []
    sent_ids: set[str] = set()
    known_blocks = (block for block in blocks if rules.sends(block) or isinstance(block, Citations))
    for message in ready(known_blocks, rules, checks=checks):
        if message.role == "user":
            items += _user_items(message.blocks, apart=apart)
        elif output := _assistant_items(message.blocks):
            items += _with_reasoning(output, _reasoning(message.blocks, sent_ids, model))
    return system_of(blocks) or None, items


def _reasoning(blocks: Sequence[Block], sent_ids: set[str], model: str) -> list[tuple[int, dict[str, Any]]]:
    """Return the reasoning items that are not in `sent_ids`, with their places, and add their ids to it."""
    items: list[tuple[int, dict[str, Any]]] = []
    for block in blocks:
        reasoning = unpack_reasoning(block.signature) if isinstance(block, Thinking) else None
        if reasoning is None or reasoning.id in sent_ids or (model and reasoning.model not in ("", model)):
            continue
        sent_ids.add(reasoning.id)
        texts = _thought_parts(block.text, reasoning.parts) if isinstance(block, Thinking) else []
        summary = [{"type": "summary_text", "text": text} for text in texts]
        item = {
            "type": "reasoning",
            "id": reasoning.id,
            "summary": summary,
            "encrypted_content": reasoning.encrypted_content,
        }
        items.append((reasoning.before, item))
    return items


def _with_reasoning(items: list[dict[str, Any]], reasoning: list[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the items with each reasoning item before the item that followed it."""
    placed: list[dict[str, Any]] = []
    for index, item in enumerate(items):
        placed += [thought for before, thought in reasoning if min(before, len(items) - 1) == index]
        placed.append(item)
    return placed


def _thought_parts(text: str, lengths: Sequence[int]) -> list[str]:
    """Return the parts of a thought, separated by blank lines; the whole text if the lengths do not match it."""
    parts, start = list[str](), 0
    for length in lengths:
        parts.append(text[start : start + length])
        start += length + len(BETWEEN)
    if parts and BETWEEN.join(parts) == text:
        return parts
    return [text] if text else []


def _assistant_items(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    text = text_of(blocks)
    parts = [{"type": "output_text", "text": text}]
    items: list[dict[str, Any]] = [{"type": "message", "role": "assistant", "content": parts}] if text else []
    return items + [_call(block) for block in blocks if isinstance(block, ToolUse)]


def _call(use: ToolUse) -> dict[str, Any]:
    return {"type": "function_call", "call_id": use.call_id, "name": use.name, "arguments": arguments_of(use)}


def _user_items(blocks: Sequence[Block], *, apart: bool) -> list[dict[str, Any]]:
    items = [_output(block) for block in blocks if isinstance(block, ToolResult)]
    prompts = [block for block in blocks if not isinstance(block, ToolResult)]
    messages = [_joined(map(_part, prompt)) for prompt in (prompts_apart(prompts) if apart else [prompts])]
    return [*items, *({"type": "message", "role": "user", "content": parts} for parts in messages if parts)]


def _joined(parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the parts with adjacent texts as one, since some servers join texts without a separator."""
    joined: list[dict[str, Any]] = []
    for part in parts:
        if joined and joined[-1]["type"] == part["type"] == "input_text":
            joined[-1] = {**part, "text": joined[-1]["text"] + PARAGRAPH + part["text"]}
        else:
            joined.append(part)
    return joined


def _output(result: ToolResult) -> dict[str, Any]:
    text = ERROR * result.is_error + result.text
    text_parts = [{"type": "input_text", "text": text}] if text else []
    parts = _joined([*text_parts, *map(_part, filter(RESPONSES.sends, result.blocks))])
    is_text = all(part["type"] == "input_text" for part in parts)
    output = "".join(part["text"] for part in parts) if is_text else parts
    return {"type": "function_call_output", "call_id": result.call_id, "output": output}


def _part(block: Block) -> dict[str, Any]:
    match block:
        case User(text=text) | Recalled(text=text) | Text(text=text):
            return {"type": "input_text", "text": text}
        case Summary(text=text):
            return {"type": "input_text", "text": SUMMARY + text}
        case Image():
            url = block.url if RESPONSES.form(block) == "url" else data_uri(block)
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        case Document():
            form = RESPONSES.form(block)
            if form == "data":
                return {"type": "input_file", "filename": block.name or "file", "file_data": data_uri(block)}
            if form == "url":
                return {"type": "input_file", "file_url": block.url}
            return {"type": "input_text", "text": f"{block.name}:\n{block.plain}"}
        case _:
            raise TypeError(f"{block.kind} is not a block of the user")
