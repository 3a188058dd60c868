"""What comes while a transaction is under way shares the next one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, TypeVar

MAX_GROUP = 64
"""The most that share a transaction, so that the first of them does not wait for too many others."""

Work = TypeVar("Work")

Outcome = BaseException | None
"""Why it was not done; None if it was, durably."""


@dataclass(frozen=True, slots=True)
class _Asked(Generic[Work]):
    work: Work
    key: Hashable
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Outcome]


class GroupCommit(Generic[Work]):
    """Hands out work in groups to threads, as soon as one of them is free.

    Who comes alone waits for nobody: the group is what has come by the time that a thread takes it up. Of one key there
    is at most one in a group, and what came first is taken first. May be asked from many event loops.

    Args:
        threads: where groups are carried out, beside what else these threads do.
        carry_out: takes a group and returns the outcome of each in it, in order. What it raises is that of all.
    """

    def __init__(self, threads: Executor, carry_out: Callable[[Sequence[Work]], Sequence[Outcome]]) -> None:
        self._threads = threads
        self._carry_out = carry_out
        self._lock = Lock()
        self._asked: deque[_Asked[Work]] = deque()
        self._coming = 0
        """Jobs that are submitted and have not taken their group yet."""

    async def do(self, work: Work, key: Hashable) -> Outcome:
        """Return the outcome of the work. A cancelled call's is done or not; others in its group are not touched.

        Raises:
            RuntimeError: the threads were shut down.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Outcome] = loop.create_future()
        with self._lock:
            self._asked.append(_Asked(work, key, loop, done))
            try:
                self._call_threads()
            except RuntimeError:
                self._asked.pop()
                raise
        return await done

    def _call_threads(self) -> None:
        """See to it that as many jobs are coming as what was asked takes. Under the lock."""
        while self._coming * MAX_GROUP < len(self._asked):
            self._threads.submit(self._do_group)
            self._coming += 1

    def _do_group(self) -> None:
        with self._lock:
            self._coming -= 1
        is_alone = True
        while is_alone:
            with self._lock:
                group = self._take()
                try:
                    self._call_threads()
                    is_alone = False
                except RuntimeError:  # being shut down: what was asked before that is done all the same
                    is_alone = bool(self._asked)
            if not group:
                continue
            try:
                outcomes = self._carry_out([asked.work for asked in group])
            except BaseException as error:  # noqa: BLE001 - those who asked raise it
                outcomes = [error] * len(group)
            _tell(group, outcomes)

    def _take(self) -> list[_Asked[Work]]:
        group: dict[Hashable, _Asked[Work]] = {}
        left: deque[_Asked[Work]] = deque()
        while self._asked and len(group) < MAX_GROUP:
            asked = self._asked.popleft()
            if asked.done.cancelled():
                continue
            if asked.key in group:
                left.append(asked)
            else:
                group[asked.key] = asked
        self._asked.extendleft(reversed(left))
        return list(group.values())


def _tell(group: Iterable[_Asked[Any]], outcomes: Iterable[Outcome]) -> None:
    """Tell each in a group its outcome: one call of an event loop for all who wait there."""
    waiting: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Outcome], Outcome]]] = {}
    for asked, outcome in zip(group, outcomes, strict=True):
        waiting.setdefault(asked.loop, []).append((asked.done, outcome))
    for loop, told in waiting.items():
        with suppress(RuntimeError):  # the loop was closed, so nobody waits there
            loop.call_soon_threadsafe(_settle, told)


def _settle(told: Iterable[tuple[asyncio.Future[Outcome], Outcome]]) -> None:
    for done, outcome in told:
        if not done.done():
            done.set_result(outcome)
