"""What summaries stand for: found again in the logs, however often they were summed up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from turnwise.memory.blocks import Block, Summary, decode
from turnwise.memory.spans import Span, Spans, join, subtract, union

Read = Callable[[Sequence[Span]], Awaitable[list[str]]]
"""Returns the encoded blocks of spans, in order."""

_MARK = '"kind":"summary"'


async def originals(summary: Summary, read: Read) -> Spans:
    """Return where all is that a summary stands for, in order, with that in place of the summaries folded into it.

    One read for each of these.
    """
    spans = _spans(summary.of)
    folded = list(summary.folded)
    while folded:
        log, at = folded.pop()
        place = Span(log, at, at + 1)
        for inner in await _summaries([place], read):
            spans = _replaced(spans, place, _spans(inner.of))
            folded += inner.folded
    return spans


async def reach(spans: Spans, read: Read) -> Spans:
    """Return what `spans` hold and what summaries among it stand for, those folded into them too; sorted.

    No read where nothing was ever left out, else one, and one for each summary that was folded into another.
    """
    found = union(spans)
    if all(span.start == 0 for span in spans):
        return found
    summaries = await _summaries(spans, read)
    while summaries:
        places = [Span(log, at, at + 1) for summary in summaries for log, at in summary.folded]
        found = union(found, *(_spans(summary.of) for summary in summaries))
        summaries = await _summaries(places, read) if places else []
    return found


def is_within(summary: Summary, spans: Iterable[Span]) -> bool:
    """Return whether all that a summary says it stands for is in `spans`."""
    places = [Span(log, at, at + 1) for log, at in summary.folded]
    return not subtract([*_spans(summary.of), *places], spans)


async def _summaries(spans: Sequence[Span], read: Read) -> list[Summary]:
    blocks: Iterable[Block] = map(decode, (encoded for encoded in await read(spans) if _MARK in encoded))
    return [block for block in blocks if isinstance(block, Summary)]


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
