"""`EventForwarder`: copies a session's stored events to the history store, in the background."""

from __future__ import annotations

import asyncio

from turnwise.memory.background import log_failure
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.stores.base import SessionStore

PAGE = 1000

MAX_PAUSE_S = 30.0
"""The longest pause between two tries of a history that fails."""


class EventForwarder:
    """Copies a session's stored events into its history, in order, beside the session's work.

    The session's store has an event first, in the commit of what happened; once the history has it too, a later commit
    lets go of it there. So none is lost and none is there twice, wherever a process dies, and a history that is slow or
    away delays no run: its events wait in the session's store.
    """

    def __init__(self, session_id: str, store: SessionStore, history: HistoryStore) -> None:
        self.history = history
        self.copied = 0
        """The history has every stored event up to this number."""
        self._session_id = session_id
        self._store = store
        self._known = False
        """Whether the history was asked how far it is."""
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def wake(self) -> None:
        """There may be new events in the store."""
        self._more.set()
        self._idle.clear()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def flush(self, timeout_s: float) -> None:
        """Return when all that is stored has been copied, or after `timeout_s`."""
        idle = asyncio.ensure_future(self._idle.wait())
        await asyncio.wait([idle], timeout=timeout_s)
        idle.cancel()

    def stop(self) -> None:
        """Copy no more, until there are new events; then ask the history anew how far it is."""
        if self._task:
            self._task.cancel()
        self._task, self._known, self.copied = None, False, 0

    async def _run(self) -> None:
        tries = 0
        while True:
            await self._more.wait()
            self._more.clear()
            try:
                await self._copy()
            except Exception as error:  # noqa: BLE001 - it is logged, and the feed goes on whoever's error it is
                if not tries:
                    log_failure(f"session {self._session_id!r}: to copy events to its history", error)
                await asyncio.sleep(min(0.05 * 2**tries, MAX_PAUSE_S))
                tries = min(tries + 1, 16)
                self._more.set()
            else:
                tries = 0
                if not self._more.is_set():
                    self._idle.set()

    async def _copy(self) -> None:
        if not self._known:
            self.copied = await self.history.last_seq(self._session_id)
            self._known = True
        while events := await self._store.events(self._session_id, after=self.copied, limit=PAGE):
            await self.history.append(self._session_id, events)
            self.copied = events[-1].seq
