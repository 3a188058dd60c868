"""`Search`: how long a request is sent again, while the process of its session dies, restarts or moves."""

from __future__ import annotations

import time
from typing import Any

from turnwise.actors.hosting.reach import REACH_S, Reach
from turnwise.actors.hosting.runtime import AwayError, CallError
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


def lost_error(session_id: str, verb: Verb[..., Any], error: CallError) -> SessionLostError:
    """Return the error of a call that would fail in any process of the session, or that may not be repeated."""
    if isinstance(error, AwayError):
        reason = f"its process has died before it answered, and perhaps after it did {verb.name}: look first"
        return SessionLostError(session_id, f"{reason} ({error})")
    return SessionLostError(session_id, f"{verb.name}: {error}")
