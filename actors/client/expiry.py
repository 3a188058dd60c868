"""The sweep: deletes expired sessions. A session that has a live process is deleted by that process."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from turnwise.actors.client import steps
from turnwise.actors.client.session_host import AsyncSessionHost
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.hosting.wire import SessionRef
from turnwise.errors import (
    LongTermMemoryError,
    SessionBusyError,
    SessionChangedError,
    SessionNotFoundError,
    TurnwiseError,
)
from turnwise.memory.archive.expiry import (
    PAGE,
    Swept,
    archived,
    damaged,
    not_deleted,
    sweep_sessions,
)
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.files.access import FileAccess
from turnwise.memory.files.index import keeps_files
from turnwise.memory.stores.agents import agents_below
from turnwise.memory.stores.base import SessionStore


async def sweep_but_events(client: SessionsClient) -> None:
    """Delete the sessions of a store that have expired, but for their events in the event store.

    What cannot be deleted now, such as a session whose events have not arrived there, is left to the next sweep.
    """
    store, cursor = client.session_store, None
    now = await steps.run(client.portal, store.now)
    while True:
        page = await steps.run(client.portal, store.expired, now, cursor=cursor, limit=PAGE)
        for session in page:
            with suppress(TurnwiseError):
                await AsyncSessionHost(client, SessionRef.of(session)).delete_but_events(session.updated_at)
        if (cursor := page.cursor) is None:
            return


async def sweep(client: SessionsClient, store: SessionStore, archive: Path | None, memory: bool) -> Swept:
    """Delete the sessions of a store that have expired; see `SessionManager.sweep`."""
    portal = client.portal
    now = await steps.run(portal, store.now)  # the store's clock, which also dates the sessions' commits
    swept, cursor = Swept(), None
    history = client.open_history()
    files = client.files if client.has_files and keeps_files(store) else None
    try:
        while True:
            page = await steps.run(portal, store.expired, now, cursor=cursor, limit=PAGE)
            asks = {session.key for session in page if history or memory or client.is_live(SessionRef.of(session))}
            idle = [session for session in page if session.key not in asks]
            swept += await steps.run(portal, sweep_sessions, store, idle, archive, files=files)
            for session in idle:
                client.drop(SessionRef.of(session))
            for session in page:
                if session.key in asks:
                    swept += await _ask(
                        client, store, session, archive=archive, history=history, files=files, memory=memory
                    )
            swept += damaged(page)
            if (cursor := page.cursor) is None:
                return swept
    finally:
        if history:
            await steps.run(portal, history.close)


async def _ask(
    client: SessionsClient,
    store: SessionStore,
    session: SessionRecord,
    *,
    archive: Path | None,
    history: HistoryStore | None,
    files: FileAccess | None,
    memory: bool,
) -> Swept:
    """Export the session, then let its process delete it, unless it was used since the query or has an active run."""
    file, agents = None, list[SessionKey]()
    try:
        file = await steps.run(client.portal, archived, store, session, archive, history, files)
        host = AsyncSessionHost(client, SessionRef.of(session))
        agents = await steps.run(client.portal, agents_below, store, session.key)
        for agent in agents if archive else ():
            record = await steps.run(client.portal, store.get, agent)
            await steps.run(client.portal, archived, store, record, archive, history, files)
        await host.delete(memory=memory, verify=False, updated_at=session.updated_at)
    except SessionNotFoundError:
        pass  # already deleted: by an earlier delivery of this call whose answer was lost, or by another caller
    except TurnwiseError as error:
        # Remove the file only if nothing was deleted; otherwise it may be the only copy of the session.
        if file and isinstance(error, _REFUSALS) and await _is_there(client, store, session):
            await steps.in_thread(file.remove)
        return not_deleted(session.key, error)
    deleted = (*agents, session.key)
    return Swept(deleted=deleted, archived=deleted if file else ())


_REFUSALS = (SessionBusyError, SessionChangedError, LongTermMemoryError)
"""Errors after which nothing was deleted, unless an earlier delivery of the same call was carried out."""


async def _is_there(client: SessionsClient, store: SessionStore, session: SessionRecord) -> bool:
    try:
        stored = await steps.run(client.portal, store.get, session.key)
    except TurnwiseError:
        return False
    return stored.log == session.log
