"""Quotes text as data on one line of a prompt, so that a model cannot mistake it for the prompt around it."""

from __future__ import annotations

import json
import re
from typing import Any

_LOOKALIKES = "<>≮≯＜＞﹤﹥‹›〈〉⟨⟩〈〉❬❭❮❯❰❱˂˃ᐸᐳ⧼⧽⦑⦒⊰⊱≺≻︿﹀"  # noqa: RUF001 - they are meant
"""Characters that a reader or a model could mistake for the brackets of a section."""

_UNSEEN = (
    "\x00-\x1f\x7f-\x9f"  # control characters, newlines among them
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"  # fillers, marks of direction, no width
    "\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\uffff"  # lines, overrides, isolates, selectors
    "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd\U00013430-\U0001345f"  # other format characters
    "\ud800-\udfff"  # halves of characters, which cannot be sent
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # tags, in which whole sentences can hide
)

_ESCAPED = re.compile(f"[{re.escape(_LOOKALIKES)}{_UNSEEN}]|&(?=#|\\w+;)")


def quote(text: str) -> str:
    r"""Return the text as a JSON string on one line: `json.loads` returns it.

    Brackets, and whatever looks like one, are escaped as `\u003c`, and so is what is not seen: control and format
    characters, directions, tags.
    """
    return quote_json(text)


def quote_json(value: Any) -> str:
    """Return a value as JSON on one line, each text in it as `quote` writes it."""
    text = _encode(value)
    if text.isascii() and text.isprintable() and not _MARKUP.search(text):
        return text
    return _ESCAPED.sub(_escape, text)


_encode = json.JSONEncoder(ensure_ascii=False).encode
_MARKUP = re.compile("[<>&]")
"""The only characters to escape in text that is ASCII and printable."""


def _escape(match: re.Match[str]) -> str:
    # A quoted string has no line breaks or tabs of its own any more, so none of JSON's short escapes is met here.
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[start : start + 2].hex()}" for start in range(0, len(units), 2))
