"""Per-process resources of sessions: the stores, and the cached setups of managers (see `SessionSetup`)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from turnwise.actors.hosting.engine_override import EngineOverride
from turnwise.actors.hosting.wire import Refused
from turnwise.actors.inference.engine import EngineBuilder, InferenceRunner, SessionView
from turnwise.actors.inference.observing import Observer, observer_of
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.state.alarm import NO_ALARM, Alarm
from turnwise.actors.session.state.outbox import WebhookOutbox
from turnwise.actors.session.state.quota_book import QuotaBook
from turnwise.actors.wire_version import unpacked_settings
from turnwise.errors import ConfigError, EngineLimitError, TurnwiseError, WireVersionError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.files.base import FileStore
from turnwise.memory.longterm.base import is_read_only
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.working.memory import WorkingMemory
from turnwise.strategies.strategy import OverflowStrategy

LOAD_S = 60.0
"""How long callers wait until the setups are loaded, which imports what they need, in seconds."""

MAX_CACHED = 8
"""How many managers' setups a process caches, its own included."""

SessionSetup = tuple[EngineBuilder, SessionConfig, OverflowStrategy | None, Sequence[MemorySlot], WorkingMemory | None]
"""A manager's engine, config, overflow strategy, long-term memories and working memory.

It travels pickled, as `engine: bytes`; its `engine_id` is a digest of all five, see `identity`.
"""


class WorkerResources:
    """One store, one history store, and the setups of managers by id. Opened at first use, off the event loop.

    Args:
        engine_id: identifies the setup of the manager that created the process.
        engine: that setup, pickled.
        other_engines: the pickled setups of other managers, by id.
        loads: makes a setup from what was sent: see `Runtime.dumps`.
        open_files: opens what keeps the bytes of files, beside the store.
    """

    def __init__(
        self,
        open_store: Callable[[], SessionStore],
        open_history: Callable[[], HistoryStore | None],
        engine_id: str,
        engine: bytes,
        *,
        other_engines: Mapping[str, bytes] | None = None,
        loads: Callable[[bytes], Any] = unpacked_settings,
        open_files: Callable[[SessionStore], FileStore | None] = lambda _store: None,
    ) -> None:
        self.engine_id = engine_id
        self.in_use: Callable[[], Collection[str]] = lambda: ()
        """Returns the ids of the setups that open runs use, which are never evicted."""
        self.alarm: Alarm = NO_ALARM
        """Who is told of the deliveries of the process's sessions. Set it before the first core is made."""
        self._outbox: WebhookOutbox | None = None
        self._quotas: QuotaBook | None = None
        self._pickled = {**(other_engines or {}), engine_id: engine}
        self._loads = loads
        self._open_store = open_store
        self._open_history = open_history
        self._open_files = open_files
        self._files: FileStore | None = None
        self._opening: asyncio.Task[None] | None = None
        self._opened: tuple[SessionStore, HistoryStore | None] | None = None
        self._setups: OrderedDict[str, SessionSetup] = OrderedDict()
        self._loading: asyncio.Task[None] | None = None
        self._observer: Observer | None = None

    def refused(self, error: TurnwiseError) -> Refused:
        """Return the answer of a call that ends with an error, which telemetry is told of."""
        if self._observer:
            self._observer.refused(error)
        return Refused(error)

    @property
    def is_open(self) -> bool:
        """Whether `open` has returned."""
        return self._opened is not None

    async def open(self) -> SessionStore:
        """Return the store. The first call opens the store and the history store, and loads the setups.

        Raises:
            StoreError, StoreURLError: a store cannot be opened; the next call tries again.
            TimeoutError: the setups have not been loaded within `LOAD_S`; loading goes on, and later calls wait for it.
        """
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        opening = self._opening
        try:
            await asyncio.shield(opening)
        except Exception:
            if self._opening is opening:  # else a caller who learnt it before has begun again
                self._opening = None
            raise
        return self._stores[0]

    async def load(self, session_id: str, engine_id: str, engine: bytes) -> None:
        """Unpickle and cache a setup for a session.

        Raises:
            ConfigError: this process cannot load it.
            EngineLimitError: open runs use as many other setups as a process may cache.
        """
        if engine_id not in self._setups:
            self.cache(session_id, engine_id, await asyncio.to_thread(self._load, engine), engine)

    def has(self, engine_id: str) -> bool:
        """Return whether the setup of this id is cached."""
        return engine_id in self._setups

    def find(self, engine_id: str) -> bytes | None:
        """Return the pickle of a setup; None if it is not cached."""
        return self._pickled.get(engine_id)

    def get(self, engine_id: str) -> tuple[SessionSetup, bytes]:
        """Return a cached setup, and its pickle.

        Raises:
            KeyError: it is not cached.
        """
        self._setups.move_to_end(engine_id)
        return self._setups[engine_id], self._pickled[engine_id]

    def cache(self, session_id: str, engine_id: str, setup: SessionSetup, engine: bytes) -> None:
        """Cache a setup; if the cache is full, evict the least recently used one that no open run uses.

        Raises:
            EngineLimitError: open runs use all cached setups.
        """
        if engine_id not in self._setups and len(self._setups) >= MAX_CACHED:
            used_ids = {self.engine_id, *self.in_use()}
            evicted_id = next((name for name in self._setups if name not in used_ids), None)
            if evicted_id is None:
                raise EngineLimitError(session_id, "engines", MAX_CACHED)
            del self._setups[evicted_id], self._pickled[evicted_id]
        self._setups[engine_id], self._pickled[engine_id] = setup, engine

    def make_core(self, key: SessionKey, override: EngineOverride) -> SessionCore:
        """Return a new core of a session, with a cached setup. Call `open` first."""
        store, history = self._stores
        builder, config, overflow, memories, working = self.get(override.engine_id)[0]
        core = SessionCore(
            key,
            store,
            builder,
            config,
            overflow=overflow,
            memories=memories,
            working=working,
            history=history,
            files=self._files,
            engine_id=override.engine_id,
            alarm=self.alarm,
            outbox=self._find_outbox(),
            quotas=self._find_quotas(),
        )
        self.assign_runs(core, override)
        return core

    def forget_webhooks(self) -> None:
        """Have the sessions' next commits tell webhooks as they are in the store now, since they were changed."""
        if self._outbox:
            self._outbox.forget()

    def forget_quotas(self) -> None:
        """Have the sessions' next commits know the store's quotas as they are now, since they were changed."""
        if self._quotas:
            self._quotas.forget()

    def _find_quotas(self) -> QuotaBook:
        if self._quotas is None:
            self._quotas = QuotaBook(self._stores[0])
        return self._quotas

    def _find_outbox(self) -> WebhookOutbox:
        if self._outbox is None:
            self._outbox = WebhookOutbox(self._stores[0], self.alarm)
        return self._outbox

    def assign_runs(self, core: SessionCore, override: EngineOverride) -> None:
        """Assign the setups of an earlier process to the runs that it left open."""
        for engine_id in set(override.runs.values()):
            runs = [run_id for run_id, run_engine_id in override.runs.items() if run_engine_id == engine_id]
            core.use(*self.get(engine_id)[0], engine_id=engine_id, runs=runs)

    @property
    def saves(self) -> bool:
        """Whether sessions of the manager that created the process save their turns in a long-term memory."""
        slots = self.get(self.engine_id)[0][3]
        return any(slot.is_used and not is_read_only(slot.memory) for slot in slots)

    @property
    def config(self) -> SessionConfig:
        """The config of the manager that created the process."""
        return self.get(self.engine_id)[0][1]

    @property
    def _stores(self) -> tuple[SessionStore, HistoryStore | None]:
        if self._opened is None:
            raise RuntimeError("open() has not returned")
        return self._opened

    async def _open(self) -> None:
        if self._loading is None or (self._loading.done() and self._loading.exception()):
            self._loading = asyncio.create_task(self._load_setups())
        finished, _ = await asyncio.wait({self._loading}, timeout=LOAD_S)
        if not finished:
            raise TimeoutError(f"the engine and what it imports have not been loaded within {LOAD_S:g} s")
        self._loading.result()
        store = await asyncio.to_thread(self._open_store)
        try:
            self._files = await asyncio.to_thread(self._open_files, store)
            self._opened = store, await asyncio.to_thread(self._open_history)
        except BaseException:
            await store.close()  # the next call opens another one
            raise

    async def _load_setups(self) -> None:
        for engine_id, engine in list(self._pickled.items()):
            try:
                setup = await asyncio.to_thread(self._load, engine)
            except (ConfigError, WireVersionError) as error:
                # The session can still be read, and a manager with another engine can run it.
                setup = _Unloadable(error), SessionConfig(), None, (), None
            self._setups[engine_id] = setup

    def _load(self, engine: bytes) -> SessionSetup:
        try:
            builder, config, overflow, memories, working = self._loads(engine)
        except WireVersionError:
            raise
        except Exception as error:
            reason = (
                f"it cannot be loaded in the session's process ({error}); define it in a module that is installed there"
            )
            raise ConfigError("engine or overflow", type(error).__name__, reason) from error
        self._observer = observer_of(config.telemetry) or self._observer  # on this thread, as imports take a while
        return builder, config, overflow, memories, working

    async def close(self) -> None:
        """Close the stores, once they are open if they are being opened. Nothing may be called afterwards."""
        if self._opening is not None:
            await asyncio.wait({self._opening})
        if self._opened is not None:
            for store in (*self._opened, self._files):
                if store is not None:
                    await store.close()


class _Unloadable:
    """Stands for an engine that this process cannot load: its runs fail with the reason."""

    def __init__(self, error: ConfigError | WireVersionError) -> None:
        self._error = error

    def build(self, session: SessionView) -> InferenceRunner:
        raise self._error
