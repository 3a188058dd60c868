"""What a session or a run does with long-term memory."""

from __future__ import annotations

from typing import Literal, get_args

from turnwise.errors import ConfigError

MemoryUse = Literal["on", "read", "off"]
"""`on`: it recalls, and its turns are saved. `read`: it recalls, and nothing of it is saved. `off`: neither."""


def memory_use(given: MemoryUse | bool) -> MemoryUse:
    """Return what is meant; True is `on`, False `off`.

    Raises:
        ConfigError: it is none of these.
    """
    use: MemoryUse = ("on" if given else "off") if isinstance(given, bool) else given
    if use not in get_args(MemoryUse):
        raise ConfigError("memory", given, "must be 'on', 'read' or 'off', or True or False")
    return use
