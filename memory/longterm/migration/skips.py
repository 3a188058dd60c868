"""The memories that a migration does not copy, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SkipReason(StrEnum):
    """Why a memory was not copied."""

    UNREADABLE = "unreadable"
    """It is not valid JSON, or does not have the expected form."""
    NO_TEXT = "no_text"
    """Its value contains no text."""
    AMBIGUOUS_USER = "ambiguous_user"
    """Its prefix contains further dots, so its user is unknown. If they belong to the user's name, pass that user."""
    EXPIRED = "expired"
    """Its time to live has passed."""
    REFUSED = "refused"
    """It would not be a valid item, for example because of the user's id."""


@dataclass(frozen=True)
class Skipped:
    """A memory that was not copied."""

    where: str
    """Its prefix; `line 7` if the prefix cannot be read."""
    key: str | None
    reason: SkipReason
    why: str = ""
    """Details for people."""
