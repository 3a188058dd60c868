"""Fields that both APIs have, as they are written, and read with care: the client library checks nothing."""

from __future__ import annotations

from typing import Any

import pydantic_core

from turnwise.actors.inference.tools import ToolDefinition
from turnwise.memory.blocks import ToolUse
from turnwise.memory.frozen import FrozenDict, freeze

UNPARSED = "unparsed"
"""The argument under which a call carries what the model wrote in place of a JSON object."""


class BrokenOffError(Exception):
    """The provider says within its answer that it failed: its message, and its code if there is one."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message, code)
        self.message = message
        self.code = code


def string(holder: Any, name: str) -> str:
    """Return a text, empty if it is missing; ValueError if it is none."""
    value = getattr(holder, name, None) or ""
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a string but {type(value).__name__}")
    # Half of a surrogate pair is valid JSON, but no text that can be stored or sent back.
    return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def items(holder: Any, name: str) -> list[Any]:
    """Return a list, empty if it is missing; ValueError if it is none."""
    value = getattr(holder, name, None) or []
    if not isinstance(value, list):
        raise ValueError(f"{name} is not a list but {type(value).__name__}")
    return value


def count(holder: Any, name: str) -> int:
    """Return a number, 0 if it is missing; ValueError if it is none."""
    value = getattr(holder, name, None) or 0
    if not isinstance(value, int):
        raise ValueError(f"{name} is not a number but {type(value).__name__}")
    return value


def definition(tool: ToolDefinition) -> dict[str, Any]:
    """Return what the model is told of a tool. OpenAI refuses a schema that is not of an object with properties."""
    parameters = {"type": "object", "properties": {}, **tool.parameters}
    return {"name": tool.name, "description": tool.description, "parameters": parameters}


def tool_use(call_id: str, name: str, arguments: str, *, is_cut: bool) -> ToolUse:
    """Return the call. Arguments that are no JSON object become one, under `UNPARSED`, so that the model is told.

    Args:
        is_cut: whether the answer met its limit: what was cut off is nobody's mistake, and is not passed on.

    Raises:
        ValueError: there is no id or no name, or the arguments were cut off.
    """
    if not call_id or not name:
        raise ValueError(f"call {call_id!r} of {name!r} lacks its id or its name")
    try:
        # A tool without parameters is often called with no text at all.
        parsed = pydantic_core.from_json(arguments or ("" if is_cut else "{}"), allow_inf_nan=False)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        if is_cut:
            raise ValueError(f"the arguments of {name!r} are cut off")
        parsed = {UNPARSED: arguments}
    return ToolUse(call_id=call_id, name=name, input=FrozenDict(freeze(parsed)))
