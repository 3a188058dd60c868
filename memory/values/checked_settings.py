"""`checked_settings`: a dataclass of settings checks its fields by their types when it is made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import fields
from threading import Lock
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, PlainValidator, TypeAdapter, ValidationError

from turnwise.errors import ConfigError, shown
from turnwise.memory.values.ranges import number, seconds, whole_number


def _not_blank(value: Any) -> Any:
    if not value.strip():
        raise ValueError("must not be blank")
    return value


NotBlank = Annotated[str, PlainValidator(_not_blank)]


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        raise ValueError("must be a list of names")
    return tuple(value)


Names = Annotated[Collection[str], PlainValidator(_names)]

Seconds = Annotated[float, PlainValidator(seconds)]
"""From 0."""
PositiveSeconds = Annotated[float, PlainValidator(functools.partial(seconds, may_be_0=False))]
Count = Annotated[int, PlainValidator(whole_number)]
"""From 0."""
PositiveCount = Annotated[int, PlainValidator(functools.partial(whole_number, least=1))]
PositiveBytes = Annotated[int, PlainValidator(functools.partial(whole_number, least=1, most=2**53))]
"""As every store adds them up exactly."""
Share = Annotated[float, PlainValidator(functools.partial(number, most=1))]
"""Above 0 and up to 1."""
ShareOrZero = Annotated[float, PlainValidator(functools.partial(number, most=1, may_be_0=True))]
"""From 0 up to 1."""

Class = TypeVar("Class", bound=type[Any])


def checked_settings(prefix: str = "") -> Callable[[Class], Class]:
    """Decorate a class below `@dataclass`: fields whose types are `Annotated` or `Literal` are checked when it is made.

    A validator of a type may also convert its value, such as a list to a tuple. Then the class's own `__post_init__`
    checks what concerns several fields.

    Args:
        prefix: what stands before the names of fields in errors, formatted with the object, such as "tool {0.name}: ".

    Raises:
        ConfigError: of the decorated class: a field has a value that cannot be used; names the field. The value of a
            field without `repr` is not shown.
    """

    def decorate(cls: Class) -> Class:
        own = cls.__dict__.get("__post_init__")

        def check(self: Any) -> None:
            for name, is_shown, adapter in _checks(type(self)):
                value = getattr(self, name)
                try:
                    checked = adapter.validator.validate_python(value)
                except ValidationError as error:
                    shown_value = (
                        type(value).__name__ if not is_shown else value if type(value) in _PLAIN else shown(value)
                    )
                    raise ConfigError(f"{prefix.format(self)}{name}", shown_value, why_refused(error)) from None
                if checked is not value:
                    object.__setattr__(self, name, checked)
            if own:
                own(self)

        settings_class: Any = cls
        settings_class.__post_init__ = check
        return cls

    return decorate


def why_refused(error: ValidationError) -> str:
    """Return what the first error says that a value must be."""
    reason = error.errors(include_url=False, include_input=False)[0]["msg"]
    return reason.removeprefix("Value error, ").replace("Input should be", "must be")


_PLAIN = (str, int, float, bool, type(None), list, tuple, set, dict)

_checks_lock = Lock()


def _checks(cls: Any) -> tuple[tuple[str, bool, TypeAdapter[Any]], ...]:
    with _checks_lock:  # pydantic resolves names in a stack that the threads of a first call would share
        return _new_checks(cls)


@functools.cache
def _new_checks(cls: Any) -> tuple[tuple[str, bool, TypeAdapter[Any]], ...]:
    hints = get_type_hints(cls, include_extras=True)
    config = ConfigDict(strict=True, arbitrary_types_allowed=True)
    checked = [(field.name, field.repr, hints[field.name]) for field in fields(cls) if field.init]
    return tuple(
        (name, repr_, TypeAdapter(_rule(hint), config=config)) for name, repr_, hint in checked if _has_rule(hint)
    )


def _has_rule(hint: Any) -> bool:
    return any(get_origin(part) in (Annotated, Literal) for part in (hint, *get_args(hint)))


def _rule(hint: Any) -> Any:
    """Return a type that has the same checks, without the types whose checks a `PlainValidator` replaces."""
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(map(_rule, get_args(hint)))]  # noqa: UP007 - its parts are known at run time only
    if get_origin(hint) is not Annotated:
        return hint
    _, *rules = get_args(hint)
    return Annotated[Any, *rules] if any(isinstance(rule, PlainValidator) for rule in rules) else hint
