"""Items of OpenAI's Responses, as lists that other programs keep: read as blocks, and made of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnwise.memory.conversation.blocks import (
    AnyBlock,
    Block,
    Content,
    Image,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
    User,
)
from turnwise.memory.providers.openai_chat import ERROR
from turnwise.memory.providers.openai_responses import BETWEEN, encode, pack_reasoning, unpack_reasoning
from turnwise.memory.providers.parts import (
    UnreadableError,
    arguments,
    assistant_text,
    file,
    mapping,
    own_file,
    parts,
    picture,
    pop_text,
    text,
    unknown_block,
)
from turnwise.memory.providers.validation import RESPONSES


def to_items(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """Return the items, the system prompt as the first; see `openai_responses.encode`."""
    system, items = encode(blocks)
    return [{"type": "message", "role": "system", "content": system}, *items] if system else items


def is_left_out(block: Block) -> bool:
    """Return whether the items do not have the block."""
    if isinstance(block, Thinking):
        return unpack_reasoning(block.signature) is None
    return not isinstance(block, System) and not RESPONSES.sends(block)


def read(items: Sequence[Any]) -> Iterator[list[AnyBlock]]:
    """Yield the blocks of each item.

    Messages, reasoning, calls of functions and their outputs are read; reasoning is sent back only if it was encrypted.
    Items of other kinds, such as searches that OpenAI made, are stored unchanged and never sent.

    Raises:
        UnreadableError: it is not valid.
    """
    texts_before = _Place()
    for item in items:
        record = mapping(item, "")
        blocks = _item(record, texts_before.number)
        texts_before.add(blocks)
        yield blocks


class _Place:
    """Counts the items of an answer before its next reasoning, for `Reasoning.before`: its text, and each call."""

    def __init__(self) -> None:
        self.number = 0
        self._has_text = False

    def add(self, blocks: Sequence[AnyBlock]) -> None:
        for block in blocks:
            if block.role in ("user", "tool") and not isinstance(block, Unknown):
                self.number, self._has_text = 0, False
            elif isinstance(block, ToolUse):
                self.number += 1
            elif isinstance(block, Text) and not self._has_text:
                self.number, self._has_text = self.number + 1, True


def _item(item: Mapping[str, Any], before: int) -> list[AnyBlock]:
    match item.get("type", "message" if "role" in item else None):
        case "message":
            return _message(item)
        case "reasoning":
            return [_thought(item, before)]
        case "function_call":
            call_id, name = text(item, "call_id", ""), text(item, "name", "")
            return [ToolUse(call_id=call_id, name=name, input=arguments(item, ""))]
        case "function_call_output":
            return [_output(item)]
        case "item_reference":
            raise UnreadableError(
                "", item, "what it refers to is kept by OpenAI: send the item itself, or leave it out"
            )
        case str():
            return [unknown_block("openai_responses", item)]
        case kind:
            raise UnreadableError(".type", kind, "must name the kind of the item, such as message or function_call")


def _message(item: Mapping[str, Any]) -> list[AnyBlock]:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise UnreadableError(".role", role, "must be user, assistant, system or developer")
    blocks: list[AnyBlock] = []
    for kind, part, place in parts(item.get("content"), ".content", "input_text"):
        if role == "assistant" and kind in ("output_text", "input_text", "refusal"):
            blocks.append(assistant_text(text(part, "refusal" if kind == "refusal" else "text", place)))
        elif role == "user":
            block = _part(kind, part, place)
            blocks.append(User(text=block.text) if isinstance(block, Text) else block)
        elif role != "assistant" and kind == "input_text":
            blocks.append(System(text=text(part, "text", place)))
        else:
            raise UnreadableError(f"{place}.type", kind, f"a message of the {role} has no such part: leave it out")
    if not blocks:
        raise UnreadableError(".content", item.get("content"), "it is empty: leave the message out")
    last = blocks[-1]
    if isinstance(last, Text) and item.get("status") == "incomplete":
        blocks[-1] = last.model_copy(update={"interrupted": True})
    if role in ("system", "developer"):
        return [System(text="".join(block.text for block in blocks if isinstance(block, System)))]
    return blocks


def _part(kind: str, part: Mapping[str, Any], place: str) -> Content:
    match kind:
        case "input_text" | "output_text":
            return Text(text=text(part, "text", place))
        case "input_image":
            if part.get("file_id") is not None:
                return Image(file=own_file(part["file_id"], f"{place}.file_id", "image_url"))
            return picture(text(part, "image_url", place))
        case "input_file":
            return file(part, place)
        case _:
            raise UnreadableError(
                f"{place}.type", kind, "must be input_text, input_image or input_file: leave the part out"
            )


def _thought(item: Mapping[str, Any], before: int) -> Thinking:
    name, encrypted = item.get("id"), item.get("encrypted_content")
    summary = item.get("summary") or item.get("content") or ()
    texts = [text(part, "text", place) for _, part, place in parts(summary, ".summary", "summary_text")]
    signature = None
    if isinstance(name, str) and name and isinstance(encrypted, str) and encrypted:
        signature = pack_reasoning(name, encrypted, "", before, tuple(map(len, texts)))
    return Thinking(text=BETWEEN.join(texts), signature=signature)


def _output(item: Mapping[str, Any]) -> ToolResult:
    call_id, output = text(item, "call_id", ""), item.get("output")
    contents = [_part(*part) for part in parts(output, ".output", "input_text")]
    result_text = pop_text(contents)
    is_error = result_text.startswith(ERROR)
    return ToolResult(call_id=call_id, text=result_text.removeprefix(ERROR), is_error=is_error, blocks=tuple(contents))
