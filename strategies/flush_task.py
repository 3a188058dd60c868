"""`FlushTask`: exchanges to save in long-term memory before they leave the window."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from turnwise.memory.conversation.blocks import Summary, System
from turnwise.memory.conversation.spans import Span, Spans, join
from turnwise.memory.longterm.base import LongTermMemory, MemoryItem
from turnwise.memory.longterm.turn_items import TurnBlocks, turn_item
from turnwise.strategies.ranges import Range
from turnwise.strategies.window import Window

HandedOver = tuple[Range, list[MemoryItem]]
"""An exchange, and the items to save for it."""

MOST = sys.maxsize
"""A position after all others."""


@dataclass(frozen=True, kw_only=True)
class FlushTask:
    """Exchanges that leave the window once every memory has acknowledged them.

    The session first saves the items of `hand_over` in each memory. Then the window drops the exchanges that all of
    them have acknowledged; `Plan.retaining` keeps the others. Items that are saved again have the same ids.
    """

    ranges: tuple[Range, ...]
    """The ranges that leave the window. System prompts and summaries in them stay."""
    memories: tuple[LongTermMemory, ...]
    """The writable memories, in their order in the strategy."""

    def items(self, window: Window, session_id: str, turns: Sequence[TurnBlocks] = ()) -> list[MemoryItem]:
        """Return all items of `hand_over`."""
        return [item for _, items in self.hand_over(window, session_id, turns) for item in items]

    def hand_over(self, window: Window, session_id: str, turns: Sequence[TurnBlocks] = ()) -> list[HandedOver]:
        """Return the exchanges to flush, oldest first, each with an item for each turn that has blocks in it.

        Blocks of unknown turns are one item per exchange; blocks of private turns are left out. A turn's item does not
        depend on later turns. O(blocks to flush, and for each exchange the logarithm of the number of turns).

        Args:
            turns: the session's turns with blocks in the window.
        """
        owners = sorted((span, turn.index) for turn in turns for span in turn.spans)
        turns_by_index = {turn.index: turn for turn in turns}
        handed: list[HandedOver] = []
        for exchange in self._exchanges(window):
            parts: dict[int | None, list[Span]] = {}
            for span in window.spans_of(window.without(exchange, System, Summary)):
                for piece, owner in _owned(span, owners):
                    parts.setdefault(owner, []).append(piece)
            items = []
            for number, part in parts.items():
                turn = None if number is None else turns_by_index[number]
                if turn is None or not turn.is_private:
                    spans = join(part)
                    items.append(turn_item(session_id, turn, spans, window.read(spans)))
            if items_with_blocks := [item for item in items if item]:
                handed.append((exchange, items_with_blocks))
        return handed

    def spans(self, window: Window) -> Spans:
        """Return the spans of the blocks to flush."""
        return window.spans_of(rest for part in self.ranges for rest in window.without(part, System, Summary))

    def _exchanges(self, window: Window) -> Iterator[Range]:
        for flushed in self.ranges:
            exchanges: list[Range] = []
            for part in window.exchanges(before=flushed.stop):
                exchanges.append(Range(max(part.start, flushed.start), part.stop))
                if part.start <= flushed.start:
                    break
            yield from reversed(exchanges)


def unacknowledged(handed: Iterable[HandedOver], acknowledged: Collection[Collection[str]]) -> tuple[Range, ...]:
    """Return the exchanges that must stay. One may go only if every memory has every item of it.

    Args:
        acknowledged: for each memory, the ids of the items that it has.
    """
    in_all_memories = set.intersection(*map(set, acknowledged)) if acknowledged else set()
    return tuple(exchange for exchange, items in handed if not in_all_memories.issuperset(item.id for item in items))


def _owned(span: Span, owners: Sequence[tuple[Span, int]]) -> Iterator[tuple[Span, int | None]]:
    """Yield the parts of a span, in order, each with the turn that it belongs to."""
    position = span.start
    number = max(0, bisect_right(owners, (Span(span.log, position, MOST), 0)) - 1)
    for (log, start, stop), turn in owners[number:]:
        if (log, start) >= (span.log, span.stop):
            break
        if log != span.log or stop <= position:
            continue
        if start > position:
            yield Span(log, position, start), None
        position = max(position, start)
        yield Span(log, position, min(stop, span.stop)), turn
        position = min(stop, span.stop)
    if position < span.stop:
        yield Span(span.log, position, span.stop), None
