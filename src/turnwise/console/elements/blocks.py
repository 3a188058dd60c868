"""How the messages of a conversation look: prompts, answers, thoughts, tool calls and their results."""

from __future__ import annotations

from turnwise.console.elements.tags import badge, long_text, tag
from turnwise.console.elements.text import json_text
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


def show_block(block: AnyBlock, user: str = "User") -> None:
    """Show a block, as text only."""
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
                show_block(inner)
        case Summary():
            _folded("note", "Summary of earlier turns", block.text)
        case Recalled():
            _folded("note", "Recalled from memory", block.text)
        case Image() | Document():
            shown = isinstance(block, Document) and block.plain
            _folded("mine", described(block), shown or block.url or f"{len(block.data or '')} characters of base64")
        case Citations():
            _folded("note", "Sources", json_text(block.items), code=True)
        case _:
            with tag("div", "said note"):
                tag("span", "soft", "cleared" if getattr(block, "stored_kind", "") == "cleared" else block.kind)


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
