"""`Answers`: what a run's events mean for who watches its answers, as pieces that each have a place.

A text that is streamed and one that is stored are the same pieces, cut differently. So a place of a text is counted in
characters, and a place of all else is the number of the stored event that it comes from. Both kinds only grow, each by
itself. `Cursor` has one of each kind (texts, thoughts, all else): the pieces after it are those that its reader lacks,
also in another process, when the deltas are gone.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self

from turnwise.memory.conversation.blocks import (
    Block,
    Citations,
    Document,
    Image,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from turnwise.memory.conversation.calls.tool_calls import Wants
from turnwise.memory.conversation.events import (
    AnyEvent,
    ApprovalRequested,
    CallDecided,
    CustomEvent,
    Event,
    ModelCallEnded,
    ModelCallStarted,
    RunCancelled,
    RunCompleted,
    RunEnded,
    RunQueued,
    RunResumed,
    RunStarted,
    StepEnded,
    StepStarted,
    TextDelta,
    ThinkingDelta,
    ToolEnded,
    ToolStarted,
)
from turnwise.memory.conversation.output_type import ANSWER_TOOL
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.memory.values.growing_text import GrowingText

TextTrack = Literal["text", "thought"]
Track = TextTrack | Literal["events"]

Kind = Literal[
    "begun", "opened", "said", "closed", "reset", "called", "asked", "approved", "denied", "result", "calls_ended",
    "attached", "custom", "step_started", "step_ended", "ended", "waits",
]  # fmt: skip

_LAST, _FIRST = 1 << 30, 1 << 31
"""The numbers of the piece with which a stream ends at a call that waits, and of the one with which the next begins."""

_CLOSED = 1 << 40
"""The place of a text's end."""

_STORED = 1 << 20
"""The attempt of an answer that is said again as it is stored, since what was streamed of it is not."""

_NUMBER = r"(\d{1,18})"
_PLACE = r"\.".join([_NUMBER, _NUMBER, r"(\d{1,4})", *[_NUMBER] * 3])
"""A place within texts. Its third number counts the parts of one answer, each of which is gone through."""

_BEGUN = rf"(?:-{_NUMBER}\.(\d{{1,999}}))?"

_CURSOR = re.compile("-".join([r"\.".join([_NUMBER] * 3), _PLACE, _PLACE]) + _BEGUN)


@dataclass(slots=True)
class Cursor:
    """How far a reader has read. Its text is the id of a server-sent event."""

    events: tuple[int, ...] = ()
    text: tuple[int, ...] = ()
    thought: tuple[int, ...] = ()
    begun: tuple[int, ...] = ()
    """Where its stream began behind calls that waited: the number of the last event before, and as bits in their order,
    of which of the calls that waited then the client has the results. Empty if it began with the run."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the cursor with this text; None if there is none."""
        match = _CURSOR.fullmatch(text) if text.isascii() else None
        if match is None:
            return None
        numbers = [int(group) for group in match.groups() if group is not None]
        return cls(*(_unless_zero(part) for part in (numbers[:3], numbers[3:9], numbers[9:15], numbers[15:])))

    def __str__(self) -> str:
        parts = (self.events or (0,) * 3, self.text or (0,) * 6, self.thought or (0,) * 6, self.begun)
        return "-".join(".".join(map(str, part)) for part in parts if part)

    @property
    def begins(self) -> tuple[int, ...]:
        """Where a stream that goes on behind it begins, as `begun`: also behind calls at which the last one ended."""
        return (self.events[0], 0) if self.events[1:2] == (_LAST,) else self.begun


class _Read(NamedTuple):
    """How far a reader has read the texts or the thoughts of an answer: the numbers of a cursor."""

    answer: int
    attempt: int
    part: int
    offset: int
    frame: int
    check: int


def _unless_zero(numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(numbers) if any(numbers) else ()


@dataclass(frozen=True)
class Piece:
    """One thing that a reader of an answer gets."""

    kind: Kind
    track: Track
    place: tuple[int, ...]
    id: str = ""
    """Of the text, the thought, the call, or the step."""
    text: str = ""
    """Of a delta, the name of a call or a step, or why."""
    block: Block | None = None
    event: Event | None = None
    wants: Wants | None = None
    input: Mapping[str, Any] = field(default_factory=FrozenDict)
    check: int = 0
    """A checksum of the texts of its track in this attempt at the answer, so far."""

    def after(self, cursor: tuple[int, ...]) -> Self | None:
        """Return what of it is behind a cursor of its track: all, the rest of a delta, or nothing."""
        if self.kind != "said" or not cursor or cursor[:3] != self.place[:3]:
            return self
        (offset,), (read_offset, *_) = self.place[3:], cursor[3:]
        missing = offset - read_offset
        if missing <= 0:
            return None
        if missing >= len(self.text):
            return self
        return replace(self, text=self.text[-missing:])


@dataclass(slots=True)
class _Part:
    """A text or a thought of the answer that is being streamed."""

    number: int
    index: int
    text: GrowingText = field(default_factory=GrowingText)
    is_open: bool = True


class Answers:
    """The answers of one run, as of the events that were added. Pure: it waits for nothing and reads nothing.

    Each text that is opened is closed, and each call is shown before anything else about it. After the text of an
    answer that became void, since its model call failed or its process was lost, comes a `reset`.

    Args:
        after: how far the reader has read. Pieces before it are made as well.
    """

    def __init__(self, after: Cursor | None = None) -> None:
        self.run_id: str | None = None
        self.is_begun = False
        self.is_ended = False
        self.stop_reason: str | None = None
        self.usage: Usage | None = None
        """The run's usage, when it has completed."""
        self.seq = 0
        """The number of the last stored event."""
        self._after = after or Cursor()
        self._queued_events: list[AnyEvent] = []
        """The events of a run that is queued."""
        self._pieces = 0
        """How many pieces of that event there were."""
        self._answer = 0
        """How many answers there were before the one that is streamed."""
        self._attempt = 0
        self._parts: dict[TextTrack, list[_Part]] = {"text": [], "thought": []}
        self._sums: dict[TextTrack, int] = {"text": 0, "thought": 0}
        self._calls: dict[str, str] = {}
        """The names of the calls that were shown."""
        self._open: set[str] = set()
        """The calls without a result."""
        self._undecided: set[str] = set()
        """Those of which it is not known whether they are made or wait."""
        self._running: set[str] = set()
        self._waiting_calls: dict[str, Wants] = {}
        self._extra: set[str] = set()
        """Calls that the model has not made, such as the question whether a budget may be exceeded."""
        self._own: set[str] = set()
        """The calls by which a model gives a typed answer."""

    @property
    def waiting(self) -> Mapping[str, Wants]:
        """The calls that wait for a decision or a result, if all others of the answer have been made; else empty."""
        return self.waiting_calls if not (self._undecided or self._running) else {}

    @property
    def waiting_calls(self) -> Mapping[str, Wants]:
        """The calls that wait for a decision or a result, also while other calls run."""
        return {} if self.is_ended else self._waiting_calls

    def begun_again(self) -> Piece:
        """Return the piece with which a stream begins behind a call that waited."""
        return Piece("begun", "events", (self.seq, _FIRST), self.run_id or "")

    def stopped(self) -> Piece:
        """Return the piece with which a stream ends at calls that wait."""
        return Piece("waits", "events", (self.seq, _LAST))

    def add(self, event: AnyEvent) -> Iterator[Piece]:
        """Take the run's next event; yield what it says.

        A queued run says nothing before it starts: its prompts may become part of another run. Then the next events are
        those of that run, from its first one on.
        """
        if self.is_ended or event.run_id is None or self.run_id not in (None, event.run_id):
            return
        self.run_id = event.run_id
        if isinstance(event, RunCancelled) and event.leads_to:
            self.run_id, self._queued_events = event.leads_to, []
        elif isinstance(event, RunQueued) or (self._queued_events and not isinstance(event, RunStarted | RunEnded)):
            self._queued_events.append(event)
        else:
            events, self._queued_events = [*self._queued_events, event], []
            for run_event in events:
                yield from self._pieces_of(run_event)

    def _pieces_of(self, event: AnyEvent) -> Iterator[Piece]:  # noqa: PLR0912 - a table of events
        if not event.live:
            self.seq, self._pieces = event.seq, 0
        if not self.is_begun:
            self.is_begun = True
            yield self._piece("begun", self.run_id or "", event=event)
        match event:
            case TextDelta():
                yield from self._delta("text", event)
            case ThinkingDelta():
                yield from self._delta("thought", event)
            case ModelCallStarted():
                yield from self._void()
            case ModelCallEnded(blocks=blocks):
                yield from self._answered(blocks)
            case ToolStarted(call_id=call_id, name=name):
                yield from self._show(call_id, name)
                self._undecided.discard(call_id)
                if call_id not in self._own:
                    self._running.add(call_id)
            case ToolEnded(call_id=call_id, name=name, blocks=blocks):
                yield from self._show(call_id, name)
                yield from self._results(blocks)
            case ApprovalRequested(call_id=call_id, name=name, input=arguments, wants=wants, why=reason):
                if call_id not in self._calls:
                    self._extra.add(call_id)
                    yield from self._show(call_id, name, arguments)
                for calls in (self._undecided, self._running):  # it may have begun, and ask whether to go on
                    calls.discard(call_id)
                self._waiting_calls[call_id] = wants
                yield self._piece("asked", call_id, reason or "", wants=wants, input=arguments)
            case CallDecided():
                yield from self._decided(event)
            case RunResumed():
                yield from self._void()
                if self._has_lost():
                    yield from self._reset(_STORED)
                elif (
                    read_attempt := self._attempt_read("text")
                ) > self._attempt:  # it has read at least a part of a reset
                    yield from self._reset(read_attempt)
                self._next()
            case CustomEvent(name=name):
                yield self._piece("custom", str(event.seq), name, event=event)
            case StepStarted(step=step, name=name):
                yield self._piece("step_started", step, name)
            case StepEnded(step=step, name=name):
                yield self._piece("step_ended", step, name)
            case RunEnded(blocks=blocks):
                yield from self._ended(event, blocks)
            case _:
                pass

    def _piece(self, kind: Kind, id: str = "", text: str = "", **values: Any) -> Piece:
        self._pieces += 1
        return Piece(kind, "events", (self.seq, self._pieces), id, text, **values)

    # Texts and thoughts

    def _piece_at(
        self, track: TextTrack, kind: Kind, number: int, offset: int, *, text: str = "", attempt: int | None = None
    ) -> Piece:
        attempt = self._attempt if attempt is None else attempt
        its_id = f"{self.run_id}-{self._answer}-{attempt}-{track}-{number}"
        place = (self._answer, attempt, number, offset)
        return Piece(kind, track, place, its_id, text, check=self._sums[track])

    def _delta(self, track: TextTrack, event: TextDelta | ThinkingDelta) -> Iterator[Piece]:
        parts = self._parts[track]
        if event.text and not (parts and parts[-1].is_open and parts[-1].index == event.index):
            yield from self._close(track)
            parts.append(_Part(len(parts) + 1, event.index))
            yield self._piece_at(track, "opened", parts[-1].number, 0)
        if event.text:
            yield from self._say(track, event.text)
        if event.final:
            yield from self._close(track)

    def _say(self, track: TextTrack, text: str) -> Iterator[Piece]:
        part = self._parts[track][-1]
        part.text.add(text)
        self._sums[track] = _sum(text, self._sums[track])
        yield self._piece_at(track, "said", part.number, len(part.text), text=text)

    def _close(self, track: TextTrack) -> Iterator[Piece]:
        parts = self._parts[track]
        if parts and parts[-1].is_open:
            parts[-1].is_open = False
            yield self._piece_at(track, "closed", parts[-1].number, _CLOSED)

    def _void(self) -> Iterator[Piece]:
        """Take back what was streamed of an answer, if anything was."""
        if any(self._parts.values()):
            yield from self._close("thought")
            yield from self._close("text")
            yield from self._reset(self._attempt + 1)

    def _reset(self, attempt: int) -> Iterator[Piece]:
        yield from self._close_lost(attempt)
        self._attempt, self._parts = attempt, {"text": [], "thought": []}
        self._sums = {"text": 0, "thought": 0}
        yield Piece("reset", "text", (self._answer, attempt, 0, 0), self.run_id or "")

    def _next(self) -> None:
        self._answer, self._attempt, self._parts = self._answer + 1, 0, {"text": [], "thought": []}
        self._sums = {"text": 0, "thought": 0}

    def _end_texts(self, blocks: Sequence[Block], *, is_whole: bool) -> Iterator[Piece]:
        """Say what is missing of an answer's texts and thoughts, and close them.

        Args:
            is_whole: whether the blocks are the whole answer; otherwise the rest of it was dropped.
        """
        texts_said = _spoken_texts(blocks)
        texts = {track: [text for said_track, text in texts_said if said_track == track] for track in self._parts}
        differs = any(not _continues(parts, texts[track]) for track, parts in self._parts.items())
        if is_whole and (differs or self._has_other(texts)):
            yield from self._close("thought")
            yield from self._close("text")
            yield from self._reset(_STORED)
        for track, number, text in _numbered(texts_said) if is_whole or not differs else ():
            parts = self._parts[track]
            if number > len(parts):
                yield from self._close(track)
                parts.append(_Part(number, -1))
                yield self._piece_at(track, "opened", parts[-1].number, 0)
            if rest := text[len(parts[number - 1].text) :]:
                yield from self._say(track, rest)
        yield from self._close("thought")
        yield from self._close("text")
        yield from self._close_lost()

    def _has_other(self, texts: Mapping[TextTrack, Sequence[str]]) -> bool:
        """Return whether the reader is within this answer, and has read something else of it than these texts."""
        if self._after.events and self._after.events[0] >= self.seq:
            return False  # it has read on
        for track, numbered_texts in texts.items():
            read = self._read_of(track)
            if read is None:
                continue
            if read.attempt > self._attempt:
                return True
            last_text = numbered_texts[read.part - 1 : read.part]
            texts_read = [*numbered_texts[: read.part - 1], *(text[: read.offset] for text in last_text)]
            is_other = read.part > len(numbered_texts) or _sum("".join(texts_read)) != read.check
            if read.attempt == self._attempt and read.part and is_other:
                return True
        return False

    def _close_lost(self, before: int = _STORED + 1) -> Iterator[Piece]:
        """Close what the reader has seen of this answer, in attempts before one, and what was not said again."""
        for track, parts in self._parts.items():
            read = self._read_of(track)
            if read is None or read.attempt >= before:
                continue
            if (read.attempt, read.part) > (self._attempt, len(parts)):
                for number in range(1, read.part + 1):
                    yield self._piece_at(track, "opened", number, 0, attempt=read.attempt)
                    yield self._piece_at(track, "closed", number, _CLOSED, attempt=read.attempt)

    def _read_of(self, track: TextTrack) -> _Read | None:
        """Return how far the reader has read this answer; None if it has read nothing of it."""
        cursor = self._after.text if track == "text" else self._after.thought
        return _Read(*cursor) if cursor and cursor[0] == self._answer else None

    def _attempt_read(self, track: TextTrack) -> int:
        """Return which attempt at this answer the reader has seen."""
        read = self._read_of(track)
        return read.attempt if read else 0

    def _has_lost(self) -> bool:
        """Return whether the reader has seen a part of this answer that is neither stored nor taken back."""
        attempt = self._attempt_read("text")
        reads = [read for track in self._parts if (read := self._read_of(track))]
        return any(read.attempt >= max(attempt, self._attempt) and read.part for read in reads)

    # Answers and calls

    def _answered(self, blocks: Sequence[Block]) -> Iterator[Piece]:
        yield from self._end_texts(blocks, is_whole=True)
        self._next()
        self._open, self._undecided, self._running, self._waiting_calls = set(), set(), set(), {}
        yield from self._others(blocks)

    def _others(self, blocks: Sequence[Block]) -> Iterator[Piece]:
        for block in blocks:
            match block:
                case ToolUse(name=name) if name == ANSWER_TOOL:
                    self._own.add(block.call_id)
                case ToolUse():
                    self._open.add(block.call_id)
                    self._undecided.add(block.call_id)
                    self._calls[block.call_id] = block.name
                    yield self._piece("called", block.call_id, block.name, block=block, input=block.input)
                case Image() | Document() | Citations():
                    yield self._piece("attached", str(self.seq), block=block)
                case _:
                    pass
        yield from self._results(blocks)

    def _show(self, call_id: str, name: str, arguments: Mapping[str, Any] | None = None) -> Iterator[Piece]:
        """Show a call that no answer has had."""
        if name == ANSWER_TOOL:
            self._own.add(call_id)
        if call_id not in self._calls and call_id not in self._own:
            self._calls[call_id] = name
            self._open.add(call_id)
            yield self._piece("called", call_id, name, input=arguments or FrozenDict())

    def _results(self, blocks: Sequence[Block]) -> Iterator[Piece]:
        for block in blocks:
            if isinstance(block, ToolResult) and block.call_id in self._calls:
                yield self._piece("result", block.call_id, block=block)
                yield from self._end_call(block.call_id)

    def _end_call(self, call_id: str) -> Iterator[Piece]:
        was_open = bool(self._open)
        for calls in (self._open, self._undecided, self._running):
            calls.discard(call_id)
        self._waiting_calls.pop(call_id, None)
        if was_open and not self._open:
            yield self._piece("calls_ended")

    def _decided(self, event: CallDecided) -> Iterator[Piece]:
        call_id = event.call_id
        if call_id not in self._calls:
            return
        self._waiting_calls.pop(call_id, None)
        if event.verdict == "rejected":
            result = next((block for block in event.blocks if isinstance(block, ToolResult)), None)
            yield self._piece("denied", call_id, result.plain if result else "", block=result)
            yield from self._end_call(call_id)
            return
        if event.verdict == "approved":
            edited = next((block for block in event.blocks if isinstance(block, ToolUse)), None)
            yield self._piece("approved", call_id, self._calls[call_id], block=edited)
            if call_id in self._extra:
                yield from self._end_call(call_id)
            else:
                self._undecided.add(call_id)
        yield from self._results(event.blocks)

    def _ended(self, event: RunEnded, blocks: Sequence[Block]) -> Iterator[Piece]:
        is_whole = isinstance(event, RunCompleted)
        yield from self._end_texts(blocks, is_whole=is_whole)
        yield from self._others(blocks)
        if isinstance(event, RunCompleted):
            self.stop_reason, self.usage = event.stop_reason, event.usage
        self.is_ended = True
        yield self._piece("ended", event.run_id or "", event=event)


def _spoken_texts(blocks: Sequence[Block]) -> list[tuple[TextTrack, str]]:
    """Return the texts and thoughts as they are streamed: what nothing stands between is one."""
    pieces: list[tuple[TextTrack, list[str]]] = []
    continues = False
    for block in blocks:
        if isinstance(block, Text | Thinking):
            track: TextTrack = "text" if isinstance(block, Text) else "thought"
            if block.text and continues and pieces[-1][0] == track:
                pieces[-1][1].append(block.text)
            elif block.text:
                pieces.append((track, [block.text]))
            is_sealed = isinstance(block, Thinking) and bool(block.signature or block.redacted)
            continues = not is_sealed and (continues or bool(block.text))
        else:
            continues = False
    return [(track, "".join(texts)) for track, texts in pieces]


def _numbered(texts: Sequence[tuple[TextTrack, str]]) -> Iterator[tuple[TextTrack, int, str]]:
    """Yield texts and thoughts with their numbers among their kind, from 1."""
    counts: dict[TextTrack, int] = {"text": 0, "thought": 0}
    for track, text in texts:
        counts[track] += 1
        yield track, counts[track], text


def _sum(text: str, before: int = 0) -> int:
    return zlib.crc32(text.encode(errors="surrogatepass"), before)


def _continues(parts: Sequence[_Part], texts: Sequence[str]) -> bool:
    """Return whether the texts continue what was streamed: the last part may be longer, and others may follow."""
    for number, part in enumerate(parts):
        if number >= len(texts):
            return False
        is_last = number == len(parts) - 1
        text, streamed = texts[number], str(part.text)
        if not (text.startswith(streamed) if is_last and part.is_open else text == streamed):
            return False
    return True
