"""An event store in the memory of this process."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

from turnwise.errors import HistoryConflictError, StoreClosedError
from turnwise.memory.conversation.events import AnyEvent, Event, without_blocks
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.event_store.base import check_appended
from turnwise.memory.stores.base import check_limit
from turnwise.memory.values.weights import first_of


class InMemoryHistory:
    """Stores events in memory while the process lives. No method awaits, so each is atomic on its event loop."""

    is_in_process = True
    """Other processes do not see its events."""

    def __init__(self) -> None:
        self._sessions: dict[SessionKey, dict[int, AnyEvent]] = {}
        """Events by number, by session."""
        self._closed = False

    async def append(self, key: SessionKey, events: Sequence[Event]) -> None:
        self._check_open()
        check_appended(key, events)
        stored = self._with(key, self._sessions.get(key, {}), events)
        if events:
            self._sessions[key] = stored

    def _with(
        self, key: SessionKey, events_before: dict[int, AnyEvent], events: Sequence[Event]
    ) -> dict[int, AnyEvent]:
        """Return the session's events with these."""
        stored = dict(events_before)
        keys = {event.key: event.seq for event in stored.values() if event.key is not None}
        for event in cast(Sequence[AnyEvent], events):
            if without_blocks(stored.setdefault(event.seq, event)) != without_blocks(event):
                raise HistoryConflictError(key.session_id, event.seq, None)
            if event.key is not None and keys.setdefault(event.key, event.seq) != event.seq:
                raise HistoryConflictError(key.session_id, event.seq, event.key)
        return stored

    async def events(
        self, key: SessionKey, *, after: int = 0, limit: int = 1000, run_id: str | None = None
    ) -> list[AnyEvent]:
        self._check_open()
        stored = self._sessions.get(key, {})
        later = (stored[seq] for seq in sorted(stored) if seq > after)
        return first_of([event for event in later if run_id in (None, event.run_id)][: check_limit(limit)])

    async def last_seq(self, key: SessionKey) -> int:
        self._check_open()
        return max(self._sessions.get(key, {}), default=0)

    async def delete(self, key: SessionKey, *, turns_up_to: int | None = None, instead: Sequence[Event] = ()) -> None:
        self._check_open()
        replaced = {event.seq for event in instead}
        remaining = {
            seq: event
            for seq, event in self._sessions.get(key, {}).items()
            if turns_up_to is not None
            and seq not in replaced
            and (event.turn_index is None or event.turn_index > turns_up_to)
        }
        if stored := self._with(key, remaining, instead):
            self._sessions[key] = stored
        else:
            self._sessions.pop(key, None)

    async def delete_sessions(self, keys: Collection[SessionKey]) -> None:
        """See `ManyHistories`."""
        self._check_open()
        for key in keys:
            self._sessions.pop(key, None)

    async def delete_user(self, user_id: str) -> None:
        self._check_open()
        self._sessions = {key: events for key, events in self._sessions.items() if key.user_id != user_id}

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("InMemoryHistory()")
