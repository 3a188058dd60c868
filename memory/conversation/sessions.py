"""Sessions as they are stored."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from turnwise.memory.conversation.frozen_json import FrozenDict
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.usage import Usage

SessionStatus = Literal["active", "ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """A session's own row: who it belongs to, and the counters that its next commit starts from."""

    session_id: str
    user_id: str = "default"
    agent: str | None = None
    metadata: FrozenDict = field(default_factory=FrozenDict)
    status: SessionStatus = "active"
    created_at: float = 0.0
    updated_at: float = 0.0
    parent: str | None = None
    """The turn it was forked from, as `session_id#index`."""
    log: str = ""
    """The block log it appends to; the store names it at creation."""
    log_size: int = 0
    next_index: int = 0
    """The index of its next turn."""
    epoch: int = 0
    """Counts activations; a commit carries the one it was made under."""
    revision: int = 0
    """Each commit raises it by 1, each activation by a random number: so no two states of a session have the same, not
    even if the store was restored to an earlier state in between."""
    seq: int = 0
    """No event has a number above this. While a run is live it is ahead of the last event, since live events have
    numbers too: a later activation counts on from here and gives none twice."""
    usage: Usage = field(default_factory=Usage)
    """What its runs have spent, discarded ones included."""
    memory: MemoryUse = "on"
    """What its runs do with long-term memory, if they do not say."""
    saved: int = -1
    """Long-term memories have all that they are to have of the turns up to this index."""
    ttl_s: float | None = None
    """So many seconds after its last commit it may be swept; None: never. It has expired when `updated_at + ttl_s` is
    not above the time, as doubles add up."""
    model: str | None = None
    """The model that its runs ask, if they do not say; the engine's own if None."""
    params: FrozenDict = field(default_factory=FrozenDict)
    """What its runs ask of the model, if they do not say: see `ModelParams`."""

    def committed(self, **changes: Any) -> SessionRecord:
        """Return the row as its next commit leaves it: with these changes, and with its revision raised by 1."""
        return replace(self, revision=self.revision + 1, **changes)
