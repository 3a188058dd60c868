"""`RecordedOutput`: the part of a run's output that is already stored in the session's log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import Block
from turnwise.memory.conversation.spans import Span, Spans, join


class RecordedOutput:
    """Blocks in reading order, with their positions in the log.

    Parallel tools end in any order, so reading order and log order may differ.

    Immutable. Blocks are compared by identity, so a block that was stored is never stored again.
    """

    def __init__(self, blocks: Sequence[Block] = (), places: Sequence[tuple[str, int]] = ()) -> None:
        self.blocks = tuple(blocks)
        self._places = tuple(places)

    @classmethod
    def read(cls, spans: Spans, cache: BlockCache) -> Self:
        """Return the output that `spans` contain; `cache` must contain all of these blocks."""
        places = [(span.log, position) for span in spans for position in range(span.start, span.stop)]
        return cls(cache.read(spans), places)

    @property
    def spans(self) -> Spans:
        """Where the blocks are, in reading order."""
        return join(Span(log, position, position + 1) for log, position in self._places)

    def missing(self, blocks: Sequence[Block]) -> list[Block]:
        """Return those of `blocks` that are not stored, in order."""
        stored = set(map(id, self.blocks))
        return [block for block in blocks if id(block) not in stored]

    def grown(self, blocks: Sequence[Block], span: Span) -> RecordedOutput:
        """Return an output of `blocks`, in this order; those that were not stored yet get the positions of `span`."""
        stored_places = {id(block): place for block, place in zip(self.blocks, self._places, strict=True)}
        new = iter(range(span.start, span.stop))
        return RecordedOutput(blocks, [stored_places.get(id(block)) or (span.log, next(new)) for block in blocks])
