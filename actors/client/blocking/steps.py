"""All that the two families do differently: how they call, wait, and work beside their caller; here, blocking.

Each name is that of a step in `actors/client/steps.py`, which does the same on an event loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from turnwise.actors.client.shared.portal import Portal
from turnwise.actors.cluster import actor_waiting as reaching, local_calls
from turnwise.actors.cluster.actor_waiting import Reach

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def call(actor: Any, request: bytes, reach: Reach, *, is_shared: bool, is_repeated: bool = True) -> bytes:
    """Send a request to an actor and return its answer. This thread waits itself, without an event loop.

    Raises:
        GetTimeoutError: the caller's own time is over.
        NoProcessError: see `Reach`.
        RayError: what Ray raises.
    """
    if is_repeated and (local_answer := local_calls.ask_blocking(actor, request, reach)) is not None:
        return local_answer
    packed: bytes = reaching.answer(actor, reaching.calls_of(actor, is_repeated=is_repeated).remote(request), reach)
    return packed


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

    def __init__(self, start: Callable[[], None]) -> None:
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
