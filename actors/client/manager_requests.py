"""`ManagerRequests`: the requests that both session managers share, with their checks of user and access."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from turnwise.actors.client.arguments import (
    AgentName,
    EngineName,
    Folder,
    Format,
    IdempotencyKey,
    Instructions,
    Lifetime,
    Limit,
    MemoryUseArg,
    Model,
    Params,
    ParentRun,
    RunId,
    SessionId,
    Text,
    Time,
    Title,
    UserId,
    checked,
    json_object,
    named,
)
from turnwise.actors.client.cluster_client import ClusterClient, HistoryArgument, StoreArgument
from turnwise.actors.client.event_sinks import EventSink, Sink
from turnwise.actors.client.expiry import sweep
from turnwise.actors.client.hosts import find_hosts
from turnwise.actors.client.importing import read_conversation, send_conversation
from turnwise.actors.client.requests import AwaitStep, Request
from turnwise.actors.client.subscriptions import EventFeed, Kinds
from turnwise.actors.cluster.nodes import check_files, check_folders
from turnwise.actors.cluster.placement import Dedicated, Packed, Placement
from turnwise.actors.cluster.ray_runtime import connect, this_ray, will_start
from turnwise.actors.cluster.shared_actors.store_actor import is_there
from turnwise.actors.cluster.wire import HostInfo, SessionRef
from turnwise.actors.inference.engine import EngineBuilder, Selective, check_taken
from turnwise.actors.inference.named_engines import MissingEngine, NamedEngines, as_engine, engine_named
from turnwise.actors.inference.observing import Telemetry
from turnwise.actors.memory.attached import Eraser
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import (
    CorruptRecordError,
    InvalidInputError,
    KeyMissingError,
    ManagerClosedError,
    NotFoundError,
    ReadOnlyStoreError,
    RunNotFoundError,
    SessionExistsError,
    SessionNotFoundError,
    SessionOwnerError,
    StoreClosedError,
    WrongKeyError,
    shown,
)
from turnwise.memory.archive.expiry import Swept
from turnwise.memory.conversation.frozen_json import FrozenDict, freeze
from turnwise.memory.conversation.ids import new_id
from turnwise.memory.conversation.memory_use import memory_use
from turnwise.memory.conversation.model_params import merged
from turnwise.memory.conversation.prompts import takes_all
from turnwise.memory.conversation.runs import RunRecord, RunState
from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey, SessionRecord, SessionStatus
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.longterm.base import LongTermMemory, Scope, is_read_only
from turnwise.memory.longterm.deletion import Erasure
from turnwise.memory.longterm.deletion_report import Forgotten
from turnwise.memory.stores.base import Page, SessionOrder, SessionStore
from turnwise.memory.stores.encrypted.records import check_session, is_sealed
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.searching import SessionFilter, find_runs, find_sessions
from turnwise.memory.stores.sharing import rivals
from turnwise.memory.working.memory import WorkingMemory
from turnwise.strategies.strategy import OverflowStrategy

DEFAULT_STORE = "sqlite:///turnwise.db"

_PAGE = 100

IfExists = Literal["refuse", "update", "keep"]
"""What `open` does if the session exists and has another title or other metadata than those given."""

ONCE = "of run_once"
"""What errors call a session of `run_once`."""

ONCE_STORE = "memory://turnwise-once"
"""Where the runs of `run_once` are, as long as they are there."""

ONCE_TTL_S, ONCE_SWEEP_S = 60.0, 10.0
"""How long such a run can be read after its last change, and how often those that are older are looked for."""

_log = logging.getLogger(__name__)

_RIVALS = (
    "this Ray, at %s, and those at %s have %r open: each takes the session from the other when it changes it, which"
    " interrupts the session's runs; connect all processes to one Ray, by RAY_ADDRESS"
)


class ManagerRequests:
    """Common base of both managers: a cluster client, this process's store, and the requests to them."""

    _starts_at_once: ClassVar[bool]
    """Whether a new manager connects to Ray; otherwise its first call does."""

    @named
    def __init__(
        self,
        store: StoreArgument = DEFAULT_STORE,
        *,
        engine: EngineBuilder | Mapping[str, EngineBuilder],
        memory: Sequence[LongTermMemory] = (),
        working_memory: WorkingMemory | None = None,
        overflow: OverflowStrategy | Literal["default"] | None = "default",
        placement: Placement = Dedicated(),
        config: SessionConfig | None = None,
        history_store: HistoryArgument = None,
        namespace: str = "turnwise",
        encryption: Encryption | None = None,
        read_only: bool = False,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._is_encrypted = encryption is not None
        self._engine = engine
        config = config or SessionConfig()
        config = replace(config, telemetry=telemetry) if telemetry else config
        self._config = config
        self._max_metadata_bytes = config.max_metadata_bytes
        self._client = ClusterClient.of(
            namespace,
            store,
            history_store=history_store,
            encryption=encryption,
            engine=engine,
            memory=memory,
            working_memory=working_memory,
            overflow=overflow,
            placement=placement,
            config=config,
            read_only=read_only,
        )
        self._make_once = partial(_once_client, namespace, engine, config, self._client)
        self._once: ClusterClient | None = None
        """Reaches the sessions of `run_once`; made at first use."""
        self._swept_at = -math.inf
        """When sessions of `run_once` were last deleted, by the monotonic clock."""
        self._subscriptions: Any = []
        """Those to close with the manager."""
        self._store: SessionStore | None = None
        self._knows_rivals = False
        self._check_files = partial(check_files, store, history_store, working_memory)
        self._check_folders = partial(check_folders, store, history_store)
        self._store_now: tuple[float, float] | None = None
        """The store's time and this process's monotonic time, both read when the store's clock was last asked."""
        if self._starts_at_once:
            self._start()

    @property
    def is_read_only(self) -> bool:
        """Whether it was made with `read_only=True`."""
        return self._client.read_only

    @property
    def config(self) -> SessionConfig:
        """How its sessions behave."""
        return self._config

    @property
    def engines(self) -> Mapping[str | None, EngineBuilder]:
        """Its engines by name; a single engine without a name has None."""
        builder = as_engine(self._engine)
        return dict(builder.engines.items()) if isinstance(builder, NamedEngines) else {None: builder}

    def _check_engine(self, name: str | None, session_id: str) -> EngineBuilder:
        """Return the engine of this name. Raise ConfigError, which names the session, if there is none."""
        builder = engine_named(as_engine(self._engine), name)
        if isinstance(builder, MissingEngine):
            raise builder.error(session_id)
        return builder

    def _start(self) -> None:
        """Connect to Ray or start it, and start the processes of hosts and memories. Blocks; may be repeated."""
        if not self._client.read_only:
            if will_start():  # otherwise, the files may be on another node
                self._check_folders()
            connect()
            self._check_files()
        self._own_store()
        if not self._client.read_only:
            self._client.warm_up()

    def _own_store(self) -> SessionStore:
        """Return the store that this manager uses; after `close` it stays the closed one."""
        if self._store is None:
            self._store = self._client.stores[0]
        return self._store

    def _consult(self, verb: str, *args: Any, **kwargs: Any) -> Request[Any]:
        return self._ask(lambda store: getattr(store, verb)(*args, **kwargs))

    def _ask(self, ask: Callable[[SessionStore], Awaitable[Any]]) -> Request[Any]:
        """Run a coroutine of the store; the first time, also warn if another Ray has the store open."""
        store = self._own_store()
        try:
            if not self._knows_rivals:
                others = yield AwaitStep(partial(rivals, store))
                self._knows_rivals = True
                if others:
                    _log.warning(_RIVALS, this_ray().address, ", ".join(others), store)
            return (yield AwaitStep(partial(ask, store)))
        except StoreClosedError as error:
            if self._client.was_closed:
                raise ManagerClosedError(error.store) from None
            raise

    @checked
    def _open(
        self,
        session_id: SessionId | None,
        user_id: UserId | None,
        agent: AgentName | None,
        metadata: Any,
        memory: MemoryUseArg,
        *,
        ttl_s: Lifetime | None,
        model: Model | None,
        params: Params | None,
        engine: EngineName | None,
        title: Title | None,
        if_exists: IfExists,
    ) -> Request[SessionRecord]:
        user_id = DEFAULT_USER if user_id is None else user_id
        is_fresh = session_id is None
        if is_fresh:
            self._check_writes("*", "open")
        session_id = session_id or new_id()
        given = {} if metadata is None else json_object("metadata", metadata, self._max_metadata_bytes)
        frozen: FrozenDict = freeze(given)
        if is_sealed(frozen):  # such a session could not be listed
            raise InvalidInputError("metadata", shown(given), "it looks like encrypted metadata: choose other names")
        asked = merged({}, params or {})
        check_taken(self._check_engine(engine, session_id), model, asked)
        now = yield from self._now()
        fresh = SessionRecord(
            session_id=session_id,
            user_id=user_id,
            agent=agent,
            metadata=frozen,
            title=title or None,
            created_at=now,
            updated_at=now,
            memory=memory_use(memory),
            ttl_s=ttl_s,
            model=model,
            engine=engine,
            params=asked,
        )
        found = None if is_fresh else (yield from self._find(session_id, user_id))
        if found is None and self._client.read_only:
            raise SessionNotFoundError(session_id)
        if found is None:
            try:
                made: SessionRecord = yield from self._consult("create", fresh)
                self._client.warm(SessionRef.of(made))
                return made
            except SessionExistsError:  # another caller has just created it
                found = yield from self._find(session_id, user_id)
                if found is None:
                    raise  # and deleted
        if agent not in (None, found.agent):
            raise SessionOwnerError(session_id, "agent", agent)
        if if_exists == "keep":
            return found
        return (yield from self._adapt(found, title, frozen, engine, if_exists))

    def _adapt(
        self,
        found: SessionRecord,
        title: str | None,
        metadata: FrozenDict,
        engine: str | None,
        if_exists: IfExists,
    ) -> Request[SessionRecord]:
        """Return the row of an existing session that was opened with this title, metadata and engine.

        Raises:
            InvalidInputError: `if_exists` is "refuse", and the session has another title, engine or other metadata.
        """
        own = found.metadata
        names = [name for name, value in metadata.items() if name not in own or own[name] != value]
        is_renamed = title is not None and (title or None) != found.title
        is_moved = engine not in (None, found.engine)
        if not names and not is_renamed and not is_moved:
            return found
        if if_exists == "refuse":
            field, value = ("metadata", metadata[names[0]]) if names else ("title", title)
            other = f"metadata {shown(names)}" if names else f"title {shown(found.title)}"
            if not names and not is_renamed:
                field, value, other = "engine", engine, f"engine {shown(found.engine)}"
            why = f"session {found.session_id!r} exists with another {other}"
            raise InvalidInputError(field, shown(value), f"{why}: pass if_exists='update' to change it, or 'keep'")
        ref = SessionRef.of(found)
        if is_moved:
            yield from self._client.ask(ref, "use_engine", engine, with_engine=True)
            found = replace(found, engine=engine)
        if not names and not is_renamed:
            return found
        changed: SessionRecord = yield from self._client.ask(ref, "update", title, metadata, True)
        return replace(found, title=changed.title, metadata=changed.metadata)

    @checked
    def _import_messages(
        self,
        session_id: SessionId,
        messages: Any,
        format: Format | None,
        *,
        system: Instructions | None,
        idempotency_key: IdempotencyKey | None,
        user_id: UserId | None,
        agent: AgentName | None,
        metadata: Any,
        title: Title | None,
        engine: EngineName | None,
        memory: MemoryUseArg,
    ) -> Request[SessionRecord]:
        self._check_writes(session_id, "import_messages")
        # As its session will, so that none is created for a conversation that cannot be stored.
        builder = self._check_engine(engine, session_id)
        refuses = builder.refuses if isinstance(builder, Selective) else takes_all
        checks: dict[str, Any] = {"max_bytes": self._config.max_prompt_bytes, "refuses": refuses}
        conversation = yield from read_conversation(messages, format, system=system, key=idempotency_key, **checks)
        own: dict[str, Any] = {"ttl_s": None, "model": None, "params": None, "if_exists": "refuse"}
        found: SessionRecord = yield from self._open(
            session_id, user_id, agent, metadata, True, engine=engine, title=title, **own
        )
        yield from send_conversation(partial(self._client.ask, SessionRef.of(found)), conversation, None, memory)
        return found

    @checked
    def _open_once(
        self, user_id: UserId | None, agent: AgentName | None, metadata: Any, engine: EngineName | None
    ) -> Request[tuple[ClusterClient, SessionRef, str | None]]:
        """Create a session that is kept in memory only; return what `Session` takes."""
        self._check_writes("*", "run_once")
        given = {} if metadata is None else json_object("metadata", metadata, self._max_metadata_bytes)
        self._check_engine(engine, ONCE)
        client = yield from self._client_once()
        store = client.stores[0]
        if time.monotonic() - self._swept_at > ONCE_SWEEP_S:
            self._swept_at = time.monotonic()
            yield from sweep(client, store, None, memory=False)
        now = yield AwaitStep(store.now)
        times = {"created_at": now, "updated_at": now, "ttl_s": ONCE_TTL_S}
        owner: dict[str, Any] = {"user_id": user_id or DEFAULT_USER, "agent": agent, "metadata": freeze(given)}
        fresh = SessionRecord(session_id=new_id(), memory="off", engine=engine, **owner, **times)
        made: SessionRecord = yield AwaitStep(partial(store.create, fresh))
        return client, SessionRef.of(made), agent

    def _client_once(self) -> Request[ClusterClient]:
        """Return the client of the sessions of `run_once`."""
        client: ClusterClient = self._once or (yield AwaitStep(partial(asyncio.to_thread, self._make_once)))
        self._once = client
        return client

    def _now(self) -> Request[float]:
        """Return the store's time; the store is asked once, later calls add the time that has passed."""
        if self._store_now is None:
            now = yield from self._consult("now")
            self._store_now = now, time.monotonic()
        then, began = self._store_now
        return then + (time.monotonic() - began)

    def _find(self, session_id: str, user_id: str) -> Request[SessionRecord | None]:
        """Return the stored record of a user's session; None if the user has no such session."""
        try:
            return check_session((yield from self._consult("get", SessionKey(session_id, user_id))))
        except SessionNotFoundError:
            return None

    @checked
    def _get(self, session_id: SessionId, user_id: UserId | None) -> Request[SessionRecord]:
        found = yield from self._find(session_id, DEFAULT_USER if user_id is None else user_id)
        if found is None:
            raise SessionNotFoundError(session_id)
        return found

    @checked
    def _execution(self, run_id: RunId, user_id: UserId | None) -> Request[tuple[ClusterClient, RunRecord]]:
        user_id = DEFAULT_USER if user_id is None else user_id
        missing = RunNotFoundError(run_id, "the store")
        try:
            found: RunRecord = yield from self._consult("run", run_id)
        except (KeyMissingError, WrongKeyError) as error:
            if user_id == error.user_id:
                raise
            raise missing from None
        except RunNotFoundError:
            if once := (yield from self._execution_once(run_id, user_id)):
                return once
            raise
        if found.user_id != user_id:
            raise missing
        check_session((yield from self._consult("get", found.session_key)))
        return self._client, found

    def _execution_once(self, run_id: str, user_id: str) -> Request[tuple[ClusterClient, RunRecord] | None]:
        """Return a run of `run_once`, by any manager of this Ray, as long as it is there."""
        if self._client.read_only or not (
            yield AwaitStep(partial(asyncio.to_thread, is_there, ONCE_STORE, self._client.namespace))
        ):
            return None
        client = yield from self._client_once()
        store = client.stores[0]
        try:
            found: RunRecord = yield AwaitStep(partial(store.run, run_id))
        except NotFoundError:
            return None
        return (client, found) if found.user_id == user_id else None

    @checked
    def _list(
        self,
        user_id: UserId | None,
        agent: AgentName | None,
        status: SessionStatus | None,
        *,
        order_by: SessionOrder,
        cursor: Text | None,
        limit: Limit,
        title: Text | None,
        metadata: Any,
        since: Time | None,
        until: Time | None,
    ) -> Request[Page[SessionRecord]]:
        query: dict[str, Any] = {"agent": agent, "status": status, "order_by": order_by, "limit": limit}
        names = None if metadata is None else freeze(json_object("metadata", metadata, self._max_metadata_bytes))
        wanted = SessionFilter(title=title, metadata=names, since=since, until=until)
        if wanted.is_empty:
            return self._matching("query", user_id, cursor=cursor, **query)
        return self._search(user_id, wanted, cursor=cursor, **query)

    def _search(self, user_id: str | None, wanted: SessionFilter, **query: Any) -> Request[Page[SessionRecord]]:
        found = yield from self._ask(lambda store: find_sessions(store, wanted, user_id=user_id, **query))
        return self._shown(found)

    @checked
    def _subscribe(
        self,
        on_event: Sink,
        session_id: SessionId | None,
        user_id: UserId | None,
        agent: AgentName | None,
        *,
        kinds: Kinds | None,
        cursor: Text | None,
    ) -> Request[tuple[EventFeed, EventSink]]:
        found = None if session_id is None else (yield from self._get(session_id, user_id))
        if found and agent not in (None, found.agent):
            raise SessionOwnerError(found.session_id, "agent", agent)
        query = {"user_id": user_id, "agent": agent}
        now = yield from self._now()
        return EventFeed(
            self._client, query, session=found.key if found else None, kinds=kinds, at=now, cursor=cursor
        ), on_event

    @checked
    def _runs(
        self,
        user_id: UserId | None,
        agent: AgentName | None,
        state: RunState | None,
        *,
        parent: ParentRun | None,
        since: Time | None,
        cursor: Text | None,
        limit: Limit,
    ) -> Request[Page[RunRecord]]:
        query: dict[str, Any] = {"user_id": user_id, "agent": agent, "cursor": cursor, "limit": limit, "since": since}
        states = None if state is None else (state,)
        runs: Page[RunRecord] = yield from self._ask(
            lambda store: find_runs(store, states=states, parent=parent, **query)
        )
        return runs

    @checked
    def _count(self, user_id: UserId | None, agent: AgentName | None, status: SessionStatus | None) -> Request[int]:
        return self._matching("count", user_id, agent=agent, status=status)

    def _check_store(self) -> Request[None]:
        yield from self._consult("now" if self._client.read_only else "try_writing")

    @checked
    def _usage(self, user_id: UserId | None, agent: AgentName | None) -> Request[Usage]:
        return self._matching("usage", user_id, agent=agent)

    def _matching(self, verb: str, user_id: str | None, **query: Any) -> Request[Any]:
        found = yield from self._consult(verb, user_id=user_id, **query)
        return self._shown(found) if isinstance(found, Page) else found

    def _shown(self, found: Page[SessionRecord]) -> Page[SessionRecord]:
        """Return the page; log which records cannot be read."""
        if not self._is_encrypted:
            for session in found:
                check_session(session)
        if found.unreadable:
            names = [f"{key.session_id} of {key.user_id}" for key in found.unreadable]
            _log.warning("the records of sessions %s cannot be read; they can be deleted", names)
        return found

    def _check_writes(self, session_id: str, verb: str) -> None:
        if self._client.read_only:
            raise ReadOnlyStoreError(session_id, verb)

    @checked
    def _forget(self, user_id: UserId, verify: bool) -> Request[Forgotten]:
        self._check_writes("*", "forget")
        done = Forgotten()
        tried: set[SessionKey] = set()
        while True:
            page = yield from self._consult("query", user_id=user_id, limit=_PAGE)
            keys = [*(session.key for session in page), *page.unreadable]
            if not keys:
                break
            if tried.issuperset(keys):  # deleting them had no effect: their stored ids are corrupt
                names = [key.session_id for key in keys]
                raise CorruptRecordError(f"sessions {names}", "they cannot be deleted by their ids")
            tried.update(keys)
            for key in keys:
                done += yield from self._delete(SessionRef(key))
        scope = Scope(user_id=user_id)
        items: dict[str, int] = {}
        erased: dict[str, Erasure] = {}
        for slot in self._client.memories:
            if is_read_only(slot.memory):
                continue
            if verify and isinstance(slot.memory, Eraser):
                erased[slot.name] = yield AwaitStep(partial(slot.memory.erase, scope))
                items[slot.name] = erased[slot.name].items
            else:
                items[slot.name] = yield AwaitStep(partial(slot.memory.forget, scope))
        notes = 0
        if working := self._client.working_memory:
            notes = yield AwaitStep(partial(working.forget, scope))
        return done + Forgotten(items=items, erased=erased, notes=notes, was_checked=verify)

    def _delete(self, ref: SessionRef) -> Request[Forgotten]:
        """Delete a session: by its process if it is live, else from the store, which refuses any later process."""
        try:
            if self._client.is_live(ref):
                try:
                    yield from self._client.end(ref)
                    return (yield from self._client.delete(ref, memory=False, verify=False))
                except (KeyMissingError, CorruptRecordError):
                    pass  # its process cannot read it; deleting it from the store needs no reading
            if history := self._client.stores[1]:
                yield AwaitStep(partial(history.delete, ref.key))
            turns: int = yield from self._consult("delete", ref.key)
        except SessionNotFoundError:
            return Forgotten()
        finally:
            self._client.drop(ref)
        return Forgotten(sessions=1, turns=turns)

    @checked
    def _sweep(self, archive: Folder | None, memory: bool) -> Request[Swept]:
        self._check_writes("*", "sweep")
        return (yield from sweep(self._client, self._own_store(), Path(archive) if archive else None, memory))

    def _hosts(self) -> Request[list[HostInfo]]:
        self._own_store()
        found: list[HostInfo] = yield AwaitStep(partial(find_hosts, self._client.namespace, self._client.name))
        return found

    def _close(self) -> Request[None]:
        if self._once:
            yield AwaitStep(self._once.close)
        yield AwaitStep(self._client.close)


def _once_client(
    namespace: str, engine: EngineBuilder | Mapping[str, EngineBuilder], config: SessionConfig, client: ClusterClient
) -> ClusterClient:
    """Return a client of sessions that are kept in memory only, without memories. Starts their process."""
    made = ClusterClient.of(
        namespace,
        ONCE_STORE,
        history_store=None,
        encryption=None,
        engine=engine,
        memory=(),
        working_memory=None,
        overflow=None,
        placement=Packed(hosts=1),
        config=config,
        read_only=False,
    )
    made.portal = client.portal
    made.warm_up()
    return made


def engine_of(manager: ManagerRequests, name: str | None, session_id: str) -> EngineBuilder:
    """Return the engine, or the engines, of a manager's sessions.

    Raises:
        ConfigError: there is none of this name; the error names the session.
    """
    manager._check_engine(name, session_id)  # noqa: SLF001 - of the same file
    return as_engine(manager._engine)  # noqa: SLF001
