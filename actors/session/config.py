"""`SessionConfig`: limits, timeouts and policies of sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from turnwise.actors.memory.config import MemoryConfig
from turnwise.actors.session.budget import Budget, Price
from turnwise.errors import ConfigError
from turnwise.memory.tokens.counter import TokenCounter


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """Settings of a manager's sessions. A live session takes a later manager's over at its next run."""

    on_cancel: Literal["keep", "discard"] = "keep"
    """What a cancelled run leaves: its prompts and the text so far, marked; or the history as it was before the run."""

    on_lost: Literal["interrupt", "resume"] = "interrupt"
    """What becomes of a run whose process was lost: it ends as interrupted, or goes on behind what it has recorded.
    A model call that was under way is made again; a tool that had begun is not, unless it is `repeatable`."""

    max_resumes: int = 3
    """How often a run goes on after its process was lost, before it ends as interrupted: it may be what kills it."""

    run_budget: Budget | None = None
    """What one run may spend."""

    session_budget: Budget | None = None
    """What all runs of a session may spend together."""

    over_budget: Literal["fail", "ask"] = "fail"
    """What becomes of a run that has spent a budget: it fails, or waits until somebody approves of it or rejects it.
    Approval lets this run spend the budget once more."""

    prices: Mapping[str, Price] = field(default_factory=dict)
    """What models cost, by name: needed where a budget has a limit of cost."""

    memory: MemoryConfig = field(default_factory=MemoryConfig)
    """What they recall and save."""

    max_context_tokens: int | None = None
    """What a request and its answer may take together; the model's own limit, where that is known, if left out."""

    reserve_output_tokens: int | None = None
    """What of it is kept free for the answer. If left out, what the engine lets an answer take at most, else an eighth,
    but no more than 4,096."""

    token_counter: TokenCounter | None = None
    """Counts what blocks take; by the vocabulary of the engine's model if left out: see `counter_for`."""

    compaction_attempts: int = 3
    """How often a model is asked for a summary, or a memory to take what goes, before the plan is given up."""

    compaction_timeout_s: float = 120.0
    """How long an attempt may take, in seconds."""

    cancel_grace_s: float = 2.0
    """How long a cancelled engine may take to stop before it is left behind, in seconds."""

    max_queued: int = 16
    """How many runs may wait behind the active one with `if_busy="enqueue"`."""

    max_prompt_bytes: int = 4_000_000
    """The largest prompt, as UTF-8 JSON."""

    max_metadata_bytes: int = 65_536
    """The largest metadata of a session, as UTF-8 JSON."""

    max_labels: int = 64
    """How many labels a run may have."""

    max_label_chars: int = 256
    """How many characters a label's name, and its value, may have."""

    idle_s: float = 300.0
    """How long a session's process stays after its last call or run, in seconds."""

    delta_interval_s: float = 0.005
    """How long pieces of the answer are gathered before they are published as one event, in seconds."""

    store_retry_s: float = 30.0
    """How long a finished answer is offered to a failing store before its waiters get the StoreError, in seconds."""

    def __post_init__(self) -> None:
        if self.on_cancel not in ("keep", "discard"):
            raise ConfigError("on_cancel", self.on_cancel, "must be 'keep' or 'discard'")
        if self.on_lost not in ("interrupt", "resume"):
            raise ConfigError("on_lost", self.on_lost, "must be 'interrupt' or 'resume'")
        if self.over_budget not in ("fail", "ask"):
            raise ConfigError("over_budget", self.over_budget, "must be 'fail' or 'ask'")
        window, reserve = self.max_context_tokens, self.reserve_output_tokens
        if reserve is not None and (reserve < 0 or (window is not None and reserve >= window)):
            raise ConfigError("reserve_output_tokens", reserve, "must be 0 or more, and less than max_context_tokens")
        if window is not None and window < 1:
            raise ConfigError("max_context_tokens", window, "must be 1 or more, or None for the model's own limit")
        for name in ("max_resumes", "cancel_grace_s", "max_queued", "delta_interval_s", "store_retry_s", "max_labels"):
            if getattr(self, name) < 0:
                raise ConfigError(name, getattr(self, name), "must be 0 or more")
        for name in (
            "max_prompt_bytes",
            "max_metadata_bytes",
            "max_label_chars",
            "idle_s",
            "compaction_attempts",
            "compaction_timeout_s",
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(name, getattr(self, name), "must be more than 0")
