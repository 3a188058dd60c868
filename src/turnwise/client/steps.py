"""All that the two families of the client do differently; here, on an event loop. See `actors/client/steps.py`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from turnwise.memory.files.base import FileData, pieces_of

Result = TypeVar("Result")


async def sleep(seconds: float) -> None:
    """Wait for some seconds."""
    await asyncio.sleep(seconds)


async def in_thread(function: Callable[[], Result]) -> Result:
    """Return the result of a function that may take long."""
    return await asyncio.to_thread(function)


async def value_of(token: str | Callable[[], Any]) -> str:
    """Return a token, or what a function of the caller's returns, which may be a coroutine function."""
    value: Any = token() if callable(token) else token
    return str(await value if inspect.isawaitable(value) else value)


def pieces(name: str, data: FileData) -> AsyncIterator[bytes]:
    """Yield a caller's data in pieces."""
    return pieces_of(name, data)
