"""JSON values that cannot be changed: dicts become `FrozenDict`, lists become tuples, all the way down."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NoReturn

import pydantic_core
from pydantic import AfterValidator, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from turnwise.errors import InvalidInputError, TooManyError, shown
from turnwise.memory.values.limits import MAX_VALUES, check_count, count_values

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1
"""Bounds of integers from callers: databases and other JSON parsers hold no more than 64 bits."""

MAX_DEPTH = 100
"""How deep JSON from callers may be nested."""


# Built-in types come first, since to ask an abstract class takes long.
_ATOMS = (str, int, float, type(None))
_MAPPINGS = (dict, Mapping)
_SEQUENCES = (list, tuple, Sequence)


class FrozenDict(dict[str, Any]):
    """An immutable dict. Equal to a plain dict with the same items, and encoded as JSON like one."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this mapping is part of an immutable record: copy it with dict(...)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(JsonObject)


def freeze(value: Any) -> Any:
    """Return `value` frozen. Raises TypeError, naming the value or its type, for what JSON cannot hold."""
    if isinstance(value, float) and not math.isfinite(value):
        raise TypeError(f"{value} is not a JSON value")
    if isinstance(value, _ATOMS):
        return value
    if isinstance(value, _MAPPINGS):
        return FrozenDict({str(key): freeze(item) for key, item in value.items()})
    if isinstance(value, _SEQUENCES) and not isinstance(value, bytes | bytearray):
        return tuple(freeze(item) for item in value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def plain_json(field: str, json_value: object, max_bytes: int) -> Any:
    """Return a copy of a JSON value from a caller, made of plain dicts, lists, text and numbers.

    Time is bounded by `MAX_VALUES` and `max_bytes`, also for a value that contains itself.

    Args:
        field: the value's name in error messages.
        max_bytes: the most bytes it may take as JSON in UTF-8.

    Raises:
        TooManyError: it has more values than `MAX_VALUES`.
        InvalidInputError: JSON cannot hold the value, or it is too large or too deep; names the place inside the value.
    """
    check_count(field, count_values([json_value], MAX_VALUES), "MAX_VALUES", MAX_VALUES)
    left_bytes, left_values = max_bytes, MAX_VALUES

    def too_large() -> InvalidInputError:
        return InvalidInputError(field, shown(json_value), f"must take at most {max_bytes} bytes as JSON")

    def copy(value: object, place: _Place, depth: int) -> Any:
        nonlocal left_values
        left_values -= 1
        if left_values < 0:
            raise TooManyError(field, MAX_VALUES + 1, "MAX_VALUES", MAX_VALUES)  # it is a sequence of its own kind
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return text(value, place)
        if isinstance(value, int):
            if MIN_INTEGER <= value <= MAX_INTEGER:
                return int.__int__(value)
            raise InvalidInputError(
                _name_of(place), shown(value), "must be an integer of 64 bits; pass a larger one as text"
            )
        if isinstance(value, float):
            if math.isfinite(value):
                return float.__float__(value)
            raise InvalidInputError(_name_of(place), shown(value), "must be a finite number")
        if depth > MAX_DEPTH:
            raise InvalidInputError(field, shown(json_value), f"must be nested at most {MAX_DEPTH} levels deep")
        if isinstance(value, _MAPPINGS):
            return {text(key, (place,)): copy(item, (place, key), depth + 1) for key, item in value.items()}
        if isinstance(value, _SEQUENCES) and not isinstance(value, bytes | bytearray | memoryview):
            return [copy(item, (place, index), depth + 1) for index, item in enumerate(value)]
        raise InvalidInputError(_name_of(place), shown(value), f"{type(value).__name__} is not a JSON value")

    def text(value: object, place: _Place) -> str:
        nonlocal left_bytes
        if not isinstance(value, str):
            raise InvalidInputError(_name_of(place), shown(value), "must be text")
        left_bytes -= len(value)
        if left_bytes < 0:
            raise too_large()
        try:
            return plain_text(value)
        except ValueError as error:
            raise InvalidInputError(_name_of(place), shown(value), str(error)) from None

    copied = copy(json_value, field, 1)
    if len(pydantic_core.to_json(copied)) > max_bytes:
        raise too_large()
    return copied


_Place = Any
"""The place of a value: the name of the argument, or a tuple of the place of its container and the key or the index in
it. The place of a key is a tuple of the place of its mapping alone. Only errors turn it into a name, since that takes
long."""


def _name_of(place: _Place) -> str:
    if isinstance(place, str):
        return place
    if len(place) == 1:
        return f"a key of {_name_of(place[0])}"
    return f"{_name_of(place[0])}[{place[1] if isinstance(place[1], int) else shown(place[1])}]"


def is_deeper(value: object, levels: int) -> bool:
    """Return whether a frozen value is nested more than `levels` deep. An empty container does not count as a level."""
    layer: list[Any] = [value]
    for _ in range(levels + 1):
        contents = (
            container.values() if isinstance(container, dict) else container
            for container in layer
            if isinstance(container, dict | tuple)
        )
        layer = [inner for container in contents for inner in container]
    return bool(layer)


def plain_text(value: str) -> str:
    """Return the text as a plain `str`, not a subclass.

    Raises:
        ValueError: it holds a lone surrogate, which no store and no provider accepts.
    """
    plain = str.__str__(value)
    try:
        plain.encode()
    except UnicodeEncodeError:
        raise ValueError("must be text without lone surrogates") from None
    return plain


def _freeze_field(value: Mapping[str, Any]) -> FrozenDict:
    try:
        frozen: FrozenDict = freeze(value)
    except TypeError as error:
        raise ValueError(str(error)) from error
    return frozen


JsonObject = Annotated[dict[str, Any], AfterValidator(_freeze_field)]
"""A pydantic field that holds a deeply frozen JSON object."""
