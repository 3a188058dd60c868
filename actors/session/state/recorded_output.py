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

    Immutable. Two blocks of an output may be equal, so blocks are told apart by identity: pass on the very objects, or
    they are stored again.
    """

    def __init__(self, blocks: Sequence[Block] = (), positions: Sequence[tuple[str, int]] = ()) -> None:
        self.blocks = tuple(blocks)
        self._positions = tuple(positions)

    @classmethod
    def read(cls, spans: Spans, cache: BlockCache) -> Self:
        """Return the output that `spans` contain; `cache` must contain all of these blocks."""
        positions = [(span.log, position) for span in spans for position in range(span.start, span.stop)]
        return cls(cache.read(spans), positions)

    @property
    def spans(self) -> Spans:
        """Where the blocks are, in reading order."""
        return join(Span(log, position, position + 1) for log, position in self._positions)

    def missing(self, blocks: Sequence[Block]) -> list[Block]:
        """Return those of `blocks` that are not stored, in order."""
        stored = set(map(id, self.blocks))
        return [block for block in blocks if id(block) not in stored]

    def with_output(self, all_blocks: Sequence[Block], new_span: Span) -> RecordedOutput:
        """Return the whole output `all_blocks`, in this order. Blocks that are not stored yet are put at `new_span`."""
        stored = {id(block): position for block, position in zip(self.blocks, self._positions, strict=True)}
        new = iter(range(new_span.start, new_span.stop))
        positions = [stored.get(id(block)) or (new_span.log, next(new)) for block in all_blocks]
        return RecordedOutput(all_blocks, positions)
