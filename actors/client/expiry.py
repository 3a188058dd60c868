"""The sweep: deletes expired sessions. A session that has a live process is deleted by that process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from turnwise.actors.client.cluster_client import ClusterClient
from turnwise.actors.client.requests import AwaitStep, Request
from turnwise.actors.cluster.wire import SessionRef
from turnwise.errors import (
    LongTermMemoryError,
    SessionBusyError,
    SessionChangedError,
    SessionNotFoundError,
    TurnwiseError,
)
from turnwise.memory.archive.expiry import PAGE, Swept, archived, damaged, not_deleted, sweep_session
from turnwise.memory.archive.file import ArchiveFile
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.stores.base import SessionStore


def sweep(client: ClusterClient, store: SessionStore, archive: Path | None, memory: bool) -> Request[Swept]:
    """Delete the sessions of a store that have expired; see `SessionManager.sweep`."""
    now = yield AwaitStep(store.now)  # the store's clock, which also dates the sessions' commits
    done, cursor = Swept(), None
    history = client.open_history()
    try:
        while True:
            page = yield AwaitStep(partial(store.expired, now, cursor=cursor, limit=PAGE))
            for session in page:
                if client.is_live(SessionRef.of(session)) or history or memory:
                    export = partial(archived, store, session, archive, history)
                    done += yield from _ask(client, store, session, export, memory)
                else:
                    done += yield AwaitStep(partial(sweep_session, store, session, archive))
                    client.drop(SessionRef.of(session))
            done += damaged(page)
            if (cursor := page.cursor) is None:
                return done
    finally:
        if history:
            yield AwaitStep(history.close)


def _ask(
    client: ClusterClient,
    store: SessionStore,
    session: SessionRecord,
    export: Callable[[], Awaitable[ArchiveFile | None]],
    memory: bool,
) -> Request[Swept]:
    """Export the session, then let its process delete it, unless it was used since the query or has an active run."""
    file = None
    try:
        file = yield AwaitStep(export)
        yield from client.delete(SessionRef.of(session), memory=memory, verify=False, updated_at=session.updated_at)
    except SessionNotFoundError:
        pass  # already deleted: by an earlier delivery of this call whose answer was lost, or by another caller
    except TurnwiseError as error:
        # Remove the file only if nothing was deleted; otherwise it may be the only copy of the session.
        if file and isinstance(error, _REFUSALS) and (yield AwaitStep(partial(_is_there, store, session))):
            yield AwaitStep(partial(asyncio.to_thread, file.remove))
        return not_deleted(session.key, error)
    return Swept(deleted=(session.key,), archived=(session.key,) if file else ())


_REFUSALS = (SessionBusyError, SessionChangedError, LongTermMemoryError)
"""Errors after which nothing was deleted, unless an earlier delivery of the same call was carried out."""


async def _is_there(store: SessionStore, session: SessionRecord) -> bool:
    try:
        return (await store.get(session.key)).log == session.log
    except TurnwiseError:
        return False
