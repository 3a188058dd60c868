"""Fields of items and messages that are JSON of any shape, for `inputs` and `messages`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from turnwise.http.openai.errors import invalid
from turnwise.memory.values.frozen_json import FrozenDict, freeze


def text_of(item: Mapping[str, Any], name: str, path: str) -> str:
    """Return a required text; `path` says where its item is in the request."""
    value = item.get(name)
    if value is None:
        raise invalid(f"{path}.{name}", f"Missing required parameter: '{path}.{name}'.", "missing_required_parameter")
    if not isinstance(value, str):
        raise invalid(f"{path}.{name}", f"Invalid type for '{path}.{name}': expected a string.", "invalid_type")
    return value


def arguments_of(item: Mapping[str, Any], path: str) -> FrozenDict:
    """Return the arguments of a call; an empty text has none."""
    text = text_of(item, "arguments", path)
    try:
        arguments = json.loads(text or "{}")
        if isinstance(arguments, dict):
            return FrozenDict(freeze(arguments))
    except (TypeError, ValueError, RecursionError):
        pass
    raise invalid(f"{path}.arguments", f"{path}.arguments: must be the JSON text of an object")
