"""Stored text that cannot be read: it is told where it stands and what is wrong with it, never what it says."""

from __future__ import annotations

import json

from pydantic import ValidationError


class Undecodable:
    """Stands for a stored text that is not UTF-8, in a row that is read all the same."""

    def __repr__(self) -> str:
        return "<not UTF-8>"


UNDECODABLE = Undecodable()


def text_or_undecodable(raw: bytes) -> str | Undecodable:
    """Return stored text, or what stands for one that is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return UNDECODABLE


class UnfitError(TypeError):
    """A stored value is not one of its field; the message says what it has to be, and quotes nothing of it."""


def why_unreadable(error: Exception) -> str:
    """Return what is wrong with a stored text that cannot be read, without a word of it."""
    if isinstance(error, ValidationError):
        kinds = sorted({each["type"] for each in error.errors(include_url=False, include_context=False)})
        return f"it does not fit its kind ({', '.join(kinds)})"
    if isinstance(error, UnfitError):
        return str(error)
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeError):
        return "it is not UTF-8 text"
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON from character {error.pos} on"
    return f"it is not what was written ({type(error).__name__})"
