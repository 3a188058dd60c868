"""What a process of sessions or memories has in use, and how seldom it looks for garbage."""

from __future__ import annotations

import gc
import os
from pathlib import Path

THRESHOLDS = (20_000, 5, 5)
"""Thousands of sessions or items are many objects, few of them garbage: looking for it often took a fifth of a turn.

What engines leave, such as clients that refer to themselves, may be in the oldest generation when their session goes.
That is collected after half a million new objects, which are some 100 MB.
"""


def memory_bytes() -> int | None:
    """Return how much memory this process has in use, shared parts included; None if its system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):  # not on Linux
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def collect_rarely() -> None:
    """Make garbage collection rare, and exclude all objects that exist now.

    Call it before a session's modules are imported, since collection would take a quarter of that time, and again after
    the import, since walking the modules would cost milliseconds during a turn, or while memories are searched.
    """
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
