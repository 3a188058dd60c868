"""What a session or a run does with long-term memory."""

from __future__ import annotations

from typing import Literal, get_args

MemoryUse = Literal["on", "read", "off"]
"""`on`: it recalls, and its turns are saved. `read`: it recalls, and nothing of it is saved. `off`: neither."""


def memory_use(given: MemoryUse | bool) -> MemoryUse:
    """Return what is meant; True is `on`, False `off`.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(given, bool):
        return "on" if given else "off"
    for use in get_args(MemoryUse):
        if isinstance(given, str) and given == use:
            found: MemoryUse = use
            return found
    raise ValueError("must be 'on', 'read' or 'off', or True or False")
