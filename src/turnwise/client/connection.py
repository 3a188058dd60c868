"""`AsyncConnection`: sends requests to a service, repeats what may be repeated, and follows events across cuts."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx2

from turnwise.client import steps
from turnwise.client.shared.answers import IF_UNKNOWN, KEY, REQUEST_ID, Answer, Request, Whose, given
from turnwise.client.shared.block_caches import BlockCaches
from turnwise.client.shared.problems import NOT_TURNWISE, error_of, not_turnwise
from turnwise.client.shared.reading import EVENT_END, events_of, read_event, sse_fields
from turnwise.errors import ConfigError, InvalidInputError, ServiceAwayError, ServiceError, TurnwiseError, shown
from turnwise.memory.conversation.events import AnyEvent, RunCancelled
from turnwise.memory.growing_pauses import GrowingPauses
from turnwise.memory.values.ids import new_id

CONNECT_S = 10.0
"""How long a connection may take, and how long one of the pool is waited for."""

SILENT_S = 50.0
"""How long a stream may be silent; the service sends a comment every 15 seconds."""

POLL_S = 10.0
"""How long a page of events waits for the first one, where a stream had none."""

AT_ONCE = 1_000
"""How many events are read at once when a stream has ended."""

STREAM = "text/event-stream"

ON_DISCONNECT = {"X-On-Disconnect": "keep"}
"""Says that a run goes on when a connection breaks, also where the service's default is to cancel it."""

_UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
"""Errors after which the service has nothing of the request."""

_REFUSED = ("unavailable", "too_many_streams", "too_many_connections")
"""What a service says that stops, or has no room, before it has done anything."""

UNDECODABLE = "content that cannot be decoded"

UNKNOWN_REQUEST = "request_unknown"
"""What a process of the service says that does not know a repeated request, and has not carried it out."""

_GATEWAY = (502, 503, 504)
"""What proxies answer while a service restarts."""

_log = logging.getLogger(__name__)


class AsyncConnection:
    """The connections of a manager to one service.

    A request that was not sent is sent again for `retry_s` seconds, as is one that the service has refused before it
    did anything, and one whose answer was lost: under the same id, by which the service answers as it did before.

    Args:
        url: that of the service, or of where it is mounted.
        token: what `Authorization: Bearer` says, or a function that returns it before each request.
        timeout_s: how long an answer may take, beside what the request itself waits for.
        retry_s: for how long a service that is away is tried again, from its first failure on.
        connections: how many connections are open at most; each stream and each wait has one.
        transport: what sends the requests, instead of the network.

    Raises:
        ConfigError: the URL is none of `http://` or `https://`, or has a name and a password; or the token cannot be
            sent. Neither secret is in the message.
    """

    def __init__(
        self,
        url: str,
        token: str | Callable[[], Any] | None,
        *,
        timeout_s: float,
        retry_s: float,
        connections: int,
        transport: httpx2.AsyncBaseTransport | None,
    ) -> None:
        self.url = _service_url(url)
        self.caches = BlockCaches()
        """The blocks of sessions that this manager holds."""
        self._token = _sendable_token(token) if isinstance(token, str) else token
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._is_closed = False
        self._http = httpx2.AsyncClient(
            transport=transport,
            limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
        )

    async def close(self) -> None:
        """Close all connections. Closing twice is fine."""
        self._is_closed = True
        await self._http.aclose()

    async def ask(self, request: Request, whose: Whose) -> Answer:
        """Send a request; return the answer.

        Raises:
            TurnwiseError: the service has raised it.
            ServiceAwayError: the service cannot be reached, or the answer was lost.
            ServiceError: the answer is none of turnwise's.
        """
        trying = _Trying(self.url, 0.0 if request.is_sent_once else self._retry_s)
        has_id = request.method != "GET" and not request.is_read and KEY not in request.headers
        names = {REQUEST_ID: new_id()} if has_id else {}
        attempts = 0
        while True:
            attempts += 1
            self._check_open(may_be_done=trying.may_be_done)
            if trying.may_be_done and not request.is_repeatable:
                names[IF_UNKNOWN] = "refuse"
            headers = await self._headers(whose, {**names, **request.headers})
            body = {"json": request.body} if request.content is None else {"content": request.content()}
            try:
                status, content = await self._exchange(
                    request.method,
                    request.path,
                    params=_parameters(request.query, whose),
                    headers=headers,
                    timeout=httpx2.Timeout(self._timeout_s + request.wait_s, connect=CONNECT_S, pool=CONNECT_S),
                    **body,
                )
            except httpx2.RequestError as error:
                await steps.sleep(trying.pause_after(error, is_unsent=isinstance(error, _UNSENT)))
                continue
            if httpx2.codes.is_success(status):
                return Answer(self._json(status, content) if content else None, attempts)
            problem = self._error(status, content)
            if isinstance(problem, ServiceError) and problem.word == UNKNOWN_REQUEST:
                raise _away(self.url, problem, may_be_done=True)
            if not _is_passing(problem):
                raise problem
            await steps.sleep(trying.pause_after(problem, is_unsent=problem.word in _REFUSED))

    async def _exchange(self, method: str, path: str, **options: Any) -> tuple[int, bytes]:
        """Send a request; return the status and the content of the answer.

        Raises:
            httpx2.RequestError: there was no answer, or the connection broke before its end.
            ServiceAwayError: HTTP does not allow the request; it is not quoted, since a header may be a secret.
            ServiceError: the content cannot be decoded.
        """
        try:
            async with self._http.stream(method, self.url + path, **options) as response:
                try:
                    return response.status_code, await response.aread()
                except httpx2.DecodingError:
                    raise not_turnwise(self.url, response.status_code, UNDECODABLE) from None
        except httpx2.LocalProtocolError:
            raise ServiceAwayError(self.url, "unsent", "HTTP allows no such request: look at its headers") from None

    async def read(self, path: str, headers: Mapping[str, str], whose: Whose) -> AsyncIterator[bytes]:
        """Yield the bytes of an answer in pieces; see `ask`. A connection that breaks ends it with an error."""
        self._check_open()
        timeout = httpx2.Timeout(self._timeout_s, connect=CONNECT_S, pool=CONNECT_S)
        options: dict[str, Any] = {"params": _parameters({}, whose), "timeout": timeout}
        options["headers"] = await self._headers(whose, headers)
        try:
            async with self._http.stream("GET", self.url + path, **options) as response:
                if not response.is_success:
                    raise self._error(response.status_code, await response.aread())
                try:
                    async for piece in response.aiter_bytes():
                        yield piece
                except httpx2.DecodingError:
                    raise not_turnwise(self.url, response.status_code, UNDECODABLE) from None
        except httpx2.RequestError as error:
            raise _away(self.url, error, may_be_done=False) from error

    async def follow(self, path: str, after: int, whose: Whose) -> AsyncIterator[AnyEvent]:
        """Yield the events of a run with a number above `after`, live, up to its last one: each once, in order.

        A connection that breaks is made again, and goes on behind the last event. When a stream has ended without the
        run's last event, a page says whether there are more: a service that stops ends its streams, too.

        Raises:
            TurnwiseError: see `ask`.
        """
        while True:
            before = after
            async for event in self._stream(path, after, whose):
                after = event.seq
                yield event
                if event.terminal and not (isinstance(event, RunCancelled) and event.leads_to):
                    return
            wait_s = POLL_S if after == before else 0.0  # something on the way may let no stream through
            query = {"after": after, "limit": AT_ONCE, "wait_s": wait_s}
            page = await self.ask(Request(method="GET", path=path, query=query, wait_s=wait_s), whose)
            for event in events_of(page.data["items"]):
                yield event
            if page.data["next"] is None:
                return
            after = page.data["next"]

    async def _stream(self, path: str, after: int, whose: Whose) -> AsyncIterator[AnyEvent]:
        """Yield events until the stream ends or is cut; none of another answer than a stream."""
        request = Request(method="GET", path=path, headers={"Last-Event-ID": str(after)})
        async for fields in self.stream(request, whose):
            yield read_event(fields[b"data"])

    async def stream(
        self, request: Request, whose: Whose, *, on_open: Callable[[httpx2.Response], None] = lambda response: None
    ) -> AsyncIterator[Mapping[bytes, bytes]]:
        """Yield the events of a stream, each as its fields, until the stream ends or is cut; see `ask`.

        If the service has no room for it now, or something on the way lets no stream through, there are none.

        Args:
            on_open: called when the answer begins.
        """
        self._check_open()
        options: dict[str, Any] = {
            "headers": await self._headers(whose, {"Accept": STREAM, **request.headers}),
            "params": _parameters(request.query, whose),
            "timeout": httpx2.Timeout(SILENT_S, connect=CONNECT_S, pool=CONNECT_S),
            "json": request.body,
        }
        rest = b""
        try:
            async with self._http.stream(request.method, self.url + request.path, **options) as response:
                on_open(response)
                if not response.is_success:
                    error = self._error(response.status_code, await response.aread())
                    if _is_passing(error):
                        return
                    raise error
                if not response.headers.get("Content-Type", "").startswith(STREAM):
                    return
                async for piece in response.aiter_bytes():
                    *whole, rest = (rest + piece).split(EVENT_END)
                    for fields in map(sse_fields, whole):
                        if fields.get(b"event") == b"problem":
                            problem = json.loads(fields[b"data"])
                            raise error_of(self.url, int(problem.get("status", 500)), problem)
                        if b"data" in fields:
                            yield fields
        except httpx2.RequestError as error:
            _log.info("a stream of events of %s was cut: %s", self.url, type(error).__name__)

    async def _headers(self, whose: Whose, more: Mapping[str, str]) -> dict[str, str]:
        """Return the headers of a request.

        Raises:
            ConfigError: the token cannot be sent.
            InvalidInputError: another value cannot be sent in a header.
        """
        for name, value in more.items():
            if not _is_sendable(value):
                reason = "it is sent as a header: use printable ASCII, without a space at its ends"
                raise InvalidInputError(name.lower().replace("-", "_"), shown(value), reason)
        headers = {**ON_DISCONNECT, **whose.headers, **more}
        if self._token is not None:
            token = await steps.value_of(self._token)
            headers["Authorization"] = f"Bearer {_sendable_token(token)}"
        return headers

    def _json(self, status: int, content: bytes) -> Any:
        try:
            return json.loads(content)
        except ValueError:
            raise not_turnwise(self.url, status, content.decode(errors="replace")) from None

    def _error(self, status: int, content: bytes) -> Any:
        try:
            problem = json.loads(content)
        except ValueError:
            problem = None
        if not isinstance(problem, dict) or "error" not in problem:
            return not_turnwise(self.url, status, content.decode(errors="replace"))
        return error_of(self.url, status, problem)

    def _check_open(self, *, may_be_done: bool = False) -> None:
        if self._is_closed:
            word = "unknown" if may_be_done else "unsent"
            raise ServiceAwayError(self.url, word, "this manager was closed: make a new one")


class _Trying:
    """How long a request is tried again, and whether one of its attempts may have been carried out."""

    def __init__(self, url: str, retry_s: float) -> None:
        self._url = url
        self._retry_s = retry_s
        self._pauses = GrowingPauses(0.1, 2.0)
        self._end_s: float | None = None
        self.may_be_done = False
        """Whether the answer of any attempt up to now was lost."""

    def pause_after(self, error: Exception, *, is_unsent: bool) -> float:
        """Return how long to wait before the next attempt.

        Args:
            is_unsent: whether the service has done nothing at the attempt that ended with this error.

        Raises:
            ServiceAwayError: there is none.
        """
        self.may_be_done |= not is_unsent
        now = time.monotonic()
        self._end_s = now + self._retry_s if self._end_s is None else self._end_s
        if now >= self._end_s:
            raise _away(self._url, error, may_be_done=self.may_be_done) from error
        return min(self._pauses.next_s(), self._end_s - now)


def _is_passing(error: TurnwiseError) -> bool:
    """Return whether an answer says only that the service is not there yet, stops, or has no room."""
    if not isinstance(error, ServiceError):
        return False
    return error.word in _REFUSED or (error.status in _GATEWAY and error.word == NOT_TURNWISE)


def _away(url: str, error: Exception, *, may_be_done: bool) -> ServiceAwayError:
    cause = str(error) or type(error).__name__
    if isinstance(error, httpx2.PoolTimeout):
        cause = "all connections are in use: end streams and waits, or raise connections="
    elif not may_be_done and isinstance(error, ServiceError):
        cause += "; nothing was done: try again later"
    elif not may_be_done:
        cause += "; see whether it runs and listens there, and try again"
    if may_be_done:
        cause += "; what was asked may have been done: look at it before you repeat the call"
    return ServiceAwayError(url, "unknown" if may_be_done else "unsent", cause)


def _service_url(url: object) -> str:
    """Return the URL of a service without a slash at its end, or raise ConfigError, which quotes no password."""
    try:
        parsed = httpx2.URL(url) if isinstance(url, str) else None
    except httpx2.InvalidURL:
        parsed = None
    if parsed is None or parsed.scheme not in ("http", "https") or not parsed.host:
        quoted = "..." if "@" in str(url) else shown(url)
        raise ConfigError("url", quoted, "pass the URL of a service, such as https://chat.example.com")
    if parsed.userinfo:
        raise ConfigError("url", "...", "leave the name and the password out, and pass token= instead")
    return str(parsed.copy_with(query=None, fragment=None)).rstrip("/").removesuffix("/v1")


def _sendable_token(token: str) -> str:
    """Return a token without the line break of its file, or raise ConfigError, which does not quote it."""
    token = token.strip()
    if not token or not _is_sendable(token):
        raise ConfigError("token", "...", "it must be of printable ASCII, and not blank")
    return token


def _is_sendable(value: str) -> bool:
    """Return whether a header may have this value."""
    return value.isascii() and value.isprintable() and value == value.strip()


def _parameters(query: Mapping[str, Any], whose: Whose) -> dict[str, Any]:
    """Return the query of a request, as HTTP has it."""
    values = given(**query, owner=whose.owner)
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}
