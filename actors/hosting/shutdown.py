"""`Shutdown`: ends an actor's own process, without a restart."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError

from turnwise.memory.background import log_failure

ANSWERS_S = 0.05
"""How long the answers that are on their way have to get out, in seconds."""

DROP_S = 2.0
"""How long what is to be forgotten about the actor may take, in seconds."""


HERE_S = 5.0
"""How long the actor may take to say where it is, in seconds."""


class Shutdown:
    """Ends the process of the actor that makes it, once, without a restart. Call it on the actor's event loop.

    By a kill, and not by `ray.actor.exit_actor`: that waits for every call that the process has made, and carries no
    other out meanwhile. A memory that hangs would so keep its sessions from ever being answered again.

    A process that was cut off, while Ray has made another of the actor elsewhere, ends itself and leaves that one be.

    Args:
        forget: lets others forget the actor; returns what to wait for, if there is something.
    """

    def __init__(self, forget: Callable[[], Any]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of what Ray itself uses there
            self.actor = ray.get_runtime_context().current_actor
        self._forget = forget
        self._task: asyncio.Task[None] | None = None

    def __call__(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._depart())

    async def _depart(self) -> None:
        await asyncio.sleep(ANSWERS_S)
        try:
            if await self._is_here():  # else what is noted is another process's
                await self._let_forget()
                await asyncio.to_thread(ray.kill, self.actor, no_restart=True)
                return
        except Exception as error:  # noqa: BLE001 - the process ends itself instead
            log_failure("to end an actor that leaves", error)
        os._exit(1)

    async def _let_forget(self) -> None:
        try:
            if (forgotten := self._forget()) is not None:
                await asyncio.wait([asyncio.wrap_future(forgotten.future())], timeout=DROP_S)
        except Exception as error:  # noqa: BLE001 - what is not forgotten is a few bytes; the process goes all the same
            log_failure("to forget what an actor that leaves has taken over", error)

    async def _is_here(self) -> bool:
        """Return whether Ray takes this process for the actor's: it may have made another, on another node."""
        try:
            answered = await asyncio.wait_for(asyncio.wrap_future(self.actor.where.remote().future()), HERE_S)
        except (TimeoutError, RayError):
            return False
        return bool(answered == where())


def where() -> tuple[str, int]:
    """Return the node and the id of this process: what an actor answers as its `where`."""
    return ray.get_runtime_context().get_node_id(), os.getpid()
