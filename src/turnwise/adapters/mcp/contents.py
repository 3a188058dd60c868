"""What an MCP server answers, as blocks: results of tools, and resources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pydantic_core

from turnwise.memory.conversation.blocks import Content, Document, Image, Text, ToolResult
from turnwise.memory.conversation.calls.tool_results import result_of

if TYPE_CHECKING:
    from mcp.types import (
        AudioContent,
        BlobResourceContents,
        CallToolResult,
        ContentBlock,
        Resource,
        TextResourceContents,
    )

_SHOWN = 200
"""How many characters of a server's name or URI a text in place of a content shows."""


def result_from(answer: CallToolResult) -> ToolResult | None:
    """Return a tool's answer as a result; None if it is empty.

    Structured content becomes the result's JSON, and texts that only repeat it are left out. Images, and resources that
    came along, become blocks; sounds and links become texts that say what there was.
    """
    blocks = [block_of(content) for content in answer.content]
    if answer.structured_content is not None and not answer.is_error:
        texts = [block.text for block in blocks if isinstance(block, Text)]
        payload, is_repeated = _payload(answer.structured_content, texts)
        return ToolResult.of(payload, *(block for block in blocks if not (is_repeated and isinstance(block, Text))))
    result = result_of("", blocks) if blocks else None
    if not answer.is_error:
        return result
    failed = result or ToolResult(call_id="", text="the tool failed, and the server gave no reason")
    return failed.model_copy(update={"is_error": True})


def _payload(structured: Any, texts: Sequence[str]) -> tuple[Any, bool]:
    """Return structured content, and whether the texts only repeat it, as servers write it for older clients.

    Servers wrap what is no object as `{"result": ...}`; where the texts have it without that, so has the payload.
    """
    if _repeat(texts, structured):
        return structured, True
    if isinstance(structured, dict) and structured.keys() == {"result"} and _repeat(texts, structured["result"]):
        return structured["result"], True
    return structured, False


def _repeat(texts: Sequence[str], value: Any) -> bool:
    if isinstance(value, list) and len(texts) == len(value) and all(map(_says, texts, value)):
        return True
    return len(texts) == 1 and _says(texts[0], value)


def _says(text: str, value: Any) -> bool:
    try:
        return bool(text == value or pydantic_core.from_json(text) == value)
    except ValueError:
        return False


def block_of(content: ContentBlock) -> Content:
    """Return one content of an answer as a block."""
    if content.type == "text":
        return Text(text=content.text)
    if content.type == "image":
        image = Image(data=content.data, media_type=content.mime_type or "image/png") if content.data else None
        return _checked(image) if image else _empty("image")
    if content.type == "audio":
        return Text(text=_of_audio(content))
    if content.type == "resource_link":
        return Text(text=described(content))
    return of_resource(content.resource)


def described(resource: Resource) -> str:
    """Return a resource that can be read as one line of text."""
    name = resource.title or resource.name
    description = f": {resource.description}" if resource.description else ""
    kind = f" ({resource.mime_type})" if resource.mime_type else ""
    return f"[resource {name[:_SHOWN]} at {resource.uri}{kind}{description[:_SHOWN]}]"


def of_resource(contents: TextResourceContents | BlobResourceContents, name: str | None = None) -> Content:
    """Return what was read of a resource: a document, a picture, or a text that says what it was.

    Args:
        name: the resource's name; the last part of its URI if omitted.
    """
    name = name or name_of(contents.uri)
    text = getattr(contents, "text", None)
    if text is not None:
        return Document(name=name, text=text) if text.strip() else _empty(f"resource {name}")
    data, media_type = getattr(contents, "blob", ""), contents.mime_type or "application/octet-stream"
    if not data:
        return _empty(f"resource {name}")
    if media_type.startswith("image/"):
        return _checked(Image(data=data, media_type=media_type))
    return _checked(Document(name=name, data=data, media_type=media_type))


def name_of(uri: str) -> str:
    """Return the last part of a URI, as the name of what it leads to."""
    try:
        parts = urlsplit(uri)
        path = parts.path.rstrip("/").rpartition("/")[2] or parts.netloc
    except ValueError:
        path = ""
    return (unquote(path) or uri)[:_SHOWN] or "resource"


def documents(blocks: Iterable[Content]) -> list[Image | Document]:
    """Return the pictures and documents among blocks."""
    return [block for block in blocks if not isinstance(block, Text)]


def _checked(block: Image | Document) -> Content:
    """Return the block, or a text if no provider would accept it."""
    label = f"document {block.name}" if isinstance(block, Document) else "image"
    return Text(text=f"[{label} is left out: {block.flaw}]") if block.flaw else block


def _empty(label: str) -> Text:
    return Text(text=f"[{label} is empty]")


def _of_audio(content: AudioContent) -> str:
    return (
        f"[audio ({content.mime_type[:_SHOWN]}, {len(content.data) * 3 // 4} bytes) is left out: models get no sound]"
    )
