"""How much memory this process has in use."""

from __future__ import annotations

import os
from pathlib import Path


def memory_bytes() -> int | None:
    """Return how much memory this process has in use, shared parts included; None if its system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):  # not on Linux
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
