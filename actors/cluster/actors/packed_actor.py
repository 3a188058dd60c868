"""`PackedActor`: a packed host's Ray actor. Imports nothing heavy, so that it starts fast."""

from __future__ import annotations

import asyncio
import math
import os
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError, RayError

from turnwise.actors.cluster.actor_names import FOR_EVER, actor_name, find_actor
from turnwise.actors.cluster.actor_settings import ActorSettings, read_settings
from turnwise.actors.cluster.actor_spec import ActorSpec
from turnwise.actors.cluster.actors.loading import Loading, StartsInRay
from turnwise.actors.cluster.actors.shutdown import FILES, Shutdown, where
from turnwise.actors.cluster.actors.switched_engines import drop_overrides, find_overrides, save_override
from turnwise.actors.cluster.calls.actor_waiting import reached
from turnwise.actors.cluster.calls.local_calls import listen
from turnwise.actors.cluster.node_choice import nodes_for
from turnwise.actors.cluster.sharding import Layout, LayoutHosts, find_hosts, find_layouts
from turnwise.actors.hosting.logs import LogSettings
from turnwise.actors.hosting.placement import Packed
from turnwise.actors.hosting.process_memory import collect_rarely
from turnwise.actors.hosting.reach import NoProcessError
from turnwise.actors.wire_version import packed, unpacked, unpacked_answer, unpacked_settings
from turnwise.errors import WireVersionError
from turnwise.memory.background import retry, watch

if TYPE_CHECKING:
    from turnwise.actors.hosting.engine_override import EngineOverride
    from turnwise.actors.hosting.packed_host import PackedHost
    from turnwise.memory.conversation.sessions import SessionKey, SessionRecord

THREADS = 32
"""How many threads run blocking calls, such as building engines. Tools have threads of their own."""

MAX_CALLS = 1000
"""How many concurrent calls an actor accepts beyond the waits and calls that its placement limits."""

LOADED_S = 60.0
"""How long a host that is drained waits until its successor is loaded, in seconds."""

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
    successor: int = 0
    """How many hosts with this index were drained before it."""

    @property
    def actor_name(self) -> str:
        """The name of its actor."""
        return self.layout.actor_name(self.store_id, self.index, self.successor)


def make_host(
    settings: ActorSettings, assignment: HostAssignment, logs: LogSettings, node_options: dict[str, Any]
) -> Any:
    """Return the actor of a packed host, created if there is none yet. Blocks until Ray has its record."""
    limits = assignment.limits
    most = limits.max_calls + limits.max_waits + MAX_CALLS  # room for refusals
    options = {**FOR_EVER, **node_options, "max_concurrency": most}
    return settings.actor(PackedActor, assignment.actor_name, assignment.namespace, assignment, logs, **options)


class PackedActor:
    """`PackedHost` on Ray. Undecorated: `PackedLookup` makes it an actor.

    Args:
        start: a pickled `ActorSpec`, or the key of one, with the assignment and the `LogSettings`: see `ActorSettings`.
    """

    _title = "PackedHost"
    """Ray wants the name of the process also where the constructor has failed."""

    _assignment: HostAssignment

    def __init__(self, start: bytes) -> None:
        collect_rarely()
        self._misfit: WireVersionError | None = None
        """Why it cannot read what it was started with. Callers are told, and it leaves."""
        try:
            self._settings, self._assignment, self._logs = unpacked(start)
            self._logs.apply()
            self._title = f"PackedHost({self._assignment.index + 1} of {self._assignment.layout.hosts})"
        except WireVersionError as error:
            self._misfit = error
        self._draining: set[asyncio.Task[None]] = set()
        self._ends_at = math.inf
        """When the time of the drains is over that have not failed, by the clock of the event loop."""
        context = ray.get_runtime_context()
        self._node_id = context.get_node_id()
        self._actor_id = str(context.get_actor_id())
        self._leave = Shutdown(self._forget)
        self._host: PackedHost | None = None
        self._listening: asyncio.Task[asyncio.Server | None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # raised within Ray
            self._is_back = context.was_current_actor_reconstructed
            actor_name = str(context.get_actor_name())
        self._loading = Loading(
            self._load,
            actor_name=actor_name,
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

    async def open(self) -> None:
        """Load the engines, and open the stores, so that the first call finds all that it needs."""
        await (await self._loaded()).open()

    async def recover_after_restart(self) -> None:
        """Load the host, with retries: runs of the lost process must not wait for the next call."""
        await retry(self._load_again, f"{self}: recovery")

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

    async def release(self, request: bytes) -> bytes:
        """See `PackedHost.release`; the session's key and the answer are pickled."""
        return await self._answer(request, lambda host, key: host.release(key))

    async def adopt(self, request: bytes) -> bytes:
        """See `PackedHost.adopt`; its arguments and the answer are pickled."""
        return await self._answer(request, lambda host, arguments: host.adopt(**arguments))

    async def _answer(self, request: bytes, carry_out: Callable[[PackedHost, Any], Awaitable[object]]) -> bytes:
        """Return the answer of another host's request, or `Refused`, pickled."""
        from turnwise.actors.hosting.wire import Refused
        from turnwise.errors import TurnwiseError

        host = await self._loaded()
        try:
            return packed(await carry_out(host, unpacked(request)))
        except TurnwiseError as error:
            return packed(Refused(error))

    async def retire(self) -> None:
        """See `PackedHost.retire`."""
        await (await self._loaded()).retire()

    async def drain(self, timeout_s: float, why: str) -> str:
        """Hand the sessions over to a successor elsewhere, and end: see `PackedHost.drain`. Returns before that.

        Returns why it stays instead: it opens files of this node; empty if it goes. May be repeated: the shortest
        time counts, and a drain that failed begins again.
        """
        if self._misfit:
            self._leave()
            return ""
        if (await asyncio.to_thread(self._spec)).place.is_local:
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
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        host = await self._loaded()
        if not host.is_replaced:
            successor = await asyncio.to_thread(self._make_successor)
            loading = asyncio.wrap_future(successor.open.options(max_task_retries=0).remote().future())
            # This host answers meanwhile. Half of the time is left for its runs, however slow the other one starts.
            await asyncio.wait({loading}, timeout=min(timeout_s / 2, LOADED_S))
        await host.drain(max(0.0, deadline - loop.time()), why)

    def _make_successor(self) -> Any:
        settings = read_settings(self._settings)
        assignment = replace(self._assignment, successor=self._assignment.successor + 1)
        return make_host(ActorSettings(settings), assignment, self._logs, nodes_for(self._spec().place))

    def _spec(self) -> ActorSpec:
        spec: ActorSpec = unpacked_settings(read_settings(self._settings))
        return spec

    async def residents(self) -> bytes:
        """See `PackedHost.residents`; pickled."""
        return packed((await self._loaded()).residents)

    async def load(self) -> bytes:
        """See `PackedHost.current_load`; pickled."""
        return packed((await self._loaded()).current_load)

    def _forget(self) -> Future[None] | None:
        return None if self._misfit else drop_overrides(self._assignment.namespace, self._actor_id)

    async def _loaded(self) -> PackedHost:
        if self._host is None:
            self._host = await self._loading.host()
            self._listening = self._listening or asyncio.create_task(listen(self._host.call))
        return self._host

    async def _load(self) -> PackedHost:
        if self._misfit:
            raise self._misfit
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
        store_id = self._spec().place.store_id_in(namespace)
        return bool(find_layouts(namespace, store_id)) or find_actor(namespace, actor_name(store_id, key)) is not None

    def _make(self) -> tuple[PackedHost, bool]:
        from turnwise.actors.cluster.dispatcher_process import DispatcherProcess
        from turnwise.actors.cluster.runtime import RayRuntime
        from turnwise.actors.hosting.packed_host import PackedHost
        from turnwise.actors.hosting.worker_resources import WorkerResources

        spec = self._spec()
        assignment, namespace = self._assignment, self._assignment.namespace
        runtime = RayRuntime(namespace)
        layouts = find_hosts(namespace, assignment.store_id)
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
                _EarlierHosts(namespace, assignment.store_id, layout, successor)
                for layout, successor in _places(layouts)
                if (layout, successor) < (assignment.layout, assignment.successor)
            ],
            next_hosts=_NewestHosts(namespace, assignment.store_id),
        )
        newest = layouts[0] if layouts else LayoutHosts(assignment.layout, {})
        is_replaced = newest.layout > assignment.layout or (
            newest.layout == assignment.layout and newest.newest(assignment.index) > assignment.successor
        )
        return host, is_replaced

    def _spawn(self, work: Coroutine[Any, Any, None], description: str) -> None:
        task = asyncio.create_task(work)
        watch(task, f"a packed host of {self._assignment.namespace!r}: {description}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _places(layouts: Sequence[LayoutHosts]) -> list[tuple[Layout, int]]:
    """Return which layouts have hosts, and which successors exist there, the newest first."""
    return [
        (hosts.layout, successor)
        for hosts in layouts
        for successor in sorted({number for numbers in hosts.successors.values() for number in numbers}, reverse=True)
    ]


class _EarlierHosts:
    """Hosts that were replaced, called through Ray. A host that is dead, leaving or frozen uses no session.

    Args:
        layout, successor: they are of this layout, and so many hosts with their indexes were drained before them.
    """

    def __init__(self, namespace: str, store_id: str, layout: Layout, successor: int = 0) -> None:
        self._namespace = namespace
        self._store_id = store_id
        self._layout = layout
        self._successor = successor

    async def release(self, key: SessionKey) -> bool:
        from turnwise.actors.hosting.wire import Refused

        actor = self._find(key)
        if actor is None:
            return True
        released = actor.release.options(max_task_retries=0).remote(packed(key))
        try:
            answer = unpacked_answer(await asyncio.wait_for(asyncio.wrap_future(released.future()), RELEASE_S))
        except (RayError, TimeoutError):  # it is dead, or cannot load, so it uses none
            return True  # a frozen host may still have it, but the store refuses its commits from now on
        if isinstance(answer, Refused):  # one that understands nothing may have it: callers are told so there
            return not isinstance(answer.error, WireVersionError)
        return bool(answer)

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
        index = self._layout.index_of(key)
        return find_actor(self._namespace, self._layout.actor_name(self._store_id, index, self._successor))


class _NewestHosts:
    """The hosts that have sessions now, called through Ray; they are looked up again after each failure."""

    def __init__(self, namespace: str, store_id: str) -> None:
        self._namespace = namespace
        self._store_id = store_id
        self._hosts: LayoutHosts | None = None

    async def adopt(self, key: SessionKey, override: EngineOverride, engines: Mapping[str, bytes]) -> None:
        arguments = packed({"key": key, "override": override, "engines": engines})
        self._check(unpacked_answer(await self._ask(key, lambda actor: actor.adopt.remote(arguments))))

    async def warm(self, key: SessionKey) -> None:
        from turnwise.actors.hosting import verbs
        from turnwise.actors.hosting.wire import SessionRef

        request = verbs.warm().to(SessionRef(key)).pickled()
        self._check(unpacked_answer(await self._ask(key, lambda actor: actor.call.remote(request))))

    def _check(self, answer: object) -> None:
        from turnwise.actors.hosting.wire import Refused

        if isinstance(answer, Refused):
            self._hosts = None
            raise answer.error

    async def _ask(self, key: SessionKey, call: Callable[[Any], Any]) -> Any:
        from turnwise.errors import SessionLostError

        hosts = self._hosts or (await asyncio.to_thread(find_hosts, self._namespace, self._store_id))[0]
        self._hosts = None
        try:
            name = hosts.name_of(self._store_id, key)
            actor: Any = await asyncio.to_thread(ray.get_actor, name, namespace=self._namespace)
            answer = await reached(actor, call(actor))
        except (RayActorError, NoProcessError, ValueError) as error:
            raise SessionLostError(key.session_id, "the host of the newest layout cannot be reached") from error
        self._hosts = hosts
        return answer
