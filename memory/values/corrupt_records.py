"""Errors about stored text that cannot be read: they say where it is and what is wrong, and never quote it."""

from __future__ import annotations

import json

from pydantic import ValidationError
from pydantic_core import ErrorDetails


class Undecodable:
    """Placeholder for a stored text that is not UTF-8, so that the other columns of its row can be read."""

    def __repr__(self) -> str:
        return "<not UTF-8>"


UNDECODABLE = Undecodable()


def text_or_undecodable(raw: bytes) -> str | Undecodable:
    """Return the stored bytes as text, or an `Undecodable` if they are not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return UNDECODABLE


class UnfitError(TypeError):
    """A stored value does not fit its field. The message says what it must be, and does not quote it."""


def _field_error(error: ErrorDetails) -> str:
    """Return the field and the kind of an error. The names of unknown fields are not quoted either."""
    kind = error["type"]
    if kind in ("extra_forbidden", "unexpected_keyword_argument") or not error["loc"]:
        return kind
    is_choice = kind == "literal_error"
    return f"{error['loc'][0]} must be {error['ctx']['expected']}" if is_choice else f"{error['loc'][0]}: {kind}"


def why_unreadable(error: Exception) -> str:
    """Return why a stored text cannot be read, without quoting it."""
    if isinstance(error, ValidationError):
        errors = error.errors(include_url=False, include_input=False)
        return f"it does not fit its kind ({', '.join(sorted(set(map(_field_error, errors))))})"
    if isinstance(error, UnfitError):
        return str(error)
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeError):
        return "it is not UTF-8 text"
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON from character {error.pos} on"
    return f"it is not what was written ({type(error).__name__})"
