"""`Service`: what the requests of one app share; `Caller`: who makes a request, and on which service."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, cast, get_args
from urllib.parse import unquote

from fastapi import Depends, Query, Request
from starlette.requests import HTTPConnection

from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.client.session import AsyncSession
from turnwise.errors import InvalidInputError, OperatorsOnlyError, shown
from turnwise.http.auth import Auth, Identity, identity_of
from turnwise.http.native.handles import Handles, Result, whose
from turnwise.http.problems import TooManyStreams, Unauthorized
from turnwise.http.remembered_answers import Answers
from turnwise.http.settings import HttpSettings, OnDisconnect
from turnwise.memory.conversation.sessions import DEFAULT_USER
from turnwise.memory.quotas.records import asked_quotas

ON_DISCONNECT = "X-On-Disconnect"
"""The header in which a request says `keep` or `cancel`: see `HttpSettings.on_disconnect`."""

ON_BEHALF_OF = "X-Turnwise-User"
"""The header in which an operator's request names the user in whose place it acts, percent-encoded."""

MAX_WEBHOOKS_PER_USER = "max_webhooks_per_user"
"""The setting that lets users have webhooks."""

MOST_NAMED = 10_000
"""Of how many users a process remembers that they have the tenant which their identity names."""

_log = logging.getLogger(__name__)


class Service:
    """What the requests of one app share: the manager, the settings, open streams, work that outlives its request.

    The service does not close `manager`: whoever made it does.
    """

    def __init__(self, manager: AsyncSessionManager, settings: HttpSettings, auth: Auth | None) -> None:
        self.manager = manager
        self.settings = settings
        self.auth = auth
        self.stopping = asyncio.Event()
        """Set when the server stops: streams then end early, and clients resume them by `Last-Event-ID`."""
        self.handles = Handles(manager)
        self.answers = Answers()
        self._tenants = _NamedTenants(manager)
        self._streams: Counter[str | None] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def identify(self, connection: HTTPConnection) -> Identity | None:
        """Return who makes a request; None without authentication.

        Raises:
            Unauthorized: the request has no valid credentials.
            StoreError: the identity names a tenant, which cannot be stored.
        """
        if self.auth is None:
            return None
        identity = await identity_of(self.auth, connection)
        if identity is None:
            raise Unauthorized
        if identity.tenant is not None:
            await self._tenants.set(identity.user_id, identity.tenant)
        return identity

    def webhook_user(self, identity: Identity | None) -> str | None:
        """Return the user whose webhooks somebody reaches; None, for operators and without authentication: all users'.

        Raises:
            OperatorsOnlyError: it is a user who is no operator, and the service lets these have no webhooks.
        """
        if identity is None or identity.is_operator:
            return None
        if not self.settings.max_webhooks_per_user:
            remedy = f"raise {MAX_WEBHOOKS_PER_USER}=0, a setting of the service"
            raise OperatorsOnlyError(identity.user_id, "have webhooks", remedy)
        return identity.user_id

    @contextmanager
    def count_stream(self, user_id: str | None) -> Iterator[None]:
        """Count an open stream of a user.

        Args:
            user_id: None without authentication; then only the limit of the whole service holds.

        Raises:
            TooManyStreams: the user has as many open as a user may, or the service as many as it may.
        """
        limit = self.settings.max_streams_per_user
        if user_id is not None and self._streams[user_id] >= limit:
            raise TooManyStreams(f"{limit} streams of this user")
        if self._streams.total() >= self.settings.max_streams:
            raise TooManyStreams(f"{self.settings.max_streams} streams")
        self._streams[user_id] += 1
        try:
            yield
        finally:
            self._streams[user_id] -= 1
            if not self._streams[user_id]:
                del self._streams[user_id]

    def spawn(self, work: Coroutine[Any, Any, Any], subject: str) -> None:
        """Do something that outlives its request; a failure is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)

        def ended(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()):
                _log.error("%s failed", subject, exc_info=error)

        task.add_done_callback(ended)

    def stop(self) -> None:
        """End all streams early: see `stopping`. Safe to call at any time on the app's event loop."""
        self.stopping.set()

    async def drained(self) -> None:
        """Wait until what outlives its request has ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)


class _NamedTenants:
    """Gives users the tenants that their identities name, each once in this process.

    Two requests of a user may set one tenant at once, which does no harm.
    """

    def __init__(self, manager: AsyncSessionManager) -> None:
        self._manager = manager
        self._named: OrderedDict[str, str] = OrderedDict()
        """By user, the one of the newest request at the end."""

    async def set(self, user_id: str, tenant: str) -> None:
        """Give a user a tenant, unless this was done before."""
        if self._named.get(user_id) == tenant or self._manager.is_read_only:
            return
        if await self._manager.tenant(user_id) != tenant:
            await self._manager.set_tenant(user_id, tenant)
        self._named[user_id] = tenant
        self._named.move_to_end(user_id)
        if len(self._named) > MOST_NAMED:
            self._named.popitem(last=False)


@dataclass(frozen=True)
class Caller:
    """Who makes a request, and on which service."""

    service: Service
    identity: Identity | None
    on_disconnect: OnDisconnect
    owner: str | None = None
    """The user to whom the session belongs that the request is about, if it is shared; None: it is the caller's own."""

    @property
    def manager(self) -> AsyncSessionManager:
        """The service's manager."""
        return self.service.manager

    @property
    def user_id(self) -> str:
        """The user; "default" without authentication."""
        return self.identity.user_id if self.identity else DEFAULT_USER

    @property
    def whose(self) -> dict[str, str | None]:
        """The arguments by which the manager finds what it is about: `user_id`, and `as_user` for what is shared."""
        return whose(self.user_id, self.owner)

    @property
    def sees_all(self) -> bool:
        """Whether the caller may see what all users have: operators, and everybody without authentication."""
        return self.identity is None or self.identity.is_operator

    def in_place_of(self, user_id: str | None, action: str = "decide about runs of others") -> Caller:
        """Return who acts for a user: an operator may act in the place of any user, others only for themselves.

        Args:
            user_id: whom the request names; None for the caller.

        Raises:
            OperatorsOnlyError: it is another user, and the caller is no operator.
        """
        if user_id in (None, self.user_id):
            return self
        if self.identity is not None and not self.identity.is_operator:
            raise OperatorsOnlyError(self.user_id, action, "leave the user out")
        identity = Identity(str(user_id), is_operator=True)
        return replace(self, identity=identity, owner=None if self.owner == user_id else self.owner)

    def reserve_stream(self, *, is_needed: bool = True) -> ExitStack:
        """Reserve one of the streams that may be open, for a stream or a wait.

        It is given back at the end of a `with` block or, if a response took it over by `pop_all()`, with the response.
        Reserve it before a run is started: otherwise a run could start whose answer nobody may read.

        Args:
            is_needed: whether the request will stream or wait; otherwise nothing is reserved.

        Raises:
            TooManyStreams: the user has as many open as a user may, or the service as many as it may.
        """
        reserved = ExitStack()
        if is_needed:
            # Not `user_id`, which is "default" for everybody without authentication: all would share one user's limit.
            user_id = self.identity.user_id if self.identity else None
            reserved.enter_context(self.service.count_stream(user_id))
        return reserved

    async def on_session(self, session_id: str, verb: Callable[[AsyncSession], Awaitable[Result]]) -> Result:
        """Return what a method of a session of the user returns.

        Raises:
            SessionNotFoundError: there is no such session, or it is not shared with the user.
        """
        return await self.service.handles.on_session(self.user_id, session_id, verb, owner=self.owner)

    async def on_run(self, run_id: str, verb: Callable[[AsyncExecutionHandle], Awaitable[Result]]) -> Result:
        """Return what a method of a run of the user returns.

        Raises:
            RunNotFoundError: there is no such run, or its session is not shared with the user.
        """
        return await self.service.handles.on_run(self.user_id, run_id, verb, owner=self.owner)


async def caller_of(request: Request) -> Caller:
    """Return who makes a request.

    Raises:
        Unauthorized: the request has no valid credentials.
        OperatorsOnlyError: it names another user, and is no operator's.
        InvalidInputError: a header cannot be read.
    """
    service: Service = request.app.state.service
    choice = request.headers.get(ON_DISCONNECT, service.settings.on_disconnect)
    if choice not in get_args(OnDisconnect):
        raise InvalidInputError(ON_DISCONNECT, shown(choice), "it must be 'keep' or 'cancel'")
    caller = Caller(service, await service.identify(request), cast(OnDisconnect, choice))
    named = request.headers.get(ON_BEHALF_OF)
    return caller if named is None else caller.in_place_of(unquote(named), "act for others")


def check_operator(caller: Caller, deed: str, remedy: str = "ask an operator") -> None:
    """Raise OperatorsOnlyError unless the caller is an operator, or the service has no authentication."""
    if caller.identity is not None and not caller.identity.is_operator:
        raise OperatorsOnlyError(caller.user_id, deed, remedy)


def check_may_name(caller: Caller, tenant: str | None) -> None:
    """Raise OperatorsOnlyError if somebody names a tenant who is no operator."""
    if tenant is not None:
        check_operator(caller, "ask about a tenant", "leave `tenant` out")


def check_may_approve(identity: Identity | None, call_id: str) -> None:
    """Raise unless somebody may approve a call: that a run exceeds a quota is for operators only.

    Args:
        call_id: of an agent's call, with the path to it.

    Raises:
        OperatorsOnlyError: it asks to exceed a quota, and this is a user who is no operator.
    """
    if identity is not None and not identity.is_operator and asked_quotas([call_id.rpartition("/")[2]]):
        raise OperatorsOnlyError(identity.user_id, "let a run exceed a quota", "wait for the quota's next period")


RequestCaller = Annotated[Caller, Depends(caller_of)]
"""The parameter by which a route gets its `Caller`."""

Owner = Annotated[
    str | None,
    Query(min_length=1, description="Whose session it is, if another user shares it; the caller's own if omitted."),
]


async def _member(caller: RequestCaller, owner: Owner = None) -> Caller:
    return caller if owner in (None, caller.user_id) else replace(caller, owner=owner)


MemberCaller = Annotated[Caller, Depends(_member)]
"""The same for a route about a session that may be shared: `?owner=` names its user."""
