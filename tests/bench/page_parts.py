"""What the pages of measurements have in common: tables, the machine and the day."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path


def markdown(table: Sequence[Sequence[str]]) -> str:
    """Return a table, whose first row is its heading."""
    heading, *rows = table
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', ' ') for cell in line)} |" for line in lines)


def today() -> str:
    """Return the day in UTC, such as 2026-11-29."""
    return datetime.now(UTC).date().isoformat()


def machine() -> str:
    """Return what the machine is, as far as Linux says it."""
    cores, model = f"{os.cpu_count()} cores", re.search(r"model name\s*: (.+)", text_of("/proc/cpuinfo"))
    memory = re.search(r"MemTotal:\s*(\d+) kB", text_of("/proc/meminfo"))
    facts = [
        f"{cores} of {model[1]}" if model else cores,
        f"{int(memory[1]) / 1e6:.0f} GB of memory" if memory else "",
        f"Python {platform.python_version()}",
        platform.system(),
    ]
    return ", ".join(filter(None, facts))


def text_of(path: str) -> str:
    return Path(path).read_text(encoding="utf-8") if Path(path).exists() else ""
