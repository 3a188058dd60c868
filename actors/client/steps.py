"""All that the two families do differently: how they call, wait, and work beside their caller.

These are the steps of the asynchronous family, and `blocking/steps.py` has those of the blocking one. The modules here
that use them are written for the asynchronous family; `make blocking` makes the blocking family from their text.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from typing import Any, ParamSpec, TypeVar

from turnwise.actors.client.shared.portal import Portal
from turnwise.actors.hosting.reach import Reach
from turnwise.actors.hosting.runtime import SessionProcess

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


async def call(process: SessionProcess, request: bytes, reach: Reach, *, is_repeatable: bool) -> bytes:
    """Send a request to a session's process and return its answer; see `SessionProcess.ask`."""
    return await process.ask(request, reach, is_repeatable=is_repeatable)


async def sleep(seconds: float) -> None:
    """Wait for some seconds."""
    await asyncio.sleep(seconds)


async def run(
    portal: Portal,
    function: Callable[Arguments, Awaitable[Result]],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    """Return the result of a coroutine function of a store or a memory. Only callers that block need the portal."""
    return await function(*args, **kwargs)


async def in_thread(function: Callable[[], Result]) -> Result:
    """Return the result of a function that takes long or blocks."""
    return await asyncio.to_thread(function)


async def finish(answer: object) -> None:
    """Await what a caller's function has returned, if it can be awaited."""
    if inspect.isawaitable(answer):
        await answer


class Start:
    """Work that has to be done once before a manager's first call: that call does it, in a thread."""

    def __init__(self, start: Callable[[], None], around: Callable[[], AbstractContextManager[None]]) -> None:
        self._start = start
        self._around = around
        self._task: asyncio.Task[None] | None = None

    async def done(self) -> None:
        """Return when it is done, for all callers. A cancelled caller cancels nothing; a failed start is repeated."""
        if self._task is None:
            self._task = asyncio.create_task(self._start_in_thread())
        task = self._task
        try:
            await asyncio.shield(task)
        except Exception:
            if self._task is task:
                self._task = None
            raise

    async def _start_in_thread(self) -> None:
        with self._around():  # here, since it is the main thread that can do it
            await asyncio.to_thread(self._start)


class Background:
    """Work beside its caller, in a task of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def is_stopped(self) -> bool:
        """Return whether the work is to end."""
        return self._stop.is_set()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin the work."""
        self._task = asyncio.create_task(work(), name=self._name)
        _TASKS.add(self._task)
        self._task.add_done_callback(_TASKS.discard)

    def stop(self) -> None:
        """Ask the work to end. May be called twice."""
        self._stop.set()

    def abandon(self) -> None:
        """End work that is to end and may be left at any place, such as while it waits for the network."""
        if self._task is not None and asyncio.current_task() is not self._task:
            self._task.cancel()

    async def pause(self, seconds: float) -> None:
        """Wait for some seconds, or until the work is to end."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def ended(self, within_s: float | None = None) -> None:
        """Return when the work has ended, or after `within_s` seconds; at once if the work itself asks."""
        if self._task is not None and asyncio.current_task() is not self._task:
            await asyncio.wait([self._task], timeout=within_s)


_TASKS: set[asyncio.Task[None]] = set()
"""The tasks under way; the event loop itself holds tasks weakly."""
