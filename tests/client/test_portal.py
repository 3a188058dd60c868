"""The event loop on which callers that block run the coroutines of stores and memories."""

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

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
