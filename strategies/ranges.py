"""Ranges: places in a window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple


class Range(NamedTuple):
    """Places `start` to `stop` (exclusive), from 0."""

    start: int
    stop: int


Ranges = tuple[Range, ...]
"""Ascending and apart, and none is empty, unless it says otherwise."""


def merge(ranges: Iterable[Range]) -> Ranges:
    """Return what ranges of any order cover; neighbours become one."""
    merged: list[Range] = []
    for part in sorted(each for each in ranges if each.start < each.stop):
        if merged and part.start <= merged[-1].stop:
            merged[-1] = Range(merged[-1].start, max(merged[-1].stop, part.stop))
        else:
            merged.append(part)
    return tuple(merged)


def gaps(ranges: Iterable[Range], within: Range) -> Ranges:
    """Return what of a range the others leave."""
    edges = [Range(within.start, within.start), *overlap(ranges, [within]), Range(within.stop, within.stop)]
    return tuple(Range(one.stop, two.start) for one, two in pairwise(edges) if one.stop < two.start)


def overlap(some: Iterable[Range], others: Sequence[Range]) -> Iterator[Range]:
    """Yield what both have. O(their number)."""
    at = 0
    for part in some:
        while at < len(others) and others[at].stop <= part.start:
            at += 1
        here = at
        while here < len(others) and others[here].start < part.stop:
            yield Range(max(part.start, others[here].start), min(part.stop, others[here].stop))
            here += 1
