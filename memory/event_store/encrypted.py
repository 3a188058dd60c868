"""A history store that encrypts events, each with the key of its session's user."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.errors import ConfigError
from turnwise.memory.conversation.events import AnyEvent, Event
from turnwise.memory.event_store.base import HistoryStore, check_session
from turnwise.memory.stores.encrypted.keys import KeyRing, Unsealing
from turnwise.memory.stores.encrypted.records import open_events, seal_event
from turnwise.memory.stores.encrypted.settings import Encryption


class EncryptedHistory:
    """Has every verb of `HistoryStore`, and encrypts what goes through it into another.

    Encrypted are the kinds and bodies of events; readable stay their sessions, numbers, times, turns, runs and keys.
    Otherwise as `EncryptedStore`: an event that was moved or changed is refused, and `events` and `append` raise for
    users without a key. `delete` needs none.

    A history knows no users, so who appends says whose events they are: `of(user_id)` returns the history to append to.

    Raises:
        ConfigError: `cryptography` is not installed; or events are appended and nobody has said whose they are.
    """

    def __init__(self, inner: HistoryStore, encryption: Encryption, *, user_id: str | None = None) -> None:
        self._inner = inner
        self._encryption = encryption
        self._user_id = user_id
        self._keys = KeyRing(encryption)

    def __repr__(self) -> str:
        return f"EncryptedHistory({self._inner!r})"

    def of(self, user_id: str) -> EncryptedHistory:
        """Return this history store such that it encrypts appended events with this user's key."""
        bound = EncryptedHistory(self._inner, self._encryption, user_id=user_id)
        bound._keys = self._keys
        return bound

    async def append(self, session_id: str, events: Sequence[Event]) -> None:
        check_session(session_id, events)
        if self._user_id is None:
            raise ConfigError("user_id", None, "say whose events they are: history.of(user_id).append(...)")
        key = await self._keys.of(self._user_id)
        await self._inner.append(session_id, [seal_event(key, session_id, event) for event in events])

    async def events(
        self, session_id: str, *, after: int = 0, limit: int = 1000, run_id: str | None = None
    ) -> list[AnyEvent]:
        found = await self._inner.events(session_id, after=after, limit=limit, run_id=run_id)
        return await open_events(Unsealing(self._keys), session_id, found)

    async def last_seq(self, session_id: str) -> int:
        return await self._inner.last_seq(session_id)

    async def delete(self, session_id: str) -> None:
        await self._inner.delete(session_id)

    async def close(self) -> None:
        await self._inner.close()


def of_user(history: HistoryStore, user_id: str) -> HistoryStore:
    """Return the history to append a user's events to."""
    return history.of(user_id) if isinstance(history, EncryptedHistory) else history
