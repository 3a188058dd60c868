"""JSON values that cannot be changed: dicts become `FrozenDict`, lists become tuples, all the way down."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NoReturn

from pydantic import AfterValidator


class FrozenDict(dict[str, Any]):
    """A dict that refuses every change; equal to a plain dict of the same items, written as JSON like one."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this mapping is part of an immutable record: copy it with dict(...)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)


def freeze(value: Any) -> Any:
    """Return `value` frozen. Takes what JSON can hold; anything else is a TypeError that names it or its type."""
    if isinstance(value, float) and not math.isfinite(value):
        raise TypeError(f"{value} is not a JSON value")
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, Mapping):
        return FrozenDict({str(key): freeze(item) for key, item in value.items()})
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return tuple(freeze(item) for item in value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _freeze_field(value: Mapping[str, Any]) -> FrozenDict:
    try:
        frozen: FrozenDict = freeze(value)
    except TypeError as error:
        raise ValueError(str(error)) from error
    return frozen


JsonObject = Annotated[dict[str, Any], AfterValidator(_freeze_field)]
"""A pydantic field that holds a deeply frozen JSON object."""
