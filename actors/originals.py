"""What summaries stand for: found again in the logs, however often they were summed up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from turnwise.memory.blocks import Block, Summary
from turnwise.memory.spans import Span, Spans, join, union

Read = Callable[[Spans], Awaitable[tuple[Block, ...]]]
"""Returns the blocks of spans, in order."""


async def find(summary: Summary, spans: Spans, read: Read) -> bool:
    """Return whether the summary is in `spans`, or folded into one that is. One read, and one for each further fold."""
    found = await _summaries(spans, read)
    while found:
        if summary in found:
            return True
        found = await _folded(found, read)
    return False


async def originals(summary: Summary, read: Read) -> Spans:
    """Return where all is that a summary stands for, in order, with that in place of the summaries folded into it.

    One read for each of these.
    """
    spans = _spans(summary.of)
    folded = list(summary.folded)
    while folded:
        log, at = folded.pop()
        place = Span(log, at, at + 1)
        for inner in await _summaries((place,), read):
            spans = _replaced(spans, place, _spans(inner.of))
            folded += inner.folded
    return spans


async def reach(spans: Spans, read: Read) -> Spans:
    """Return what `spans` hold and what summaries among it stand for, those folded into them too; sorted.

    One read, and one for each further fold.
    """
    found = union(spans)
    summaries = await _summaries(spans, read)
    while summaries:
        found = union(found, *(_spans(summary.of) for summary in summaries))
        summaries = await _folded(summaries, read)
    return found


async def _folded(summaries: Iterable[Summary], read: Read) -> list[Summary]:
    places = tuple(Span(log, at, at + 1) for summary in summaries for log, at in summary.folded)
    return await _summaries(places, read) if places else []


async def _summaries(spans: Spans, read: Read) -> list[Summary]:
    return [block for block in await read(spans) if isinstance(block, Summary)]


def _spans(places: Iterable[tuple[str, int, int]]) -> Spans:
    return tuple(Span(*place) for place in places)


def _replaced(spans: Spans, place: Span, by: Spans) -> Spans:
    """Return the spans with others in this place."""
    parts: list[Span] = []
    for span in spans:
        if span.log == place.log and span.start <= place.start < span.stop:
            parts += [Span(span.log, span.start, place.start), *by, Span(span.log, place.stop, span.stop)]
        else:
            parts.append(span)
    return join(parts)
