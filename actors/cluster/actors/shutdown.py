"""`Shutdown`: ends an actor's own process, without a restart or with one elsewhere."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable
from concurrent.futures import Future

import ray
from ray.exceptions import RayError

from turnwise.actors.hosting.process_memory import memory_bytes
from turnwise.memory.background import log_failure

ANSWERS_S = 0.05
"""How long the process waits for answers that are being sent, in seconds."""

DROP_S = 2.0
"""How long dropping the actor's engine overrides may take, in seconds."""


HERE_S = 5.0
"""How long the actor may take to answer where it runs, in seconds."""


FILES = "it opens files of this node"
"""Why an actor stays on a node that is drained."""


class Shutdown:
    """Ends the process of the actor that creates it, once, without a restart; `move` has one. Call it on the loop.

    The process is killed. `ray.actor.exit_actor` would first wait for every call that the process has made, and answer
    no other call meanwhile, so a memory that hangs would block its sessions for ever.

    If the process was cut off and Ray has started the actor elsewhere, only this process ends, not the actor.

    Args:
        forget: drops the actor's engine overrides; returns the future of that, or None if it keeps them.
    """

    def __init__(self, forget: Callable[[], Future[None] | None]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # raised within Ray
            self.actor = ray.get_runtime_context().current_actor
        self._forget = forget
        self._task: asyncio.Task[None] | None = None

    def __call__(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._end_process(restarts=False))

    def move(self) -> None:
        """End this process, and have Ray start the actor's next one: elsewhere, if this node is drained."""
        if self._task is None:
            self._task = asyncio.create_task(self._end_process(restarts=True))

    async def _end_process(self, *, restarts: bool) -> None:
        await asyncio.sleep(ANSWERS_S)
        try:
            if await self._is_here():  # otherwise the overrides belong to the other process
                if not restarts:
                    await self._drop_overrides()
                await asyncio.to_thread(ray.kill, self.actor, no_restart=not restarts)
                return
        except Exception as error:  # noqa: BLE001 - the process ends itself instead
            log_failure("ending an actor that leaves", error)
        os._exit(1)

    async def _drop_overrides(self) -> None:
        try:
            if (forgotten := self._forget()) is not None:
                await asyncio.wait([asyncio.wrap_future(forgotten)], timeout=DROP_S)
        except Exception as error:  # noqa: BLE001 - an override that stays takes a few bytes; the process ends anyway
            log_failure("dropping the engine overrides of an actor that leaves", error)

    async def _is_here(self) -> bool:
        """Return whether this process is the actor's: Ray may have started another one, on another node."""
        try:
            place = await asyncio.wait_for(asyncio.wrap_future(self.actor.where.remote().future()), HERE_S)
        except (TimeoutError, RayError):
            return False
        return bool(place[:2] == where()[:2])


def where() -> tuple[str, int, int | None]:
    """Return the id of this process's node, the process id, and its memory in bytes; actors answer it as `where`."""
    return ray.get_runtime_context().get_node_id(), os.getpid(), memory_bytes()
