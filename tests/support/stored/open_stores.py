"""Stores that are closed after use, and sessions in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.stores.base import SessionStore


class Closeable(Protocol):
    """A store."""

    async def close(self) -> None:
        """Close its connections and files."""


Store = TypeVar("Store", bound=Closeable)
Result = TypeVar("Result")


@asynccontextmanager
async def closing(store: Store) -> AsyncIterator[Store]:
    """Close the store at the end of the block."""
    try:
        yield store
    finally:
        await store.close()


def run_with(store: Store, use: Callable[[Store], Awaitable[Result]]) -> Result:
    """Return what `use` returns of the store, on an event loop of its own, and close the store."""

    async def call() -> Result:
        async with closing(store):
            return await use(store)

    return asyncio.run(call())


async def own(store: SessionStore, session_id: str = "s", **values: Any) -> SessionRecord:
    """Create and activate a session; return its row."""
    session = await store.create(SessionRecord(session_id=session_id, **values))
    return (await store.activate(session.key)).session
