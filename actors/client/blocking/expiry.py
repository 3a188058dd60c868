# Made from actors/client/expiry.py by `make blocking`: change that file.
"""The sweep: deletes expired sessions. A session that a process has loaded is deleted by that process."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from turnwise.actors.client.blocking import steps
from turnwise.actors.client.blocking.files import collect_files
from turnwise.actors.client.blocking.session_host import SessionHost
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.hosting.wire import SessionRef
from turnwise.actors.memory.config import scopes_of
from turnwise.actors.memory.session_memories import SessionMemories
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import (
    LongTermMemoryError,
    SessionBusyError,
    SessionChangedError,
    SessionNotFoundError,
    TurnwiseError,
)
from turnwise.memory.archive.expiry import (
    PAGE,
    TOGETHER,
    Left,
    Swept,
    archived,
    damaged,
    not_deleted,
    sweep_sessions,
    sweep_unchanged,
)
from turnwise.memory.archive.file import ArchiveFile
from turnwise.memory.background import log_failure
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.files.access import FileAccess
from turnwise.memory.files.index import keeps_files
from turnwise.memory.stores.agents import agents_below
from turnwise.memory.stores.base import SessionStore, claim_sweep, deletes_unchanged

CLOSE_S = 5.0
"""How long a manager that closes waits for a sweep that its schedule has begun, in seconds."""

_log = logging.getLogger(__name__)


def sweep_but_events(client: SessionsClient) -> None:
    """Delete the sessions of a store that have expired, but for their events in the event store.

    What cannot be deleted now, such as a session whose events have not arrived there, is left to the next sweep.
    """
    store, cursor = client.session_store, None
    now = steps.run(client.portal, store.now)
    while True:
        page = steps.run(client.portal, store.expired, now, cursor=cursor, limit=PAGE)
        for session in page:
            with suppress(TurnwiseError):
                SessionHost(client, SessionRef.of(session)).delete_but_events(session.updated_at)
        if (cursor := page.cursor) is None:
            return


def sweep(
    client: SessionsClient,
    store: SessionStore,
    archive: Path | None,
    memories: SessionMemories | None = None,
    *,
    beside: steps.Background | None = None,
    cursor: str | None = None,
    limit: int | None = None,
) -> Swept:
    """Delete the sessions of a store that have expired; see `SessionManager.sweep`.

    Sessions that no process has loaded are deleted in groups. Each of the others is deleted by its process, as is each
    of which there is more than a store can delete in groups.

    Args:
        memories: what has to forget the sessions, too.
        beside: the work beside its caller that this is, if it is. Then it takes small pages, pauses after each for as
            long as the page took, so that half of the time is left to others, and ends early once the work is stopped.
    """
    portal, at_once = client.portal, TOGETHER if beside else PAGE
    now = steps.run(portal, store.now)  # the store's clock, which also dates the sessions' commits
    swept = Swept()
    history = client.open_history()
    files = client.files if client.has_files and keeps_files(store) else None
    is_apart = history is not None or memories is not None
    asks_all = is_apart and not deletes_unchanged(store)
    try:
        while True:
            began = time.monotonic()
            most = at_once if limit is None else min(at_once, limit)
            page = steps.run(portal, store.expired, now, cursor=cursor, limit=most)
            keys = [session.key for session in page]
            asks = set(keys if asks_all else steps.run(portal, client.processes.loaded, keys))
            idle = [session for session in page if session.key not in asks]
            left = Left()
            if is_apart:
                forget = memories.forget if memories else None
                where: dict[str, Any] = {"archive": archive, "files": files}
                done, left = steps.run(portal, sweep_unchanged, store, idle, history, forget, **where)
                asks |= {session.key for session in idle} - set(done.deleted)
            else:
                done = steps.run(portal, sweep_sessions, store, idle, archive, files=files)
            swept += done
            for session in idle:
                client.drop(SessionRef.of(session))
            for session in page:
                if session.key in asks:
                    swept += _ask(
                        client,
                        store,
                        session,
                        archive=archive,
                        history=history,
                        files=files,
                        memory=memories is not None,
                        file=left.files.get(session.key),
                    )
            swept += damaged(page)
            if beside:
                beside.pause(time.monotonic() - began)
            cursor, limit = page.cursor, None if limit is None else limit - most
            if cursor is None or limit == 0 or (beside and beside.is_stopped()):
                return replace(swept, cursor=cursor)
    finally:
        if history:
            steps.run(portal, history.close)


def memories_of(client: SessionsClient, config: SessionConfig) -> SessionMemories:
    """Return the memories of a manager, which forget what a sweep deletes."""
    return SessionMemories(
        memories=[slot.memory for slot in client.memories],
        notes=client.working_memory,
        scopes_of=lambda session: scopes_of(session, config.memory),
    )


class SweepSchedule:
    """Sweeps a store every `every_s` seconds beside its manager, from `begin` to `close`.

    Of the managers of a store that do so, wherever they are, one claims each sweep: see `SweepClaims`. A sweep that
    fails, or whose process is killed, leaves the sessions that remain to the next one, of any manager. Failures are
    logged, and raised by nothing.

    Args:
        every_s: if None, it never sweeps.
        archive: see `SessionManager.sweep`.
    """

    def __init__(self, client: SessionsClient, every_s: float | None, archive: Path | None) -> None:
        self._client = client
        self._every_s = every_s
        self._archive = archive
        self._background = steps.Background("turnwise-sweeps")
        self._has_begun = threading.Lock()
        """Held for good by the call that begins."""

    def begin(self) -> None:
        """Sweep from now on. May be repeated, from any thread."""
        if self._every_s is not None and self._has_begun.acquire(blocking=False):
            self._background.start(self._run)

    def close(self) -> None:
        """Sweep no more; wait for the page that is being deleted, for `CLOSE_S` seconds at most."""
        self._background.stop()
        self._background.ended(CLOSE_S)

    def _run(self) -> None:
        every_s = self._every_s or 0.0
        while not self._background.is_stopped():
            left_s = 0.0
            try:
                left_s = steps.run(self._client.portal, claim_sweep, self._client.session_store, every_s)
                if left_s <= 0.0:
                    self._sweep()
            except Exception as error:  # noqa: BLE001 - whatever the store raises, the next sweep may succeed
                if not self._background.is_stopped():
                    log_failure(f"store {self._client.name}: sweeping", error, f"; it is tried again in {every_s:g} s")
            self._background.pause(min(left_s or every_s, every_s))

    def _sweep(self) -> None:
        client = self._client
        swept = sweep(client, client.session_store, self._archive, beside=self._background)
        collect_files(client)
        _log.info("store %s: %d expired sessions were deleted", client.name, len(swept.deleted))
        for key, reason in swept.failed.items():
            _log.warning("session %r has expired and was not deleted: %s", key.full_name, reason)


def _ask(
    client: SessionsClient,
    store: SessionStore,
    session: SessionRecord,
    *,
    archive: Path | None,
    history: HistoryStore | None,
    files: FileAccess | None,
    memory: bool,
    file: ArchiveFile | None,
) -> Swept:
    """Export the session, then let its process delete it, unless it was used since the query or has an active run.

    Args:
        file: the file of this sweep that has the session, if it has one already.
    """
    agents = list[SessionKey]()
    try:
        file = steps.run(client.portal, archived, store, session, archive, history, files)
        host = SessionHost(client, SessionRef.of(session))
        agents = steps.run(client.portal, agents_below, store, session.key)
        for agent in agents if archive else ():
            record = steps.run(client.portal, store.get, agent)
            steps.run(client.portal, archived, store, record, archive, history, files)
        host.delete(memory=memory, verify=False, updated_at=session.updated_at)
    except SessionNotFoundError:
        pass  # already deleted: by an earlier delivery of this call whose answer was lost, or by another caller
    except TurnwiseError as error:
        # Remove the file only if nothing was deleted; otherwise it may be the only copy of the session.
        if file and isinstance(error, _REFUSALS) and _is_there(client, store, session):
            steps.in_thread(file.remove)
        return not_deleted(session.key, error)
    deleted = (*agents, session.key)
    return Swept(deleted=deleted, archived=deleted if file else ())


_REFUSALS = (SessionBusyError, SessionChangedError, LongTermMemoryError)
"""Errors after which nothing was deleted, unless an earlier delivery of the same call was carried out."""


def _is_there(client: SessionsClient, store: SessionStore, session: SessionRecord) -> bool:
    try:
        stored = steps.run(client.portal, store.get, session.key)
    except TurnwiseError:
        return False
    return stored.log == session.log
