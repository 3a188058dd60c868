"""A client that streams from an ASGI app without a server, and that can leave at any byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message


@asynccontextmanager
async def streamed(
    app: ASGIApp, path: str, headers: Mapping[str, str], *, method: str = "GET", body: bytes = b""
) -> AsyncGenerator[AsyncGenerator[bytes, None], None]:
    """Request something and yield the chunks of its answer. Leaving the block drops the connection."""
    path, _, query = path.partition("?")
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "root_path": "",
    }
    disconnected = asyncio.Event()
    sent: asyncio.Queue[Message | None] = asyncio.Queue(maxsize=1)
    is_asked = False

    async def receive() -> Message:
        nonlocal is_asked
        if not is_asked:
            is_asked = True
            return {"type": "http.request", "body": body, "more_body": False}
        await disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if not disconnected.is_set():
            await sent.put(message)

    async def serve() -> None:
        try:
            await app(scope, receive, send)
        finally:
            if not disconnected.is_set():
                await sent.put(None)

    async def chunks() -> AsyncGenerator[bytes, None]:
        while message := await sent.get():
            if message["type"] == "http.response.start":
                assert message["status"] < 300, message
            elif message["body"]:
                yield message["body"]

    serving = asyncio.create_task(serve())
    try:
        async with aclosing(chunks()) as stream:
            yield stream
    finally:
        disconnected.set()
        while not serving.done():
            while not sent.empty():
                sent.get_nowait()
            await asyncio.wait({serving}, timeout=0.05)
        await serving
