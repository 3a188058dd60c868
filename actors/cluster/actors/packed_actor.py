"""`PackedActor`: a packed host's Ray actor. Imports nothing heavy, so that it starts fast."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncIterator, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError, RayError

from turnwise.actors.cluster.actor_names import actor_name, find_actor
from turnwise.actors.cluster.actor_settings import Kept, read_settings
from turnwise.actors.cluster.actor_spec import ActorSpec
from turnwise.actors.cluster.actors.loading import Loading, StartsInRay
from turnwise.actors.cluster.actors.shutdown import Shutdown, where
from turnwise.actors.cluster.actors.switched_engines import drop_overrides, find_overrides, save_override
from turnwise.actors.cluster.calls.actor_waiting import reached
from turnwise.actors.cluster.calls.local_calls import listen
from turnwise.actors.cluster.sharding import Layout, find_layouts
from turnwise.actors.hosting.gc_tuning import collect_rarely
from turnwise.actors.hosting.logs import LogSettings
from turnwise.actors.hosting.placement import Packed
from turnwise.actors.hosting.reach import NoProcessError
from turnwise.memory.background import retry, watch
from turnwise.memory.values.wire_version import packed, unpacked, unpacked_settings

if TYPE_CHECKING:
    from turnwise.actors.hosting.packed_host import PackedHost
    from turnwise.actors.hosting.wire import HostLoad
    from turnwise.memory.conversation.sessions import SessionKey, SessionRecord

THREADS = 32
"""How many threads run blocking calls, such as building engines. Tools have threads of their own."""

RELEASE_S = 20.0
"""How long an earlier host may take to answer whether it has released a session, in seconds."""


@dataclass(frozen=True)
class HostAssignment:
    """The place of a packed host: its store, its layout and its index in the layout."""

    namespace: str
    store_id: str
    layout: Layout
    index: int
    limits: Packed


class PackedActor:
    """`PackedHost` on Ray. Undecorated: `PackedLookup` makes it an actor.

    Args:
        settings: a pickled `ActorSpec`, or the key of one.
    """

    _title = "PackedHost"
    """Ray wants the name of the process also where the constructor has failed."""

    def __init__(self, settings: bytes | Kept, assignment: HostAssignment, logs: LogSettings) -> None:
        layout, index = assignment.layout, assignment.index
        self._title = f"PackedHost({index + 1} of {layout.hosts})"
        collect_rarely()
        logs.apply()
        self._assignment = assignment
        self._settings = settings
        context = ray.get_runtime_context()
        self._node_id = context.get_node_id()
        self._actor_id = str(context.get_actor_id())
        self._leave = Shutdown(partial(drop_overrides, assignment.namespace, self._actor_id))
        self._host: PackedHost | None = None
        self._listening: asyncio.Task[asyncio.Server | None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # raised within Ray
            self._is_back = context.was_current_actor_reconstructed
        self._loading = Loading(
            self._load,
            actor_name=layout.actor_name(assignment.store_id, index),
            starts=StartsInRay(self._actor_id) if self._is_back else None,
            leave=self._leave,
        )
        if self._is_back:
            self._leave.actor.recover_after_restart.remote()

    def __repr__(self) -> str:
        """Return what Ray's dashboard and log lines call the process."""
        return self._title

    async def ready(self) -> int:
        """Return the process id, once the process has started and loaded its modules."""
        await self._loaded()
        return os.getpid()

    async def recover_after_restart(self) -> None:
        """Load the host, with retries: runs of the lost process must not wait for the next call."""
        await retry(self._load_again, f"a packed host of {self._assignment.namespace!r}: recovery")

    async def _load_again(self) -> None:
        await self._loading.pause()
        host = await self._loaded()
        await host.open()
        await self._loading.settle()

    async def where(self) -> tuple[str, int, int | None]:
        """Return the id of this process's node, the process id, and its memory in bytes."""
        return where()

    async def call(self, request: bytes) -> bytes:
        """See `PackedHost.call`."""
        if (host := self._host) is None:
            try:
                host = await self._loaded()
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller is told
                return self._loading.refusal(request, error)
        return await host.call(request)

    async def calls(self, requests: Sequence[bytes]) -> AsyncIterator[list[tuple[int, bytes]]]:
        """See `PackedHost.calls`."""
        try:
            host = await self._loaded()
        except Exception as error:  # noqa: BLE001 - whatever it is, the callers are told
            yield [(number, self._loading.refusal(request, error)) for number, request in enumerate(requests)]
            return
        async for ready in host.calls(requests):
            yield ready

    async def release(self, key: SessionKey) -> bool:
        """See `PackedHost.release`."""
        return await (await self._loaded()).release(key)

    async def retire(self) -> None:
        """See `PackedHost.retire`."""
        await (await self._loaded()).retire()

    async def residents(self) -> list[SessionKey]:
        """See `PackedHost.residents`."""
        return (await self._loaded()).residents

    async def load(self) -> HostLoad:
        """See `PackedHost.current_load`."""
        return (await self._loaded()).current_load

    async def _loaded(self) -> PackedHost:
        if self._host is None:
            self._host = await self._loading.host()
            self._listening = self._listening or asyncio.create_task(listen(self._host.call))
        return self._host

    async def _load(self) -> PackedHost:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="turnwise"))
        host, is_replaced = await asyncio.to_thread(self._make)
        if self._is_back:  # before it is retired, so that it does not leave first
            self._spawn(host.recover(self._is_mine, self._is_of_others), "recovery of lost sessions")
        if is_replaced:
            self._spawn(host.retire(), "retiring")
        return host

    def _is_mine(self, key: SessionKey) -> bool:
        """Return whether this host recovers a session: it hashes here, and it has no dedicated actor."""
        assignment = self._assignment
        if assignment.layout.index_of(key) != assignment.index:
            return False
        return find_actor(assignment.namespace, actor_name(assignment.store_id, key)) is None

    async def _is_of_others(self, session: SessionRecord) -> bool:
        """Return whether a session was last used in another namespace of this Ray, which has processes for it still."""
        if session.namespace in (None, self._assignment.namespace):
            return False
        return await asyncio.to_thread(self._has_processes, session.namespace, session.key)

    def _has_processes(self, namespace: str, key: SessionKey) -> bool:
        spec: ActorSpec = unpacked_settings(read_settings(self._settings))
        store_id = spec.place.store_id_in(namespace)
        return bool(find_layouts(namespace, store_id)) or find_actor(namespace, actor_name(store_id, key)) is not None

    def _make(self) -> tuple[PackedHost, bool]:
        from turnwise.actors.cluster.dispatcher_process import DispatcherProcess
        from turnwise.actors.cluster.runtime import RayRuntime
        from turnwise.actors.hosting.packed_host import PackedHost
        from turnwise.actors.hosting.worker_resources import WorkerResources

        spec: ActorSpec = unpacked_settings(read_settings(self._settings))
        assignment, namespace = self._assignment, self._assignment.namespace
        runtime = RayRuntime(namespace)
        layouts = find_layouts(namespace, assignment.store_id)
        overrides, engines = find_overrides(namespace, self._actor_id)
        collect_rarely()
        resources = WorkerResources(
            partial(spec.place.open_store, runtime),
            partial(spec.place.open_history, runtime),
            spec.engine_id,
            spec.engine,
            other_engines=engines,
            open_files=spec.place.open_files,
        )
        resources.alarm = DispatcherProcess(
            namespace, assignment.store_id, assignment.limits, spec, find_engine=resources.find
        )
        host = PackedHost(
            resources,
            assignment.limits,
            node_id=self._node_id,
            save_override=partial(save_override, namespace, self._actor_id),
            drop_override=partial(drop_overrides, namespace, self._actor_id),
            leave=self._leave,
            overrides=overrides,
            previous_hosts=[
                _EarlierHosts(namespace, assignment.store_id, previous)
                for previous in layouts
                if previous < assignment.layout
            ],
            next_hosts=_NewestHosts(namespace, assignment.store_id),
        )
        return host, any(layout > assignment.layout for layout in layouts)

    def _spawn(self, work: Coroutine[Any, Any, None], description: str) -> None:
        task = asyncio.create_task(work)
        watch(task, f"a packed host of {self._assignment.namespace!r}: {description}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _EarlierHosts:
    """The hosts of an earlier layout, called through Ray. A host that is dead, leaving or frozen uses no session."""

    def __init__(self, namespace: str, store_id: str, layout: Layout) -> None:
        self._namespace = namespace
        self._store_id = store_id
        self._layout = layout

    async def release(self, key: SessionKey) -> bool:
        actor = self._find(key)
        if actor is None:
            return True
        released = actor.release.options(max_task_retries=0).remote(key)
        try:
            return bool(await asyncio.wait_for(asyncio.wrap_future(released.future()), RELEASE_S))
        except (RayError, TimeoutError):  # it is dead, or cannot load, so it uses none
            return True  # a frozen host may still have it, but the store refuses its commits from now on

    async def call(self, request: bytes, key: SessionKey) -> bytes:
        from turnwise.actors.hosting.wire import Refused
        from turnwise.errors import SessionFencedError

        actor = self._find(key)
        try:
            if actor is not None:
                answer: bytes = await reached(actor, actor.call.remote(request))
                return answer
        except (RayActorError, NoProcessError):
            pass  # as if the host had not existed
        return packed(Refused(SessionFencedError(key.session_id, 0)))

    def _find(self, key: SessionKey) -> Any:
        return find_actor(self._namespace, self._layout.actor_name(self._store_id, self._layout.index_of(key)))


class _NewestHosts:
    """The hosts of the newest layout, called through Ray; the layout is looked up again after each failure."""

    def __init__(self, namespace: str, store_id: str) -> None:
        self._namespace = namespace
        self._store_id = store_id
        self._layout: Layout | None = None

    async def warm(self, key: SessionKey) -> None:
        from turnwise.actors.hosting import verbs
        from turnwise.actors.hosting.wire import Refused, SessionRef
        from turnwise.errors import SessionLostError

        layout = self._layout or (await asyncio.to_thread(find_layouts, self._namespace, self._store_id))[0]
        self._layout = None
        try:
            name = layout.actor_name(self._store_id, layout.index_of(key))
            actor: Any = await asyncio.to_thread(ray.get_actor, name, namespace=self._namespace)
            answer = unpacked(await reached(actor, actor.call.remote(verbs.warm().to(SessionRef(key)).pickled())))
        except (RayActorError, NoProcessError, ValueError) as error:
            raise SessionLostError(key.session_id, "the host of the newest layout cannot be reached") from error
        if isinstance(answer, Refused):
            raise answer.error
        self._layout = layout
