"""Background tasks: errors are logged, and work that must not stop is retried. Work on threads ends with its caller."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, ParamSpec, TypeVar

from turnwise.errors import TurnwiseError
from turnwise.memory.growing_pauses import GrowingPauses

FIRST_PAUSE_S, MOST_PAUSE_S = 1.0, 60.0
"""First and longest pause before a retry, in seconds: see `GrowingPauses`."""

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")

_given_up: ContextVar[threading.Event | None] = ContextVar("given_up", default=None)
"""Whether the caller of the work on this thread has given up."""

_until: ContextVar[float | None] = ContextVar("until", default=None)
"""The time until which deferrable work goes on, by the monotonic clock; None for no limit."""

_log = logging.getLogger(__name__)


async def on_thread(work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
    """Return what blocking work returns on a thread. If the caller is cancelled, the work ends at `check_awaited`."""
    given_up = threading.Event()
    token = _given_up.set(given_up)
    try:
        return await asyncio.to_thread(work, *args, **kwargs)
    except asyncio.CancelledError:
        given_up.set()
        raise
    finally:
        _given_up.reset(token)


def check_awaited() -> None:
    """End the work if nobody waits for it any more. Long work on a thread calls this after each bounded step.

    Raises:
        CancelledError: the caller of `on_thread` was cancelled.
    """
    if (given_up := _given_up.get()) is not None and given_up.is_set():
        raise asyncio.CancelledError("nobody waits for this any more")


@contextmanager
def putting_off_after(seconds: float) -> Iterator[None]:
    """Limit the deferrable work of the calls inside the block to some seconds; see `has_time`."""
    token = _until.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _until.reset(token)


def has_time() -> bool:
    """Return whether deferrable work may go on: its caller has an answer without it, and waits for a limited time."""
    return (until := _until.get()) is None or time.monotonic() < until


def watch(task: asyncio.Future[Any], activity: str) -> None:
    """Log the error that a task ends with, with its traceback. For a task whose result nobody awaits.

    Args:
        activity: the task and its ids, such as `session 'chat': saving`.
    """
    task.add_done_callback(partial(_report, activity))


async def shielded(task: asyncio.Task[Result], activity: str) -> Result:
    """Return a task's result. If the caller is cancelled the task goes on, and its error is logged."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        watch(task, activity)
        raise


async def ended(task: asyncio.Task[Any], activity: str) -> None:
    """Wait until a task is done or failed. If the caller is cancelled, the task goes on and its error is logged."""
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        watch(task, activity)
        raise


def log_failure(activity: str, error: BaseException, consequence: str = "") -> None:
    """Log an error: a turnwise error by its message, which names ids and remedy; any other with its traceback.

    Args:
        consequence: text appended to the log line that says what happens next.
    """
    if isinstance(error, TurnwiseError):
        _log.warning("%s failed%s: %s", activity, consequence, error)
    else:
        _log.error("%s failed%s: %s", activity, consequence, type(error).__name__, exc_info=error)


async def retry(
    work: Callable[[], Awaitable[None]], activity: str, *, until: Callable[[BaseException], bool] = lambda error: False
) -> None:
    """Call `work` until it succeeds. Each error is logged, and the pause before the next call grows.

    Args:
        activity: the task and its ids, as for `watch`.
        until: returns true for a final error: that error is logged and `work` is not called again.
    """
    pauses = GrowingPauses(FIRST_PAUSE_S, MOST_PAUSE_S)
    while True:
        try:
            return await work()
        except Exception as error:  # noqa: BLE001 - every error is logged and retried
            if until(error):
                return log_failure(activity, error)
            pause_s = pauses.next_s()
            log_failure(activity, error, f", and is tried again in {pause_s:.1f} s")
        await asyncio.sleep(pause_s)


def _report(activity: str, task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log_failure(activity, error)
