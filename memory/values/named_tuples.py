"""`by_name`: how named tuples travel between processes of two versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def by_name(values: Any) -> Reduced:
    """Return what pickle needs to make a named tuple again: the names of its fields, with their values.

    It is for the class's `__reduce__`. Pickle would write the values alone, so a field more in a later version would
    shift those behind it.
    """
    return _made, (type(values), values._asdict())


def _made(kind: Any, values: dict[str, Any]) -> Any:
    return kind(**values)
