"""`Portal`: an event loop in a thread, on which callers that block run the coroutines of stores and memories."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class Portal:
    """An event loop in a background thread, for callers without one. The thread starts at the first `run`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop and return its result. It is cancelled if Ctrl-C interrupts the caller."""
        loop = None
        try:
            with self._lock:
                loop = self._started()
                result = asyncio.run_coroutine_threadsafe(work, loop)
            return result.result()
        except KeyboardInterrupt:
            if loop is None:
                work.close()
            else:  # the interrupt may have come before `result` had its value
                loop.call_soon_threadsafe(_cancel, work)
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            threading.Thread(target=_serve, args=[loop], name="turnwise-portal", daemon=True).start()
            self._loop = loop
        return self._loop

    def close(self) -> None:
        """Stop the loop once the coroutines that other threads run on it have ended; the loop's thread closes it."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = None


def _cancel(work: Coroutine[Any, Any, Any]) -> None:
    """Cancel the task that runs a coroutine on this loop, or close one that never began."""
    tasks = [task for task in asyncio.all_tasks() if task.get_coro() is work]
    for task in tasks:
        task.cancel()
    if not tasks:
        work.close()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    # The loop's own executor would be shut down by one more thread, which Python 3.12 refuses when the program ends.
    with ThreadPoolExecutor(thread_name_prefix="turnwise-portal") as threads:
        loop.set_default_executor(threads)
        loop.run_forever()
        while tasks := asyncio.all_tasks(loop):
            loop.run_until_complete(asyncio.wait(tasks))
    loop.close()
