"""Fields of items and messages that are JSON of any shape, for `inputs` and `messages`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from turnwise.http.openai.errors import invalid
from turnwise.memory.values.frozen_json import FrozenDict, freeze
from turnwise.memory.values.ids import is_file_id


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


def file_of(part: Mapping[str, Any], path: str, *others: str) -> str | None:
    """Return the id of the file that a part names; None if it names none.

    Args:
        others: fields that it has in place of it.

    Raises:
        OpenAIError: it is no id, or one of the others is there, too.
    """
    file_id = part.get("file_id")
    if file_id is None:
        return None
    if given := [name for name in others if part.get(name) is not None]:
        raise invalid(path, f"send either file_id or {given[0]}")
    if not is_file_id(file_id):
        raise invalid(f"{path}.file_id", f"there is no file {file_id!r:.99}: upload it first")
    return str(file_id)
