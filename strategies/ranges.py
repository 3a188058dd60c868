"""Ranges of block positions in a window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from turnwise.memory.values.named_tuples import Reduced, by_name


class Range(NamedTuple):
    """Positions `start` to `stop` (exclusive), from 0."""

    start: int
    stop: int

    def __reduce__(self) -> Reduced:
        return by_name(self)


Ranges = tuple[Range, ...]
"""Ranges in ascending order, not touching and not empty, unless said otherwise."""


def merge(ranges: Iterable[Range]) -> Ranges:
    """Return the positions that ranges in any order cover, with adjacent ranges merged."""
    merged: list[Range] = []
    for part in sorted(part for part in ranges if part.start < part.stop):
        if merged and part.start <= merged[-1].stop:
            merged[-1] = Range(merged[-1].start, max(merged[-1].stop, part.stop))
        else:
            merged.append(part)
    return tuple(merged)


def gaps(ranges: Iterable[Range], within: Range) -> Ranges:
    """Return the parts of a range that the others do not cover."""
    edges = [Range(within.start, within.start), *overlap(ranges, [within]), Range(within.stop, within.stop)]
    return tuple(Range(first.stop, second.start) for first, second in pairwise(edges) if first.stop < second.start)


def overlap(ranges: Iterable[Range], parts: Sequence[Range]) -> Iterator[Range]:
    """Yield the intersection of both. O(number of ranges)."""
    index = 0
    for part in ranges:
        while index < len(parts) and parts[index].stop <= part.start:
            index += 1
        position = index
        while position < len(parts) and parts[position].start < part.stop:
            yield Range(max(part.start, parts[position].start), min(part.stop, parts[position].stop))
            position += 1
