"""An event store that encrypts each event with the key of its session's user."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.errors import ConfigError
from turnwise.memory.conversation.events import AnyEvent, Event
from turnwise.memory.event_store.base import HistoryStore, check_session
from turnwise.memory.stores.encrypted.keys import KeyRing, Unsealing
from turnwise.memory.stores.encrypted.records import open_events, seal_event
from turnwise.memory.stores.encrypted.settings import Encryption


class EncryptedHistory:
    """A `HistoryStore` that encrypts events and stores them in another event store.

    It encrypts the kinds and bodies of events. Their sessions, numbers, times, turns, runs and keys stay readable. As
    with `EncryptedStore`, reading an event that was moved or changed raises CorruptRecordError, and `events` and
    `append` raise KeyMissingError for users without a key. `delete` needs none, unless events take the place of others.

    Event stores do not know users, so append to `of(user_id)`, which encrypts with this user's key.

    Raises:
        ConfigError: `cryptography` is not installed; or `append` was called without `of(user_id)`.
    """

    def __init__(self, inner: HistoryStore, encryption: Encryption, *, user_id: str | None = None) -> None:
        self._inner = inner
        self._encryption = encryption
        self._user_id = user_id
        self._keys = KeyRing(encryption)

    def __repr__(self) -> str:
        return f"EncryptedHistory({self._inner!r})"

    def of(self, user_id: str) -> EncryptedHistory:
        """Return this event store for appending events of a user, which it encrypts with the user's key."""
        bound = EncryptedHistory(self._inner, self._encryption, user_id=user_id)
        bound._keys = self._keys
        return bound

    async def append(self, session_id: str, events: Sequence[Event]) -> None:
        check_session(session_id, events)
        await self._inner.append(session_id, await self._sealed(session_id, events))

    async def _sealed(self, session_id: str, events: Sequence[Event]) -> list[Event]:
        if self._user_id is None:
            raise ConfigError("user_id", None, "name the user of the events: history.of(user_id).append(...)")
        key = await self._keys.of(self._user_id)
        return [seal_event(key, session_id, event, blocks=True) for event in events]

    async def events(
        self, session_id: str, *, after: int = 0, limit: int = 1000, run_id: str | None = None
    ) -> list[AnyEvent]:
        found = await self._inner.events(session_id, after=after, limit=limit, run_id=run_id)
        return await open_events(Unsealing(self._keys), session_id, found)

    async def last_seq(self, session_id: str) -> int:
        return await self._inner.last_seq(session_id)

    async def delete(self, session_id: str, *, turns_up_to: int | None = None, instead: Sequence[Event] = ()) -> None:
        sealed = await self._sealed(session_id, instead) if instead else []
        await self._inner.delete(session_id, turns_up_to=turns_up_to, instead=sealed)

    async def close(self) -> None:
        await self._inner.close()


def of_user(history: HistoryStore, user_id: str) -> HistoryStore:
    """Return the event store for appending events of a user."""
    return history.of(user_id) if isinstance(history, EncryptedHistory) else history
