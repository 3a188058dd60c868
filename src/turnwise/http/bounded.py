"""`within_bounds`: the validator of all request bodies. Counts come before contents, and errors are few."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from turnwise.memory.values.limits import check_count

MAX_ERRORS = 100
"""The most errors of a request that are listed: to list one takes longer than to find it."""

Bounds = Mapping[str, tuple[str, int]]
"""By the names of fields, as requests have them: the bound's name, and how many members the field may have."""


def _within_bounds(cls: type[Any], value: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
    """Refuse a list or an object with more members than `bounds` of the class says, before they are looked at."""
    bounds: Bounds = getattr(cls, "bounds", {})
    if isinstance(value, dict):
        for name, (limit, most) in bounds.items():
            if isinstance(members := value.get(name), list | dict):
                check_count(name, len(members), limit, most)
    try:
        return handler(value)
    except ValidationError as error:
        if (count := error.error_count()) <= MAX_ERRORS:
            raise
    reason = "it has {count} errors, and {most} are the most that are listed"
    raise PydanticCustomError("too_many_errors", reason, {"count": count, "most": MAX_ERRORS})


within_bounds: Any = model_validator(mode="wrap")(_within_bounds)
"""The validator, for a class of bodies to have as an attribute of its own."""
