"""The HTTP of the simulated provider: reads requests and writes responses."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SERVER_ERRORS = 500
"""The lowest status of an error of the server."""


@dataclass
class RecordedRequest:
    """A request, and how it ended. Times are `time.monotonic()` seconds."""

    method: str
    path: str
    headers: dict[str, str]
    """The headers by lower-case name, without `authorization` and `x-api-key`."""
    body: Any = None
    """The JSON of the body; None if there was none."""
    connection: int = 0
    """The number of its connection, from 1."""
    started_at: float = field(default_factory=time.monotonic)
    hung_up_at: float | None = None
    """When the client closed the connection, if that was before the response was complete."""
    finished: bool = False
    """Whether the response was sent completely."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when the response is complete, or the connection is closed."""


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class RefusedError(Exception):
    """Raised to answer a request with an error status. `body()` is in the format of OpenAI's APIs."""

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param

    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= _SERVER_ERRORS else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def anthropic_body(self) -> dict[str, Any]:
        """Return the body in the format of Anthropic's API."""
        kind = _ANTHROPIC_TYPES.get(
            self.status, "api_error" if self.status >= _SERVER_ERRORS else "invalid_request_error"
        )
        return {"type": "error", "error": {"type": kind, "message": str(self)}, "request_id": "req_local"}


class Response:
    """Writes one HTTP/1.1 response."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def json(self, status: int, body: object, headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self._head(status, {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})})
        self._writer.write(data)
        await self._writer.drain()

    async def start_stream(self) -> None:
        self._head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        await self._writer.drain()

    async def event(self, data: Mapping[str, Any] | str) -> None:
        """Send a server-sent event, named by its `type` if it has one."""
        name = "" if isinstance(data, str) or "type" not in data else f"event: {data['type']}\n"
        event = f"{name}data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()
        self._writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        await self._writer.drain()

    async def end_stream(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} ", *(f"{name}: {value}" for name, value in headers.items())]
        self._writer.write("\r\n".join([*lines, "\r\n"]).encode())


def parse_head(head: bytes) -> tuple[RecordedRequest, str]:
    """Return the request, and the value of its authorization header, or of `x-api-key`; neither is recorded."""
    request, *lines = head.decode("latin-1").rstrip().split("\r\n")
    method, target, _ = request.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    key = headers.pop("x-api-key", "")
    authorization = headers.pop("authorization", key and f"Bearer {key}")
    return RecordedRequest(method, target.partition("?")[0], headers), authorization
