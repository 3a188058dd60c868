"""`HistoryStore`: the protocol of event stores, which store events of sessions apart from the conversations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.events import AnyEvent, Event
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.values.ids import check_names


@runtime_checkable
class HistoryStore(Protocol):
    """Durable storage of events. `memory/event_store/conformance.py` has its laws; check them on your own store.

    A session without events has an empty history. Each method is one transaction; a cancelled call was carried out
    whole or not at all. Events are read as they were written, with their blocks, so that a history is enough to rebuild
    the conversation: see `transcripts.rebuild`. Methods raise `StoreError` if the store cannot be reached, read or
    written.

    A store of your own writes an event as `event.model_dump_json()`, and reads it by pydantic's
    `TypeAdapter(AnyEvent)`. `check_appended` makes the checks of `append` that need nothing of the store.
    """

    async def append(self, key: SessionKey, events: Sequence[Event]) -> None:
        """Store events, all or none. They are durable when this returns.

        An event is identified by its session and sequence number. An event that is stored already is skipped, so a call
        may be repeated. The numbers may be in any order.

        Raises:
            HistoryConflictError: a different event with this number or this key is stored; nothing is written.
            InvalidInputError: an event belongs to another session; nothing is written.
        """

    async def events(
        self, key: SessionKey, *, after: int = 0, limit: int = 1000, run_id: str | None = None
    ) -> list[AnyEvent]:
        """Return up to `limit` events with a sequence number above `after`, by number.

        Args:
            run_id: return only events of this run; None returns all events.

        Raises:
            InvalidInputError: the limit is below 1.
            CorruptRecordError: an event cannot be read; names the event.
        """

    async def last_seq(self, key: SessionKey) -> int:
        """Return the highest sequence number of the session's events; 0 if it has none."""

    async def delete(self, key: SessionKey, *, turns_up_to: int | None = None, instead: Sequence[Event] = ()) -> None:
        """Delete all events of the session, if there are any.

        Args:
            turns_up_to: delete only the events of turns up to this index.
            instead: events that take the place of those with their numbers, in the same transaction.

        Raises:
            HistoryConflictError: an event that stays has the key of one of `instead`; nothing is changed.
        """

    async def delete_user(self, user_id: str) -> None:
        """Delete all events of all sessions of a user, if there are any. Those of other users stay."""

    async def close(self) -> None:
        """Close connections and files. Closing twice is fine; any other call afterwards raises StoreClosedError."""


@runtime_checkable
class ManyHistories(Protocol):
    """A `HistoryStore` that can delete the events of many sessions in one transaction."""

    async def delete_sessions(self, keys: Collection[SessionKey]) -> None:
        """Delete all events of these sessions, if there are any. Those of others stay."""


async def delete_sessions(history: HistoryStore, keys: Collection[SessionKey]) -> None:
    """Delete all events of sessions; each in a transaction of its own, if the event store is no `ManyHistories`."""
    if isinstance(history, ManyHistories):
        await history.delete_sessions(keys)
        return
    for key in keys:
        await history.delete(key)


def check_appended(key: SessionKey, events: Sequence[Event]) -> None:
    """Raise InvalidInputError if an event belongs to another session, or a name in it cannot be kept by each store."""
    check_names("session_id", *key)
    for event in events:
        check_names("run_id of an event", *key, event.run_id)
        check_names("key of an event", *key, event.key)
        if event.session_key != key:
            reason = (
                f"event {event.seq} belongs to another session than {key.session_id!r}: append it to its own session"
            )
            raise InvalidInputError("session_id", shown(event.session_id), reason)
