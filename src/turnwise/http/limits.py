"""`HeaderLimit`: refuses requests with too large a header; and tells browsers to take answers for what they say."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnwise.http.problems import answer, problem


class HeaderLimit:
    """An ASGI middleware that answers 431 to a request whose names and values of header fields are too large.

    Every answer has `X-Content-Type-Options: nosniff`, so that no browser renders what users wrote as HTML.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = sum(len(name) + len(value) for name, value in scope.get("headers", ()))
        if scope["type"] == "http" and size > self._max_bytes:
            why = f"the header has {size} bytes and may have {self._max_bytes}"
            await answer(problem(431, "Header too large", why, error="header_too_large"))(scope, receive, send)
        else:
            await self._app(scope, receive, _marked(send) if scope["type"] == "http" else send)


_NO_SNIFFING = (b"x-content-type-options", b"nosniff")


def _marked(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), _NO_SNIFFING]}
        await send(message)

    return sent
