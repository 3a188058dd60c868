"""Marks: what people or programs say about a message, such as a thumb, stars, a note or a flag.

A turn has the marks of its messages, so they are stored, exported and deleted with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from turnwise.errors import InvalidInputError, TooManyError, shown
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.values.frozen_json import FrozenDict, freeze, plain_text

if TYPE_CHECKING:
    from turnwise.memory.conversation.turns import TurnRecord

MAX_MARKS = 32
"""The most marks of a message: each has a name of its own."""

MAX_MARK_BYTES = 4096
"""The largest value of a mark, as JSON."""


MAX_NAME_CHARS = 64
"""The longest name of a mark, in characters."""


def check_mark_name(name: str) -> str:
    """Return the name of a mark.

    Raises:
        ValueError: it is empty, too long, or has characters that cannot be printed.
    """
    if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise ValueError(f"must be 1 to {MAX_NAME_CHARS} characters that can be printed")
    return plain_text(name)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A mark of a message. A message has at most one of a name."""

    name: str
    value: Any
    """Frozen JSON, never null."""
    by: str | None
    """Who set it, as the caller said."""
    at: float
    """When it was set, in seconds since the epoch."""


@dataclass(frozen=True, kw_only=True)
class MarkedMessage:
    """A mark, and the message that has it."""

    session_id: str
    user_id: str
    turn_index: int
    number: int
    mark: Mark

    @property
    def id(self) -> str:
        """The id of the message; see `ChatMessage.id`."""
        return f"{self.session_id}#{self.turn_index}:{self.number}"

    @property
    def session_key(self) -> SessionKey:
        """Which session it is of."""
        return SessionKey(self.session_id, self.user_id)


def marks_of(turn: TurnRecord, number: int) -> Mapping[str, Mark]:
    """Return the marks of a message of a turn, by name."""
    stored = turn.marks.get(str(number), {})
    return {name: Mark(name=name, **fields) for name, fields in stored.items()}


def numbers_of(turn: TurnRecord) -> list[int]:
    """Return the numbers of the messages of a turn that have marks, in order."""
    return sorted(map(int, turn.marks))


def count_marks(turn: TurnRecord) -> int:
    """Return how many marks the messages of a turn have."""
    return sum(map(len, turn.marks.values()))


def with_mark(turn: TurnRecord, number: int, mark: Mark) -> TurnRecord:
    """Return the turn with a mark of a message, in place of the one of its name.

    Raises:
        TooManyError: the message has `MAX_MARKS` others.
    """
    stored = {**turn.marks.get(str(number), {}), mark.name: {"value": mark.value, "by": mark.by, "at": mark.at}}
    if len(stored) > MAX_MARKS:
        raise TooManyError("marks", len(stored), "MAX_MARKS", MAX_MARKS)
    return replace(turn, marks=FrozenDict(freeze({**turn.marks, str(number): stored})))


def without_mark(turn: TurnRecord, number: int, name: str) -> TurnRecord:
    """Return the turn without a mark of a message."""
    stored = {key: fields for key, fields in turn.marks.get(str(number), {}).items() if key != name}
    others = {key: fields for key, fields in turn.marks.items() if key != str(number)}
    return replace(turn, marks=FrozenDict(freeze({**others, str(number): stored} if stored else others)))


def with_marks_of(turn: TurnRecord, numbers: Collection[int]) -> TurnRecord:
    """Return the turn with the marks of these messages only."""
    return replace(turn, marks=FrozenDict({key: fields for key, fields in turn.marks.items() if int(key) in numbers}))


def check_marks(turn: TurnRecord) -> None:
    """Raise unless marks that come from elsewhere, such as an archive, are like those that sessions store.

    Raises:
        InvalidInputError: they are not.
    """
    for number, stored in turn.marks.items():
        is_valid = number.isdecimal() and number == str(int(number)) and isinstance(stored, Mapping)
        is_valid = is_valid and 1 <= len(stored) <= MAX_MARKS
        if not is_valid or not all(map(_is_mark, stored.items())):
            raise InvalidInputError("marks", shown(dict(turn.marks)), f"turn {turn.index} has marks of another form")


def _is_mark(item: tuple[str, Any]) -> bool:
    name, fields = item
    try:
        check_mark_name(name)
    except ValueError:
        return False
    return (
        isinstance(fields, Mapping)
        and fields.keys() == {"value", "by", "at"}
        and fields["value"] is not None
        and isinstance(fields["by"], str | None)
        and isinstance(fields["at"], int | float)
    )
