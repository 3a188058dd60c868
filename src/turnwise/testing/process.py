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
    """Stands for the process of a session on a `VirtualLoop`.

    What it was doing when it is killed is never gone on with, not even by a `finally`, as with SIGKILL. What it has
    handed to others, such as a commit to a store, is theirs.
    """

    def __init__(self, name: str = "process") -> None:
        self.name = name
        self.is_dead = False
        self.tasks: list[asyncio.Task[Any]] = []
        """All that it ever began. Kept, since a task that nobody holds would be torn down by Python, and clean up."""
        self._died = asyncio.Event()

    @staticmethod
    def of(context: Context | None = None) -> Process | None:
        """Return the process that this context, or the current one, belongs to; None for none."""
        return _PROCESS.get() if context is None else context.get(_PROCESS, None)

    def kill(self) -> None:
        """Stop all that it does, where it stands. Killing twice is fine."""
        if not self.is_dead:
            self.is_dead = True
            self._died.set()

    async def call(self, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
        """Return what the coroutine returns, run in the process.

        Raises:
            SessionLostError: the process is dead, or died meanwhile.
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
                task.exception()  # nobody is left to be told
            raise SessionLostError(self.name, "its process was killed")
        return task.result()
