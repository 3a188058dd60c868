"""`InProcessRuntime`: sessions, memories and stores in memory of managers whose placement is `InProcess`."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import socket
import threading
import time
import weakref
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

from turnwise.actors.hosting.identity import identity
from turnwise.actors.hosting.memory.memory_host import MemoryHost
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.hosting.process_memory import memory_bytes
from turnwise.actors.hosting.reach import Presence, Reach
from turnwise.actors.hosting.runtime import CallError, SessionProcesses
from turnwise.actors.hosting.store_spec import StoreSpec, check_folders
from turnwise.actors.hosting.wire import DrainReport, HostInfo
from turnwise.actors.hosting.worker_resources import SessionSetup, WorkerResources
from turnwise.actors.in_process.hosts import HOSTS, LOOP, Host
from turnwise.actors.in_process.threads import EventLoop
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.inference.named_engines import engines_of
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import Tool
from turnwise.errors import ConfigError, SessionLostError, StoreClosedError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.longterm.base import LongTermMemory
from turnwise.memory.longterm.items.base import ItemStore
from turnwise.memory.stores.base import LocalClock, SessionStore, verbs_of
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.store_owner import StoreOwner
from turnwise.memory.values.ids import new_id
from turnwise.memory.working.memory import WorkingMemory

MEMORY_LOOP = EventLoop("turnwise-memories")
"""The event loop of all memories of this process, so that none delays sessions."""

_HERE = Presence(is_up=True, pid=os.getpid(), why="")


class InProcessRuntime:
    """The `Runtime` that is this process.

    Args:
        namespace: as on Ray: managers of the same store and namespace share sessions.
        placement: limits, and whether lost runs go on.
    """

    def __init__(self, namespace: str, placement: InProcess) -> None:
        self._namespace = namespace
        self._placement = placement
        self._values: list[_Value] = []
        """What `loads` may still be asked for, while this manager is in use."""

    @property
    def owner(self) -> StoreOwner:
        """See `Runtime.owner`."""
        return StoreOwner.of_this_process()

    def connect(self, stores: Sequence[object], notes: object) -> None:
        """See `Runtime.connect`."""
        check_folders(*stores)

    def starting(self) -> AbstractContextManager[None]:
        """See `Runtime.starting`."""
        return nullcontext()

    def identity(self, value: object) -> str:
        """See `Runtime.identity`. What does not pickle is equal to itself only."""
        try:
            return identity(value, dumps=pickle.dumps)
        except Exception:  # noqa: BLE001 - classes of others raise all sorts of errors when they are pickled
            return f"{id(value):x}"  # which no other object has while the process holds this one

    def setup_of(self, setup: SessionSetup) -> tuple[str, bytes]:
        """See `Runtime.setup_of`. Engines are used as they are, so each manager has its own setup.

        Raises:
            ConfigError: a tool of an engine runs on Ray.
        """
        *parts, notes = setup
        _check_tools(setup[0])
        own = cast(SessionSetup, (*parts, _copy_of(notes)))
        return new_id(), self._hold(lambda: own)

    def dumps(self, value: object) -> bytes:
        """See `Runtime.dumps`."""
        return self._hold(lambda: copy.deepcopy(value))

    def loads(self, data: bytes) -> Any:
        """See `Runtime.loads`."""
        return _VALUES[data].make()

    def _hold(self, make: Callable[[], object]) -> bytes:
        token, value = new_id().encode(), _Value(make)
        _VALUES[token] = value
        self._values.append(value)
        return token

    def processes(self, store_id: str, place: StoreSpec, setup: tuple[str, bytes]) -> SessionProcesses:
        """See `Runtime.processes`."""

        def make_resources() -> WorkerResources:
            open_store, open_history = partial(place.open_store, self), partial(place.open_history, self)
            return WorkerResources(open_store, open_history, *setup, loads=self.loads, open_files=place.open_files)

        return _OwnProcesses(store_id, make_resources, self._placement)

    def look_for_deliveries(self, store_id: str, place: StoreSpec, setup: tuple[str, bytes]) -> None:
        """See `Runtime.look_for_deliveries`. The host has begun when the manager opened it."""

    def announce_quotas(self, store_id: str) -> None:
        """See `Runtime.announce_quotas`."""
        if host := HOSTS.find(store_id):
            host.announce_quotas()

    def announce_webhooks(self, store_id: str) -> None:
        """See `Runtime.announce_webhooks`."""
        if host := HOSTS.find(store_id):
            host.announce_webhooks()

    def live_processes(self, store_id: str) -> SessionProcesses:
        """See `Runtime.live_processes`."""
        return _LiveProcesses(store_id)

    def memory_process(self, memory: LongTermMemory) -> HostedMemory:
        """See `Runtime.memory_process`. A memory that does not pickle is shared by those who pass the same object."""
        memory_id = self.identity(memory)[:16]
        with _LOCK:
            hosted = _MEMORIES.get((self._namespace, memory_id))
            if hosted is None:
                hosted = _MEMORIES[self._namespace, memory_id] = HostedMemory(memory_id, memory)
            return hosted

    def open_shared_store(self, url: str) -> SessionStore:
        """See `Runtime.open_shared_store`. It lasts as long as the process."""
        with _LOCK:
            if (self._namespace, url) not in _STORES:
                _STORES[self._namespace, url] = cast(SessionStore, SharedStore(InMemoryStore()))
            store = _STORES[self._namespace, url]
        opened = _OpenedLocalStore if isinstance(store, LocalClock) else _OpenedStore
        return cast(SessionStore, opened(url, store))

    def has_shared_store(self, url: str) -> bool:
        """See `Runtime.has_shared_store`."""
        return (self._namespace, url) in _STORES

    async def hosts(self, store_id: str) -> list[HostInfo]:
        """See `Runtime.hosts`."""
        host = HOSTS.find(store_id)
        if host is None:
            return []
        process: dict[str, Any] = {"pid": os.getpid(), "node": socket.gethostname(), "memory_bytes": memory_bytes()}
        return [HostInfo(name=self.owner.name, is_packed=True, load=host.load, **process)]

    async def drain(self, node_id: str | None, timeout_s: float) -> DrainReport:
        """See `Runtime.drain`. There are no nodes."""
        raise ConfigError("placement", "InProcess()", "there are no nodes without Ray: close the manager")


def _copy_of(notes: WorkingMemory | None) -> WorkingMemory | None:
    """Return the notes for sessions: a copy, whose store is closed when no setup has the copy any more.

    Notes in the memory of this process are not copied, and stay open.
    """
    own = notes.copied() if notes else None
    if own is None:
        return notes
    weakref.finalize(own, _close_items, own.items).atexit = False
    return own


def _close_items(items: ItemStore) -> None:
    LOOP.submit(items.close())


def _check_tools(engine: EngineBuilder) -> None:
    for builder in engines_of(engine):
        tools = getattr(builder, "tools", ())
        for tool in tools.tools if isinstance(tools, ToolRegistry) else tools:
            if isinstance(tool, Tool) and tool.is_remote:
                reason = (
                    "is a task or an actor's method of Ray, which InProcess() does not use: make it a plain function"
                )
                raise ConfigError("tools", tool.name, reason)


class HostedMemory:
    """The `MemoryProcess` that is this process.

    It has a copy of the memory, as a memory's actor would, which is closed when nobody refers to this any more. A
    memory that cannot be copied, as one in memory, is used as it is, and is its caller's to close.
    """

    def __init__(self, id: str, memory: LongTermMemory) -> None:
        self.id = id
        self._passed = memory  # held, since `id` may be made of its address
        try:
            own = copy.deepcopy(memory)
        except Exception:  # noqa: BLE001 - classes of others raise all sorts of errors when they are copied
            self._host = MemoryHost(lambda: memory)
            end = self._host.stop
        else:
            self._host = MemoryHost(lambda: own)
            end = self._host.close
        weakref.finalize(self, _end, end).atexit = False

    async def ask(self, request: bytes, *, is_recall: bool) -> bytes:
        """See `MemoryProcess.ask`."""
        return await asyncio.wrap_future(MEMORY_LOOP.submit(self._host.call(request)))

    def warm(self, request: bytes) -> None:
        """See `MemoryProcess.warm`."""
        MEMORY_LOOP.submit(self._host.call(request))


def _end(end: Callable[[], Coroutine[Any, Any, None]]) -> None:
    MEMORY_LOOP.submit(end())


class _HostProcess:
    """The `SessionProcess` that is this process."""

    __slots__ = ("_host", "_process_id")

    def __init__(self, host: Host, process_id: int) -> None:
        self._host = host
        self._process_id = process_id

    @property
    def actor(self) -> Any:
        reason = "sessions have no actors there: use Dedicated() or Packed()"
        raise ConfigError("placement", "InProcess", reason)

    async def ask(self, request: bytes, reach: Reach, *, is_repeatable: bool) -> bytes:
        answer = asyncio.wrap_future(self._submit(request))
        try:
            while not answer.done():
                await asyncio.wait((answer,), timeout=reach.pause(time.monotonic()))
                if not answer.done():
                    _note(reach)
            return answer.result()
        finally:
            answer.cancel()  # else asyncio reports an error that comes later as one that nobody has looked at

    def ask_blocking(self, request: bytes, reach: Reach, *, is_repeatable: bool) -> bytes:
        if LOOP.is_current:
            reason = "a coroutine of a session called a blocking method, which would wait for itself"
            raise CallError(f"{reason}: use AsyncSessionManager there, or make the tool a plain function")
        answer = self._submit(request)
        while True:
            try:
                return answer.result(reach.pause(time.monotonic()))
            except TimeoutError:
                _note(reach)

    def _submit(self, request: bytes) -> Future[bytes]:
        if os.getpid() != self._process_id:
            raise CallError("this process was forked from the one with its sessions: open managers after the fork")
        return self._host.submit(request)


def _note(reach: Reach) -> None:
    """Let a caller wait longer, whose answer is not there yet.

    Raises:
        TimeoutError: the caller's own time is over.
    """
    now = time.monotonic()
    if reach.is_late(now):
        raise TimeoutError
    reach.note(now, _HERE)


class _OwnProcesses:
    """The `SessionProcesses` of a manager."""

    def __init__(self, store_id: str, make_resources: Callable[[], WorkerResources], placement: InProcess) -> None:
        self._arguments = store_id, make_resources, placement
        self._lock = threading.Lock()
        self._process_id = os.getpid()
        self._host = HOSTS.open(*self._arguments)
        self._is_closed = False

    def of(self, key: SessionKey) -> _HostProcess:
        return _HostProcess(self._host, self._process_id)

    def invalidate(self, key: SessionKey) -> None:
        with self._lock:
            if self._host.is_leaving:  # since this manager and all others are closed
                self._host = HOSTS.reopen(*self._arguments)

    def warm(self, key: SessionKey, request: bytes) -> None:
        """Do nothing: the host runs already."""

    def is_live(self, key: SessionKey) -> bool:
        return True

    async def loaded(self, keys: Collection[SessionKey]) -> Collection[SessionKey]:
        return [key for key in keys if self._host.has_loaded(key)]

    async def close(self) -> None:
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if not was_closed and os.getpid() == self._process_id:
            await HOSTS.close(self._host)


class _LiveProcesses:
    """The `SessionProcesses` of a client that may start none."""

    def __init__(self, store_id: str) -> None:
        self._store_id = store_id

    def of(self, key: SessionKey) -> _HostProcess:
        host = HOSTS.find(self._store_id)
        if host is None:
            reason = "this process has no sessions of its store: open a SessionManager on it with InProcess() first"
            raise SessionLostError(key.session_id, reason)
        return _HostProcess(host, os.getpid())

    def invalidate(self, key: SessionKey) -> None:
        """Do nothing: each call searches."""

    def warm(self, key: SessionKey, request: bytes) -> None:
        """Do nothing: the session is live already, or cannot be started from here."""

    def is_live(self, key: SessionKey) -> bool:
        return HOSTS.find(self._store_id) is not None

    async def loaded(self, keys: Collection[SessionKey]) -> Collection[SessionKey]:
        host = HOSTS.find(self._store_id)
        return [key for key in keys if host and host.has_loaded(key)]

    async def close(self) -> None:
        """Do nothing: it has opened nothing."""


def share_store(url: str, store: SessionStore, namespace: str = "turnwise") -> None:
    """Let managers of this process and namespace use this store by a URL `memory://name`, until `unshare_store`.

    Args:
        store: as `SharedStore`, its methods may be called on any thread and event loop, and its `close` closes nothing.
    """
    with _LOCK:
        _STORES[namespace, url] = store


def unshare_store(url: str, namespace: str = "turnwise") -> None:
    """Forget a store in memory. Managers that have it open keep it."""
    with _LOCK:
        _STORES.pop((namespace, url), None)


class _Value:
    """A value that `loads` makes, as long as a manager holds this."""

    def __init__(self, make: Callable[[], object]) -> None:
        self.make = make


class SharedStore(LocalClock):
    """A store in memory that all threads of this process use: no method of it awaits, so a lock makes each atomic."""

    def __init__(self, store: InMemoryStore) -> None:
        self._lock = threading.Lock()
        self._clock = store.clock
        for verb in verbs_of(store):
            setattr(self, verb, partial(self._call, getattr(store, verb)))

    def clock(self) -> float:
        """See `LocalClock.clock`."""
        return self._clock()

    async def close(self) -> None:
        """Do nothing: others use it too."""

    async def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return await method(*args, **kwargs)


class _OpenedStore:
    """A shared store, as one of those who opened it has it, until `close`."""

    def __init__(self, url: str, store: Any) -> None:
        self._url = url
        self._shared = store
        self._is_closed = False
        for verb in verbs_of(store):
            setattr(self, verb, partial(self._call, verb))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._verb(name)

    async def _call(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        return await self._verb(verb)(*args, **kwargs)

    def _verb(self, name: str) -> Any:
        if self._is_closed:
            raise StoreClosedError(self._url)
        return getattr(self._shared, name)

    async def close(self) -> None:
        """Close it for this user. The others go on."""
        self._is_closed = True


class _OpenedLocalStore(_OpenedStore, LocalClock):
    def clock(self) -> float:
        """See `LocalClock.clock`."""
        now: float = self._shared.clock()
        return now


_LOCK = threading.Lock()
"""Held while a memory or a store is looked up and made."""

_VALUES: weakref.WeakValueDictionary[bytes, _Value] = weakref.WeakValueDictionary()
_MEMORIES: weakref.WeakValueDictionary[tuple[str, str], HostedMemory] = weakref.WeakValueDictionary()
_STORES: dict[tuple[str, str], SessionStore] = {}
