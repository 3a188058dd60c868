"""Finds the blocks that summaries replaced, including those replaced by summaries of summaries.

A summary that a later summary replaced is *folded into* the later one.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator

from turnwise.memory.conversation.blocks import AnyBlock, Summary
from turnwise.memory.conversation.spans import Seen, Span, Spans, join, union

Read = Callable[[Spans], Awaitable[tuple[AnyBlock, ...]]]
"""Returns the blocks of spans, in order."""


async def find(summary: Summary, spans: Spans, read: Read) -> bool:
    """Return whether the summary is in `spans`, or was folded into a summary there, at any depth.

    One read for each level.
    """
    covered = Seen()
    while spans:
        summaries = await _summaries(spans, read)
        if summary in summaries:
            return True
        spans = _folded(summaries, covered)
    return False


async def originals(summary: Summary, read: Read) -> Spans:
    """Return the spans that a summary replaced, in order.

    If a part of them is itself a summary, its originals are returned instead of it. Each position is returned once. One
    read for each summary.
    """
    covered = Seen()
    spans: list[Span] = []
    parts = [_parts(summary)]
    while parts:
        part = next(parts[-1], None)
        if part is None:
            parts.pop()
            continue
        span, is_folded = part
        new = covered.take(span)
        inner = await _summaries((span,), read) if is_folded and new else ()
        spans += () if inner else new
        parts += map(_parts, inner)
    return join(spans)


async def reach(spans: Spans, read: Read) -> Spans:
    """Return `spans`, and all spans that summaries in them, or summaries folded into those, replaced; sorted.

    One read for each level.
    """
    covered = Seen()
    reached = list(spans)
    while spans:
        summaries = await _summaries(spans, read)
        reached += (span for summary in summaries for span in _spans(summary.of))
        spans = _folded(summaries, covered)
    return union(reached)


def _folded(summaries: Iterable[Summary], covered: Seen) -> Spans:
    """Return the positions of the summaries that were folded into these and were not seen before."""
    places = (Span(log, position, position + 1) for summary in summaries for log, position in summary.folded)
    return union(new for place in places for new in covered.take(place))


def _parts(summary: Summary) -> Iterator[tuple[Span, bool]]:
    """Yield the spans that a summary replaced, in order, and whether the span is a summary that was folded into it."""
    folded: dict[str, list[int]] = {}
    for log, position in sorted(summary.folded):
        folded.setdefault(log, []).append(position)
    for log, start, stop in summary.of:
        places = folded.get(log, [])
        for position in places[bisect_left(places, start) : bisect_left(places, stop)]:
            yield Span(log, start, position), False
            yield Span(log, position, position + 1), True
            start = position + 1  # noqa: PLW2901
        yield Span(log, start, stop), False


async def _summaries(spans: Spans, read: Read) -> list[Summary]:
    await asyncio.sleep(0)  # let other tasks run during a walk over many summaries
    return [block for block in await read(spans) if isinstance(block, Summary)]


def _spans(places: Iterable[tuple[str, int, int]]) -> Spans:
    return tuple(Span(*place) for place in places)
