"""`Calls`: blocking calls of a store, for callers in any threads and on any event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from turnwise.errors import StoreClosedError

Result = TypeVar("Result")

_THREADS = 4
"""The most threads for callers on event loops: as many as a store has connections to PostgreSQL."""


class Calls:
    """Makes blocking calls: in the caller's thread, or in a thread of its own for a caller on an event loop.

    Args:
        name: the name of the store that they use.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"turnwise {name}")
        self._changed = threading.Condition()
        self._running = 0
        self._closed = False

    def here(self, call: Callable[[], Result]) -> Result:
        """Make a call in this thread, and return its result.

        Raises:
            StoreClosedError: it was closed; the call was not made.
        """
        with self._changed:
            if self._closed:
                raise StoreClosedError(self._name)
            self._running += 1
        try:
            return call()
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    async def elsewhere(self, call: Callable[[], Result]) -> Result:
        """Make a call in another thread, and return its result. One that has begun goes on if its caller is cancelled.

        Raises:
            StoreClosedError: it was closed; the call was not made.
        """
        try:
            result = asyncio.get_running_loop().run_in_executor(self._threads, self.here, call)
        except RuntimeError:  # the threads were shut down
            raise StoreClosedError(self._name) from None
        return await result

    async def close(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for all calls, refuse later ones, and run the coroutine that `make` makes. Closing twice is fine."""
        await asyncio.to_thread(self._finish)
        await make()

    def close_and_wait(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do what `close` does, and block until it is done, in any thread."""
        with ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(asyncio.run, self.close(make)).result()

    def _finish(self) -> None:
        self._threads.shutdown()  # those that wait for a thread are made
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._running == 0)
