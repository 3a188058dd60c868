"""`Search`: how long a request is sent again, while the process of its session dies, restarts or moves."""

from __future__ import annotations

import time
from typing import Any

from ray.exceptions import ActorUnschedulableError, RayActorError, RayError, RayTaskError

from turnwise.actors.cluster.actor_waiting import REACH_S, NoProcessError, Reach
from turnwise.actors.hosting.verb_declaration import Verb
from turnwise.errors import SessionFencedError, SessionLostError
from turnwise.memory.growing_pauses import GrowingPauses

LONG_CALL_S = 10.0
"""A call that fails after at least this long is assumed to have reached a process, so the `REACH_S` limit restarts."""


class Search:
    """Tracks how long a request has tried to reach a process of its session."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._called_at = 0.0
        self._lost_at: float | None = None
        """When the search began: at the first failure, or anew after a call of `LONG_CALL_S` or more."""
        self._pauses = GrowingPauses(0.01, 0.5)

    def begin_call(self, until: float | None) -> Reach:
        """Record the start of a call; return how long to wait for its answer, at most until a time."""
        self._called_at = time.monotonic()
        return Reach(self._called_at, since=self._lost_at, until=None if until is None else max(self._called_at, until))

    def pause_after(self, failure: Exception) -> float:
        """Return how many seconds to pause before the next call, after a process that does not own the session.

        Raises:
            SessionLostError, SessionFencedError: no owner answered for `REACH_S` seconds.
        """
        now = time.monotonic()
        # A call that took this long has reached a process, so the limit and the pauses begin anew.
        if self._lost_at is None or now - self._called_at >= LONG_CALL_S:
            self._lost_at = now
            self._pauses.reset()
        if now - self._lost_at > REACH_S:
            if isinstance(failure, SessionFencedError):
                raise failure
            raise SessionLostError(self._session_id, str(failure).strip().splitlines()[0]) from failure
        return self._pauses.next_s()


def is_away(error: NoProcessError | RayError) -> bool:
    """Return whether this process has died or cannot be reached, so that another one may answer."""
    if not isinstance(error, RayActorError) or isinstance(error, RayTaskError):
        return False
    return not error.actor_init_failed


def lost_error(session_id: str, verb: Verb[..., Any], error: NoProcessError | RayError) -> SessionLostError:
    """Return the error of a call that would fail in any process of the session, or for which there is none."""
    if isinstance(error, NoProcessError):
        reason = "Ray's logs of this actor say why its processes end, or what it waits for"
        return SessionLostError(session_id, f"{error}; {reason}")
    if isinstance(error, RayTaskError):
        return SessionLostError(session_id, f"{verb.name} failed there: {error.cause!r}")
    if is_away(error):
        reason = f"its process has died before it answered, and perhaps after it did {verb.name}: look first"
        return SessionLostError(session_id, f"{reason} ({error})")
    if isinstance(error, RayActorError):
        reason = "its process cannot start: install this turnwise, and what it needs, on every node"
        return SessionLostError(session_id, f"{reason} ({error})")
    if isinstance(error, ActorUnschedulableError):
        reason = (
            "no node may run its process: open a manager on the node that has its files, or use a store on a server"
        )
        return SessionLostError(session_id, f"{reason} ({error})")
    return SessionLostError(session_id, f"{type(error).__name__}: {error}")
