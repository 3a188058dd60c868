"""`StoredConversations`: what reads all conversations of a manager's store, such as a replay, has of the manager."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.store_spec import StoreSpec
from turnwise.errors import FilesUnavailableError
from turnwise.memory.files.access import FileAccess
from turnwise.memory.files.records import FileLimits
from turnwise.memory.stores.base import SessionStore

Result = TypeVar("Result")


@dataclass(frozen=True)
class StoredConversations:
    """A manager's store, the files that its blocks name, and whether its sessions have memories."""

    store: SessionStore
    files: FileAccess | None
    has_memories: bool
    place: StoreSpec | None = None
    """How other processes open the store."""
    namespace: str = ""
    file_limits: FileLimits | None = None


Work = Callable[[StoredConversations], Awaitable[Result]]


def conversations_of(manager: Any, work: Work[Any]) -> Any:
    """Carry out what reads the conversations of a manager of either family; return its result.

    With an `AsyncSessionManager` this is a coroutine. With a `SessionManager` it blocks, and the work runs on the event
    loop of the manager's store; if the caller is interrupted, such as by Ctrl+C, the work is cancelled first.
    """
    if isinstance(manager, AsyncSessionManager):
        return _carry_out(manager, work)
    tasks: list[asyncio.Task[Any]] = []

    async def on_portal() -> Any:
        tasks.extend(filter(None, [asyncio.current_task()]))
        return await work(_stored(manager))

    portal = manager._client.portal  # noqa: SLF001 - of the same package
    try:
        return portal.run(on_portal())
    except BaseException:
        for task in tasks:
            portal.run(_cancel(task))
        raise


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _carry_out(manager: AsyncSessionManager, work: Work[Any]) -> Any:
    await manager._start.done()  # noqa: SLF001 - of the same package
    return await work(_stored(manager))


def _stored(manager: Any) -> StoredConversations:
    client = manager._client  # noqa: SLF001 - of the same package
    try:
        files: FileAccess | None = client.files
    except FilesUnavailableError:
        files = None
    return StoredConversations(
        client.session_store,
        files,
        bool(client.memories or client.working_memory),
        client.store_spec,
        client.namespace,
        client.file_limits,
    )
