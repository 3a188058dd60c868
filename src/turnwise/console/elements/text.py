"""Times, numbers and JSON as people read them: `ago`, `moment`, `number`, `tokens_spent`, `json_text`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from turnwise.memory.values.plain_text import plain

if TYPE_CHECKING:
    from turnwise.memory.conversation.usage import Usage

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def ago(time: float, now: float) -> str:
    """Return how long ago a time was, in a word or two; for more than a day, the date."""
    seconds = max(0.0, now - time)
    if seconds < _MINUTE:
        return "just now"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min ago"
    if seconds < _DAY:
        return f"{seconds / _HOUR:.0f} h ago"
    return moment(time)


def moment(time: float) -> str:
    """Return a time as date and time, UTC."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def json_text(value: Any) -> str:
    """Return a JSON value as people read it, harmless to show."""
    return plain(json.dumps(value, indent=2, ensure_ascii=False))


def number(value: float) -> str:
    """Return a number with its thousands apart."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"


def file_size(size: int) -> str:
    """Return a number of bytes as people read it: the largest unit of which there is one."""
    for unit, factor in (("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size} bytes"


def tokens_spent(usage: Usage, agents: Usage) -> str:
    """Say how many tokens were spent, and how many of them by agents that were called."""
    own, others = (spent.input_tokens + spent.output_tokens for spent in (usage, agents))
    return f"{number(own + others)} tokens{f' ({number(others)} by agents)' if others else ''}"
