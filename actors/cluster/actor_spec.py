"""`ActorSpec`: what the actors of a manager's sessions are created with.

This module imports nothing heavy, since every new session process waits for its imports.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from turnwise.actors.hosting.logs import LogSettings
from turnwise.actors.hosting.store_spec import StoreSpec


@dataclass(frozen=True)
class ActorSpec:
    """What the actors of a manager's sessions are created with; see `ActorSettings`."""

    place: StoreSpec
    engine_id: str
    engine: bytes
    logs: LogSettings = field(default_factory=LogSettings)
