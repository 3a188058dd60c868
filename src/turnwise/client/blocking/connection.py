# Made from src/turnwise/client/connection.py by `make blocking`: change that file.
"""`Connection`: sends requests to a service, repeats what may be repeated, and follows events across cuts."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx2

from turnwise.client.blocking import steps
from turnwise.client.shared.answers import Answer, Request, Whose, given
from turnwise.client.shared.block_caches import BlockCaches
from turnwise.client.shared.problems import error_of, not_turnwise
from turnwise.client.shared.reading import events_of, read_event
from turnwise.errors import ConfigError, ServiceAwayError, ServiceError, TurnwiseError, shown
from turnwise.memory.conversation.events import AnyEvent
from turnwise.memory.growing_pauses import GrowingPauses

CONNECT_S = 10.0
"""How long a connection may take, and how long one of the pool is waited for."""

SILENT_S = 50.0
"""How long a stream may be silent; the service sends a comment every 15 seconds."""

POLL_S = 10.0
"""How long a page of events waits for the first one, where a stream had none."""

AT_ONCE = 1_000
"""How many events are read at once when a stream has ended."""

STREAM = "text/event-stream"

_UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
"""Errors after which the service has nothing of the request."""

UNAVAILABLE = "unavailable"
"""What a service says that stops, before it has done anything."""

_GATEWAY = (502, 503, 504)
"""What proxies answer while a service restarts."""

_log = logging.getLogger(__name__)


class Connection:
    """The connections of a manager to one service.

    A request that was not sent is sent again for `retry_s` seconds. One whose answer was lost is sent again only if it
    is repeatable: it then does the same as once.

    Args:
        url: that of the service, or of where it is mounted.
        token: what `Authorization: Bearer` says, or a function that returns it before each request.
        timeout_s: how long an answer may take, beside what the request itself waits for.
        retry_s: for how long a service that is away is tried again, from its first failure on.
        connections: how many connections are open at most; each stream and each wait has one.
        transport: what sends the requests, instead of the network.

    Raises:
        ConfigError: the URL is none of `http://` or `https://`.
    """

    def __init__(
        self,
        url: str,
        token: str | Callable[[], Any] | None,
        *,
        timeout_s: float,
        retry_s: float,
        connections: int,
        transport: httpx2.BaseTransport | None,
    ) -> None:
        parsed = httpx2.URL(url) if isinstance(url, str) else None
        if parsed is None or parsed.scheme not in ("http", "https") or not parsed.host:
            raise ConfigError("url", shown(url), "pass the URL of a service, such as https://chat.example.com")
        self.url = str(parsed.copy_with(query=None, fragment=None)).rstrip("/").removesuffix("/v1")
        self.caches = BlockCaches()
        """The blocks of sessions that this manager holds."""
        self._token = token
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._is_closed = False
        self._http = httpx2.Client(
            transport=transport,
            limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
        )

    def close(self) -> None:
        """Close all connections. Closing twice is fine."""
        self._is_closed = True
        self._http.close()

    def ask(self, request: Request, whose: Whose) -> Answer:
        """Send a request; return the answer.

        Raises:
            TurnwiseError: the service has raised it.
            ServiceAwayError: the service cannot be reached, or the answer was lost.
            ServiceError: the answer is none of turnwise's.
        """
        trying = _Trying(self.url, self._retry_s)
        attempts = 0
        while True:
            attempts += 1
            self._check_open()
            try:
                response = self._http.request(
                    request.method,
                    self.url + request.path,
                    params=_parameters(request.query, whose),
                    headers={**self._headers(whose), **request.headers},
                    json=request.body,
                    timeout=httpx2.Timeout(self._timeout_s + request.wait_s, connect=CONNECT_S, pool=CONNECT_S),
                )
            except httpx2.TransportError as error:
                is_unsent = isinstance(error, _UNSENT)
                pause = trying.pause_after(error, may_repeat=is_unsent or request.is_repeatable, is_unsent=is_unsent)
                steps.sleep(pause)
                continue
            if response.is_success:
                return Answer(response.json() if response.content else None, attempts)
            problem = self._error(response.status_code, response.text)
            if not _is_passing(problem):
                raise problem
            is_unsent = problem.word == UNAVAILABLE
            may_repeat = is_unsent or request.is_repeatable
            steps.sleep(trying.pause_after(problem, may_repeat=may_repeat, is_unsent=is_unsent))

    def send(
        self, path: str, content: Any, *, query: Mapping[str, Any], headers: Mapping[str, str], whose: Whose
    ) -> Answer:
        """Send a body of bytes, once; see `ask`."""
        self._check_open()
        try:
            response = self._http.request(
                "POST",
                self.url + path,
                params=_parameters(query, whose),
                headers={**self._headers(whose), **headers},
                content=content,
                timeout=httpx2.Timeout(self._timeout_s, connect=CONNECT_S, pool=CONNECT_S),
            )
        except httpx2.TransportError as error:
            raise _away(self.url, error, is_unsent=isinstance(error, _UNSENT)) from error
        if not response.is_success:
            raise self._error(response.status_code, response.text)
        return Answer(response.json())

    def read(self, path: str, headers: Mapping[str, str], whose: Whose) -> Iterator[bytes]:
        """Yield the bytes of an answer in pieces; see `ask`. A connection that breaks ends it with an error."""
        self._check_open()
        timeout = httpx2.Timeout(self._timeout_s, connect=CONNECT_S, pool=CONNECT_S)
        options: dict[str, Any] = {"params": _parameters({}, whose), "timeout": timeout}
        try:
            with self._http.stream(
                "GET", self.url + path, headers={**self._headers(whose), **headers}, **options
            ) as response:
                if not response.is_success:
                    response.read()
                    raise self._error(response.status_code, response.text)
                for piece in response.iter_bytes():
                    yield piece
        except httpx2.TransportError as error:
            raise _away(self.url, error, is_unsent=True) from error

    def follow(self, path: str, after: int, whose: Whose) -> Iterator[AnyEvent]:
        """Yield the events of a run with a number above `after`, live, up to its last one: each once, in order.

        A connection that breaks is made again, and goes on behind the last event. When a stream has ended, the page
        behind its last event says whether there are more: a service that stops ends its streams, too.

        Raises:
            TurnwiseError: see `ask`.
        """
        while True:
            before = after
            for event in self._stream(path, after, whose):
                after = event.seq
                yield event
            wait_s = POLL_S if after == before else 0.0  # something on the way may let no stream through
            query = {"after": after, "limit": AT_ONCE, "wait_s": wait_s}
            page = self.ask(Request(method="GET", path=path, query=query, wait_s=wait_s), whose)
            for event in events_of(page.data["items"]):
                yield event
            if page.data["next"] is None:
                return
            after = page.data["next"]

    def _stream(self, path: str, after: int, whose: Whose) -> Iterator[AnyEvent]:
        """Yield events until the stream ends or is cut."""
        self._check_open()
        headers = {**self._headers(whose), "Accept": STREAM, "Last-Event-ID": str(after)}
        timeout = httpx2.Timeout(SILENT_S, connect=CONNECT_S, pool=CONNECT_S)
        options: dict[str, Any] = {"headers": headers, "params": _parameters({}, whose), "timeout": timeout}
        name = ""
        try:
            with self._http.stream("GET", self.url + path, **options) as response:
                if not response.is_success:
                    response.read()
                    error = self._error(response.status_code, response.text)
                    if _is_passing(error):
                        return
                    raise error
                for line in response.iter_lines():
                    field, _, value = line.partition(": ")
                    if field == "event":
                        name = value
                    elif field == "data" and name == "problem":
                        problem = json.loads(value)
                        raise error_of(self.url, int(problem.get("status", 500)), problem)
                    elif field == "data":
                        yield read_event(value)
        except httpx2.TransportError as error:
            _log.info("a stream of events of %s was cut: %s", self.url, type(error).__name__)

    def _headers(self, whose: Whose) -> dict[str, str]:
        if self._token is None:
            return whose.headers
        token = steps.value_of(self._token)
        return {"Authorization": f"Bearer {token}", **whose.headers}

    def _error(self, status: int, text: str) -> Any:
        try:
            problem = json.loads(text)
        except ValueError:
            problem = None
        if not isinstance(problem, dict) or "error" not in problem:
            return not_turnwise(self.url, status, text)
        return error_of(self.url, status, problem)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ServiceAwayError(self.url, "unsent", "this manager was closed: make a new one")


class _Trying:
    """How long a request is tried again."""

    def __init__(self, url: str, retry_s: float) -> None:
        self._url = url
        self._retry_s = retry_s
        self._pauses = GrowingPauses(0.1, 2.0)
        self._end_s: float | None = None

    def pause_after(self, error: Exception, *, may_repeat: bool, is_unsent: bool) -> float:
        """Return how long to wait before the next attempt.

        Raises:
            ServiceAwayError: there is none.
        """
        now = time.monotonic()
        self._end_s = now + self._retry_s if self._end_s is None else self._end_s
        if not may_repeat or now >= self._end_s:
            raise _away(self._url, error, is_unsent=is_unsent) from error
        return min(self._pauses.next_s(), self._end_s - now)


def _is_passing(error: TurnwiseError) -> bool:
    """Return whether an answer says only that the service is not there yet, or stops."""
    return isinstance(error, ServiceError) and error.status in _GATEWAY and error.word in (UNAVAILABLE, "not_turnwise")


def _away(url: str, error: Exception, *, is_unsent: bool) -> ServiceAwayError:
    cause = str(error) or type(error).__name__
    if isinstance(error, httpx2.PoolTimeout):
        cause = "all connections are in use: end streams and waits, or raise connections="
    elif is_unsent:
        cause += "; see whether it runs and listens there, and try again"
    else:
        cause += "; what was asked may have been done: look at it before you repeat the call"
    return ServiceAwayError(url, "unsent" if is_unsent else "unknown", cause)


def _parameters(query: Mapping[str, Any], whose: Whose) -> dict[str, Any]:
    """Return the query of a request, as HTTP has it."""
    values = given(**query, owner=whose.owner)
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}
