"""`SameSite`, `KnownHosts`: keep pages of other sites out of a service without authentication."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from turnwise.http.openai import errors
from turnwise.http.problems import answer, problem

_SAFE = ("GET", "HEAD", "OPTIONS")


def is_same_site(headers: Headers) -> bool:
    """Return whether a request comes from one of the service's own pages, or from no page."""
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host")


class KnownHosts:
    """An ASGI middleware that answers 400 to requests that name another host than these: of a service without tokens.

    After DNS rebinding, a request carries the attacker's host name.

    Args:
        hosts: the names, without ports.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or _host_of(Headers(scope=scope)) in self._hosts:
            await self._app(scope, receive, send)
            return
        reason = "the request names another host than this machine's: ask 127.0.0.1, or use tokens"
        native = answer(problem(400, "Unknown host", reason, error="unknown_host"))
        refusal = errors.answer(400, reason, code="unknown_host") if "/openai/v1/" in scope["path"] else native
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await refusal(scope, receive, send)


def _host_of(headers: Headers) -> str:
    host = headers.get("host", "").lower()
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


class SameSite:
    """An ASGI middleware that answers 403 to requests that may change something and come from a page of another site.

    For any page, a browser sends a POST without a body, or with a form's, and does not ask the server first (no CORS
    preflight).

    Args:
        origins: origins whose pages may send them nevertheless; `*` stands for all.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _SAFE or self._is_allowed(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        reason = "the request comes from a page of another site: name its origin in 'cors_origins', or use tokens"
        native = answer(problem(403, "Foreign origin", reason, error="foreign_origin"))
        refusal = errors.answer(403, reason, code="foreign_origin") if "/openai/v1/" in scope["path"] else native
        await refusal(scope, receive, send)

    def _is_allowed(self, headers: Headers) -> bool:
        return is_same_site(headers) or "*" in self._origins or headers["origin"] in self._origins
