# Made from actors/client/manager.py by `make blocking`: change that file.
"""`SessionManager`: opens, finds and lists the sessions of one store.

It also deletes the sessions of a user, or expired ones. `Session.delete` deletes one session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from turnwise.actors.client.blocking import steps
from turnwise.actors.client.blocking.execution import ExecutionHandle
from turnwise.actors.client.blocking.expiry import SweepSchedule, memories_of, sweep
from turnwise.actors.client.blocking.files import Files, collect_files, with_bytes_of
from turnwise.actors.client.blocking.forgetting import clear, forget, forget_only_memory
from turnwise.actors.client.blocking.importing import read_conversation, send_conversation
from turnwise.actors.client.blocking.run_once import Once
from turnwise.actors.client.blocking.session import Session
from turnwise.actors.client.blocking.session_host import SessionHost
from turnwise.actors.client.blocking.store_reads import StoreReads
from turnwise.actors.client.blocking.subscriptions import EventFeed, Subscription
from turnwise.actors.client.blocking.user_memory import OwnMemoryHost, UserMemory
from turnwise.actors.client.blocking.webhooks import Webhook, add_webhook
from turnwise.actors.client.shared.arguments import (
    AgentName,
    AsUser,
    Count,
    Day,
    EngineName,
    EventSink,
    Folder,
    Format,
    IdempotencyKey,
    IfExists,
    IfRaises,
    Instructions,
    Labels,
    LedgerFields,
    Lifetime,
    Limit,
    MarkName,
    MemoryUseArg,
    Model,
    NameCursor,
    Params,
    ParentRun,
    QuotaArg,
    RunId,
    Secret,
    SessionId,
    Sink,
    StoredKinds,
    TenantName,
    Text,
    Time,
    Title,
    UserId,
    WaitSeconds,
    WebhookEvents,
    checked,
    checks_init,
    json_object,
)
from turnwise.actors.client.shared.once_store import ONCE, once_client, once_url
from turnwise.actors.client.shared.run_options import RunOptions
from turnwise.actors.client.shared.sessions_client import (
    DEFAULT_STORE,
    FilesArgument,
    HistoryArgument,
    SessionsClient,
    StoreArgument,
)
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.placement import Dedicated, Placement
from turnwise.actors.hosting.wire import DrainReport, HostInfo, SessionRef
from turnwise.actors.inference.engine import EngineBuilder, Selective, check_taken
from turnwise.actors.inference.named_engines import MissingEngine, NamedEngines, as_engine, chosen_name, engine_named
from turnwise.actors.inference.observing import Telemetry
from turnwise.actors.inference.shadow import answering
from turnwise.actors.session.acting import Acting, check_member
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import (
    InvalidInputError,
    ReadOnlyStoreError,
    RunNotFoundError,
    SessionExistsError,
    SessionNotFoundError,
    SessionOwnerError,
    shown,
)
from turnwise.memory.archive.expiry import Swept
from turnwise.memory.conversation.ledger import LedgerField, LedgerQuery, LedgerRow, UsageReport
from turnwise.memory.conversation.marks import MarkedMessage
from turnwise.memory.conversation.memory_use import MemoryUse, memory_use
from turnwise.memory.conversation.model_params import ModelParams, merged
from turnwise.memory.conversation.prompts import Prompt, takes_all
from turnwise.memory.conversation.runs import RunRecord, RunState
from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey, SessionRecord, SessionStatus
from turnwise.memory.conversation.views.event_filter import event_filter
from turnwise.memory.conversation.views.message_formats import MessageFormat
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.deliveries.webhooks import (
    WebhookEvent,
    WebhookRecord,
    check_url,
    new_secret,
    repeatable_webhook_id,
)
from turnwise.memory.files.attachments import refusal_by
from turnwise.memory.files.records import OF_USER
from turnwise.memory.longterm.base import LongTermMemory, Scope
from turnwise.memory.longterm.retention.deletion_report import Forgotten
from turnwise.memory.quotas.records import Quota, QuotaUse
from turnwise.memory.quotas.tenants import Tenant
from turnwise.memory.stores.base import NO_CALLER, Page, SessionOrder
from turnwise.memory.stores.encrypted.records import check_session, is_sealed
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.marks import count_marks_of, find_marks
from turnwise.memory.stores.quotas import quota_uses
from turnwise.memory.stores.reading import page_of_deliveries
from turnwise.memory.stores.search.finding import SearchHit, SearchOrder, find_messages
from turnwise.memory.stores.search.query import parse_query
from turnwise.memory.stores.search.records import SearchedRole, TextFilter
from turnwise.memory.stores.searching import SessionFilter, find_runs, find_sessions
from turnwise.memory.values.frozen_json import FrozenDict, freeze
from turnwise.memory.values.ids import new_id
from turnwise.memory.working.memory import WorkingMemory
from turnwise.strategies.strategy import OverflowStrategy

_EVENT_FILTERS: Mapping[str, Any] = {
    "session_id": SessionId | None,
    "user_id": UserId | None,
    "agent": AgentName | None,
    "kinds": StoredKinds | None,
    "labels": Labels | None,
    "cursor": Text | None,
}
"""The arguments that say which events a subscription hands out, with their types."""


class SessionManager:
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
            `open(engine=...)` or `Session.use` has named, by default the first. A `Split` among them divides runs among
            the others.
        memory: long-term memories; each runs in an actor that all sessions share. Before a run, they are searched for
            what is relevant to its prompt; after it, the writable ones receive its turn. They are pickled, so a memory
            holds settings only, and opens its files in its actor. See `SessionConfig.memory`.
        working_memory: a scratchpad that is part of every request.
        overflow: what happens when a conversation outgrows the model's context window: `Trim()`, `DeleteOldest(...)`,
            `KeepLast(...)`, `Summarize(...)`, `FlushToMemory(...)` or your own strategy. By default the engine itself
            summarises the older turns past 80 % of the window, which is a request of its own; if that fails, the
            oldest turns go. Where the size of the window is not known, or with None, requests are sent as they are,
            and the provider refuses those that are too long.
        placement: where sessions run: `Dedicated()`, an actor for each; `Packed(...)`, a few actors with many; or
            `InProcess()`, this process, without Ray.
        config: how sessions behave; if omitted, `SessionConfig()`, which reads the environment at that moment.
        history_store: where events are kept, if not with the conversations: `sqlite:///path`, `postgresql://...`, or
            your own `HistoryStore`, given like a store.
            Events arrive there soon after they are stored; a history store that is unreachable delays no run. Live
            sessions keep the history store that they started with.
        files: where the bytes of files are kept, which sessions and users have by their ids: the path of a folder, or a
            URL that fsspec opens, such as `s3://bucket/folder`. All processes of the sessions must reach it. By default
            a folder beside a SQLite file, whose name ends with `-files`; in memory for `memory://`; none for others:
            then methods about files raise FilesUnavailableError, and attachments stay in the store.
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

    @checks_init
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
        files: FilesArgument = None,
        namespace: str = "turnwise",
        encryption: Encryption | None = None,
        read_only: bool = False,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._engine = engine
        config = config or SessionConfig()
        self._config = replace(config, telemetry=telemetry) if telemetry else config
        self._client = SessionsClient.of(
            namespace,
            store,
            history_store=history_store,
            encryption=encryption,
            engine=engine,
            memory=memory,
            working_memory=working_memory,
            overflow=overflow,
            placement=placement,
            config=self._config,
            read_only=read_only,
            files=files,
        )
        self._store = StoreReads(self._client, is_encrypted=encryption is not None)
        self._once = Once(
            self._client.runtime,
            once_url(self._client),
            partial(
                once_client,
                namespace,
                engine,
                self._config,
                self._client,
                history_store=history_store,
                encryption=encryption,
            ),
        )
        self._sweeps = SweepSchedule(
            self._client,
            None if read_only or not self._client.has_engine else self._config.sweep_every_s,
            Path(self._config.sweep_archive) if self._config.sweep_archive else None,
        )
        self._subscriptions: Any = []
        """Those to close with the manager."""
        self._connect_runtime = partial(self._client.runtime.connect, (store, history_store), working_memory)
        self._first: SessionKey | None = None
        """The session that the call opens which starts this manager, if it opens one."""
        self._start = steps.Start(self._connect, self._client.runtime.starting)

    def __enter__(self) -> Self:
        self._start.done()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_read_only(self) -> bool:
        """Whether it was made with `read_only=True`."""
        return self._client.read_only

    @property
    def config(self) -> SessionConfig:
        """How its sessions behave."""
        return self._config

    @property
    def client(self) -> SessionsClient:
        """What it reads its store by, for modules that build on managers, such as `turnwise.dataset`."""
        return self._client

    @property
    def engines(self) -> Mapping[str | None, EngineBuilder]:
        """Its engines by name; a single engine without a name has None."""
        builder = as_engine(self._engine)
        return dict(builder.engines.items()) if isinstance(builder, NamedEngines) else {None: builder}

    @checked(
        session_id=SessionId | None,
        user_id=UserId | None,
        agent=AgentName | None,
        memory=MemoryUseArg,
        ttl_s=Lifetime | None,
        model=Model | None,
        params=Params | None,
        engine=EngineName | None,
        title=Title | None,
        if_exists=IfExists,
    )
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
        that changes something, or waits for a run, starts its process. But a process of its own starts at once if this
        is the manager's first call: then it starts while the store is opened, and leaves if nobody calls it.

        `memory`, `ttl_s`, `model` and `params` apply to a session that this call creates; an existing session keeps its
        own. So it does with its title, metadata and engine; if others are given, `if_exists` says what happens.

        Args:
            user_id: the user to whom the session belongs; "default" if omitted.
            agent: the agent to which the session belongs; if omitted, a session of any agent.
            metadata: a JSON object; see `SessionConfig.max_metadata_bytes`.
            memory: the default use of long-term memory by the session's runs; see `Session.run`.
            ttl_s: how many seconds after the session's last commit it expires, so that a `sweep` deletes it; never if
                None. From then on this manager sweeps by itself: see `SessionConfig.sweep_every_s`.
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
        is_new = session_id is None
        if is_new:
            self._check_writes("*", "open")
        session_id, user_id = session_id or new_id(), user_id or DEFAULT_USER
        names = self._plain_metadata(metadata)
        if is_sealed(names):  # such a session could not be listed
            raise InvalidInputError("metadata", shown(metadata), "it looks like encrypted metadata: choose other names")
        defaults = merged({}, params or {})
        check_taken(self._check_engine(engine, SessionKey(session_id, user_id)), model, defaults)
        self._first = self._first or SessionKey(session_id, user_id)
        self._start.done()
        now = self._store.now()
        fresh = SessionRecord(
            session_id=session_id,
            user_id=user_id,
            agent=agent,
            metadata=names,
            title=title or None,
            created_at=now,
            updated_at=now,
            memory=memory_use(memory),
            ttl_s=ttl_s,
            model=model,
            engine=engine,
            params=defaults,
        )
        session = None if is_new else self._store.find(session_id, user_id)
        if session is None:
            session, is_created = self._create(fresh)
            if is_created:
                return self._session(session)
        if agent not in (None, session.agent):
            raise SessionOwnerError(session_id, agent)
        if if_exists != "keep":
            session = self._update_existing(session, title, names, engine, if_exists)
        return self._session(session)

    def _session(self, record: SessionRecord, as_user: str | None = None) -> Session:
        if record.ttl_s is not None:
            self._sweeps.begin()
        return Session(self._client, SessionRef.of(record, as_user), record.agent)

    def _create(self, fresh: SessionRecord) -> tuple[SessionRecord, bool]:
        """Create a session; return it, or the one that another caller has just created, and whether it is new."""
        if self._client.read_only:
            raise SessionNotFoundError(fresh.session_id)
        try:
            created: SessionRecord = self._store.ask("create", fresh)
        except SessionExistsError:
            session = self._store.find(fresh.session_id, fresh.user_id)
            if session is None:
                raise  # another caller has created and deleted it
            return session, False
        self._client.warm(SessionRef.of(created))
        return created, True

    def _update_existing(
        self,
        session: SessionRecord,
        title: str | None,
        metadata: FrozenDict,
        engine: str | None,
        if_exists: IfExists,
    ) -> SessionRecord:
        """Return the row of an existing session that was opened with this title, metadata and engine.

        Raises:
            InvalidInputError: `if_exists` is "refuse", and the session has another title, engine or other metadata.
        """
        own = session.metadata
        names = [name for name, value in metadata.items() if name not in own or own[name] != value]
        is_renamed = title is not None and (title or None) != session.title
        is_moved = engine not in (None, session.engine)
        if not names and not is_renamed and not is_moved:
            return session
        if if_exists == "refuse":
            field, value = ("metadata", metadata[names[0]]) if names else ("title", title)
            difference = f"metadata {shown(names)}" if names else f"title {shown(session.title)}"
            if not names and not is_renamed:
                field, value, difference = "engine", engine, f"engine {shown(session.engine)}"
            reason = f"session {session.session_id!r} exists with another {difference}"
            raise InvalidInputError(field, shown(value), f"{reason}: pass if_exists='update' to change it, or 'keep'")
        host = SessionHost(self._client, SessionRef.of(session))
        if is_moved:
            host.ask(verbs.use_engine(engine))
            session = replace(session, engine=engine)
        if not names and not is_renamed:
            return session
        changed = host.ask(verbs.update(title, metadata, True))
        return replace(session, title=changed.title, metadata=changed.metadata)

    @checked(
        session_id=SessionId,
        format=Format | None,
        system=Instructions | None,
        idempotency_key=IdempotencyKey | None,
        user_id=UserId | None,
        agent=AgentName | None,
        title=Title | None,
        engine=EngineName | None,
        memory=MemoryUseArg,
    )
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
        self._check_writes(session_id, "import_messages")
        # As its session will, so that none is created for a conversation that cannot be stored.
        builder = self._check_engine(engine, SessionKey(session_id, user_id or DEFAULT_USER))
        refuses = refusal_by(builder.refuses) if isinstance(builder, Selective) else takes_all
        checks: dict[str, Any] = {"max_bytes": self._config.max_prompt_bytes, "refuses": refuses}
        conversation = read_conversation(messages, format, system=system, key=idempotency_key, **checks)
        owner: dict[str, Any] = {"user_id": user_id, "agent": agent}
        session = self.open(session_id, **owner, metadata=metadata, title=title, engine=engine)
        send_conversation(session._host.ask, conversation, None, memory)  # noqa: SLF001 - of the same family
        return session

    def run_once(
        self,
        *prompts: Prompt,
        user_id: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        engine: str | None = None,
        **options: Unpack[RunOptions],
    ) -> ExecutionHandle:
        """Start a run without a history and without memories, of which this manager's store keeps nothing.

        If the manager has a history store, that one keeps the run's events, under the handle's session id and the user,
        until `forget` deletes them; they arrive there soon after they happened. Otherwise nothing is stored.

        It has a session of its own in the memory of the Ray cluster. The handle waits, streams and cancels as any
        other, from any process; a minute after the run has ended it may be gone, and then its methods raise
        SessionNotFoundError. The run is lost with its process or its node. It is in no list of this manager. Quotas
        count it as a run, and what it spends, and refuse it once they are used up, whatever they do with others. The
        ledger has nothing of it.

        Args:
            prompts: what the model is given.
            user_id: the user whose id the engine and its tools get; see `open`.
            agent: the agent, likewise.
            metadata: a JSON object that the engine and its tools get; it is not kept either.
            engine: the name of the engine, if the manager has several; its first if omitted.
            options: see `Session.run`.

        Raises:
            QuotaExceededError: a quota is used up; nothing was started.
            InvalidInputError, EmptyTurnError, InvalidPromptError: nothing was started; see `Session.run`.
        """
        client, session = self._open_once(user_id, agent, metadata, engine)
        filled = with_bytes_of(self._client, session.user_id, prompts)
        return Session(client, SessionRef.of(session), agent).run(*filled, **options)

    @checked(user_id=UserId | None, agent=AgentName | None, engine=EngineName | None)
    def _open_once(
        self, user_id: str | None, agent: str | None, metadata: Mapping[str, Any] | None, engine: str | None
    ) -> tuple[SessionsClient, SessionRecord]:
        self._check_writes("*", "run_once")
        names = self._plain_metadata(metadata)
        self._check_engine(engine, SessionKey(ONCE, user_id or DEFAULT_USER))
        self._start.done()
        return self._once.open(user_id or DEFAULT_USER, agent, names, engine)

    @checked(session_id=SessionId, user_id=UserId | None, as_user=AsUser | None)
    def get(self, session_id: str, *, user_id: str | None = None, as_user: str | None = None) -> Session:
        """Return the user's session of this id; without a user, that of the user "default".

        Args:
            as_user: the member for whom it is: what the session and its runs then do is what the member's role allows,
                and is the member's own: see `Session.add_member`. If omitted, all is done for the session's user.

        Raises:
            SessionNotFoundError: the user has no such session, or `as_user` is no member of it.
        """
        self._start.done()
        session = self._store.get(session_id, user_id or DEFAULT_USER)
        self._check_member(session, as_user)
        return self._session(session, as_user)

    def _check_member(self, session: SessionRecord, as_user: str | None) -> None:
        if as_user is not None:
            reading = Acting(as_user, "reader", "read the session")
            self._store.run(lambda store: check_member(session, store, reading))

    @checked(
        user_id=UserId | None,
        agent=AgentName | None,
        status=SessionStatus | None,
        order_by=SessionOrder,
        cursor=Text | None,
        limit=Limit,
        title=Text | None,
        since=Time | None,
        until=Time | None,
        agents=bool,
        shared=bool,
        tenant=TenantName | None,
    )
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
        agents: bool = False,
        shared: bool = False,
        tenant: str | None = None,
    ) -> Page[SessionRecord]:
        """Return a page of the sessions that match all given filters, newest first: of all users if no user is given.

        Pass the page's `cursor` to get the next page. A session whose record cannot be read is left out; its id is in
        the page's `unreadable`. With `title` or `metadata`, all sessions that match the other filters are read until
        the page is full, so give a `user_id` or a time where there are many.

        Args:
            order_by: the time by which they are ordered: `created_at`, or `updated_at` for the last change.
            title: a part of the title, in upper or lower case, or the whole id.
            metadata: names with values that the session's metadata has too.
            since: only sessions with that time at or after this one, in seconds since the epoch.
            until: only sessions with that time before this one.
            agents: whether sessions of agents are among them: those that a tool of another session has called.
            shared: instead of the user's own sessions, those of others of which the user is a member. Their records
                name the users to whom they belong, and the members.
            tenant: only sessions of users who have this tenant now: see `set_tenant`.

        Raises:
            InvalidInputError: `shared` is set, and no user or a tenant was given.
        """
        query = _query(user_id, agent, status, agents=agents, shared=shared, tenant=tenant)
        query |= {"order_by": order_by, "cursor": cursor, "limit": limit}
        names = None if metadata is None else self._plain_metadata(metadata)
        filters = SessionFilter(title=title, metadata=names, since=since, until=until)
        self._start.done()
        if filters.is_empty:
            return self._store.checked(self._store.ask("query", **query))
        return self._store.checked(self._store.run(lambda store: find_sessions(store, filters, **query)))

    @checked(
        user_id=UserId | None,
        agent=AgentName | None,
        status=SessionStatus | None,
        agents=bool,
        shared=bool,
        tenant=TenantName | None,
    )
    def count(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        status: SessionStatus | None = None,
        agents: bool = False,
        shared: bool = False,
        tenant: str | None = None,
    ) -> int:
        """Return how many sessions match all given filters: of all users if no user is given.

        `agents`, `shared` and `tenant`: see `list`.
        """
        query = _query(user_id, agent, status, agents=agents, shared=shared, tenant=tenant)
        self._start.done()
        count: int = self._store.ask("count", **query)
        return count

    @checked(
        user_id=UserId | None,
        text=Text,
        order=SearchOrder,
        cursor=Text | None,
        limit=Limit,
        session_id=SessionId | None,
        agent=AgentName | None,
        agents=bool,
        role=SearchedRole | None,
        since=Time | None,
        until=Time | None,
        mark=MarkName | None,
        shared=bool,
    )
    def search(
        self,
        user_id: str | None,
        text: str,
        *,
        order: SearchOrder = "newest",
        cursor: str | None = None,
        limit: int = 20,
        session_id: str | None = None,
        agent: str | None = None,
        agents: bool = False,
        role: SearchedRole | None = None,
        since: float | None = None,
        until: float | None = None,
        mark: str | None = None,
        shared: bool = True,
    ) -> Page[SearchHit]:
        """Return a page of the messages in a user's sessions in which all words of `text` occur, with snippets.

        Sessions that others share with the user are searched too; `user_id` of a hit says to whom its session belongs.
        Whoever was removed from a session finds nothing there from then on.

        Prompts and answers are searched, the first 20,000 characters of each: not thoughts, instructions, summaries or
        results of tools, and not what was forgotten, removed or cleared. What a run was given is found with its first
        result, its answer with its end, and all else at once. Words are compared without case and accents; "words in
        quotes" follow each other; the last word may be the beginning of one. Nothing in `text` is an error of syntax.
        Pass the page's `cursor` to get the next page.

        Args:
            user_id: whose; None: the user "default".
            order: `newest`: in the order in which they were stored, the newest first. `rank`: of the newest 200, those
                first that have the words most often and are short.
            session_id: only in this session.
            agent: only in sessions of this agent.
            agents: whether sessions of agents are searched too: those that a tool of another session has called.
            role: only prompts (`user`), or only answers (`assistant`).
            since: only messages whose `at` is at or after this time, in seconds since the epoch.
            until: only messages whose `at` is before this time.
            mark: only messages that have a mark of this name: see `Session.mark`.
            shared: whether sessions of others are searched of which the user is a member, without those of agents.

        Raises:
            InvalidInputError: `text` has no letter and no digit, or more than 1,000 characters or 32 words.
            SearchUnavailableError: the store cannot search: it is in Redis, or encrypted.
        """
        texts = TextFilter(
            query=parse_query(text),
            user_id=user_id or DEFAULT_USER,
            shared=shared,
            session_id=session_id,
            agent=agent,
            agents=agents,
            role=role,
            since=since,
            until=until,
            mark=mark,
        )
        self._start.done()
        hits: Page[SearchHit] = self._store.run(
            lambda store: find_messages(store, texts, order=order, cursor=cursor, limit=limit)
        )
        return hits

    @checked(user_id=UserId | None, name=MarkName | None, session_id=SessionId | None, cursor=Text | None, limit=Limit)
    def marks(
        self,
        user_id: str | None,
        *,
        name: str | None = None,
        session_id: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[MarkedMessage]:
        """Return a page of the marks of a user's messages: of the newest sessions first, in the order of messages.

        Reads the turns of the sessions that have marks. Pass the page's `cursor` to get the next page.

        Args:
            user_id: whose; None: the user "default".
            name: only marks of this name.
            session_id: only marks of this session's messages.

        Raises:
            SessionNotFoundError: the user has no session `session_id`.
        """
        owner = user_id or DEFAULT_USER
        self._start.done()
        marks: Page[MarkedMessage] = self._store.run(
            lambda store: find_marks(store, owner, name=name, session_id=session_id, cursor=cursor, limit=limit)
        )
        return marks

    @checked(user_id=UserId | None, session_id=SessionId | None)
    def count_marks(self, user_id: str | None, *, session_id: str | None = None) -> Mapping[str, int]:
        """Return how many marks of each name a user's messages have, or those of one session; see `marks`."""
        self._start.done()
        counts: Mapping[str, int] = self._store.run(
            lambda store: count_marks_of(store, user_id or DEFAULT_USER, session_id)
        )
        return counts

    def check_store(self) -> None:
        """Raise unless the session store can be read and written now: it writes something small and deletes it.

        Fails on a full disk, on a server that is out of memory or only read, and if the store cannot be reached. A
        read-only manager's store is only read.

        Raises:
            StoreError: sessions cannot be stored; the error says why.
        """
        self._start.done()
        self._store.ask("now" if self._client.read_only else "try_writing")

    @checked(user_id=UserId | None, cursor=Text | None, limit=Limit)
    def schedules(self, *, user_id: str | None = None, cursor: str | None = None, limit: int = 100) -> Page[Delivery]:
        """Return a page of the schedules of a user's sessions, of all users' if none is given, by their ids.

        Pass the page's `cursor` to get the next page. `Session.schedules` has those of one session.
        """
        self._start.done()
        schedules: Page[Delivery] = self._store.run(
            lambda store: page_of_deliveries(partial(store.deliveries, user_id=user_id), cursor, limit)
        )
        return schedules

    @checked(
        user_id=UserId | None,
        agent=AgentName | None,
        state=RunState | None,
        parent=ParentRun | None,
        labels=Labels | None,
        engine=EngineName | None,
        since=Time | None,
        among=Count | None,
        cursor=Text | None,
        limit=Limit,
        tenant=TenantName | None,
    )
    def runs(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        state: RunState | None = None,
        parent: str | None = None,
        labels: Mapping[str, str] | None = None,
        engine: str | None = None,
        since: float | None = None,
        among: int | None = None,
        cursor: str | None = None,
        limit: int = 100,
        tenant: str | None = None,
    ) -> Page[RunRecord]:
        """Return a page of the runs of all sessions that match, of all users if none is given, newest first.

        Pass the page's `cursor` to get the next page. Runs that are queued or running are found by an index. Of other
        states, a page reads the sessions that have changed since its last run was created, so give a `user_id`, `since`
        or `among` where there are many sessions. Sessions that cannot be read are in the page's `unreadable`.

        Args:
            state: only runs in this state.
            parent: only runs that were started on behalf of this run: see `Session.run`.
            labels: only runs that have all of these labels.
            engine: only runs that have the engine of this name; that of a `Split` is the one that it has chosen.
            since: only runs that were created at this time or later, in seconds since the epoch.
            among: only runs of so many sessions, those that changed last; of all sessions if omitted.
            tenant: only runs of users who have this tenant now: see `set_tenant`.
        """
        query: dict[str, Any] = {"user_id": user_id, "agent": agent, "cursor": cursor, "limit": limit, "since": since}
        query |= {"tenant": tenant, "among": among}
        states = None if state is None else (state,)
        self._start.done()
        runs: Page[RunRecord] = self._store.run(
            lambda store: find_runs(store, states=states, parent=parent, labels=labels or {}, engine=engine, **query)
        )
        return runs

    @checked(on_event=Sink, if_raises=IfRaises, **_EVENT_FILTERS)
    def subscribe(
        self,
        on_event: EventSink,
        *,
        session_id: str | None = None,
        user_id: str | None = None,
        agent: str | None = None,
        kinds: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
        cursor: str | None = None,
        if_raises: IfRaises = "repeat",
    ) -> Subscription:
        """Call a function with each stored event of all matching sessions, from now on, also of future ones.

        It gets the events of a session by number, each once; those of different sessions come in any order, within a
        second if the store has few sessions that match. Deltas are not stored: for these, see `on_event` of
        `Session.run`. If the function raises, it gets the same event again, after pauses that grow to a minute, and no
        other one before; a session that is deleted meanwhile changes nothing in that. While the store cannot be read,
        the subscription tries again. It starts no processes of sessions. Each look for changes reads the sessions of
        the user, or of all users if none is given, that have changed in the last minute.

        Args:
            on_event: called in a thread, or in a task of the asynchronous family, which takes coroutine functions too.
            session_id: only the events of this session of the user, who is "default" if omitted; otherwise those of all
                sessions of `user_id` and `agent`, or of all users and agents.
            kinds: only events of these kinds, such as `["run_completed", "run_failed"]`.
            labels: only events that have all of these labels: those of their run, and their own.
            cursor: go on after the events that an earlier subscription with the same filters has handed out: its
                `cursor`.
            if_raises: with "skip", the function gets the next event after one at which it raised; the error is logged.

        Raises:
            SessionNotFoundError: there is no such session, or it belongs to another user.
        """
        names = {"session_id": session_id, "user_id": user_id, "agent": agent}
        feed = self._event_feed(**names, kinds=kinds, labels=labels, cursor=cursor)
        subscription = Subscription(feed, on_event, if_raises)
        self._subscriptions.append(subscription)
        return subscription

    @checked(**_EVENT_FILTERS)
    def _event_feed(
        self,
        *,
        session_id: str | None,
        user_id: str | None,
        agent: str | None,
        kinds: Sequence[str] | None,
        labels: Mapping[str, str] | None,
        cursor: str | None,
    ) -> EventFeed:
        """Return what a subscription hands out: see `subscribe`. The service streams it to clients."""
        self._start.done()
        session = None if session_id is None else self._store.get(session_id, user_id or DEFAULT_USER)
        if session and agent not in (None, session.agent):
            raise SessionOwnerError(session.session_id, agent)
        return EventFeed(
            self._client,
            {"user_id": user_id, "agent": agent},
            session=session.key if session else None,
            only=event_filter(kinds, labels),
            start_time=self._store.now(),
            cursor=cursor,
        )

    @checked(
        url=Text,
        events=WebhookEvents,
        user_id=UserId | None,
        secret=Secret,
        allow_private=bool,
        idempotency_key=IdempotencyKey | None,
    )
    def webhook(
        self,
        url: str,
        *,
        events: Sequence[WebhookEvent],
        user_id: str | None = None,
        secret: str | None = None,
        allow_private: bool = False,
        idempotency_key: str | None = None,
    ) -> Webhook:
        """Have a URL told of what happens in sessions, signed as Standard Webhooks are; return the new webhook.

        What happens is told at least once, always with the same `webhook-id`, and again for three days until the
        receiver answers with a status from 200 to 299; it is stored by the commit that it tells of. The processes of
        sessions know a webhook within a minute. Deleting a session, or forgetting its user, removes what was not sent.

        Args:
            url: `https://...`. Its name is resolved before each call, and addresses inside the network are refused.
            events: what it is told of: see `WebhookEvent`.
            user_id: only of this user's sessions; of all users' if omitted.
            secret: signs the calls: `whsec_`, then 24 to 64 bytes in base64; a random one if omitted. Only the
                returned webhook shows it. With `encryption`, it is encrypted with the key of the user, or of the user
                "default".
            allow_private: whether the URL may lead to addresses inside the network, and be `http://`.
            idempotency_key: a repeated call with it returns the webhook that the first one has created, with its
                secret, until that one is deleted.

        Raises:
            InvalidInputError: an argument cannot be used, the store has as many webhooks as it may have, or the
                idempotency key belongs to a webhook that tells another URL, or of something else.
        """
        self._check_writes("*", "webhook")
        check_url(url, allow_private=allow_private)
        self._start.done()
        record = WebhookRecord(
            webhook_id=new_id() if idempotency_key is None else repeatable_webhook_id(user_id, idempotency_key),
            url=url,
            events=tuple(events),
            user_id=user_id,
            allow_private=allow_private,
            secret=secret or new_secret(),
            created_at=self._store.now(),
        )
        record = add_webhook(self._store, record, idempotency_key)
        self._client.announce_webhooks()
        return Webhook(self._client, self._store, record, is_new=True)

    @checked(user_id=UserId | None)
    def webhooks(self, *, user_id: str | None = None) -> Sequence[Webhook]:
        """Return the webhooks that are told of a user's sessions alone, oldest first; without a user, all webhooks."""
        self._start.done()
        records: Sequence[WebhookRecord] = self._store.ask("webhooks")
        matching = [record for record in records if user_id in (None, record.user_id)]
        matching.sort(key=lambda record: (record.created_at, record.webhook_id))
        return [Webhook(self._client, self._store, record) for record in matching]

    @checked(quota=QuotaArg)
    def set_quota(self, quota: Quota) -> None:
        """Limit what may be used in a period, from now on: `Quota(user_id="*", runs=100, per="day")`.

        A quota with another limit for the same replaces the earlier one, and what is used stays counted. It counts what
        is used after it was set. Sessions in processes of Ray hold it within ten seconds, those of this process at
        once.

        Raises:
            InvalidInputError: it cannot be used, or the store has 100 quotas.
        """
        self._check_writes("*", "set_quota")
        self._start.done()
        self._store.ask("set_quota", quota)
        self._client.announce_quotas()
        self._once.announce_quotas()

    @checked(quota_id=Text)
    def remove_quota(self, quota_id: str) -> None:
        """Remove a quota, by its `quota_id`; it limits nobody any more, within ten seconds.

        Raises:
            QuotaNotFoundError: there is none with this id.
        """
        self._check_writes("*", "remove_quota")
        self._start.done()
        self._store.ask("remove_quota", quota_id)
        self._client.announce_quotas()
        self._once.announce_quotas()

    @checked(user_id=UserId | None, agent=AgentName | None, tenant=TenantName | None)
    def quotas(
        self, *, user_id: str | None = None, agent: str | None = None, tenant: str | None = None
    ) -> Sequence[QuotaUse]:
        """Return the quotas that limit a user, an agent or a tenant, with what is used of them in the present period.

        Args:
            user_id: whose quotas, those of the user's tenant among them; without it, all quotas, and those of each user
                (`"*"`) do not say what is used.
            agent: only those that limit this agent's sessions, likewise.
            tenant: only those that limit users of this tenant, likewise; none with a user who does not have it.
        """
        self._start.done()
        uses: Sequence[QuotaUse] = self._store.run(lambda store: quota_uses(store, user_id, agent, tenant))
        return uses

    @checked(user_id=UserId, tenant=TenantName | None)
    def set_tenant(self, user_id: str, tenant: str | None) -> None:
        """Give a user a tenant: a label such as the name of a company, by which quotas, the ledger and lists go.

        It takes the place of the user's earlier tenant; None removes that. The user needs no session. What the user has
        spent before stays with the earlier tenant. Sessions in processes of Ray know it within ten seconds, those of
        this process at once.

        Args:
            tenant: an id of at most 64 bytes.
        """
        self._check_writes("*", "set_tenant")
        self._start.done()
        self._store.ask("set_tenant", user_id, tenant)
        self._client.announce_quotas()
        self._once.announce_quotas()

    @checked(user_id=UserId)
    def tenant(self, user_id: str) -> str | None:
        """Return a user's tenant; None if the user has none."""
        self._start.done()
        tenants: Mapping[str, str] = self._store.ask("tenants_of", [user_id])
        return tenants.get(user_id)

    @checked(cursor=NameCursor | None, limit=Limit)
    def tenants(self, *, cursor: str | None = None, limit: int = 100) -> Page[Tenant]:
        """Return a page of the tenants that users have, by their names, and of how many users each is the tenant.

        Pass the page's `cursor` to get the next page.
        """
        self._start.done()
        tenants: Sequence[Tenant] = self._store.ask("tenants", after=cursor or "", limit=limit + 1)
        page = tuple(tenants[:limit])
        return Page(page, page[-1].tenant if len(tenants) > limit else None)

    @checked(tenant=TenantName, cursor=NameCursor | None, limit=Limit)
    def users(self, tenant: str, *, cursor: str | None = None, limit: int = 100) -> Page[str]:
        """Return a page of the ids of the users who have a tenant, in order.

        Pass the page's `cursor` to get the next page.
        """
        self._start.done()
        users: Sequence[str] = self._store.ask("users", tenant, after=cursor or "", limit=limit + 1)
        page = tuple(users[:limit])
        return Page(page, page[-1] if len(users) > limit else None)

    @checked(user_id=UserId | None)
    def files(self, *, user_id: str | None = None) -> Files:
        """Return the files of a user that belong to no session; any session of the user may name them in its prompts.

        Then the session has the file, too, and keeps it when the user's is deleted.

        Args:
            user_id: "default" if omitted.
        """
        self._start.done()
        return Files(self._client, SessionKey(OF_USER, user_id or DEFAULT_USER))

    @checked(user_id=UserId | None, agent=AgentName | None)
    def memory(self, *, user_id: str | None = None, agent: str | None = None) -> UserMemory:
        """Return what long-term memories keep for a user, without a session.

        Args:
            user_id: "default" if omitted.
            agent: whose items it has, as sessions with this agent do. Semantic items are there for each agent.
        """
        self._start.done()
        scope = Scope(user_id=user_id or DEFAULT_USER, agent=agent)
        return UserMemory(OwnMemoryHost(self._client, scope))

    @checked(
        user_id=UserId | None,
        agent=AgentName | None,
        since=Day | None,
        until=Day | None,
        by=LedgerFields,
        tenant=TenantName | None,
    )
    def usage(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        since: date | str | None = None,
        until: date | str | None = None,
        by: Sequence[LedgerField] = (),
        tenant: str | None = None,
    ) -> UsageReport:
        """Return what was spent: runs, tokens, time and cost, also by stopped runs, and by sessions that were deleted.

        What was spent is written down by the commit that stores it, exactly once. It includes summaries, the model
        calls of long-term memories, and agents that others have called.

        Args:
            user_id: only what this user has spent.
            agent: only what sessions of this agent have spent.
            since: only on this day or later, in UTC: a date, or a text such as `2026-11-29`.
            until: only on this day or before.
            by: what to split the sums by: `day`, `user`, `agent`, `session`, `kind` (see `SpentOn`), `model`, `tool`,
                `tenant`, `engine` (the name that the run's engine has; of a `Split`, the chosen one).
            tenant: only what users have spent while they had this tenant: see `set_tenant`.

        Raises:
            InvalidInputError: `since` is after `until`.
        """
        if since and until and str(since) > str(until):
            raise InvalidInputError("since", since, f"must not be after until, {until}")
        self._start.done()
        first, last = (None if day is None else str(day) for day in (since, until))
        query = LedgerQuery(user_id, agent, first, last, tuple(by), tenant)
        rows: list[LedgerRow] = self._store.ask("ledger", query)
        return UsageReport(by=query.by, since=query.since, until=query.until, rows=tuple(rows))

    @checked(user_id=UserId, verify=bool, only_memory=bool)
    def forget(self, user_id: str, *, verify: bool = True, only_memory: bool = False) -> Forgotten:
        """Delete a user's sessions, webhooks and what this manager's memories keep; return what was removed.

        The user's events in the event store go too, those of `run_once` among them.

        Active runs are cancelled. The sessions are deleted first, so that they save nothing while memories are cleared.
        The call may be repeated, and must be repeated if it fails halfway. What other users said about this user stays
        in their own memories. The user leaves the sessions of others, in which what the user has said stays. What the
        user has spent stays in the ledger, without the user.

        Args:
            verify: whether memories are checked afterwards for remains, in the parts that were changed, at a cost that
                grows with what is forgotten.
            only_memory: if true, only memories and notes forget; sessions and all else stay. Turns that wait to be
                saved are saved before. The result's `in_use` names sessions of which a turn is saved later: a run is
                under way, or a memory has not taken the turn within 30 s. Cancel the run, and repeat the call.

        Raises:
            LongTermMemoryError: a memory failed; the sessions are deleted.
        """
        self._check_writes("*", "forget")
        self._start.done()
        if only_memory:
            return forget_only_memory(self._client, self._store, user_id, verify=verify)
        self._once.forget(user_id)
        report = forget(self._client, self._store, user_id, verify=verify)
        self._once.announce_quotas()
        collect_files(self._client)
        return report

    @checked(user_id=UserId, agent=AgentName | None, keep_last=Count, memory=bool, verify=bool)
    def clear(
        self,
        user_id: str,
        *,
        agent: str | None = None,
        keep_last: int = 0,
        memory: bool = True,
        verify: bool = False,
    ) -> Forgotten:
        """Clear all of a user's sessions, those of agents included, as `Session.clear` does.

        The sessions stay, and so does what memories keep apart from them; `forget` deletes that, too. Each is cleared
        in a commit of its own. The call may be repeated, and must be if it fails halfway.

        Args:
            agent: only sessions of this agent.
            keep_last, memory, verify: see `Session.clear`.

        Raises:
            LongTermMemoryError: memories failed; the sessions that come later were not cleared.

        Returns:
            what was removed. Its `in_use` names the sessions that a run was using, and that were left as they are.
        """
        self._check_writes("*", "clear")
        self._start.done()
        options = {"keep_last": keep_last, "memory": memory, "verify": verify}
        return clear(self._client, self._store, user_id, agent, **options)

    @checked(archive=Folder | None, memory=bool, cursor=Text | None, limit=Limit | None)
    def sweep(
        self,
        archive: str | Path | None = None,
        *,
        memory: bool = False,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> Swept:
        """Delete sessions that have expired (see `ttl_s`) and have no active run; return which were deleted or kept.

        Each commit to a session restarts its `ttl_s`, and so does `Session.refresh`. A session that is used during the
        sweep is kept. Sweeps may be repeated and may run concurrently. Where sessions have a `ttl_s`, this also happens
        by itself: see `SessionConfig.sweep_every_s`, and set `sweep_archive` if sessions must be exported first.

        Args:
            archive: a folder to which each session is exported before it is deleted: one unencrypted file per session,
                named by the session's id, user and creation time. `turnwise import` reads it.
            memory: if true, this manager's memories also forget what they keep of each deleted session.
            cursor: the `Swept.cursor` of a sweep with a `limit`, behind which this one begins.
            limit: how many expired sessions to sweep at most, and so to return; all if omitted.

        Raises:
            InvalidInputError: a parameter is wrong.
            StoreError: the store cannot be reached. Sessions that cannot be exported or deleted are returned as
                `failed`.
        """
        self._check_writes("*", "sweep")
        self._start.done()
        memories = memories_of(self._client, self._config) if memory else None
        folder = Path(archive) if archive else None
        swept = sweep(self._client, self._store.store, folder, memories, cursor=cursor, limit=limit)
        collect_files(self._client)
        return swept

    def hosts(self) -> Sequence[HostInfo]:
        """Return the processes that host sessions of this manager's store and namespace, on all nodes of the cluster.

        Packed hosts come first, then the processes of single sessions, of which at most 1,000 are asked. One that does
        not answer within three seconds is returned without its load. A read-only manager finds those of the Ray to
        which this process is connected, if it is.
        """
        self._start.done()
        return steps.run(self._client.portal, self._client.runtime.hosts, self._client.name)

    @checked(node=Text | None, timeout_s=WaitSeconds)
    def drain(self, node: str | None = None, *, timeout_s: float = 60.0) -> DrainReport:
        """Have all processes of turnwise, of whichever store, leave a node of the Ray cluster that is about to go.

        Idle sessions are handed over at once, and their next call reaches them elsewhere. Runs go on until they end,
        for `timeout_s` at most; what is queued behind them begins elsewhere. Runs that take longer are taken over: they
        end as interrupted or, with `on_lost="resume"`, go on, and their records say why. Nothing new starts there.

        Once nothing runs there, Ray ends the node by itself, and programs that are connected there lose their Ray. May
        be repeated, also after a kill of this program: processes that were told leave all the same.

        Args:
            node: Ray's id of the node; this process's if omitted.
            timeout_s: how long runs may go on there, in seconds.

        Raises:
            ConfigError: there is no such node, it is the head of the cluster, or sessions live in the program itself.
        """
        self._start.done()
        return steps.run(self._client.portal, self._client.runtime.drain, node, timeout_s)

    @checked(run_id=RunId, user_id=UserId | None, as_user=AsUser | None)
    def execution(self, run_id: str, *, user_id: str | None = None, as_user: str | None = None) -> ExecutionHandle:
        """Return the handle of a run of any of the user's sessions; without a user, of those of the user "default".

        Also finds runs of `run_once`, by any manager of this store on this Ray, as long as they are there.

        Args:
            as_user: the member of its session for whom it is: see `get`.

        Raises:
            RunNotFoundError: no run has this id, it belongs to another user, or `as_user` is no member of its session.
        """
        self._start.done()
        user_id = user_id or DEFAULT_USER
        client, run = self._find_run(run_id, user_id)
        if as_user in (None, user_id):
            return ExecutionHandle(client, SessionRef(run.session_key), run_id, run.turn_index)
        try:
            self._check_member(self._store.get(*run.session_key), as_user)
        except SessionNotFoundError:
            raise RunNotFoundError(run_id, "the store") from None
        return ExecutionHandle(client, SessionRef(run.session_key, as_user=as_user), run_id, run.turn_index)

    def _find_run(self, run_id: str, user_id: str) -> tuple[SessionsClient, RunRecord]:
        try:
            run: RunRecord = self._store.ask("run", run_id, user_id)
        except RunNotFoundError:
            if not self._client.read_only and (once := self._once.find(run_id, user_id)):
                return once
            raise
        check_session(self._store.ask("get", run.session_key))
        return self._client, run

    def close(self) -> None:
        """Close the store and all subscriptions. Sessions and their runs continue. Closing twice is fine."""
        for subscription in self._subscriptions:
            subscription.close()
        self._sweeps.close()
        self._once.close()
        steps.run(self._client.portal, self._client.close)
        self._client.portal.close()

    def _connect(self) -> None:
        """Connect this process, and start the processes of hosts and memories. Blocks; may be repeated."""
        if not self._client.read_only:
            self._connect_runtime()
            if self._first is not None:
                self._client.start_ahead(self._first)
        self._store.store  # noqa: B018 - the first access opens it
        if not self._client.read_only:
            self._client.warm_up()
            self._client.look_for_deliveries()

    def _check_engine(self, name: str | None, session: SessionKey) -> EngineBuilder:
        """Return the engine of a session. Raise ConfigError, which names the session, if there is none of this name."""
        engines = as_engine(self._engine)
        builder = answering(engine_named(engines, chosen_name(engines, name, session)))
        if isinstance(builder, MissingEngine):
            raise builder.error(session.session_id)
        return builder

    def _check_writes(self, session_id: str, verb: str) -> None:
        if self._client.read_only:
            raise ReadOnlyStoreError(session_id, verb)

    def _plain_metadata(self, metadata: Mapping[str, Any] | None) -> FrozenDict:
        plain = {} if metadata is None else json_object("metadata", metadata, self._config.max_metadata_bytes)
        names: FrozenDict = freeze(plain)
        return names


def _query(
    user_id: str | None,
    agent: str | None,
    status: SessionStatus | None,
    *,
    agents: bool,
    shared: bool,
    tenant: str | None,
) -> dict[str, Any]:
    """Return the filters by which a store finds sessions."""
    query: dict[str, Any] = {"agent": agent, "status": status, "tenant": tenant}
    if not shared:
        return {"user_id": user_id, "called_by": None if agents else NO_CALLER, **query}
    if user_id is None:
        raise InvalidInputError("shared", True, "pass the user_id of the member")
    if tenant is not None:
        raise InvalidInputError("tenant", shown(tenant), "pass it without shared: members may be of any tenant")
    return {"member": user_id, **query}
