"""Converts turns to items for long-term memory, one item per turn."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from turnwise.memory.conversation.blocks import (
    AnyBlock,
    Block,
    Document,
    Summary,
    System,
    Text,
    ToolResult,
    ToolUse,
    User,
)
from turnwise.memory.conversation.events import PlannerNote
from turnwise.memory.conversation.output_type import is_sent_back
from turnwise.memory.conversation.spans import Span, Spans, join
from turnwise.memory.longterm.base import MemoryItem, Source, item_id
from turnwise.memory.longterm.memory_access import FORGETTING_TOOL, MEMORY_TOOLS
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.providers.openai_chat import ERROR, arguments_of


@dataclass(frozen=True)
class TurnBlocks:
    """A turn, and the spans of the blocks that it added."""

    index: int
    spans: Spans
    created_at: float = 0.0
    is_private: bool = False
    """If true, never sent to long-term memory."""
    run_id: str | None = None
    first_seq: int = 0
    """The number of the run's first event."""
    author: str | None = None
    """The member who has started the run; None for the session's user."""
    turn_id: str | None = None
    """The id that the caller gave the turn."""


def turn_item(session_id: str, turn: TurnBlocks | None, spans: Spans, blocks: Sequence[Block]) -> MemoryItem | None:
    """Return the item of a turn that added these blocks, or of blocks of an unknown turn.

    Returns None if they have no text, or if the model forgets something in them: see `forgets`.
    Leaves out system prompts, summaries, and calls of memory tools with their results. Otherwise recalled items would
    be remembered again, and deleted items would come back. The same blocks always make the same item.
    """
    if forgets(blocks):
        return None
    own = {block.call_id for block in blocks if isinstance(block, ToolUse) and block.name in MEMORY_TOOLS}
    places = [Span(log, index, index + 1) for log, start, stop in spans for index in range(start, stop)]
    pairs = [pair for pair in zip(places, blocks, strict=True) if not _is_left_out(pair[1], own)]
    spans, blocks = join([place for place, _ in pairs]), tuple(block for _, block in pairs)
    text = "\n".join(filter(None, map(_line, blocks)))
    if not text.strip():
        return None
    return MemoryItem(
        id=item_id(spans, blocks),
        text=text,
        type=MemoryType.INTERACTION,
        source=Source(session_id=session_id, turn_index=turn.index if turn else None, spans=spans),
        blocks=cast(tuple[AnyBlock, ...], blocks),
        created_at=turn.created_at if turn else 0.0,
    )


def forgets(blocks: Iterable[Block]) -> bool:
    """Return whether the model calls `forget_about` in these blocks. They say what was to be forgotten."""
    return any(isinstance(block, ToolUse) and block.name == FORGETTING_TOOL for block in blocks)


def note_items(session_id: str, log: str, turn: TurnBlocks, notes: Iterable[PlannerNote]) -> list[MemoryItem]:
    """Return an item for each note of the turn's run that is not blank. The same note always makes the same item."""
    return [
        MemoryItem(
            id=f"{log}:note-{note.seq}~{hashlib.sha256(note.text.encode()).hexdigest()[:16]}",
            text=note.text,
            type=MemoryType.PLANNER_NOTE,
            source=Source(session_id=session_id, turn_index=turn.index),
            created_at=note.at,
        )
        for note in notes
        if note.text.strip()
    ]


def _is_left_out(block: Block, calls: set[str]) -> bool:
    if is_sent_back(block):  # the corrected answer is remembered instead
        return True
    return isinstance(block, System | Summary) or (isinstance(block, ToolUse | ToolResult) and block.call_id in calls)


def _line(block: Block) -> str:
    match block:
        case User():
            return f"{block.author or 'user'}: {block.text}"
        case Document():
            return f"user: [file {block.name}] {block.plain or ''}".rstrip()
        case Text():
            return f"assistant: {block.text}"
        case ToolUse():
            return f"assistant calls {block.name}: {arguments_of(block)}"
        case ToolResult():
            return f"result: {ERROR * block.is_error}{block.plain}"
    return ""
