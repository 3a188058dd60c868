"""`SizeLimits`: refuses requests that are too large; and tells browsers to take answers for what they say."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnwise.http.openai import errors
from turnwise.http.problems import answer, problem

_TOO_LARGE = 413


class SizeLimits:
    """An ASGI middleware that answers 431 to a request whose names and values of header fields are too large.

    The app below answers 413 to a body that is too large; this says so in the form of the API that was asked. Every
    answer has `X-Content-Type-Options: nosniff`, so that no browser renders what users wrote as HTML.
    """

    def __init__(self, app: ASGIApp, max_header_bytes: int, max_body_bytes: int) -> None:
        self._app = app
        self._max_header_bytes = max_header_bytes
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send, is_refused = _marked(send), False
        size = sum(len(name) + len(value) for name, value in scope.get("headers", ()))
        if size > self._max_header_bytes:
            await _refusal(scope, 431, "header", size, self._max_header_bytes)(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            nonlocal is_refused
            if message["type"] == "http.response.start" and message["status"] == _TOO_LARGE:
                is_refused = True
                await _refusal(scope, _TOO_LARGE, "body", None, self._max_body_bytes)(scope, receive, send)
            elif not is_refused:
                await send(message)

        await self._app(scope, receive, sent)


def _refusal(scope: Scope, status: int, part: str, size: int | None, most: int) -> Response:
    why = f"the {part} {f'has {size} bytes and ' if size else ''}may have {most} bytes"
    if "/openai/v1/" in scope["path"]:
        return errors.answer(status, why, code=f"{part}_too_large")
    return answer(problem(status, f"{part.capitalize()} too large", why, error=f"{part}_too_large"))


_NO_SNIFFING = (b"x-content-type-options", b"nosniff")


def _marked(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), _NO_SNIFFING]}
        await send(message)

    return sent
