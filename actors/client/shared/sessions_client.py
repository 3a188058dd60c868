"""`SessionsClient`: finds the sessions of one store, in one namespace, and holds what this process has of them."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from turnwise.actors.client.shared.portal import Portal
from turnwise.actors.client.shared.runtimes import runtime_of
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.memory.remote_memory import RemoteMemory, equip
from turnwise.actors.hosting.placement import Dedicated, InProcess, Packed, Placement
from turnwise.actors.hosting.runtime import DeliveryLook, Runtime, SessionProcess, SessionProcesses
from turnwise.actors.hosting.store_object import StoreObject
from turnwise.actors.hosting.store_spec import NO_FILES, StoreSpec, is_file, store_id_of
from turnwise.actors.hosting.verb_declaration import VerbCall
from turnwise.actors.hosting.wire import ClientOutcome, PackedOutcome, PackedTurn, SessionRef
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.inference.named_engines import as_engine, engines_of
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.window.compaction_tasks import check_overflow, default_overflow
from turnwise.actors.wire_version import by_version
from turnwise.errors import ConfigError, OverloadedError, SessionLostError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.event_store.urls import check_history_url
from turnwise.memory.files.access import FileAccess, access_to
from turnwise.memory.files.base import FileStore
from turnwise.memory.files.records import FileLimits
from turnwise.memory.files.urls import check_files_url, files_beside
from turnwise.memory.longterm.base import LongTermMemory, is_local
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.urls import resolve_url
from turnwise.memory.working.memory import WorkingMemory
from turnwise.strategies.strategy import OverflowStrategy

CACHED_SESSIONS, CACHED_BYTES = 256, 64 << 20
"""Limits of the caller's block caches: how many sessions, and roughly how many bytes together."""


DEFAULT_STORE = "sqlite:///turnwise.db"

StoreArgument = str | SessionStore | Callable[[], SessionStore]
"""A store by its URL, as an object, or what makes it."""

HistoryArgument = str | HistoryStore | Callable[[], HistoryStore] | None
"""An event store by its URL, as an object, or what makes it; None for none."""

FilesArgument = str | Path | None
"""Where the bytes of files are kept: the path of a folder, or a URL of fsspec; None for the default."""

StoreRequest = Callable[[SessionStore], Awaitable[Any]]
"""Asks a store by one of its coroutine methods, in either family."""

_CLIENTS: weakref.WeakValueDictionary[str, SessionsClient] = weakref.WeakValueDictionary()
"""The clients of the managers that are open in this process, by name."""


class SessionsClient:
    """Finds the sessions of one store in one namespace; `AsyncSessionHost` asks them.

    It is pickled as its name, without the store's address or the engine's settings. Unpickled elsewhere, it reaches
    sessions with a live process; if a manager of the same store is open there, all sessions.
    """

    def __init__(self, namespace: str, name: str, placement: Placement) -> None:
        self.namespace = namespace
        self.name = name
        self.placement = placement
        self.runtime: Runtime = runtime_of(placement, namespace)
        self.read_only = False
        """Whether it starts no processes and changes nothing."""
        self.was_closed = False
        """Whether its manager was closed."""
        self.has_engine = True
        """Whether its manager has an engine that can answer what the store's deliveries begin."""
        self.file_limits: FileLimits | None = None
        """How much may be stored in files."""
        self._file_store: FileStore | None = None
        self._looks: list[DeliveryLook] = []
        self._place: StoreSpec | None = None
        self._setup = "", b""
        """The id of the manager's setup, and what processes make it from."""
        self.memories: tuple[MemorySlot, ...] = ()
        """The manager's memories, each in its process."""
        self.working_memory: WorkingMemory | None = None
        self._processes: SessionProcesses | None = None
        self.portal = Portal()
        """The event loop on which the store runs for blocking callers."""
        self._stores: tuple[SessionStore, HistoryStore | None] | None = None
        self._caches: OrderedDict[SessionKey, BlockCache] = OrderedDict()
        self._most_bytes = 0
        """What the caches take together at most, in bytes."""
        self._lock = threading.Lock()

    @classmethod
    def of(
        cls,
        namespace: str,
        store: StoreArgument,
        *,
        history_store: HistoryArgument,
        encryption: Encryption | None,
        engine: EngineBuilder | Mapping[str, EngineBuilder],
        overflow: OverflowStrategy | Literal["default"] | None,
        memory: Sequence[LongTermMemory],
        working_memory: WorkingMemory | None,
        placement: Placement,
        config: SessionConfig,
        read_only: bool,
        files: FilesArgument = None,
        accounts: StoreSpec | None = None,
    ) -> SessionsClient:
        """Return the client of a manager, which can make the actors of its sessions.

        Args:
            accounts: see `StoreSpec.accounts`.

        Raises:
            StoreURLError: the URL names no store.
            ConfigError: the engine, the strategy or the encryption has the wrong type or cannot be pickled, or the
                size of the model's context window is unknown.
        """
        has_engine = not getattr(engine, "starts_no_runs", False)
        engine = as_engine(engine)
        _check_settings(placement, config)
        if overflow == "default":
            strategies = [default_overflow(builder, config) for builder in engines_of(engine)]
            overflow = strategies[0] if all(strategies) else None
        elif overflow is not None:
            if not isinstance(overflow, OverflowStrategy) or isinstance(overflow, type):
                raise ConfigError("overflow", type(overflow).__name__, "pass an OverflowStrategy, such as Trim()")
            for builder in engines_of(engine):
                check_overflow(overflow, builder, config)
        runtime = runtime_of(placement, namespace)
        url = resolve_url(store) if isinstance(store, str) else StoreObject.of("store", store, SessionStore, runtime)
        if read_only and not isinstance(store, str):
            raise ConfigError("read_only", True, "needs a store that is given by its URL")
        own = url.url if isinstance(url, StoreObject) else url
        client = cls(namespace, store_id_of(namespace, own, is_encrypted=bool(encryption)), placement)
        client.runtime, client.read_only, client.has_engine = runtime, read_only, has_engine
        client.file_limits = config.file_limits
        history_url: str | StoreObject | None = None
        if isinstance(history_store, str):
            history_url = check_history_url(history_store)
        elif history_store is not None:
            history_url = StoreObject.of("history_store", history_store, HistoryStore, runtime)
        files_url = files if files in (None, NO_FILES) else check_files_url(files)
        if files_url is None and isinstance(url, str):
            files_url = files_beside(url)
        in_files = is_file(url) or is_file(history_url) or is_local(working_memory)
        client._place = StoreSpec(
            url,
            history_url,
            _checked(encryption, runtime),
            is_local=in_files or (accounts is not None and accounts.is_local),
            read_only=read_only,
            files=files_url,
            accounts=accounts,
        )
        try:
            overflow, client.memories = equip(overflow, memory, config, runtime.memory_process)
            client.working_memory = working_memory
            client._setup = runtime.setup_of((engine, config, overflow, client.memories, working_memory))
        except ConfigError:
            raise
        except Exception as error:
            reason = f"it cannot be pickled ({error}): hold settings in it and make clients in build()"
            value = f"{type(engine).__name__}, overflow={type(overflow).__name__}"
            raise ConfigError("engine", value, reason) from error
        if not read_only:  # a handle unpickled here may need to write
            _CLIENTS[client.name] = client
        return client

    def __reduce__(self) -> tuple[object, ...]:
        return by_version(_find, namespace=self.namespace, name=self.name, placement=self.placement)

    @property
    def place(self) -> StoreSpec | None:
        """Its stores, as each process opens its own; None if no manager was opened in this process."""
        return self._place

    @property
    def cached_bytes(self) -> dict[SessionKey, int]:
        """How many bytes the cached blocks of each session take, the least recently used session first."""
        with self._lock:
            return {key: cache.size_bytes for key, cache in self._caches.items()}

    @property
    def setup_id(self) -> str:
        """The id of the manager's setup: managers with equal settings have the same."""
        return self._setup[0]

    @property
    def store_spec(self) -> StoreSpec:
        """Its stores, as another process opens them.

        Raises:
            SessionLostError: no manager of the store is open in this process.
        """
        if self._place is None:
            raise SessionLostError("*", "open a SessionManager on its store in this process first")
        return self._place

    def open_store(self) -> SessionStore:
        """Open and return a new store, which the caller closes."""
        return self.store_spec.open_store(self.runtime)

    def open_history(self) -> HistoryStore | None:
        """Open and return a new history store, which the caller closes; None if the manager has none."""
        return self._place.open_history(self.runtime) if self._place else None

    @property
    def history_name(self) -> str | None:
        """The URL of its history store, or a name in place of it; None without one."""
        url = self._place.history_url if self._place else None
        return url.url if isinstance(url, StoreObject) else url

    @property
    def stores(self) -> tuple[SessionStore, HistoryStore | None]:
        """This process's store and history store (None without one); opened at first use."""
        with self._lock:
            if self._stores is None:
                self._stores = self.open_store(), self.open_history()
            return self._stores

    @property
    def files(self) -> FileAccess:
        """The files of the store's sessions and users; opened at first use.

        Raises:
            FilesUnavailableError: there is no place for files.
            SessionLostError: no manager of the store is open in this process.
        """
        store = self.session_store
        with self._lock:
            if self._file_store is None and self._place is not None:
                self._file_store = self._place.open_files(store)
            return access_to(store, self._file_store, self.file_limits or SessionConfig().file_limits)

    @property
    def has_files(self) -> bool:
        """Whether there is a place for files, from which this client may delete some."""
        return self._place is not None and not self.read_only and self._place.has_files

    @property
    def session_store(self) -> SessionStore:
        """This process's session store."""
        return self.stores[0]

    @property
    def history_store(self) -> HistoryStore | None:
        """This process's history store; None without one."""
        return self.stores[1]

    async def close(self) -> None:
        """Close the store and the history store. A later read opens them again. Sessions and their runs continue."""
        with self._lock:
            self.was_closed = True
            stores, self._stores = self._stores, None
            file_store, self._file_store = self._file_store, None
            processes, looks = self._processes, self._looks
        for look in looks:
            await look.close()
        if processes is not None:
            await processes.close()
        for store in (file_store, *(stores or ())):
            if store is not None:
                await store.close()

    def cache(self, ref: SessionRef) -> BlockCache:
        """Return the blocks of the session that this process has cached.

        A request tells the session which spans this cache holds, and the answer leaves those out. So unpack the answer
        with the same cache object, even if the client has evicted it meanwhile.
        """
        with self._lock:
            cache = self._caches.setdefault(ref.key, BlockCache())
            self._caches.move_to_end(ref.key)
            if len(self._caches) > CACHED_SESSIONS:
                self._caches.popitem(last=False)
            return cache

    def unpack(self, packed: PackedTurn, cache: BlockCache) -> Turn:
        """Return a turn that reads its blocks from `cache`, the cache whose spans the session was sent.

        If the answer's blocks are from another source, which then sent all of them, the turn uses a new cache, which
        replaces the old one; earlier turns keep the old one. Afterwards the caches are trimmed to their limits.
        """
        cache = cache if packed.source == cache.source else self._cache_of(cache, packed.source)
        size_before = cache.size_bytes
        turn = packed.unpack(cache)
        self._evict(turn, cache.size_bytes - size_before)
        return turn

    def _cache_of(self, replaced: BlockCache, source: str) -> BlockCache:
        """Return the cache of a source; if there is none yet, create one, which takes the place of `replaced`."""
        with self._lock:
            for key, cache in self._caches.items():
                if cache.source == source:
                    return cache
                if cache is replaced:
                    self._caches[key] = BlockCache(source)
                    return self._caches[key]
        return BlockCache(source)

    def _evict(self, turn: Turn, added_bytes: int) -> None:
        """Evict caches, least recently used first; of the last one keep only the blocks of `turn`, if they fit.

        Evicts a little more than it must, so that it rarely needs to add up the sizes of all caches.
        """
        with self._lock:
            self._most_bytes += added_bytes
            if self._most_bytes <= CACHED_BYTES:
                return
            size_bytes = sum(cache.size_bytes for cache in self._caches.values())
            while size_bytes > CACHED_BYTES or (size_bytes > CACHED_BYTES * 7 / 8 and len(self._caches) > 1):
                key, evicted = self._caches.popitem(last=False)
                size_bytes -= evicted.size_bytes
                if evicted is turn.cache and not self._caches:
                    reduced = evicted.only((*turn.record.prompt, *turn.record.spans))
                    if reduced.size_bytes <= CACHED_BYTES:
                        self._caches[key] = reduced
            self._most_bytes = sum(cache.size_bytes for cache in self._caches.values())

    def drop(self, ref: SessionRef) -> None:
        """Drop the cached blocks of a deleted session."""
        with self._lock:
            self._caches.pop(ref.key, None)

    def process(self, ref: SessionRef) -> SessionProcess:
        """Return the session's process, started if it does not run; does not wait for its start."""
        return self.processes.of(ref.key)

    @property
    def processes(self) -> SessionProcesses:
        """Finds the sessions' processes; made at first use, which starts those that all sessions share."""
        with self._lock:
            if self._processes is None:
                self._processes = self._find_processes()
            return self._processes

    def _find_processes(self) -> SessionProcesses:
        if self._place is None or self.read_only:
            return self.runtime.live_processes(self.name)
        return self.runtime.processes(self.name, self._place, self._setup)

    def start_ahead(self, key: SessionKey) -> None:
        """Start a session's own process, if it has one, before it is known whether there is such a session.

        Does not wait for it. Should nobody call it, it leaves.
        """
        if isinstance(self.placement, Dedicated):
            with suppress(OverloadedError):  # whoever calls it is told
                self.processes.of(key)

    def warm_up(self) -> None:
        """Start the processes of packed hosts and memories, without waiting for them; notify hosts they replace."""
        self.processes  # noqa: B018 - the first access starts packed hosts
        for slot in self.memories:
            if isinstance(slot.memory, RemoteMemory):
                slot.memory.warm()

    def look_for_deliveries(self) -> None:
        """Have the deliveries that wait in the store carried out, without waiting for it. May be repeated.

        A manager without an engine leaves them to others: what it started would use its settings.
        """
        if not self._looks:
            self._look_again()

    def announce_quotas(self) -> None:
        """Say that quotas were changed. Does not wait."""
        self.runtime.announce_quotas(self.name)

    def announce_webhooks(self) -> None:
        """Say that webhooks were changed, or that their calls are due again. Does not wait."""
        self.runtime.announce_webhooks(self.name)
        self._look_again()

    def _look_again(self) -> None:
        if self._place is not None and self.has_engine:
            look = self.runtime.look_for_deliveries(self.name, self._place, self._setup)
            self._looks += [look] if look else []

    def warm(self, ref: SessionRef) -> None:
        """Start the session's process and load the session, if it has a process of its own; does not wait for it."""
        self.processes.warm(ref.key, verbs.warm().to(ref).pickled())

    def pack(self, ref: SessionRef, call: VerbCall[Any], *, sends_engine: bool = False) -> bytes:
        """Return the message that asks a session's host; it names, or also sends, this client's engine if need be."""
        engine_id, engine = self._setup if call.verb.needs_engine else ("", b"")
        return call.to(ref, engine_id, engine if sends_engine else b"").pickled()

    def outcome(self, packed: PackedOutcome, cache: BlockCache) -> ClientOutcome:
        """Return how a run stands; see `unpack`."""
        turn = self.unpack(packed.turn, cache) if packed.turn else None
        return ClientOutcome(packed.state, packed.why, packed.code, turn, packed.successor, packed.awaits_agents)

    @property
    def has_store(self) -> bool:
        """Whether it can read the store, since it is the client of a manager that was opened in this process."""
        return self._place is not None

    def is_live(self, ref: SessionRef) -> bool:
        """Return whether a process exists that may own the session."""
        return self.processes.is_live(ref.key)


def _checked(encryption: Encryption | None, runtime: Runtime) -> Encryption | None:
    if encryption is not None and not isinstance(encryption, Encryption):
        raise ConfigError("encryption", type(encryption).__name__, "pass Encryption(key=...)")
    try:
        runtime.dumps(encryption)
    except Exception as error:
        reason = f"it cannot be pickled ({error}): let its function ask for keys where they are kept"
        raise ConfigError("encryption", encryption, reason) from error
    return encryption


def _find(namespace: str, name: str, placement: Placement) -> SessionsClient:
    return _CLIENTS.get(name) or SessionsClient(namespace, name, placement)


def _check_settings(placement: Placement, config: SessionConfig) -> None:
    if not isinstance(placement, Dedicated | Packed | InProcess):
        raise ConfigError("placement", placement, "pass Dedicated(), Packed() or InProcess()")
    if not isinstance(config, SessionConfig):
        raise ConfigError("config", type(config).__name__, "pass a SessionConfig")
