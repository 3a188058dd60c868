"""`listen` and `Server`: the socket and the uvicorn of every command that serves."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import uvicorn

MOST_FILES = 65_536
"""Up to how many open files the limit is raised."""

_QUEUE = 2048
"""How many connections the system keeps until they are accepted."""

_AT_ONCE = 16
"""How many connections are accepted before others are closed for them. `uvicorn.Config` calls this its backlog."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at a host and port.

    It names its protocol, so that asyncio turns Nagle's algorithm off for its connections: an answer of two parts would
    otherwise wait for the client's delayed acknowledgement.

    Raises:
        OSError: the host is none of this machine's, or the port is taken.
    """
    (family, *_, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_QUEUE)
    except OSError:
        bound.close()
        raise
    return bound


def url_of(bound: socket.socket) -> str:
    """Return the URL at which a bound socket is reached from this machine."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared only
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def raise_file_limit() -> None:
    """Let this process, and those that it starts, open as many files as the system allows, up to `MOST_FILES`."""
    try:
        import resource
    except ImportError:  # not on this system
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class Server(uvicorn.Server):
    """uvicorn on sockets of `listen`.

    Args:
        app: what it serves.
        protocol: `HttpSettings.protocol`.
        stop_s: how long requests that are under way may take when it stops.
        ready: called when requests are answered.
        stopping: called when it is to stop, before its connections are closed.
    """

    def __init__(
        self,
        app: Any,
        protocol: dict[str, Any],
        *,
        stop_s: int = 5,
        ready: Callable[[], object] = lambda: None,
        stopping: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,  # it would have what is in the query
                server_header=False,
                timeout_graceful_shutdown=stop_s,
                backlog=_AT_ONCE,
                **protocol,
            )
        )
        self._ready = ready
        self._stopping = stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(_QUEUE)  # asyncio has made the queue as short as `_AT_ONCE`
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what goes on, then the connections."""
        self._stopping()
        await super().shutdown(sockets)
