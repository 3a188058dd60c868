"""How the messages of a conversation look: prompts, answers, thoughts, tool calls and their results."""

from __future__ import annotations

from collections.abc import Callable

from turnwise.console.elements.tags import badge, link, long_text, tag
from turnwise.console.elements.text import file_size, json_text
from turnwise.memory.conversation.blocks import (
    AnyBlock,
    Citations,
    Document,
    Image,
    Recalled,
    Summary,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    User,
    described,
)
from turnwise.memory.values.plain_text import plain

PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The types of pictures that are shown: those that have nothing but pixels."""

_INLINE_CHARS = 400_000
"""How many characters of base64 a picture may have that is shown without being a file."""

FileUrl = Callable[[str], str]
"""Returns the address of a file's bytes, by its id."""


def show_block(block: AnyBlock, user: str = "User", file_url: FileUrl | None = None) -> None:
    """Show a block: pictures by their files, all else as text only."""
    match block:
        case User():
            _message("mine", block.author or user, block.text)
        case System():
            _folded("note", "Instructions", block.text)
        case Text():
            _message("answer", "Answer, interrupted" if block.interrupted else "Answer", block.text)
        case Thinking():
            _folded("thought", "Thoughts", block.text or "(not readable)")
        case ToolUse():
            _folded("tool", f"Calls {block.name}", json_text(block.input), code=True)
        case ToolResult():
            name = "Result: error" if block.is_error else "Result"
            _folded("tool", name, block.text, code=True, is_bad=block.is_error)
            for inner in block.blocks:
                show_block(inner, user, file_url)
        case Summary():
            _folded("note", "Summary of earlier turns", block.text)
        case Recalled():
            _folded("note", "Recalled from memory", block.text)
        case Image() | Document():
            _attachment(block, file_url)
        case Citations():
            _folded("note", "Sources", json_text(block.items), code=True)
        case _:
            with tag("div", "said note"):
                tag("span", "soft", "cleared" if getattr(block, "stored_kind", "") == "cleared" else block.kind)


def _attachment(block: Image | Document, file_url: FileUrl | None) -> None:
    """Show a picture, and a file as a link by which it is downloaded; of others, what is known as text."""
    name, data = described(block), block.data or ""
    url = file_url(block.file) if block.file and file_url else None
    picture = None
    if isinstance(block, Image) and block.media_type in PICTURES:
        picture = url or (f"data:{block.media_type};base64,{data}" if 0 < len(data) <= _INLINE_CHARS else None)
    if url is None and picture is None:
        text = isinstance(block, Document) and block.plain
        _folded("mine", name, text or block.url or block.file or f"{len(data)} characters of base64")
        return
    with tag("div", "said mine"):
        if picture:
            tag("img", "picture", src=picture, alt=name, loading="lazy")
        if url:
            size = "" if block.size is None else f", {file_size(block.size)}"
            link(f"{name}{size}", url, "small", download=True)


def _message(classes: str, who: str, text: str) -> None:
    with tag("div", f"said {classes}"):
        tag("div", "who", who)
        long_text(text)


def _folded(classes: str, name: str, text: str, *, code: bool = False, is_bad: bool = False) -> None:
    first = " ".join(plain(text[:200]).split())[:90]
    with tag("div", f"said {classes}"), tag("details"):
        with tag("summary"):
            tag("span", "", f"{name} ")
            if is_bad:
                badge("failed", "bad")
            tag("span", "small", first)
        long_text(text, "code" if code else "")
