"""Batching: requests that arrive while a call is under way are carried out together by the next call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

AT_ONCE = 4
"""How many batches run concurrently at most, if a slow batch may be overtaken."""

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Batcher(Generic[Asked, Answer]):
    """Answers requests by one call at a time; requests that arrive meanwhile form the next batch, of up to `most`.

    A single request is sent at once; requests that arrive while a call is under way form the next batch. Answers come
    in the order of what was asked; where an answer is an exception it is raised to its caller, and an exception of the
    call to all, as is another number of answers. A caller who gives up changes nothing for the others. If all of a
    batch give up, its call is cancelled.

    Args:
        work: answers a batch, each with its own answer or exception, in order.
        patience_s: how long a batch holds up the next one, in seconds; to its end if left out. Then up to `AT_ONCE`
            are under way, so that a slow request does not hold up others.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Asked]], Awaitable[Sequence[Answer | BaseException]]],
        *,
        most: int = 256,
        patience_s: float | None = None,
    ) -> None:
        self._work = work
        self._most = most
        self._patience_s = patience_s
        self._under_way: set[asyncio.Task[None]] = set()
        self._latest_call: asyncio.Task[None] | None = None
        """The batch that holds up the next one."""
        self._patience: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[Asked, asyncio.Future[Answer]]] = []
        self._answers_of: dict[asyncio.Task[None], set[asyncio.Future[Answer]]] = {}
        """The answers of each batch under way that are still awaited."""
        self._is_due = False
        """Whether the next batch begins as soon as those who ask at the same moment have asked."""

    async def ask(self, request: Asked) -> Answer:
        """Return the answer."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        self._begin_soon()
        try:
            return await answer
        finally:
            if answer.cancelled():
                self._give_up(answer)

    def _give_up(self, answer: asyncio.Future[Answer]) -> None:
        """Leave a request out of the next batch, or cancel the batch under way if no request of it waits any more."""
        self._waiting = [entry for entry in self._waiting if entry[1] is not answer]
        for task, awaited in self._answers_of.items():
            if answer in awaited:
                awaited.discard(answer)
                if not awaited:
                    task.cancel()

    def _begin_soon(self) -> None:
        is_free = self._latest_call is None and len(self._under_way) < AT_ONCE
        if self._waiting and is_free and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        loop, self._is_due = asyncio.get_running_loop(), False
        batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
        if not batch:
            return  # all have given up
        self._latest_call = task = loop.create_task(self._carry_out(batch))
        self._under_way.add(task)
        self._answers_of[task] = {answer for _, answer in batch}
        task.add_done_callback(self._end)
        if self._patience_s is not None:
            self._patience = loop.call_later(self._patience_s, self._allow_next)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        del self._answers_of[task]
        if self._latest_call is task:
            self._allow_next()
        else:
            self._begin_soon()

    def _allow_next(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._latest_call = self._patience = None
        self._begin_soon()

    async def _carry_out(self, batch: Sequence[tuple[Asked, asyncio.Future[Answer]]]) -> None:
        answers: Sequence[Answer | BaseException]
        try:
            answers = await self._work([request for request, _ in batch])
            if len(answers) != len(batch):
                raise RuntimeError(f"{len(batch)} were asked and {len(answers)} answers came")
        except asyncio.CancelledError:
            answers = [RuntimeError("the work cancelled itself")] * len(batch)
        except Exception as error:  # noqa: BLE001 - it is given to each caller
            answers = [error] * len(batch)
        for (_, answer), outcome in zip(batch, answers, strict=True):
            if answer.done():
                continue
            if isinstance(outcome, BaseException):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)
