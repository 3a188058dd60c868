"""All that the two families of the client do differently; here, blocking. See `client/steps.py`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import httpx2

from turnwise.actors.client.blocking.steps import Background
from turnwise.errors import FileRefusedError, shown
from turnwise.memory.files.base import PIECE_BYTES, FileData

Result = TypeVar("Result")


def sleep(seconds: float) -> None:
    """Wait for some seconds."""
    time.sleep(seconds)


def in_thread(function: Callable[[], Result]) -> Result:
    """Return the result of a function that may take long, in this thread."""
    return function()


def value_of(token: str | Callable[[], Any]) -> str:
    """Return a token, or what a function of the caller's returns."""
    return str(token() if callable(token) else token)


class Listening:
    """Work beside its caller that waits for the network, and calls a function of the caller's."""

    def __init__(self, name: str) -> None:
        self.work = Background(name)
        self._calling = threading.RLock()
        self._response: httpx2.Response | None = None

    def call(self, function: Callable[[], bool]) -> bool:
        """Return what the function returns; False if the work is to end."""
        with self._calling:
            return not self.work.is_stopped() and function()

    def hold(self, response: httpx2.Response) -> None:
        """Note the stream for which the work waits."""
        with self._calling:
            self._response = response
            if self.work.is_stopped():
                self._hang_up(response)

    def stop(self) -> None:
        """End the work; return when the call that is running has returned, and none will begin."""
        self.work.stop()
        with self._calling:
            if self._response is not None:
                self._hang_up(self._response)

    @staticmethod
    def _hang_up(response: httpx2.Response) -> None:
        """End a response that another thread reads: closing its socket alone would not wake that thread."""
        stream = response.extensions.get("network_stream")
        connection = stream.get_extra_info("socket") if stream else None
        if connection is None:
            response.close()
            return
        with suppress(OSError):  # it was closed
            socket.socket.shutdown(connection, socket.SHUT_RDWR)


def pieces(name: str, data: FileData) -> Iterator[bytes]:
    """Yield a caller's data in pieces."""
    source: Any = data
    if isinstance(source, bytes | bytearray | memoryview):
        view = memoryview(source).cast("B")
        source = (view[start : start + PIECE_BYTES] for start in range(0, len(view), PIECE_BYTES))
    elif callable(read := getattr(source, "read", None)):
        source = iter(lambda: read(PIECE_BYTES), b"")
    elif isinstance(source, str) or not hasattr(source, "__iter__"):
        raise FileRefusedError(shown(name), f"pass bytes or a binary file, not {type(data).__name__}")
    for piece in source:
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise FileRefusedError(shown(name), f"pass bytes or a binary file, not one of {type(piece).__name__}")
        yield bytes(piece)
