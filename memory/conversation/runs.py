"""Runs: one answer each, from its acceptance to its one end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from turnwise.memory.conversation.frozen_json import FrozenDict
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.usage import Usage

RunState = Literal["queued", "running", "awaiting_approval", "completed", "cancelled", "failed", "interrupted"]

OPEN_STATES: frozenset[str] = frozenset({"queued", "running", "awaiting_approval"})

UNSETTLED: frozenset[str] = frozenset({"queued", "running"})
"""Of these, those that need a process: one that waits for a person needs none."""

FinishClass = Literal["completed", "max_tokens", "tool_calls_pending", "interrupted", "error"]

CUT_SHORT = ("length", "max_tokens", "max_output_tokens", "model_length")
"""What providers call a stop at the limit of tokens."""


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
    code: str | None = None
    """A word for `why` that programs can compare; None for others. `step_limit`, `budget`, `timeout`; `window`: the
    newest turn does not fit; `compaction`: the overflow strategy makes no room; `refused`: the provider refused, or
    would refuse, what the conversation holds; `output_invalid`, `output_refused`, `output_cut`: there is no answer of
    the type that was asked for."""
    labels: FrozenDict = field(default_factory=FrozenDict)
    timeout_s: float | None = None
    idempotency_key: str | None = None
    fingerprint: str | None = None
    """Of the prompts, where there is an idempotency key."""
    usage: Usage | None = None
    """What it has spent up to its last commit."""
    stop_reason: str | None = None
    """Why the model stopped, in the provider's words."""
    calls: FrozenDict = field(default_factory=FrozenDict)
    """What became of its tool calls beside their results, by call id: see `memory/conversation/tool_calls`."""
    resumes: int = 0
    """How often it was taken up again after its process was lost."""
    memory: MemoryUse = "on"
    """What it does with long-term memory."""
    model: str | None = None
    """The model that it asks; the engine's own if None."""
    params: FrozenDict = field(default_factory=FrozenDict)
    """What it asks of the model, those of its session included: see `ModelParams`."""
    output: FrozenDict | None = None
    """The type of its answer, a JSON `schema`, and how many `retries` it has to give one; None for text."""

    @property
    def is_open(self) -> bool:
        """Whether it has not ended yet."""
        return self.state in OPEN_STATES

    @property
    def finish(self) -> FinishClass | None:
        """How it finished, in one of five classes; None while it is queued or running."""
        if self.state in ("queued", "running"):
            return None
        if self.state == "awaiting_approval":
            return "tool_calls_pending"
        if self.state == "failed":
            return "error"
        if self.state != "completed":
            return "interrupted"
        return "max_tokens" if self.stop_reason in CUT_SHORT else "completed"
