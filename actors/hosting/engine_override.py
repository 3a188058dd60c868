"""`EngineOverride`: the setups that a session switched to.

A setup is a `SessionSetup`, pickled; "engine" and "engine id" here mean a setup and its id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class EngineOverride:
    """The engines of a session: the one of its next runs, and those of open runs that use others."""

    engine_id: str
    runs: Mapping[str, str] = field(default_factory=dict)
    """Engine ids by run id."""
    is_for_runs: bool = True
    """Whether runs need these engines. If not, only deliveries do, which another engine may answer."""

    @property
    def engine_ids(self) -> set[str]:
        """The ids of all these engines."""
        return {self.engine_id, *self.runs.values()}
