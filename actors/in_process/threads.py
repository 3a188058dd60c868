"""`EventLoop`: an event loop in a thread of its own, which lives as long as the process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

THREADS = 32
"""How many blocking calls of its coroutines run at once, on threads."""

Result = TypeVar("Result")


class EventLoop:
    """An event loop in a daemon thread, which starts at the first `submit`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        """The tasks under way; the event loop itself holds tasks weakly."""
        self._forget()
        os.register_at_fork(after_in_child=self._forget)  # its thread runs in the parent only

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks.clear()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on it, so that it must not block."""
        return threading.current_thread() is self._thread

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Begin a coroutine; return the future of its result. Cancelling the future does not cancel the work."""
        result: Future[Result] = Future()

        def begin() -> None:
            task = loop.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(lambda _: self._end(task, result))

        loop = self._running()
        loop.call_soon_threadsafe(begin)
        return result

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            with self._lock:
                if self._loop is None:
                    loop = asyncio.new_event_loop()
                    loop.set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix=self._name))
                    self._thread = threading.Thread(target=loop.run_forever, name=self._name, daemon=True)
                    self._thread.start()
                    self._loop = loop
                    _STARTED.append(self)
        return self._loop

    def stop(self) -> None:
        """Stop the loop and all that goes on there, as a kill of the process would; return when it has stopped."""
        if self._loop is not None and self._thread is not None and not self.is_current:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _end(self, task: asyncio.Task[Result], result: Future[Result]) -> None:
        self._tasks.discard(task)
        if not result.set_running_or_notify_cancel():
            if not task.cancelled():
                task.exception()  # which marks it as retrieved: nobody waits for it
        elif task.cancelled():
            result.set_exception(asyncio.CancelledError())
        elif error := task.exception():
            result.set_exception(error)
        else:
            result.set_result(task.result())


_STARTED: list[EventLoop] = []


def _stop_all() -> None:
    """Stop all loops when the program ends, while their threads can still work: what ends later logs errors only."""
    for loop in _STARTED:
        loop.stop()


threading._register_atexit(_stop_all)  # type: ignore[attr-defined] # noqa: SLF001 - `atexit` comes after the executors' end
