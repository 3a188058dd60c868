"""Server-sent events: a stream that has heartbeats, notices that its client has left, and ends when the server stops.

An event's id is its number, so a browser that reconnects sends the last one as `Last-Event-ID`, and the stream goes on
right behind it: no event is missing, and none comes twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from turnwise.errors import InvalidInputError, shown
from turnwise.http.service import Caller

RETRY_MS = 1000
"""When a client that lost its stream is to come back."""

HEARTBEAT = b": still here\n\n"

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def encode(data: str, *, event: str | None = None, id: int | str | None = None) -> bytes:
    """Return one server-sent event; `data` is JSON or another text without line breaks."""
    lines = [] if id is None else [f"id: {id}"]
    lines += [] if event is None else [f"event: {event}"]
    return "\n".join([*lines, f"data: {data}", "", ""]).encode()


def last_event_id(request: Request, after: int = 0) -> int:
    """Return the number behind which a stream begins: the header `Last-Event-ID`, else `after`.

    Raises:
        InvalidInputError: the header is no number.
    """
    given = request.headers.get("last-event-id", "").strip()
    if not given:
        return after
    if not (given.isascii() and given.isdigit() and len(given) <= len(str(1 << 63))):
        raise InvalidInputError("Last-Event-ID", shown(given), "it must be the id of an event of this stream")
    return int(given)


class EventStream(StreamingResponse):
    """A response of server-sent events.

    Sends a heartbeat when nothing has come for a while. When the server stops, it ends without the rest: the client
    comes back with `Last-Event-ID`. When the client leaves first, `left` is called, once; not if the stream had ended
    or the server stopped. A slow reader is waited for; the stream holds no more than one chunk for it.

    Args:
        caller: whose stream it is; counted from its first byte to its last.
        chunks: what is sent; closed at the end. It must survive being cancelled between two chunks.
        left: what to do when the client leaves, such as cancelling its run.
    """

    def __init__(
        self,
        caller: Caller,
        chunks: AsyncGenerator[bytes, None],
        *,
        left: Callable[[], Any] | None = None,
        status_code: int = 200,
    ) -> None:
        self._caller = caller
        self._chunks = chunks
        self._left = left
        self._is_whole = False
        headers = {**HEADERS}
        super().__init__(self._sent(), status_code, headers, "text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._caller.service.stream(self._caller.user_id):
            try:
                await super().__call__(scope, receive, send)
            finally:
                if self._left and not self._is_whole:
                    self._left()

    async def _sent(self) -> AsyncIterator[bytes]:
        yield f"retry: {RETRY_MS}\n\n".encode()
        service = self._caller.service
        stop: asyncio.Future[Any] = asyncio.ensure_future(service.stopping.wait())
        step: asyncio.Future[Any] | None = None
        try:
            async with aclosing(self._chunks) as chunks:
                while True:
                    step = step or asyncio.ensure_future(anext(chunks))
                    done, _ = await asyncio.wait(
                        {step, stop}, timeout=service.settings.heartbeat_s, return_when=asyncio.FIRST_COMPLETED
                    )
                    if step in done:
                        try:
                            chunk = step.result()
                        except StopAsyncIteration:
                            self._is_whole = True
                            return
                        step = None
                        yield chunk
                    elif stop in done:
                        self._is_whole = True
                        return
                    else:
                        yield HEARTBEAT
        finally:
            stop.cancel()
            if step:
                step.cancel()
                await asyncio.wait({step})
