"""`EventForwarder`: copies a session's stored events to the history store, in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from turnwise.actors.session.state.cached_blocks import CachedBlocks
from turnwise.errors import CorruptRecordError
from turnwise.memory.background import log_failure
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.growing_pauses import GrowingPauses
from turnwise.memory.stores.base import SessionStore

PAGE = 1000

FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 30.0
"""The first and the longest pause between two attempts, if the history store fails, in seconds."""


class EventForwarder:
    """Copies a session's stored events into its history store, in order, in the background.

    An event is first stored in the session's store, in the same commit as the change that it reports. Once the
    history store has it, a later commit deletes it from the session's store. Therefore no event is lost or duplicated,
    whenever a process dies, and a history store that is slow or unreachable delays no run: events wait in the session's
    store. The history store gets the blocks, too, so it is enough to rebuild the conversation.
    """

    def __init__(self, key: SessionKey, store: SessionStore, history: HistoryStore, blocks: CachedBlocks) -> None:
        self.history = history
        self.copied = 0
        """The history store has every stored event up to this number."""
        self._key = key
        self._store = store
        self._blocks = blocks
        self._log = ""
        self._has_last_seq = False
        """Whether the history store was asked for its last event."""
        self._has_new_events = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def wake(self, log: str) -> None:
        """Copy the events that the store may have by now. Does not wait.

        Args:
            log: the session's log.
        """
        self._log = log
        self._has_new_events.set()
        self._idle.clear()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def flush(self, timeout_s: float) -> bool:
        """Wait until all stored events have been copied, or for `timeout_s` seconds; return whether they have."""
        idle = asyncio.ensure_future(self._idle.wait())
        await asyncio.wait([idle], timeout=timeout_s)
        idle.cancel()
        return self._idle.is_set()

    def stop(self) -> None:
        """Stop copying until `wake` is called; then the history store is asked again for its last event."""
        if self._task:
            self._task.cancel()
        self._task, self._has_last_seq, self.copied = None, False, 0

    async def _run(self) -> None:
        pauses = GrowingPauses(FIRST_PAUSE_S, MAX_PAUSE_S)
        while True:
            await self._has_new_events.wait()
            self._has_new_events.clear()
            try:
                await self._copy()
            except Exception as error:  # noqa: BLE001 - any error is logged, and copying is tried again
                if not pauses.failures:
                    log_failure(f"session {self._key.full_name!r}: copying events to its history store", error)
                await asyncio.sleep(pauses.next_s())
                self._has_new_events.set()
            else:
                pauses.reset()
                if not self._has_new_events.is_set():
                    self._idle.set()

    async def _copy(self) -> None:
        if not self._has_last_seq:
            self.copied = await self.history.last_seq(self._key)
            self._has_last_seq = True
        while events := await self._store.events(self._key, after=self.copied, limit=PAGE):
            complete = await self._with_blocks(events)
            await self.history.append(self._key, complete)
            self.copied = complete[-1].seq

    async def _with_blocks(self, events: Sequence[Event]) -> Sequence[Event]:
        """Return the first events with their blocks, usually from memory; all without them if one cannot be read."""
        try:
            return await self._blocks.read_first_events(events, self._log)
        except CorruptRecordError as error:
            log_failure(f"session {self._key.full_name!r}: reading the blocks of its events", error)
            return events
