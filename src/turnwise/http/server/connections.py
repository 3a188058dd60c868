"""`Connections`: bounds how many connections a server has, and how long it waits for a client that is slow or silent.

uvicorn limits idle connections only, and at its bound on connections it lets no new client in.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

Phase = Literal["new", "idle", "sending", "served", "reading"]
"""What a connection is doing: it has sent no whole header yet; it has sent none since its last answer; its client sends
a body that is awaited; its request is being answered; its client reads an answer that is ready."""

EVICTED: tuple[Phase, ...] = ("new", "idle", "sending", "reading")
"""The connections that may be closed for new ones: those whose client is to do something, in this order."""

PROGRESS_BYTES = 16 << 10
"""How much of a body a client must send, or of an answer it must take, within `max_stall_s`."""

LINGER_S, LINGER_BYTES = 2.0, 1 << 20
"""How long, and up to how many bytes, what a refused client still sends is read, so that it can read the refusal."""

SWEEP_S = 1.0
"""How often it is looked for clients whose time is over."""

_LEAST = 8
"""How many connections there may be even if hardly any more files can be opened."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConnectionLimits:
    """The bounds of a server's connections; see `HttpSettings`."""

    max_connections: int = 10_000
    max_header_s: float = 10.0
    max_stall_s: float = 30.0


def protocol_of(limits: ConnectionLimits, max_header_bytes: int) -> dict[str, Any]:
    """Return what uvicorn is told, for one server. Neither a header nor a websocket's message fills the memory.

    It is h11's protocol, since httptools has no limit of a header.
    """
    most = max_header_bytes + _LINE
    return {"http": Connections(limits).protocol, "h11_max_incomplete_event_size": most, "ws_max_size": _MESSAGE}


_LINE = 64 << 10
"""How many bytes the request line, and what separates the fields of a header, may have beside the fields."""

_MESSAGE = 1 << 20
"""How many bytes a websocket's message may have; Engine.IO takes no larger ones."""


class Connections:
    """The connections of one server. Give `protocol` to uvicorn as its `http`.

    A client must send a whole header within `max_header_s`, and go on with its body, and with reading its answer, at
    `PROGRESS_BYTES` in `max_stall_s`. If there are as many connections as there may be, the one that has waited longest
    for its client is closed for a new one, first of those that never sent a whole header. A request that is being
    answered is never cut off for another; if there are only such, the new connection is refused with 503.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._open: dict[_Connection, None] = {}
        """In the order in which they were made."""
        self._new: dict[_Connection, None] = {}
        """Those that have sent no whole header yet, in the order in which they were made."""
        self._most: int | None = None
        self._sweep: asyncio.TimerHandle | None = None

    def protocol(self, **settings: Any) -> asyncio.Protocol:
        """Return the protocol of a new connection. uvicorn calls this as it would call a class of protocols."""
        return _Connection(self, _Http(**settings))

    def admit(self, connection: _Connection) -> bool:
        """Take in a new connection; return False if there is no room but for telling its client so."""
        if self._most is None:
            self._most = max(_LEAST, min(self._limits.max_connections, _files_left() // 2))
        is_refused = len(self._open) >= self._most and not self._make_room(self._most)
        self._open[connection] = None
        if is_refused:
            _log.warning("%s connections are being answered, and no more may be open: one was refused", self._most)
        else:
            self._new[connection] = None
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._close_stalled)
        return not is_refused

    def has_header(self, connection: _Connection) -> None:
        """Note that a connection has sent a whole header."""
        self._new.pop(connection, None)

    def lost(self, connection: _Connection) -> None:
        """Forget a connection that has ended."""
        self._open.pop(connection, None)
        self._new.pop(connection, None)

    def _make_room(self, most: int) -> bool:
        victims = [next(iter(self._new))] if self._new else _evicted(list(self._open), max(1, most // 16))
        for victim in victims:
            victim.abort()
            self.lost(victim)
        if victims:
            _log.warning("%s connections are open, the most there may be: the one that waited longest was closed", most)
        return len(self._open) < most

    def _close_stalled(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(SWEEP_S, self._close_stalled) if self._open else None
        for connection in list(self._open):
            try:
                connection.close_if_stalled(loop.time(), self._limits)
            except Exception:  # noqa: BLE001 - the others are checked all the same
                _log.exception("a connection could not be checked for a stalled client")


def _evicted(connections: list[_Connection], count: int) -> list[_Connection]:
    """Return which connections are to be closed: those whose client has been awaited longest, by their phase."""
    ranked = [
        (EVICTED.index(phase), connection.since, id(connection), connection)
        for connection in connections
        if (phase := connection.phase) in EVICTED
    ]
    return [connection for *_, connection in heapq.nsmallest(count, ranked)]


def _files_left() -> int:
    """Return how many more files this process may open."""
    try:
        import resource

        return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - len(list(Path("/dev/fd").iterdir()))
    except (ImportError, OSError):
        return 1024


class _Http(H11Protocol):
    """uvicorn's protocol, whose refusal of what is no HTTP has the form of the API's errors."""

    def send_400_response(self, msg: str) -> None:
        """Answer what h11 could not read."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        reason = f"{msg[:-1]}: {error}" if error else msg
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            dialect = b"/openai/v1/" in self.conn.trailing_data[0][:256]
            self.transport.write(refusal(status, reason, is_openai=dialect))
        self.transport.write_eof()
        self.is_refused = True

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Make the connection a websocket, unless the package `websockets` could not read the header."""
        longest = max(len(name) + len(value) for name, value in self.headers)
        if len(self.headers) > _UPGRADE_FIELDS or max(longest, len(event.target)) > _UPGRADE_LINE:
            most = f"{_UPGRADE_FIELDS} fields of {_UPGRADE_LINE} bytes"
            self.transport.write(refusal(431, f"the header of a websocket's request may have {most}"))
            self.transport.write_eof()
            self.is_refused = True
        else:
            super().handle_websocket_upgrade(event)

    is_refused = False
    """Whether the connection's last request was refused here."""


_UPGRADE_FIELDS, _UPGRADE_LINE = 100, 8000
"""How many fields of how many bytes a request for a websocket may have."""

_CODES = {400: "invalid_request", 408: "request_timeout", 431: "header_too_large", 501: "not_implemented"}
_CODES |= {503: "too_many_connections"}


def refusal(status: int, reason: str, *, is_openai: bool = False) -> bytes:
    """Return the whole answer to a client whose request does not reach the app."""
    title, code = STATUS_PHRASES[status].decode(), _CODES.get(status, "invalid_request")
    problem = {"type": f"urn:turnwise:{code}", "title": title, "status": status, "detail": reason, "error": code}
    kind = "server_error" if status >= 500 else "invalid_request_error"  # noqa: PLR2004 - the server's
    openai = {"error": {"message": reason, "type": kind, "param": None, "code": code}}
    body = json.dumps(openai if is_openai else problem).encode()
    media = "application/json" if is_openai else "application/problem+json"
    head = f"HTTP/1.1 {status} {title}\r\nContent-Type: {media}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    head += "X-Content-Type-Options: nosniff\r\n" + ("Retry-After: 1\r\n" if status in (429, 503) else "")
    return head.encode() + b"\r\n" + body


class _Connection(asyncio.Protocol):
    """One connection: hands all on to uvicorn's protocol of HTTP, then of a websocket, and watches its client."""

    def __init__(self, connections: Connections, http: _Http) -> None:
        self._connections = connections
        self._http = http
        self._inner: Any = http
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()
        self.since = self._loop.time()
        """Since when the client has been awaited: to send a header, or a further part of its body or its answer."""
        self._phase: Phase = "new"
        self._cycle: object = http
        """The request that was the last one when it was looked; else the protocol."""
        self._is_begun = False
        """Whether the client has sent a part of a header."""
        self._received = 0
        """How many bytes of a body have come since `since`."""
        self._ready = 0
        """How many bytes of an answer were ready to be read at `since`."""
        self._is_paused = False
        self._refused_at: float | None = None
        self._is_taken = False
        """Whether there was room for the connection."""

    @property
    def phase(self) -> Phase:
        """What the connection is doing."""
        if self._refused_at is not None:
            return "new"
        if self._is_paused or self._transport.is_closing():
            return "reading"
        if self._inner is not self._http:
            return "served"
        cycle = self._http.cycle
        if cycle is None:
            return "new"
        if cycle.response_complete:
            return "idle"
        return (
            "sending"
            if cycle.more_body and not cycle.response_started and not self._http.flow.read_paused
            else "served"
        )

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def close_if_stalled(self, now: float, limits: ConnectionLimits) -> None:
        """Close the connection if its client's time is over."""
        self._look(now)
        waited_s = now - self.since
        if self._refused_at is not None:
            if now - self._refused_at > LINGER_S:
                self.abort()
        elif self._phase == "reading":
            ready = self._transport.get_write_buffer_size()
            if ready <= self._ready - PROGRESS_BYTES:
                self.since, self._ready = now, ready
            elif waited_s > limits.max_stall_s:
                _log.warning(
                    "a client took too little of its answer in %s s: its connection was closed", limits.max_stall_s
                )
                self.abort()
        elif self._phase == "sending":
            if self._received >= PROGRESS_BYTES:
                self.since, self._received = now, 0
            elif waited_s > limits.max_stall_s:
                _log.warning(
                    "a client sent too little of its body in %s s: its connection was closed", limits.max_stall_s
                )
                self._refuse(408, "the body did not come in time: send it faster, or in smaller parts")
        elif (self._phase == "new" or self._is_begun) and waited_s > limits.max_header_s:
            if self._is_begun:
                self._refuse(408, f"the header did not come within {limits.max_header_s:g} s")
            else:
                self._transport.close()

    def _look(self, now: float) -> None:
        """Note what the connection is doing, and when that began."""
        request: object | None = self._http.cycle
        phase, cycle = self.phase, request or self._inner
        if cycle is not self._cycle:
            self._cycle, self._is_begun = cycle, False
            self._connections.has_header(self)
        elif phase == self._phase:
            return
        self._phase, self.since, self._received = phase, now, 0
        self._ready = self._transport.get_write_buffer_size()

    def _refuse(self, status: int, reason: str) -> None:
        """Answer instead of the app, and close the connection once the client has had time to read that."""
        if not self._transport.is_closing():
            is_openai = self._http.scope is not None and "/openai/v1/" in self._http.scope["path"]
            self._transport.write(refusal(status, reason, is_openai=is_openai))
            self._transport.write_eof()
        self._linger()

    def _linger(self) -> None:
        """Have the app know that its client is gone, and drop what that still sends."""
        self._refused_at, self._received = self._loop.time(), 0
        if self._is_taken:
            self._inner.connection_lost(ConnectionAbortedError("the request was refused"))
        self._inner = asyncio.Protocol()

    # What asyncio tells a protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if self._connections.admit(self):
            self._is_taken = True
            self._inner.connection_made(transport)
            return
        self._refuse(503, "too many connections are open: try again later")

    def data_received(self, data: bytes) -> None:
        if self._refused_at is not None:
            self._received += len(data)
            if self._received > LINGER_BYTES:
                self.abort()
            return
        self._look(self._loop.time())
        if self._phase in ("new", "idle") and not self._is_begun:
            self._is_begun, self.since = True, self._loop.time()
        self._received += len(data)
        self._inner.data_received(data)
        if (inner := self._transport.get_protocol()) is not self:
            self._inner = inner  # the connection is a websocket from now on
            self._transport.set_protocol(self)
        if self._http.is_refused:
            self._linger()
        self._look(self._loop.time())

    def eof_received(self) -> bool | None:
        keeps_open: bool | None = self._inner.eof_received()
        return keeps_open

    def pause_writing(self) -> None:
        self._is_paused = True
        self._inner.pause_writing()
        self._look(self._loop.time())

    def resume_writing(self) -> None:
        self._is_paused = False
        self._inner.resume_writing()
        self._look(self._loop.time())

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.lost(self)
        self._inner.connection_lost(exc)
