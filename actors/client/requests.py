"""Requests: generators that the synchronous and the asynchronous classes share.

A request yields each step that it waits for (`Call`, `Pause` or `AwaitStep`), is sent that step's answer, and returns
its result. `carry_out` carries the steps out blocking, `carry_out_async` on an event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from turnwise.actors.client.request_batching import RequestBatcher
from turnwise.actors.cluster import reach
from turnwise.actors.cluster.reach import Reach

Result = TypeVar("Result")


@dataclass(frozen=True)
class Call:
    """Wait for an actor's answer to a request; GetTimeoutError after `timeout_s`, NoProcessError as `Reach` says.

    If the actor hosts many sessions (`is_shared`), simultaneous calls from one event loop are sent to it as one.
    """

    actor: Any
    request: bytes
    timeout_s: float | None
    is_shared: bool
    lost_at: float | None = None
    """Since when no process has been reached for this request; None if the call before it reached one."""

    @property
    def reach(self) -> Reach:
        """How long to wait, if the call is made now."""
        now = time.monotonic()
        return Reach(now, since=self.lost_at, until=None if self.timeout_s is None else now + self.timeout_s)


@dataclass(frozen=True)
class Pause:
    """Wait for some seconds."""

    seconds: float


@dataclass(frozen=True)
class AwaitStep:
    """Wait for a coroutine that uses the store or a memory."""

    ask: Callable[[], Awaitable[Any]]


Step = Call | Pause | AwaitStep
Request = Generator[Step, Any, Result]


class Portal:
    """An event loop in a background thread, for callers without one. The thread starts at the first `run`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop and return its result."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_serve, args=[self._loop], name="turnwise-portal", daemon=True).start()
            asked = asyncio.run_coroutine_threadsafe(work, self._loop)
        return asked.result()

    def close(self) -> None:
        """Stop the loop once the coroutines that other threads run on it have ended; the loop's thread closes it."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = None


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    # The loop's own executor would be shut down by one more thread, which Python 3.12 refuses when the program ends.
    with ThreadPoolExecutor(thread_name_prefix="turnwise-portal") as threads:
        loop.set_default_executor(threads)
        loop.run_forever()
        while tasks := asyncio.all_tasks(loop):
            loop.run_until_complete(asyncio.wait(tasks))
    loop.close()


def carry_out(request: Request[Result], portal: Portal) -> Result:
    """Run a request to its end, blocking."""
    answer: Any = None
    failure: BaseException | None = None
    while True:
        try:
            step = request.send(answer) if failure is None else request.throw(failure)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        answer = failure = None
        try:
            if isinstance(step, Call):
                answer = reach.answer(step.actor, step.actor.call.remote(step.request), step.reach)
            elif isinstance(step, Pause):
                time.sleep(step.seconds)
            else:
                answer = portal.run(_awaited(step))
        except BaseException as error:  # noqa: BLE001 - raised in the request, which handles it or not
            failure = error


async def carry_out_async(request: Request[Result]) -> Result:
    """Run a request to its end on the running event loop. Cancelling this coroutine cancels nothing on the cluster."""
    answer: Any = None
    failure: BaseException | None = None
    while True:
        try:
            step = request.send(answer) if failure is None else request.throw(failure)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        answer = failure = None
        try:
            if isinstance(step, Call):
                answer = await _called(step)
            elif isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            else:
                answer = await step.ask()
        except BaseException as error:  # noqa: BLE001 - raised in the request, which handles it or not
            failure = error


async def _awaited(step: AwaitStep) -> Any:
    return await step.ask()


async def _called(step: Call) -> Any:
    if step.is_shared:
        asked: asyncio.Future[Any] = RequestBatcher.of(step.actor).ask(step.request)
    else:
        asked = asyncio.wrap_future(step.actor.call.remote(step.request).future())
    return await reach.answer_async(step.actor, asked, step.reach)
