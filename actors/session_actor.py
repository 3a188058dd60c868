"""A session's actor: a process that answers at once, and loads what a session needs when the first verb asks for it.

Imports nothing heavy: what is imported here, every session waits for.
"""

from __future__ import annotations

import asyncio
import gc
import os
from functools import partial
from typing import TYPE_CHECKING

import ray

if TYPE_CHECKING:
    from turnwise.actors.host import SessionHost
    from turnwise.memory.store import SessionStore


class SessionActor:
    """`SessionHost` on Ray. Undecorated: `Realm` makes it an actor."""

    def __init__(
        self, session_id: str, urls: tuple[str, str | None], namespace: str, engine_id: str, engine: bytes
    ) -> None:
        self._settings = (session_id, urls, namespace, engine_id, engine)
        context = ray.get_runtime_context()
        self._node_id = context.get_node_id()
        self._actor_id = str(context.get_actor_id())
        # Leaving takes a call of its own. It must not be repeated in the next process, as other calls are.
        self._leave = lambda: context.current_actor.depart.options(max_task_retries=0).remote()
        self._host: asyncio.Task[SessionHost] | None = None

    async def ready(self) -> int:
        """Return the process id: the process is there."""
        return os.getpid()

    async def call(self, request: bytes) -> bytes:
        """See `SessionHost.call`."""
        if self._host is None:
            self._host = asyncio.create_task(asyncio.to_thread(self._load))
        host = self._host.result() if self._host.done() else await asyncio.shield(self._host)
        return await host.call(request)

    async def depart(self) -> None:
        """End this process without a restart."""
        from turnwise.actors.adoptions import drop_adopted

        drop_adopted(self._settings[2], self._actor_id)
        ray.actor.exit_actor()

    def _load(self) -> SessionHost:
        from turnwise.actors.adoptions import find_adopted, keep_adopted
        from turnwise.actors.host import SessionHost
        from turnwise.memory.urls import open_history

        gc.freeze()  # what is loaded stays: walking it again and again would cost milliseconds in the midst of a turn
        session_id, (url, history_url), namespace, engine_id, engine = self._settings
        if adopted := find_adopted(namespace, self._actor_id):
            engine_id, engine = adopted
        return SessionHost(
            session_id,
            lambda: open_store(url, namespace),
            engine_id,
            engine,
            node_id=self._node_id,
            leave=self._leave,
            keep=partial(keep_adopted, namespace, self._actor_id),
            open_history=(lambda: open_history(history_url)) if history_url else None,
        )


def open_store(url: str, namespace: str) -> SessionStore:
    """Return a store for this process: of its own, or the namespace's shared one for `memory://`."""
    from turnwise.actors.store_actor import remote_store
    from turnwise.memory import urls

    return remote_store(url, namespace) if url.startswith("memory:") else urls.open_store(url)
