"""The event loop on which callers that block run the coroutines of stores and memories."""

import asyncio
import inspect
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from patience import until
from turnwise.actors.client.shared.portal import Portal


def test_a_wait_in_another_thread_is_answered_though_the_manager_is_closed() -> None:
    portal, began, goes_on = Portal(), threading.Event(), threading.Event()

    async def work() -> str:
        began.set()
        await asyncio.to_thread(goes_on.wait)
        return "done"

    threads = ThreadPoolExecutor(1)
    waiting = threads.submit(lambda: portal.run(work()))
    assert began.wait(30)
    portal.close()
    goes_on.set()
    assert waiting.result(30) == "done"
    threads.shutdown()


def test_a_portal_that_is_closed_when_the_program_ends_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 and later refuse to start one then."""
    portal, failures = Portal(), list[threading.Thread | None]()

    async def work() -> threading.Thread:
        await asyncio.to_thread(int)
        return threading.current_thread()

    thread = portal.run(work())

    start = threading.Thread.start

    def refuse(new: threading.Thread) -> None:
        if threading.current_thread() is thread:
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(new)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(threading, "excepthook", lambda failure: failures.append(failure.thread))
    portal.close()
    thread.join(30)
    assert not thread.is_alive()
    assert thread not in failures


def test_ctrl_c_cancels_what_its_caller_waits_for() -> None:
    portal, cancelled = Portal(), threading.Event()

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(KeyboardInterrupt):
        portal.run(work())
    assert cancelled.wait(30)
    portal.close()


@pytest.mark.parametrize("is_started", [False, True], ids=["first", "later"])
def test_ctrl_c_at_any_line_leaves_no_work_running(is_started: bool) -> None:
    def run(work: Coroutine[Any, Any, None], interrupted_at: int | None = None) -> list[int]:
        """Return the lines of `Portal.run` that ran, each once: a `with` runs again at its end."""
        portal, lines = Portal(), list[int]()

        def trace(frame: types.FrameType, event: str, _: object) -> Callable[..., Any] | None:
            if frame.f_code is not Portal.run.__code__:
                return None
            if event == "line" and frame.f_lineno not in lines:
                lines.append(frame.f_lineno)
                if frame.f_lineno == interrupted_at:
                    raise KeyboardInterrupt
            return trace

        if is_started:
            portal.run(asyncio.sleep(0))
        sys.settrace(trace)
        try:
            portal.run(work)
        finally:
            sys.settrace(None)
            portal.close()
        return lines

    lines = run(asyncio.sleep(0))
    assert len(lines) > 5
    for line in lines[2:]:  # those behind `try`
        waiting = wait_for_good()
        with pytest.raises(KeyboardInterrupt):
            run(waiting, line)
        until(partial(is_closed, waiting))


def is_closed(work: Coroutine[Any, Any, None]) -> bool:
    return inspect.getcoroutinestate(work) == inspect.CORO_CLOSED


async def wait_for_good() -> None:
    await asyncio.Event().wait()
