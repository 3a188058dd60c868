"""Spans: ranges of positions in append-only block logs. A turn is a few of them, so a snapshot costs O(1).

Every session appends to one log. A span names its log, so a fork can point into its parent's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Span(NamedTuple):
    """Positions `start` to `stop` (exclusive, from 0) of the log named `log`."""

    log: str
    start: int
    stop: int


Spans = tuple[Span, ...]
"""Spans in reading order."""


def join(*groups: Iterable[Span]) -> Spans:
    """Return the groups one after the other; empty spans go, a span that continues the one before it joins it."""
    joined: list[Span] = []
    for group in groups:
        for span in group:
            if span.start >= span.stop:
                continue
            if joined and joined[-1].log == span.log and joined[-1].stop == span.start:
                joined[-1] = Span(span.log, joined[-1].start, span.stop)
            else:
                joined.append(span)
    return tuple(joined)


def union(*groups: Iterable[Span]) -> Spans:
    """Return the positions of all groups, each once, sorted by log and position."""
    merged: list[Span] = []
    for span in sorted(span for group in groups for span in group if span.start < span.stop):
        if merged and merged[-1].log == span.log and span.start <= merged[-1].stop:
            merged[-1] = Span(span.log, merged[-1].start, max(merged[-1].stop, span.stop))
        else:
            merged.append(span)
    return tuple(merged)


def subtract(spans: Iterable[Span], held: Iterable[Span]) -> Spans:
    """Return the positions of `spans` that are not in `held`."""
    left = list(union(spans))
    for log, start, stop in union(held):
        left = [
            part
            for span in left
            for part in (
                (Span(span.log, span.start, min(span.stop, start)), Span(span.log, max(span.start, stop), span.stop))
                if span.log == log
                else (span,)
            )
            if part.start < part.stop
        ]
    return tuple(left)


def overlap(spans: Iterable[Span], held: Iterable[Span]) -> Spans:
    """Return the positions of `spans` that are in `held` too, in the order of `spans`."""
    held = union(held)
    return join(
        Span(log, max(start, other.start), min(stop, other.stop))
        for log, start, stop in spans
        for other in held
        if other.log == log
    )


def cut(spans: Iterable[Span], count: int) -> tuple[Spans, Spans]:
    """Return the first `count` positions and the rest, each in reading order and joined.

    If there are no more than `count`, the rest is empty.
    """
    first: list[Span] = []
    rest: list[Span] = []
    left = max(count, 0)
    for log, start, stop in join(spans):
        middle = min(start + left, stop)
        left -= middle - start
        first.append(Span(log, start, middle))
        rest.append(Span(log, middle, stop))
    return join(first), join(rest)


def begins_with(spans: Iterable[Span], prefix: Iterable[Span]) -> bool:
    """Return whether the first positions of `spans`, in reading order, are those of `prefix`.

    However either is joined. Everything begins with no positions.
    """
    wanted = join(prefix)
    return cut(spans, size(wanted))[0] == wanted


def size(spans: Iterable[Span]) -> int:
    """Return the number of positions."""
    return sum(span.stop - span.start for span in spans)
