"""Background tasks: errors are logged, and work that must not stop is retried."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from turnwise.errors import TurnwiseError

FIRST_PAUSE_S, MOST_PAUSE_S = 1.0, 60.0
"""First and longest pause before a retry, in seconds. The pause doubles after each failure."""

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


def watch(task: asyncio.Future[Any], what: str) -> None:
    """Log the error that a task ends with, with its traceback. For a task whose result nobody awaits.

    Args:
        what: the task and its ids, such as `session 'chat': saving`.
    """
    task.add_done_callback(partial(_report, what))


async def shielded(task: asyncio.Task[Result], what: str) -> Result:
    """Return a task's result. If the caller is cancelled the task goes on, and its error is logged."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        watch(task, what)
        raise


async def ended(task: asyncio.Task[Any], what: str) -> None:
    """Wait until a task is done or failed. If the caller is cancelled, the task goes on and its error is logged."""
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        watch(task, what)
        raise


def log_failure(what: str, error: BaseException, then: str = "") -> None:
    """Log an error: a turnwise error by its message, which names ids and remedy; any other with its traceback.

    Args:
        then: text appended to the log line that says what happens next.
    """
    if isinstance(error, TurnwiseError):
        _log.warning("%s failed%s: %s", what, then, error)
    else:
        _log.error("%s failed%s: %s", what, then, type(error).__name__, exc_info=error)


async def retry(
    work: Callable[[], Awaitable[None]], what: str, *, until: Callable[[BaseException], bool] = lambda error: False
) -> None:
    """Call `work` until it succeeds. Each error is logged, and the pause before the next call grows.

    Args:
        what: the task and its ids, as for `watch`.
        until: returns true for a final error: that error is logged and `work` is not called again.
    """
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return await work()
        except Exception as error:  # noqa: BLE001 - every error is logged and retried
            if until(error):
                return log_failure(what, error)
            log_failure(what, error, f", and is tried again in {pause_s:g} s")
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, MOST_PAUSE_S)


def _report(what: str, task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log_failure(what, error)
