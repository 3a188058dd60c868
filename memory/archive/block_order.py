"""Checks the order of an archive's blocks: each tool call has its result, and no summary replaces itself."""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from turnwise.memory.conversation.blocks import (
    Block,
    CacheCheckpoint,
    Summary,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
)
from turnwise.memory.conversation.calls.call_pairs import CallPairs
from turnwise.memory.conversation.spans import Seen, Span, Spans, begins_with, cut, join, size

AT_ONCE = 10_000
"""How many blocks or spans are checked before the event loop may do other work."""

_SPLIT = "it has one part of a pair that belongs together: a call and its result, or a thought and what follows it"

_Code = Literal["apart", "asks", "says", "blank", "thinks", "calls", "answers"]


@dataclass(slots=True)
class _Reader:
    """Reads blocks in order and finds what a provider would refuse."""

    calls: CallPairs[int] = field(default_factory=CallPairs)
    """The calls, each with its position."""
    thoughts: list[int] = field(default_factory=list)
    """The positions of the thoughts that no text and no call follows yet."""
    is_answering: bool = False
    """Whether some calls of the message have their results and others do not."""
    pairs: list[tuple[int, int]] = field(default_factory=list)
    """Pairs of positions: a call and its result, or a thought and the text or call that follows it."""

    @property
    def is_complete(self) -> bool:
        return not self.calls.open and not self.thoughts

    def read(self, position: int, code: _Code, call_id: str | None) -> str | None:
        """Read the block at a position. Return why it must not follow the blocks before it; None if it may."""
        reason: str | None = None
        if code == "answers":
            call_at = self.calls.answer(call_id or "")
            if call_at is None:
                reason = f"the result of call {call_id!r} follows no such call"
            else:
                self.pairs.append((call_at, position))
            self.is_answering = bool(self.calls.open)
        elif code == "asks" or (code != "apart" and self.is_answering):
            reason = self.why_incomplete()
        elif code == "calls" and (not call_id or call_id in self.calls.open):
            reason = f"a call has no name, no id, or the id of another call: {call_id!r}"
        if code == "calls":
            self.calls.call(call_id or "", position)
        if code in ("says", "calls"):
            self.pairs += ((thought, position) for thought in self.thoughts)
            self.thoughts = []
        elif code == "thinks":
            self.thoughts.append(position)
        return reason

    def why_incomplete(self) -> str | None:
        """Return why no prompt may follow the blocks that were read; None if one may."""
        if self.calls.open:
            return f"call {min(self.calls.open)!r} has no result"
        return "thoughts lead to no text and no call" if self.thoughts else None


class Order:
    """Checks the order of the blocks of a log, and of conversations made of spans of it.

    A position is complete if every call before it has its result and something follows every thought. A span between
    two complete positions with nothing wrong in it is checked in one step.

    A call and its result must be a pair in every conversation. One turn must have added both, and so it is with a
    thought and what follows it. So a conversation stays valid when a turn is forgotten, or when the blocks that a
    summary replaces are shown instead of it.
    """

    def __init__(self) -> None:
        self._codes: list[_Code] = []
        self._call_ids: dict[int, str] = {}
        self._reader = _Reader()
        self._flawed = array("q")
        """The positions of wrong blocks, when the log is read from its beginning. Reading starts anew after each."""
        self._last_complete = array("q", [0])
        """By position: the last complete position up to it."""
        self._run_blocks_before = array("q", [0])
        """By position: how many blocks before it are of kinds that only a run adds."""
        self._log_pairs: list[tuple[int, int]] = []
        """The pairs of the log, when it is read from its beginning."""
        self._pairs: dict[int, int] = {}
        """The pairs of calls and results of the checked conversations, in both directions."""
        self._thoughts: set[tuple[int, int]] = set()
        """The pairs of thoughts and what follows them. If that was removed, what comes later follows them."""
        self._read = Seen()
        """The positions that were checked in one step."""
        self._checked: Spans = ()
        self._steps = 0
        """How many blocks were checked one by one."""
        self._spans = 0
        """How many spans were checked since the event loop last did other work."""

    def add(self, block: Block) -> None:
        """Add the next block of the log."""
        (code, call_id), position = _code(block), len(self._codes)
        self._codes.append(code)
        if call_id is not None:
            self._call_ids[position] = call_id
        if self._reader.read(position, code, call_id):
            self._flawed.append(position)
            self._reader = _Reader()
        self._log_pairs += self._reader.pairs
        self._reader.pairs = []
        is_of_run = isinstance(block, Summary)  # `checked_block` refuses recalled blocks, the other such kind
        self._run_blocks_before.append(self._run_blocks_before[position] + is_of_run)
        self._last_complete.append(position + 1 if self._reader.is_complete else self._last_complete[position])

    async def check(self, spans: Spans, *, is_pending: bool = False) -> str | None:
        """Return why a conversation of these blocks cannot be sent to a model with a new prompt; None if it can.

        If it begins with the spans of the previous check, only the blocks after them are checked.

        Args:
            is_pending: whether it waits for further prompts, which may be the results of calls.
        """
        rest = cut(spans, size(self._checked))[1] if begins_with(spans, self._checked) else spans
        reader = _Reader()
        self._spans += len(spans)
        if self._spans >= AT_ONCE:
            self._spans = 0
            await asyncio.sleep(0)
        for _, position, stop in rest:
            while position < stop:
                if reader.is_complete and (done := self._complete_up_to(position, stop)) > position:
                    self._read.add(Span("", position, done))
                    position = done  # noqa: PLW2901
                    continue
                if reason := reader.read(position, self._codes[position], self._call_ids.get(position)):
                    return reason
                position += 1  # noqa: PLW2901
                self._steps += 1
                if self._steps % AT_ONCE == 0:
                    await asyncio.sleep(0)
        if self._steps > 1_000_000 + 1000 * len(self._codes):
            return "its turns share too many spans to be checked"
        if not is_pending and (reason := reader.why_incomplete()):
            return reason
        if self._note(reader.pairs):
            return _SPLIT
        self._checked = join(spans)
        return None

    async def check_pairs(self, owners: Sequence[tuple[Span, int]]) -> tuple[int, str] | None:
        """Return the line of a turn that added only one part of a pair, and what is wrong; None if all is right.

        Args:
            owners: the blocks that each turn added, sorted, with the turn's line. Blocks that no turn added count as
                added by line 0.
        """
        starts = [span.start for span, _ in owners]

        def line_of(position: int) -> int:
            number = bisect_right(starts, position) - 1
            return owners[number][1] if number >= 0 and position < owners[number][0].stop else 0

        checked_pairs = [pair for pair in self._log_pairs if self._read.common(Span("", pair[0], pair[0] + 1))]
        if wrong_pair := self._note(checked_pairs):
            return max(map(line_of, wrong_pair)), _SPLIT
        for number, (before, index) in enumerate((*self._pairs.items(), *self._thoughts)):
            if line_of(before) != line_of(index):
                return max(line_of(before), line_of(index)), _SPLIT
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return None

    def _note(self, pairs: Iterable[tuple[int, int]]) -> tuple[int, int] | None:
        """Add pairs. Return the first one that contradicts an earlier one; None if none does."""
        for before, position in pairs:
            if self._codes[position] != "answers":
                self._thoughts.add((before, position))
            elif (
                self._pairs.setdefault(before, position) != position
                or self._pairs.setdefault(position, before) != before
            ):
                return before, position
        return None

    def is_prompt(self, spans: Spans) -> bool:
        """Return whether a caller may add blocks of these kinds."""
        return all(self._run_blocks_before[stop] == self._run_blocks_before[start] for _, start, stop in spans)

    def _complete_up_to(self, position: int, stop: int) -> int:
        """Return the last complete position up to `stop` with nothing wrong before it; `position` if there is none."""
        if self._last_complete[position] < position:
            return position
        flaw_number = bisect_left(self._flawed, position)
        return self._last_complete[min([stop, *self._flawed[flaw_number : flaw_number + 1]])]


def _code(block: Block) -> tuple[_Code, str | None]:
    """Return what the block does, and the id of a call or a result; of a call without a name, no id."""
    match block:
        case System() | CacheCheckpoint() | Unknown():
            return "apart", None
        case ToolResult():
            return "answers", block.call_id
        case ToolUse():
            return "calls", block.call_id if block.name else ""
        case Thinking():
            return "thinks", None
        case Text():
            return "says" if block.text.strip() else "blank", None
        case _:
            return "blank" if block.role == "assistant" else "asks", None


class References:
    """The blocks that each summary of a log replaces."""

    def __init__(self) -> None:
        self._places: list[int] = []
        self._replaced: list[list[tuple[int, int]]] = []
        self._replaced_spans: list[Spans] = []
        self._lines: list[int] = []

    def add(self, position: int, summary: Summary, line: int) -> None:
        """Add the summary at a position, which is above those added before."""
        self._places.append(position)
        folded = ((place, place + 1) for _, place in summary.folded)
        self._replaced.append([*((start, stop) for _, start, stop in summary.of), *folded])
        self._replaced_spans.append(tuple(Span(*span) for span in summary.of))
        self._lines.append(line)

    def __iter__(self) -> Iterator[tuple[int, Spans]]:
        """Yield the line of each summary, and the spans that it replaces."""
        yield from zip(self._lines, self._replaced_spans, strict=True)

    async def circle(self) -> int | None:
        """Return the line of a summary that replaces itself, directly or through other summaries; None if none does.

        Visits each summary once: O(n log n).
        """
        next_new = list(range(len(self._places) + 1))

        def new_from(number: int) -> int:
            """Return the first summary from this one on that was not visited."""
            while next_new[number] != number:
                next_new[number] = next_new[next_new[number]]
                number = next_new[number]
            return number

        within: list[int] = []
        """The summaries on the current path, sorted."""
        for first in range(len(self._places)):
            path = [first] if new_from(first) == first else []
            ranges_left: list[list[tuple[int, int]]] = []
            while path:
                number = path[-1]
                if next_new[number] == number:
                    next_new[number] = number + 1
                    insort(within, number)
                    ranges_left.append(self._ranges(number))
                    if any(_has_one(within, start, stop) for start, stop in ranges_left[-1]):
                        return self._lines[number]
                    await asyncio.sleep(0)
                ranges = ranges_left[-1]
                while ranges and new_from(ranges[-1][0]) >= ranges[-1][1]:
                    ranges.pop()
                if ranges:
                    path.append(new_from(ranges[-1][0]))
                else:
                    del within[bisect_left(within, path.pop())], ranges_left[-1]
        return None

    def _ranges(self, number: int) -> list[tuple[int, int]]:
        """Return the numbers of the summaries that a summary replaces, as ranges."""
        places = self._places
        return [(bisect_left(places, start), bisect_left(places, stop)) for start, stop in self._replaced[number]]


def _has_one(numbers: list[int], start: int, stop: int) -> bool:
    index = bisect_left(numbers, start)
    return index < len(numbers) and numbers[index] < stop
