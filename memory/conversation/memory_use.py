"""The `memory` setting of a session or a run: whether it recalls from long-term memory, and whether it saves."""

from __future__ import annotations

from typing import Literal, get_args

MemoryUse = Literal["on", "read", "off"]
"""`on`: recalls, and its turns are saved. `read`: recalls, and saves nothing. `off`: neither recalls nor saves."""


def memory_use(setting: MemoryUse | bool) -> MemoryUse:
    """Return the setting as a word: True is `on`, False is `off`.

    Raises:
        ValueError: `setting` is not one of these.
    """
    if isinstance(setting, bool):
        return "on" if setting else "off"
    for use in get_args(MemoryUse):
        if isinstance(setting, str) and setting == use:
            word: MemoryUse = use
            return word
    raise ValueError("must be 'on', 'read' or 'off', or True or False")
