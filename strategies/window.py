"""`Window`: the blocks of the next request, and `TokenBudget`: how many tokens it may take."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from turnwise.errors import ConfigError, WindowOverflowError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import (
    AnyBlock,
    Block,
    CacheCheckpoint,
    Document,
    Image,
    Summary,
    System,
    ToolResult,
    ToolUse,
    Unknown,
    User,
)
from turnwise.memory.conversation.calls.call_pairs import CallPairs
from turnwise.memory.conversation.spans import Span, Spans, join, size
from turnwise.memory.tokens.counter import TokenCounter
from turnwise.memory.tokens.index import TokenIndex
from turnwise.strategies.ranges import Range, Ranges, merge


@dataclass(frozen=True)
class TokenBudget:
    """How many tokens a request may take."""

    max_tokens: int
    """The model's window less the tokens reserved for its answer."""
    overhead: int = 0
    """The tokens of each request besides the window's blocks: tools, and instructions that are not blocks."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError("max_tokens", self.max_tokens, "must be 1 or more")
        if self.overhead < 0:
            raise ConfigError("overhead", self.overhead, "must be 0 or more")


_BLOCKS_PER_READ = 16


class Window:
    """A read-only view of the blocks of the next request, in order.

    Its creation is O(spans) if the index has counted their blocks; each method says its cost. Blocks are read and
    decoded when they are needed. Two kinds of blocks are special: of the system prompts only the last one is sent, and
    a summary stands for removed blocks, so it is removed only if a new summary includes it. All other blocks belong to
    exchanges.
    """

    def __init__(
        self,
        spans: Spans,
        cache: BlockCache,
        index: TokenIndex,
        *,
        sends_system: bool = True,
        newest_turn: int | None = None,
        newest_output: int | None = None,
    ) -> None:
        index.cover(spans, cache)
        self._newest_turn = size(spans) if newest_turn is None else newest_turn
        """The position at which the newest turn's own blocks begin, if known. An exchange begins with the turn's first
        prompt, even if earlier prompts were never answered."""
        self._newest_output = size(spans) if newest_output is None else newest_output
        """The position at which the newest turn's output begins, if known. Prompts in it have joined its run, and begin
        no exchange, since the output of a turn stays whole while it is the newest. They are never its first block."""
        self._sends_system = sends_system
        """Whether the conversation's own system prompt is sent. An engine's middleware may replace it."""
        self._spans = spans
        self._cache = cache
        self._index = index
        self._ends = list(accumulate(map(size, ([span] for span in spans))))
        self._totals = [0, *accumulate(self._sum([span]) for span in spans)]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def spans(self) -> Spans:
        """The spans of the blocks in their logs."""
        return self._spans

    @property
    def counter(self) -> TokenCounter:
        """The counter of the tokens."""
        return self._index.counter

    def block(self, position: int) -> AnyBlock:
        """Return the block at this position. O(log spans)."""
        number, place = self._place(position)
        (block,) = self._cache.read([Span(self._spans[number].log, place, place + 1)])
        return block

    def blocks(self, ranges: Iterable[Range]) -> tuple[AnyBlock, ...]:
        """Return the blocks of some ranges. O(their number)."""
        return self._cache.read(self.spans_of(ranges))

    def read(self, spans: Spans) -> tuple[AnyBlock, ...]:
        """Return blocks by their spans in logs. O(number of blocks)."""
        return self._cache.read(spans)

    def spans_of(self, ranges: Iterable[Range]) -> Spans:
        """Return ranges as spans of logs. O(spans that they touch)."""
        return join(span for part in ranges for span in self._cut(part))

    # Tokens

    def tokens(self, start: int = 0, stop: int | None = None) -> int:
        """Return the tokens of the blocks from `start` to `stop`, without system prompts. O(log spans)."""
        return self._tokens_before(len(self) if stop is None else stop) - self._tokens_before(start)

    @cached_property
    def system_tokens(self) -> int:
        """The tokens of the system prompt."""
        if self.system is None or not self._sends_system:
            return 0
        return self._index.sum(self.spans_of([Range(self.system, self.system + 1)]))

    @property
    def total(self) -> int:
        """The tokens of everything that is sent."""
        return self.system_tokens + self.tokens()

    # System prompts and summaries

    @cached_property
    def system(self) -> int | None:
        """The position of the effective (last) system prompt; None if there is none. O(spans)."""
        last = self._index.last_system(self._spans)
        if last is None:
            return None
        log, place = last
        holds = (
            number for number, span in enumerate(self._spans) if span.log == log and span.start <= place < span.stop
        )
        *_, number = holds
        return self._ends[number] - (self._spans[number].stop - place)

    @cached_property
    def summaries(self) -> tuple[int, ...]:
        """The positions of the summaries. O(spans + summaries)."""
        return tuple(self.places(Summary))

    def places(self, kind: type[Block], part: Range | None = None) -> Iterator[int]:
        """Yield the positions of the blocks of a kind, `System` or `Summary`. O(spans + results)."""
        position = part.start if part else 0
        for span in self._cut(part or Range(0, len(self))):
            yield from (position + place - span.start for place in self._index.places(span, kind))
            position += span.stop - span.start

    def summary_tokens(self, stop: int | None = None) -> int:
        """Return the tokens of the summaries before `stop`."""
        before = [Range(position, position + 1) for position in self.summaries if stop is None or position < stop]
        return self._index.sum(self.spans_of(before))

    # Exchanges

    def exchanges(self, before: int | None = None) -> Iterator[Range]:
        """Yield the exchanges, the newest first; with `before`, the start of an exchange, only those before it.

        An exchange consists of one or more consecutive prompts of the user, and of all that follows up to the next
        prompt: answers, tool calls and results. If the oldest exchanges are removed, the rest begins with the user, and
        each result still has its call. The exchanges cover the whole window: blocks of the model before any prompt are
        the last exchange. Lazy: O(blocks of the yielded exchanges, and a few more).
        """
        stop = len(self) if before is None else before
        begins: int | None = None
        has_content = False
        unmatched: set[str] = set()  # results whose calls come, since the blocks are read from behind
        for position, block in self._backwards(stop):
            if isinstance(block, System | Summary | CacheCheckpoint | Unknown):
                continue
            if block.role == "user":
                if begins is not None and has_content and not unmatched and position < self._newest_turn <= begins:
                    yield Range(self._newest_turn, stop)
                    stop, has_content = self._newest_turn, False
                begins, has_content = position, has_content or _has_content(block)
                continue
            if begins is not None and begins <= self._newest_output and has_content and not unmatched:
                start = self._newest_turn if position < self._newest_turn <= begins else begins
                yield Range(start, stop)
                stop = start
            begins, has_content = None, False
            if isinstance(block, ToolResult):
                unmatched.add(block.call_id)
            elif isinstance(block, ToolUse):
                unmatched.discard(block.call_id)
        if stop:
            yield Range(0, stop)

    def end_of_oldest(self, count: int) -> int:
        """Return where the `count` oldest exchanges with a prompt end, or where the newest begins, if that is earlier.

        O(blocks of these exchanges and of the newest).
        """
        stop = self.newest.start
        begins: int | None = None
        is_new = True
        pairs: CallPairs[int] = CallPairs()
        for index in range(stop):
            block = self.block(index)
            if isinstance(block, System | Summary | CacheCheckpoint | Unknown):
                continue
            if block.role == "user":
                begins = index if begins is None else begins
                if is_new and _has_content(block) and not pairs.open:
                    is_new, count = False, count - 1
                    if count < 0:
                        return begins
                continue
            begins, is_new = None, True
            pairs.read(block, index)
        return stop

    @cached_property
    def newest(self) -> Range:
        """The newest exchange, which no strategy removes."""
        return next(self.exchanges(), Range(0, 0))

    # What remains after removing the oldest blocks

    def without(self, part: Range, *kinds: type[Block]) -> Ranges:
        """Return a range without the blocks of these kinds, which are `System` or `Summary`."""
        edges = [part.start - 1, *sorted(position for kind in kinds for position in self.places(kind, part)), part.stop]
        return tuple(Range(position + 1, until) for position, until in pairwise(edges) if position + 1 < until)

    def kept_from(self, cut: int, *, pinned: bool = True) -> Ranges:
        """Return what stays if all before `cut` is removed: the rest without system prompts, and pinned summaries."""
        summaries = [Range(position, position + 1) for position in self.summaries if position < cut] if pinned else []
        return merge([*summaries, *self.without(Range(cut, len(self)), System)])

    def tokens_from(self, cut: int, budget: TokenBudget) -> int:
        """Return the tokens of a request if everything removable before `cut` is removed."""
        return budget.overhead + self.system_tokens + self.summary_tokens(cut) + self.tokens(cut)

    def taken(self, budget: TokenBudget) -> int:
        """Return the tokens of a request with the whole window."""
        return budget.overhead + self.total

    def overflow(self, budget: TokenBudget) -> WindowOverflowError:
        """Return the error that says which part cannot fit."""
        summary = self.summary_tokens()
        newest = self.tokens(*self.newest) - self.summary_tokens() + self.summary_tokens(self.newest.start)
        overhead = budget.overhead + self.system_tokens
        return WindowOverflowError(budget.max_tokens, overhead + summary + newest, overhead, summary, newest)

    # Positions

    def _backwards(self, stop: int) -> Iterator[tuple[int, AnyBlock]]:
        """Yield the blocks before `stop` and their positions, the last first. Blocks are read a few at a time."""
        for end in range(stop, 0, -_BLOCKS_PER_READ):
            start = max(end - _BLOCKS_PER_READ, 0)
            yield from zip(range(end - 1, start - 1, -1), reversed(self.blocks([Range(start, end)])), strict=True)

    def _place(self, position: int) -> tuple[int, int]:
        """Return the number of the span that has the block, and the block's position in its log."""
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} is outside a window of {len(self)} blocks")
        number = bisect_right(self._ends, position)
        return number, self._spans[number].stop - (self._ends[number] - position)

    def _cut(self, part: Range) -> Iterator[Span]:
        position, stop = max(part.start, 0), min(part.stop, len(self))
        while position < stop:
            number, place = self._place(position)
            more = min(self._ends[number], stop) - position
            yield Span(self._spans[number].log, place, place + more)
            position += more

    def _sum(self, spans: Sequence[Span]) -> int:
        return self._index.sum(spans) - self._index.sum(spans, System)

    def _tokens_before(self, position: int) -> int:
        number = bisect_right(self._ends, position)
        if number == len(self._spans):
            return self._totals[-1]
        span = self._spans[number]
        part = Span(span.log, span.start, span.stop - (self._ends[number] - position))
        return self._totals[number] + self._sum([part])


def _has_content(block: Block) -> bool:
    """Return whether every provider accepts the block as a message of the user."""
    return isinstance(block, Image | Document) or (isinstance(block, User) and bool(block.text.strip()))
