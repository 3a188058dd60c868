"""`LoopThread`: an event loop in its own thread, for clients bound to one loop whose callers use any loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from turnwise.errors import StoreClosedError

Result = TypeVar("Result")


class LoopThread:
    """Runs coroutines concurrently for callers on any event loops. The thread starts with the first coroutine.

    Args:
        name: the name of the store that uses it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        """Held briefly, so that a coroutine either starts before the thread closes or is refused."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    async def run(self, make: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Run the coroutine that `make` makes in the thread, and return its result. Cancelling the call cancels it.

        Raises:
            StoreClosedError: the thread was closed; `make` was not called.
        """
        return await asyncio.wrap_future(self._submit(make))

    def wait(self, make: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Run the coroutine that `make` makes in the thread, and block until it ends; raises as `run` does."""
        return self._submit(make).result()

    def check_open(self) -> None:
        """Raise StoreClosedError if the thread was closed."""
        if self._closed:
            raise StoreClosedError(self._name)

    async def close(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for running coroutines, run the one that `make` makes, and end the thread. Closing twice is fine."""
        with self._lock:
            loop, thread, self._closed = self._loop, self._thread, True
            self._loop = self._thread = None
        if loop is None or thread is None:
            return

        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*tasks, return_exceptions=True)
            await make()

        try:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(end(), loop))
        finally:
            loop.call_soon_threadsafe(loop.stop)
            await asyncio.to_thread(thread.join)
            loop.close()

    def close_and_wait(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do what `close` does, and block until it is done, in any thread."""
        with ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(asyncio.run, self.close(make)).result()

    def _submit(self, make: Callable[[], Coroutine[Any, Any, Result]]) -> Future[Result]:
        async def call() -> Result:
            return await make()

        with self._lock:
            self.check_open()
            return asyncio.run_coroutine_threadsafe(call(), self._start())

    def _start(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name=f"turnwise {self._name}", daemon=True)
            self._thread.start()
        return self._loop
