"""All that the two families do differently: how they call, wait, and work beside their caller; here, blocking.

Each name is that of a step in `actors/client/steps.py`, which does the same on an event loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import ParamSpec, TypeVar

from turnwise.actors.client.shared.portal import Portal
from turnwise.actors.hosting.reach import Reach
from turnwise.actors.hosting.runtime import SessionProcess

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def call(process: SessionProcess, request: bytes, reach: Reach, *, is_repeatable: bool) -> bytes:
    """Send a request to a session's process and return its answer; see `SessionProcess.ask_blocking`."""
    return process.ask_blocking(request, reach, is_repeatable=is_repeatable)


def sleep(seconds: float) -> None:
    """Wait for some seconds."""
    time.sleep(seconds)


def run(
    portal: Portal,
    function: Callable[Arguments, Awaitable[Result]],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    """Return the result of a coroutine function of a store or a memory, which the portal's event loop runs."""

    async def work() -> Result:
        return await function(*args, **kwargs)

    return portal.run(work())


def in_thread(function: Callable[[], Result]) -> Result:
    """Return the result of a function that takes long or blocks, in this thread."""
    return function()


def finish(answer: object) -> None:
    """Ignore what a caller's function has returned."""


class Start:
    """Work that has to be done once before a manager's first call: its constructor does it."""

    def __init__(self, start: Callable[[], None], around: Callable[[], AbstractContextManager[None]]) -> None:
        with around():
            start()

    def done(self) -> None:
        """Return at once."""


class Background:
    """Work beside its caller, in a thread of its own, which does not keep the program from ending."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def is_stopped(self) -> bool:
        """Return whether the work is to end."""
        return self._stop.is_set()

    def start(self, work: Callable[[], None]) -> None:
        """Begin the work."""
        self._thread = threading.Thread(target=work, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the work to end. May be called twice."""
        self._stop.set()

    def pause(self, seconds: float) -> None:
        """Wait for some seconds, or until the work is to end."""
        self._stop.wait(seconds)

    def ended(self, within_s: float | None = None) -> None:
        """Return when the work has ended, or after `within_s` seconds; at once if the work itself asks."""
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(within_s)
