"""The tools of a run alone, whose results its caller provides: how they are stored with the run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MAX_TOOLS = 128
"""The most tools that a run may have of its own. OpenAI has the same limit."""

MAX_TOOLS_BYTES = 1_000_000
"""The most bytes that they may take as JSON in UTF-8."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def is_tool_name(name: object) -> bool:
    """Return whether a tool may have this name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def are_tools(record: Mapping[str, Any]) -> bool:
    """Return whether a value, such as one of an imported archive, has the form of `RunRecord.tools`."""
    return len(record) <= MAX_TOOLS and all(is_tool_name(name) and _is_tool(tool) for name, tool in record.items())


def _is_tool(value: Any) -> bool:
    if not isinstance(value, Mapping) or value.keys() != {"description", "parameters"}:
        return False
    schema = value["parameters"]
    return isinstance(value["description"], str) and isinstance(schema, Mapping) and schema.get("type") == "object"
