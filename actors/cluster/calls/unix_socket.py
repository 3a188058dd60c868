"""Requests and answers over a Unix socket, between processes of one user on one machine.

The sockets have no files: their names are in Linux's abstract namespace and vanish with their processes. Anybody may
connect to such a name or take it, so each side checks that the other one is a process of its own user.

A message is its length and its number, in network byte order, and its bytes; an answer has the number of its request.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any

_HEADER = struct.Struct("!IQ")
_CREDENTIALS = struct.Struct("3i")
_CHUNK = 1 << 18
_LEAST_S = 0.001  # 0 would make a socket non-blocking

Answering = Callable[[bytes], Awaitable[bytes]]


async def serve(name: str, answer: Answering, *, may_answer: Callable[[], bool] = lambda: True) -> asyncio.Server:
    """Listen on the socket of a name, and answer the requests that come, many at a time.

    Args:
        answer: answers a request. If it raises, the answer is empty.
        may_answer: called for each request; if false, the connection is closed instead.

    Raises:
        OSError: another process listens there, or this system has no such sockets.
    """
    listener = _new_socket()
    try:
        listener.bind(_address(name))
        return await asyncio.get_running_loop().create_unix_server(
            lambda: _ServedConnection(answer, may_answer), sock=listener
        )
    except BaseException:
        listener.close()
        raise


class Connection:
    """A connection to a process that answers. Many requests may be under way. For one event loop.

    Raises:
        OSError: nobody listens on the socket of this name, or a process of another user does.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = _connected(name)
        self.peer_pid = _checked_pid(self._socket)
        """The id of the process that answers; 0 if it cannot be seen from here."""
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._messages = _MessageReader()
        self._unsent = bytearray()
        self._loop.add_reader(self._socket, self._receive)

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._socket.fileno() >= 0

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return not self._waiting

    def ask(self, request: bytes) -> asyncio.Future[bytes]:
        """Send a request; return the future of its answer. Cancelling it leaves the request under way.

        The future raises ConnectionError if the connection is lost. It is unknown then whether the request was carried
        out.
        """
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting[number] = answer
        answer.add_done_callback(lambda _: self._waiting.pop(number, None))
        if not self._unsent:
            self._loop.call_soon(self._send)  # together with the other requests of this moment
        self._unsent += _message(number, request)
        return answer

    def close(self) -> None:
        """Close the connection. Requests under way raise ConnectionError."""
        self._end("it was closed")

    def _send(self) -> None:
        """Send what the socket takes, and the rest when it takes more."""
        if not self.is_open:
            self._end("it was closed")
            return
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError as error:
            self._end(error)
            return
        if self._unsent:
            self._loop.add_writer(self._socket, self._send)
        else:
            self._loop.remove_writer(self._socket)

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)
            return
        if not data:
            self._end("it was closed")
        for number, message in self._messages.read(data):
            if (answer := self._waiting.get(number)) and not answer.done():
                answer.set_result(message)

    def _end(self, reason: object) -> None:
        if self.is_open:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._socket)
                self._loop.remove_writer(self._socket)
            self._socket.close()
        self._unsent.clear()
        for answer in list(self._waiting.values()):
            if not answer.done():
                answer.set_exception(ConnectionError(f"the connection is lost ({reason})"))


class BlockingConnection:
    """A connection to a process that answers. For one request at a time, by one thread at a time.

    Raises:
        OSError: nobody listens on the socket of this name, or a process of another user does.
    """

    def __init__(self, name: str) -> None:
        self._socket = _connected(name)
        self.peer_pid = _checked_pid(self._socket)
        """The id of the process that answers; 0 if it cannot be seen from here."""
        self._messages = _MessageReader()

    def send(self, request: bytes, timeout_s: float) -> None:
        """Send a request. Its answer must be received before the next one is sent.

        Raises:
            OSError: the connection is lost, or the other process takes nothing for `timeout_s` seconds.
        """
        self._socket.settimeout(max(timeout_s, _LEAST_S))
        self._socket.sendall(_message(0, request))

    def receive(self, timeout_s: float) -> bytes | None:
        """Return the answer; None if nothing arrives for `timeout_s` seconds. It may be called again then.

        Raises:
            ConnectionError: the connection is lost.
        """
        self._socket.settimeout(max(timeout_s, _LEAST_S))
        while True:
            try:
                data = self._socket.recv(_CHUNK)
            except TimeoutError:
                return None
            if not data:
                raise ConnectionError("the connection was closed")
            for _, message in self._messages.read(data):
                return message

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class _ServedConnection(asyncio.Protocol):
    """Answers the requests of one connection."""

    def __init__(self, answer: Answering, may_answer: Callable[[], bool]) -> None:
        self._answer = answer
        self._may_answer = may_answer
        self._transport: Any = None
        self._is_trusted = False
        """Whether the process at the other end belongs to this user."""
        self._messages = _MessageReader()
        self._unsent: list[bytes] = []
        self._under_way: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as peer:
            try:
                _checked_pid(peer)
                self._is_trusted = True
            except PermissionError:
                self._transport.close()

    def data_received(self, data: bytes) -> None:
        for number, request in self._messages.read(data):
            if not (self._is_trusted and self._may_answer()):
                self._transport.close()
                return
            task = asyncio.get_running_loop().create_task(self._reply(number, request))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _reply(self, number: int, request: bytes) -> None:
        try:
            answer = await self._answer(request)
        except Exception:  # noqa: BLE001 - the caller asks again by other means, which hand on the error
            answer = b""
        self._unsent.append(_message(number, answer))
        if len(self._under_way) == 1:
            self._send()  # nothing else is asked over this connection, so this answer waits for no other
        elif len(self._unsent) == 1:
            asyncio.get_running_loop().call_soon(self._send)  # together with the other answers of this moment

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent and not self._transport.is_closing():
            self._transport.write(b"".join(unsent))


class _MessageReader:
    """Cuts what arrives into messages."""

    def __init__(self) -> None:
        self._received = bytearray()

    def read(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield each message that is complete with this data, and its number."""
        self._received += data
        while len(self._received) >= _HEADER.size:
            size, number = _HEADER.unpack_from(self._received)
            end = _HEADER.size + size
            if len(self._received) < end:
                return
            message = bytes(self._received[_HEADER.size : end])
            del self._received[:end]
            yield number, message


def _message(number: int, body: bytes) -> bytes:
    return _HEADER.pack(len(body), number) + body


def _new_socket() -> socket.socket:
    if not hasattr(socket, "SO_PEERCRED"):
        raise OSError("this system has no abstract Unix sockets")
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def _address(name: str) -> str:
    return f"\0turnwise/{name}"


def _connected(name: str) -> socket.socket:
    connected = _new_socket()
    connected.setblocking(False)  # a process that accepts no connections is as good as none
    try:
        connected.connect(_address(name))
    except BaseException:
        connected.close()
        raise
    return connected


def _checked_pid(connected: socket.socket) -> int:
    """Return the id of the process at the other end, after a check that it belongs to this process's user.

    Raises:
        PermissionError: it does not. The connection is closed then.
    """
    packed = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(packed)
    if user != os.geteuid():
        connected.close()
        raise PermissionError(f"the process at the other end belongs to user {user}")
    return int(pid)
