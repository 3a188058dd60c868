"""`CachedBlocks`: a cache of a session's blocks; reads from the store those that are not cached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import AnyBlock
from turnwise.memory.conversation.events import Adding, Continuing, Event, Places, RunStarted
from turnwise.memory.conversation.ids import new_id
from turnwise.memory.conversation.records import with_fields
from turnwise.memory.conversation.spans import Span, Spans, from_places, overlap, union
from turnwise.memory.conversation.turns import Turn, TurnRecord
from turnwise.memory.stores.base import SessionStore

TRIM_BYTES = 1 << 20
"""How many bytes of blocks a process caches for a session before it drops those that it no longer needs."""

_WITH_BLOCKS = (Adding, Continuing)
"""The events that have blocks."""


def _missing_blocks(event: Event, log: str) -> dict[str, Spans]:
    """Return the fields of an event that lack their blocks, with the positions of the blocks."""
    if not isinstance(event, _WITH_BLOCKS):
        return {}
    held: dict[str, Places] = {}
    if isinstance(event, Adding) and event.span and not event.blocks:
        held["blocks"] = (("", *event.span),)
    if isinstance(event, RunStarted) and not event.blocks:
        held["blocks"] = event.prompt
    if isinstance(event, Continuing) and not event.input_blocks:
        held["input_blocks"] = event.input or ()
    return {name: from_places(places, log) for name, places in held.items() if places}


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
        if missing := self.cache.missing(spans):
            self.cache.add_spans(missing, await self._store.blocks(missing))

    def trim(self, spans: Spans) -> bool:
        """Drop all cached blocks except `spans`, if the cache has doubled since the last time; return whether it had.

        So blocks that are no longer needed leave memory, at an amortised constant cost for each block.
        """
        if self.cache.size_bytes < self._trim_at_bytes:
            return False
        self.cache = self.cache.only(spans)
        self._trim_at_bytes = max(TRIM_BYTES, 2 * self.cache.size_bytes)
        return True

    def keep_only(self, spans: Spans) -> None:
        """Drop all cached blocks except `spans`, for good: callers that have cached others are sent blocks anew."""
        kept = overlap(union(spans), self.cache.held)
        cache, self.cache = self.cache, BlockCache(new_id())
        self.cache.add_spans(kept, cache.read_encoded(kept))

    def turn(self, record: TurnRecord) -> Turn:
        """Return a turn whose blocks are all cached."""
        return Turn(self._session_id, record, self.cache)

    async def read_turns(self, records: Sequence[TurnRecord]) -> list[Turn]:
        """Return turns; blocks that are not cached are read for these turns only."""
        spans = union(*(part for turn in records for part in (turn.prompt, turn.spans)))
        cache = await self._with(spans)
        return [Turn(self._session_id, record, cache) for record in records]

    async def read(self, spans: Spans) -> tuple[AnyBlock, ...]:
        """Return blocks, in order; blocks that are read from the store are not added to the cache."""
        return (await self._with(spans)).read(spans)

    async def read_events(self, events: Sequence[Event], log: str) -> Sequence[Event]:
        """Return events with the blocks that they name and lack, from the cache or by one read of the store.

        Args:
            log: the session's own log.
        """
        missing = [(event, fields) for event in events if (fields := _missing_blocks(event, log))]
        if not missing:
            return events
        cache = await self._with([span for _, fields in missing for spans in fields.values() for span in spans])
        whole = {
            event.seq: with_fields(event, {name: cache.read(spans) for name, spans in fields.items()})
            for event, fields in missing
        }
        return [whole.get(event.seq, event) for event in events]

    async def _with(self, spans: Iterable[Span]) -> BlockCache:
        """Return a cache that contains these blocks: `self.cache`, or a temporary one filled from the store."""
        if not self.cache.missing(spans):
            return self.cache
        cache, wanted = BlockCache(self.cache.source), union(spans)
        cache.add_spans(wanted, await self._store.blocks(wanted))
        return cache
