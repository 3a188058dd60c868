"""Copies and pickles of frozen records, for those that each turn changes and each reader is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

__all__ = ["lean", "reduced", "replace", "with_fields"]

Record = TypeVar("Record")

Model = TypeVar("Model", bound="BaseModel")

_set = object.__setattr__

if TYPE_CHECKING:
    from dataclasses import replace  # so that type checkers know the fields

    from pydantic import BaseModel
else:

    def replace(record: Record, /, **changes: Any) -> Record:
        """Return a copy of a frozen dataclass without slots, with some fields changed.

        It does what `dataclasses.replace` does, in a fraction of its time, except that it calls no `__post_init__`.

        Raises:
            TypeError: the record has no such field.
            AttributeError: its class has slots: use `dataclasses.replace`.
        """
        values = record.__dict__ | changes
        if len(values) > len(record.__dict__):
            unknown = ", ".join(sorted(changes.keys() - record.__dict__.keys()))
            raise TypeError(f"{type(record).__name__} has no field {unknown}")
        copy = object.__new__(type(record))
        object.__setattr__(copy, "__dict__", values)
        return copy


def with_fields(model: Model, values: Mapping[str, Any]) -> Model:
    """Return a copy of a frozen model without extra fields and private attributes, with some fields changed.

    It does what `model.model_copy(update=values)` does, in a fraction of its time.
    """
    return _made(type(model), {**model.__dict__, **values}, _shared(model.__pydantic_fields_set__ | values.keys()))


def reduced(model: BaseModel, protocol: SupportsIndex) -> tuple[Any, ...] | str:
    """Return what pickle needs to make the model again: the `__reduce_ex__` of frozen models.

    Pydantic's own state takes twice as long to pickle, and each unpickled model would have a set of its own.
    """
    is_plain = model.__pydantic_extra__ is None and model.__pydantic_private__ is None
    if not (is_plain and model.model_config.get("frozen")):  # a class of an engine's own may be anything
        return object.__reduce_ex__(model, protocol)
    return _made, (type(model), model.__dict__, _shared(model.__pydantic_fields_set__))


def _made(cls: type[Model], values: dict[str, Any], given: set[str]) -> Model:
    """Return a model with these fields, which are valid, of which `given` were given."""
    model = cls.__new__(cls)
    _set(model, "__dict__", values)
    _set(model, "__pydantic_fields_set__", given)
    _set(model, "__pydantic_extra__", None)
    _set(model, "__pydantic_private__", None)
    return model


def lean(model: Model) -> Model:
    """Return the same frozen model; the names of the fields that it was given take no more memory of its own."""
    _set(model, "__pydantic_fields_set__", _shared(model.__pydantic_fields_set__))
    return model


_SETS: dict[frozenset[str], set[str]] = {}


def _shared(names: set[str]) -> set[str]:
    """Return an equal set that all frozen models share: it takes more memory than most events, and never changes."""
    return _SETS.get(key := frozenset(names)) or _SETS.setdefault(key, set(names))
