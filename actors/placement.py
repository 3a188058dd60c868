"""Where sessions live: which actor hosts which session."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dedicated:
    """One actor, so one process, for each session; it leaves when the session is idle and comes back at the next call.

    Strongest isolation: an engine that burns CPU or crashes takes no other session along. Costs a process of some 60 MB
    for every session that is not idle.
    """
