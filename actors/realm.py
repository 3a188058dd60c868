"""A realm: the sessions of one store in one Ray namespace, and the way to their actors."""

from __future__ import annotations

import hashlib
import pickle
import threading
import time
import weakref
from collections import OrderedDict
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from turnwise.actors.compactor import check_overflow
from turnwise.actors.config import SessionConfig
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.placement import Dedicated
from turnwise.actors.session_actor import SessionActor, open_store
from turnwise.actors.steps import Fetch, Pause, Request
from turnwise.actors.wire import EngineWanted, Refused, StartAnswer
from turnwise.errors import ConfigError, SessionFencedError, SessionLostError
from turnwise.memory.block_cache import BlockCache
from turnwise.memory.store import SessionStore
from turnwise.memory.urls import check_history_url, resolve_url
from turnwise.strategies.compaction import Compaction
from turnwise.strategies.strategy import OverflowStrategy

REACH_S = 60.0
"""How long a verb looks for a session's process, through deaths and restarts, before SessionLostError."""

MAX_CALLS = 1000
"""How many calls one session's process answers at once; each wait and each follower holds one."""

CACHED_SESSIONS = 256
"""Of how many sessions a caller holds the blocks that it has seen."""


_REALMS: weakref.WeakValueDictionary[str, Realm] = weakref.WeakValueDictionary()
"""Those of the managers that are open in this process."""


class Realm:
    """The way from a caller to the sessions of one store in one namespace.

    Pickles as its name, without the store's address or the engine's settings: in another process it finds sessions that
    are live, and those of a manager that is open there.
    """

    def __init__(self, namespace: str, name: str) -> None:
        self.namespace = namespace
        self.name = name
        self._url: str | None = None
        self._history_url: str | None = None
        self._engine: bytes = b""
        self._engine_id = ""
        self._handles: dict[str, Any] = {}
        self._caches: OrderedDict[str, BlockCache] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def of(
        cls,
        namespace: str,
        url: str,
        *,
        history_url: str | None,
        engine: EngineBuilder,
        overflow: OverflowStrategy | None,
        placement: Dedicated,
        config: SessionConfig,
    ) -> Realm:
        """Return the realm of a manager, which can make the actors of its sessions.

        Raises:
            StoreURLError: the URL names no store.
            ConfigError: the engine or the strategy is none, cannot be pickled, or what a request may take is not known.
        """
        if not isinstance(engine, EngineBuilder) or isinstance(engine, type):
            raise ConfigError(
                "engine", type(engine).__name__, "pass an object with build(session), such as EchoEngine()"
            )
        if not isinstance(placement, Dedicated):
            raise ConfigError("placement", placement, "pass Dedicated()")
        if overflow is not None:
            if not isinstance(overflow, OverflowStrategy) or isinstance(overflow, type):
                raise ConfigError("overflow", type(overflow).__name__, "pass an OverflowStrategy, such as Trim()")
            check_overflow(overflow, engine, config)
        url = resolve_url(url)
        realm = cls(namespace, hashlib.sha256(f"{namespace}\n{url}".encode()).hexdigest()[:16])
        realm._url = url
        realm._history_url = None if history_url is None else check_history_url(history_url)
        try:
            realm._engine = cloudpickle.dumps((engine, config, overflow))
        except Exception as error:
            why = f"it cannot be pickled ({error}): hold settings in it and make clients in build()"
            what = f"{type(engine).__name__}, overflow={type(overflow).__name__}"
            raise ConfigError("engine", what, why) from error
        realm._engine_id = hashlib.sha256(realm._engine).hexdigest()
        _REALMS[realm.name] = realm
        return realm

    def __reduce__(self) -> tuple[object, ...]:
        return _find, (self.namespace, self.name)

    def open_store(self) -> SessionStore:
        """Return a store of this process's own."""
        if self._url is None:
            raise SessionLostError("*", "open a SessionManager on its store in this process first")
        return open_store(self._url, self.namespace)

    def cache(self, session_id: str) -> BlockCache:
        """Return what this process has seen of the session's blocks."""
        with self._lock:
            cache = self._caches.setdefault(session_id, BlockCache())
            self._caches.move_to_end(session_id)
            if len(self._caches) > CACHED_SESSIONS:
                self._caches.popitem(last=False)
            return cache

    def actor(self, session_id: str) -> Any:
        """Return the session's actor, and make it if it is not there; does not wait for it."""
        handle = self._handles.get(session_id)
        if handle is None:
            handle = self._handles[session_id] = self._find_actor(session_id)
        return handle

    def warm(self, session_id: str) -> None:
        """Let the session's process start and load, without waiting for it."""
        self.actor(session_id).call.remote(_pack("warm"))

    def ask(self, session_id: str, verb: str, *args: Any, timeout_s: float | None = None) -> Request[Any]:
        """Call one verb of the session's host: through its death, restart and leaving, until it answers.

        So a verb may be carried out twice, and each is made to bear it. This is the one place that turns Ray's
        exceptions into ours.

        Raises:
            TimeoutError: no answer within `timeout_s`.
            SessionLostError: no process of the session could be reached for `REACH_S`.
            TurnwiseError: what the host refused.
        """
        request = _pack(verb, *args)
        began = time.monotonic()
        lost_s: float | None = None
        pause_s = 0.01
        while True:
            left_s = None if timeout_s is None else max(0.0, began + timeout_s - time.monotonic())
            failure: Exception
            try:
                packed: bytes = yield Fetch(self.actor(session_id).call.remote(request), left_s)
            except GetTimeoutError as error:
                raise TimeoutError(f"no answer within {timeout_s} s") from error
            except RayTaskError as error:
                raise SessionLostError(session_id, f"{verb} failed there: {error.cause!r}") from error
            except RayActorError as error:
                if error.actor_init_failed:
                    why = "its process cannot start: install this turnwise, and what it needs, on every node"
                    raise SessionLostError(session_id, f"{why} ({error})") from error
                failure = error
            except RayError as error:
                raise SessionLostError(session_id, f"{type(error).__name__}: {error}") from error
            else:
                answer = pickle.loads(packed)
                if not isinstance(answer, Refused):
                    return answer
                if not isinstance(answer.error, SessionFencedError):
                    raise answer.error
                failure = answer.error  # that process has given the session up; the next one has it
            self._handles.pop(session_id, None)
            now = time.monotonic()
            lost_s = lost_s or now
            if now - lost_s > REACH_S:
                if isinstance(failure, SessionFencedError):
                    raise failure
                raise SessionLostError(session_id, str(failure).strip().splitlines()[0]) from failure
            yield Pause(pause_s)
            pause_s = min(2 * pause_s, 0.5)

    def start(self, session_id: str, prompts: tuple[Any, ...], settings: dict[str, Any]) -> Request[StartAnswer]:
        """Ask for a run with this realm's engine; sends the engine first where the session has another."""
        started: StartAnswer = yield from self._equipped(
            session_id, "start", prompts, settings, self.cache(session_id).held
        )
        return started

    def compact(self, session_id: str, *, explain: bool) -> Request[Compaction | None]:
        """Ask for a compaction with this realm's strategy."""
        found: tuple[Compaction | None] = yield from self._equipped(session_id, "compact", explain)
        return found[0]

    def _equipped(self, session_id: str, verb: str, *args: Any) -> Request[Any]:
        """Call a verb that works with an engine and a strategy: this realm's, which are sent if it has others.

        Where no manager is open in this process, those that the session has.
        """
        while True:
            answer = yield from self.ask(session_id, verb, self._engine_id, *args)
            if not isinstance(answer, EngineWanted):
                return answer
            yield from self.ask(session_id, "adopt", self._engine_id, self._engine)

    def _find_actor(self, session_id: str) -> Any:
        name = f"turnwise/{self.name}/{session_id}"
        if self._url is None:
            try:
                return ray.get_actor(name, namespace=self.namespace)
            except ValueError as error:
                why = "no process of it is live: open a SessionManager on its store in this process first"
                raise SessionLostError(session_id, why) from error
        return (
            ray.remote(SessionActor)
            .options(
                name=name,
                namespace=self.namespace,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=-1,
                max_task_retries=-1,
                max_concurrency=MAX_CALLS,
            )
            .remote(session_id, (self._url, self._history_url), self.namespace, self._engine_id, self._engine)
        )


def _pack(verb: str, *args: Any) -> bytes:
    return pickle.dumps((verb, *args), pickle.HIGHEST_PROTOCOL)


def _find(namespace: str, name: str) -> Realm:
    return _REALMS.get(name) or Realm(namespace, name)
