"""Blocks to be handed to long-term memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from turnwise.memory.blocks import Block, Document, Summary, System, Text, ToolResult, ToolUse, User
from turnwise.memory.chat import ERROR, arguments_of
from turnwise.memory.long_term import LongTermMemory, MemoryItem, Source, item_id
from turnwise.memory.spans import Spans
from turnwise.strategies.ranges import Range
from turnwise.strategies.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushTask:
    """Exchanges that go once each of the memories has acknowledged them.

    The session first gives `items` to each memory, whose failures are its own. Only then may the window drop what all
    have acknowledged: `Plan.retaining` keeps the rest. What is given again has the same ids.
    """

    ranges: tuple[Range, ...]
    """What goes; system prompts and summaries among them are not meant."""
    memories: tuple[LongTermMemory, ...]
    """Those that may be written; in the order in which they were given."""

    def items(self, window: Window, session_id: str) -> list[MemoryItem]:
        """Return an item for each exchange, oldest first. O(its blocks)."""
        return [
            MemoryItem(
                id=item_id(spans),
                text="\n".join(filter(None, map(_line, blocks))),
                source=Source(session_id=session_id, spans=spans),
                blocks=blocks,
            )
            for _, spans, blocks in self._groups(window)
        ]

    def unacknowledged(self, window: Window, acknowledged: Collection[Collection[str]]) -> tuple[Range, ...]:
        """Return the exchanges that have to stay.

        Args:
            acknowledged: for each memory, the ids of the items that it has.
        """
        durable = set.intersection(*map(set, acknowledged)) if acknowledged else set()
        return tuple(part for part, spans, _ in self._groups(window) if item_id(spans) not in durable)

    def _groups(self, window: Window) -> Iterator[tuple[Range, Spans, tuple[Block, ...]]]:
        """Yield each exchange that goes, oldest first: its range, the spans of what is handed over, and that."""
        for whole in self.ranges:
            parts: list[Range] = []
            for part in window.exchanges(before=whole.stop):
                parts.append(Range(max(part.start, whole.start), part.stop))
                if part.start <= whole.start:
                    break
            for part in reversed(parts):
                if ranges := window.without(part, System, Summary):
                    yield part, window.spans_of(ranges), window.blocks(ranges)


def _line(block: Block) -> str:
    match block:
        case User():
            return f"user: {block.text}"
        case Document():
            return f"user: [file {block.name}] {block.text or ''}".rstrip()
        case Text():
            return f"assistant: {block.text}"
        case ToolUse():
            return f"assistant calls {block.name}: {arguments_of(block)}"
        case ToolResult():
            return f"result: {ERROR * block.is_error}{block.text}"
    return ""
