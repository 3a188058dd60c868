"""The sessions of one store in one Ray namespace, and the way to their actors."""

from __future__ import annotations

import hashlib
import pickle
import random
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from turnwise.actors.client.actor_lookup import ActorLookup, LiveLookup, make_lookup
from turnwise.actors.client.requests import Call, Consult, Pause, Portal, Request
from turnwise.actors.cluster.actor_spec import ActorSpec, StoreSpec
from turnwise.actors.cluster.identity import identity
from turnwise.actors.cluster.memory_actor import RemoteMemory, equip
from turnwise.actors.cluster.nodes import is_file
from turnwise.actors.cluster.placement import Dedicated, Packed, Placement
from turnwise.actors.cluster.wire import (
    Ended,
    EngineWanted,
    PackedOutcome,
    PackedTurn,
    Refused,
    StartAnswer,
    StartedRun,
    StillEnding,
    log_of,
)
from turnwise.actors.hosting.reader import READS, StoreReader, check_stored
from turnwise.actors.hosting.stored_session import StoredSession, UnattendedError
from turnwise.actors.hosting.waits import SLICE_S
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.session.compaction_tasks import check_overflow
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import ConfigError, OverloadedError, ReadOnlyStoreError, SessionFencedError, SessionLostError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.events import AnyEvent
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.event_store.urls import check_history_url
from turnwise.memory.longterm.base import LongTermMemory, is_local
from turnwise.memory.longterm.deletion import Verify
from turnwise.memory.longterm.deletion_report import Forgotten
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.urls import resolve_url
from turnwise.memory.user_ids import by_public_id
from turnwise.memory.working.memory import WorkingMemory
from turnwise.strategies.compaction import Compaction
from turnwise.strategies.strategy import OverflowStrategy

REACH_S = 60.0
"""How long a verb looks for a session's process, through deaths and restarts, before SessionLostError."""

REACHED_S = 10.0
"""A call that was under way for so long had reached a process: who waits through its death looks anew for the next."""

ANSWER_S = 1.0
"""How much longer than a wait its answer may take, in seconds."""

REFUSED_S = 60.0
"""How long a caller without a timeout asks for a place to wait in before OverloadedError, in seconds."""

PAUSE_S, MOST_PAUSE_S = 0.05, 5.0
"""How long such a caller pauses after a refusal; at most, if there are many."""

CACHED_SESSIONS, CACHED_BYTES = 256, 64 << 20
"""Of how many sessions a caller holds the blocks that it has seen; what these take together, in bytes, roughly."""


Answer = TypeVar("Answer")

_REALMS: weakref.WeakValueDictionary[str, ClusterClient] = weakref.WeakValueDictionary()
"""Those of the managers that are open in this process."""


class ClusterClient:
    """The way from a caller to the sessions of one store in one namespace.

    Pickles as its name, without the store's address or the engine's settings: in another process it finds sessions that
    are live, and those of a manager that is open there.
    """

    def __init__(self, namespace: str, name: str) -> None:
        self.namespace = namespace
        self.name = name
        self.read_only = False
        """Whether it makes no actors and changes nothing."""
        self._place: StoreSpec | None = None
        self._engine: bytes = b""
        self._engine_id = ""
        self.memories: tuple[MemorySlot, ...] = ()
        """Those of the manager, each in its actor."""
        self.working_memory: WorkingMemory | None = None
        self._placement: Placement = Dedicated()
        self._lookup: ActorLookup | None = None
        self.portal = Portal()
        """Where what blocking callers ask of a store is carried out."""
        self._kit: tuple[SessionStore, HistoryStore | None] | None = None
        self._caches: OrderedDict[str, BlockCache] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def of(
        cls,
        namespace: str,
        url: str,
        *,
        history_url: str | None,
        encryption: Encryption | None,
        engine: EngineBuilder,
        overflow: OverflowStrategy | None,
        memory: Sequence[LongTermMemory],
        working_memory: WorkingMemory | None,
        placement: Placement,
        config: SessionConfig,
        read_only: bool,
    ) -> ClusterClient:
        """Return the client of a manager, which can make the actors of its sessions.

        Raises:
            StoreURLError: the URL names no store.
            ConfigError: the engine, the strategy or the encryption is none, or cannot be pickled, or what a request may
                take is not known.
        """
        if not isinstance(engine, EngineBuilder) or isinstance(engine, type):
            raise ConfigError(
                "engine", type(engine).__name__, "pass an object with build(session), such as EchoEngine()"
            )
        if not isinstance(placement, Dedicated | Packed):
            raise ConfigError("placement", placement, "pass Dedicated() or Packed()")
        if overflow is not None:
            if not isinstance(overflow, OverflowStrategy) or isinstance(overflow, type):
                raise ConfigError("overflow", type(overflow).__name__, "pass an OverflowStrategy, such as Trim()")
            check_overflow(overflow, engine, config)
        url = resolve_url(url)
        # What was opened with encryption, and what without, have processes of their own: neither can read the other's.
        name = f"{namespace}\n{url}" + ("\nencrypted" if encryption else "")
        client = cls(namespace, hashlib.sha256(name.encode()).hexdigest()[:16])
        client._placement, client.read_only = placement, read_only
        history_url = None if history_url is None else check_history_url(history_url)
        in_files = is_file(url) or is_file(history_url) or is_local(working_memory)
        client._place = StoreSpec(url, history_url, _checked(encryption), is_local=in_files, read_only=read_only)
        try:
            overflow, client.memories = equip(overflow, memory, namespace, config)
            client.working_memory = working_memory
            equipment = (engine, config, overflow, client.memories, working_memory)
            client._engine = cloudpickle.dumps(equipment)
            client._engine_id = identity(equipment)
        except ConfigError:
            raise
        except Exception as error:
            why = f"it cannot be pickled ({error}): hold settings in it and make clients in build()"
            what = f"{type(engine).__name__}, overflow={type(overflow).__name__}"
            raise ConfigError("engine", what, why) from error
        if not read_only:  # handles that come from elsewhere are for more
            _REALMS[client.name] = client
        return client

    def __reduce__(self) -> tuple[object, ...]:
        return _find, (self.namespace, self.name)

    def open_store(self) -> SessionStore:
        """Return a store of the caller's own."""
        if self._place is None:
            raise SessionLostError("*", "open a SessionManager on its store in this process first")
        return self._place.open_store(self.namespace)

    def open_history(self) -> HistoryStore | None:
        """Return a history of the caller's own, if events are kept in one."""
        return self._place.open_history() if self._place else None

    @property
    def kit(self) -> tuple[SessionStore, HistoryStore | None]:
        """This process's store, and its history if events are kept in one; opened when first asked for."""
        with self._lock:
            if self._kit is None:
                self._kit = self.open_store(), self.open_history()
            return self._kit

    async def close(self) -> None:
        """Let go of the store and the history. What is read afterwards opens them anew."""
        with self._lock:
            kit, self._kit = self._kit, None
        for each in kit or ():
            if each is not None:
                await each.close()

    def cache(self, session_id: str) -> BlockCache:
        """Return what this process has seen of the session's blocks.

        What the session leaves out of an answer is in the cache whose spans it was told, so the answer goes into that
        very object: by then the client may have let go of it.
        """
        with self._lock:
            cache = self._caches.setdefault(session_id, BlockCache())
            self._caches.move_to_end(session_id)
            if len(self._caches) > CACHED_SESSIONS:
                self._caches.popitem(last=False)
            return cache

    def unpack(self, packed: PackedTurn, cache: BlockCache) -> Turn:
        """Return a turn on top of the cache whose spans its session was told; keep the caches within their bounds.

        If its blocks are from another source, which has then sent all of them, it is on top of a new cache, which takes
        the place of the old one. Turns that have the old one keep it.
        """
        turn = packed.unpack(cache if packed.source == cache.source else self._renewed(cache, packed.source))
        self._bound(turn)
        return turn

    def _renewed(self, old: BlockCache, source: str) -> BlockCache:
        """Return the cache of a source, which takes the place of the old one unless it has been there for longer."""
        with self._lock:
            for session_id, cache in self._caches.items():
                if cache.source == source:
                    return cache
                if cache is old:
                    self._caches[session_id] = BlockCache(source)
                    return self._caches[session_id]
        return BlockCache(source)

    def _bound(self, turn: Turn) -> None:
        """Let go of caches, the least lately used first, then of what the turn of the last one does not show."""
        with self._lock:
            size_bytes = sum(each.size_bytes for each in self._caches.values())
            while size_bytes > CACHED_BYTES:
                session_id, gone = self._caches.popitem(last=False)
                size_bytes -= gone.size_bytes
                if gone is turn.cache and not self._caches:
                    shown = gone.only((*turn.record.prompt, *turn.record.spans))
                    if shown.size_bytes <= CACHED_BYTES:
                        self._caches[session_id] = shown

    def drop(self, session_id: str) -> None:
        """Hold no blocks of a session any more: it was deleted."""
        with self._lock:
            self._caches.pop(session_id, None)

    def actor(self, session_id: str) -> Any:
        """Return the session's actor, made if it is not there; does not wait for it."""
        return self.lookup.actor(session_id)

    @property
    def lookup(self) -> ActorLookup:
        """Where the sessions live; found, and made ready, when first asked for."""
        with self._lock:
            if self._lookup is None:
                self._lookup = self._find_homes()
            return self._lookup

    def _find_homes(self) -> ActorLookup:
        if self._place is None or self.read_only:
            return LiveLookup(self.namespace, self.name)
        return make_lookup(
            self.namespace, self.name, self._placement, ActorSpec(self._place, self._engine_id, self._engine)
        )

    def warm_up(self) -> None:
        """Let the processes of packed hosts and memories start, without waiting for them; tell earlier hosts."""
        self.lookup  # noqa: B018 - they are made when they are first asked for
        for slot in self.memories:
            if isinstance(slot.memory, RemoteMemory):
                slot.memory.warm()

    def warm(self, session_id: str) -> None:
        """Let the session's process start and load, if it has one of its own, without waiting for it."""
        self.lookup.warm(session_id, _pack(session_id, "warm"))

    def ask(
        self, session_id: str, verb: str, *args: Any, timeout_s: float | None = None, with_engine: bool = False
    ) -> Request[Any]:
        """Call one verb of the session's host: through its death, restart and leaving, until it answers.

        So a verb may be carried out twice, and each is made to bear it. This is the one place that turns Ray's
        exceptions into ours.

        Args:
            with_engine: for a verb that works with an engine and a strategy: this client's, which are sent if the
                session has others. Where no manager is open in this process, those that the session has.

        Raises:
            TimeoutError: no answer within `timeout_s`.
            ReadOnlyStoreError: the manager is for reading only, and the verb changes something.
            SessionLostError: no process of the session could be reached for `REACH_S`.
            TurnwiseError: what the host refused.
        """
        if self.read_only and verb not in READS:
            raise ReadOnlyStoreError(session_id, verb)
        request = _pack(session_id, verb, self._engine_id, *args) if with_engine else _pack(session_id, verb, *args)
        search = _Search(session_id)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = search.begin_call(until)
            if verb in READS and self._place is not None and not self.lookup.is_live(session_id):
                found = yield from self._read(session_id, verb, args)
                if found is not None:
                    return found[0]
            try:
                packed: bytes = yield Call(self.actor(session_id), request, left_s, self.lookup.have_many)
            except GetTimeoutError as error:
                raise TimeoutError(f"no answer within {timeout_s} s") from error
            except RayError as error:
                if not _is_away(error):
                    raise _lost(session_id, verb, error) from error
                failure: Exception = error
            else:
                answer = pickle.loads(packed)
                if isinstance(answer, EngineWanted):
                    request = _pack(session_id, "adopt", self._engine_id, self._engine, verb, args)
                    search = _Search(session_id)
                    continue
                if not isinstance(answer, Refused):
                    return answer
                if not isinstance(answer.error, SessionFencedError):
                    raise answer.error
                failure = answer.error  # that process has given the session up; the next one has it
            self.lookup.miss(session_id)
            yield Pause(search.pause_after(failure))

    def _read(self, session_id: str, verb: str, args: Sequence[Any]) -> Request[tuple[Any] | None]:
        """Return the store's answer, which interrupts no run of another Ray; None if the session's process is to say.

        That is for a wait, for a run that was lost with its process: its own settles it, or goes on with it.
        """
        kept = by_public_id(session_id, *self.kit)
        reader = StoreReader(StoredSession(*kept, may_settle=not self.read_only))
        try:
            if log := log_of(session_id):
                yield Consult(partial(check_stored, kept[1], kept[0], log))
            return ((yield Consult(partial(reader.answer, verb, args))),)
        except UnattendedError:
            return None

    def start(self, session_id: str, prompts: tuple[Any, ...], settings: dict[str, Any]) -> Request[StartedRun]:
        """Ask for a run with this client's engine; sends the engine first where the session has another."""
        cache = self.cache(session_id)
        started: StartAnswer = yield from self.ask(session_id, "start", prompts, settings, cache.held, with_engine=True)
        return StartedRun(started.run_id, started.turn_index, self._ended(started.outcome, cache))

    def _ended(self, packed: PackedOutcome | None, cache: BlockCache) -> Ended | None:
        if packed is None:
            return None
        turn = self.unpack(packed.turn, cache) if packed.turn else None
        return Ended(packed.state, packed.why, packed.code, turn)

    def compact(self, session_id: str, *, explain: bool) -> Request[Compaction | None]:
        """Ask for a compaction with this client's strategy."""
        found: tuple[Compaction | None] = yield from self.ask(session_id, "compact", explain, with_engine=True)
        return found[0]

    def delete(
        self, session_id: str, *, memory: bool, verify: Verify, updated_at: float | None = None
    ) -> Request[Forgotten]:
        """Delete a session; this client's memories forget it if `memory` is set."""
        done: Forgotten = yield from (
            self.ask(session_id, "delete", memory, verify, updated_at, with_engine=True)
            if memory
            else self.ask(session_id, "delete", "", memory, verify, updated_at)
        )
        self.drop(session_id)
        return done

    def forget_turn(self, session_id: str, index: int, *, verify: Verify) -> Request[Forgotten]:
        """Let a session and this client's memories forget a turn."""
        done: Forgotten = yield from self.ask(session_id, "forget_turn", index, verify, with_engine=True)
        return done

    def use_desk(self, session_id: str, verb: str, *args: Any, **options: Any) -> Request[Any]:
        """Ask this client's memories for something, as the session does."""
        (answer,) = yield from self.ask(session_id, "memory", verb, args, options, with_engine=True)
        return answer

    def wait(self, session_id: str, run_id: str, timeout_s: float | None) -> Request[Ended | None]:
        """Wait for a run's end; None, or TimeoutError, if it has not ended after `timeout_s`."""
        cache = self.cache(session_id)

        def ask(left_s: float | None) -> Request[PackedOutcome | None]:
            limit_s = None if left_s is None else left_s + ANSWER_S
            return self.ask(session_id, "wait", run_id, left_s, cache.held, timeout_s=limit_s)

        return self._ended((yield from _patiently(timeout_s, ask, bool)), cache)

    def follow(self, session_id: str, after: int, limit: int, run_id: str) -> Request[tuple[list[AnyEvent], int, bool]]:
        """Wait for events of a run: see `SessionReads.events`."""

        def ask(left_s: float | None) -> Request[tuple[list[AnyEvent], int, bool]]:
            return self.ask(session_id, "events", after, limit, run_id, SLICE_S)

        return (yield from _patiently(None, ask, lambda page: page[2] or page[1] > after))

    def wait_for_memory(self, session_id: str, timeout_s: float | None) -> Request[bool]:
        """Wait until this client's memories have a session's turns; return whether they have."""

        def ask(left_s: float | None) -> Request[tuple[bool | None]]:
            return self.ask(session_id, "wait_for_memory", left_s, with_engine=True)

        (done,) = yield from _patiently(timeout_s, ask, lambda answer: answer[0] is not None)
        return bool(done)

    def cancel(self, session_id: str, reason: str, run_id: str | None = None) -> Request[bool]:
        """Cancel a run, or the active one; return whether it ended as cancelled, when it has ended."""
        while True:
            answer: bool | StillEnding = yield from self.ask(session_id, "cancel", reason, run_id)
            if not isinstance(answer, StillEnding):
                return answer
            run_id = answer.run_id  # by now another may be the active one

    def end(self, session_id: str) -> Request[None]:
        """End a session, and wait for the end of its run."""
        while not (yield from self.ask(session_id, "end")):
            pass

    def is_live(self, session_id: str) -> bool:
        """Return whether there is a process that may have the session."""
        return self.lookup.is_live(session_id)


def _patiently(
    timeout_s: float | None, ask: Callable[[float | None], Request[Answer]], is_there: Callable[[Answer], object]
) -> Request[Answer]:
    """Ask until what the caller waits for is there, and return it; after `timeout_s`, return the last answer.

    Args:
        ask: makes the request, given how many seconds are left. A session answers after a slice of them at most.

    Raises:
        OverloadedError: too many others wait; for all of `timeout_s`, or for `REFUSED_S` without one.
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
            # Not all at once: those who were refused together would come back together.
            yield Pause(min(pause_s * random.uniform(0.5, 1.0), until - now))  # noqa: S311 - no secret
            pause_s = min(2 * pause_s, MOST_PAUSE_S)
        else:
            if is_there(answer) or (timeout_s is not None and time.monotonic() >= began + timeout_s):
                return answer
            refused_at, pause_s = None, PAUSE_S


class _Search:
    """How long a verb has looked for a process of its session that answers."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._called_at = 0.0
        self._lost_at: float | None = None
        self._pause_s = 0.01

    def begin_call(self, until: float | None) -> float | None:
        """Note that a process is called; return how many seconds are left, None without a limit."""
        self._called_at = time.monotonic()
        return None if until is None else max(0.0, until - self._called_at)

    def pause_after(self, failure: Exception) -> float:
        """Return how long to wait before the next call, after a process that has the session no more.

        Raises:
            SessionLostError, SessionFencedError: it has been looked for long enough.
        """
        now = time.monotonic()
        if self._lost_at is None or now - self._called_at > REACHED_S:
            self._lost_at, self._pause_s = now, 0.01
        if now - self._lost_at > REACH_S:
            if isinstance(failure, SessionFencedError):
                raise failure
            raise SessionLostError(self._session_id, str(failure).strip().splitlines()[0]) from failure
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, 0.5)
        return pause_s


def _is_away(error: RayError) -> bool:
    """Return whether another process of the session may answer: this one has died, or cannot be reached."""
    if not isinstance(error, RayActorError) or isinstance(error, RayTaskError):
        return False
    return not error.actor_init_failed


def _lost(session_id: str, verb: str, error: RayError) -> SessionLostError:
    """Return the error of a call that no other process would answer either."""
    if isinstance(error, RayTaskError):
        return SessionLostError(session_id, f"{verb} failed there: {error.cause!r}")
    if isinstance(error, RayActorError):
        why = "its process cannot start: install this turnwise, and what it needs, on every node"
        return SessionLostError(session_id, f"{why} ({error})")
    return SessionLostError(session_id, f"{type(error).__name__}: {error}")


def _pack(session_id: str, verb: str, *args: Any) -> bytes:
    return pickle.dumps((session_id, verb, *args), pickle.HIGHEST_PROTOCOL)


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
    return _REALMS.get(name) or ClusterClient(namespace, name)
