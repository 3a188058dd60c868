"""Requests and answers over a Unix socket, between processes of one user on one machine.

A Ray call takes about a millisecond each way, a message here a quarter of that. A message is its length and its number,
in network byte order, and its bytes; an answer has the number of its request.
"""

from __future__ import annotations

import asyncio
import os
import stat
import struct
import tempfile
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

_HEADER = struct.Struct("!IQ")

Answering = Callable[[bytes], Awaitable[bytes]]


def path_of(name: str) -> Path:
    """Return the path of the socket of a name. Its folder, which is made here, is this user's alone.

    Raises:
        OSError: the folder is another's, others may enter it, or this system has no Unix sockets.
    """
    if not hasattr(os, "getuid"):
        raise OSError("this system has no Unix sockets")
    folder = Path(tempfile.gettempdir()) / f"turnwise-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise OSError(f"{folder} is not a folder of this user alone: remove it")
    return folder / name


async def serve(path: Path, answer: Answering, *, may_answer: Callable[[], bool] = lambda: True) -> asyncio.Server:
    """Listen on a socket, and answer the requests that come, many at a time. A socket of an ended process is replaced.

    Args:
        answer: raises nothing but CancelledError.
        may_answer: called for each request; if false, the connection is closed instead.

    Raises:
        OSError: the socket cannot be opened.
    """

    def accept() -> _Messages:
        under_way: set[asyncio.Task[None]] = set()

        async def reply(number: int, request: bytes) -> None:
            messages.send(number, await answer(request))

        def take(number: int, request: bytes) -> None:
            if not may_answer():
                messages.close()
                return
            task = asyncio.get_running_loop().create_task(reply(number, request))
            under_way.add(task)
            task.add_done_callback(under_way.discard)

        messages = _Messages(take, lambda _: None)
        return messages

    return await asyncio.get_running_loop().create_unix_server(accept, str(path))


class Connection:
    """A connection to a process that answers. Many requests may be under way. For one event loop."""

    def __init__(self) -> None:
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._messages = _Messages(self._on_message, self._on_end)

    @classmethod
    async def open(cls, path: Path) -> Connection:
        """Connect to the process that listens on a socket.

        Raises:
            OSError: nobody listens there.
        """
        connection = cls()
        await asyncio.get_running_loop().create_unix_connection(lambda: connection._messages, str(path))
        return connection

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._messages.is_open

    async def ask(self, request: bytes) -> bytes:
        """Return the answer to a request.

        Raises:
            ConnectionError: the connection is lost. Whether the request was carried out is not known.
        """
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._messages.send(number, request)
            return await answer
        finally:
            del self._waiting[number]

    def close(self) -> None:
        """Close the connection. Requests under way raise ConnectionError."""
        self._messages.close()

    def _on_message(self, number: int, message: bytes) -> None:
        if (answer := self._waiting.get(number)) and not answer.done():
            answer.set_result(message)

    def _on_end(self, error: Exception | None) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionError(f"the connection is lost ({error or 'it was closed'})"))


class _Messages(asyncio.Protocol):
    """Sends messages over a connection, and hands on those that come, and that the connection is lost."""

    def __init__(self, take: Callable[[int, bytes], None], lose: Callable[[Exception | None], None]) -> None:
        self._on_message = take
        self._on_end = lose
        self._transport: Any = None
        self._received = bytearray()

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= _HEADER.size:
            size, number = _HEADER.unpack_from(self._received)
            end = _HEADER.size + size
            if len(self._received) < end:
                return
            message = bytes(self._received[_HEADER.size : end])
            del self._received[:end]
            self._on_message(number, message)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._on_end(error)

    def send(self, number: int, message: bytes) -> None:
        if self._transport is None:
            self._on_end(None)
        else:
            self._transport.write(_HEADER.pack(len(message), number) + message)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
