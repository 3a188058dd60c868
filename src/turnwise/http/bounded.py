"""`Bounded`: the base of all request bodies. Counts come before contents, and errors are few."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from turnwise.memory.conversation.limits import check_count

MAX_ERRORS = 100
"""The most errors of a request that are listed: to list one takes longer than to find it."""


Bounds = Mapping[str, tuple[str, int]]
"""By the names of fields, as requests have them: the bound's name, and how many members the field may have."""


class Bounded(BaseModel):
    """What a request has. Refuses a list or an object with too many members before it looks at them."""

    bounds: ClassVar[Bounds] = {}

    @model_validator(mode="wrap")
    @classmethod
    def _within_bounds(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(given, dict):
            for name, (limit, most) in cls.bounds.items():
                if isinstance(members := given.get(name), list | dict):
                    check_count(name, len(members), limit, most)
        try:
            return handler(given)
        except ValidationError as error:
            if (count := error.error_count()) <= MAX_ERRORS:
                raise
        why = "it has {count} errors, and {most} are the most that are listed"
        raise PydanticCustomError("too_many_errors", why, {"count": count, "most": MAX_ERRORS})
