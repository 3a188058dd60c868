"""`CountLimits`: refuses requests that would take long to read, before they are read."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable
from itertools import accumulate

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnwise.errors import TooManyError
from turnwise.http.middleware.uploads import is_upload
from turnwise.memory.values.frozen_json import MAX_DEPTH
from turnwise.memory.values.limits import check_count

MAX_BODY_DEPTH = MAX_DEPTH + 20
"""The most levels of lists and objects in a body: those of a value in it, and what stands around that."""

MAX_PARAMETERS = 200
"""The most parameters of a query."""

MAX_DIGITS = 400
"""The most digits of a number in a body: to read one takes the square of its length."""

TOO_LARGE = 1009
"""The code by which a websocket is closed whose message is too large."""

_log = logging.getLogger(__name__)

_SMALL = 16 << 10
"""Bodies of up to so many bytes are looked at by the event loop, larger ones by a thread."""

_WITH_BODIES = ("POST", "PUT", "PATCH", "DELETE")

_LONG_NUMBER = re.compile(rb"[0-9]{%d,}" % (MAX_DIGITS + 1))
_OTHERS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS = {bracket: 1 if bracket in b"[{" else -1 for bracket in b"[]{}"}


class CountLimits:
    """An ASGI middleware that refuses queries with too many parameters, and bodies with too many values or levels.

    To read JSON holds the event loop, even by a thread, since Python's lock is held to the end: a million small values
    take a second. So they are counted first, by what stands between texts. The routes refuse a body that is not JSON.

    A message of a websocket is bounded like a body; one that is too large ends the connection, by code 1009.

    Args:
        refused: returns the answer to a request that brings too much.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        refused: Callable[[Scope, TooManyError], ASGIApp],
        max_values: int,
        max_bytes: int,
    ) -> None:
        self._app = app
        self._refused = refused
        self._max_values = max_values
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._app(scope, self._messages(receive, send), send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            parameters = scope.get("query_string", b"").count(b"&") + 1
            check_count("parameters of the query", parameters, "MAX_PARAMETERS", MAX_PARAMETERS)
            if scope["method"] in _WITH_BODIES and not is_upload(scope):
                receive = await self._checked(scope, receive)
        except TooManyError as error:
            await self._refused(scope, error)(scope, receive, send)
        except ClientDisconnect:
            pass
        else:
            await self._app(scope, receive, send)

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        """Return what gives the body that was read, and then what comes after it."""
        chunks: list[bytes] = []
        size = 0
        async for chunk in Request(scope, receive).stream():
            chunks.append(chunk)
            size += len(chunk)
            check_count("bytes of the body", size, "max_body_bytes", self._max_bytes)
        await self._check(body := b"".join(chunks))
        return _again(body, receive)

    async def _check(self, body: bytes) -> None:
        if len(body) <= _SMALL:
            check_body(body, self._max_values)
        else:
            await asyncio.to_thread(check_body, body, self._max_values)

    def _messages(self, receive: Receive, send: Send) -> Receive:
        """Return what gives the messages of a websocket, and its end in place of one that is too large."""

        async def received() -> Message:
            message = await receive()
            if message["type"] != "websocket.receive":
                return message
            text = message.get("text")
            content = (message.get("bytes") or b"") if text is None else text.encode()
            try:
                check_count("bytes of a message", len(content), "max_body_bytes", self._max_bytes)
                await self._check(content)
            except TooManyError as error:
                _log.info("a websocket was closed: %s", error)
                await send({"type": "websocket.close", "code": TOO_LARGE, "reason": error.limit})
                return {"type": "websocket.disconnect", "code": TOO_LARGE}
            return message

        return received


def _again(body: bytes, receive: Receive) -> Receive:
    """Return what gives the body once more, and then what comes after it."""
    is_given = False

    async def received() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return received


def check_body(body: bytes, max_values: int) -> None:
    """Refuse a body that is too large to be read as JSON at once. O(bytes), by few operations on all of them.

    Raises:
        TooManyError: names what is too many.
    """
    limit = "max_body_values"
    if b"\0" in body:  # UTF-16 or UTF-32, which is read as JSON, too
        body = body.decode(json.detect_encoding(body), errors="replace").encode(errors="replace")
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    pairs = body.count(b'"') // 4  # a member of an object has two texts, all else at most one
    check_count("values of the body", pairs, limit, max_values)
    outside_texts = b"".join(body.split(b'"')[::2])
    values = sum(outside_texts.count(mark) for mark in (b",", b"[", b"{"))
    check_count("values of the body", values, limit, max_values)
    depth = max(accumulate(map(_STEPS.__getitem__, outside_texts.translate(None, _OTHERS))), default=0)
    check_count("levels of the body", depth, "MAX_BODY_DEPTH", MAX_BODY_DEPTH)
    if number := _LONG_NUMBER.search(outside_texts):
        check_count("digits of a number in the body", len(number[0]), "MAX_DIGITS", MAX_DIGITS)
