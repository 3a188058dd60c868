"""The codec of stored records: records as JSON by their dataclass fields. Stores and archives use it.

A store adds only what its layout needs: columns, positions in keys, or encryption.
"""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from turnwise.errors import CorruptRecordError
from turnwise.memory.conversation.corrupt_records import UnfitError, why_unreadable
from turnwise.memory.conversation.events import AnyEvent, decode_event
from turnwise.memory.conversation.frozen_json import FrozenDict, freeze
from turnwise.memory.conversation.spans import Span, Spans
from turnwise.memory.conversation.usage import Usage

Record = TypeVar("Record")
Value = TypeVar("Value")


encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Returns a value as JSON text."""


def to_json(value: Any) -> str | None:
    """Return a value as JSON text, None as None. Also used for free text, since PostgreSQL text cannot hold NUL."""
    return None if value is None else encode_json(value)


def decode_text(text: str) -> str:
    """Return the text that `to_json` encoded. Call it in `decoded`: it raises TypeError or ValueError otherwise."""
    return str(_plain((str,), json.loads(text)))


def encode_record(record: Any, names: Collection[str]) -> str:
    """Return the fields with these names as JSON, without fields that have their default value."""
    return encode_json(record_values(record, names))


def record_values(record: Any, names: Collection[str]) -> dict[str, Any]:
    """Return the fields with these names as JSON values, without fields that have their default value."""
    kind: Any = type(record)
    defaults = _defaults(kind)
    values = {name: getattr(record, name) for name in names}
    kept = {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}
    return {name: _usage(value) if isinstance(value, Usage) else value for name, value in kept.items()}


def decode_record(cls: type[Record], key: str, *texts: bytes | str | None, **others: Any) -> Record:
    """Return the record from the texts that `encode_record` wrote, and from `others`, the fields stored elsewhere.

    Raises:
        CorruptRecordError: a text is damaged; names the key.
    """

    def decode() -> Record:
        values: dict[str, Any] = {}
        for text in texts:
            values |= _parsed(text)
        return record_of(cls, values, **others)

    return decoded(key, decode)


def record_of(cls: type[Record], values: Mapping[str, Any], **others: Any) -> Record:
    """Return the record with the fields that `record_values` returned, and with `others`, which are not converted.

    Call it in `decoded`.

    Raises:
        TypeError, ValueError, KeyError: a field is missing, unknown, or has a value that does not fit.
    """
    kind: Any = cls
    if missing := _required(kind) - values.keys() - others.keys():
        raise UnfitError(f"{', '.join(sorted(missing))} is missing")
    return cls(**_converted(kind, values), **others)


def decoded_event(kind: str, body: str, columns: Mapping[str, Any]) -> AnyEvent:
    """Return the event with this body, and with the fields that are stored beside it: see `decode_event`.

    Raises:
        CorruptRecordError: the body is damaged; names the event.
    """
    try:  # not by `decoded`: sessions have more events than other records
        return decode_event(kind, body, columns)
    except _UNREADABLE as error:
        raise CorruptRecordError(f"event {columns['session_id']}:{columns['seq']}", why_unreadable(error)) from None


def decoded(key: str, decode: Callable[[], Value]) -> Value:
    """Return what `decode` returns.

    Raises:
        CorruptRecordError: `decode` raised an error about a stored value. Names the key and does not quote the value.
    """
    try:
        return decode()
    except _UNREADABLE as error:
        raise CorruptRecordError(key, why_unreadable(error)) from None


_UNREADABLE = (ValueError, TypeError, KeyError, RecursionError)


# Conversion of a field's value, by the field's type


def _usage(usage: Usage) -> dict[str, float]:
    return {name: value for name in _NUMBERS if (value := getattr(usage, name))}


_NUMBERS = tuple(field.name for field in fields(Usage))


@functools.cache
def _defaults(cls: type) -> dict[str, Any]:
    def default(field: Field[Any]) -> Any:
        return field.default_factory() if field.default_factory is not MISSING else field.default

    return {field.name: value for field in fields(cls) if (value := default(field)) is not MISSING}


@functools.cache
def _required(cls: type) -> frozenset[str]:
    return frozenset({field.name for field in fields(cls)} - _defaults(cls).keys())


def _converted(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON values as the values of the fields with these names."""
    readers = _readers(cls)
    found = {}
    for name, value in values.items():
        as_they_are, convert = readers[name]
        found[name] = value if type(value) in as_they_are else convert(value)
    return found


_Reader = tuple[tuple[type, ...], Callable[[Any], Any]]
"""The JSON types that need no conversion, and the function that converts or refuses other values."""


@functools.cache
def _readers(cls: type) -> dict[str, _Reader]:
    hints = get_type_hints(cls)
    return {field.name: _reader(hints[field.name]) for field in fields(cls)}


def _reader(hint: Any) -> _Reader:
    if special := _SPECIAL.get(hint):
        return (), special
    if get_origin(hint) is Literal:
        return (), functools.partial(_one_of, get_args(hint))
    if isinstance(hint, types.UnionType):
        ((kinds, convert),) = (_reader(part) for part in get_args(hint) if part is not types.NoneType)
        return (*kinds, types.NoneType), convert
    kinds = {float: (int, float)}.get(hint, (hint,))
    return kinds, functools.partial(_plain, kinds)


def _plain(kinds: tuple[type, ...], value: Any) -> Any:
    if type(value) not in kinds:
        raise UnfitError(f"a {type(value).__name__} is not of type {' or '.join(kind.__name__ for kind in kinds)}")
    return value


def _one_of(values: tuple[Any, ...], value: Any) -> Any:
    if value not in values:
        raise UnfitError(f"a value is not one of {', '.join(map(str, values))}")
    return value


def _frozen(value: Any) -> FrozenDict:
    return FrozenDict(freeze(_plain((dict,), value)))


def _spans(value: Any) -> Spans:
    for log, start, stop in value:
        if not (type(log) is str and type(start) is type(stop) is int):
            raise UnfitError("a span is not a log, a start and a stop")
    return tuple(Span(*each) for each in value)


def _spent(value: Any) -> Usage:
    return Usage(**_converted(Usage, _plain((dict,), value)))


_SPECIAL: dict[Any, Callable[[Any], Any]] = {FrozenDict: _frozen, Spans: _spans, Usage: _spent}


def _parsed(text: bytes | str | None) -> dict[str, Any]:
    if text is None:
        raise ValueError("missing")
    values: dict[str, Any] = _plain((dict,), json.loads(text))
    return values
