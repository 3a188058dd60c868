"""Batching: simultaneous requests to one actor of many sessions are sent in one Ray call."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Coroutine
from typing import Any

from ray.exceptions import RayError

MOST = 64
"""How many requests a batch has at most."""

MOST_BYTES = 64_000
"""How many bytes a batch has at most: a little less than what Ray sends inline, so that it needs no object store."""

_PendingRequest = tuple[bytes, "asyncio.Future[bytes]"]


class RequestBatcher:
    """Sends simultaneous requests from one event loop to one actor of many sessions as a single Ray call.

    A Ray call takes a third of a millisecond on each side, whatever its size. Answers are streamed as they are ready,
    so no request waits for another's answer. A single request is sent as an ordinary call. If a batch fails, each
    request that has no answer is sent again as a call of its own, which Ray repeats until the actor has a process; so
    a request may be carried out twice, like any call. A caller that is cancelled does not affect the others.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._waiting: list[_PendingRequest] = []
        self._size = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def of(cls, actor: Any) -> RequestBatcher:
        """Return the running event loop's batcher for an actor."""
        batchers = _BATCHERS.setdefault(asyncio.get_running_loop(), {})
        if actor not in batchers:
            for idle_actor in [known_actor for known_actor, batcher in batchers.items() if batcher.is_idle]:
                del batchers[idle_actor]  # cheap to make again, and its actor may have exited
            batchers[actor] = cls(actor)
        return batchers[actor]

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to send and no answer to wait for."""
        return not self._waiting and not self._tasks

    def ask(self, request: bytes) -> asyncio.Future[bytes]:
        """Send a request; return the future of the actor's answer, which raises the errors of a separate call."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._send)
        self._waiting.append((request, answer))
        self._size += len(request)
        if len(self._waiting) == MOST or self._size >= MOST_BYTES:
            self._send()
        return answer

    def _send(self) -> None:
        batch, self._waiting, self._size = self._waiting, [], 0
        if len(batch) == 1:
            self._spawn(self._call(*batch[0]), batch)
        elif batch:
            self._spawn(self._call_together(batch), batch)

    async def _call(self, request: bytes, answer: asyncio.Future[bytes]) -> None:
        _set_answer(answer, await self._actor.call.remote(request))

    async def _call_together(self, batch: list[_PendingRequest]) -> None:
        unanswered = dict(enumerate(batch))
        # Ray must not retry the batch: a second process would stream its answers in another order.
        calls = self._actor.calls.options(num_returns="streaming", max_task_retries=0)
        try:
            async for ready in calls.remote([request for request, _ in batch]):
                for index, packed in await ready:
                    _set_answer(unanswered.pop(index)[1], packed)
        except RayError:
            pass  # the requests without an answer are sent again, one call each, and raise what lasts
        for request, answer in unanswered.values():
            if not answer.done():
                self._spawn(self._call(request, answer), [(request, answer)])

    def _spawn(self, work: Coroutine[Any, Any, None], batch: list[_PendingRequest]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            for _, answer in batch:
                if error and not answer.done():
                    answer.set_exception(error)

        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)


_BATCHERS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, RequestBatcher]] = weakref.WeakKeyDictionary()


def _set_answer(answer: asyncio.Future[bytes], packed: bytes) -> None:
    if not answer.done():
        answer.set_result(packed)
