"""`AsyncRemoteManager`: opens, finds and lists the sessions of a service, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

import httpx2

from turnwise.actors.client.importing import read_conversation
from turnwise.actors.client.shared.arguments import (
    AgentName,
    AsUser,
    Connections,
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
    Seconds,
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
    json_object,
)
from turnwise.actors.client.shared.run_options import RunOptions
from turnwise.actors.hosting.wire import DrainReport, HostInfo
from turnwise.client.connection import AsyncConnection
from turnwise.client.execution import AsyncRemoteExecutionHandle
from turnwise.client.files import AsyncRemoteFiles
from turnwise.client.session import AsyncRemoteSession
from turnwise.client.shared.answers import MOST_HITS, Request, Whose, given, most, path_of
from turnwise.client.shared.reading import (
    delivery_of,
    drain_report_of,
    forgotten_of,
    hit_of,
    host_of,
    marked_of,
    page_of,
    quota_use_of,
    report_of,
    run_of,
    session_of,
    swept_of,
    tenant_of,
    webhook_of,
)
from turnwise.client.shared.sending import run_body
from turnwise.client.subscription import AsyncRemoteSubscription
from turnwise.client.webhooks import AsyncRemoteWebhook
from turnwise.errors import InvalidInputError, QuotaNotFoundError, shown
from turnwise.memory.archive.expiry import PAGE, Swept
from turnwise.memory.conversation.ledger import LedgerField, UsageReport
from turnwise.memory.conversation.marks import MarkedMessage
from turnwise.memory.conversation.memory_use import MemoryUse, memory_use
from turnwise.memory.conversation.model_params import ModelParams
from turnwise.memory.conversation.prompts import Prompt
from turnwise.memory.conversation.runs import RunRecord, RunState
from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionRecord, SessionStatus
from turnwise.memory.conversation.views.message_formats import MessageFormat
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.deliveries.webhooks import WebhookEvent
from turnwise.memory.longterm.retention.deletion_report import Forgotten
from turnwise.memory.quotas.records import Quota, QuotaUse
from turnwise.memory.quotas.tenants import Tenant
from turnwise.memory.stores.base import Page, SessionOrder
from turnwise.memory.stores.search.finding import SearchHit, SearchOrder
from turnwise.memory.stores.search.records import SearchedRole
from turnwise.memory.values.ids import new_id

SWEEP_S = 300.0
"""How long a request to sweep some sessions may take beside `timeout_s`, in seconds."""


class AsyncRemoteManager:
    """`RemoteManager` with coroutine methods. Use it on one event loop.

    It has the verbs of `AsyncSessionManager` for sessions that a service serves, by `turnwise serve`, `create_app` or
    Ray Serve, and returns the same values and raises the same errors. It needs no Ray, no store and no engine: those
    are the service's. Making one asks nobody.

    A user who is named by `user_id`, `as_user` or `user` must be the one of the token, unless the token is an
    operator's or the service has no authentication. If nobody is named, requests are those of the token's user; `list`,
    `count`, `runs` and `schedules` are then about all users if the token is an operator's.

    A request that was not sent, or whose answer was lost, is sent again for `retry_s` seconds. It is carried out once:
    the process of the service that has done so repeats its answer. Another process carries a request out only if doing
    it twice does the same as once. Otherwise ServiceAwayError says with its `word` what is known: "unsent", or
    "unknown" if the request may have been carried out.

    Args:
        url: that of the service, or where it is mounted: `https://chat.example.com`.
        token: what is sent as `Authorization: Bearer`, or a function that returns it for each request; in the
            asynchronous family it may be a coroutine function.
        user: the user of all calls that name none.
        timeout_s: how long an answer may take, in seconds, beside the time that a call asks to wait.
        retry_s: for how many seconds a service that is away is tried again.
        connections: how many connections are open at most; each stream, and each wait, takes one.
        transport: what sends requests, instead of the network, such as `httpx2.ASGITransport(app)` in tests.

    Raises:
        ConfigError: the URL cannot be one.
    """

    @checked(user=UserId | None, timeout_s=Seconds, retry_s=WaitSeconds, connections=Connections)
    def __init__(
        self,
        url: str,
        *,
        token: str | Callable[[], Any] | None = None,
        user: str | None = None,
        timeout_s: float = 60.0,
        retry_s: float = 60.0,
        connections: int = 100,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._user = user
        self._subscriptions: list[AsyncRemoteSubscription] = []
        self._connection = AsyncConnection(
            url, token, timeout_s=timeout_s, retry_s=retry_s, connections=connections, transport=transport
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._connection.url}>"

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
    ) -> AsyncRemoteSession:
        """Return the session with this id, and create it if it does not exist; without an id, create a new one.

        See `SessionManager.open`. May be repeated.
        """
        opened = session_id or new_id()
        body: dict[str, Any] = given(agent=agent, ttl_s=ttl_s, model=model, engine=engine, title=title)
        body |= {"id": opened, "memory": memory_use(memory), "if_exists": if_exists}
        body |= given(
            metadata=None if metadata is None else json_object("metadata", metadata), params=params and dict(params)
        )
        whose = self._whose(user_id)
        data = await self._ask("POST", "sessions", whose=whose, body=body)
        return AsyncRemoteSession(self._connection, whose, data["id"], data["user_id"], data["agent"])

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
    ) -> AsyncRemoteSession:
        """Store a conversation from elsewhere in a session, which is created if it does not exist; return the session.

        See `SessionManager.import_messages`. Formats are those of OpenAI and Anthropic. May be repeated.
        """
        await read_conversation(messages, format, system=system, key=idempotency_key)  # else it would leave a session
        owner: dict[str, Any] = {"user_id": user_id, "agent": agent}
        session = await self.open(session_id, **owner, metadata=metadata, title=title, engine=engine)
        key: dict[str, Any] = {"system": system, "idempotency_key": idempotency_key, "memory": memory}
        await session.import_messages(messages, format, **key)
        return session

    async def run_once(
        self,
        *prompts: Prompt,
        user_id: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        engine: str | None = None,
        **options: Unpack[RunOptions],
    ) -> AsyncRemoteExecutionHandle:
        """Start a run without a history and without memories, of which the service's store keeps nothing.

        See `SessionManager.run_once`.
        """
        body, headers = run_body("*", prompts, options, names=("if_busy",))
        if options.get("idempotency_key") is not None:
            reason = "this run is in no session, so a repeated call would run again: leave it out"
            raise InvalidInputError("idempotency_key", shown(options["idempotency_key"]), reason)
        del headers["Idempotency-Key"]
        body |= given(agent=agent, engine=engine)
        body |= given(metadata=None if metadata is None else json_object("metadata", metadata))
        whose = self._whose(user_id)
        data = await self._ask("POST", "run", whose=whose, body=body, headers=headers, is_repeatable=False)
        output, on_event = options.get("output"), options.get("on_event")
        return AsyncRemoteExecutionHandle(
            self._connection,
            whose,
            data["session_id"],
            data["id"],
            data["turn_index"],
            output=output,
            on_event=on_event,
        )

    @checked(session_id=SessionId, user_id=UserId | None, as_user=AsUser | None)
    async def get(
        self, session_id: str, *, user_id: str | None = None, as_user: str | None = None
    ) -> AsyncRemoteSession:
        """Return the user's session of this id; without a user, that of the user "default".

        Args:
            as_user: the member for whom it is: what the session and its runs then do is what the member's role allows,
                and is the member's own: see `Session.add_member`. If omitted, all is done for the session's user.

        Raises:
            SessionNotFoundError: the user has no such session, or `as_user` is no member of it.
        """
        whose = self._whose(user_id, as_user)
        data = await self._ask("GET", "sessions", session_id, whose=whose)
        return AsyncRemoteSession(self._connection, whose, data["id"], data["user_id"], data["agent"])

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
        agents: bool = False,
        shared: bool = False,
        tenant: str | None = None,
    ) -> Page[SessionRecord]:
        """Return a page of the sessions that match all given filters, newest first.

        See `SessionManager.list`. If no user is named: of all users, if the token is an operator's.
        """
        query: dict[str, Any] = {"agent": agent, "status": status, "title": title, "since": since, "until": until}
        query |= {"order_by": order_by, "agents": agents, "shared": shared, "tenant": tenant, **self._all(user_id)}
        query |= {"metadata": None if metadata is None else json.dumps(json_object("metadata", metadata))}
        if shared and (user_id or self._user) is None:
            raise InvalidInputError("shared", True, "pass the user_id of the member")
        query |= {"cursor": cursor, "limit": most(limit)}
        return page_of(await self._ask("GET", "sessions", whose=self._whose(user_id), query=query), session_of)

    @checked(
        user_id=UserId | None,
        agent=AgentName | None,
        status=SessionStatus | None,
        agents=bool,
        shared=bool,
        tenant=TenantName | None,
    )
    async def count(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        status: SessionStatus | None = None,
        agents: bool = False,
        shared: bool = False,
        tenant: str | None = None,
    ) -> int:
        """Return how many sessions match all given filters; see `list`."""
        query: dict[str, Any] = {"agent": agent, "status": status, "agents": agents, "shared": shared, "tenant": tenant}
        query |= self._all(user_id)
        return int((await self._ask("GET", "count", whose=self._whose(user_id), query=query))["sessions"])

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
    async def search(
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
            user_id: whose; None: the user of the token.
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
        query: dict[str, Any] = {"text": text, "order": order, "session_id": session_id, "agent": agent, "role": role}
        query |= {"agents": agents, "since": since, "until": until, "mark": mark, "shared": shared}
        query |= {"cursor": cursor, "limit": most(limit, MOST_HITS)}
        return page_of(await self._ask("GET", "search", whose=self._whose(user_id), query=query), hit_of)

    @checked(user_id=UserId | None, name=MarkName | None, session_id=SessionId | None, cursor=Text | None, limit=Limit)
    async def marks(
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
            user_id: whose; None: the user of the token.
            name: only marks of this name.
            session_id: only marks of this session's messages.

        Raises:
            SessionNotFoundError: the user has no session `session_id`.
        """
        query = {"name": name, "session_id": session_id, "cursor": cursor, "limit": most(limit)}
        return page_of(await self._ask("GET", "marks", whose=self._whose(user_id), query=query), marked_of)

    @checked(user_id=UserId | None, session_id=SessionId | None)
    async def count_marks(self, user_id: str | None, *, session_id: str | None = None) -> Mapping[str, int]:
        """Return how many marks of each name a user's messages have, or those of one session; see `marks`."""
        query = {"session_id": session_id}
        counts: Mapping[str, int] = (await self._ask("GET", "marks", "count", whose=self._whose(user_id), query=query))[
            "marks"
        ]
        return counts

    async def check_store(self) -> None:
        """Raise unless the service can read and write its store now.

        Raises:
            StoreError: sessions cannot be stored; the error says why.
            ServiceAwayError: the service cannot be reached, or stops.
        """
        await self._connection.ask(Request(method="GET", path="/health/ready"), Whose())

    @checked(user_id=UserId | None, cursor=Text | None, limit=Limit)
    async def schedules(
        self, *, user_id: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> Page[Delivery]:
        """Return a page of the schedules of a user's sessions, by their ids.

        If no user is named: of all users, if the token is an operator's. Pass the page's `cursor` to get the next page.
        """
        query = {"cursor": cursor, "limit": most(limit), **self._all(user_id)}
        return page_of(await self._ask("GET", "schedules", whose=self._whose(user_id), query=query), delivery_of)

    @checked(
        user_id=UserId | None,
        agent=AgentName | None,
        state=RunState | None,
        parent=ParentRun | None,
        labels=Labels | None,
        engine=EngineName | None,
        since=Time | None,
        cursor=Text | None,
        limit=Limit,
        tenant=TenantName | None,
        among=Count | None,
    )
    async def runs(
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
        """Return a page of the runs of all sessions that match, newest first.

        See `SessionManager.runs`. If no user is named: of all users, if the token is an operator's.
        """
        query: dict[str, Any] = {"agent": agent, "state": state, "parent": parent, "engine": engine, "since": since}
        query |= {"labels": labels and json.dumps(dict(labels)), "tenant": tenant, **self._all(user_id)}
        query |= {"cursor": cursor, "limit": most(limit), "among": among}
        return page_of(await self._ask("GET", "runs", whose=self._whose(user_id), query=query), run_of)

    @checked(
        on_event=Sink,
        session_id=SessionId | None,
        user_id=UserId | None,
        agent=AgentName | None,
        kinds=StoredKinds | None,
        labels=Labels | None,
        cursor=Text | None,
        if_raises=IfRaises,
    )
    async def subscribe(
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
    ) -> AsyncRemoteSubscription:
        """Call a function with each stored event of all matching sessions, from now on, also of future ones.

        See `SessionManager.subscribe`. The events come by one stream; one that is cut goes on behind the last event. If
        no user is named: of all users, if the token is an operator's.

        Raises:
            SessionNotFoundError: there is no such session, or it belongs to another user.
        """
        whose = self._whose(user_id)
        filters = given(
            session_id=session_id,
            agent=agent,
            kinds=None if kinds is None else sorted(kinds),
            labels=labels and dict(labels),
            **(self._all(user_id) if session_id is None else {}),
        )
        begin = await self._ask(
            "POST", "events", whose=whose, body={**filters, "cursor": cursor, "limit": 0}, is_read=True
        )
        place = self._connection, whose, filters, str(begin["cursor"])
        subscription = AsyncRemoteSubscription(*place, on_event=on_event, if_raises=if_raises)
        self._subscriptions.append(subscription)
        return subscription

    @checked(
        url=Text,
        events=WebhookEvents,
        user_id=UserId | None,
        secret=Secret,
        allow_private=bool,
        idempotency_key=IdempotencyKey | None,
    )
    async def webhook(
        self,
        url: str,
        *,
        events: Sequence[WebhookEvent],
        user_id: str | None = None,
        secret: str | None = None,
        allow_private: bool = False,
        idempotency_key: str | None = None,
    ) -> AsyncRemoteWebhook:
        """Have a URL told of what happens in sessions, signed as Standard Webhooks are; return the new webhook.

        See `SessionManager.webhook`. Users who are no operators have webhooks only if the service allows that, and of
        their own sessions. A call whose answer was lost is repeated, and creates one webhook.
        """
        body: dict[str, Any] = {"url": url, "events": [*events], "allow_private": allow_private}
        body |= given(user_id=user_id, secret=secret)
        headers = {"Idempotency-Key": idempotency_key or new_id()}
        data = await self._ask("POST", "webhooks", whose=self._whose(None), body=body, headers=headers)
        return AsyncRemoteWebhook(self._connection, self._whose(None), webhook_of(data), is_new=True)

    @checked(user_id=UserId | None)
    async def webhooks(self, *, user_id: str | None = None) -> Sequence[AsyncRemoteWebhook]:
        """Return the webhooks that are told of a user's sessions alone, oldest first.

        Without a user: all that the token may see.
        """
        records = map(webhook_of, (await self._ask("GET", "webhooks", whose=self._whose(None)))["items"])
        return [
            AsyncRemoteWebhook(self._connection, self._whose(None), record)
            for record in records
            if user_id in (None, record.user_id)
        ]

    @checked(quota=QuotaArg)
    async def set_quota(self, quota: Quota) -> None:
        """Limit what may be used in a period, from now on. For operators. See `SessionManager.set_quota`."""
        body = given(user=quota.user_id, agent=quota.agent, tenant=quota.tenant)
        body |= {quota.unit: getattr(quota, quota.unit), "per": quota.per, "then": quota.then}
        await self._ask("PUT", "quotas", whose=self._whose(None), body=body)

    @checked(quota_id=Text)
    async def remove_quota(self, quota_id: str) -> None:
        """Remove a quota, by its `quota_id`; it limits nobody any more, within ten seconds. For operators.

        Raises:
            QuotaNotFoundError: there is none with this id.
        """
        request = Request(method="DELETE", path=path_of("quotas", quota_id))
        answer = await self._connection.ask(request, self._whose(None))
        if not answer.data["removed"] and answer.attempts == 1:
            raise QuotaNotFoundError(quota_id)

    @checked(user_id=UserId | None, agent=AgentName | None, tenant=TenantName | None)
    async def quotas(
        self, *, user_id: str | None = None, agent: str | None = None, tenant: str | None = None
    ) -> Sequence[QuotaUse]:
        """Return the quotas that limit a user, an agent or a tenant, with what is used of them in the present period.

        See `SessionManager.quotas`. Users who are no operators see their own.
        """
        query = {"user": user_id or self._user, "agent": agent, "tenant": tenant}
        data = await self._ask("GET", "quotas", whose=self._whose(None), query=query)
        return list(map(quota_use_of, data["items"]))

    @checked(user_id=UserId, tenant=TenantName | None)
    async def set_tenant(self, user_id: str, tenant: str | None) -> None:
        """Give a user a tenant; None removes it. For operators. See `SessionManager.set_tenant`."""
        await self._ask("PUT", "users", user_id, "tenant", whose=self._whose(None), body={"tenant": tenant})

    @checked(user_id=UserId)
    async def tenant(self, user_id: str) -> str | None:
        """Return a user's tenant; None if the user has none. Users who are no operators see their own."""
        data = await self._ask("GET", "users", user_id, "tenant", whose=self._whose(None))
        tenant: str | None = data["tenant"]
        return tenant

    @checked(cursor=NameCursor | None, limit=Limit)
    async def tenants(self, *, cursor: str | None = None, limit: int = 100) -> Page[Tenant]:
        """Return a page of the tenants that users have, by their names, and of how many users each is the tenant.

        For operators. Pass the page's `cursor` to get the next page.
        """
        query = {"cursor": cursor, "limit": most(limit)}
        return page_of(await self._ask("GET", "tenants", whose=self._whose(None), query=query), tenant_of)

    @checked(tenant=TenantName, cursor=NameCursor | None, limit=Limit)
    async def users(self, tenant: str, *, cursor: str | None = None, limit: int = 100) -> Page[str]:
        """Return a page of the ids of the users who have a tenant, in order. For operators.

        Pass the page's `cursor` to get the next page.
        """
        query = {"cursor": cursor, "limit": most(limit)}
        return page_of(await self._ask("GET", "tenants", tenant, "users", whose=self._whose(None), query=query), str)

    @checked(user_id=UserId | None)
    async def files(self, *, user_id: str | None = None) -> AsyncRemoteFiles:
        """Return the files of a user that belong to no session; prompts of any session of the user may name them."""
        return AsyncRemoteFiles(self._connection, self._whose(user_id), None)

    @checked(
        user_id=UserId | None,
        agent=AgentName | None,
        since=Day | None,
        until=Day | None,
        by=LedgerFields,
        tenant=TenantName | None,
    )
    async def usage(
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

        See `SessionManager.usage`. Users who are no operators see their own.
        """
        query = {"user": user_id or self._user, "agent": agent, "tenant": tenant, "by": [*by]}
        query |= {"since": None if since is None else str(since), "until": None if until is None else str(until)}
        if since and until and str(since) > str(until):
            raise InvalidInputError("since", since, f"must not be after until, {until}")
        return report_of(await self._ask("GET", "usage", whose=self._whose(None), query=query))

    @checked(user_id=UserId, verify=bool, only_memory=bool)
    async def forget(self, user_id: str, *, verify: bool = True, only_memory: bool = False) -> Forgotten:
        """Delete a user's sessions, webhooks and what the service's memories keep; return what was removed.

        See `SessionManager.forget`. May be repeated, and must be if it fails halfway. If the answer was lost, and the
        process that gave it has ended, another one forgets the user again: the report then names only what was left.
        """
        whose = self._whose(user_id)
        query = {"verify": verify, "only_memory": only_memory}
        return forgotten_of(await self._ask("DELETE", "user", whose=whose, query=query))

    @checked(user_id=UserId, agent=AgentName | None, keep_last=Count, memory=bool, verify=bool)
    async def clear(
        self,
        user_id: str,
        *,
        agent: str | None = None,
        keep_last: int = 0,
        memory: bool = True,
        verify: bool = False,
    ) -> Forgotten:
        """Clear all of a user's sessions, those of agents included. See `SessionManager.clear`.

        Raises:
            ServiceAwayError: if its `word` is "unknown", sessions may have been cleared. Another call would also remove
                what was said meanwhile, so look at them first.
        """
        body = {"keep_last": keep_last, "memory": memory, "verify": verify}
        options: dict[str, Any] = {"body": body, "query": {"agent": agent}, "is_repeatable": False}
        return forgotten_of(await self._ask("POST", "clear", whose=self._whose(user_id), **options))

    @checked(archive=Folder | None, memory=bool, cursor=Text | None, limit=Limit | None)
    async def sweep(
        self,
        archive: str | Path | None = None,
        *,
        memory: bool = False,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> Swept:
        """Delete sessions that have expired and have no active run; return which were deleted or kept. For operators.

        See `SessionManager.sweep`. Each request is about some hundred sessions at most. Sessions are exported to no
        folder: run `sweep(archive)` where the store is.
        """
        if archive is not None:
            reason = "over HTTP, sessions are swept without an archive: leave it out, or sweep where the store is"
            raise InvalidInputError("archive", shown(str(archive)), reason)
        swept = Swept()
        while True:
            most = PAGE if limit is None else min(limit, PAGE)
            body = {"memory": memory, "cursor": cursor, "limit": most}
            request = Request(method="POST", path=path_of("sweep"), body=body, wait_s=SWEEP_S)
            swept += swept_of((await self._connection.ask(request, self._whose(None))).data)
            cursor, limit = swept.cursor, None if limit is None else limit - most
            if cursor is None or limit == 0:
                return swept

    async def hosts(self) -> Sequence[HostInfo]:
        """Return the processes that host sessions of the service's store, on all nodes of its cluster. For operators.

        See `SessionManager.hosts`.
        """
        return list(map(host_of, (await self._ask("GET", "hosts", whose=self._whose(None)))["items"]))

    @checked(node=Text | None, timeout_s=WaitSeconds)
    async def drain(self, node: str | None = None, *, timeout_s: float = 60.0) -> DrainReport:
        """Have all processes of turnwise leave a node of the service's cluster that is about to go. For operators.

        See `SessionManager.drain`. May be repeated.

        Args:
            node: Ray's id of the node, as `hosts` has it.
            timeout_s: how long runs may go on there, in seconds.

        Raises:
            InvalidInputError: no node is named.
            ConfigError: there is no such node, it is the head of the cluster, or the service has no cluster.
        """
        if node is None:
            raise InvalidInputError("node", None, "this process is on no node of the service's cluster: name one")
        body = {"node": node, "timeout_s": timeout_s}
        request = Request(method="POST", path=path_of("drain"), body=body, wait_s=timeout_s)
        return drain_report_of((await self._connection.ask(request, self._whose(None))).data)

    @checked(run_id=RunId, user_id=UserId | None, as_user=AsUser | None)
    async def execution(
        self, run_id: str, *, user_id: str | None = None, as_user: str | None = None
    ) -> AsyncRemoteExecutionHandle:
        """Return the handle of a run of any of the user's sessions, which may have been started by another process.

        Args:
            as_user: the member of its session for whom it is: see `get`.

        Raises:
            RunNotFoundError: no run has this id, it belongs to another user, or `as_user` is no member of its session.
        """
        whose = self._whose(user_id, as_user)
        data = await self._ask("GET", "runs", run_id, whose=whose)
        return AsyncRemoteExecutionHandle(self._connection, whose, data["session_id"], run_id, data["turn_index"])

    async def close(self) -> None:
        """Close all subscriptions and connections. Sessions and their runs continue. Closing twice is fine."""
        for subscription in self._subscriptions:
            await subscription.close()
        await self._connection.close()

    def _whose(self, user_id: str | None, as_user: str | None = None) -> Whose:
        """Return for whom a call is made: for a member of the user's session, or for the user."""
        owner = user_id or self._user
        if as_user is None or as_user == owner:
            return Whose(owner)
        return Whose(as_user, owner or DEFAULT_USER)

    def _all(self, user_id: str | None) -> dict[str, bool]:
        """Return the query of a list that is about all users, if nobody is named."""
        return {"all": True} if (user_id or self._user) is None else {}

    async def _ask(self, method: str, *parts: str, whose: Whose, **what: Any) -> Any:
        return (await self._connection.ask(Request(method=method, path=path_of(*parts), **what), whose)).data
