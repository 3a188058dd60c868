"""`Gate`: lets a request or a websocket into the console once its user is known."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext, suppress
from html import escape
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode

from starlette.background import BackgroundTask
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnwise.console.access.login import LOGIN
from turnwise.console.access.sockets import SOCKET_KEY, PageSocket
from turnwise.console.access.viewer import SCOPE_KEY, Viewer
from turnwise.http.auth import Identity
from turnwise.http.middleware.origins import is_same_site
from turnwise.http.problems import TooManyStreams, Unauthorized
from turnwise.http.service import Service

COOKIE = "turnwise_token"
"""Has the token of who has logged in. No script can read it.

It is SameSite=Lax, so that a link elsewhere, as in a mail, opens a conversation. Of what pages of other sites do, only
such a GET carries it, and a GET changes nothing.
"""

_MAX_FORM = 8 << 10
"""How many bytes a sent login form may have."""

_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'none';"
    " form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

CHECK_S = 5.0
"""How often it is asked whether the login of an open page is still valid. It is also asked for each message."""

FLUSH_S = 1.0
"""How long the socket of a page that has ended is kept, so that its browser learns it."""

_log = logging.getLogger(__name__)

Owner = Callable[[str], "Viewer | None"]
"""Returns whose page it is that opens a websocket, by the page's id."""

_SOCKETS = "/_nicegui_ws/"
"""The path of websockets, and of the requests that stand for one."""


class Gate:
    """An ASGI app around the pages: login and logout, whose request it is, that it comes from no other site.

    Each open page counts as one of the streams that a user may have open: by its websocket, or by the GET that waits
    for what is new. The POST by which a page sends something in place of a websocket does not count.

    A websocket, or long polling in its place, must belong to the same viewer as the page that opens it. Behind a proxy
    that does the login, the service's `Auth` lets the request in without a form.

    Args:
        inner: the pages; each request has its `Viewer` in the scope.
        ready: called before each request of theirs.
        owner: whose a page is.
        end_pages: called when somebody has logged out; with a page's id, when that page's login is no longer valid.
        joined: returns the socket of a connection of Engine.IO that a request goes on with, by the connection's id.
    """

    def __init__(
        self,
        service: Service,
        inner: ASGIApp,
        ready: Callable[[], Any],
        owner: Owner,
        end_pages: Callable[..., Any],
        *,
        joined: Callable[[str], PageSocket | None] = lambda _: None,
    ) -> None:
        self._service = service
        self._inner = inner
        self._ready = ready
        self._owner = owner
        self._end_pages = end_pages
        self._joined = joined

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        root = scope.get("root_path", "").rstrip("/")
        path = scope["path"].removeprefix(root)
        if answer := await self._answer(scope, receive, root, path):
            await _refuse(answer, scope, receive, send)
            return
        await self._ready()
        if scope["type"] == "http":
            send = _with_headers(send)
            if not path.startswith(_SOCKETS):
                await self._inner(scope, receive, send)
                return
        identity = Viewer.of(scope).identity
        is_counted = scope["type"] == "websocket" or scope["method"] != "POST"
        try:
            with self._service.count_stream(identity.user_id if identity else None) if is_counted else nullcontext():
                await self._watch(scope[SOCKET_KEY], scope, receive, send)
        except TooManyStreams as error:
            await _refuse(PlainTextResponse(str(error), 429), scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, root: str, path: str) -> Response | None:
        """Return what is answered instead of a page; None to let the request in."""
        is_socket = scope["type"] == "websocket" or path.startswith(_SOCKETS)
        is_read = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if (is_socket or not is_read) and not is_same_site(Headers(scope=scope)):
            return PlainTextResponse("this request comes from a page of another site", 403)
        if scope["type"] == "http" and path in ("/login", "/logout"):
            request = Request(scope, receive)
            return await (self._login if path == "/login" else self._logout)(request, root)
        try:
            viewer = Viewer(self._service, await self._service.identify(_with_token(scope)), root)
        except Unauthorized:
            if is_socket or not is_read or path.startswith("/_nicegui"):
                return PlainTextResponse("log in first", 401)
            query = scope["query_string"].decode("latin-1")
            target = quote(root + path) + (f"?{query}" if query else "")
            return RedirectResponse(f"{root}/login?{urlencode({'next': target})}", 303)
        scope[SCOPE_KEY] = viewer
        if is_socket:
            socket = self._socket(scope, viewer)
            if socket is None or socket.owner.identity != viewer.identity or socket.owner.ended.is_set():
                return PlainTextResponse("the page does not exist any more", 403)
            scope[SOCKET_KEY] = socket
        return None

    def _socket(self, scope: Scope, viewer: Viewer) -> PageSocket | None:
        """Return the socket that a request opens or goes on with; None if it is for no page, or for another one."""
        query = parse_qs(scope["query_string"].decode("latin-1"))
        page = query.get("client_id", [""])[0]
        if "sid" in query:
            joined = self._joined(query["sid"][0])
            return joined if joined and joined.page == page else None
        owner = self._owner(page)
        return PageSocket(page, owner, lambda: self._is_still(scope, viewer.identity)) if owner else None

    async def _is_still(self, scope: Scope, identity: Identity | None) -> bool | None:
        """Return whether the connection's credentials are still this one's; None if that cannot be known now."""
        try:
            return await self._service.identify(_with_token(scope)) == identity
        except Unauthorized:
            return False
        except Exception as error:  # noqa: BLE001 - of a caller's function
            _log.warning("it cannot be known now who is there: %s", type(error).__name__)
            return None

    async def _watch(self, socket: PageSocket, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a socket's messages in as long as the login of its page lasts."""
        ended = socket.owner.ended
        work: asyncio.Future[None] = asyncio.ensure_future(self._inner(scope, receive, send))
        end: asyncio.Future[Any] = asyncio.ensure_future(ended.wait())
        try:
            while not (work.done() or end.done()):
                await asyncio.wait({work, end}, timeout=CHECK_S, return_when=asyncio.FIRST_COMPLETED)
                if not (work.done() or end.done()):
                    await socket.may_act()
            if not work.done():
                await self._call_left(socket)
                await asyncio.wait({work}, timeout=FLUSH_S)  # the browser is told to load the page again
        finally:
            end.cancel()
            work.cancel()
            await asyncio.wait({work}, timeout=FLUSH_S)
        if work.done() and not work.cancelled() and (error := work.exception()):
            _log.warning("a socket of the console ended: %s", type(error).__name__)
        if scope["type"] == "websocket" and ended.is_set():
            with suppress(Exception):
                await asyncio.wait_for(send({"type": "websocket.close", "code": 1008}), FLUSH_S)

    async def _call_left(self, socket: PageSocket) -> None:
        done = self._end_pages(socket.owner.identity, socket.page)
        if asyncio.iscoroutine(done):
            await done

    async def _login(self, request: Request, root: str) -> Response:
        target = request.query_params.get("next", "")
        then = (
            target
            if target.startswith(f"{root}/") and not target.startswith("//") and "\\" not in target
            else f"{root}/"
        )
        if self._service.auth is None:
            return RedirectResponse(then, 303)
        if request.method != "POST":
            return _page(root, then, "")
        form = b""
        async for chunk in request.stream():
            form += chunk
            if len(form) > _MAX_FORM:
                return PlainTextResponse("the form is too large", 413)
        token = parse_qs(form.decode("utf-8", "replace")).get("token", [""])[0].strip()
        try:
            await self._service.identify(_bearing(request.scope, token))
        except Unauthorized:
            return _page(root, then, "This token is not valid.", 401)
        answer = RedirectResponse(then, 303)
        is_secure = request.url.scheme in ("https", "wss")
        answer.set_cookie(
            COOKIE, quote(token, safe=""), path=root or "/", httponly=True, samesite="lax", secure=is_secure
        )
        return answer

    async def _logout(self, request: Request, root: str) -> Response:
        if request.method != "POST":
            return PlainTextResponse("log out by the button", 405)
        answer = RedirectResponse(f"{root}/login", 303)
        answer.delete_cookie(COOKIE, path=root or "/", httponly=True, samesite="lax")
        with suppress(Unauthorized):
            if identity := await self._service.identify(_with_token(request.scope)):
                answer.background = BackgroundTask(self._end_pages, identity)
        return answer


def _page(root: str, then: str, reason: str, status: int = 200) -> Response:
    action = escape(f"{root}/login?{urlencode({'next': then})}", quote=True)
    headers = _HEADERS | {"Cache-Control": "no-store"}
    return HTMLResponse(LOGIN.replace("{action}", action).replace("{why}", escape(reason)), status, headers)


def _bearing(scope: Scope, token: str) -> HTTPConnection:
    """Return the connection as if it had been made with this token."""
    headers = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
    bearer = b"Bearer " + token.encode("latin-1", "replace")
    return HTTPConnection({**scope, "type": "http", "headers": [*headers, (b"authorization", bearer)]})


def _with_token(scope: Scope) -> HTTPConnection:
    """Return the connection with the cookie's token as its credentials, if it has one and no others."""
    connection = HTTPConnection({**scope, "type": "http"})
    token = connection.cookies.get(COOKIE)
    return connection if token is None or "authorization" in connection.headers else _bearing(scope, unquote(token))


async def _refuse(answer: Response, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
    else:
        await answer(scope, receive, send)


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", ()), *own]}
        await send(message)

    return sending
