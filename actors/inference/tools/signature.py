"""Converts a function's signature to a JSON schema, and a model's arguments to Python values."""

from __future__ import annotations

import functools
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import SchemaError

from turnwise.actors.inference.tools.context import ToolContext
from turnwise.errors import ConfigError, InvalidInputError, shown
from turnwise.memory.conversation.output_type import OutputType, check_pattern, without_dialect
from turnwise.memory.values.frozen_json import FrozenDict, freeze, plain_json

MAX_OUTPUT_BYTES = 65_536
"""The maximum size of the schema of an answer, which is stored with the run: bytes of JSON in UTF-8."""


@dataclass(frozen=True, eq=False)
class Arguments:
    """The parameters of a function: those that the model passes, and those that get the `ToolContext`."""

    parameters: tuple[tuple[str, Any, Any], ...]
    """Name, resolved annotation and default (... if there is none) of each parameter that the model passes."""
    contexts: tuple[str, ...] = ()
    """The names of the parameters that get the context."""
    model: type[BaseModel] = field(init=False, repr=False)
    """Validates arguments. Its fields have other names, since a field may not be called `copy` or `_x`."""

    def __post_init__(self) -> None:
        names = {f"a{index}": name for index, (name, _, _) in enumerate(self.parameters)}
        config = ConfigDict(extra="forbid", alias_generator=names.__getitem__)
        types = [(hint, default) for _, hint, default in self.parameters]
        model = create_model("Arguments", __config__=config, **cast(Any, dict(zip(names, types, strict=True))))
        object.__setattr__(self, "model", model)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(Arguments, parameters=self.parameters, contexts=self.contexts), ()

    def check(self, document: str) -> dict[str, Any]:
        """Return the value of each parameter. Raises pydantic's ValidationError."""
        values = self.model.model_validate_json(document)
        return {name: getattr(values, f"a{index}") for index, (name, _, _) in enumerate(self.parameters)}


# Signatures


def parameters_of(
    name: str, source: Callable[..., Any], *, is_method: bool
) -> tuple[tuple[tuple[str, Any, Any], ...], tuple[str, ...]]:
    """Return the parameters that the model passes, and the names of those that get the context.

    Args:
        is_method: whether to leave out a first parameter `self`.
    """
    try:
        parameters = list(inspect.signature(source).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError("function", source, f"tool {name!r}: {error}") from error
    if is_method and parameters and parameters[0].name == "self":
        del parameters[0]
    scope = getattr(plain_function(source), "__globals__", {})
    # The model cannot pass arguments that a partial function binds, or the parameter that Ray adds to actor methods.
    hidden = {"_ray_trace_ctx", *(source.keywords if isinstance(source, functools.partial) else ())}
    from_model, contexts = [], []
    for parameter in parameters:
        if parameter.name in hidden:
            continue
        hint = _hint(name, parameter, scope)
        if _is_context(hint):
            contexts.append(parameter.name)
        else:
            from_model.append(
                (parameter.name, hint, ... if parameter.default is parameter.empty else parameter.default)
            )
    return tuple(from_model), tuple(contexts)


def _hint(name: str, parameter: inspect.Parameter, scope: dict[str, Any]) -> Any:
    """Return the parameter's annotation, resolved."""
    if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        reason = f"it is {parameter.kind.description}, but models pass arguments by name: declare each parameter"
    elif parameter.annotation is parameter.empty:
        reason = "it has no annotation" + (": make the tool from the bound method" if parameter.name == "self" else "")
    else:
        holder = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
        try:
            return get_type_hints(holder, scope, include_extras=True)[parameter.name]
        except Exception as error:
            reason = f"its annotation {parameter.annotation!r} cannot be resolved ({error}): import it at module level"
            raise ConfigError("parameter", parameter.name, f"tool {name!r}: {reason}") from error
    raise ConfigError("parameter", parameter.name, f"tool {name!r}: {reason}")


def _is_context(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return set(parts) - {NoneType} == {ToolContext} if ToolContext in parts else False


def without_partial(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def plain_function(function: Any) -> Any:
    """Return the function that is called in the end, without partials, Ray's wrapper and decorators."""
    bare = without_partial(function)
    if callable(getattr(bare, "remote", None)):
        bare = getattr(bare, "_function", bare)
    return inspect.unwrap(bare if inspect.isroutine(bare) else type(bare).__call__)


def described(doc: str) -> dict[str, str]:
    """Return the description of each parameter in the docstring's `Args` section."""
    section = re.search(r"^(?:Args|Arguments|Parameters):[ \t]*\n((?:[ \t]+\S.*(?:\n|$)|[ \t]*\n)+)", doc, re.MULTILINE)
    entries = re.split(r"^(\w+)(?: *\([^)]*\))?:", textwrap.dedent(section[1]) if section else "", flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in zip(entries[1::2], entries[2::2], strict=True)}


# Schemas


class _Schema(GenerateJsonSchema):
    """Leaves out titles, which only repeat names, and defaults that JSON cannot represent."""

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        if kind != "non-serializable-default":
            super().emit_warning(kind, detail)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schema_of(model: type[BaseModel], descriptions: Mapping[str, str]) -> FrozenDict:
    schema = model.model_json_schema(schema_generator=_Schema)
    schema.pop("title", None)
    for name, text in descriptions.items():
        if name in schema["properties"]:
            schema["properties"][name].setdefault("description", text)
    return FrozenDict(freeze(schema))


def output_record(output: Any, retries: int) -> FrozenDict:
    """Return the type of a run's answer as it is stored with the run: a JSON schema, or that of a class.

    Raises:
        InvalidInputError: the class has no JSON schema, or the schema is invalid or not one of an object.
    """
    is_type = isinstance(output, type) or get_origin(output) is not None
    if not isinstance(output, Mapping) and not (is_type and isinstance(output, Hashable)):
        raise InvalidInputError("output", shown(output), "must be a class, such as a pydantic model, or a JSON schema")
    try:
        schema = _callers_schema(output) if isinstance(output, Mapping) else _schema_of_type(output)
    except InvalidInputError:
        raise
    except Exception as error:
        message = str(error).partition("\n")[0]
        reason = f"it has no valid JSON schema ({type(error).__name__}: {message})"
        raise InvalidInputError("output", shown(output), reason) from error
    if schema.get("type") != "object":
        raise InvalidInputError(
            "output", shown(output), "its schema is not one of an object: pass a model that has it as a field"
        )
    return OutputType(schema=schema, retries=retries).record


@functools.lru_cache(maxsize=128)
def _schema_of_type(output: Any) -> FrozenDict:
    schema = TypeAdapter(output).json_schema(schema_generator=_Schema)
    if name := schema.get("$ref", "").removeprefix("#/$defs/"):  # a recursive model
        schema = {**schema["$defs"][name], "$defs": schema["$defs"]}
    return _stored_schema(schema)


def _callers_schema(schema: Mapping[str, Any]) -> FrozenDict:
    stored = _stored_schema(schema)
    check_safe(stored)
    return stored


def check_safe(schema: object) -> None:
    """Check that values can be checked by a schema of an unknown caller: fast, and without the network.

    Only the schema itself says what its references mean, and how it is checked: a part with an id or a dialect of its
    own is refused, since references and patterns within it are read in another way.

    Raises:
        ValueError: it refers to other documents or endlessly to itself, or checking by it may take forever.
    """
    parts, anchors = _parts(schema)
    dialect = str(schema.get("$schema")) if isinstance(schema, Mapping) else ""
    if "draft-03" in dialect:
        raise ValueError(f"$schema {shown(dialect)} is not supported: use a later draft")
    own = ("$schema", "$id", "id") if "draft-04" in dialect else ("$schema", "$id")
    counts: dict[int, tuple[int, int]] = {}
    for value in parts:
        _count_checks(value, schema, anchors, counts)
        if value is not schema and (name := next((name for name in own if isinstance(value.get(name), str)), None)):
            raise ValueError(f"{name} {shown(value[name])} is not supported within a schema: leave it out")
        for name in _REFERENCES:
            if isinstance(reference := value.get(name), str) and _named(reference, schema, anchors) is None:
                raise ValueError(f"{name} {shown(reference)} is not in the schema itself: refer to '#/$defs/...'")
        if isinstance(pattern := value.get("pattern"), str):
            try:
                TypeAdapter(Annotated[str, Field(pattern=pattern)])
            except SchemaError:
                raise ValueError(f"the pattern {shown(pattern)} is not one that is checked in linear time") from None
        if isinstance(value.get("patternProperties"), Mapping):
            raise ValueError("patternProperties is not supported: name the properties, or use additionalProperties")


def _parts(schema: object) -> tuple[list[Mapping[str, Any]], dict[str, object]]:
    """Return all objects in a schema, and those of them that have an anchor, by it: what `#anchor` refers to.

    Raises:
        ValueError: two have the same anchor.
    """
    parts: list[Mapping[str, Any]] = []
    anchors: dict[str, object] = {}
    pending = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            parts.append(value)
            for name in ("$anchor", "$dynamicAnchor"):
                if isinstance(anchor := value.get(name), str) and anchors.setdefault(anchor, value) is not value:
                    raise ValueError(f"{name} {shown(anchor)} names two parts of the schema")
            pending += value.values()
        elif isinstance(value, Sequence) and not isinstance(value, str):
            pending += value
    return parts, anchors


_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

_BY_NAME = ("dependentSchemas", "dependencies")
"""The keywords with schemas by name."""

_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", *_BY_NAME, *_REFERENCES)
"""The parts of a schema that check the same value as the schema itself."""

_MOST_CHECKS, _MOST_DEEP = 1000, 50
"""How often one value may be checked, and by how many schemas within one another."""


def _count_checks(
    schema: object,
    root: object,
    anchors: Mapping[str, object],
    counts: dict[int, tuple[int, int]],
    depth: int = 0,
) -> tuple[int, int]:
    """Return how many schemas check one value, beginning with `schema`, and how many of them within one another.

    Adds the numbers of its parts to `counts`.

    Raises:
        ValueError: too many, or without end.
    """
    if not isinstance(schema, Mapping):
        return 0, 0
    if depth > _MOST_DEEP or counts.get(id(schema)) == (0, 0):
        raise ValueError("its parts refer to one another without end, or are nested too deeply")
    if id(schema) not in counts:
        counts[id(schema)] = 0, 0
        parts: list[object] = []
        for name in _IN_PLACE:
            part = schema.get(name)
            if name in _BY_NAME:
                parts += part.values() if isinstance(part, Mapping) else ()
            elif isinstance(part, Sequence) and not isinstance(part, str):
                parts += part
            else:
                parts.append(_named(part, root, anchors) if isinstance(part, str) else part)
        sizes = [_count_checks(part, root, anchors, counts, depth + 1) for part in parts]
        count = 1 + sum(inner_count for inner_count, _ in sizes)
        height = 1 + max((inner_height for _, inner_height in sizes), default=0)
        if count > _MOST_CHECKS or height > _MOST_DEEP:
            raise ValueError("its parts refer to one another so often that a check may take forever")
        counts[id(schema)] = count, height
    return counts[id(schema)]


def _named(reference: str, root: object, anchors: Mapping[str, object]) -> object:
    """Return the part of a schema that a reference within it names; None if there is none.

    `#` is the schema itself, `#/...` a path in it, and `#name` the part with this anchor.
    """
    if not reference.startswith("#"):
        return None
    first, *path = reference[1:].split("/")
    if first:
        return None if path else anchors.get(unquote(first))
    part: object = root
    for name in path:
        name = unquote(name).replace("~1", "/").replace("~0", "~")  # noqa: PLW2901
        if isinstance(part, Mapping):
            part = part.get(name)
        elif isinstance(part, Sequence) and not isinstance(part, str) and name.isdecimal():
            part = part[int(name)] if int(name) < len(part) else None
        else:
            return None
    return part


def _stored_schema(schema: Mapping[str, Any]) -> FrozenDict:
    from jsonschema import Draft202012Validator, FormatChecker  # type: ignore[import-untyped]

    plain = plain_json("output", schema, MAX_OUTPUT_BYTES)
    # Without formats, since pydantic accepts patterns that Python's `re` does not.
    Draft202012Validator.check_schema(plain, format_checker=FormatChecker(formats=()))
    return FrozenDict(freeze(plain))


def known_schema(name: str, schema: Mapping[str, Any]) -> FrozenDict:
    """Return a caller's JSON schema, frozen. Raises ConfigError if it is not a schema of an object."""
    from jsonschema import SchemaError as JsonSchemaError
    from jsonschema.validators import validator_for  # type: ignore[import-untyped]

    try:
        plain = json.loads(json.dumps(schema))
        validator_for(plain).check_schema(plain)
    except (TypeError, ValueError, JsonSchemaError) as error:
        raise ConfigError("parameters", schema, f"tool {name!r}: it is not a JSON schema ({error})") from error
    if plain.get("type") != "object":
        raise ConfigError("parameters", schema, f"tool {name!r}: the schema's type must be 'object'")
    return FrozenDict(freeze(plain))


def follow_schema(schema: Mapping[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments. Raises ValueError if they do not match a caller's schema."""
    from jsonschema.validators import extend, validator_for

    plain = json.loads(json.dumps(schema))
    validator = extend(validator_for(plain), {"pattern": check_pattern})
    try:
        flaws = list(validator(without_dialect(plain)).iter_errors(arguments))
    except RecursionError:
        raise ValueError("the arguments are nested too deeply") from None
    if flaws:
        raise ValueError(say((error.path, error.message) for error in flaws))
    return arguments


def say(errors: Iterable[tuple[Iterable[object], str]]) -> str:
    """Return the errors as one line of text: where each is, and what it is."""
    return "; ".join(": ".join(filter(None, (".".join(map(str, where)), message))) for where, message in errors)
