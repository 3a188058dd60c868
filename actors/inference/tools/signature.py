"""Makes the JSON schema of a function's parameters, and converts a model's arguments back to Python values."""

from __future__ import annotations

import functools
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from turnwise.actors.inference.tools.context import ToolContext
from turnwise.errors import ConfigError, InvalidInputError, shown
from turnwise.memory.conversation.frozen_json import FrozenDict, freeze, plain_json
from turnwise.memory.conversation.output_type import OutputType

MAX_OUTPUT_BYTES = 65_536
"""The largest schema of an answer, as JSON in UTF-8: it is stored with the run."""


@dataclass(frozen=True, slots=True, eq=False)
class Arguments:
    """What a function takes: what the model may give, and which parameters get the context."""

    parameters: tuple[tuple[str, Any, Any], ...]
    """Name, resolved annotation, and default (... if there is none) of each that the model gives."""
    contexts: tuple[str, ...] = ()
    """The names of those that get the context."""
    model: type[BaseModel] = field(init=False, repr=False)
    """Its fields have names of their own, since a parameter may be called `copy` or `_x`, and a field may not."""

    def __post_init__(self) -> None:
        names = {f"a{at}": name for at, (name, _, _) in enumerate(self.parameters)}
        config = ConfigDict(extra="forbid", alias_generator=names.__getitem__)
        types = [(hint, default) for _, hint, default in self.parameters]
        model = create_model("Arguments", __config__=config, **cast(Any, dict(zip(names, types, strict=True))))
        object.__setattr__(self, "model", model)

    def __reduce__(self) -> tuple[type[Arguments], tuple[Any, ...]]:
        return Arguments, (self.parameters, self.contexts)

    def check(self, document: str) -> dict[str, Any]:
        """Return the value of each parameter. Raises pydantic's ValidationError."""
        values = self.model.model_validate_json(document)
        return {name: getattr(values, f"a{at}") for at, (name, _, _) in enumerate(self.parameters)}


# What a signature says


def parameters_of(
    name: str, source: Callable[..., Any], *, is_method: bool
) -> tuple[tuple[tuple[str, Any, Any], ...], tuple[str, ...]]:
    """Return the parameters that the model gives, and the names of those that get the context.

    Args:
        is_method: whether a first parameter `self` is not meant.
    """
    try:
        parameters = list(inspect.signature(source).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError("function", source, f"tool {name!r}: {error}") from error
    if is_method and parameters and parameters[0].name == "self":
        del parameters[0]
    scope = getattr(plain_function(source), "__globals__", {})
    # What is bound is not for the model to change; and Ray adds a parameter to the methods of what becomes an actor.
    hidden = {"_ray_trace_ctx", *(source.keywords if isinstance(source, functools.partial) else ())}
    taken, contexts = [], []
    for each in parameters:
        if each.name in hidden:
            continue
        hint = _hint(name, each, scope)
        if _is_context(hint):
            contexts.append(each.name)
        else:
            taken.append((each.name, hint, ... if each.default is each.empty else each.default))
    return tuple(taken), tuple(contexts)


def _hint(name: str, parameter: inspect.Parameter, scope: dict[str, Any]) -> Any:
    """Return the parameter's annotation, resolved."""
    if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        why = f"it is {parameter.kind.description}, and a model gives arguments by name: list them one by one"
    elif parameter.annotation is parameter.empty:
        why = "it has no annotation" + (": make the tool of the bound method" if parameter.name == "self" else "")
    else:
        holder = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
        try:
            return get_type_hints(holder, scope, include_extras=True)[parameter.name]
        except Exception as error:
            why = f"its annotation {parameter.annotation!r} cannot be resolved ({error}): import it at module level"
            raise ConfigError("parameter", parameter.name, f"tool {name!r}: {why}") from error
    raise ConfigError("parameter", parameter.name, f"tool {name!r}: {why}")


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
    """Return the plain function at the bottom of what is called."""
    bare = without_partial(function)
    if callable(getattr(bare, "remote", None)):
        bare = getattr(bare, "_function", bare)
    return inspect.unwrap(bare if inspect.isroutine(bare) else type(bare).__call__)


def described(doc: str) -> dict[str, str]:
    """Return what a docstring's `Args` say of each parameter."""
    section = re.search(r"^(?:Args|Arguments|Parameters):[ \t]*\n((?:[ \t]+\S.*(?:\n|$)|[ \t]*\n)+)", doc, re.MULTILINE)
    entries = re.split(r"^(\w+)(?: *\([^)]*\))?:", textwrap.dedent(section[1]) if section else "", flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in zip(entries[1::2], entries[2::2], strict=True)}


# What a schema says


class _Schema(GenerateJsonSchema):
    """Without the titles that only repeat names, and with a default left out where JSON cannot say it."""

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
    """Return the type of a run's answer, for its record: the JSON schema that pydantic makes of a class.

    Raises:
        InvalidInputError: it makes none, or one that is not of an object.
    """
    is_type = isinstance(output, type) or get_origin(output) is not None
    if not is_type or not isinstance(output, Hashable):
        why = "pass a pydantic model, the class; a JSON schema goes into params={'response_format': ...}"
        raise InvalidInputError("output", shown(output), why)
    try:
        schema = _schema_of_type(output)
    except InvalidInputError:
        raise
    except Exception as error:
        said = str(error).partition("\n")[0]
        why = f"no JSON schema can be made of it ({type(error).__name__}: {said})"
        raise InvalidInputError("output", shown(output), why) from error
    if schema.get("type") != "object":
        raise InvalidInputError("output", shown(output), "an answer is an object: pass a model with this as a field")
    return OutputType(schema=schema, retries=retries).record


@functools.lru_cache(maxsize=128)
def _schema_of_type(output: Any) -> FrozenDict:
    from jsonschema import Draft202012Validator, FormatChecker  # type: ignore[import-untyped]

    schema = TypeAdapter(output).json_schema(schema_generator=_Schema)
    if name := schema.get("$ref", "").removeprefix("#/$defs/"):  # a model that holds itself
        schema = {**schema["$defs"][name], "$defs": schema["$defs"]}
    # Formats aside: a pattern may be such as pydantic reads, and Python does not.
    Draft202012Validator.check_schema(schema, format_checker=FormatChecker(formats=()))
    return FrozenDict(freeze(plain_json("output", schema, MAX_OUTPUT_BYTES)))


def known_schema(name: str, schema: Mapping[str, Any]) -> FrozenDict:
    """Return a schema that somebody wrote, frozen, if it is one."""
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for  # type: ignore[import-untyped]

    try:
        plain = json.loads(json.dumps(schema))
        validator_for(plain).check_schema(plain)
    except (TypeError, ValueError, SchemaError) as error:
        raise ConfigError("parameters", schema, f"tool {name!r}: no JSON schema ({error})") from error
    if plain.get("type") != "object":
        raise ConfigError("parameters", schema, f"tool {name!r}: arguments are an object, so its type is 'object'")
    return FrozenDict(freeze(plain))


def follow_schema(schema: Mapping[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments if they fit a schema that somebody wrote. Raises ValueError."""
    from jsonschema.validators import validator_for

    plain = json.loads(json.dumps(schema))
    if errors := [(each.path, each.message) for each in validator_for(plain)(plain).iter_errors(arguments)]:
        raise ValueError(say(errors))
    return arguments


def say(errors: Iterable[tuple[Iterable[object], str]]) -> str:
    """Return where each error is and what it is."""
    return "; ".join(": ".join(filter(None, (".".join(map(str, where)), what))) for where, what in errors)
