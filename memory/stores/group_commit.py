"""`GroupCommit`: work that arrives during a transaction shares the next transaction."""

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
"""The most pieces of work in one transaction, so that the first does not wait for too many others."""

Work = TypeVar("Work")

Outcome = BaseException | None
"""The error of a piece of work; None if it is durably done."""


@dataclass(frozen=True)
class _Waiting(Generic[Work]):
    work: Work
    key: Hashable
    loop: asyncio.AbstractEventLoop
    outcome: asyncio.Future[Outcome]


class GroupCommit(Generic[Work]):
    """Runs work in groups on a thread pool, as soon as a thread is free; or one piece that comes alone at once.

    A group is the work that waits when a thread becomes free, in order of arrival, so a single piece of work starts at
    once. A group has at most `MAX_GROUP` pieces of work, and of those with the same key only the first, for work that
    one transaction must not mix, such as two commits of a session. `do` may be called from many event loops.

    Args:
        threads: the pool that runs the groups. It may do other work too.
        carry_out: takes a group and returns the outcome of each piece of work, in order. If it raises, every piece of
            work in the group fails with that error.
        do_here: does one piece of work in its caller's thread, which saves two changes of threads; returns its outcome
            in a tuple, or None if it has done nothing, since it might take long. It is asked for work that waits with
            no other.
    """

    def __init__(
        self,
        threads: Executor,
        carry_out: Callable[[Sequence[Work]], Sequence[Outcome]],
        *,
        do_here: Callable[[Work], tuple[Outcome] | None] | None = None,
    ) -> None:
        self._threads = threads
        self._carry_out = carry_out
        self._do_here = do_here
        self._lock = Lock()
        self._waiting: deque[_Waiting[Work]] = deque()
        self._scheduled = 0
        """Jobs that were submitted to the pool and have not taken their group yet."""
        self._at_work = 0
        """Jobs that carry out groups."""

    async def do(self, work: Work, key: Hashable) -> Outcome:
        """Return the outcome of the work, which is the error if it failed: that is not raised.

        The work of a cancelled call may be done or not; others are not affected.

        Raises:
            RuntimeError: the threads were shut down.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Outcome] = loop.create_future()
        with self._lock:
            self._waiting.append(_Waiting(work, key, loop, outcome))
            if self._do_here and self._is_alone:
                loop.call_soon(self._try_here, self._do_here)  # by then, others may wait too
            else:
                try:
                    self._call_threads()
                except RuntimeError:
                    self._waiting.pop()
                    raise
        return await outcome

    @property
    def _is_alone(self) -> bool:
        """Whether one piece of work waits, and no thread is doing any. The caller holds the lock."""
        return len(self._waiting) == 1 and not self._at_work and not self._scheduled

    def _try_here(self, do_here: Callable[[Work], tuple[Outcome] | None]) -> None:
        """Do the work that waits, if it is one piece of a caller of this event loop; else call a thread."""
        with self._lock:
            is_own = self._is_alone and self._waiting[0].loop is asyncio.get_running_loop()
            group = self._next_group() if is_own else []
        for request in group:
            outcomes: tuple[Outcome] | None
            try:
                outcomes = do_here(request.work)
            except BaseException as error:  # noqa: BLE001 - `do` returns it to the caller
                outcomes = (error,)
            if outcomes is not None:
                _set_results([(request.outcome, *outcomes)])
                return
        with self._lock:
            self._waiting.extendleft(group)
            has_called_threads = self._has_called_threads()
        if not has_called_threads:
            self._do_rest()

    def _call_threads(self) -> None:
        """Submit as many jobs as the waiting work needs. The caller holds the lock."""
        while self._scheduled * MAX_GROUP < len(self._waiting):
            self._threads.submit(self._do_group)
            self._scheduled += 1

    def _has_called_threads(self) -> bool:
        """Do `_call_threads`; return False if the pool is shut down: the work that came before is still to be done."""
        try:
            self._call_threads()
        except RuntimeError:
            return False
        return True

    def _do_group(self) -> None:
        with self._lock:
            self._scheduled -= 1
            self._at_work += 1
        try:
            self._do_rest()
        finally:
            with self._lock:
                self._at_work -= 1

    def _do_rest(self) -> None:
        """Do the next group, and all others if the pool takes no more jobs."""
        must_do_rest = True
        while must_do_rest:
            with self._lock:
                group = self._next_group()
                must_do_rest = not self._has_called_threads()
            if group:
                _set_outcomes(group, self._outcomes_of(group))

    def _outcomes_of(self, group: Sequence[_Waiting[Work]]) -> Sequence[Outcome]:
        try:
            return self._carry_out([request.work for request in group])
        except BaseException as error:  # noqa: BLE001 - `do` returns it to each caller
            return [error] * len(group)

    def _next_group(self) -> list[_Waiting[Work]]:
        group: dict[Hashable, _Waiting[Work]] = {}
        delayed: deque[_Waiting[Work]] = deque()
        while self._waiting and len(group) < MAX_GROUP:
            request = self._waiting.popleft()
            if request.outcome.cancelled():
                continue
            if request.key in group:
                delayed.append(request)
            else:
                group[request.key] = request
        self._waiting.extendleft(reversed(delayed))
        return list(group.values())


def _set_outcomes(group: Iterable[_Waiting[Any]], outcomes: Iterable[Outcome]) -> None:
    """Set the outcome of each piece of work, with one call per event loop for all callers that wait on it."""
    waiting: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Outcome], Outcome]]] = {}
    for request, outcome in zip(group, outcomes, strict=True):
        waiting.setdefault(request.loop, []).append((request.outcome, outcome))
    for loop, outcomes_of_loop in waiting.items():
        with suppress(RuntimeError):  # the loop was closed, so no caller waits on it
            loop.call_soon_threadsafe(_set_results, outcomes_of_loop)


def _set_results(outcomes: Iterable[tuple[asyncio.Future[Outcome], Outcome]]) -> None:
    for future, outcome in outcomes:
        if not future.done():
            future.set_result(outcome)
