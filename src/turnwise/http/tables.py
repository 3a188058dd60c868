"""Tables of a configuration file: dataclasses of settings as pydantic reads them, and the lines on which keys stand."""

from __future__ import annotations

import tomllib
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, create_model
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from turnwise.errors import TurnwiseError

Path = tuple[str | int, ...]
"""Where a key is: the names of tables and keys, and places in lists."""


class Section(BaseModel):
    """A table that takes no other keys than its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Table:
    """Marks a field that is a dataclass of settings: its table has the dataclass's fields, and no others.

    Fields that are omitted keep the dataclass's default. A value that the dataclass refuses is an error at the field's
    key.

    Args:
        without: fields that a file cannot give.
    """

    def __init__(self, *without: str) -> None:
        self._without = without

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        hints = get_type_hints(source)
        options: dict[str, Any] = {
            field.name: (
                _readable(hints[field.name]),
                ... if field.default is MISSING and field.default_factory is MISSING else None,
            )
            for field in fields(source)
            if field.name not in self._without
        }
        model = create_model(f"{source.__name__}Table", __base__=Section, **options)

        def make(table: BaseModel) -> Any:
            try:
                return source(**{name: getattr(table, name) for name in table.model_fields_set})
            except TurnwiseError as error:
                raise refusal(error) from None

        read = core_schema.no_info_after_validator_function(make, handler.generate_schema(model))
        instance = core_schema.is_instance_schema(source)
        return core_schema.tagged_union_schema(
            {"made": instance, "table": read},
            discriminator=lambda value: "made" if isinstance(value, source) else "table",
        )


def refusal(error: TurnwiseError) -> PydanticCustomError:
    """Return what a validator raises for an error of turnwise."""
    key = str(getattr(error, "setting", "")).rpartition(".")[2]
    return PydanticCustomError("turnwise", "{why}", {"why": getattr(error, "why", None) or str(error), "key": key})


def _readable(hint: Any) -> Any:
    """Return a type that pydantic reads from a table, for one in a dataclass of settings."""
    origin, arguments = get_origin(hint), tuple(map(_readable, get_args(hint)))
    if isinstance(hint, type) and is_dataclass(hint):
        return Annotated[hint, Table()]
    if origin in (Union, types.UnionType):
        return Union[arguments]  # noqa: UP007 - made at run time
    if origin in (Collection, Sequence):
        return list[arguments[0]]  # type: ignore[valid-type]
    if origin is Mapping:
        return dict[arguments[0], arguments[1]]  # type: ignore[valid-type]
    return hint


def line_of(text: str, path: Path) -> int | None:
    """Return the line of a TOML text on which a key, or the nearest table around it, begins; None if there is none."""
    lines = text.splitlines(keepends=True)
    for size in range(len(path), 0, -1):
        begin = 0
        for end in range(1, len(lines) + 1):
            try:
                table: Any = tomllib.loads("".join(lines[:end]))
            except tomllib.TOMLDecodeError:
                continue  # in the middle of a value
            try:
                for name in path[:size]:
                    table = table[name]
            except (KeyError, IndexError, TypeError):
                begin = end
            else:
                while not lines[begin].strip() or lines[begin].lstrip().startswith("#"):
                    begin += 1
                return begin + 1
    return None
