"""The service on a real uvicorn, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import openai
import uvicorn

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.http import HttpSettings, create_app


@dataclass
class Served:
    """A running service."""

    url: str
    manager: AsyncSessionManager
    loop: asyncio.AbstractEventLoop
    clients: ExitStack = field(default_factory=ExitStack)

    def openai_client(self, token: str) -> Any:
        """Return a client of `openai`, which is closed before the service ends."""
        client = openai.OpenAI(base_url=f"{self.url}/openai/v1", api_key=token, max_retries=0)
        return self.clients.enter_context(client)

    def call(self, work: Any) -> Any:
        """Run a coroutine on the service's event loop; return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)


@contextmanager
def served(*store: Any, auth: Any = None, settings: HttpSettings | None = None, **options: Any) -> Iterator[Served]:
    """Serve a manager with these arguments on a free port of loopback."""
    started: Future[tuple[Served, uvicorn.Server]] = Future()

    async def serve() -> None:
        async with AsyncSessionManager(*store, **options) as manager:
            app = create_app(manager, auth=auth, settings=settings)
            server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=2))
            task = asyncio.create_task(server.serve())
            while not server.started and not task.done():
                await asyncio.sleep(0.01)
            port = server.servers[0].sockets[0].getsockname()[1]
            started.set_result((Served(f"http://127.0.0.1:{port}", manager, asyncio.get_running_loop()), server))
            await task

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise

    thread = threading.Thread(target=run, name="service")
    thread.start()
    service, server = started.result(60)
    try:
        with service.clients:
            yield service
    finally:
        server.should_exit = True
        thread.join()
