"""`needs`: a class raises an error that names a missing required argument, and what to pass for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from turnwise.errors import MissingArgumentError

Made = TypeVar("Made")


def needs(**hints: str) -> Callable[[type[Made]], type[Made]]:
    """Decorate a class so that making one without a required argument raises `MissingArgumentError`.

    Args:
        hints: for each required argument, by its name, what to pass, as the end of a sentence.
    """

    def decorate(cls: type[Made]) -> type[Made]:
        init: Callable[..., None] = cls.__init__
        signature = inspect.signature(init)

        @wraps(init)
        def checked_init(self: Made, *args: Any, **kwargs: Any) -> None:
            check_given(type(self).__name__, signature, (self, *args), kwargs, hints)
            init(self, *args, **kwargs)

        cls.__init__ = checked_init  # type: ignore[method-assign, assignment]
        return cls

    return decorate


def check_given(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any], hints: dict[str, str]
) -> None:
    """Raise MissingArgumentError if one of the arguments that `hints` name is missing in a call of the class `name`."""
    positional = list(signature.parameters)[: len(args)]
    for argument, hint in hints.items():
        if argument not in kwargs and argument not in positional:
            raise MissingArgumentError(f"{name}()", argument, hint)
