"""All that the two families of the client do differently; here, blocking. See `client/steps.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

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
