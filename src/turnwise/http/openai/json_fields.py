"""Fields of items and messages that are JSON of any shape, for `inputs` and `messages`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from turnwise.http.openai.errors import invalid
from turnwise.memory.values.frozen_json import FrozenDict, freeze


def text_of(item: Mapping[str, Any], name: str, at: str) -> str:
    """Return a required text; `at` is the place of its item in the request."""
    value = item.get(name)
    if value is None:
        raise invalid(f"{at}.{name}", f"Missing required parameter: '{at}.{name}'.", "missing_required_parameter")
    if not isinstance(value, str):
        raise invalid(f"{at}.{name}", f"Invalid type for '{at}.{name}': expected a string.", "invalid_type")
    return value


def arguments_of(item: Mapping[str, Any], at: str) -> FrozenDict:
    """Return the arguments of a call; an empty text has none."""
    text = text_of(item, "arguments", at)
    try:
        arguments = json.loads(text or "{}")
        if isinstance(arguments, dict):
            return FrozenDict(freeze(arguments))
    except (TypeError, ValueError, RecursionError):
        pass
    raise invalid(f"{at}.arguments", f"{at}.arguments: must be the JSON text of an object")
