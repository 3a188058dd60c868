"""`ClusterClient`: sends requests to the actors of one store's sessions, in one Ray namespace."""

from __future__ import annotations

import pickle
import random
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from ray import cloudpickle
from ray.exceptions import ActorUnschedulableError, GetTimeoutError, RayActorError, RayError, RayTaskError

from turnwise.actors.client.actor_lookup import ActorLookup, LiveLookup, make_lookup
from turnwise.actors.client.requests import AwaitStep, Call, Pause, Portal, Request
from turnwise.actors.cluster.actor_names import store_id_of
from turnwise.actors.cluster.actor_spec import ActorSpec, StoreSpec
from turnwise.actors.cluster.identity import identity
from turnwise.actors.cluster.logs import LogSettings
from turnwise.actors.cluster.nodes import is_file
from turnwise.actors.cluster.placement import Dedicated, Packed, Placement
from turnwise.actors.cluster.reach import REACH_S, NoProcessError
from turnwise.actors.cluster.shared_actors.remote_memory import RemoteMemory, equip
from turnwise.actors.cluster.shared_actors.store_object import StoreObject
from turnwise.actors.cluster.wire import (
    READS,
    ClientOutcome,
    EngineWanted,
    PackedOutcome,
    PackedTurn,
    Refused,
    SessionRef,
    StartAnswer,
    StartedRun,
    StillEnding,
)
from turnwise.actors.hosting.waits import SLICE_S
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.inference.named_engines import as_engine, engines_of
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.session.compaction_tasks import check_overflow, default_overflow
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import ConfigError, OverloadedError, ReadOnlyStoreError, SessionFencedError, SessionLostError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.events import AnyEvent
from turnwise.memory.conversation.ids import new_id
from turnwise.memory.conversation.runs import Until, has_reached
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.event_store.urls import check_history_url
from turnwise.memory.longterm.base import LongTermMemory, is_local
from turnwise.memory.longterm.deletion_report import Forgotten
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.urls import resolve_url
from turnwise.memory.working.memory import WorkingMemory
from turnwise.strategies.compaction import Compaction
from turnwise.strategies.strategy import OverflowStrategy

REACHED_S = 10.0
"""A call that fails after at least this long is assumed to have reached a process, so the `REACH_S` limit restarts."""

ANSWER_S = 1.0
"""How many seconds a caller waits for an answer beyond the wait's own timeout."""

REFUSED_S = 60.0
"""How long a caller without a timeout retries a wait that the host refuses before OverloadedError, in seconds."""

PAUSE_S, MOST_PAUSE_S = 0.05, 5.0
"""The first and the longest pause after such a refusal, in seconds."""

CACHED_SESSIONS, CACHED_BYTES = 256, 64 << 20
"""Limits of the caller's block caches: how many sessions, and roughly how many bytes together."""


StoreArgument = str | SessionStore | Callable[[], SessionStore]
"""A store by its URL, as an object, or what makes it."""

HistoryArgument = str | HistoryStore | Callable[[], HistoryStore] | None
"""An event store by its URL, as an object, or what makes it; None for none."""

Answer = TypeVar("Answer")

_CLIENTS: weakref.WeakValueDictionary[str, ClusterClient] = weakref.WeakValueDictionary()
"""The clients of the managers that are open in this process, by name."""


class ClusterClient:
    """Sends a caller's requests to the sessions of one store in one namespace.

    It is pickled as its name, without the store's address or the engine's settings. Unpickled elsewhere, it reaches
    sessions with a live process; if a manager of the same store is open there, all sessions.
    """

    def __init__(self, namespace: str, name: str) -> None:
        self.namespace = namespace
        self.name = name
        self.read_only = False
        """Whether it makes no actors and changes nothing."""
        self.was_closed = False
        """Whether its manager was closed."""
        self._place: StoreSpec | None = None
        self._engine: bytes = b""
        self._engine_id = ""
        self.memories: tuple[MemorySlot, ...] = ()
        """The manager's memories, each in its actor."""
        self.working_memory: WorkingMemory | None = None
        self._placement: Placement = Dedicated()
        self._lookup: ActorLookup | None = None
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
    ) -> ClusterClient:
        """Return the client of a manager, which can make the actors of its sessions.

        Raises:
            StoreURLError: the URL names no store.
            ConfigError: the engine, the strategy or the encryption has the wrong type or cannot be pickled, or the
                size of the model's context window is unknown.
        """
        engine = as_engine(engine)
        if not isinstance(placement, Dedicated | Packed):
            raise ConfigError("placement", placement, "pass Dedicated() or Packed()")
        if overflow == "default":
            found = [default_overflow(each, config) for each in engines_of(engine)]
            overflow = found[0] if all(found) else None
        elif overflow is not None:
            if not isinstance(overflow, OverflowStrategy) or isinstance(overflow, type):
                raise ConfigError("overflow", type(overflow).__name__, "pass an OverflowStrategy, such as Trim()")
            for each in engines_of(engine):
                check_overflow(overflow, each, config)
        url = resolve_url(store) if isinstance(store, str) else StoreObject.of("store", store, SessionStore)
        if read_only and not isinstance(store, str):
            raise ConfigError("read_only", True, "needs a store that is given by its URL")
        own = url.url if isinstance(url, StoreObject) else url
        client = cls(namespace, store_id_of(namespace, own, is_encrypted=bool(encryption)))
        client._placement, client.read_only = placement, read_only
        history_url: str | StoreObject | None = None
        if isinstance(history_store, str):
            history_url = check_history_url(history_store)
        elif history_store is not None:
            history_url = StoreObject.of("history_store", history_store, HistoryStore)
        in_files = is_file(url) or is_file(history_url) or is_local(working_memory)
        client._place = StoreSpec(url, history_url, _checked(encryption), is_local=in_files, read_only=read_only)
        try:
            overflow, client.memories = equip(overflow, memory, namespace, config)
            client.working_memory = working_memory
            setup = (engine, config, overflow, client.memories, working_memory)
            client._engine = cloudpickle.dumps(setup)
            client._engine_id = identity(setup)
        except ConfigError:
            raise
        except Exception as error:
            why = f"it cannot be pickled ({error}): hold settings in it and make clients in build()"
            what = f"{type(engine).__name__}, overflow={type(overflow).__name__}"
            raise ConfigError("engine", what, why) from error
        if not read_only:  # a handle unpickled here may need to write
            _CLIENTS[client.name] = client
        return client

    def __reduce__(self) -> tuple[object, ...]:
        return _find, (self.namespace, self.name)

    def open_store(self) -> SessionStore:
        """Open and return a new store, which the caller closes."""
        if self._place is None:
            raise SessionLostError("*", "open a SessionManager on its store in this process first")
        return self._place.open_store(self.namespace)

    def open_history(self) -> HistoryStore | None:
        """Open and return a new history store, which the caller closes; None if the manager has none."""
        return self._place.open_history() if self._place else None

    @property
    def stores(self) -> tuple[SessionStore, HistoryStore | None]:
        """This process's store and history store (None without one); opened at first use."""
        with self._lock:
            if self._stores is None:
                self._stores = self.open_store(), self.open_history()
            return self._stores

    async def close(self) -> None:
        """Close the store and the history store. A later read opens them again."""
        with self._lock:
            self.was_closed = True
            stores, self._stores = self._stores, None
        for each in stores or ():
            if each is not None:
                await each.close()

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
        cache = cache if packed.source == cache.source else self._renewed(cache, packed.source)
        size_before = cache.size_bytes
        turn = packed.unpack(cache)
        self._bound(turn, cache.size_bytes - size_before)
        return turn

    def _renewed(self, old: BlockCache, source: str) -> BlockCache:
        """Return the cache of a source; if there is none yet, create one, which replaces the old cache."""
        with self._lock:
            for key, cache in self._caches.items():
                if cache.source == source:
                    return cache
                if cache is old:
                    self._caches[key] = BlockCache(source)
                    return self._caches[key]
        return BlockCache(source)

    def _bound(self, turn: Turn, added_bytes: int) -> None:
        """Evict caches, least recently used first; of the last one keep only the blocks of `turn`, if they fit.

        Evicts a little more than it must, so that it rarely needs to add up the sizes of all caches.
        """
        with self._lock:
            self._most_bytes += added_bytes
            if self._most_bytes <= CACHED_BYTES:
                return
            size_bytes = sum(each.size_bytes for each in self._caches.values())
            while size_bytes > CACHED_BYTES or (size_bytes > CACHED_BYTES * 7 / 8 and len(self._caches) > 1):
                key, gone = self._caches.popitem(last=False)
                size_bytes -= gone.size_bytes
                if gone is turn.cache and not self._caches:
                    shown = gone.only((*turn.record.prompt, *turn.record.spans))
                    if shown.size_bytes <= CACHED_BYTES:
                        self._caches[key] = shown
            self._most_bytes = sum(each.size_bytes for each in self._caches.values())

    def drop(self, ref: SessionRef) -> None:
        """Drop the cached blocks of a deleted session."""
        with self._lock:
            self._caches.pop(ref.key, None)

    def actor(self, ref: SessionRef) -> Any:
        """Return the session's actor, created if it does not exist; does not wait for its start."""
        return self.lookup.actor(ref.key)

    @property
    def lookup(self) -> ActorLookup:
        """Finds the sessions' actors; created at first use, which starts packed hosts."""
        with self._lock:
            if self._lookup is None:
                self._lookup = self._make_lookup()
            return self._lookup

    def _make_lookup(self) -> ActorLookup:
        if self._place is None or self.read_only:
            return LiveLookup(self.namespace, self.name)
        spec = ActorSpec(self._place, self._engine_id, self._engine, LogSettings.of_this_process())
        return make_lookup(self.namespace, self.name, self._placement, spec)

    def warm_up(self) -> None:
        """Start the processes of packed hosts and memories, without waiting for them; notify hosts they replace."""
        self.lookup  # noqa: B018 - the first access starts packed hosts
        for slot in self.memories:
            if isinstance(slot.memory, RemoteMemory):
                slot.memory.warm()

    def warm(self, ref: SessionRef) -> None:
        """Start the session's process and load the session, if it has a dedicated one; does not wait for it."""
        self.lookup.warm(ref.key, _pack(ref, "warm"))

    def ask(
        self, ref: SessionRef, verb: str, *args: Any, timeout_s: float | None = None, with_engine: bool = False
    ) -> Request[Any]:
        """Call one verb of the session's host, and repeat the call after crashes, restarts and moves until it answers.

        So a verb may be carried out twice; every verb is idempotent. Only this method turns Ray's exceptions into
        turnwise's.

        Args:
            with_engine: the verb uses an engine and a strategy: this client's, which are sent to the session if it has
                others. If no manager is open in this process, the session uses its current ones.

        Raises:
            TimeoutError: no answer within `timeout_s`.
            ReadOnlyStoreError: the manager is read-only, and the verb changes something.
            SessionLostError: no process of the session could be reached for `REACH_S` seconds.
            TurnwiseError: the host refused the request.
        """
        if self.read_only and verb not in READS:
            raise ReadOnlyStoreError(ref.session_id, verb)
        request = _pack(ref, verb, self._engine_id, *args) if with_engine else _pack(ref, verb, *args)
        search = _Search(ref.session_id)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = search.begin_call(until)
            if verb in READS and self._place is not None and not self.lookup.is_live(ref.key):
                found = yield from self._read(ref, verb, args)
                # A run may have started meanwhile, whose deltas the store does not have.
                if found is not None and not (verb == "events" and self.lookup.is_live(ref.key)):
                    return found[0]
            try:
                shared, lost_at = self.lookup.is_shared, search.lost_at
                packed: bytes = yield Call(self.actor(ref), request, left_s, shared, lost_at)
            except GetTimeoutError as error:
                raise TimeoutError(f"no answer within {timeout_s} s") from error
            except (NoProcessError, RayError) as error:
                if not _is_away(error):
                    self.lookup.invalidate(ref.key)  # the next request may make another actor
                    raise _lost(ref.session_id, verb, error) from error
                failure: Exception = error
            else:
                answer = pickle.loads(packed)
                if isinstance(answer, EngineWanted):
                    request = _pack(ref, "load_engine", self._engine_id, self._engine, verb, args)
                    search = _Search(ref.session_id)
                    continue
                if not isinstance(answer, Refused):
                    return answer
                if not isinstance(answer.error, SessionFencedError):
                    raise answer.error
                failure = answer.error  # that process no longer owns the session; look for the one that does
            self.lookup.invalidate(ref.key)
            yield Pause(search.pause_after(failure))

    def _read(self, ref: SessionRef, verb: str, args: Sequence[Any]) -> Request[tuple[Any] | None]:
        """Return the answer to a read from the store, in a tuple; None if only the session's process can answer.

        Reading from the store does not interrupt runs of another Ray. It cannot answer a wait for a run whose process
        died: a new process of the session must end or resume that run first.
        """
        from turnwise.actors.hosting.reader import Reader, check_stored
        from turnwise.actors.hosting.stored_session import StoredSession, UnattendedError

        stored = StoredSession(ref.key, *self.stores, raises_unattended=not self.read_only)
        try:
            if ref.log:
                yield AwaitStep(partial(check_stored, self.stores[0], ref.key, ref.log))
            return ((yield AwaitStep(partial(Reader(lambda: stored).answer, verb, args))),)
        except UnattendedError:
            return None

    def start(self, ref: SessionRef, prompts: tuple[Any, ...], settings: dict[str, Any]) -> Request[StartedRun]:
        """Start a run with this client's engine; the engine is sent first if the session has another."""
        cache = self.cache(ref)
        started: StartAnswer = yield from self.ask(ref, "start", prompts, settings, cache.held, with_engine=True)
        outcome = self._outcome(started.outcome, cache) if started.outcome else None
        return StartedRun(started.run_id, started.turn_index, outcome, started.dropped)

    def check_start(self, ref: SessionRef, prompts: tuple[Any, ...], settings: dict[str, Any]) -> Request[str | None]:
        """Check a run, as `start` would with this client's engine; see `RunAdmission.check_start`."""
        found: tuple[str | None] = yield from self.ask(ref, "check_start", prompts, settings, with_engine=True)
        return found[0]

    def _outcome(self, packed: PackedOutcome, cache: BlockCache) -> ClientOutcome:
        turn = self.unpack(packed.turn, cache) if packed.turn else None
        return ClientOutcome(packed.state, packed.why, packed.code, turn, packed.successor)

    def compact(self, ref: SessionRef, *, explain: bool) -> Request[Compaction | None]:
        """Compact the session's window with this client's strategy."""
        found: tuple[Compaction | None] = yield from self.ask(ref, "compact", explain, with_engine=True)
        return found[0]

    def window(self, ref: SessionRef, message: str | None) -> Request[Turn | None]:
        """Read the blocks of the session's next request, which fit the window of this client's engine."""
        cache = self.cache(ref)
        found: tuple[PackedTurn | None] = yield from self.ask(ref, "window", cache.held, message, with_engine=True)
        return self.unpack(found[0], cache) if found[0] else None

    def delete(
        self, ref: SessionRef, *, memory: bool, verify: bool, updated_at: float | None = None
    ) -> Request[Forgotten]:
        """Delete a session; if `memory` is set, this client's memories forget it too."""
        done: Forgotten = yield from (
            self.ask(ref, "delete", memory, verify, updated_at, with_engine=True)
            if memory
            else self.ask(ref, "delete", "", memory, verify, updated_at)
        )
        self.drop(ref)
        return done

    def forget_turn(self, ref: SessionRef, index: int, *, verify: bool) -> Request[Forgotten]:
        """Remove a turn from the session's window and from this client's memories."""
        done: Forgotten = yield from self.ask(ref, "forget_turn", index, verify, with_engine=True)
        return done

    def clear(
        self, ref: SessionRef, keep_last: int, *, memory: bool, verify: bool, updated_at: float | None = None
    ) -> Request[Forgotten]:
        """Remove a session's older turns from its history; if `memory` is set, this client's memories forget them."""
        given = (keep_last, memory, verify, updated_at, new_id())
        done: Forgotten = yield from self.ask(ref, "clear", *given, with_engine=True)
        self.drop(ref)
        return done

    def call_memory(self, ref: SessionRef, verb: str, *args: Any, **options: Any) -> Request[Any]:
        """Call a verb of the session's memory access, with this client's memories."""
        (answer,) = yield from self.ask(ref, "memory", verb, args, options, with_engine=True)
        return answer

    def wait(self, ref: SessionRef, run_id: str, timeout_s: float | None, until: Until) -> Request[ClientOutcome]:
        """Wait until a run has ended, or is suspended; return how it stands then, or after `timeout_s` seconds.

        Raises:
            TimeoutError: the session's process has not answered by then.
        """
        cache = self.cache(ref)

        def ask(left_s: float | None) -> Request[PackedOutcome]:
            limit_s = None if left_s is None else left_s + ANSWER_S
            return self.ask(ref, "wait", run_id, left_s, cache.held, until, timeout_s=limit_s)

        outcome = yield from _poll(timeout_s, ask, lambda answer: has_reached(answer.state, until))
        return self._outcome(outcome, cache)

    def follow(
        self, ref: SessionRef, after: int, limit: int, run_id: str | None, timeout_s: float | None = None
    ) -> Request[tuple[list[AnyEvent], int, bool]]:
        """Wait for events of a run, or of the whole session, up to `timeout_s` seconds; see `SessionReads.events`."""

        def ask(left_s: float | None) -> Request[tuple[list[AnyEvent], int, bool]]:
            slice_s = SLICE_S if left_s is None else min(left_s, SLICE_S)
            return self.ask(ref, "events", after, limit, run_id, slice_s)

        return (yield from _poll(timeout_s, ask, lambda page: page[2] or page[1] > after))

    def wait_for_memory(self, ref: SessionRef, timeout_s: float | None) -> Request[bool]:
        """Wait until this client's memories have received a session's turns; return False after `timeout_s`."""

        def ask(left_s: float | None) -> Request[tuple[bool | None]]:
            return self.ask(ref, "wait_for_memory", left_s, with_engine=True)

        (done,) = yield from _poll(timeout_s, ask, lambda answer: answer[0] is not None)
        return bool(done)

    def cancel(self, ref: SessionRef, reason: str, run_id: str | None = None) -> Request[bool]:
        """Cancel a run, by default the active one, and wait for its end; return whether it ended as cancelled."""
        while True:
            answer: bool | StillEnding = yield from self.ask(ref, "cancel", reason, run_id)
            if not isinstance(answer, StillEnding):
                return answer
            run_id = answer.run_id  # name the run, since another may be active by now

    def end(self, ref: SessionRef) -> Request[None]:
        """End a session, and wait until its active run has ended."""
        while not (yield from self.ask(ref, "end")):
            pass

    def is_live(self, ref: SessionRef) -> bool:
        """Return whether a process exists that may own the session."""
        return self.lookup.is_live(ref.key)


def _poll(
    timeout_s: float | None, ask: Callable[[float | None], Request[Answer]], is_there: Callable[[Answer], object]
) -> Request[Answer]:
    """Repeat a request until `is_there(answer)`, and return that answer; after `timeout_s`, return the last answer.

    Args:
        ask: makes the request, given how many seconds are left. A session answers after `SLICE_S` seconds at most.

    Raises:
        OverloadedError: too many other callers have been waiting for all of `timeout_s`, or for `REFUSED_S` without
            one.
    """
    began = time.monotonic()
    refused_at: float | None = None
    pause_s = PAUSE_S
    while True:
        left_s = None if timeout_s is None else max(0.0, began + timeout_s - time.monotonic())
        try:
            answer = yield from ask(left_s)
        except OverloadedError:
            now = time.monotonic()
            refused_at = now if refused_at is None else refused_at
            until = refused_at + REFUSED_S if timeout_s is None else began + timeout_s
            if now >= until:
                raise
            # A random pause, so that callers that were refused together do not retry together.
            yield Pause(min(pause_s * random.uniform(0.5, 1.0), until - now))  # noqa: S311 - no secret
            pause_s = min(2 * pause_s, MOST_PAUSE_S)
        else:
            if is_there(answer) or (timeout_s is not None and time.monotonic() >= began + timeout_s):
                return answer
            refused_at, pause_s = None, PAUSE_S


class _Search:
    """Tracks how long a request has tried to reach a process of its session."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._called_at = 0.0
        self.lost_at: float | None = None
        """Since when no owner has been reached."""
        self._pause_s = 0.01

    def begin_call(self, until: float | None) -> float | None:
        """Record the start of a call; return how many seconds are left, None without a limit."""
        self._called_at = time.monotonic()
        return None if until is None else max(0.0, until - self._called_at)

    def pause_after(self, failure: Exception) -> float:
        """Return how many seconds to pause before the next call, after a process that does not own the session.

        Raises:
            SessionLostError, SessionFencedError: no owner answered for `REACH_S` seconds.
        """
        now = time.monotonic()
        if self.lost_at is None or now - self._called_at > REACHED_S:
            self.lost_at, self._pause_s = now, 0.01
        if now - self.lost_at > REACH_S:
            if isinstance(failure, SessionFencedError):
                raise failure
            raise SessionLostError(self._session_id, str(failure).strip().splitlines()[0]) from failure
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, 0.5)
        return pause_s


def _is_away(error: NoProcessError | RayError) -> bool:
    """Return whether this process has died or cannot be reached, so that another one may answer."""
    if not isinstance(error, RayActorError) or isinstance(error, RayTaskError):
        return False
    return not error.actor_init_failed


def _lost(session_id: str, verb: str, error: NoProcessError | RayError) -> SessionLostError:
    """Return the error of a call that would fail in any process of the session, or for which there is none."""
    if isinstance(error, NoProcessError):
        why = "Ray's logs of this actor say why its processes end, or what it waits for"
        return SessionLostError(session_id, f"{error}; {why}")
    if isinstance(error, RayTaskError):
        return SessionLostError(session_id, f"{verb} failed there: {error.cause!r}")
    if isinstance(error, RayActorError):
        why = "its process cannot start: install this turnwise, and what it needs, on every node"
        return SessionLostError(session_id, f"{why} ({error})")
    if isinstance(error, ActorUnschedulableError):
        why = "no node may run its process: open a manager on the node that has its files, or use a store on a server"
        return SessionLostError(session_id, f"{why} ({error})")
    return SessionLostError(session_id, f"{type(error).__name__}: {error}")


def _pack(ref: SessionRef, verb: str, *args: Any) -> bytes:
    return pickle.dumps((ref, verb, *args), pickle.HIGHEST_PROTOCOL)


def _checked(encryption: Encryption | None) -> Encryption | None:
    if encryption is not None and not isinstance(encryption, Encryption):
        raise ConfigError("encryption", type(encryption).__name__, "pass Encryption(key=...)")
    try:
        cloudpickle.dumps(encryption)
    except Exception as error:
        why = f"it cannot be pickled ({error}): let its function ask for keys where they are kept"
        raise ConfigError("encryption", encryption, why) from error
    return encryption


def _find(namespace: str, name: str) -> ClusterClient:
    return _CLIENTS.get(name) or ClusterClient(namespace, name)
