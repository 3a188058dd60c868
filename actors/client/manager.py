"""`SessionManager` and `AsyncSessionManager`: open, find and list the sessions of one store.

They also delete the sessions of a user, or expired ones. `Session.delete` deletes one session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from turnwise.actors.client.event_sinks import EventSink
from turnwise.actors.client.execution import AsyncExecutionHandle, ExecutionHandle
from turnwise.actors.client.manager_requests import IfExists, ManagerRequests
from turnwise.actors.client.requests import Request, Result, carry_out, carry_out_async
from turnwise.actors.client.session import AsyncSession, RunOptions, Session
from turnwise.actors.client.subscriptions import AsyncSubscription, Subscription
from turnwise.actors.cluster.ray_runtime import interruptible
from turnwise.actors.cluster.wire import HostInfo, SessionRef
from turnwise.memory.archive.expiry import Swept
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.message_formats import MessageFormat
from turnwise.memory.conversation.model_params import ModelParams
from turnwise.memory.conversation.prompts import Prompt
from turnwise.memory.conversation.runs import RunRecord, RunState
from turnwise.memory.conversation.sessions import SessionRecord, SessionStatus
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.longterm.retention.deletion_report import Forgotten
from turnwise.memory.stores.base import Page, SessionOrder


class SessionManager(ManagerRequests):
    """Opens, finds and lists sessions. Safe to use from many threads.

    A method whose argument has the wrong type or is out of range raises InvalidInputError, which names the argument,
    and changes nothing.

    The manager connects this process to Ray if it is not connected yet, and starts Ray if none is running. Sessions
    and runs live in Ray: they continue after the manager is closed, until they are idle, and after its process ends,
    unless Ray ends with that process. A Ray that the manager started does (logged at INFO); a cluster, or one started
    by `ray start --head`, does not.

    Args:
        store: where sessions are kept: `sqlite:///path`, `postgresql://...`, `redis://...` (see `RedisStore` for the
            server settings it needs), the URL of another package's store, or `memory://name`, which lasts as long as
            the Ray cluster. Also your own `SessionStore`, as an object that pickles, or a function that returns it:
            each process that uses the store makes its own. One that opens a file has a true attribute `is_local`.
        engine: answers the turns. A live session that another manager started switches to this engine with the next
            run that this manager starts. Or a mapping of names to engines, of which each session uses the one that
            `open(engine=...)` or `Session.use` has named, by default the first.
        memory: long-term memories; each runs in an actor that all sessions share. Before a run, they are searched for
            what is relevant to its prompt; after it, the writable ones receive its turn. They are pickled, so a memory
            holds settings only, and opens its files in its actor. See `SessionConfig.memory`.
        working_memory: a scratchpad that is part of every request.
        overflow: what happens when a conversation outgrows the model's context window: `Trim()`, `DeleteOldest(...)`,
            `KeepLast(...)`, `Summarize(...)`, `FlushToMemory(...)` or your own strategy. By default the engine itself
            summarises the older turns past 80 % of the window, which is a request of its own; if that fails, the
            oldest turns go. Where the size of the window is not known, or with None, requests are sent as they are,
            and the provider refuses those that are too long.
        placement: which actor hosts which session.
        config: how sessions behave; if omitted, `SessionConfig()`, which reads the environment at that moment.
        history_store: where events are kept, if not with the conversations: `sqlite:///path`, `postgresql://...`, or
            your own `HistoryStore`, given like a store.
            Events arrive there soon after they are stored; a history store that is unreachable delays no run. Live
            sessions keep the history store that they started with.
        namespace: the Ray namespace of the actors; managers of the same store and namespace share sessions.
        encryption: the keys with which conversations and events are encrypted; `EncryptedStore` says which fields stay
            readable. Long-term and working memories are not encrypted, since they search the text that they keep. A
            store is encrypted from its first session on, or not at all. For a user whose key is missing, all methods
            except `list` and `forget` raise KeyMissingError.
        read_only: read only, beside the Ray that uses the store. Sessions that are live on a Ray to which this process
            is connected answer for themselves; all others are read from the store. The manager starts no Ray, and
            creates and migrates no tables. Methods that would change something raise ReadOnlyStoreError.
        telemetry: traces and metrics of the sessions: `turnwise.telemetry.Telemetry()`. If omitted, `config.telemetry`.

    Raises:
        StoreURLError, ConfigError: an argument cannot be used, or another Ray has the SQLite file of the store open.
    """

    _starts_at_once = True

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
        engine: str | None = None,
        title: str | None = None,
        if_exists: IfExists = "refuse",
    ) -> Session:
        """Return the session with this id, and create it if it does not exist; without an id, create a new one.

        The session is in the store on return. If it existed already, no process is started for it: the first method
        that changes something, or waits for a run, starts its process.

        `memory`, `ttl_s`, `model` and `params` apply to a session that this call creates; an existing session keeps its
        own. So it does with its title, metadata and engine; if others are given, `if_exists` says what happens.

        Args:
            user_id: the user to whom the session belongs; "default" if omitted.
            agent: the agent to which the session belongs; if omitted, a session of any agent.
            metadata: a JSON object; see `SessionConfig.max_metadata_bytes`.
            memory: the default use of long-term memory by the session's runs; see `Session.run`.
            ttl_s: how many seconds after the session's last commit a `sweep` may delete it; never if None.
            model: the default model of the session's runs; the engine's own if None.
            params: the default model parameters of the session's runs; see `Session.run`.
            engine: the name of the engine of the session's runs, if the manager has several; its first if None. It is
                stored with the session: see `Session.use`.
            title: the session's name for people, of at most 1,000 characters.
            if_exists: what happens if the session exists with another title or engine, or lacks some of the metadata:
                `refuse` (raise InvalidInputError), `update` (change it, as `Session.update` does) or `keep` (ignore
                what is given).

        Raises:
            InvalidIdError: an id cannot be used.
            InvalidInputError: a parameter is wrong, or this manager's engine does not accept it; or see `if_exists`.
            SessionOwnerError: the session belongs to another agent; the error does not say to which.
        """
        settings: dict[str, Any] = {"ttl_s": ttl_s, "model": model, "params": params}
        settings |= {"engine": engine, "title": title, "if_exists": if_exists}
        found = carry_out(self._open(session_id, user_id, agent, metadata, memory, **settings), self._client.portal)
        return Session(self._client, SessionRef.of(found), found.agent)

    def import_messages(
        self,
        session_id: str,
        messages: Sequence[Any],
        format: MessageFormat | None = None,
        *,
        system: str | None = None,
        idempotency_key: str | None = None,
        user_id: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        title: str | None = None,
        engine: str | None = None,
        memory: MemoryUse | bool = False,
    ) -> Session:
        """Store a conversation from elsewhere in a session, which is created if it does not exist; return the session.

        The messages are checked first, so a conversation that cannot be stored creates no session. They are stored
        behind the session's newest turn, and a repeated call stores nothing: see `Session.import_messages`.

        Args:
            messages, format, system, idempotency_key, memory: see `Session.import_messages`.
            user_id, agent, metadata, title, engine: see `open`.

        Raises:
            InvalidInputError: names the first message that cannot be read, stored or continued, by its index, and says
                what to do; nothing was stored.
            ConfigError: the format needs a package that is not installed.
            SessionBusyError, SessionEndedError, SessionOwnerError: nothing was stored.
            TurnsChangedError: another turn came while a long conversation was stored: repeat the call.
        """
        given: dict[str, Any] = {"system": system, "idempotency_key": idempotency_key, "memory": memory}
        given |= {"user_id": user_id, "agent": agent, "metadata": metadata, "title": title, "engine": engine}
        request = self._import_messages(session_id, messages, format, **given)
        found = carry_out(request, self._client.portal)
        return Session(self._client, SessionRef.of(found), found.agent)

    def run_once(
        self,
        *prompts: Prompt,
        user_id: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        engine: str | None = None,
        **options: Unpack[RunOptions],
    ) -> ExecutionHandle:
        """Start a run without a history and without memories, of which nothing is stored.

        It has a session of its own in the memory of the Ray cluster. The handle waits, streams and cancels as any
        other, from any process; a minute after the run has ended it may be gone, and then its methods raise
        SessionNotFoundError. The run is lost with its process or its node. It is in no list of this manager.

        Args:
            prompts: what the model is given.
            user_id: the user whom the engine and its tools are told; see `open`.
            agent: the agent, likewise.
            metadata: a JSON object that the engine and its tools get; it is not kept either.
            engine: the name of the engine, if the manager has several; its first if omitted.
            options: see `Session.run`.

        Raises:
            InvalidInputError, EmptyTurnError, InvalidPromptError: nothing was started; see `Session.run`.
        """
        made = carry_out(self._open_once(user_id, agent, metadata, engine), self._client.portal)
        return Session(*made).run(*prompts, **options)

    def get(self, session_id: str, *, user_id: str | None = None) -> Session:
        """Return the user's session of this id; without a user, that of the user "default".

        Raises:
            SessionNotFoundError: the user has no such session.
        """
        found = carry_out(self._get(session_id, user_id), self._client.portal)
        return Session(self._client, SessionRef.of(found), found.agent)

    def list(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        status: SessionStatus | None = None,
        order_by: SessionOrder = "created_at",
        cursor: str | None = None,
        limit: int = 100,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> Page[SessionRecord]:
        """Return a page of the sessions that match all given filters, newest first: of all users if no user is given.

        Pass the page's `cursor` to get the next page. A session whose record cannot be read is left out; its id is in
        the page's `unreadable`. With `title` or `metadata`, all sessions that match the other filters are read until
        the page is full, so give a `user_id` or a time where there are many.

        Args:
            order_by: the time by which they are ordered: `created_at`, or `updated_at` for the last change.
            title: a part of the title, in upper or lower case, or the whole id.
            metadata: names with values that the session's metadata has too.
            since: only if that time is not before this one, in seconds since the epoch.
            until: only if that time is before this one.
        """
        query: dict[str, Any] = {"order_by": order_by, "cursor": cursor, "limit": limit}
        query |= {"title": title, "metadata": metadata, "since": since, "until": until}
        request = self._list(user_id, agent, status, **query)
        return carry_out(request, self._client.portal)

    def count(
        self, *, user_id: str | None = None, agent: str | None = None, status: SessionStatus | None = None
    ) -> int:
        """Return how many sessions match all given filters: of all users if no user is given."""
        return carry_out(self._count(user_id, agent, status), self._client.portal)

    def check_store(self) -> None:
        """Raise unless the session store can be read and written now: it writes something small and deletes it.

        Fails on a full disk, on a server that is out of memory or only read, and if the store cannot be reached. A
        read-only manager's store is only read.

        Raises:
            StoreError: sessions cannot be stored; the error says why.
        """
        carry_out(self._check_store(), self._client.portal)

    def runs(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        state: RunState | None = None,
        parent: str | None = None,
        since: float | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[RunRecord]:
        """Return a page of the runs of all sessions that match, of all users if none is given, newest first.

        Pass the page's `cursor` to get the next page. A page reads the sessions that have changed since its last run
        was created, so give a `user_id` or `since` where there are many sessions. Sessions that cannot be read are in
        the page's `unreadable`.

        Args:
            state: only runs in this state.
            parent: only runs that were started on behalf of this run: see `Session.run`.
            since: only runs that were created at this time or later, in seconds since the epoch.
        """
        request = self._runs(user_id, agent, state, parent=parent, since=since, cursor=cursor, limit=limit)
        return carry_out(request, self._client.portal)

    def subscribe(
        self,
        on_event: EventSink,
        *,
        session_id: str | None = None,
        user_id: str | None = None,
        agent: str | None = None,
        kinds: Sequence[str] | None = None,
        cursor: str | None = None,
    ) -> Subscription:
        """Call a function with each stored event of all matching sessions, from now on, also of future ones.

        It gets the events of a session by number, each once; those of different sessions come in any order, within a
        second if the store has few sessions that match. Deltas are not stored: for these, see `on_event` of
        `Session.run`. What the function raises is logged and changes nothing; while the store cannot be read, the
        subscription tries again. It starts no processes of sessions. Each look for changes reads the sessions of the
        user, or of all users if none is given, that have changed in the last minute.

        Args:
            on_event: called in a thread, or in a task of the asynchronous family, which takes coroutine functions too.
            session_id: only the events of this session of the user, who is "default" if omitted; otherwise those of all
                sessions of `user_id` and `agent`, or of all users and agents.
            kinds: only events of these kinds, such as `["run_completed", "run_failed"]`.
            cursor: go on after the events that an earlier subscription with the same filters has handed out: its
                `cursor`.

        Raises:
            SessionNotFoundError: there is no such session, or it belongs to another user.
        """
        request = self._subscribe(on_event, session_id, user_id, agent, kinds=kinds, cursor=cursor)
        feed, sink = carry_out(request, self._client.portal)
        made = Subscription(feed, sink, self._client)
        self._subscriptions.append(made)
        return made

    def usage(self, *, user_id: str | None = None, agent: str | None = None) -> Usage:
        """Return the tokens and costs of the runs of all matching sessions, up to their last commits.

        Without a user, these are all users' sessions.
        """
        return carry_out(self._usage(user_id, agent), self._client.portal)

    def forget(self, user_id: str, *, verify: bool = True) -> Forgotten:
        """Delete a user's sessions and what this manager's memories keep for the user; return what was removed.

        Active runs are cancelled. The sessions are deleted first, so that they save nothing while memories are
        cleared. The call may be repeated, and must be repeated if it fails halfway. What other users said about this
        user stays in their own memories.

        Args:
            verify: whether memories are checked afterwards for remains, in the parts that were changed, at a cost that
                grows with what is forgotten.

        Raises:
            LongTermMemoryError: a memory failed; the sessions are deleted.
        """
        return carry_out(self._forget(user_id, verify), self._client.portal)

    def sweep(self, archive: str | Path | None = None, *, memory: bool = False) -> Swept:
        """Delete sessions that have expired (see `ttl_s`) and have no active run; return which were deleted or kept.

        Each commit to a session restarts its `ttl_s`, and so does `Session.refresh`. A session that is used during the
        sweep is kept. Sweeps may be repeated and may run concurrently. Nothing is swept automatically.

        Args:
            archive: a folder to which each session is exported before it is deleted: one unencrypted file per session,
                named by the session's id, user and creation time. `turnwise import` reads it.
            memory: if true, this manager's memories also forget what they keep of each deleted session.

        Raises:
            StoreError: the store cannot be reached. Sessions that cannot be exported or deleted are returned as
                `failed`.
        """
        return carry_out(self._sweep(archive, memory), self._client.portal)

    def hosts(self) -> Sequence[HostInfo]:
        """Return the processes that host sessions of this manager's store and namespace, on all nodes of the cluster.

        Packed hosts come first, then the processes of single sessions, of which at most 1,000 are asked. One that does
        not answer within three seconds is returned without its load. A read-only manager finds those of the Ray to
        which this process is connected, if it is.
        """
        return carry_out(self._hosts(), self._client.portal)

    def execution(self, run_id: str, *, user_id: str | None = None) -> ExecutionHandle:
        """Return the handle of a run of any of the user's sessions; without a user, of those of the user "default".

        Also finds runs of `run_once`, by any manager of this Ray, as long as they are there.

        Raises:
            RunNotFoundError: no run has this id, or it belongs to another user.
        """
        client, found = carry_out(self._execution(run_id, user_id), self._client.portal)
        return ExecutionHandle(client, SessionRef(found.session_key), run_id, found.turn_index)

    def close(self) -> None:
        """Close the store and all subscriptions. Sessions and their runs continue. Closing twice is fine."""
        for subscription in self._subscriptions:
            subscription.close()
        carry_out(self._close(), self._client.portal)
        self._client.portal.close()


class AsyncSessionManager(ManagerRequests):
    """`SessionManager` with coroutine methods. Use it on one event loop.

    It connects to Ray, or starts one, at the first call or `async with`, in a thread, so that the event loop is not
    blocked. An error of that is raised by this call, and the next call tries again.

    Args:
        store: where sessions are kept: `sqlite:///path`, `postgresql://...`, `redis://...` (see `RedisStore` for the
            server settings it needs), the URL of another package's store, or `memory://name`, which lasts as long as
            the Ray cluster. Also your own `SessionStore`, as an object that pickles, or a function that returns it:
            each process that uses the store makes its own. One that opens a file has a true attribute `is_local`.
        engine: answers the turns. A live session that another manager started switches to this engine with the next
            run that this manager starts. Or a mapping of names to engines, of which each session uses the one that
            `open(engine=...)` or `Session.use` has named, by default the first.
        memory: long-term memories; each runs in an actor that all sessions share. Before a run, they are searched for
            what is relevant to its prompt; after it, the writable ones receive its turn. They are pickled, so a memory
            holds settings only, and opens its files in its actor. See `SessionConfig.memory`.
        working_memory: a scratchpad that is part of every request.
        overflow: what happens when a conversation outgrows the model's context window: `Trim()`, `DeleteOldest(...)`,
            `KeepLast(...)`, `Summarize(...)`, `FlushToMemory(...)` or your own strategy. By default the engine itself
            summarises the older turns past 80 % of the window, which is a request of its own; if that fails, the
            oldest turns go. Where the size of the window is not known, or with None, requests are sent as they are,
            and the provider refuses those that are too long.
        placement: which actor hosts which session.
        config: how sessions behave; if omitted, `SessionConfig()`, which reads the environment at that moment.
        history_store: where events are kept, if not with the conversations: `sqlite:///path`, `postgresql://...`, or
            your own `HistoryStore`, given like a store.
            Events arrive there soon after they are stored; a history store that is unreachable delays no run. Live
            sessions keep the history store that they started with.
        namespace: the Ray namespace of the actors; managers of the same store and namespace share sessions.
        encryption: the keys with which conversations and events are encrypted; `EncryptedStore` says which fields stay
            readable. Long-term and working memories are not encrypted, since they search the text that they keep. A
            store is encrypted from its first session on, or not at all. For a user whose key is missing, all methods
            except `list` and `forget` raise KeyMissingError.
        read_only: read only, beside the Ray that uses the store. Sessions that are live on a Ray to which this process
            is connected answer for themselves; all others are read from the store. The manager starts no Ray, and
            creates and migrates no tables. Methods that would change something raise ReadOnlyStoreError.
        telemetry: traces and metrics of the sessions: `turnwise.telemetry.Telemetry()`. If omitted, `config.telemetry`.

    Raises:
        StoreURLError, ConfigError: an argument cannot be used.
    """

    _starts_at_once = False
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
        engine: str | None = None,
        title: str | None = None,
        if_exists: IfExists = "refuse",
    ) -> AsyncSession:
        """Return the session with this id, and create it if it does not exist; without an id, create a new one.

        The session is in the store on return. If it existed already, no process is started for it: the first method
        that changes something, or waits for a run, starts its process.

        `memory`, `ttl_s`, `model` and `params` apply to a session that this call creates; an existing session keeps its
        own. So it does with its title, metadata and engine; if others are given, `if_exists` says what happens.

        Args:
            user_id: the user to whom the session belongs; "default" if omitted.
            agent: the agent to which the session belongs; if omitted, a session of any agent.
            metadata: a JSON object; see `SessionConfig.max_metadata_bytes`.
            memory: the default use of long-term memory by the session's runs; see `Session.run`.
            ttl_s: how many seconds after the session's last commit a `sweep` may delete it; never if None.
            model: the default model of the session's runs; the engine's own if None.
            params: the default model parameters of the session's runs; see `Session.run`.
            engine: the name of the engine of the session's runs, if the manager has several; its first if None. It is
                stored with the session: see `Session.use`.
            title: the session's name for people, of at most 1,000 characters.
            if_exists: what happens if the session exists with another title or engine, or lacks some of the metadata:
                `refuse` (raise InvalidInputError), `update` (change it, as `Session.update` does) or `keep` (ignore
                what is given).

        Raises:
            InvalidIdError: an id cannot be used.
            InvalidInputError: a parameter is wrong, or this manager's engine does not accept it; or see `if_exists`.
            SessionOwnerError: the session belongs to another agent; the error does not say to which.
        """
        settings: dict[str, Any] = {"ttl_s": ttl_s, "model": model, "params": params}
        settings |= {"engine": engine, "title": title, "if_exists": if_exists}
        found = await self._carry_out(self._open(session_id, user_id, agent, metadata, memory, **settings))
        return AsyncSession(self._client, SessionRef.of(found), found.agent)

    async def import_messages(
        self,
        session_id: str,
        messages: Sequence[Any],
        format: MessageFormat | None = None,
        *,
        system: str | None = None,
        idempotency_key: str | None = None,
        user_id: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        title: str | None = None,
        engine: str | None = None,
        memory: MemoryUse | bool = False,
    ) -> AsyncSession:
        """Store a conversation from elsewhere in a session, which is created if it does not exist; return the session.

        The messages are checked first, so a conversation that cannot be stored creates no session. They are stored
        behind the session's newest turn, and a repeated call stores nothing: see `Session.import_messages`.

        Args:
            messages, format, system, idempotency_key, memory: see `Session.import_messages`.
            user_id, agent, metadata, title, engine: see `open`.

        Raises:
            InvalidInputError: names the first message that cannot be read, stored or continued, by its index, and says
                what to do; nothing was stored.
            ConfigError: the format needs a package that is not installed.
            SessionBusyError, SessionEndedError, SessionOwnerError: nothing was stored.
            TurnsChangedError: another turn came while a long conversation was stored: repeat the call.
        """
        given: dict[str, Any] = {"system": system, "idempotency_key": idempotency_key, "memory": memory}
        given |= {"user_id": user_id, "agent": agent, "metadata": metadata, "title": title, "engine": engine}
        request = self._import_messages(session_id, messages, format, **given)
        found = await carry_out_async(request)
        return AsyncSession(self._client, SessionRef.of(found), found.agent)

    async def run_once(
        self,
        *prompts: Prompt,
        user_id: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        engine: str | None = None,
        **options: Unpack[RunOptions],
    ) -> AsyncExecutionHandle:
        """Start a run without a history and without memories, of which nothing is stored.

        It has a session of its own in the memory of the Ray cluster. The handle waits, streams and cancels as any
        other, from any process; a minute after the run has ended it may be gone, and then its methods raise
        SessionNotFoundError. The run is lost with its process or its node. It is in no list of this manager.

        Args:
            prompts: what the model is given.
            user_id: the user whom the engine and its tools are told; see `open`.
            agent: the agent, likewise.
            metadata: a JSON object that the engine and its tools get; it is not kept either.
            engine: the name of the engine, if the manager has several; its first if omitted.
            options: see `Session.run`.

        Raises:
            InvalidInputError, EmptyTurnError, InvalidPromptError: nothing was started; see `Session.run`.
        """
        made = await self._carry_out(self._open_once(user_id, agent, metadata, engine))
        return await AsyncSession(*made).run(*prompts, **options)

    async def get(self, session_id: str, *, user_id: str | None = None) -> AsyncSession:
        """Return the user's session of this id; without a user, that of the user "default".

        Raises:
            SessionNotFoundError: the user has no such session.
        """
        found = await self._carry_out(self._get(session_id, user_id))
        return AsyncSession(self._client, SessionRef.of(found), found.agent)

    async def list(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        status: SessionStatus | None = None,
        order_by: SessionOrder = "created_at",
        cursor: str | None = None,
        limit: int = 100,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> Page[SessionRecord]:
        """Return a page of the sessions that match all given filters, newest first: of all users if no user is given.

        Pass the page's `cursor` to get the next page. A session whose record cannot be read is left out; its id is in
        the page's `unreadable`. With `title` or `metadata`, all sessions that match the other filters are read until
        the page is full, so give a `user_id` or a time where there are many.

        Args:
            order_by: the time by which they are ordered: `created_at`, or `updated_at` for the last change.
            title: a part of the title, in upper or lower case, or the whole id.
            metadata: names with values that the session's metadata has too.
            since: only if that time is not before this one, in seconds since the epoch.
            until: only if that time is before this one.
        """
        query: dict[str, Any] = {"order_by": order_by, "cursor": cursor, "limit": limit}
        query |= {"title": title, "metadata": metadata, "since": since, "until": until}
        request = self._list(user_id, agent, status, **query)
        return await self._carry_out(request)

    async def count(
        self, *, user_id: str | None = None, agent: str | None = None, status: SessionStatus | None = None
    ) -> int:
        """Return how many sessions match all given filters: of all users if no user is given."""
        return await self._carry_out(self._count(user_id, agent, status))

    async def check_store(self) -> None:
        """Raise unless the session store can be read and written now: it writes something small and deletes it.

        Fails on a full disk, on a server that is out of memory or only read, and if the store cannot be reached. A
        read-only manager's store is only read.

        Raises:
            StoreError: sessions cannot be stored; the error says why.
        """
        await self._carry_out(self._check_store())

    async def runs(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        state: RunState | None = None,
        parent: str | None = None,
        since: float | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[RunRecord]:
        """Return a page of the runs of all sessions that match, of all users if none is given, newest first.

        Pass the page's `cursor` to get the next page. A page reads the sessions that have changed since its last run
        was created, so give a `user_id` or `since` where there are many sessions. Sessions that cannot be read are in
        the page's `unreadable`.

        Args:
            state: only runs in this state.
            parent: only runs that were started on behalf of this run: see `Session.run`.
            since: only runs that were created at this time or later, in seconds since the epoch.
        """
        request = self._runs(user_id, agent, state, parent=parent, since=since, cursor=cursor, limit=limit)
        return await self._carry_out(request)

    async def subscribe(
        self,
        on_event: EventSink,
        *,
        session_id: str | None = None,
        user_id: str | None = None,
        agent: str | None = None,
        kinds: Sequence[str] | None = None,
        cursor: str | None = None,
    ) -> AsyncSubscription:
        """Call a function with each stored event of all matching sessions, from now on, also of future ones.

        It gets the events of a session by number, each once; those of different sessions come in any order, within a
        second if the store has few sessions that match. Deltas are not stored: for these, see `on_event` of
        `Session.run`. What the function raises is logged and changes nothing; while the store cannot be read, the
        subscription tries again. It starts no processes of sessions. Each look for changes reads the sessions of the
        user, or of all users if none is given, that have changed in the last minute.

        Args:
            on_event: called in a thread, or in a task of the asynchronous family, which takes coroutine functions too.
            session_id: only the events of this session of the user, who is "default" if omitted; otherwise those of all
                sessions of `user_id` and `agent`, or of all users and agents.
            kinds: only events of these kinds, such as `["run_completed", "run_failed"]`.
            cursor: go on after the events that an earlier subscription with the same filters has handed out: its
                `cursor`.

        Raises:
            SessionNotFoundError: there is no such session, or it belongs to another user.
        """
        request = self._subscribe(on_event, session_id, user_id, agent, kinds=kinds, cursor=cursor)
        feed, sink = await self._carry_out(request)
        made = AsyncSubscription(feed, sink)
        self._subscriptions.append(made)
        return made

    async def usage(self, *, user_id: str | None = None, agent: str | None = None) -> Usage:
        """Return the tokens and costs of the runs of all matching sessions, up to their last commits.

        Without a user, these are all users' sessions.
        """
        return await self._carry_out(self._usage(user_id, agent))

    async def forget(self, user_id: str, *, verify: bool = True) -> Forgotten:
        """Delete a user's sessions and what this manager's memories keep for the user; return what was removed.

        Active runs are cancelled. The sessions are deleted first, so that they save nothing while memories are
        cleared. The call may be repeated, and must be repeated if it fails halfway. What other users said about this
        user stays in their own memories.

        Args:
            verify: whether memories are checked afterwards for remains, in the parts that were changed, at a cost that
                grows with what is forgotten.

        Raises:
            LongTermMemoryError: a memory failed; the sessions are deleted.
        """
        return await self._carry_out(self._forget(user_id, verify))

    async def sweep(self, archive: str | Path | None = None, *, memory: bool = False) -> Swept:
        """Delete sessions that have expired (see `ttl_s`) and have no active run; return which were deleted or kept.

        Each commit to a session restarts its `ttl_s`, and so does `Session.refresh`. A session that is used during the
        sweep is kept. Sweeps may be repeated and may run concurrently. Nothing is swept automatically.

        Args:
            archive: a folder to which each session is exported before it is deleted: one unencrypted file per session,
                named by the session's id, user and creation time. `turnwise import` reads it.
            memory: if true, this manager's memories also forget what they keep of each deleted session.

        Raises:
            StoreError: the store cannot be reached. Sessions that cannot be exported or deleted are returned as
                `failed`.
        """
        return await self._carry_out(self._sweep(archive, memory))

    async def hosts(self) -> Sequence[HostInfo]:
        """Return the processes that host sessions of this manager's store and namespace, on all nodes of the cluster.

        Packed hosts come first, then the processes of single sessions, of which at most 1,000 are asked. One that does
        not answer within three seconds is returned without its load. A read-only manager finds those of the Ray to
        which this process is connected, if it is.
        """
        return await self._carry_out(self._hosts())

    async def execution(self, run_id: str, *, user_id: str | None = None) -> AsyncExecutionHandle:
        """Return the handle of a run of any of the user's sessions; without a user, of those of the user "default".

        Also finds runs of `run_once`, by any manager of this Ray, as long as they are there.

        Raises:
            RunNotFoundError: no run has this id, or it belongs to another user.
        """
        client, found = await self._carry_out(self._execution(run_id, user_id))
        return AsyncExecutionHandle(client, SessionRef(found.session_key), run_id, found.turn_index)

    async def close(self) -> None:
        """Close the store and all subscriptions. Sessions and their runs continue. Closing twice is fine."""
        for subscription in self._subscriptions:
            await subscription.close()
        await carry_out_async(self._close())

    async def _carry_out(self, request: Request[Result]) -> Result:
        await self._started()
        return await carry_out_async(request)

    async def _started(self) -> None:
        """Start the manager once, for all callers that wait for it; a cancelled caller does not cancel the start."""
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
