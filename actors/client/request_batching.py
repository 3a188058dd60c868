"""Requests of one moment to one actor, in one Ray call."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Coroutine
from typing import Any

from ray.exceptions import RayError

MOST = 64
"""How many requests go together at most."""

MOST_BYTES = 64_000
"""How much of requests goes together; a little less than what Ray sends with a call, so that nothing goes around it."""

_Asked = tuple[bytes, "asyncio.Future[bytes]"]


class RequestBatcher:
    """Sends what the callers of an event loop ask of an actor of many sessions in the same moment as one Ray call.

    Whatever a call carries, Ray takes a third of a millisecond of either side for it. Answers come as they are ready,
    so no request waits for another's answer; who asks alone makes a call of its own. What a bundle that broke leaves
    unanswered is asked again, each by a call of its own, which Ray repeats until there is a process: so requests may be
    carried out twice, as with any call. A caller who gives up changes nothing for the others.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._waiting: list[_Asked] = []
        self._size = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def of(cls, actor: Any) -> RequestBatcher:
        """Return the running event loop's bundler for an actor."""
        bundlers = _BUNDLERS.setdefault(asyncio.get_running_loop(), {})
        if actor not in bundlers:
            for other in [other for other, bundler in bundlers.items() if bundler.is_idle]:
                del bundlers[other]  # a new one is made as quickly; this one may be of a host that has left
            bundlers[actor] = cls(actor)
        return bundlers[actor]

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to send and waits for no answer."""
        return not self._waiting and not self._tasks

    async def ask(self, request: bytes) -> bytes:
        """Return the actor's answer.

        Raises:
            RayError: as a call of its own.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._send)
        self._waiting.append((request, answer))
        self._size += len(request)
        if len(self._waiting) == MOST or self._size >= MOST_BYTES:
            self._send()
        return await answer

    def _send(self) -> None:
        asked, self._waiting, self._size = self._waiting, [], 0
        if len(asked) == 1:
            self._spawn(self._call(*asked[0]), asked)
        elif asked:
            self._spawn(self._call_together(asked), asked)

    async def _call(self, request: bytes, answer: asyncio.Future[bytes]) -> None:
        _give(answer, await self._actor.call.remote(request))

    async def _call_together(self, asked: list[_Asked]) -> None:
        left = dict(enumerate(asked))
        # Not repeated by Ray: a second process's answers would come in another order.
        calls = self._actor.calls.options(num_returns="streaming", max_task_retries=0)
        try:
            async for ready in calls.remote([request for request, _ in asked]):
                for at, given in await ready:
                    _give(left.pop(at)[1], given)
        except RayError:
            pass  # if that lasts, each of those that are left will hear of it
        for request, answer in left.values():
            if not answer.done():
                self._spawn(self._call(request, answer), [(request, answer)])

    def _spawn(self, work: Coroutine[Any, Any, None], asked: list[_Asked]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            for _, answer in asked:
                if error and not answer.done():
                    answer.set_exception(error)

        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)


_BUNDLERS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, RequestBatcher]] = weakref.WeakKeyDictionary()


def _give(answer: asyncio.Future[bytes], given: bytes) -> None:
    if not answer.done():
        answer.set_result(given)
