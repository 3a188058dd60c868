"""`CachedBlocks`: a cache of a session's blocks; reads from the store those that are not cached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import pydantic_core

from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import AnyBlock
from turnwise.memory.conversation.events import KINDS, Event, EventRow, RunStarted, SetsInput, StoresBlocks
from turnwise.memory.conversation.spans import Seen, Span, Spans, cut, from_places, join, overlap, size, union
from turnwise.memory.conversation.turns import Turn, TurnRecord
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.reading import steps_of_blocks
from turnwise.memory.values.collection_pauses import collection_paused
from turnwise.memory.values.corrupt_records import UnfitError
from turnwise.memory.values.ids import new_id
from turnwise.memory.values.records import lean
from turnwise.memory.values.weights import BLOCK_BYTES, PAGE_BYTES, weight

TRIM_BYTES = 1 << 20
"""How many bytes of blocks a process caches for a session before it drops those that it no longer needs."""

STEP = 1_000
"""How many blocks are decoded or encoded before other work gets the event loop."""

_PLACES: dict[type[Event] | None, dict[str, str]] = {
    cls: ({"blocks": "span"} if issubclass(cls, StoresBlocks) else {})
    | ({"blocks": "prompt"} if issubclass(cls, RunStarted) else {})
    | ({"input_blocks": "input"} if issubclass(cls, SetsInput) else {})
    for cls in KINDS.values()
    if issubclass(cls, StoresBlocks | SetsInput)
}
"""By class: the fields that have blocks, and those that have their places. Other classes have none."""

Readable = TypeVar("Readable", Event, Event | EventRow)
"""An event, decoded or perhaps as its row."""


def _missing_blocks(event: Event | EventRow, log: str) -> dict[str, Spans]:
    """Return the fields of an event that lack their blocks, with the positions of the blocks.

    Raises:
        ValueError, TypeError: the body of a row cannot be read, or has no places where they should be.
    """
    cls = KINDS.get(event.kind) if isinstance(event, EventRow) else type(event)
    places_of = _PLACES.get(cls)
    if not places_of:
        return {}
    fields = pydantic_core.from_json(event.body) if isinstance(event, EventRow) else vars(event)
    if not isinstance(fields, dict):
        raise UnfitError(f"a {type(fields).__name__} is no JSON object")
    missing: dict[str, Spans] = {}
    for name, place in places_of.items():
        if (places := fields.get(place)) and not fields.get(name):
            missing[name] = (Span(log, *places),) if place == "span" else from_places(places, log)
    if isinstance(event, EventRow):
        for spans in missing.values():
            for named, start, stop in spans:
                if not (type(named) is str and type(start) is int and type(stop) is int):
                    raise UnfitError("a place of blocks is a log and two integers")
    return missing


def _spans_in(fields: Mapping[str, Spans]) -> Spans:
    return tuple(chain.from_iterable(fields.values())) if fields else ()


def _with_blocks(event: Event | EventRow, fields: Mapping[str, Spans], cache: BlockCache) -> tuple[Any, int]:
    """Return the event with the blocks of these fields, which the cache has, and about how many bytes it has."""
    if isinstance(event, EventRow):
        if not fields:
            return event, len(event.body)
        texts = {name: cache.read_encoded(spans) for name, spans in fields.items()}
        length = sum([sum(map(len, blocks)) + BLOCK_BYTES * len(blocks) for blocks in texts.values()])
        return EventRow(*event[:-1], texts), len(event.body) + length
    count = sum(map(size, fields.values()))
    if fields:
        event = lean(event.model_copy(update={name: cache.read(spans) for name, spans in fields.items()}))
    return event, weight(event) + BLOCK_BYTES * (1 + count)


class CachedBlocks:
    """The blocks that the session's requests and open turns contain; other blocks are read from the store each time."""

    def __init__(self, session_id: str, store: SessionStore) -> None:
        self._session_id = session_id
        self._store = store
        self.cache = BlockCache(new_id())
        self._trim_at_bytes = TRIM_BYTES
        """The size at which blocks that are no longer needed are dropped next, in bytes."""

    async def load(self, spans: Spans) -> None:
        """Read the blocks of `spans` that are not cached into the cache."""
        cache = self.cache
        async for part, texts in steps_of_blocks(self._store, cache.missing(spans)):
            cache.add_spans(part, texts)

    @property
    def has_doubled(self) -> bool:
        """Whether the cache has doubled since the last `trim`.

        Who trims it then drops blocks that are no longer needed, at an amortised constant cost for each block.
        """
        return self.cache.size_bytes >= self._trim_at_bytes

    def trim(self, spans: Spans) -> None:
        """Drop all cached blocks except `spans`."""
        self.cache = self.cache.only(spans)
        self._trim_at_bytes = max(TRIM_BYTES, 2 * self.cache.size_bytes)

    def keep_only(self, spans: Spans) -> None:
        """Drop all cached blocks except `spans`; callers that have cached other blocks are sent blocks anew."""
        remaining = overlap(union(spans), self.cache.held)
        cache, self.cache = self.cache, BlockCache(new_id())
        self.cache.add_spans(remaining, cache.read_encoded(remaining))

    def turn(self, record: TurnRecord) -> Turn:
        """Return a turn whose blocks are all cached."""
        return Turn(self._session_id, record, self.cache)

    async def read_turns(self, records: Sequence[TurnRecord]) -> list[Turn]:
        """Return turns; blocks that are not cached are read for these turns only."""
        cache = await self._with(span for turn in records for span in _spans_of(turn))
        return [Turn(self._session_id, record, cache) for record in records]

    async def read_first_turns(self, records: Sequence[TurnRecord]) -> list[Turn]:
        """Return the first of these turns, until their blocks weigh `PAGE_BYTES`; at least one, if there is one."""
        places = [_spans_of(turn) for turn in records]
        cache = await self._first(places, union(*places))
        if cache.size_bytes > PAGE_BYTES:
            await asyncio.sleep(0)
            records = records[: _count_first(records, cache)]
        return [Turn(self._session_id, record, cache) for record in records]

    async def read(self, spans: Spans) -> tuple[AnyBlock, ...]:
        """Return blocks, in order; blocks that are read from the store are not added to the cache."""
        return await read_in_steps(await self._with(spans), spans)

    async def read_back(
        self, records: Sequence[TurnRecord]
    ) -> AsyncIterator[tuple[TurnRecord, tuple[AnyBlock, ...], tuple[AnyBlock, ...]]]:
        """Yield turns, the last one first, with the blocks of their prompt and output.

        Reads the blocks of all turns at once; if they weigh more than `PAGE_BYTES`, reads the blocks of each turn
        before it yields the turn.
        """
        cache = self.cache
        if cache.missing(needed := union(*(part for turn in records for part in (turn.prompt, turn.output)))):
            texts = await self._store.blocks(needed)
            cache = BlockCache(cache.source)
            cache.add_spans(cut(needed, len(texts))[0], texts)
        for turn in reversed(records):
            prompt, output = join(turn.prompt), join(turn.output)
            source = await self._with((*prompt, *output)) if cache.missing((*prompt, *output)) else cache
            yield turn, await read_in_steps(source, prompt), await read_in_steps(source, output)

    async def read_events(self, events: Sequence[Event], log: str) -> Sequence[Event]:
        """Return events with the blocks that they name and lack, from the cache or by one read of the store.

        Args:
            log: the session's own log.
        """
        complete: list[Event] = []
        while len(complete) < len(events):
            complete += await self.read_first_events(events[len(complete) :], log)
        return complete

    async def read_first_events(self, events: Sequence[Readable], log: str) -> list[Readable]:
        """Return the first of these events, with their blocks, until they weigh `PAGE_BYTES`; at least one.

        Args:
            log: the session's own log.

        Raises:
            ValueError, TypeError: the body of a row cannot be read. Decode the rows to learn which.
        """
        with collection_paused(len(events)):
            missing: list[dict[str, Spans]] = [_missing_blocks(event, log) for event in events]
            places = [*map(_spans_in, missing)]
            needed = union(*places)
        cache = await self._first(places, needed) if needed else self.cache
        is_whole = not (needed and cache.missing(needed))
        complete: list[Readable] = []
        remaining_bytes = PAGE_BYTES
        with collection_paused(len(events)):
            for event, named, spans in zip(events, missing, places, strict=True):
                if complete and (remaining_bytes <= 0 or not (is_whole or not cache.missing(spans))):
                    break
                read, event_bytes = _with_blocks(event, named, cache)
                complete.append(read)
                remaining_bytes -= event_bytes
        return complete

    async def _first(self, groups: Sequence[Sequence[Span]], needed: Spans) -> BlockCache:
        """Return a cache that contains the blocks of the first group, and of others until it weighs `PAGE_BYTES`.

        Args:
            needed: the union of the groups.
        """
        if not self.cache.missing(needed):
            return self.cache
        cache = BlockCache(self.cache.source)
        async for part, texts in steps_of_blocks(self._store, needed):
            cache.add_spans(part, texts)
            if cache.size_bytes > PAGE_BYTES:
                break
        async for part, texts in steps_of_blocks(self._store, cache.missing(union(groups[0]))):
            cache.add_spans(part, texts)
        return cache

    async def _with(self, spans: Iterable[Span]) -> BlockCache:
        """Return a cache that contains these blocks: `self.cache`, or a temporary one filled from the store."""
        if not self.cache.missing(spans := tuple(spans)):
            return self.cache
        cache = BlockCache(self.cache.source)
        async for part, texts in steps_of_blocks(self._store, union(spans)):
            cache.add_spans(part, texts)
        return cache


async def read_in_steps(cache: BlockCache, spans: Spans) -> tuple[AnyBlock, ...]:
    """Return cached blocks, in order. Yields to the event loop now and then: decoding a block takes 10 µs."""
    if size(spans) <= STEP:
        return cache.read(spans)
    blocks: list[AnyBlock] = []
    remaining = join(spans)
    while remaining:
        part, remaining = cut(remaining, STEP)
        blocks += cache.read(part)
        await asyncio.sleep(0)
    return tuple(blocks)


def _count_first(records: Sequence[TurnRecord], cache: BlockCache) -> int:
    """Return how many of the first turns have cached blocks and weigh at most `PAGE_BYTES` together.

    The first turn always counts, with the weight of the blocks that it added; its snapshot must be cached.
    """
    covered, total = Seen(), 0
    for count, turn in enumerate(records):
        if count and cache.missing(_spans_of(turn)):
            return count
        new = [part for span in _spans_of(turn) for part in covered.take(span)]
        total += cache.weigh(new if count else union(turn.prompt, turn.output))
        if count and total > PAGE_BYTES:
            return count
    return len(records)


def _spans_of(turn: TurnRecord) -> Spans:
    """Return the spans of all blocks that a turn shows."""
    return (*turn.prompt, *turn.spans)
