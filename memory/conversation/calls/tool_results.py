"""Reads what a tool returned, or a caller provided, as a result of text, images and documents."""

from __future__ import annotations

from typing import Any

from turnwise.memory.conversation.blocks import (
    Block,
    Content,
    Document,
    Image,
    Text,
    ToolResult,
    described,
    encode,
    left_out,
)


def result_of(call_id: str, value: Any) -> ToolResult | None:
    """Return the result if the value is a `ToolResult`, a block, or a list with blocks; None for any other value.

    Texts at the beginning of a list become the result's text, one on each line. O(size of the blocks).

    Raises:
        ValueError: a block is of a kind that no result has, is malformed, or cannot be stored.
    """
    if isinstance(value, ToolResult):
        result = value.model_copy(update={"call_id": call_id})
    elif isinstance(value, Block):
        result = _of_blocks(call_id, [value])
    elif isinstance(value, list | tuple) and any(isinstance(item, Block) for item in value):
        result = _of_blocks(call_id, value)
    else:
        return None
    for block in result.attachments:
        if block.flaw:
            raise ValueError(f"the {described(block)}: {block.flaw}")
    encode(result)
    return result


def _of_blocks(call_id: str, values: list[Any] | tuple[Any, ...]) -> ToolResult:
    blocks = [_content(index, value) for index, value in enumerate(values)]
    texts = 0
    while texts < len(blocks) and isinstance(blocks[texts], Text):
        texts += 1
    text = "\n".join(block.text for block in blocks[:texts] if isinstance(block, Text))
    return ToolResult(call_id=call_id, text=text, blocks=tuple(blocks[texts:]))


def _content(index: int, value: Any) -> Content:
    if isinstance(value, str):
        return Text(text=value)
    if type(value) in (Text, Image, Document):
        block: Content = value
        return block
    raise ValueError(f"item {index} is a {type(value).__name__}, but a result has Text, Image and Document blocks")


def within(result: ToolResult, max_chars: int, max_bytes: int) -> ToolResult:
    """Return the result with at most `max_chars` of text, and with images and documents of at most `max_bytes`.

    Text beyond that is cut, and attachments beyond that give way to a text; notes in the result say so. A payload that
    was cut is no payload.
    """
    chars, size = max_chars - len(result.text), max_bytes
    blocks: list[Content] = []
    for block in result.blocks:
        shown_text = block.text if isinstance(block, Text) else block.plain if isinstance(block, Document) else None
        data = 0 if isinstance(block, Text) else len(block.data or "") + len(block.url or "")
        if data > size:
            reason = f"its {data} bytes exceed max_result_bytes={max_bytes} of all images and documents of a result"
            blocks.append(Text(text=left_out(block, reason)))  # type: ignore[arg-type]
        elif shown_text and len(shown_text) > chars:
            name = f"{block.name}:\n" if isinstance(block, Document) else ""
            blocks.append(Text(text=name + _cut(shown_text, max(chars, 0))))
        else:
            blocks.append(block)
        chars, size = chars - len(shown_text or ""), size - data * (data <= size)
    is_whole = len(result.text) <= max_chars
    text = result.text if is_whole else _cut(result.text, max_chars)
    return result.model_copy(update={"text": text, "is_json": result.is_json and is_whole, "blocks": tuple(blocks)})


def _cut(text: str, limit: int) -> str:
    return f"{text[:limit]}\n[cut: these are the first {limit} of {len(text)} characters]"
