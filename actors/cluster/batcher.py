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

    So who asks alone waits for nobody, and the more ask, the more is done together. Answers come in the order of what
    was asked; where an answer is an exception it is raised to its caller, and an exception of the call to all, as is
    another number of answers. A caller who gives up changes nothing for the others.

    Args:
        work: answers a batch, each with its own answer or exception, in order.
        patience_s: how long a batch holds up the next one, in seconds; to its end if left out. Then up to `AT_ONCE`
            are under way, so that who asks for what takes long holds up nobody else.
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
        self._waiting: list[tuple[Asked, asyncio.Future[Answer]]] = []
        self._runner: asyncio.Task[None] | None = None

    async def ask(self, asked: Asked) -> Answer:
        """Return the answer."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, answer))
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # for those who ask at the same moment
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            task = asyncio.create_task(self._carry_out(batch))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            await asyncio.wait({task}, timeout=self._patience_s)
            if len(self._under_way) >= AT_ONCE:
                await asyncio.wait(set(self._under_way), return_when=asyncio.FIRST_COMPLETED)

    async def _carry_out(self, batch: Sequence[tuple[Asked, asyncio.Future[Answer]]]) -> None:
        answers: Sequence[Answer | BaseException]
        try:
            answers = await self._work([asked for asked, _ in batch])
            if len(answers) != len(batch):
                raise RuntimeError(f"{len(batch)} were asked and {len(answers)} answers came")
        except asyncio.CancelledError:
            answers = [RuntimeError("the work cancelled itself")] * len(batch)
        except Exception as error:  # noqa: BLE001 - it is given to each caller
            answers = [error] * len(batch)
        for (_, answer), given in zip(batch, answers, strict=True):
            if answer.done():
                continue
            if isinstance(given, BaseException):
                answer.set_exception(given)
            else:
                answer.set_result(given)
