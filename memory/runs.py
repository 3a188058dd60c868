"""Runs: one inference each, from its acceptance to its one end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from turnwise.memory.frozen import FrozenDict

RunState = Literal["queued", "running", "completed", "cancelled", "failed", "interrupted"]

OPEN_STATES: frozenset[str] = frozenset({"queued", "running"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run as it is stored."""

    run_id: str
    session_id: str
    turn_index: int
    state: RunState
    first_seq: int
    """The sequence number of its first event."""
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    why: str | None = None
    """Why it ended, where it did not complete."""
    labels: FrozenDict = field(default_factory=FrozenDict)
    timeout_s: float | None = None
    idempotency_key: str | None = None
    fingerprint: str | None = None
    """Of the prompts, where there is an idempotency key."""

    @property
    def is_open(self) -> bool:
        """Whether it has not ended yet."""
        return self.state in OPEN_STATES
