"""`ConnectionRoom`: how many connections a store uses at once, where the server may allow fewer than it was told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

AGAIN_S = 10.0
"""How long after a refusal the store tries again to open more connections, in seconds."""


class ConnectionRoom:
    """Places for calls that use a connection, at most as many as the server allows. Safe for any thread.

    A server refuses a connection when it has too many, also if the limit of the store is higher. The call that was
    refused leaves its place to try again, and waits until one of the others gives back a connection. There is no more
    room than that for `AGAIN_S`, so that not each call asks the server again.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._allowed = most
        self._shrunk_at = 0.0
        self._used = 0
        self._changed = threading.Condition()

    def take(self, wait_s: float) -> bool:
        """Take a place after waiting for one at most so long; return whether there was one. End it with `leave`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._used < self._room(), wait_s):
                return False
            self._used += 1
            return True

    def leave(self) -> None:
        """Give a place back."""
        with self._changed:
            self._used -= 1
            self._changed.notify()

    def refused(self) -> bool:
        """Note that the server refused the connection of a call that has just left its place.

        Returns:
            Whether another call has a place, so that waiting for its connection makes sense.
        """
        with self._changed:
            self._allowed = max(1, self._used)
            self._shrunk_at = self._clock()
            return self._used > 0

    def _room(self) -> int:
        if self._allowed < self._most and self._clock() - self._shrunk_at >= AGAIN_S:
            self._allowed = self._most
        return self._allowed
