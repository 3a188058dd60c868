"""Blocks to be handed to long-term memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from turnwise.memory.blocks import Block, Document, Summary, System, Text, ToolResult, ToolUse, User
from turnwise.memory.chat import ERROR, arguments_of
from turnwise.memory.long_term import LongTermMemory, MemoryItem, Source, item_id
from turnwise.memory.spans import Spans, overlap, subtract
from turnwise.strategies.ranges import Range
from turnwise.strategies.window import Window

Own = tuple[int, Spans]
"""A turn's index, and where the blocks are that it added."""

_Part = tuple[int | None, Spans, tuple[Block, ...]]


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

    def items(self, window: Window, session_id: str, turns: Sequence[Own] = ()) -> list[MemoryItem]:
        """Return an item for each turn whose blocks go, and for each exchange of no known turn, oldest first.

        Args:
            turns: those of the session that have blocks here. A turn's item is the same whatever comes behind it.
        """
        return [
            MemoryItem(
                id=item_id(spans),
                text="\n".join(filter(None, map(_line, blocks))),
                source=Source(session_id=session_id, turn_index=turn, spans=spans),
                blocks=blocks,
            )
            for _, parts in self._groups(window, turns)
            for turn, spans, blocks in parts
        ]

    def unacknowledged(
        self, window: Window, acknowledged: Collection[Collection[str]], turns: Sequence[Own] = ()
    ) -> tuple[Range, ...]:
        """Return the exchanges that have to stay: those of which some memory has not all.

        Args:
            acknowledged: for each memory, the ids of the items that it has.
        """
        durable = set.intersection(*map(set, acknowledged)) if acknowledged else set()
        return tuple(
            exchange
            for exchange, parts in self._groups(window, turns)
            if any(item_id(spans) not in durable for _, spans, _ in parts)
        )

    def spans(self, window: Window) -> Spans:
        """Return where what goes is stored."""
        return window.spans_of(left for part in self.ranges for left in window.without(part, System, Summary))

    def _groups(self, window: Window, turns: Sequence[Own]) -> Iterator[tuple[Range, list[_Part]]]:
        """Yield each exchange that goes, oldest first, and what of it is handed over, turn by turn."""
        for whole in self.ranges:
            exchanges: list[Range] = []
            for part in window.exchanges(before=whole.stop):
                exchanges.append(Range(max(part.start, whole.start), part.stop))
                if part.start <= whole.start:
                    break
            for exchange in reversed(exchanges):
                spans = window.spans_of(window.without(exchange, System, Summary))
                owned = [(turn, overlap(spans, own)) for turn, own in turns]
                rest = subtract(spans, [span for _, part in owned for span in part])
                parts = [(None, overlap(spans, rest)), *owned]
                if handed := [(turn, part, window.read(part)) for turn, part in parts if part]:
                    yield exchange, handed


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
