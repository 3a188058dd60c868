"""Fields that both APIs have in requests and answers. Answers are checked here, since the client library does not."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from turnwise.actors.inference.tools.tool import ToolDefinition
from turnwise.memory.conversation.blocks import ToolUse
from turnwise.memory.conversation.calls.call_arguments import read_call
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.values.growing_text import whole


class BrokenOffError(Exception):
    """The provider reported an error within its answer, with a message and perhaps a code."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message, code)
        self.message = message
        self.code = code


def broken_off(error: Any) -> BrokenOffError:
    """Return the provider's error as an exception. `error` is text, or an object whose message is text or an object."""
    if not isinstance(error, Mapping):
        return BrokenOffError(error if isinstance(error, str) else json.dumps(error)[:500])
    message, code = error.get("message"), error.get("code") or error.get("type")
    if isinstance(message, Mapping):
        message = message.get("message") or json.dumps(message)
    text = message if isinstance(message, str) and message else json.dumps(dict(error))
    return BrokenOffError(text[:500], str(code) if code else None)


def mentions(text: str, field: str) -> bool:
    """Return whether a text contains the name of a request's field, as a whole word."""
    return re.search(rf"(?<!\w){re.escape(field)}(?!\w)", text) is not None


def string(holder: Any, name: str) -> str:
    """Return a field's text, empty if missing. Raises ValueError if it is not text."""
    return whole(piece(holder, name))


def piece(holder: Any, name: str) -> str:
    """Return a field's piece of a text for a `GrowingText`, since it may end in half a surrogate pair; see `string`."""
    value = _get(holder, name) or ""
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a string but {type(value).__name__}")
    return value


def items(holder: Any, name: str) -> list[Any]:
    """Return a field's list, empty if missing. Raises ValueError if it is not a list."""
    value = _get(holder, name) or []
    if not isinstance(value, list):
        raise ValueError(f"{name} is not a list but {type(value).__name__}")
    return value


def part(holder: Any, name: str) -> Mapping[str, Any]:
    """Return a field's object, empty if missing. Raises ValueError if it is not an object."""
    value = _get(holder, name) or {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is not an object but {type(value).__name__}")
    return value


def count(holder: Any, *names: str) -> int:
    """Return the number at this path of names, 0 if there is none, since wrong usage must not fail an answer."""
    for name in names:
        holder = _get(holder, name)
    is_count = isinstance(holder, int | float) and not isinstance(holder, bool) and 0 <= holder < _MOST_TOKENS
    return int(holder) if is_count else 0


_MOST_TOKENS = 2**40


def _get(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else None


def texts(value: Any, name: str) -> str:
    """Return a text, or the joined texts of a list of parts, as `piece` does. Raises ValueError if it is neither."""
    if not isinstance(value, list):
        return piece({name: value}, name)
    return "".join(piece(part, "text") for part in value if string(part, "type") in ("text", "output_text", ""))


def definition(tool: ToolDefinition, unknown: Collection[str] = ()) -> dict[str, Any]:
    """Return a tool's declaration. `properties` is always present, since OpenAI refuses a schema without it.

    Args:
        unknown: keywords of JSON schema that the server refuses.
    """
    parameters = {"type": "object", "properties": {}, **tool.parameters}
    if unknown:
        parameters = _without(unknown, parameters)
    return {"name": tool.name, "description": tool.description, "parameters": parameters}


def _without(unknown: Collection[str], schema: Any) -> Any:
    """Return a schema without these keywords, replaced by equivalent ones where possible."""
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        return [_without(unknown, member) for member in schema]
    if not isinstance(schema, Mapping):
        return schema
    result: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in unknown:
            continue
        if keyword in _NAMING and isinstance(value, Mapping):
            result[keyword] = {name: _without(unknown, member) for name, member in value.items()}
        else:
            result[keyword] = value if keyword in _VALUES else _without(unknown, value)
    if "const" in schema and "const" in unknown:
        result.setdefault("enum", [schema["const"]])
    if "prefixItems" in schema and "prefixItems" in unknown:
        result["items"] = {"anyOf": _without(unknown, schema["prefixItems"])}
    return result


_NAMING = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose value maps names to schemas."""

_VALUES = ("enum", "const", "default", "examples")
"""Keywords whose value is not a schema."""


def arguments_of(holder: Any) -> str:
    """Return a piece of a call's arguments as JSON text, also if the server sent them as a JSON value."""
    value = _get(holder, "arguments")
    return json.dumps(value) if isinstance(value, Mapping | list) else piece(holder, "arguments")


def grown(counts: Mapping[str, Any], more: Any) -> dict[str, Any]:
    """Return counts of tokens with those that came later. Of two numbers the larger one counts.

    Servers send counts that grow with each chunk, or one count in one chunk and another in the next; some end with a
    chunk in which all are zero or null.
    """
    merged = dict(counts)
    for name, value in more.items() if isinstance(more, Mapping) else ():
        before = merged.get(name)
        if isinstance(value, Mapping):
            merged[name] = grown(before if isinstance(before, Mapping) else {}, value)
        elif count(more, name) > count(merged, name) or before is None:
            merged[name] = value
    return merged


def usage_of(counted: Any, prompt: str, answer: str) -> Usage:
    """Return the usage of one call. `prompt` and `answer` are the API's words for the two counts of tokens."""
    return Usage(
        input_tokens=count(counted, f"{prompt}_tokens"),
        output_tokens=count(counted, f"{answer}_tokens"),
        cached_tokens=count(counted, f"{prompt}_tokens_details", "cached_tokens"),
        reasoning_tokens=count(counted, f"{answer}_tokens_details", "reasoning_tokens"),
        calls=1,
    )


def tool_use(
    index: int, call_id: str, name: str, arguments: str, *, is_cut: bool, signature: str | None = None
) -> ToolUse:
    """Return a tool call. If its arguments are no JSON object, it has a `flaw`, and no tool gets it.

    Args:
        index: the call's position in the answer, for the id of a call to which the server gave none. `ToolLoop` makes
            ids unique in the run.
        is_cut: whether the answer was cut off at its maximum length.
        signature: what the provider attached to the call.

    Raises:
        ValueError: the call has no name.
    """
    if not name:
        raise ValueError(f"call {call_id!r} has no name")
    return read_call(call_id or f"call_{index + 1}", name, arguments, is_cut=is_cut, signature=signature)
