"""`HistoryStore`: the protocol of stores that keep the events of sessions apart from the conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.events import AnyEvent, Event


@runtime_checkable
class HistoryStore(Protocol):
    """Durable storage of events. `memory/event_store/conformance.py` has its laws; run them on your own store.

    It knows no sessions but by their events: one without any has an empty history. Every verb is one transaction; a
    cancelled call may have been carried out or not, never in part. Events come out as they went in, without the blocks
    of those that append some. Verbs raise `StoreError` if the store cannot be reached, read or written.
    """

    async def append(self, session_id: str, events: Sequence[Event]) -> None:
        """Make events durable, all or none. They are durable when this returns.

        Session and number say which event it is. One that is stored already is left as it is, so a call may be
        repeated. Numbers may come in any order.

        Raises:
            HistoryConflictError: an event of this number, or of this key, is stored and another; nothing is written.
            InvalidInputError: an event is of another session; nothing is written.
        """

    async def events(
        self, session_id: str, *, after: int = 0, limit: int = 1000, run_id: str | None = None
    ) -> list[AnyEvent]:
        """Return up to `limit` events with a number above `after`, by number: of one run, or of all and of none.

        Raises:
            InvalidInputError: the limit is below 1.
            CorruptRecordError: one cannot be read; names it.
        """

    async def last_seq(self, session_id: str) -> int:
        """Return the highest number of the session's events, 0 if there are none."""

    async def delete(self, session_id: str) -> None:
        """Delete all events of the session, if there are any."""

    async def close(self) -> None:
        """Close connections and files. Closing twice is fine; any other call afterwards raises StoreClosedError."""


def check_session(session_id: str, events: Sequence[Event]) -> None:
    """Raise InvalidInputError if an event belongs to another session."""
    for event in events:
        if event.session_id != session_id:
            why = f"event {event.seq} is of another session than {session_id!r}: append each to its own"
            raise InvalidInputError("session_id", shown(event.session_id), why)
