"""Texts that anybody may have written, made harmless to show: `plain`, `ago`, `json_text`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

_PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"} | {127: "\u2421"}
_HIDDEN = [*range(0x80, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF]
_NAMED = {code: f"\u27e8U+{code:04X}\u27e9" for code in _HIDDEN}
_SURROGATES = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
_VISIBLE = _PICTURES | _NAMED | _SURROGATES

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def plain(text: str) -> str:
    """Return the text with all characters visible that would steer a terminal or turn the direction of writing.

    An escape becomes its picture, a direction mark its number. Letters of any script stay as they are.
    """
    return text.replace("\r\n", "\n").translate(_VISIBLE)


def ago(at: float, now: float) -> str:
    """Return how long ago a time was, in a word or two; for more than a day, the date."""
    seconds = max(0.0, now - at)
    if seconds < _MINUTE:
        return "just now"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min ago"
    if seconds < _DAY:
        return f"{seconds / _HOUR:.0f} h ago"
    return moment(at)


def moment(at: float) -> str:
    """Return a time as date and time, UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def json_text(value: Any) -> str:
    """Return a JSON value as people read it, harmless to show."""
    return plain(json.dumps(value, indent=2, ensure_ascii=False))


def number(value: float) -> str:
    """Return a number with its thousands apart."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"
