"""Finds the blocks that summaries replaced, also through summaries of summaries."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator

from turnwise.memory.conversation.blocks import AnyBlock, Summary
from turnwise.memory.conversation.spans import Seen, Span, Spans, join, union

Read = Callable[[Spans], Awaitable[tuple[AnyBlock, ...]]]
"""Returns the blocks of spans, in order."""


async def find(summary: Summary, spans: Spans, read: Read) -> bool:
    """Return whether the summary is in `spans`, or folded into one that is. One read, and one for each further fold."""
    seen = Seen()
    while spans:
        found = await _summaries(spans, read)
        if summary in found:
            return True
        spans = _folded(found, seen)
    return False


async def originals(summary: Summary, read: Read) -> Spans:
    """Return where all is that a summary stands for, in order, with that in place of the summaries folded into it.

    Each place once. One read for each of these summaries.
    """
    seen = Seen()
    spans: list[Span] = []
    parts = [_parts(summary)]
    while parts:
        part = next(parts[-1], None)
        if part is None:
            parts.pop()
            continue
        span, is_folded = part
        new = seen.take(span)
        inner = await _summaries((span,), read) if is_folded and new else ()
        spans += () if inner else new
        parts += map(_parts, inner)
    return join(spans)


async def reach(spans: Spans, read: Read) -> Spans:
    """Return what `spans` hold and what summaries among it stand for, those folded into them too; sorted.

    One read, and one for each further fold.
    """
    seen = Seen()
    reached = list(spans)
    while spans:
        summaries = await _summaries(spans, read)
        reached += (span for summary in summaries for span in _spans(summary.of))
        spans = _folded(summaries, seen)
    return union(reached)


def _folded(summaries: Iterable[Summary], seen: Seen) -> Spans:
    """Return the places of the summaries folded into these that were not seen before."""
    places = (Span(log, at, at + 1) for summary in summaries for log, at in summary.folded)
    return union(new for place in places for new in seen.take(place))


def _parts(summary: Summary) -> Iterator[tuple[Span, bool]]:
    """Yield what a summary stands for, in order; each place of a summary folded into it apart, and marked."""
    folded: dict[str, list[int]] = {}
    for log, at in sorted(summary.folded):
        folded.setdefault(log, []).append(at)
    for log, start, stop in summary.of:
        places = folded.get(log, [])
        for at in places[bisect_left(places, start) : bisect_left(places, stop)]:
            yield Span(log, start, at), False
            yield Span(log, at, at + 1), True
            start = at + 1  # noqa: PLW2901
        yield Span(log, start, stop), False


async def _summaries(spans: Spans, read: Read) -> list[Summary]:
    await asyncio.sleep(0)  # a walk over many summaries stands in nobody's way
    return [block for block in await read(spans) if isinstance(block, Summary)]


def _spans(places: Iterable[tuple[str, int, int]]) -> Spans:
    return tuple(Span(*place) for place in places)
