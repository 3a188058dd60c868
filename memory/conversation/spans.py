"""Spans: ranges of positions in append-only block logs. A turn is a few of them, so a snapshot costs O(1).

Every session appends to one log. A span names its log, so a fork can point into its parent's.

Annotations are not postponed (PEP 563) in this module, since pydantic would evaluate each of them again.
"""

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple

from pydantic import GetCoreSchemaHandler, Strict
from pydantic_core import CoreSchema, core_schema

from turnwise.memory.values.named_tuples import Reduced, by_name


class Span(NamedTuple):
    """Positions `start` to `stop` (exclusive, from 0) of the log named `log`."""

    log: str
    start: int
    stop: int

    def __reduce__(self) -> Reduced:
        return by_name(self)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return how pydantic reads a span: from a list. Its own schema of named tuples takes three times as long."""
        number = core_schema.int_schema(strict=True)
        parts = core_schema.tuple_schema([core_schema.str_schema(strict=True), number, number], strict=False)
        return core_schema.no_info_after_validator_function(cls._make, parts)


Spans = Annotated[tuple[Span, ...], Strict(False)]
"""Spans in reading order. JSON has them as lists."""


def holds(span: Span, part: Span) -> bool:
    """Return whether a span has all positions of another one."""
    return span.log == part.log and span.start <= part.start and part.stop <= span.stop


def join(*groups: Iterable[Span]) -> Spans:
    """Return the groups concatenated. Empty spans are dropped, and adjacent spans are merged."""
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
    """Return the positions of `spans` that are not in `held`, each once, sorted. O(n log n)."""
    held_positions = Seen()
    for span in held:
        held_positions.add(span)
    return tuple(part for span in union(spans) for part in held_positions.new(span))


def subtract_in_order(spans: Iterable[Span], held: Spans) -> Spans:
    """Return the positions of `spans` that are not in `held`, in the order of `spans`."""
    return join(*(subtract([span], held) for span in spans))


def overlap(spans: Iterable[Span], held: Iterable[Span]) -> Spans:
    """Return the positions of `spans` that are in `held` too, in the order of `spans`. O(n log n)."""
    held_positions = Seen()
    for span in held:
        held_positions.add(span)
    return join(part for span in spans for part in held_positions.common(span))


class Seen:
    """A set of seen positions, as spans that do not touch. Each method takes O(log n + results)."""

    def __init__(self) -> None:
        self._logs: dict[str, tuple[list[int], list[int]]] = {}
        """By log: the starts and the stops of its spans, sorted."""

    def add(self, span: Span) -> None:
        """Add the positions of a span."""
        if span.start >= span.stop:
            return
        starts, stops = self._logs.setdefault(span.log, ([], []))
        first, last = bisect_left(stops, span.start), bisect_right(starts, span.stop)
        start, stop = min([span.start, *starts[first:last][:1]]), max([span.stop, *stops[first:last][-1:]])
        starts[first:last], stops[first:last] = [start], [stop]

    def common(self, span: Span) -> list[Span]:
        """Return the positions of the span that were seen."""
        starts, stops = self._logs.get(span.log, ([], []))
        first, last = bisect_right(stops, span.start), bisect_left(starts, span.stop)
        return [
            Span(span.log, max(span.start, start), min(span.stop, stop))
            for start, stop in zip(starts[first:last], stops[first:last], strict=True)
        ]

    def new(self, span: Span) -> list[Span]:
        """Return the positions of the span that were not seen."""
        common = self.common(span)
        edges = [span.start, *(edge for part in common for edge in (part.start, part.stop)), span.stop]
        gaps = zip(edges[::2], edges[1::2], strict=True)
        return [Span(span.log, start, stop) for start, stop in gaps if start < stop]

    def take(self, span: Span) -> list[Span]:
        """Return the positions of the span that were not seen, and add them."""
        new = self.new(span)
        self.add(span)
        return new


def cut(spans: Iterable[Span], count: int) -> tuple[Spans, Spans]:
    """Return the first `count` positions and the rest, each in reading order and joined.

    If there are no more than `count`, the rest is empty.
    """
    joined = join(spans)
    if size(joined) <= count:
        return joined, ()
    first: list[Span] = []
    rest: list[Span] = []
    remaining = max(count, 0)
    for log, start, stop in joined:
        middle = min(start + remaining, stop)
        remaining -= middle - start
        first.append(Span(log, start, middle))
        rest.append(Span(log, middle, stop))
    return join(first), join(rest)


def begins_with(spans: Iterable[Span], prefix: Iterable[Span]) -> bool:
    """Return whether the first positions of `spans`, in reading order, are those of `prefix`.

    How the positions are split into spans does not matter. An empty prefix always matches.
    """
    prefix_spans = join(prefix)
    return cut(spans, size(prefix_spans))[0] == prefix_spans


def prefix_key(spans: Spans, log: str, inherited: str = "") -> str:
    """Return the key of what a request with these spans begins with: a digest of the log that has its first block.

    Args:
        log: the log of the session, for a request without blocks; if that is empty, so is the key.
        inherited: the key that the session has from its caller, which is returned then.
    """
    if inherited:
        return inherited
    first = spans[0].log if spans else log
    return hashlib.blake2b(first.encode(), digest_size=16, person=b"turnwise.prefix").hexdigest() if log else ""


def size(spans: Iterable[Span]) -> int:
    """Return the number of positions."""
    return sum(span.stop - span.start for span in spans)


def places(spans: Iterable[Span]) -> list[Span]:
    """Return each position as a span of its own, in reading order."""
    return [Span(log, position, position + 1) for log, start, stop in spans for position in range(start, stop)]


def to_places(spans: Spans, own: str) -> tuple[tuple[str, int, int], ...]:
    """Return spans as events name them: the log `own` by an empty text."""
    return tuple(("" if span.log == own else span.log, span.start, span.stop) for span in spans)


def from_places(places: Iterable[tuple[str, int, int]], own: str) -> Spans:
    """Return the spans that `to_places` returned as places."""
    return tuple(Span(log or own, start, stop) for log, start, stop in places)
