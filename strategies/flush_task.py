"""Blocks to be handed to long-term memory."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from turnwise.memory.blocks import Block, Document, Summary, System, Text, ToolResult, ToolUse, User
from turnwise.memory.chat import ERROR, arguments_of
from turnwise.memory.long_term import LongTermMemory, MemoryItem, Source, item_id
from turnwise.memory.spans import Span, Spans, join
from turnwise.strategies.ranges import Range
from turnwise.strategies.window import Window

Own = tuple[int, Spans]
"""A turn's index, and where the blocks are that it added."""

HandedOver = tuple[Range, list[MemoryItem]]
"""An exchange, and what becomes of it."""

MOST = sys.maxsize
"""Behind all positions."""


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
        """Return all items of `hand_over`."""
        return [item for _, items in self.hand_over(window, session_id, turns) for item in items]

    def hand_over(self, window: Window, session_id: str, turns: Sequence[Own] = ()) -> list[HandedOver]:
        """Return the exchanges that go, oldest first, each with an item for each turn that has blocks in it.

        Blocks of no known turn are one item of their exchange. A turn's item is the same whatever comes behind it.
        O(blocks that go, and the logarithm of the turns for each exchange).

        Args:
            turns: those of the session that have blocks here.
        """
        owners = sorted((span, turn) for turn, own in turns for span in own)
        handed: list[HandedOver] = []
        for exchange in self._exchanges(window):
            parts: dict[int | None, list[Span]] = {}
            for span in window.spans_of(window.without(exchange, System, Summary)):
                for piece, turn in _owned(span, owners):
                    parts.setdefault(turn, []).append(piece)
            items = [self._item(window, session_id, turn, join(part)) for turn, part in parts.items()]
            if items:
                handed.append((exchange, items))
        return handed

    def unacknowledged(
        self, window: Window, acknowledged: Collection[Collection[str]], turns: Sequence[Own] = ()
    ) -> tuple[Range, ...]:
        """Return the exchanges that have to stay: see `unacknowledged`."""
        return unacknowledged(self.hand_over(window, "", turns), acknowledged)

    def spans(self, window: Window) -> Spans:
        """Return where what goes is stored."""
        return window.spans_of(left for part in self.ranges for left in window.without(part, System, Summary))

    def _exchanges(self, window: Window) -> Iterator[Range]:
        for whole in self.ranges:
            exchanges: list[Range] = []
            for part in window.exchanges(before=whole.stop):
                exchanges.append(Range(max(part.start, whole.start), part.stop))
                if part.start <= whole.start:
                    break
            yield from reversed(exchanges)

    @staticmethod
    def _item(window: Window, session_id: str, turn: int | None, spans: Spans) -> MemoryItem:
        blocks = window.read(spans)
        text = "\n".join(filter(None, map(_line, blocks)))
        source = Source(session_id=session_id, turn_index=turn, spans=spans)
        return MemoryItem(id=item_id(spans, blocks), text=text, source=source, blocks=blocks)


def unacknowledged(handed: Iterable[HandedOver], acknowledged: Collection[Collection[str]]) -> tuple[Range, ...]:
    """Return the exchanges that have to stay: those of which some memory has not all.

    Args:
        acknowledged: for each memory, the ids of the items that it has.
    """
    durable = set.intersection(*map(set, acknowledged)) if acknowledged else set()
    return tuple(exchange for exchange, items in handed if any(item.id not in durable for item in items))


def _owned(span: Span, owners: Sequence[tuple[Span, int]]) -> Iterator[tuple[Span, int | None]]:
    """Yield the parts of a span, in order, each with the turn that it belongs to."""
    at = span.start
    number = max(0, bisect_right(owners, (Span(span.log, at, MOST), 0)) - 1)
    for (log, start, stop), turn in owners[number:]:
        if (log, start) >= (span.log, span.stop):
            break
        if log != span.log or stop <= at:
            continue
        if start > at:
            yield Span(log, at, start), None
        at = max(at, start)
        yield Span(log, at, min(stop, span.stop)), turn
        at = min(stop, span.stop)
    if at < span.stop:
        yield Span(span.log, at, span.stop), None


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
