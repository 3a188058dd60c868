"""Calls of users' blocking functions: tools, and functions that are engines."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


async def on_thread(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a function in a new daemon thread, with this task's context variables, and return its result.

    If the caller is cancelled, the thread goes on and its result is dropped.

    `asyncio.to_thread` is not used, since stuck functions would exhaust its few threads and block the exit.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def deliver(value: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((value, error))

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(function, *args, **kwargs)
        except BaseException as raised:  # noqa: BLE001 - raised again by the coroutine
            error = raised
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            loop.call_soon_threadsafe(deliver, value, error)
        del error  # whose traceback has this frame: they would wait for the garbage collector, with all they refer to

    context = contextvars.copy_context()
    spawn(work)
    value, error = await ended
    if error is not None:
        try:
            raise error
        finally:
            del error, ended  # as above
    return value


def spawn(work: Callable[[], object]) -> None:
    """Run a function in a new daemon thread, and do not wait for it."""
    threading.Thread(target=work, name="turnwise-call", daemon=True).start()
