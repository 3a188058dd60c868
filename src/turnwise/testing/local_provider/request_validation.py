"""Checks requests to the simulated provider, except the conversation: for that, see `message_rules`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.testing.local_provider.http_protocol import RefusedError
from turnwise.testing.local_provider.message_rules import TOOL_NAME
from turnwise.testing.local_provider.replies import Message

Fields = Mapping[str, type | tuple[type, ...]]
"""The fields of a request's body, and the values of each besides null."""

NUMBER = (int, float)

_RANGES = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "max_completion_tokens": (1, math.inf),
    "max_tokens": (1, math.inf),
    "max_output_tokens": (16, math.inf),
    "dimensions": (1, math.inf),
}

_NAMES = {
    str: "a string",
    dict: "an object",
    list: "an array",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    type(None): "null",
}


def checked(body: Any, required: str, fields: Fields) -> Message:
    """Return the body if it is an object with all required fields, and no field has a wrong name, type or size."""
    if not isinstance(body, dict):
        raise RefusedError(400, "We could not parse the JSON body of your request")
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RefusedError(400, "We could not parse the JSON body of your request: half a surrogate pair") from None
    for name in ("model", required):
        if not body.get(name):
            reason = f"Missing required parameter: '{name}'."
            raise RefusedError(400, reason, "missing_required_parameter", name)
    for name, value in body.items():
        if name not in fields:
            raise RefusedError(400, f"Unknown parameter: '{name}'.", "unknown_parameter", name)
        if value is not None:
            _check_value(name, value, fields[name])
    if body.get("stream_options") and not body.get("stream"):
        raise _refused("stream_options", "only allowed when 'stream' is enabled.")
    return body


def _check_value(name: str, value: object, types: type | tuple[type, ...]) -> None:
    types = types if isinstance(types, tuple) else (types,)
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        expected = " or ".join(_NAMES[expected_type] for expected_type in types)
        reason = f"Invalid type for '{name}': expected {expected}, but got {_NAMES[type(value)]} instead."
        raise RefusedError(400, reason, "invalid_type", name)
    low, high = _RANGES.get(name, (-math.inf, math.inf))
    if isinstance(value, int | float) and not low <= value <= high:
        side, code, bound = (">=", "below_min", low) if value < low else ("<=", "above_max", high)
        kind = "integer" if isinstance(value, int) else "decimal"
        reason = f"Invalid '{name}': {kind} {code.split('_')[0]} {code.split('_')[1]}imum value."
        reason += f" Expected a value {side} {bound}, but got {value} instead."
        raise RefusedError(400, reason, f"{kind}_{code}_value", name)


def check_tools(body: Message, functions: Sequence[tuple[str, Any]], chosen: object) -> None:
    """Refuse invalid tool definitions, and the choice of a tool that is not defined.

    Args:
        functions: the path of each definition in the body, and the definition.
        chosen: the name in `tool_choice`, if it is an object.
    """
    for param, function in functions:
        _check_function(param, function)
    choice = body.get("tool_choice")
    for name in ("tool_choice", "parallel_tool_calls"):
        if body.get(name) is not None and not body.get("tools"):
            raise _refused(name, f"'{name}' is only allowed when 'tools' are specified.")
    if isinstance(choice, str) and choice not in ("none", "auto", "required"):
        raise RefusedError(
            400,
            f"Invalid value: '{choice}'. Supported values are: 'none', 'auto', and 'required'.",
            "invalid_value",
            "tool_choice",
        )
    if isinstance(choice, dict) and chosen not in [function["name"] for _, function in functions]:
        raise RefusedError(400, f"Tool choice '{chosen}' not found in 'tools' parameter.", None, "tool_choice")


def check_format(param: str, form: Any) -> None:
    """Refuse an invalid schema of an answer.

    Args:
        param: its path in the body.
        form: its name, the schema, and whether it is strict; None if there is none.
    """
    if form is None:
        return
    if not isinstance(form, dict) or not TOOL_NAME.fullmatch(str(form.get("name", ""))):
        raise RefusedError(400, f"Missing required parameter: '{param}.name'.", "missing_required_parameter", param)
    schema = form.get("schema")
    if flaw := _flaw(schema, ()) or (_loose(schema, ()) if form.get("strict") else None):
        reason = f"Invalid schema for response_format '{form['name']}': {flaw}"
        raise RefusedError(400, reason, "invalid_json_schema", param)


def check_schema(schema: Any, *, is_strict: bool = False) -> str | None:
    """Return what is wrong with the schema of an object, or nothing. `is_strict`: it must describe each property."""
    return _flaw(schema, ()) or (_loose(schema, ()) if is_strict else None)


def _loose(schema: Any, path: tuple[str, ...]) -> str | None:
    """Return why the real API's strict mode refuses a schema; nothing if it accepts it."""
    if unknown := sorted(set(schema) & {"default", "uniqueItems", "minLength", "maxLength", "prefixItems", "oneOf"}):
        return f"In context={path}, '{unknown[0]}' is not permitted."
    if "$ref" in schema and len(schema) > 1:
        return f"In context={path}, $ref cannot have keywords {set(schema) - {'$ref'}}."
    parts = [((*path, "$defs", name), part) for name, part in (schema.get("$defs") or {}).items()]
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            return f"In context={path}, 'additionalProperties' is required to be supplied and to be false."
        if set(schema.get("required", ())) != set(schema["properties"]):
            reason = "'required' is required to be supplied and to be an array including every key in properties."
            return f"In context={path}, {reason}"
        parts += [((*path, "properties", name), part) for name, part in schema["properties"].items()]
    parts += [((*path, "anyOf", str(index)), part) for index, part in enumerate(schema.get("anyOf") or ())]
    parts += [((*path, "items"), schema["items"])] if "items" in schema else []
    return next(filter(None, (_loose(part, where) for where, part in parts)), None)


def _check_function(param: str, function: Any) -> None:
    if not isinstance(function, dict) or not function.get("name"):
        raise RefusedError(
            400, f"Missing required parameter: '{param}.name'.", "missing_required_parameter", f"{param}.name"
        )
    name = function["name"]
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        reason = f"Invalid '{param}.name': string does not match pattern. Expected {TOOL_NAME.pattern!r}."
        raise RefusedError(400, reason, "invalid_value", f"{param}.name")
    _check_value(f"{param}.description", function.get("description") or "", str)
    schema = function.get("parameters")
    if schema is not None and (flaw := _flaw(schema, ())):
        reason = f"Invalid schema for function '{name}': {flaw}"
        raise RefusedError(400, reason, "invalid_function_parameters", f"{param}.parameters")


def _flaw(schema: Any, path: tuple[str, ...]) -> str | None:
    """Return what is wrong with a JSON schema, or nothing."""
    if not isinstance(schema, dict):
        return f"In context={path}, {schema!r} is not of type 'object', 'boolean'."
    kind = schema.get("type")
    if not path and kind != "object":
        return f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
    if kind == "object" and not isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        return f"In context={path}, object schema missing properties."
    if kind == "array" and "items" not in schema:
        return f"In context={path}, array schema missing items."
    parts = [((*path, "properties", name), part) for name, part in (schema.get("properties") or {}).items()]
    parts += [((*path, "anyOf", str(index)), part) for index, part in enumerate(schema.get("anyOf") or ())]
    parts += [((*path, "items"), schema["items"])] if kind == "array" else []
    return next(filter(None, (_flaw(part, where) for where, part in parts if part is not True)), None)


def _refused(name: str, reason: str) -> RefusedError:
    return RefusedError(400, f"Invalid value for '{name}': {reason}", None, name)
