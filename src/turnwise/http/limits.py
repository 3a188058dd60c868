"""`HeaderLimit`: refuses requests with too large a header."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from turnwise.http.problems import answer, problem


class HeaderLimit:
    """An ASGI middleware that answers 431 to a request whose names and values of header fields are too large."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = sum(len(name) + len(value) for name, value in scope.get("headers", ()))
        if scope["type"] == "http" and size > self._max_bytes:
            why = f"the header has {size} bytes and may have {self._max_bytes}"
            await answer(problem(431, "Header too large", why, error="header_too_large"))(scope, receive, send)
        else:
            await self._app(scope, receive, send)
