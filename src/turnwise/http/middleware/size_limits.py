"""`SizeLimits`: refuses requests that are too large; and tells browsers to take answers for what they say."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnwise.errors import TooManyError
from turnwise.http.middleware.counts import CountLimits
from turnwise.http.middleware.uploads import is_upload
from turnwise.http.openai import errors
from turnwise.http.problems import answer, problem, problem_of
from turnwise.http.settings import HttpSettings

_TOO_LARGE = 413


class SizeLimits:
    """An ASGI middleware that answers 431 to a request whose names and values of header fields are too large.

    The app below answers 413 to a body that is too large; this turns it into the error format of the requested API, and
    leaves a 413 of another cause as it is. The header of a websocket's request is bounded by the server alone: see
    `turnwise.http.server.connections`. Every answer has `X-Content-Type-Options: nosniff`, so that no browser renders
    what users wrote as HTML.
    """

    def __init__(
        self, app: ASGIApp, max_header_bytes: int, max_body_bytes: int, max_upload_bytes: int | None = None
    ) -> None:
        self._app = app
        self._max_header_bytes = max_header_bytes
        self._max_body_bytes = max_body_bytes
        self._max_upload_bytes = max_upload_bytes or max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send, is_refused = _marked(send), False
        max_bytes = self._max_upload_bytes if is_upload(scope) else self._max_body_bytes
        announced_size, received_size = _announced_size(scope), 0
        size = sum(len(name) + len(value) for name, value in scope.get("headers", ()))
        if size > self._max_header_bytes:
            await _refusal(scope, 431, "header", size, self._max_header_bytes)(scope, receive, send)
            return

        async def received() -> Message:
            nonlocal received_size
            message = await receive()
            received_size += len(message.get("body", b""))
            return message

        async def sent(message: Message) -> None:
            nonlocal is_refused
            is_too_large = max(announced_size, received_size) > max_bytes
            if is_too_large and message["type"] == "http.response.start" and message["status"] == _TOO_LARGE:
                is_refused = True
                await _refusal(scope, _TOO_LARGE, "body", None, max_bytes)(scope, receive, send)
            elif not is_refused:
                await send(message)

        await self._app(scope, received, sent)


def _announced_size(scope: Scope) -> int:
    """Return how many bytes the body has by the header; 0 if it does not say so."""
    length = Headers(scope=scope).get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() else 0


def _refusal(scope: Scope, status: int, part: str, size: int | None, most: int) -> Response:
    reason = f"the {part} {f'has {size} bytes and ' if size else ''}may have {most} bytes"
    if "/openai/v1/" in scope["path"]:
        return errors.answer(status, reason, code=f"{part}_too_large")
    return answer(problem(status, f"{part.capitalize()} too large", reason, error=f"{part}_too_large"))


_NO_SNIFFING = (b"x-content-type-options", b"nosniff")


def _marked(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), _NO_SNIFFING]}
        await send(message)

    return sent


def within_limits(app: ASGIApp, settings: HttpSettings) -> ASGIApp:
    """Return an app whose requests are bounded before it reads them, as those of the service are."""
    counted = CountLimits(app, refused=refused, max_values=settings.max_body_values, max_bytes=settings.max_body_bytes)
    bounded = RequestBodyLimitMiddleware(counted, max_body_size=settings.max_body_bytes)
    return SizeLimits(bounded, settings.max_header_bytes, settings.max_body_bytes)


def refused(scope: Scope, error: TooManyError) -> ASGIApp:
    """Return the answer to a request that brings too much, in the form of the API that was asked."""
    return errors.answer_of(error) if "/openai/v1/" in scope["path"] else answer(problem_of(error))
