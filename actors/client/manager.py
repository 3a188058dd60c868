"""Session managers: the way in to the sessions of one store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from turnwise.actors.client.execution import AsyncExecutionHandle, ExecutionHandle
from turnwise.actors.client.manager_requests import DEFAULT_STORE, ManagerRequests
from turnwise.actors.client.requests import Request, Result, carry_out, carry_out_async
from turnwise.actors.client.session import AsyncSession, Session
from turnwise.actors.cluster.placement import Dedicated, Placement
from turnwise.actors.cluster.ray_runtime import interruptible
from turnwise.actors.cluster.wire import SessionRef
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.session.config import SessionConfig
from turnwise.memory.archive.expiry import Swept
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.model_params import ModelParams
from turnwise.memory.conversation.sessions import SessionRecord, SessionStatus
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.longterm.base import LongTermMemory
from turnwise.memory.longterm.deletion import Verify
from turnwise.memory.longterm.deletion_report import Forgotten
from turnwise.memory.stores.base import Page, SessionOrder
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.working.memory import WorkingMemory
from turnwise.strategies.strategy import OverflowStrategy


class SessionManager(ManagerRequests):
    """Opens, finds and lists sessions. Safe to use from many threads.

    A verb whose argument has the wrong type, or is out of its range, raises InvalidInputError, which names the
    argument, and does nothing.

    Joins the Ray at hand, if this process has not; starts one if there is none. Sessions and their runs live there:
    they go on when the manager is closed, until they are idle, and when its process ends, if Ray does not end with it.
    One that the manager started does, which is logged at INFO; a cluster, or `ray start --head`, does not.

    Args:
        store: where sessions are kept: `sqlite:///path`, `postgresql://...`, `redis://...` (see `RedisStore` for what
            it has to be set to), the URL of another package's store, or `memory://name` for as long as the Ray cluster
            lives.
        engine: answers the turns. Live sessions take it over from other managers with their next run.
        memory: long-term memories, each in an actor that all sessions share. Before a run they are asked what bears on
            its prompt; behind it those that may be written are given its turn. They travel by pickle, so they hold
            settings and open files where they live. See `SessionConfig.memory`.
        working_memory: a scratchpad that stands in every request.
        overflow: what is done when a conversation outgrows the model's window: `Trim()`, `DeleteOldest(...)`,
            `Summarize(...)`, `FlushToMemory(...)` or your own. Without one the provider refuses what is too long.
        placement: which actor hosts which session.
        config: how sessions behave; `SessionConfig()` if left out, with what the environment says at that moment.
        history_store: where events are kept, if not with the conversations: `sqlite:///path` or `postgresql://...`.
            They get there soon after they are stored; one that is away delays no run. Live sessions keep the one that
            they started with.
        namespace: the Ray namespace of the actors; managers of the same store and namespace share sessions.
        enforce_user: every verb of this manager has to say for whom it is, by `user_id`, and reaches what is that
            user's, nothing else: an id of another's session or run is as good as one that does not exist. Ids of
            sessions are each user's own, so two users may both have a session "chat"; a session that was made without
            `enforce_user` keeps its id for its own user. What a verb returns is a capability: whoever holds a session
            or a handle may use it, in any process.
        encryption: the keys under which conversations and events are stored; see `EncryptedStore` for what of them
            stays readable. Long-term and working memories are not encrypted, since they look for words in what they
            keep. A store is encrypted from its first session on, or not at all; of a user without a key, verbs raise
            KeyMissingError, but `list` and `forget`.
        read_only: reads only, beside the Ray that has the store: sessions that are live on a Ray that this process has
            joined are asked, all others are read from the store. It starts no Ray, and makes and migrates no tables.
            What would change something is a ReadOnlyStoreError.

    Raises:
        StoreURLError, ConfigError: an argument cannot be used; or another Ray has the SQLite file of the store open.
    """

    def __init__(
        self,
        store: str = DEFAULT_STORE,
        *,
        engine: EngineBuilder,
        memory: Sequence[LongTermMemory] = (),
        working_memory: WorkingMemory | None = None,
        overflow: OverflowStrategy | None = None,
        placement: Placement = Dedicated(),
        config: SessionConfig | None = None,
        history_store: str | None = None,
        namespace: str = "turnwise",
        enforce_user: bool = False,
        encryption: Encryption | None = None,
        read_only: bool = False,
    ) -> None:
        super().__init__(
            store,
            engine=engine,
            memory=memory,
            working_memory=working_memory,
            overflow=overflow,
            placement=placement,
            config=config,
            history_store=history_store,
            namespace=namespace,
            enforce_user=enforce_user,
            encryption=encryption,
            read_only=read_only,
        )
        self._portal = self._client.portal
        self._start()

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
        user_id: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        memory: MemoryUse | bool = True,
        ttl_s: float | None = None,
        model: str | None = None,
        params: ModelParams | None = None,
    ) -> Session:
        """Return the session of this id, created if there is none; without an id, a fresh one.

        The session is in the store on return. One that is there already is left to whoever has it: the first verb that
        changes something, or waits for a run, starts its process.

        Args:
            user_id: who it belongs to; the user "default" if left out, which `enforce_user` refuses.
            agent: likewise, which agent.
            metadata: a JSON object, kept with a session that is created; see `SessionConfig.max_metadata_bytes`.
            memory: likewise, what its runs do with long-term memory if they do not say; see `Session.run`.
            ttl_s: likewise, how many seconds after its last commit a `sweep` may delete it; never if None.
            model: likewise, the model that its runs ask if they do not say; the engine's own if None.
            params: likewise, what its runs ask of the model if they do not say; see `Session.run`. A session that is
                there already keeps its own model and parameters, whatever is passed here.

        Raises:
            InvalidIdError: an id cannot be used.
            InvalidInputError: a parameter is wrong, or this manager's engine does not take it.
            SessionOwnerError: the session belongs to another user or agent; it does not say to whom. Never because of
                another user with `enforce_user`, where each user has ids of their own.
            ConfigError: `enforce_user` is set and no user is given.
        """
        settings: dict[str, Any] = {"ttl_s": ttl_s, "model": model, "params": params}
        found = carry_out(self._open(session_id, user_id, agent, metadata, memory, **settings), self._portal)
        return Session(self._client, SessionRef.of(found), found.user_id, found.agent, own_ids=self._enforce_user)

    def get(self, session_id: str, *, user_id: str | None = None) -> Session:
        """Return the session of this id: a user's, or, if none is given, anybody's.

        A session that was made with `enforce_user` has an id of its user's own, so it takes the `user_id` to get it.

        Raises:
            SessionNotFoundError: there is none, or it is not the user's.
        """
        found = carry_out(self._get(session_id, user_id), self._portal)
        return Session(self._client, SessionRef.of(found), found.user_id, found.agent, own_ids=self._enforce_user)

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
        """Return sessions that match all filters given, newest first; pass the page's `cursor` for the next.

        A session whose record cannot be read is not among them: the page has its id as `unreadable`.
        """
        request = self._list(user_id, agent, status, order_by=order_by, cursor=cursor, limit=limit)
        return carry_out(request, self._portal)

    def count(
        self, *, user_id: str | None = None, agent: str | None = None, status: SessionStatus | None = None
    ) -> int:
        """Return how many sessions match all filters given."""
        return carry_out(self._count(user_id, agent, status), self._portal)

    def usage(self, *, user_id: str | None = None, agent: str | None = None) -> Usage:
        """Return what the runs of all sessions that match have spent, up to their last commits."""
        return carry_out(self._usage(user_id, agent), self._portal)

    def forget(self, user_id: str, *, verify: Verify = True) -> Forgotten:
        """Delete all of a user's sessions, and all that this manager's memories have of them; return what was removed.

        Runs that are active are cancelled. The sessions go first, so that nothing is saved meanwhile; may be repeated,
        and is to be if something fails in between. What others have said of the user stays with them.

        With `verify="files"` it returns before the files are searched: `progress` of what it returns says how far that
        is. The same call again says so again, and `verified` when `progress` is 1. No kill makes it begin anew.

        Args:
            verify: how it is looked for in memories afterwards: `False` not at all, `True` in what was touched, at the
                cost of what is forgotten, `"files"` in all their files, behind everything else. See `Verify`.

        Raises:
            LongTermMemoryError: a memory failed; the sessions are deleted.
        """
        return carry_out(self._forget(user_id, verify), self._portal)

    def sweep(self, archive: str | Path | None = None, *, memory: bool = False) -> Swept:
        """Delete the sessions that have expired, by their `ttl_s`, and that no run uses; return which, and which not.

        Everything that is committed to a session refreshes it, and so does `Session.refresh`. Who uses one at the same
        time keeps it. May be repeated, and by several at once; nothing is swept by itself.

        Args:
            archive: a folder to which each is exported before it is deleted: a file with its id and when it was
                created, for `import_session`. Nobody encrypts it.
            memory: whether this manager's memories forget what they have of it too.

        Raises:
            ConfigError: this manager has `enforce_user`: a sweep goes over all users.
            StoreError: the store cannot be reached. What cannot be exported or deleted is told as `failed`.
        """
        return carry_out(self._sweep(archive, memory), self._portal)

    def execution(self, run_id: str, *, user_id: str | None = None) -> ExecutionHandle:
        """Return the handle of a run of any session, or of any of a user's.

        Raises:
            RunNotFoundError: there is none of this id, or it is not the user's.
        """
        found = carry_out(self._execution(run_id, user_id), self._portal)
        return ExecutionHandle(self._client, found.session_id, run_id, found.turn_index)

    def close(self) -> None:
        """Let go of the store. Sessions and their runs go on. Closing twice is fine."""
        carry_out(self._close(), self._portal)
        self._portal.close()


class AsyncSessionManager(ManagerRequests):
    """`SessionManager` with its verbs as coroutines. Use it on one event loop.

    It joins or starts a Ray with the first verb, or `async with`, and not before; on a thread, so that the event loop
    goes on. What is wrong there is raised by that verb, and the next one tries again.

    Args:
        store: where sessions are kept: `sqlite:///path`, `postgresql://...`, `redis://...` (see `RedisStore` for what
            it has to be set to), the URL of another package's store, or `memory://name` for as long as the Ray cluster
            lives.
        engine: answers the turns. Live sessions take it over from other managers with their next run.
        memory: long-term memories, each in an actor that all sessions share. Before a run they are asked what bears on
            its prompt; behind it those that may be written are given its turn. They travel by pickle, so they hold
            settings and open files where they live. See `SessionConfig.memory`.
        working_memory: a scratchpad that stands in every request.
        overflow: what is done when a conversation outgrows the model's window: `Trim()`, `DeleteOldest(...)`,
            `Summarize(...)`, `FlushToMemory(...)` or your own. Without one the provider refuses what is too long.
        placement: which actor hosts which session.
        config: how sessions behave; `SessionConfig()` if left out, with what the environment says at that moment.
        history_store: where events are kept, if not with the conversations: `sqlite:///path` or `postgresql://...`.
            They get there soon after they are stored; one that is away delays no run. Live sessions keep the one that
            they started with.
        namespace: the Ray namespace of the actors; managers of the same store and namespace share sessions.
        enforce_user: every verb of this manager has to say for whom it is, by `user_id`, and reaches what is that
            user's, nothing else: an id of another's session or run is as good as one that does not exist. Ids of
            sessions are each user's own, so two users may both have a session "chat"; a session that was made without
            `enforce_user` keeps its id for its own user. What a verb returns is a capability: whoever holds a session
            or a handle may use it, in any process.
        encryption: the keys under which conversations and events are stored; see `EncryptedStore` for what of them
            stays readable. Long-term and working memories are not encrypted, since they look for words in what they
            keep. A store is encrypted from its first session on, or not at all; of a user without a key, verbs raise
            KeyMissingError, but `list` and `forget`.
        read_only: reads only, beside the Ray that has the store: sessions that are live on a Ray that this process has
            joined are asked, all others are read from the store. It starts no Ray, and makes and migrates no tables.
            What would change something is a ReadOnlyStoreError.

    Raises:
        StoreURLError, ConfigError: an argument cannot be used.
    """

    _starting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._started()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(
        self,
        session_id: str | None = None,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        memory: MemoryUse | bool = True,
        ttl_s: float | None = None,
        model: str | None = None,
        params: ModelParams | None = None,
    ) -> AsyncSession:
        """Return the session of this id, created if there is none; without an id, a fresh one.

        The session is in the store on return. One that is there already is left to whoever has it: the first verb that
        changes something, or waits for a run, starts its process.

        Args:
            user_id: who it belongs to; the user "default" if left out, which `enforce_user` refuses.
            agent: likewise, which agent.
            metadata: a JSON object, kept with a session that is created; see `SessionConfig.max_metadata_bytes`.
            memory: likewise, what its runs do with long-term memory if they do not say; see `Session.run`.
            ttl_s: likewise, how many seconds after its last commit a `sweep` may delete it; never if None.
            model: likewise, the model that its runs ask if they do not say; the engine's own if None.
            params: likewise, what its runs ask of the model if they do not say; see `Session.run`. A session that is
                there already keeps its own model and parameters, whatever is passed here.

        Raises:
            InvalidIdError: an id cannot be used.
            InvalidInputError: a parameter is wrong, or this manager's engine does not take it.
            SessionOwnerError: the session belongs to another user or agent; it does not say to whom. Never because of
                another user with `enforce_user`, where each user has ids of their own.
            ConfigError: `enforce_user` is set and no user is given.
        """
        settings: dict[str, Any] = {"ttl_s": ttl_s, "model": model, "params": params}
        found = await self._carry_out(self._open(session_id, user_id, agent, metadata, memory, **settings))
        return AsyncSession(self._client, SessionRef.of(found), found.user_id, found.agent, own_ids=self._enforce_user)

    async def get(self, session_id: str, *, user_id: str | None = None) -> AsyncSession:
        """Return the session of this id: a user's, or, if none is given, anybody's.

        A session that was made with `enforce_user` has an id of its user's own, so it takes the `user_id` to get it.

        Raises:
            SessionNotFoundError: there is none, or it is not the user's.
        """
        found = await self._carry_out(self._get(session_id, user_id))
        return AsyncSession(self._client, SessionRef.of(found), found.user_id, found.agent, own_ids=self._enforce_user)

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
        """Return sessions that match all filters given, newest first; pass the page's `cursor` for the next.

        A session whose record cannot be read is not among them: the page has its id as `unreadable`.
        """
        request = self._list(user_id, agent, status, order_by=order_by, cursor=cursor, limit=limit)
        return await self._carry_out(request)

    async def count(
        self, *, user_id: str | None = None, agent: str | None = None, status: SessionStatus | None = None
    ) -> int:
        """Return how many sessions match all filters given."""
        return await self._carry_out(self._count(user_id, agent, status))

    async def usage(self, *, user_id: str | None = None, agent: str | None = None) -> Usage:
        """Return what the runs of all sessions that match have spent, up to their last commits."""
        return await self._carry_out(self._usage(user_id, agent))

    async def forget(self, user_id: str, *, verify: Verify = True) -> Forgotten:
        """Delete all of a user's sessions, and all that this manager's memories have of them; return what was removed.

        Runs that are active are cancelled. The sessions go first, so that nothing is saved meanwhile; may be repeated,
        and is to be if something fails in between. What others have said of the user stays with them.

        With `verify="files"` it returns before the files are searched: `progress` of what it returns says how far that
        is. The same call again says so again, and `verified` when `progress` is 1. No kill makes it begin anew.

        Args:
            verify: how it is looked for in memories afterwards: `False` not at all, `True` in what was touched, at the
                cost of what is forgotten, `"files"` in all their files, behind everything else. See `Verify`.

        Raises:
            LongTermMemoryError: a memory failed; the sessions are deleted.
        """
        return await self._carry_out(self._forget(user_id, verify))

    async def sweep(self, archive: str | Path | None = None, *, memory: bool = False) -> Swept:
        """Delete the sessions that have expired, by their `ttl_s`, and that no run uses; return which, and which not.

        Everything that is committed to a session refreshes it, and so does `Session.refresh`. Who uses one at the same
        time keeps it. May be repeated, and by several at once; nothing is swept by itself.

        Args:
            archive: a folder to which each is exported before it is deleted: a file with its id and when it was
                created, for `import_session`. Nobody encrypts it.
            memory: whether this manager's memories forget what they have of it too.

        Raises:
            ConfigError: this manager has `enforce_user`: a sweep goes over all users.
            StoreError: the store cannot be reached. What cannot be exported or deleted is told as `failed`.
        """
        return await self._carry_out(self._sweep(archive, memory))

    async def execution(self, run_id: str, *, user_id: str | None = None) -> AsyncExecutionHandle:
        """Return the handle of a run of any session, or of any of a user's.

        Raises:
            RunNotFoundError: there is none of this id, or it is not the user's.
        """
        found = await self._carry_out(self._execution(run_id, user_id))
        return AsyncExecutionHandle(self._client, found.session_id, run_id, found.turn_index)

    async def close(self) -> None:
        """Let go of the store. Sessions and their runs go on. Closing twice is fine."""
        await carry_out_async(self._close())

    async def _carry_out(self, request: Request[Result]) -> Result:
        await self._started()
        return await carry_out_async(request)

    async def _started(self) -> None:
        """Start, if that has not been done; once for all who wait, and to its end, whoever is cancelled."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start_aside())
        starting = self._starting
        try:
            await asyncio.shield(starting)
        except Exception:
            if self._starting is starting:
                self._starting = None
            raise

    async def _start_aside(self) -> None:
        with interruptible():  # here, since it is the main thread that can do it
            await asyncio.to_thread(self._start)
