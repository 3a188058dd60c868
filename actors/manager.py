"""Session managers: the door to the sessions of one store."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import ray

from turnwise.actors.config import SessionConfig
from turnwise.actors.execution import AsyncExecutionHandle, ExecutionHandle
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.placement import Dedicated
from turnwise.actors.realm import Realm
from turnwise.actors.session import AsyncSession, Session
from turnwise.actors.steps import Consult, Portal, Request, carry_out, carry_out_async
from turnwise.errors import ConfigError, SessionExistsError, SessionOwnerError
from turnwise.memory.frozen import FrozenDict, freeze
from turnwise.memory.ids import check_id, new_id
from turnwise.memory.runs import RunRecord
from turnwise.memory.sessions import SessionRecord, SessionStatus
from turnwise.memory.store import Page, SessionOrder, SessionStore
from turnwise.memory.usage import Usage
from turnwise.strategies.strategy import OverflowStrategy

DEFAULT_STORE = "sqlite:///turnwise.db"
DEFAULT_USER = "default"


class _Manager:
    """What both managers are: a realm, a store of this process's own, and the requests to it."""

    def __init__(
        self,
        store: str = DEFAULT_STORE,
        *,
        engine: EngineBuilder,
        overflow: OverflowStrategy | None = None,
        placement: Dedicated = Dedicated(),
        config: SessionConfig = SessionConfig(),
        history_store: str | None = None,
        namespace: str = "turnwise",
    ) -> None:
        self._realm = Realm.of(
            namespace,
            store,
            history_url=history_store,
            engine=engine,
            overflow=overflow,
            placement=placement,
            config=config,
        )
        if not ray.is_initialized():
            ray.init(logging_level=logging.WARNING)
        if store.startswith("sqlite") and len([node for node in ray.nodes() if node["Alive"]]) > 1:
            why = "a SQLite file belongs to one node and this cluster has several; use postgresql://user@host/name"
            raise ConfigError("store", store, why)
        self._store: SessionStore | None = None

    def _consult(self, verb: str, *args: Any, **kwargs: Any) -> Request[Any]:
        if self._store is None:
            self._store = self._realm.open_store()
        method = getattr(self._store, verb)
        return (yield Consult(lambda: method(*args, **kwargs)))

    def _open(
        self, session_id: str | None, user_id: str, agent: str | None, metadata: Mapping[str, Any] | None
    ) -> Request[SessionRecord]:
        session_id = new_id() if session_id is None else check_id("session id", session_id)
        check_id("user id", user_id)
        if agent is not None:
            check_id("agent", agent)
        try:
            frozen: FrozenDict = freeze(metadata or {})
        except TypeError as error:
            raise ConfigError("metadata", metadata, str(error)) from error
        now = time.time()
        fresh = SessionRecord(
            session_id=session_id, user_id=user_id, agent=agent, metadata=frozen, created_at=now, updated_at=now
        )
        try:
            found: SessionRecord = yield from self._consult("create", fresh)
        except SessionExistsError:
            found = yield from self._consult("get", session_id)
        if user_id not in (DEFAULT_USER, found.user_id):
            raise SessionOwnerError(session_id, "user", user_id)
        if agent not in (None, found.agent):
            raise SessionOwnerError(session_id, "agent", agent)
        self._realm.warm(session_id)
        return found

    def _get(self, session_id: str) -> Request[SessionRecord]:
        found: SessionRecord = yield from self._consult("get", check_id("session id", session_id))
        return found

    def _execution(self, run_id: str) -> Request[RunRecord]:
        found: RunRecord = yield from self._consult("run", check_id("run id", run_id))
        return found

    def _close(self) -> Request[None]:
        if self._store is not None:
            yield from self._consult("close")


class SessionManager(_Manager):
    """Opens, finds and lists sessions. Safe to use from many threads.

    Starts a local Ray, or joins the cluster at hand, if this process has not. Sessions and their runs live on the
    cluster: they go on when the manager is closed or its process ends, until they are idle.

    Args:
        store: where sessions are kept: `sqlite:///path`, `postgresql://...`, or `memory://name` for as long as the
            Ray cluster lives.
        engine: answers the turns. Live sessions take it over from other managers with their next run.
        overflow: what is done when a conversation outgrows the model's window: `Trim()`, `DeleteOldest(...)`,
            `Summarize(...)`, `FlushToMemory(...)` or your own. Without one the provider refuses what is too long.
        placement: which actor hosts which session.
        config: how sessions behave.
        history_store: where events are kept, if not with the conversations: `sqlite:///path` or `postgresql://...`.
            They get there soon after they are stored; one that is away delays no run. Live sessions keep the one that
            they started with.
        namespace: the Ray namespace of the actors; managers of the same store and namespace share sessions.

    Raises:
        StoreURLError, ConfigError: an argument cannot be used.
    """

    def __init__(
        self,
        store: str = DEFAULT_STORE,
        *,
        engine: EngineBuilder,
        overflow: OverflowStrategy | None = None,
        placement: Dedicated = Dedicated(),
        config: SessionConfig = SessionConfig(),
        history_store: str | None = None,
        namespace: str = "turnwise",
    ) -> None:
        super().__init__(
            store,
            engine=engine,
            overflow=overflow,
            placement=placement,
            config=config,
            history_store=history_store,
            namespace=namespace,
        )
        self._portal = Portal()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(
        self,
        session_id: str | None = None,
        *,
        user_id: str = DEFAULT_USER,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Session:
        """Return the session of this id, created if there is none; without an id, a fresh one.

        The session is in the store on return. Its process may still be starting: the first verb waits for it.

        Args:
            user_id: who it belongs to; the default opens anybody's.
            agent: likewise, which agent.
            metadata: a JSON object, kept with a session that is created.

        Raises:
            InvalidIdError: an id cannot be used.
            SessionOwnerError: the session belongs to another user or agent.
        """
        found = carry_out(self._open(session_id, user_id, agent, metadata), self._portal)
        return Session(self._realm, found.session_id, found.user_id, found.agent)

    def get(self, session_id: str) -> Session:
        """Return the session of this id.

        Raises:
            SessionNotFoundError: there is none.
        """
        found = carry_out(self._get(session_id), self._portal)
        return Session(self._realm, found.session_id, found.user_id, found.agent)

    def list(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        status: SessionStatus | None = None,
        order_by: SessionOrder = "created_at",
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[SessionRecord]:
        """Return sessions that match all filters given, newest first; pass the page's `cursor` for the next."""
        filters = {"user_id": user_id, "agent": agent, "status": status}
        request = self._consult("query", order_by=order_by, cursor=cursor, limit=limit, **filters)
        page: Page[SessionRecord] = carry_out(request, self._portal)
        return page

    def count(
        self, *, user_id: str | None = None, agent: str | None = None, status: SessionStatus | None = None
    ) -> int:
        """Return how many sessions match all filters given."""
        return int(carry_out(self._consult("count", user_id=user_id, agent=agent, status=status), self._portal))

    def usage(self, *, user_id: str | None = None, agent: str | None = None) -> Usage:
        """Return what the runs of all sessions that match have spent, up to their last commits."""
        spent: Usage = carry_out(self._consult("usage", user_id=user_id, agent=agent), self._portal)
        return spent

    def execution(self, run_id: str) -> ExecutionHandle:
        """Return the handle of a run of any session.

        Raises:
            RunNotFoundError: there is none of this id.
        """
        found = carry_out(self._execution(run_id), self._portal)
        return ExecutionHandle(self._realm, found.session_id, run_id, found.turn_index)

    def close(self) -> None:
        """Let go of the store. Sessions and their runs go on. Closing twice is fine."""
        carry_out(self._close(), self._portal)
        self._portal.close()


class AsyncSessionManager(_Manager):
    """`SessionManager` with its verbs as coroutines. Use it on one event loop."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(
        self,
        session_id: str | None = None,
        *,
        user_id: str = DEFAULT_USER,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> AsyncSession:
        """See `SessionManager.open`."""
        found = await carry_out_async(self._open(session_id, user_id, agent, metadata))
        return AsyncSession(self._realm, found.session_id, found.user_id, found.agent)

    async def get(self, session_id: str) -> AsyncSession:
        """See `SessionManager.get`."""
        found = await carry_out_async(self._get(session_id))
        return AsyncSession(self._realm, found.session_id, found.user_id, found.agent)

    async def list(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        status: SessionStatus | None = None,
        order_by: SessionOrder = "created_at",
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[SessionRecord]:
        """See `SessionManager.list`."""
        filters = {"user_id": user_id, "agent": agent, "status": status}
        request = self._consult("query", order_by=order_by, cursor=cursor, limit=limit, **filters)
        page: Page[SessionRecord] = await carry_out_async(request)
        return page

    async def count(
        self, *, user_id: str | None = None, agent: str | None = None, status: SessionStatus | None = None
    ) -> int:
        """See `SessionManager.count`."""
        return int(await carry_out_async(self._consult("count", user_id=user_id, agent=agent, status=status)))

    async def usage(self, *, user_id: str | None = None, agent: str | None = None) -> Usage:
        """See `SessionManager.usage`."""
        spent: Usage = await carry_out_async(self._consult("usage", user_id=user_id, agent=agent))
        return spent

    async def execution(self, run_id: str) -> AsyncExecutionHandle:
        """See `SessionManager.execution`."""
        found = await carry_out_async(self._execution(run_id))
        return AsyncExecutionHandle(self._realm, found.session_id, run_id, found.turn_index)

    async def close(self) -> None:
        """See `SessionManager.close`."""
        await carry_out_async(self._close())
