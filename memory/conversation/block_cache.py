"""In-memory cache of blocks, by log and position."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, cast

from turnwise.errors import CorruptRecordError
from turnwise.memory.conversation.blocks import KINDS, AnyBlock, Block, decode, encode, named_files
from turnwise.memory.conversation.codec import decoded
from turnwise.memory.conversation.spans import Span, Spans, holds, overlap, subtract, union
from turnwise.memory.values.weights import BLOCK_BYTES, weight


class BlockCache:
    """Blocks by log and position. Blocks are added and never removed, so readers may share a cache.

    To bound memory, replace the cache by `only` a part of it; readers of the old cache keep all of its blocks.
    A block that was added encoded is decoded when it is first read.

    Args:
        source: names the cache, in the session's process, that the blocks come from. Caches of different sources may
            hold different blocks at the same position: a restored store writes new blocks at old positions.
    """

    def __init__(self, source: str = "") -> None:
        self._logs: dict[str, dict[int, AnyBlock | str]] = {}
        self._attachments: dict[str, list[int]] = {}
        """The positions of blocks that may name files, ascending, by log."""
        self.source = source
        self.held: Spans = (Span(source, 0, 1),) if source else ()
        """The spans held, sorted, and one empty marker span whose log is the source: see `is_of`."""
        self.size_bytes = 0
        """Estimated memory, in bytes."""

    def add(self, log: str, start: int, blocks: Sequence[Block | str]) -> None:
        """Hold `blocks`, decoded or encoded, from position `start` of `log` on."""
        self.add_spans((Span(log, start, start + len(blocks)),), blocks)

    def only(self, spans: Iterable[Span]) -> BlockCache:
        """Return a cache of the same source with the blocks of `spans` that this one holds. O(blocks returned)."""
        cache = BlockCache(self.source)
        held_spans = overlap(union(spans), self.held)
        cache.add_spans(
            held_spans,
            [self._logs[span.log][position] for span in held_spans for position in range(span.start, span.stop)],
        )
        return cache

    def over(self, log: str, blocks: Sequence[Block]) -> BlockCache:
        """Return a cache that holds this one's current blocks, and `blocks` as the log `log`."""
        cache = BlockCache()
        added: dict[int, Any] = dict(enumerate(blocks))
        cache._logs, cache._attachments = {**self._logs, log: added}, {**self._attachments, log: []}
        cache._note_attachments(log, added)
        cache.held = union(self.held, (Span(log, 0, len(blocks)),))
        return cache

    def replacing(self, blocks: Mapping[Span, Block]) -> BlockCache:
        """Return a cache that holds this one's current blocks, with others at some places. O(the logs' blocks)."""
        cache = BlockCache()
        cache._logs = {**self._logs, **{span.log: {**self._logs[span.log]} for span in blocks}}
        cache._attachments = self._attachments
        for (log, position, _), block in blocks.items():
            entries: dict[int, Any] = cache._logs[log]
            entries[position] = block
        cache.held = self.held
        return cache

    def add_spans(self, spans: Iterable[Span], blocks: Sequence[Block | str]) -> None:
        """Hold `blocks` as the positions of `spans`, in order."""
        spans, index = tuple(spans), 0
        for log, start, stop in spans:
            entries: dict[int, Any] = self._logs.setdefault(log, {})
            part = dict(enumerate(blocks[index : index + stop - start], start))
            new = [block for place, block in part.items() if place not in entries] if entries else part.values()
            self.size_bytes += BLOCK_BYTES * len(new) + sum(map(weight, new))
            entries.update(part)
            self._note_attachments(log, part)
            index += stop - start
        self.held = union(self.held, spans)

    def is_of(self, held: Spans) -> bool:
        """Return whether a cache that holds these spans has the same source, and so the same blocks."""
        return Span(self.source, 0, 1) in held

    def missing(self, spans: Iterable[Span]) -> Spans:
        """Return the parts of `spans` that the cache does not hold. O(spans), times the logarithm of those it holds."""
        spans = tuple(spans)
        return () if all(map(self._holds, spans)) else subtract(spans, self.held)

    def read(self, spans: Iterable[Span]) -> tuple[AnyBlock, ...]:
        """Return the blocks of `spans` in order.

        Raises:
            CorruptRecordError: a block is missing or cannot be decoded; names its log and position.
        """
        blocks: list[AnyBlock] = []
        for log, start, stop in spans:
            log_blocks = self._logs.get(log, {})
            for position in range(start, stop):
                block = log_blocks.get(position)
                is_decoded = block.__class__ in _CLASSES or isinstance(block, Block)  # the latter is slow
                blocks.append(cast(AnyBlock, block) if is_decoded else self._decoded(log, position))
        return tuple(blocks)

    def naming_files(self, spans: Iterable[Span]) -> dict[Span, AnyBlock]:
        """Return the blocks of `spans` that name files, by their places. O(spans and such blocks), not O(blocks)."""
        named: dict[Span, AnyBlock] = {}
        for log, start, stop in spans:
            positions = self._attachments.get(log, [])
            for position in positions[bisect_left(positions, start) : bisect_left(positions, stop)]:
                place = Span(log, position, position + 1)
                (block,) = self.read([place])
                if named_files(block):
                    named[place] = block
        return named

    def weigh(self, spans: Iterable[Span]) -> int:
        """Return the estimated memory of the blocks of `spans` that are held, in bytes. O(these blocks)."""
        logs = ((self._logs.get(span.log, {}), span) for span in spans)
        sizes = (
            BLOCK_BYTES + weight(log_blocks[position])
            for log_blocks, span in logs
            for position in range(span.start, span.stop)
            if position in log_blocks
        )
        return sum(sizes)

    def read_encoded(self, spans: Iterable[Span]) -> list[str]:
        """Return the blocks of `spans` in order, encoded."""
        texts: list[str] = []
        for log, start, stop in spans:
            log_blocks = self._logs.get(log, {})
            for position in range(start, stop):
                entry = log_blocks.get(position) or self._entry(log, position)
                texts.append(entry if isinstance(entry, str) else encode(entry))
        return texts

    def _note_attachments(self, log: str, blocks: Mapping[int, Block | str]) -> None:
        """Note which of these blocks may name files."""
        for position, block in blocks.items():
            if '"file"' in block if isinstance(block, str) else isinstance(block, Block) and named_files(block):
                positions = self._attachments.setdefault(log, [])
                if position not in positions[bisect_left(positions, position) :][:1]:
                    insort(positions, position)

    def _holds(self, span: Span) -> bool:
        after = bisect_right(self.held, span[:2], key=itemgetter(0, 1))
        return after > 0 and holds(self.held[after - 1], span)

    def _entry(self, log: str, position: int) -> AnyBlock | str:
        try:
            return self._logs[log][position]
        except KeyError:
            raise CorruptRecordError(f"block {log}:{position}", "missing") from None

    def _decoded(self, log: str, position: int) -> AnyBlock:
        entry: Any = self._entry(log, position)  # a damaged database may hold values that are not text either
        block = self._logs[log][position] = decoded(f"block {log}:{position}", partial(decode, entry))
        return block


_CLASSES = frozenset(KINDS.values())
