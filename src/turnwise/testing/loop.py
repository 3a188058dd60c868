"""An event loop with virtual time, on which simulated processes can be stopped between any two steps."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, Literal

from turnwise.testing.process import Process

Fate = Literal["go", "yield", "kill"]
"""What happens to a step: it runs; it runs after all other ready steps; its process is killed instead."""

Hook = Callable[[int], Fate]
"""Called before each step of a process, with the number of the step, from 1."""

CLEANUPS = 5
"""How often the remaining tasks are cancelled when the loop closes."""


class _JumpingSelector(selectors.DefaultSelector):
    """Advances its clock instead of waiting."""

    def __init__(self, limit_s: float) -> None:
        super().__init__()
        self.now = 0.0
        self._limit_s = limit_s

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or self.now > self._limit_s:
            raise RuntimeError("deadlock: all tasks wait for each other, or the time limit is reached")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a virtual clock, which advances only when no step is ready. So its runs are deterministic.

    It does not wait for threads and sockets: use it with stores in memory, and with `off_loop=inline`. It raises
    RuntimeError if no step can ever become ready, or if its clock passes the limit.

    Args:
        hook: called before each step of a `Process`: a step of a task, or a callback.
        limit_s: the limit of its clock, in seconds.
    """

    def __init__(self, hook: Hook | None = None, *, limit_s: float = 1000.0) -> None:
        self._jumping = _JumpingSelector(limit_s)
        super().__init__(self._jumping)
        self.hook = hook
        self.steps = 0
        """The number of steps that processes have taken."""
        self._processes: set[Process] = set()
        self._lost: list[tuple[Callable[..., object], tuple[Any, ...], Context]] = []
        """Steps of killed processes."""

    def time(self) -> float:
        return self._jumping.now

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if self._processes and (process := Process.of(context)):
            context = context or copy_context()
            return super().call_soon(self._step, process, context, callback, args, context=context)
        return super().call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self._processes and (process := Process.of(context)):
            context = context or copy_context()
            return super().call_at(when, self._step, process, context, callback, args, context=context)
        return super().call_at(when, callback, *args, context=context)

    def create_task(self, coro: Coroutine[Any, Any, Any], **settings: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        process = Process.of(settings.get("context"))
        if process:
            self._processes.add(process)
        task = super().create_task(coro, **settings)
        if process:
            process.tasks.append(task)
        return task

    def cancel_and_close(self) -> None:
        """Cancel all remaining tasks, also of killed processes, let them end, and close the loop."""
        self.hook = None
        for process in self._processes:
            process.is_dead = False
        for callback, args, context in self._lost:
            super().call_soon(callback, *args, context=context)
        for _ in range(CLEANUPS):
            if not (tasks := asyncio.all_tasks(self)):
                break
            for task in tasks:
                task.cancel()
            self.run_until_complete(asyncio.sleep(0))
        self.close()

    def _step(self, process: Process, context: Context, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not process.is_dead:
            self.steps += 1
            fate = self.hook(self.steps) if self.hook else "go"
            if fate == "yield":
                super().call_soon(self._late_step, process, context, callback, args, context=context)
                return
            if fate == "kill":
                process.kill()
        self._late_step(process, context, callback, args)

    def _late_step(
        self, process: Process, context: Context, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        if process.is_dead:
            self._lost.append((callback, args, context))
        else:
            callback(*args)
