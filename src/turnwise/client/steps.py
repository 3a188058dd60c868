"""All that the two families of the client do differently; here, on an event loop. See `actors/client/steps.py`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import httpx2

from turnwise.actors.client.steps import Background
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


class Listening:
    """Work beside its caller that waits for the network, and calls a function of the caller's."""

    def __init__(self, name: str) -> None:
        self.work = Background(name)
        self._is_calling = False

    async def call(self, function: Callable[[], Awaitable[bool]]) -> bool:
        """Return what the function returns; False if the work is to end."""
        if self.work.is_stopped():
            return False
        self._is_calling = True
        try:
            return await function()
        finally:
            self._is_calling = False

    def hold(self, response: httpx2.Response) -> None:
        """Note the stream for which the work waits."""

    async def stop(self) -> None:
        """End the work; return when the call that is running has returned, and none will begin."""
        self.work.stop()
        if not self._is_calling:
            self.work.abandon()
        await self.work.ended()


def pieces(name: str, data: FileData) -> AsyncIterator[bytes]:
    """Yield a caller's data in pieces."""
    return pieces_of(name, data)
