"""The connections of this process to MCP servers, one for each server, in a thread with an event loop of their own."""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from turnwise.actors.hosting.identity import identity
from turnwise.adapters.mcp.servers import McpServer

if TYPE_CHECKING:
    from turnwise.adapters.mcp.connection import Connection

EXIT_S = 5.0
"""How long the end of the process waits for servers to end, in seconds."""

Result = TypeVar("Result")


def ask(server: McpServer, question: Callable[[Connection], Awaitable[Result]]) -> Future[Result]:
    """Ask a server something, by this process's connection to it, from any thread.

    Cancelling the future cancels the request. The mcp package is imported by the first request, in the thread.
    """

    async def run_question() -> Result:
        return await question(_connection(server))

    return asyncio.run_coroutine_threadsafe(run_question(), _thread.loop())


class _Thread:
    """Starts the thread with its event loop when it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="turnwise mcp", daemon=True).start()
            return self._loop

    def end(self) -> None:
        """Close all connections, and end the thread; waits for at most `EXIT_S`."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None:
            return

        async def close() -> None:
            await asyncio.gather(*(connection.close() for connection in _connections.values()), return_exceptions=True)
            _connections.clear()

        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(close(), loop).result(EXIT_S)
        loop.call_soon_threadsafe(loop.stop)

    def forget(self) -> None:
        """Let a forked process start with nothing: threads do not come along, and the servers are its parent's."""
        self.__init__()  # type: ignore[misc]
        _connections.clear()


_thread = _Thread()

_connections: dict[str, Connection] = {}
"""By the identity of the server's settings. Used in the thread only."""

atexit.register(_thread.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_thread.forget)


def _connection(server: McpServer) -> Connection:
    """Return the connection to a server; equal settings share one."""
    from turnwise.adapters.mcp.connection import Connection

    return _connections.setdefault(_key(server), Connection(server))


@functools.lru_cache(maxsize=256)
def _key(server: McpServer) -> str:
    return identity(server)


def waited(server: McpServer, question: Callable[[Any], Awaitable[Result]]) -> Result:
    """Ask a server something and block until it has answered.

    Raises:
        ToolServerError: the server cannot be reached or understood.
    """
    future = ask(server, question)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
