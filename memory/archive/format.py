"""The lines of an archive: their content, their order, and the check that all are there."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, NoReturn, TypeVar

from turnwise.errors import ArchiveError, CorruptRecordError
from turnwise.memory.conversation.codec import decoded, joined
from turnwise.memory.conversation.events import (
    AnyEvent,
    BlocksRemoved,
    Event,
    Places,
    RunStarted,
    SetsInput,
    StoresBlocks,
    WindowCompacted,
    decode_event,
    encode_body,
)
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span, from_places
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.values.records import record_of, record_values

VERSION = 1
"""Raised with every change of the lines that older versions of turnwise would misread."""

Kind = Literal["session", "block", "turn", "run", "event", "delivery", "file", "end"]

MAX_LINE = 16 * 1024**2
"""The most characters of a line, except for the line of a block."""

MAX_BLOCK_LINE = 16 * MAX_LINE

MAX_DEPTH = 100
"""How deep values of a record may be nested."""

_ORDER: tuple[Kind, ...] = ("session", "block", "turn", "run", "event", "delivery", "file", "end")

_OWN = ("session_id", "user_id", "log", "epoch", "revision")
"""Fields of records that each store makes for itself, or that are in the first line."""

_OF_SESSION = ("session_id", "user_id")

Record = TypeVar("Record", SessionRecord, TurnRecord, RunRecord)


@dataclass(frozen=True)
class Line:
    """A line that was read."""

    number: int
    kind: Kind
    value: Any

    def refuse(self, reason: str) -> NoReturn:
        """Raise ArchiveError."""
        raise ArchiveError(self.number, reason)

    def record(self, cls: type[Record], **fields: Any) -> Record:
        """Return the line's record.

        Raises:
            ArchiveError: the line has no such record.
        """
        if not isinstance(self.value, dict) or not self.value.keys().isdisjoint(_OWN):
            self.refuse(f"a {self.kind} must be an object without {', '.join(_OWN)}")
        try:
            return decoded(self.kind, lambda: record_of(cls, joined(self.value, fields)))
        except CorruptRecordError as error:
            raise ArchiveError(self.number, error.why) from error

    def text(self) -> str:
        """Return the line's text.

        Raises:
            ArchiveError: the line has no text.
        """
        return self.value if isinstance(self.value, str) else self.refuse(f"a {self.kind} must be text")

    def event(self, session: SessionKey) -> AnyEvent:
        """Return the line's event.

        Raises:
            ArchiveError: the line has no event.
        """
        try:
            seq, time, turn_index, run_id, key, kind, body = self.value
            _check_values(self.number, json.loads(body))
            about = {"seq": seq, "at": time, "turn_index": turn_index, "run_id": run_id, "key": key}
            return decode_event(kind, body, {**session._asdict(), **about})
        except (ValueError, TypeError, RecursionError) as error:
            raise ArchiveError(self.number, f"no event: {error}") from error

    def delivery(self, session: SessionKey) -> Delivery:
        """Return the line's delivery, of this session.

        Raises:
            ArchiveError: the line has no delivery.
        """
        if not isinstance(self.value, dict) or not self.value.keys().isdisjoint(_OF_SESSION):
            self.refuse(f"a {self.kind} must be an object without {', '.join(_OF_SESSION)}")
        try:
            return decoded(self.kind, lambda: record_of(Delivery, {**self.value, **session._asdict()}))
        except CorruptRecordError as error:
            raise ArchiveError(self.number, error.why) from error


def record_line(record: SessionRecord | TurnRecord | RunRecord) -> dict[str, Any]:
    """Return a record as the value of its line."""
    return record_values(record, {field.name for field in fields(record)}.difference(_OWN))


def delivery_line(delivery: Delivery) -> dict[str, Any]:
    """Return a delivery as the value of its line. It keeps its revision, with which the ids of its runs end."""
    return record_values(delivery, {field.name for field in fields(Delivery)}.difference(_OF_SESSION))


def event_line(event: Event) -> list[Any]:
    """Return an event as the value of its line."""
    return [event.seq, event.at, event.turn_index, event.run_id, event.key, *encode_body(event)]


def stored_blocks_of(event: Event) -> Iterator[tuple[int, int]]:
    """Yield the positions of the blocks that an event stored: start and stop in the session's log."""
    if isinstance(event, StoresBlocks) and event.span:
        yield event.span
    if isinstance(event, WindowCompacted) and event.summary:
        yield event.summary


def inputs_of(event: Event) -> Iterator[Places]:
    """Yield the lists of positions in an event: those of its run's input, or those of removed blocks."""
    if isinstance(event, SetsInput) and event.input:
        yield event.input
    if isinstance(event, RunStarted):
        yield event.prompt
    if isinstance(event, BlocksRemoved):
        yield event.removed


def move_event(event: Event, move: Callable[[Span], Span], log: str) -> Event:
    """Return the event with the positions that `inputs_of` yields moved.

    Args:
        log: the name of the session's own log.
    """
    if not any(inputs_of(event)):
        return event

    def moved(places: Places) -> Places:
        return tuple((span.log, span.start, span.stop) for span in map(move, from_places(places, log)))

    fields = {"input": moved(event.input)} if isinstance(event, SetsInput) and event.input else {}
    if isinstance(event, RunStarted):
        fields["prompt"] = moved(event.prompt)
    if isinstance(event, BlocksRemoved):
        fields["removed"] = moved(event.removed)
    return event.model_copy(update=fields)


class LineWriter:
    """Writes the lines of an archive, with their number and checksum in the last one."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._digest = hashlib.sha256()
        self._count = 0

    def begin(self, session: SessionRecord) -> None:
        """Write the first line."""
        self._line({"turnwise_archive": VERSION, **session.key._asdict(), "session": record_line(session)})

    def add(self, kind: Kind, value: Any) -> None:
        """Write a line."""
        self._line({kind: value})

    def end(self) -> None:
        """Write the last line."""
        self._line({"end": {"lines": self._count, "sha256": self._digest.hexdigest()}})

    def _line(self, value: dict[str, Any]) -> None:
        # In ASCII, so that no reader takes a character of the text for the end of a line.
        line = f"{json.dumps(value, separators=(',', ':'))}\n"
        self._digest.update(line.encode())
        self._count += 1
        self._write(line)


def read_lines(lines: Iterable[str]) -> Iterator[Line]:
    """Yield the lines of an archive; the value of the first is the whole line.

    Raises:
        ArchiveError: a line is no JSON, has an unknown version or kind, or is out of order; a line is missing, changed
            or too much.
    """
    digest, number, last_rank = hashlib.sha256(), 0, 0
    for number, text in enumerate(lines, 1):
        if last_rank == len(_ORDER) - 1:
            raise ArchiveError(number, "it follows the last line")
        line = _parsed(number, text, is_first=number == 1)
        if (rank := _ORDER.index(line.kind)) < last_rank or (number > 1 and rank == 0):
            line.refuse(f"a {line.kind} follows a {_ORDER[last_rank]}")
        last_rank = rank
        if line.kind == "end" and line.value != {"lines": number - 1, "sha256": digest.hexdigest()}:
            line.refuse("its number of lines or checksum is wrong: lines before it were changed, or are missing")
        digest.update(f"{text.rstrip(_NEWLINES)}\n".encode(errors="surrogatepass"))
        yield line
    if last_rank < len(_ORDER) - 1:
        raise ArchiveError(number + 1, "it is missing: the export did not finish, or the archive was cut off")


_NEWLINES = "\r\n"
_BLOCK = '{"block":"'


def _block_line(text: str) -> dict[str, Any]:
    """Return the line of a block, which is one text. Parses nothing else, since the line may be long."""
    value, end = json.decoder.scanstring(text, len(_BLOCK))  # type: ignore[attr-defined]
    if text[end:].rstrip() != "}":
        raise ValueError("the line of a block has one text and nothing else")
    return {"block": value}


def _check_values(number: int, value: Any) -> None:
    """Raise ArchiveError if stores cannot keep the value."""
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise ArchiveError(number, "it is nested too deeply")
        inner: list[Any] = []
        for inner_value in level:
            if isinstance(inner_value, dict):
                inner += (*inner_value, *inner_value.values())
            elif isinstance(inner_value, list):
                inner += inner_value
            elif isinstance(inner_value, str):
                _check_text(number, inner_value)
            elif isinstance(inner_value, float) and not math.isfinite(inner_value):
                raise ArchiveError(number, f"{inner_value} is no number that stores can keep")
            elif isinstance(inner_value, int) and abs(inner_value) >= 2**63:
                raise ArchiveError(number, "a number has more than 64 bits")
        level, depth = inner, depth + 1


def _check_text(number: int, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ArchiveError(number, "a text has half a character (a lone surrogate)") from error


def _parsed(number: int, text: str, *, is_first: bool) -> Line:
    is_block = text.startswith(_BLOCK)
    if len(text) > (MAX_BLOCK_LINE if is_block else MAX_LINE):
        raise ArchiveError(number, f"it has {len(text)} characters, which is too long")
    try:
        value = _block_line(text) if is_block else json.loads(text)
    except RecursionError as error:
        raise ArchiveError(number, "it is nested too deeply") from error
    except ValueError as error:
        raise ArchiveError(number, f"it is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ArchiveError(number, "it is no JSON object")
    _check_values(number, value)
    if is_first:
        if (version := value.get("turnwise_archive")) != VERSION:
            expected = f"this turnwise reads version {VERSION}"
            problem = "it is not the first line of an archive" if version is None else f"it has version {version!r}"
            raise ArchiveError(number, f"{problem}, and {expected}")
        return Line(number, "session", value)
    kind = next((kind for kind in _ORDER if value.keys() == {kind}), None)
    if kind is None:
        raise ArchiveError(number, f"it has none of these keys, or several: {', '.join(_ORDER)}")
    return Line(number, kind, value[kind])
