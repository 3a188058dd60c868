"""Ids: which ones may be used, and how new ones are made."""

from __future__ import annotations

import secrets
import time
import unicodedata

from turnwise.errors import InvalidIdError, shown

MAX_LENGTH = 256


def new_id() -> str:
    """Return a fresh id of 24 hexadecimal digits; later ones sort behind earlier ones, to the millisecond."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(6)}"


def check_id(kind: str, value: str) -> str:
    """Return `value` if it can be an id: 1 to 256 characters, none of them a control character or a lone surrogate.

    Raises:
        InvalidIdError: it cannot; `kind` says in the message what it was to name.
    """
    if not isinstance(value, str):
        raise InvalidIdError(kind, shown(value), "it is not a string")
    value = str.__str__(value)
    if not value.strip():
        raise InvalidIdError(kind, value, "it is blank")
    if len(value) > MAX_LENGTH:
        raise InvalidIdError(kind, f"{value[:32]}...", f"it has {len(value)} characters")
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in value):
        raise InvalidIdError(kind, value, "it holds a control character")
    return value
