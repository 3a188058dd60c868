"""`TokenIndex`: cached token counts of the blocks of some logs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import Block, Summary, System
from turnwise.memory.conversation.spans import Span, Spans, join
from turnwise.memory.tokens.counter import TokenCounter

Counted = list[tuple[Span, list[tuple[type[Block], int]]]]
"""For each span: the kind and the tokens of each block."""


class _Marks:
    """The positions of the blocks of one kind in a stretch of blocks, and their token sums."""

    __slots__ = ("places", "totals")

    def __init__(self) -> None:
        self.places: list[int] = []
        self.totals = [0]

    def add(self, position: int, tokens: int) -> None:
        self.places.append(position)
        self.totals.append(self.totals[-1] + tokens)

    def within(self, start: int, stop: int) -> slice:
        return slice(bisect_left(self.places, start), bisect_left(self.places, stop))


class _Stretch:
    """Token counts of consecutive blocks of a log, as running sums."""

    __slots__ = ("marks", "start", "totals")

    def __init__(self, start: int) -> None:
        self.start = start
        self.totals = [0]
        self.marks: dict[type[Block], _Marks] = {System: _Marks(), Summary: _Marks()}

    @property
    def stop(self) -> int:
        return self.start + len(self.totals) - 1

    def add(self, kind: type[Block], tokens: int) -> None:
        if marks := self.marks.get(kind):
            marks.add(self.stop, tokens)
        self.totals.append(self.totals[-1] + tokens)


class TokenIndex:
    """Token counts by log and position. The count of a span is a lookup. Counts are added and never removed.

    Not safe for several threads. Adding is O(added blocks), all else O(spans), times the logarithm of the index's size.
    """

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter
        self._logs: dict[str, list[_Stretch]] = {}

    @property
    def counter(self) -> TokenCounter:
        """The counter of tokens."""
        return self._counter

    def add(self, log: str, start: int, blocks: Sequence[Block]) -> None:
        """Count `blocks`, which begin at position `start` of `log`. Blocks that were counted before are skipped."""
        for _, first, stop in self.missing([Span(log, start, start + len(blocks))]):
            stretch = self._stretch(log, first)
            for block in blocks[first - start : stop - start]:
                stretch.add(type(block), self._counter.count(block))

    def count(self, spans: Iterable[Span], cache: BlockCache) -> Counted:
        """Count blocks and return the counts, for `merge`. Does not change the index, so it may run on another thread.

        Raises:
            CorruptRecordError: the cache lacks some of the blocks.
        """
        return [(span, [(type(block), self._counter.count(block)) for block in cache.read([span])]) for span in spans]

    def merge(self, counted: Counted) -> None:
        """Add the result of `count`. Blocks that were counted meanwhile are skipped."""
        for span, tokens in counted:
            for _, first, stop in self.missing([span]):
                stretch = self._stretch(span.log, first)
                for kind, count in tokens[first - span.start : stop - span.start]:
                    stretch.add(kind, count)

    def cover(self, spans: Iterable[Span], cache: BlockCache) -> None:
        """Count the blocks of `spans` that are not counted yet. The cache must hold them.

        Raises:
            CorruptRecordError: the cache lacks some of the blocks.
        """
        for span in self.missing(spans):
            self.add(span.log, span.start, cache.read([span]))

    def missing(self, spans: Iterable[Span]) -> Spans:
        """Return the parts of `spans` that are not counted."""
        gaps: list[Span] = []
        for log, start, stop in spans:
            position = start
            for stretch in self._stretches(log, start, stop):
                gaps.append(Span(log, position, stretch.start))
                position = stretch.stop
            gaps.append(Span(log, position, stop))
        return join(gaps)

    def sum(self, spans: Iterable[Span], kind: type[Block] | None = None) -> int:
        """Return the total tokens of the blocks, or of those of one kind, `System` or `Summary`.

        Raises:
            KeyError: some are not counted.
        """
        total = 0
        for stretch, start, stop in self._pieces(spans):
            if kind is None:
                total += stretch.totals[stop - stretch.start] - stretch.totals[start - stretch.start]
            else:
                marks = stretch.marks[kind]
                places = marks.within(start, stop)
                total += marks.totals[places.stop] - marks.totals[places.start]
        return total

    def places(self, span: Span, kind: type[Block]) -> list[int]:
        """Return the positions of the blocks of a kind, `System` or `Summary`, ascending. Also O(results).

        Raises:
            KeyError: some of the span is not counted.
        """
        return [
            position
            for stretch, start, stop in self._pieces([span])
            for position in stretch.marks[kind].places[stretch.marks[kind].within(start, stop)]
        ]

    def last_system(self, spans: Sequence[Span]) -> tuple[str, int] | None:
        """Return the log and position of the effective (last) system prompt; None if there is none."""
        for span in reversed(spans):
            for stretch, start, stop in reversed(list(self._pieces([span]))):
                marks = stretch.marks[System]
                places = marks.within(start, stop)
                if places.start < places.stop:
                    return span.log, marks.places[places.stop - 1]
        return None

    def _stretch(self, log: str, start: int) -> _Stretch:
        """Return the stretch that ends at `start`, or a new one that begins there."""
        stretches = self._logs.setdefault(log, [])
        place = bisect_right(stretches, start, key=lambda stretch: stretch.start)
        if place and stretches[place - 1].stop == start:
            return stretches[place - 1]
        stretches.insert(place, _Stretch(start))
        return stretches[place]

    def _stretches(self, log: str, start: int, stop: int) -> Iterator[_Stretch]:
        """Yield the stretches with blocks between `start` and `stop`, in ascending order."""
        stretches = self._logs.get(log, [])
        place = bisect_right(stretches, start, key=lambda stretch: stretch.stop)
        while place < len(stretches) and stretches[place].start < stop:
            yield stretches[place]
            place += 1

    def _pieces(self, spans: Iterable[Span]) -> Iterator[tuple[_Stretch, int, int]]:
        """Yield the parts of `spans` in order, each with its stretch."""
        for span in spans:
            position = span.start
            for stretch in self._stretches(*span):
                if stretch.start > position:
                    break
                upto = min(stretch.stop, span.stop)
                yield stretch, position, upto
                position = upto
            if position < span.stop:
                raise KeyError(f"block {span.log}:{position} is not counted: add() or cover() comes first")
