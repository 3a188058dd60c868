"""`Record`, the base of stored records, which pydantic reads and writes by their types. Copies of frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex, TypeVar

from pydantic import ConfigDict, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema

if TYPE_CHECKING:
    from dataclasses import replace  # so that type checkers know the fields

    from pydantic import BaseModel

__all__ = ["Record", "adapter", "lean", "record_of", "record_text", "record_values", "reduced", "replace"]

Model = TypeVar("Model", bound="BaseModel")
Stored = TypeVar("Stored", bound="Record")

_set = object.__setattr__


class Record:
    """Base of the dataclasses that stores keep, without slots, so that pickle names their fields.

    A record that is read is checked strictly against the types of its fields, and unknown fields are refused. One that
    a program makes is not checked.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid", ser_json_inf_nan="constants")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema: Any = handler(source)
        schema["strict"] = False  # a JSON object is read as the record; its fields stay strict
        return schema  # type: ignore[no-any-return]


if not TYPE_CHECKING:

    def replace(record: Any, /, **changes: Any) -> Any:
        """Return a copy of a frozen dataclass without slots and without checks, with some fields changed.

        `dataclasses.replace` takes ten times as long: a turn makes 20 copies, and would cost a session a sixth more.

        Raises:
            TypeError: the record has no such field.
            AttributeError: its class has slots.
        """
        values = record.__dict__ | changes
        if len(values) > len(record.__dict__):
            unknown = ", ".join(sorted(changes.keys() - record.__dict__.keys()))
            raise TypeError(f"{type(record).__name__} has no field {unknown}")
        copy = object.__new__(type(record))
        _set(copy, "__dict__", values)
        return copy


def record_text(record: Record, names: set[str]) -> str:
    """Return the fields with these names as a JSON object, without fields that have their default value."""
    return adapter(type(record)).serializer.to_json(record, include=names, exclude_defaults=True).decode()


def record_values(record: Record, names: set[str]) -> dict[str, Any]:
    """Return what `record_text` writes, as a dict."""
    values: dict[str, Any] = adapter(type(record)).serializer.to_python(
        record, mode="json", include=names, exclude_defaults=True
    )
    return values


def record_of(cls: type[Stored], values: Mapping[str, Any]) -> Stored:
    """Return the record with these fields, as JSON has them.

    Raises:
        ValidationError: a field is missing, unknown, or has a value that does not fit.
    """
    record: Stored = adapter(cls).validator.validate_python(values)
    lean: Stored = object.__new__(cls)
    lean_values = lean.__dict__  # shares its keys with the class's other records, unless it is updated as a whole
    for name, value in record.__dict__.items():
        lean_values[name] = value
    return lean


def adapter(cls: Any) -> TypeAdapter[Any]:
    """Return pydantic's reader and writer of a record's class, made at first use."""
    return _ADAPTERS.get(cls) or _new_adapter(cls)


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}

_adapter_lock = Lock()


def _new_adapter(cls: Any) -> TypeAdapter[Any]:
    with _adapter_lock:  # pydantic resolves names in a stack that the threads of a first call would share
        return _ADAPTERS.get(cls) or _ADAPTERS.setdefault(cls, TypeAdapter(cls))


def reduced(model: BaseModel, protocol: SupportsIndex) -> tuple[Any, ...] | str:
    """Return what pickle needs to make the model again, with the names of its fields: `__reduce_ex__` of frozen models.

    Pydantic's own state takes twice as long to pickle, and each unpickled model would have a set of its own.
    """
    is_plain = model.__pydantic_extra__ is None and model.__pydantic_private__ is None
    if not (is_plain and model.model_config.get("frozen")):  # a class of an engine's own may be anything
        return object.__reduce_ex__(model, protocol)
    return _new_model, (type(model), model.__dict__, _shared(model.__pydantic_fields_set__))


def _new_model(cls: type[Model], values: dict[str, Any], fields_set: set[str]) -> Model:
    """Return a model with these fields, which are valid, of which the caller set `fields_set`."""
    model = cls.__new__(cls)
    _set(model, "__dict__", values)
    _set(model, "__pydantic_fields_set__", fields_set)
    _set(model, "__pydantic_extra__", None)
    _set(model, "__pydantic_private__", None)
    return model


def lean(model: Model) -> Model:
    """Return the same frozen model, with the shared set of the names of its fields instead of a set of its own."""
    names = model.__pydantic_fields_set__
    _set(model, "__pydantic_fields_set__", _SETS.get(frozenset(names)) or _shared(names))
    return model


_SETS: dict[frozenset[str], set[str]] = {}


def _shared(names: set[str]) -> set[str]:
    """Return an equal set that all frozen models share: it takes more memory than most events, and never changes."""
    return _SETS.get(key := frozenset(names)) or _SETS.setdefault(key, set(names))
