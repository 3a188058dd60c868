"""`Reach`: how long a caller waits for an answer, and how it learns that nobody is there to give one.

Ray keeps a call for as long as it takes to start the actor's process, also where that never succeeds. So a caller that
waits for an answer looks now and then whether there is a process, and gives up after `REACH_S` seconds without one.
"""

from __future__ import annotations

from dataclasses import dataclass

REACH_S = 60.0
"""How long a caller waits for a process that is not there, in seconds."""

LOOK_S = 15.0
"""How long an answer may take before the caller looks whether there is a process, in seconds; longer than a wait."""

AGAIN_S = 1.0
"""How long after that it looks again while there is none, in seconds."""


@dataclass(frozen=True)
class Presence:
    """Whether there is a process, as far as anybody knows."""

    is_up: bool
    pid: int
    """The id of the process."""
    why: str
    """What the process is called, its state, and why the last one ended, for an error."""
    is_coming: bool = False
    """Whether Ray is about to start one."""


class NoProcessError(Exception):
    """There has been no process for `REACH_S` seconds."""


class Reach:
    """Decides how long to wait for one answer. Times are those of one monotonic clock, in seconds.

    Args:
        now: when the call is made.
        since: since when no process has been reached, if earlier calls of the same request failed.
        until: when the caller gives up in any case; never if omitted.
    """

    __slots__ = ("_look_at", "_since", "_until")

    def __init__(self, now: float, *, since: float | None = None, until: float | None = None) -> None:
        self._since = now if since is None else since
        self._until = until
        self._look_at = min(now + LOOK_S, self._since + REACH_S)

    def pause(self, now: float) -> float:
        """Return how long to wait for the answer, in seconds, before the next look."""
        return max(0.0, (self._look_at if self._until is None else min(self._look_at, self._until)) - now)

    def is_late(self, now: float) -> bool:
        """Return whether the caller's own time is over."""
        return self._until is not None and now >= self._until

    def note(self, now: float, presence: Presence) -> None:
        """Take in what is known of the process.

        Raises:
            NoProcessError: there has been no process for `REACH_S` seconds.
        """
        if presence.is_up:
            self._since, self._look_at = now, now + LOOK_S
        elif now - self._since >= REACH_S:
            raise NoProcessError(f"{presence.why}: no process for {REACH_S:g} s")
        else:
            self._look_at = min(now + AGAIN_S, self._since + REACH_S)
