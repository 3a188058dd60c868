"""The order of an archive's blocks: no turn hands on a call without its result, no summary stands for itself."""

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
from turnwise.memory.conversation.spans import Seen, Span, Spans, begins_with, cut, join, size

AT_ONCE = 10_000
"""How many blocks are read, or spans looked at, before the event loop goes on with other things."""

_Code = Literal["apart", "asks", "says", "blank", "thinks", "calls", "answers"]


@dataclass(slots=True)
class _Reader:
    """Reads blocks in order, as a provider does, and says what it would refuse."""

    calls: dict[str, int] = field(default_factory=dict)
    """The places of those without a result so far, by id."""
    thoughts: list[int] = field(default_factory=list)
    """The places of those that have led to nothing so far."""
    is_answering: bool = False
    """Whether some of the calls of the message have their results."""
    pairs: list[tuple[int, int]] = field(default_factory=list)
    """The places of calls with those of their results, and of thoughts with those of what they led to."""

    @property
    def is_done(self) -> bool:
        return not self.calls and not self.thoughts

    def read(self, at: int, code: _Code, call_id: str | None) -> str | None:
        """Return why the next block, of this place, cannot stand here; None if it can."""
        why: str | None = None
        if code == "answers":
            call_at = self.calls.pop(call_id or "", None)
            if call_at is None:
                why = f"the result of call {call_id!r} follows no such call"
            else:
                self.pairs.append((call_at, at))
            self.is_answering = bool(self.calls)
        elif code == "asks" or (code != "apart" and self.is_answering):
            why = self.why_not_done()
        elif code == "calls" and (not call_id or call_id in self.calls):
            why = f"a call has no id, no name, or the id of another: {call_id!r}"
        if code == "calls":
            self.calls[call_id or ""] = at
        if code in ("says", "calls"):
            self.pairs += ((thought, at) for thought in self.thoughts)
            self.thoughts = []
        elif code == "thinks":
            self.thoughts.append(at)
        return why

    def why_not_done(self) -> str | None:
        """Return why the conversation cannot go on with a prompt here; None if it can."""
        if self.calls:
            return f"call {min(self.calls)!r} has no result"
        return "thoughts lead to no text and no call" if self.thoughts else None


class Order:
    """The order of the blocks of a log, and of spans of it.

    A span that begins and ends where nothing is open, and in which nothing is refused, is read in one step.

    What was read as a pair, a call and its result or a thought and what it led to, is one wherever it is read, and of
    one turn: so the rest is valid when a turn is forgotten or a summary gives way to what it stands for.
    """

    def __init__(self) -> None:
        self._codes: list[_Code] = []
        self._call_ids: dict[int, str] = {}
        self._reader = _Reader()
        self._wrong = array("q")
        """The places at which the log, read from the beginning, goes wrong, and is begun anew."""
        self._done = array("q", [0])
        """For each place the last one, up to it, at which nothing is open."""
        self._of_runs = array("q", [0])
        """For each place how many blocks before it are such as only a run adds."""
        self._log_pairs: list[tuple[int, int]] = []
        """Those of the log as it was read from the beginning."""
        self._pairs: dict[int, int] = {}
        """Those of what was checked, both ways for calls and results."""
        self._read = Seen()
        """What of the log was checked in one step."""
        self._checked: Spans = ()
        self._steps = 0
        """How many blocks were read one by one."""
        self._spans = 0
        """How many spans were looked at since the event loop went on with other things."""

    def add(self, block: Block) -> None:
        """Take the next block of the log."""
        code, at = _code(block), len(self._codes)
        self._codes.append(code)
        call_id = block.call_id if isinstance(block, ToolUse | ToolResult) else None
        if isinstance(block, ToolUse) and not block.name:
            call_id = ""
        if call_id is not None:
            self._call_ids[at] = call_id
        if self._reader.read(at, code, call_id):
            self._wrong.append(at)
            self._reader = _Reader()
        self._log_pairs += self._reader.pairs
        self._reader.pairs = []
        is_of_run = isinstance(block, Summary | Thinking | ToolUse | ToolResult)
        self._of_runs.append(self._of_runs[at] + is_of_run)
        self._done.append(at + 1 if self._reader.is_done else self._done[at])

    async def check(self, spans: Spans) -> str | None:
        """Return why a conversation of these blocks cannot go on with a prompt; None if it can.

        What begins with the spans that were checked before costs what is behind them.
        """
        rest = cut(spans, size(self._checked))[1] if begins_with(spans, self._checked) else spans
        reader = _Reader()
        self._spans += len(spans)
        if self._spans >= AT_ONCE:
            self._spans = 0
            await asyncio.sleep(0)
        for _, at, stop in rest:
            while at < stop:
                if reader.is_done and (done := self._done_by(at, stop)) > at:
                    self._read.add(Span("", at, done))
                    at = done  # noqa: PLW2901
                    continue
                if why := reader.read(at, self._codes[at], self._call_ids.get(at)):
                    return why
                at += 1  # noqa: PLW2901
                self._steps += 1
                if self._steps % AT_ONCE == 0:
                    await asyncio.sleep(0)
        if self._steps > 1_000_000 + 1000 * len(self._codes):
            return "its turns are too tangled to be checked"
        if why := reader.why_not_done() or self._note(reader.pairs):
            return why
        self._checked = join(spans)
        return None

    async def check_pairs(self, owners: Sequence[tuple[Span, int]]) -> tuple[int, str] | None:
        """Return the line of a turn that has a part of a pair (0 if no turn added any), and why that cannot be.

        Args:
            owners: the blocks that each turn added, sorted, with the turn's line.
        """
        starts = [span.start for span, _ in owners]

        def line_of(at: int) -> int:
            number = bisect_right(starts, at) - 1
            return owners[number][1] if number >= 0 and at < owners[number][0].stop else 0

        read = [pair for pair in self._log_pairs if self._read.common(Span("", pair[0], pair[0] + 1))]
        if why := self._note(read):
            return max(map(line_of, read[-1])), why
        for number, (before, at) in enumerate(self._pairs.items()):
            if line_of(before) != line_of(at):
                return max(line_of(before), line_of(at)), "it has a part of what belongs together"
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return None

    def _note(self, pairs: Iterable[tuple[int, int]]) -> str | None:
        """Return why pairs do not go with those that were read before; None if they do."""
        for before, at in pairs:
            if self._pairs.setdefault(before, at) != at:
                return "it has a part of what belongs together"
            if self._codes[at] == "answers" and self._pairs.setdefault(at, before) != before:
                return "it has a part of what belongs together"
        return None

    def is_prompt(self, spans: Spans) -> bool:
        """Return whether the blocks are such as a caller may add."""
        return all(self._of_runs[stop] == self._of_runs[start] for _, start, stop in spans)

    def _done_by(self, at: int, stop: int) -> int:
        """Return how far the log can be read from a place, with nothing open there; `at` if it is not known."""
        if self._done[at] < at:
            return at
        wrong = bisect_left(self._wrong, at)
        return self._done[min([stop, *self._wrong[wrong : wrong + 1]])]


def _code(block: Block) -> _Code:
    match block:
        case System() | CacheCheckpoint() | Unknown():
            return "apart"
        case ToolResult():
            return "answers"
        case ToolUse():
            return "calls"
        case Thinking():
            return "thinks"
        case Text():
            return "says" if block.text.strip() else "blank"
        case _:
            return "blank" if block.role == "assistant" else "asks"


class References:
    """What the summaries of a log stand for."""

    def __init__(self) -> None:
        self._places: list[int] = []
        self._stands_for: list[list[tuple[int, int]]] = []
        self._of: list[Spans] = []
        self._lines: list[int] = []

    def add(self, at: int, summary: Summary, line: int) -> None:
        """Take the summary at a place of the log, behind those before."""
        self._places.append(at)
        folded = ((place, place + 1) for _, place in summary.folded)
        self._stands_for.append([*((start, stop) for _, start, stop in summary.of), *folded])
        self._of.append(tuple(Span(*span) for span in summary.of))
        self._lines.append(line)

    def __iter__(self) -> Iterator[tuple[int, Spans]]:
        """Yield the line of each summary, and what it stands for."""
        yield from zip(self._lines, self._of, strict=True)

    async def circle(self) -> int | None:
        """Return the line of a summary that stands for itself, be it by way of others; None if none does.

        Goes into each summary once: O(n log n).
        """
        next_new = list(range(len(self._places) + 1))

        def new_from(number: int) -> int:
            """Return the first summary from this one on that was not gone into."""
            while next_new[number] != number:
                next_new[number] = next_new[next_new[number]]
                number = next_new[number]
            return number

        within: list[int] = []
        """The summaries on the way to where it is, sorted."""
        for first in range(len(self._places)):
            way = [first] if new_from(first) == first else []
            left: list[list[tuple[int, int]]] = []
            while way:
                number = way[-1]
                if next_new[number] == number:
                    next_new[number] = number + 1
                    insort(within, number)
                    left.append(self._ranges(number))
                    if any(_has_one(within, start, stop) for start, stop in left[-1]):
                        return self._lines[number]
                    await asyncio.sleep(0)
                ranges = left[-1]
                while ranges and new_from(ranges[-1][0]) >= ranges[-1][1]:
                    ranges.pop()
                if ranges:
                    way.append(new_from(ranges[-1][0]))
                else:
                    del within[bisect_left(within, way.pop())], left[-1]
        return None

    def _ranges(self, number: int) -> list[tuple[int, int]]:
        """Return the numbers of the summaries that a summary stands for, as ranges."""
        places = self._places
        return [(bisect_left(places, start), bisect_left(places, stop)) for start, stop in self._stands_for[number]]


def _has_one(numbers: list[int], start: int, stop: int) -> bool:
    at = bisect_left(numbers, start)
    return at < len(numbers) and numbers[at] < stop
