"""A simulated process: all tasks that descend from one call, which can be stopped at once; `crash` kills it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

from turnwise.errors import ConfigError, SessionLostError

Answer = TypeVar("Answer")

_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class Process:
    """Simulates the process of a session on a `VirtualLoop`.

    When it is killed, its tasks stop at once, without running even a `finally`, as with SIGKILL: the loop runs no step
    of a process that is dead. Work that others do for it, such as a store's commit, continues.
    """

    def __init__(self, name: str = "process") -> None:
        self.name = name
        self.is_dead = False
        self.tasks: list[asyncio.Task[Any]] = []
        """All tasks that it started; the loop adds them. They are kept, since Python closes the coroutine of a task
        without references, and that runs its `finally`."""
        self.killed_at_s: float | None = None
        """When it was killed, on the loop's clock."""
        self._killed = asyncio.Event()

    @staticmethod
    def of(context: Context | None = None) -> Process | None:
        """Return the process that this context, or the current one, belongs to; None for none."""
        return _PROCESS.get() if context is None else context.get(_PROCESS, None)

    def kill(self) -> None:
        """Stop all its tasks. Idempotent."""
        if not self.is_dead:
            self.is_dead, self.killed_at_s = True, asyncio.get_running_loop().time()
            self._killed.set()

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
        death = asyncio.create_task(self._killed.wait())
        try:
            await asyncio.wait([task, death], return_when=asyncio.FIRST_COMPLETED)
        finally:
            death.cancel()
        if self._killed.is_set():  # even if the task ended in the same step: a dead process answers nobody
            if task.done() and not task.cancelled():
                task.exception()  # asyncio logs an error that nobody asks for
            raise SessionLostError(self.name, "its process was killed")
        return task.result()


async def crash(*, for_real: bool = False) -> None:
    """Kill the simulated process that this is called in, if there is one; does not return.

    Args:
        for_real: without a simulated process, kill this operating system process by SIGKILL.

    Raises:
        ConfigError: there is no simulated process, and `for_real` is not set.
    """
    if process := Process.of():
        process.kill()
        await asyncio.Event().wait()
    if not for_real:
        raise ConfigError(
            "for_real", for_real, "there is no simulated process: use World, or set it to kill the real process"
        )
    os.kill(os.getpid(), signal.SIGKILL)
