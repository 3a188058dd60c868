"""Server-sent events, and long polls: what a client waits for, until it leaves or the server stops.

An event's id is its number, so a browser that reconnects sends the last one as `Last-Event-ID`, and the stream
continues after it: no event is missing, and none comes twice.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import ExitStack, aclosing, suppress
from typing import Annotated, Any, TypeVar

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from turnwise.errors import InvalidInputError, TurnwiseError, shown
from turnwise.http.problems import TooManyStreams, problem_of
from turnwise.http.service import Caller
from turnwise.memory.conversation.events import AnyEvent

RETRY_MS = 1000
"""When a client that lost its stream is to come back."""

HEARTBEAT = b": still here\n\n"

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

STOP_S = 1.0
"""How long a stream that ends since the server stops waits for a client that does not read."""

MEDIA_TYPE = "text/event-stream"

PAGE, SILENCE_S = 100, 60.0
"""How many events are read at once, and how long the next one is waited for at once."""

STREAMS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "As a stream, events named by their kinds, with their numbers as ids.",
        "content": {
            MEDIA_TYPE: {"example": 'id: 7\nevent: text_delta\ndata: {"kind": "text_delta", "text": "Hi"}\n\n'}
        },
    }
}
"""The answer of a route that may stream, for its description."""

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


def encode(data: str, *, event: str | None = None, id: int | str | None = None) -> bytes:
    """Return one server-sent event; `data` is JSON or another text without line breaks."""
    lines = [] if id is None else [f"id: {id}"]
    lines += [] if event is None else [f"event: {event}"]
    return "\n".join([*lines, f"data: {data}", "", ""]).encode()


def encode_events(events: Iterable[AnyEvent]) -> bytes:
    """Return events of sessions as server-sent events: named by their kinds, with their numbers as ids."""
    return b"".join(
        encode(event.model_dump_json(exclude_none=True), event=event.kind, id=event.seq) for event in events
    )


_MOST_DIGITS = len(str(2**63))


def last_event_id(request: Request, after: int = 0) -> int:
    """Return the number behind which a stream begins: the header `Last-Event-ID`, else `after`.

    Raises:
        InvalidInputError: the header is no number.
    """
    header = request.headers.get("last-event-id", "").strip()
    if not header:
        return after
    if not (header.isascii() and header.isdigit() and len(header) <= _MOST_DIGITS):
        raise InvalidInputError("Last-Event-ID", shown(header), "it must be the id of an event of this stream")
    return int(header)


def wants_stream(
    request: Request,
    stream: Annotated[
        bool | None,
        Query(description="Whether to answer with server-sent events; by default if `Accept` is text/event-stream."),
    ] = None,
) -> bool:
    """Return whether a request is to be answered with server-sent events. A dependency of routes."""
    return MEDIA_TYPE in request.headers.get("accept", "") if stream is None else stream


class EventStream(Response):
    """A response of server-sent events.

    Sends a heartbeat when nothing has come for a while. When the server stops, it ends without the rest: the client
    comes back with `Last-Event-ID`. When the client leaves first, `on_leave` is called once; not if the stream had
    ended or the server stopped. An error of turnwise ends the stream with an event `problem`. The stream waits for a
    slow reader, holds one chunk for it at most, and makes nobody else wait.

    Args:
        caller: whose stream it is; counted from now to its last byte.
        chunks: what is sent; closed at the end. It must survive being cancelled between two chunks.
        on_leave: what to do when the client leaves, such as cancelling its run.
        retry_ms: when a client that lost its stream is to come back; None to say nothing, for clients that take this
            for an event.
        farewell: what is sent last if the server stops, for clients that cannot resume.
        reserved: what `caller.reserve_stream()` returned, which this takes; if omitted, one is reserved here.

    Raises:
        TooManyStreams: as many streams are open as may be.
    """

    def __init__(
        self,
        caller: Caller,
        chunks: AsyncGenerator[bytes, None],
        *,
        on_leave: Callable[[], Any] | None = None,
        retry_ms: int | None = RETRY_MS,
        farewell: bytes = b"",
        reserved: ExitStack | None = None,
        status_code: int = 200,
        headers: dict[str, str] | None = None,
    ) -> None:
        self._caller = caller
        self._reserved = reserved.pop_all() if reserved else caller.reserve_stream()
        self._chunks = chunks
        self._on_leave = on_leave
        self._retry_ms = retry_ms
        self._farewell = farewell
        self._is_sending = False
        self._sent = 0
        """How many chunks were sent."""
        self.status_code = status_code
        self.media_type = f"{MEDIA_TYPE}; charset=utf-8"
        self.background = None
        self.init_headers({**HEADERS, **(headers or {})})
        with suppress(KeyError):
            del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._reserved:
            await self._stream(receive, send)

    async def _stream(self, receive: Receive, send: Send) -> None:
        async with aclosing(self._chunks):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if self._retry_ms is not None:
                await send(_body(f"retry: {self._retry_ms}\n\n".encode()))
            sending: asyncio.Future[None] = asyncio.ensure_future(self._send_chunks(send))
            client_gone: asyncio.Future[None] = asyncio.ensure_future(_gone(receive))
            try:
                await self._watch(sending, client_gone, send)
            finally:
                client_gone.cancel()
                sending.cancel()
                await asyncio.wait({sending, client_gone})
            if not sending.cancelled() and (error := sending.exception()):
                raise error

    async def _watch(self, sending: asyncio.Future[None], client_gone: asyncio.Future[None], send: Send) -> None:
        """Send heartbeats until all was sent, the client left, or the server stops."""
        service = self._caller.service
        stop: asyncio.Future[Any] = asyncio.ensure_future(service.stopping.wait())
        tasks: list[asyncio.Future[Any]] = [sending, client_gone, stop]
        try:
            while not sending.done():
                sent = self._sent
                done, _ = await asyncio.wait(
                    tasks,
                    timeout=service.settings.heartbeat_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if client_gone in done and not sending.done():
                    if self._on_leave and not service.stopping.is_set():
                        self._on_leave()
                    return
                if stop in done and not sending.done():
                    sending.cancel()
                    await asyncio.wait({sending})
                    break
                if not done and sent == self._sent and not self._is_sending:
                    beat: asyncio.Future[None] = asyncio.ensure_future(send(_body(HEARTBEAT)))
                    await asyncio.wait({beat, *tasks}, return_when=asyncio.FIRST_COMPLETED)
                    if not beat.cancel():  # it was sent, or could not be; else its client reads nothing
                        beat.result()
            if sending.cancelled() or not sending.exception():
                last = self._farewell if sending.cancelled() else b""
                end: asyncio.Future[None] = asyncio.ensure_future(
                    send({"type": "http.response.body", "body": last, "more_body": False})
                )
                await asyncio.wait({end, client_gone}, timeout=STOP_S, return_when=asyncio.FIRST_COMPLETED)
                if not end.done():
                    end.cancel()  # it reads nothing: its connection is closed
        finally:
            stop.cancel()

    async def _send_chunks(self, send: Send) -> None:
        try:
            async for chunk in self._chunks:
                await self._send_chunk(send, chunk)
        except TurnwiseError as error:
            _log.info("a stream of events ended: %s", type(error).__name__)
            await self._send_chunk(send, encode(json.dumps(problem_of(error)), event="problem"))

    async def _send_chunk(self, send: Send, chunk: bytes) -> None:
        self._is_sending = True
        await send(_body(chunk))
        self._is_sending = False
        self._sent += 1


async def wait_for(
    request: Request,
    caller: Caller,
    work: Coroutine[Any, Any, Result],
    *,
    on_leave: Callable[[], Any] | None = None,
    reserved: ExitStack | None = None,
) -> Result | None:
    """Wait for something for a client; None if the server stops first. Counted as a stream of the caller.

    Args:
        on_leave: what to do when the client leaves, such as cancelling its run.
        reserved: what `caller.reserve_stream()` returned; if omitted, one is reserved here.

    Raises:
        TooManyStreams: as many streams are open as may be.
    """
    try:
        reserved = reserved or caller.reserve_stream()
    except TooManyStreams:
        work.close()
        raise
    with reserved:
        task = asyncio.ensure_future(work)
        client_gone: asyncio.Future[Any] = asyncio.ensure_future(_gone(request.receive))
        stop: asyncio.Future[Any] = asyncio.ensure_future(caller.service.stopping.wait())
        tasks: list[asyncio.Future[Any]] = [task, client_gone, stop]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if client_gone.done() and not stop.done() and on_leave:
                on_leave()
            return None
        finally:
            for pending_task in tasks:
                pending_task.cancel()
            await asyncio.wait(tasks)


async def _gone(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _body(chunk: bytes) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": True}
