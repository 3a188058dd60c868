"""The `memory` setting of a session or a run: whether it recalls from long-term memory, and whether it saves."""

from __future__ import annotations

from typing import Literal, get_args

MemoryUse = Literal["on", "read", "off"]
"""`on`: recalls, and its turns are saved. `read`: recalls, and saves nothing. `off`: neither recalls nor saves."""


def memory_use(given: MemoryUse | bool) -> MemoryUse:
    """Return the setting as a word: True is `on`, False is `off`.

    Raises:
        ValueError: `given` is not one of these.
    """
    if isinstance(given, bool):
        return "on" if given else "off"
    for use in get_args(MemoryUse):
        if isinstance(given, str) and given == use:
            found: MemoryUse = use
            return found
    raise ValueError("must be 'on', 'read' or 'off', or True or False")
