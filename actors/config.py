"""How sessions behave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from turnwise.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """Settings of a manager's sessions. A live session takes a later manager's over at its next run."""

    on_cancel: Literal["keep", "discard"] = "keep"
    """What a cancelled run leaves: its prompts and the text so far, marked; or the history as it was before the run."""

    cancel_grace_s: float = 2.0
    """How long a cancelled engine may take to stop before it is left behind, in seconds."""

    max_queued: int = 16
    """How many runs may wait behind the active one with `if_busy="enqueue"`."""

    max_prompt_bytes: int = 4_000_000
    """The largest prompt, as UTF-8 JSON."""

    idle_s: float = 300.0
    """How long a session's process stays after its last call or run, in seconds."""

    delta_interval_s: float = 0.005
    """How long pieces of the answer are gathered before they are published as one event, in seconds."""

    store_retry_s: float = 30.0
    """How long a finished answer is offered to a failing store before its waiters get the StoreError, in seconds."""

    def __post_init__(self) -> None:
        if self.on_cancel not in ("keep", "discard"):
            raise ConfigError("on_cancel", self.on_cancel, "must be 'keep' or 'discard'")
        for name in ("cancel_grace_s", "max_queued", "delta_interval_s", "store_retry_s"):
            if getattr(self, name) < 0:
                raise ConfigError(name, getattr(self, name), "must be 0 or more")
        for name in ("max_prompt_bytes", "idle_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(name, getattr(self, name), "must be more than 0")
