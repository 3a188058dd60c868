"""Ranges of block positions in a window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple


class Range(NamedTuple):
    """Positions `start` to `stop` (exclusive), from 0."""

    start: int
    stop: int


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
    return tuple(Range(first.stop, two.start) for first, two in pairwise(edges) if first.stop < two.start)


def overlap(some: Iterable[Range], parts: Sequence[Range]) -> Iterator[Range]:
    """Yield the intersection of both. O(number of ranges)."""
    index = 0
    for part in some:
        while index < len(parts) and parts[index].stop <= part.start:
            index += 1
        here = index
        while here < len(parts) and parts[here].start < part.stop:
            yield Range(max(part.start, parts[here].start), min(part.stop, parts[here].stop))
            here += 1
