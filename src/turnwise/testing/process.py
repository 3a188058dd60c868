"""A simulated process: all tasks that descend from one call, which can be stopped at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

from turnwise.errors import SessionLostError

Answer = TypeVar("Answer")

_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class Process:
    """Simulates the process of a session on a `VirtualLoop`.

    When it is killed, its tasks stop at once, without running even a `finally`, as with SIGKILL. Work that others do
    for it, such as a store's commit, continues.
    """

    def __init__(self, name: str = "process") -> None:
        self.name = name
        self.is_dead = False
        self.tasks: list[asyncio.Task[Any]] = []
        """All tasks that it started; referenced here, since Python would close a task without references."""
        self.died_s: float | None = None
        """When it was killed, on the loop's clock."""
        self._died = asyncio.Event()

    @staticmethod
    def of(context: Context | None = None) -> Process | None:
        """Return the process that this context, or the current one, belongs to; None for none."""
        return _PROCESS.get() if context is None else context.get(_PROCESS, None)

    def kill(self) -> None:
        """Stop all its tasks. Idempotent."""
        if not self.is_dead:
            self.is_dead, self.died_s = True, asyncio.get_running_loop().time()
            self._died.set()

    async def call(self, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
        """Run the coroutine in the process; return its result.

        Raises:
            SessionLostError: the process is dead, or was killed meanwhile.
        """
        if self.is_dead:
            coroutine.close()
            raise SessionLostError(self.name, "its process is dead")
        context = copy_context()
        context.run(_PROCESS.set, self)
        task = asyncio.get_running_loop().create_task(coroutine, context=context)
        death = asyncio.create_task(self._died.wait())
        try:
            await asyncio.wait([task, death], return_when=asyncio.FIRST_COMPLETED)
        finally:
            death.cancel()
        if self._died.is_set():
            if task.done() and not task.cancelled():
                task.exception()  # nobody gets this error
            raise SessionLostError(self.name, "its process was killed")
        return task.result()
