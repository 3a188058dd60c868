"""What of a flat namespace is left where it is, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SkipReason(StrEnum):
    """Why a memory was not taken."""

    UNREADABLE = "unreadable"
    """It is not JSON, or not of the form."""
    NO_TEXT = "no_text"
    """Nothing in its value says anything."""
    AMBIGUOUS_USER = "ambiguous_user"
    """Its prefix has more dots than it should, so that nobody can tell whose it is. Name the user, if it is one."""
    EXPIRED = "expired"
    """Its store was to delete it before now."""
    REFUSED = "refused"
    """It cannot be kept, such as for a user of no valid id."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A memory that was not taken."""

    where: str
    """Its prefix, or its line as `line 7` where that cannot be read."""
    key: str | None
    reason: SkipReason
    why: str = ""
    """More of it, for people."""
