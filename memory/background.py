"""Work beside what callers wait for: none of it fails without a word, and what must go on is tried again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from turnwise.errors import TurnwiseError

FIRST_PAUSE_S, MOST_PAUSE_S = 1.0, 60.0
"""How long work that failed is left alone, in seconds; doubled after each failure, up to the second."""

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


def watch(task: asyncio.Future[Any], what: str) -> None:
    """Log the error that a task ends with, with its traceback. For a task whose result nobody takes.

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
    """Wait until a task has ended, however. If the caller is cancelled the task goes on, and its error is logged."""
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        watch(task, what)
        raise


def log_failure(what: str, error: BaseException, then: str = "") -> None:
    """Log an error: a typed one by its message, which names ids and remedy, any other with its traceback.

    Args:
        then: what happens next.
    """
    if isinstance(error, TurnwiseError):
        _log.warning("%s failed%s: %s", what, then, error)
    else:
        _log.error("%s failed%s: %s", what, then, type(error).__name__, exc_info=error)


async def retry(
    work: Callable[[], Awaitable[None]], what: str, *, until: Callable[[BaseException], bool] = lambda error: False
) -> None:
    """Carry out `work`; whatever it raises is logged, and it is carried out again after a pause that grows.

    Args:
        what: as of `watch`.
        until: whether an error is final: it is logged, and that is the end.
    """
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return await work()
        except Exception as error:  # noqa: BLE001 - it is logged, and the work goes on whoever's error it is
            if until(error):
                return log_failure(what, error)
            log_failure(what, error, f", and is tried again in {pause_s:g} s")
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, MOST_PAUSE_S)


def _report(what: str, task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log_failure(what, error)
