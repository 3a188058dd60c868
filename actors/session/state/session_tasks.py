"""`SessionTasks`: a session's background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from turnwise.actors.session.acting import context_for_nobody
from turnwise.memory.background import watch
from turnwise.memory.conversation.sessions import SessionKey

Result = TypeVar("Result")


class SessionTasks:
    """Starts tasks and references them until they end, so that none is collected while it runs."""

    def __init__(self, key: SessionKey) -> None:
        self._key = key
        self._tasks: set[asyncio.Task[Any]] = set()

    def name(self, description: str) -> str:
        """Return what a task does and for which session, for logs."""
        return f"session {self._key.full_name!r}: {description}"

    def spawn(self, work: Coroutine[Any, Any, Result], *, acts: bool = False) -> asyncio.Task[Result]:
        """Start a task whose result somebody waits for.

        Args:
            acts: whether it does what the caller's member has asked for; otherwise it is done for nobody.
        """
        context = None if acts else context_for_nobody()
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def spawn_logged(self, work: Coroutine[Any, Any, Result], description: str) -> asyncio.Task[Result]:
        """Start a task and log its error, since perhaps nobody waits for its result.

        Args:
            description: the task, for the log.
        """
        task = self.spawn(work)
        watch(task, self.name(description))
        return task
