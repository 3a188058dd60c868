"""A `RemoteManager` of a service in the test's own process, for tests that hold for every manager: `over_http`."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import httpx2
from fastapi import FastAPI

from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.client import RemoteManager
from turnwise.http import HttpSettings, create_app

WAIT_S = 60.0


class Bridge(httpx2.BaseTransport):
    """Sends requests to an app on the event loop of another thread. Unlike `httpx2.ASGITransport`, it streams.

    Args:
        seen: called with each request, and with the answer's status and body if that was not streamed.
    """

    def __init__(
        self, app: FastAPI, loop: asyncio.AbstractEventLoop, seen: Callable[[httpx2.Request, int, bytes], None] | None
    ) -> None:
        self._app = app
        self._loop = loop
        self._seen = seen

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the answer, whose body is read as it comes."""
        body = request.read()
        started: Future[tuple[int, list[tuple[bytes, bytes]]]] = Future()
        chunks: queue.Queue[bytes | None] = queue.Queue()
        gone = asyncio.Event()
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> dict[str, Any]:
            for part in parts:
                return part
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                started.set_result((message["status"], message["headers"]))
            else:
                chunks.put(message.get("body", b""))

        async def call() -> None:
            raw_path, _, query = request.url.raw_path.partition(b"?")
            scope = {
                "type": "http",
                "asgi": {"version": "3.0"},
                "http_version": "1.1",
                "method": request.method,
                "scheme": "http",
                "path": request.url.path,
                "raw_path": raw_path,
                "query_string": query,
                "root_path": "",
                "headers": [(name.lower(), value) for name, value in request.headers.raw],
                "server": ("service", 80),
                "client": ("127.0.0.1", 1),
            }
            try:
                await self._app(scope, receive, send)
            except Exception as error:  # noqa: BLE001 - the app has answered it
                if not started.done():
                    started.set_exception(error)
            chunks.put(None)

        asyncio.run_coroutine_threadsafe(call(), self._loop)
        status, headers = started.result(WAIT_S)
        whole = bytearray()

        def pieces() -> Iterator[bytes]:
            while (chunk := chunks.get(timeout=WAIT_S)) is not None:
                whole.extend(chunk)
                yield chunk
            if self._seen:
                self._seen(request, status, bytes(whole))

        leave = lambda: self._loop.call_soon_threadsafe(gone.set)  # noqa: E731
        return httpx2.Response(status, headers=headers, stream=_Pieces(pieces(), leave))


class _Pieces(httpx2.SyncByteStream):
    def __init__(self, pieces: Iterator[bytes], leave: Callable[[], object]) -> None:
        self._pieces = pieces
        self._leave = leave

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def close(self) -> None:
        self._leave()


@contextmanager
def over_http(
    *store: Any,
    auth: Any = None,
    http: HttpSettings | None = None,
    remote: dict[str, Any] | None = None,
    seen: Callable[[httpx2.Request, int, bytes], None] | None = None,
    through: Callable[[httpx2.BaseTransport], httpx2.BaseTransport] = lambda transport: transport,
    **settings: Any,
) -> Iterator[SessionManager]:
    """Yield a manager whose sessions are those of a service, which serves a manager with these settings.

    Its type says that it stands for a `SessionManager`: of what a `RemoteManager` lacks, type checkers know nothing.

    Args:
        remote: settings of the `RemoteManager`.
        seen: see `Bridge`.
        through: returns what requests and answers pass on their way.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="service")
    thread.start()

    def call(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(WAIT_S)

    async def opened() -> tuple[AsyncSessionManager, FastAPI]:
        manager = AsyncSessionManager(*store, **{"placement": InProcess(), **settings})
        await manager.__aenter__()
        return manager, create_app(manager, auth=auth, settings=http)

    async def closed(manager: AsyncSessionManager, app: FastAPI) -> None:
        app.state.service.stop()
        await app.state.service.drained()
        await manager.close()

    try:
        manager, app = call(opened())
        try:
            transport = through(Bridge(app, loop, seen))
            with RemoteManager("http://service", transport=transport, **(remote or {})) as client:
                yield cast(SessionManager, client)
        finally:
            call(closed(manager, app))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def manager_at(store: str, *, remotely: bool = False, **settings: Any) -> AbstractContextManager[SessionManager]:
    """Return a manager of a store in this process: itself, or over HTTP."""
    if remotely:
        return over_http(store, **settings)
    return SessionManager(store, **{"placement": InProcess(), **settings})
