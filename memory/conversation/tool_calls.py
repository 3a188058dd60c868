"""What becomes of a tool call between the model's wish and the result.

Kept in the run's record, so that it outlives the session's process: a call that had begun when the process was lost is
not made again unless its tool says that this does no harm, and what somebody decided stays decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from turnwise.memory.conversation.frozen_json import FrozenDict, freeze

Wants = Literal["approval", "result", "budget"]
"""What a waiting call waits for: a person's word, a result from outside, or leave to go on above a limit."""

Verdict = Literal["approved", "rejected", "provided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallState:
    """Where a call stands. One that has simply settled has no state: its result says it all."""

    name: str
    """Of the tool."""
    wants: Wants | None = None
    """What it waits for, or waited for before the verdict."""
    why: str | None = None
    """What the person who decides is told."""
    verdict: Verdict | None = None
    digest: str | None = None
    """Of the whole decision: the same one again changes nothing, another is an error."""
    started: bool = False
    """Whether its tool was called."""

    @property
    def is_waiting(self) -> bool:
        """Whether somebody has to decide."""
        return self.wants is not None and self.verdict is None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCall:
    """A call that somebody has to decide about."""

    call_id: str
    name: str
    input: FrozenDict
    wants: Wants
    why: str | None


def encode_calls(calls: Mapping[str, CallState]) -> FrozenDict:
    """Return the states as a JSON object, for `RunRecord.calls`."""
    return FrozenDict(freeze({call_id: _fields(state) for call_id, state in calls.items()}))


def decode_calls(calls: Mapping[str, Any]) -> dict[str, CallState]:
    """Return the states that `encode_calls` wrote."""
    return {call_id: CallState(**state) for call_id, state in calls.items()}


def _fields(state: CallState) -> dict[str, Any]:
    values = {name: getattr(state, name) for name in ("name", "wants", "why", "verdict", "digest", "started")}
    return {name: value for name, value in values.items() if value}
