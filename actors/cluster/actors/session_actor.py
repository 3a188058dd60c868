"""`SessionActor`: a dedicated session's Ray actor. It starts fast, and loads the session at the first request.

This module imports nothing heavy, since every new session process waits for its imports.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import warnings
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import ray

from turnwise.actors.cluster.actor_settings import read_settings
from turnwise.actors.cluster.actors.loading import Loading, StartsInRay
from turnwise.actors.cluster.actors.shutdown import FILES, Shutdown, where
from turnwise.actors.cluster.actors.switched_engines import drop_overrides, find_overrides, save_override
from turnwise.actors.cluster.calls.local_calls import listen
from turnwise.actors.hosting.process_memory import collect_rarely
from turnwise.actors.wire_version import unpacked, unpacked_settings
from turnwise.errors import WireVersionError
from turnwise.memory.background import retry, watch

if TYPE_CHECKING:
    from turnwise.actors.cluster.actor_spec import ActorSpec
    from turnwise.actors.hosting.dedicated_host import DedicatedHost
    from turnwise.actors.hosting.placement import Dedicated
    from turnwise.memory.conversation.sessions import SessionKey


UNCALLED_S = 60.0
"""How long a process that nobody has called stays, in seconds: its program may have died, or opened another session."""


@dataclass(frozen=True)
class SessionAssignment:
    """Which session an actor has, of which store, and the limits of its manager."""

    namespace: str
    store_id: str
    session: SessionKey
    limits: Dedicated


class SessionActor:
    """`DedicatedHost` on Ray. Undecorated: `DedicatedLookup` makes it an actor.

    Args:
        start: a pickled `ActorSpec`, or the key of one, with the assignment and the `LogSettings`: see `ActorSettings`.
    """

    _assignment: SessionAssignment

    def __init__(self, start: bytes) -> None:
        collect_rarely()
        self._misfit: WireVersionError | None = None
        """Why it cannot read what it was started with. Callers are told, and it leaves."""
        try:
            self._settings, self._assignment, logs = unpacked(start)
            logs.apply()
        except WireVersionError as error:
            self._misfit = error
        context = ray.get_runtime_context()
        self._node_id = context.get_node_id()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # raised within Ray
            self._key = str(context.get_actor_name())
            is_back = context.was_current_actor_reconstructed
        self._leave = Shutdown(self._forget)
        self._loading = Loading(
            partial(asyncio.to_thread, self._load),
            actor_name=self._key,
            starts=StartsInRay(str(context.get_actor_id())) if is_back else None,
            leave=self._leave,
        )
        self._host: DedicatedHost | None = None
        self._draining: set[asyncio.Task[None]] = set()
        self._ends_at = math.inf
        """When the time of the drains is over that have not failed, by the clock of the event loop."""
        self._listening: asyncio.Task[asyncio.Server | None] | None = None
        self._was_called = self._is_back = is_back
        self._leaves = False
        if is_back:
            # The lost process may have left runs to resume or turns to save, which must not wait for the next call.
            self._leave.actor.recover_after_restart.remote()
        else:
            timer = threading.Timer(UNCALLED_S, self._look_for_calls)
            timer.daemon = True
            timer.start()

    def __repr__(self) -> str:
        """Return what Ray's dashboard and log lines call the process."""
        assignment = getattr(self, "_assignment", None)  # Ray also wants the name where the constructor has failed
        return f"Session({assignment.session.session_id if assignment else ''})"

    async def ready(self) -> int:
        """Return the process id, once the process has started."""
        return os.getpid()

    async def where(self) -> tuple[str, int, int | None]:
        """Return the id of this process's node, the process id, and its memory in bytes."""
        return where()

    async def recover_after_restart(self) -> None:
        """See `DedicatedHost.recover`."""
        await retry(self._recover, f"{self}: recovery")

    async def _recover(self) -> None:
        await self._loading.pause()
        host = await self._loaded()
        await host.open()
        await self._loading.settle()
        await host.recover()

    def _look_for_calls(self) -> None:
        if not self._was_called:
            self._leave.actor.leave_unless_called.remote()

    async def leave_unless_called(self) -> None:
        """End this process if nobody has called it. Who calls it meanwhile is told, and calls another one."""
        if not self._was_called:
            self._leaves = True
            self._leave()

    async def drain(self, timeout_s: float, why: str) -> str:
        """Give the session up, and end: see `DedicatedHost.drain`. Returns before that.

        Returns why it stays instead: it opens files of this node; empty if it goes. May be repeated: the shortest
        time counts, and a drain that failed begins again.
        """
        if self._misfit:
            self._leave()
            return ""
        spec: ActorSpec = unpacked_settings(await asyncio.to_thread(read_settings, self._settings))
        if spec.place.is_local:
            return FILES
        ends_at = asyncio.get_running_loop().time() + timeout_s
        if not self._draining or ends_at < self._ends_at:
            self._ends_at = ends_at
            task = asyncio.create_task(self._drain(timeout_s, why))
            self._draining.add(task)
            task.add_done_callback(self._draining.discard)
            watch(task, f"{self}: draining")
        return ""

    async def _drain(self, timeout_s: float, why: str) -> None:
        if self._was_called:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout_s
            host = await self._loaded()
            await host.drain(max(0.0, deadline - loop.time()), why)
        else:
            await self.leave_unless_called()

    async def call(self, request: bytes) -> bytes:
        """See `DedicatedHost.call`."""
        self._was_called = True
        if self._leaves and not self._misfit:
            from turnwise.errors import SessionFencedError

            return self._loading.refusal(request, SessionFencedError(self._assignment.session.session_id, 0))
        if (host := self._host) is None:
            try:
                host = await self._loaded()
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller is told
                return self._loading.refusal(request, error)
        return await host.call(request)

    async def _loaded(self) -> DedicatedHost:
        self._host = await self._loading.host()
        self._listening = self._listening or asyncio.create_task(listen(self._host.call))
        return self._host

    def _forget(self) -> Future[None] | None:
        """Drop the session's engine override, unless its next process needs it; return the future of that, or None."""
        if self._host is None or self._host.has_left_engine:
            return None
        return drop_overrides(self._assignment.namespace, self._key)

    def _load(self) -> DedicatedHost:
        from turnwise.actors.cluster.dispatcher_process import DispatcherProcess
        from turnwise.actors.cluster.runtime import RayRuntime
        from turnwise.actors.hosting.dedicated_host import DedicatedHost
        from turnwise.actors.hosting.worker_resources import WorkerResources

        if self._misfit:
            raise self._misfit
        collect_rarely()
        assignment, namespace = self._assignment, self._assignment.namespace
        spec: ActorSpec = unpacked_settings(read_settings(self._settings))
        place, runtime = spec.place, RayRuntime(namespace)
        overrides, engines = find_overrides(namespace, self._key)
        resources = WorkerResources(
            partial(place.open_store, runtime),
            partial(place.open_history, runtime),
            spec.engine_id,
            spec.engine,
            other_engines=engines,
            open_files=place.open_files,
        )
        resources.alarm = DispatcherProcess(
            namespace, assignment.store_id, assignment.limits, spec, find_engine=resources.find
        )
        return DedicatedHost(
            assignment.session,
            resources,
            override=overrides.get(assignment.session),
            max_waits=assignment.limits.max_waits,
            node_id=self._node_id,
            leave=self._leave,
            move=self._leave.move,
            save_override=partial(save_override, namespace, self._key),
            is_back=self._is_back,
        )
