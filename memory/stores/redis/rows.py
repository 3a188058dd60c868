"""Converts records to JSON and back by their dataclass fields, and usage to numbers whose sums are exact."""

from __future__ import annotations

import functools
import json
import math
import types
from collections.abc import Callable, Collection
from dataclasses import MISSING, Field, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from turnwise.errors import CorruptRecordError, StoreError
from turnwise.memory.conversation.corrupt_records import UnfitError, why_unreadable
from turnwise.memory.conversation.events import AnyEvent, Event, decode_event, encode_body
from turnwise.memory.conversation.frozen_json import FrozenDict, freeze
from turnwise.memory.conversation.spans import Span, Spans
from turnwise.memory.conversation.usage import Usage

Record = TypeVar("Record")
Value = TypeVar("Value")


def encode_record(record: Any, names: Collection[str]) -> str:
    """Return the fields with these names as JSON, without fields that have their default value."""
    values = {name: getattr(record, name) for name in names}
    kind: Any = type(record)
    defaults = _defaults(kind)
    kept = {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}
    return _json({name: _usage(value) if isinstance(value, Usage) else value for name, value in kept.items()})


def decode_record(cls: type[Record], key: str, *texts: bytes | str | None, **others: Any) -> Record:
    """Return the record from the texts that `encode_record` wrote, and from `others`, the fields stored elsewhere.

    Raises:
        CorruptRecordError: a text is damaged; names the key.
    """

    def decode() -> Record:
        values: dict[str, Any] = {}
        for text in texts:
            values |= _parsed(text)
        kind: Any = cls
        readers = _readers(kind)
        if missing := readers.keys() - values.keys() - others.keys() - _defaults(kind).keys():
            raise UnfitError(f"{', '.join(sorted(missing))} is missing")
        return cls(**{name: readers[name](value) for name, value in values.items()}, **others)

    return _read(key, decode)


def encode_event(event: Event) -> str:
    """Return the text of an event that is stored after its sequence number."""
    kind, body = encode_body(event)
    return f"{_json([kind, event.at, event.turn_index, event.run_id, event.key])}\n{body}"


def decode_event_text(key: str, session_id: str, text: bytes) -> AnyEvent:
    """Return the event from its stored text: the sequence number followed by the text of `encode_event`.

    Raises:
        CorruptRecordError: the text is damaged; names the key.
    """

    def decode() -> AnyEvent:
        head, body = text[PLACE_DIGITS:].decode().split("\n", 1)
        kind, at, turn_index, run_id, event_key = json.loads(head)
        own: dict[str, Any] = {"turn_index": turn_index, "run_id": run_id, "key": event_key}
        return decode_event(kind, body, session_id=session_id, seq=int(text[:PLACE_DIGITS]), at=at, **own)

    return _read(key, decode)


PLACE_DIGITS = 19
"""Digits of a turn's index or an event's sequence number as text, so that texts sort like numbers."""


def place_of(number: int) -> str:
    """Return a number as text of fixed width, which sorts like the number.

    Raises:
        ValueError: the number is below 0 or too large.
    """
    if not 0 <= number < 10**PLACE_DIGITS:
        raise ValueError(f"{number} is not between 0 and 10**{PLACE_DIGITS}")
    return f"{number:0{PLACE_DIGITS}d}"


def finite(time_s: float, what: str) -> str:
    """Return a time as text that parses to the same number.

    Raises:
        StoreError: the time is not finite, so it cannot be sorted.
    """
    if not math.isfinite(time_s):
        raise StoreError(f"{what} is {time_s}, which is no time; nothing was written")
    return repr(float(time_s))


# Usage: each number in units of 2**-96, in 192 bits, so that sums neither round nor overflow.

_BITS, _BYTES = 96, 24
_MASK = (1 << 8 * _BYTES) - 1
_NUMBERS = tuple(field.name for field in fields(Usage))


def pack_usage(usage: Usage) -> bytes:
    """Return the numbers of a usage in the order of its fields. New fields must be added at the end.

    Raises:
        StoreError: a number is not finite.
    """
    return b"".join(_packed(name, getattr(usage, name)) for name in _NUMBERS)


def unpack_usage(packed: bytes) -> Usage:
    """Return the usage from packed numbers. Missing numbers are 0."""
    found: dict[str, Any] = {}
    for at, field in enumerate(fields(Usage)):
        scaled = int.from_bytes(packed[_BYTES * at : _BYTES * (at + 1)], signed=True)
        found[field.name] = scaled >> _BITS if isinstance(field.default, int) else scaled / 2**_BITS
    return Usage(**found)


def _packed(name: str, value: float) -> bytes:
    if not math.isfinite(value):
        raise StoreError(f"usage has {value} as its {name}, which does not add up; nothing was written")
    scaled = value << _BITS if isinstance(value, int) else int(math.ldexp(value, _BITS))
    return (scaled & _MASK).to_bytes(_BYTES)


_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


# Conversion of a field's value, by the field's type


def _usage(usage: Usage) -> dict[str, float]:
    return {name: value for name in _NUMBERS if (value := getattr(usage, name))}


@functools.cache
def _defaults(cls: type) -> dict[str, Any]:
    def default(field: Field[Any]) -> Any:
        return field.default_factory() if field.default_factory is not MISSING else field.default

    return {field.name: value for field in fields(cls) if (value := default(field)) is not MISSING}


@functools.cache
def _readers(cls: type) -> dict[str, Callable[[Any], Any]]:
    hints = get_type_hints(cls)
    return {field.name: _reader(hints[field.name]) for field in fields(cls)}


def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return the function that converts JSON to a field's value. It raises TypeError for JSON that does not fit."""
    if special := _SPECIAL.get(hint):
        return special
    if get_origin(hint) is Literal:
        return functools.partial(_one_of, get_args(hint))
    if isinstance(hint, types.UnionType):
        (inner,) = (_reader(part) for part in get_args(hint) if part is not types.NoneType)
        return lambda value: None if value is None else inner(value)
    return functools.partial(_plain, {float: (int, float)}.get(hint, (hint,)))


def _plain(kinds: tuple[type, ...], value: Any) -> Any:
    if type(value) not in kinds:
        raise UnfitError(f"a {type(value).__name__} is not of type {' or '.join(kind.__name__ for kind in kinds)}")
    return value


def _one_of(values: tuple[Any, ...], value: Any) -> Any:
    if value not in values:
        raise UnfitError(f"a value is none of {', '.join(map(str, values))}")
    return value


def _frozen(value: Any) -> FrozenDict:
    return FrozenDict(freeze(_plain((dict,), value)))


def _spans(value: Any) -> Spans:
    integer = functools.partial(_plain, (int,))
    return tuple(Span(_plain((str,), log), integer(start), integer(stop)) for log, start, stop in value)


def _spent(value: Any) -> Usage:
    readers = _readers(Usage)
    return Usage(**{name: readers[name](number) for name, number in _plain((dict,), value).items()})


_SPECIAL: dict[Any, Callable[[Any], Any]] = {FrozenDict: _frozen, Spans: _spans, Usage: _spent}


def _parsed(text: bytes | str | None) -> dict[str, Any]:
    if text is None:
        raise ValueError("missing")
    values: dict[str, Any] = _plain((dict,), json.loads(text))
    return values


def _read(key: str, decode: Callable[[], Value]) -> Value:
    try:
        return decode()
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptRecordError(key, why_unreadable(error)) from None
