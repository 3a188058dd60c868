"""An event store that encrypts each event with the key of its session's user."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from turnwise.memory.conversation.events import AnyEvent, Event
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.event_store.base import HistoryStore, check_appended, delete_sessions
from turnwise.memory.stores.encrypted.keys import KeyRing, Unsealing
from turnwise.memory.stores.encrypted.records import open_events, seal_event
from turnwise.memory.stores.encrypted.settings import Encryption


class EncryptedHistory:
    """A `HistoryStore` that encrypts events and stores them in another event store.

    It encrypts the kinds and bodies of events. Their sessions, numbers, times, turns, runs and keys stay readable. As
    with `EncryptedStore`, reading an event that was moved or changed raises CorruptRecordError, and `events` and
    `append` raise KeyMissingError for users without a key. `delete_user` needs none, nor does
    `delete`, unless events take the place of others.

    Raises:
        ConfigError: `cryptography` is not installed.
    """

    def __init__(self, inner: HistoryStore, encryption: Encryption) -> None:
        self._inner = inner
        self._keys = KeyRing(encryption)

    def __repr__(self) -> str:
        return f"EncryptedHistory({self._inner!r})"

    async def append(self, key: SessionKey, events: Sequence[Event]) -> None:
        check_appended(key, events)
        await self._inner.append(key, await self._sealed(key, events))

    async def _sealed(self, session: SessionKey, events: Sequence[Event]) -> list[Event]:
        key = await self._keys.of(session.user_id)
        return [seal_event(key, session, event, blocks=True) for event in events]

    async def events(
        self, key: SessionKey, *, after: int = 0, limit: int = 1000, run_id: str | None = None
    ) -> list[AnyEvent]:
        events = await self._inner.events(key, after=after, limit=limit, run_id=run_id)
        return await open_events(Unsealing(self._keys), key, events)

    async def last_seq(self, key: SessionKey) -> int:
        return await self._inner.last_seq(key)

    async def delete(self, key: SessionKey, *, turns_up_to: int | None = None, instead: Sequence[Event] = ()) -> None:
        sealed_events = await self._sealed(key, instead) if instead else []
        await self._inner.delete(key, turns_up_to=turns_up_to, instead=sealed_events)

    async def delete_sessions(self, keys: Collection[SessionKey]) -> None:
        """See `ManyHistories`. Needs no key."""
        await delete_sessions(self._inner, keys)

    async def delete_user(self, user_id: str) -> None:
        await self._inner.delete_user(user_id)

    async def close(self) -> None:
        await self._inner.close()
