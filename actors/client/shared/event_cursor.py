"""`EventCursor`: where a subscription goes on, in this process or another."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from turnwise.errors import InvalidInputError, shown


@dataclass(frozen=True)
class EventCursor:
    """Names the events that a subscription has handed out; as a text, it is the `cursor` of a subscription."""

    start_time: float
    """Events of sessions that are not in `last_seqs` are new if they are later, in seconds since the epoch."""
    mark: float
    """The time of the newest commit whose events were all handed out."""
    last_seqs: Mapping[str, int]
    """The number of the last event that was handed out, by the session's log."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the cursor of a text.

        Raises:
            InvalidInputError: the text is none.
        """
        try:
            position = json.loads(text)
            cursor = cls(
                float(position["at"]),
                float(position["mark"]),
                {str(log): int(seq) for log, seq in position["seen"].items()},
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            cursor = None
        if cursor is None or not (math.isfinite(cursor.start_time) and math.isfinite(cursor.mark)):
            raise InvalidInputError("cursor", shown(text), "pass the cursor of a subscription, unchanged")
        return cursor

    def __str__(self) -> str:
        position = {"at": self.start_time, "mark": self.mark, "seen": dict(self.last_seqs)}
        return json.dumps(position, separators=(",", ":"))

    def after(self, last_seqs: Mapping[str, int]) -> EventCursor:
        """Return the cursor behind further events, of which these are the last ones, by log."""
        return replace(self, last_seqs={**self.last_seqs, **last_seqs})
