"""Waiting for what other threads and processes do."""

import time
from collections.abc import Callable
from functools import partial

WAIT_S = 120.0
"""How long it may take on a machine that does much besides."""


def until(holds: Callable[[], object], limit_s: float = WAIT_S) -> None:
    """Wait until a condition holds.

    It is checked often at first, and then five times in a second: each check may ask other processes, which are to get
    on with what is waited for.
    """
    deadline, pause_s = time.monotonic() + limit_s, 0.01
    while not holds():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, 0.2)


def within(limit_s: float) -> Callable[[Callable[[], object]], None]:
    """Return `until` with another limit, in seconds: for what takes no other process, for example."""
    return partial(until, limit_s=limit_s)
