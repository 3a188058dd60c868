"""Where a manager's sessions are kept, as every process that works on them is told.

Imports nothing heavy: what is imported here, every session waits for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnwise.memory.encryption import Encryption
    from turnwise.memory.history import HistoryStore
    from turnwise.memory.store import SessionStore


@dataclass(frozen=True, slots=True)
class StorePlace:
    """The resolved address of a store and, if events are kept apart, of their history; how both are encrypted."""

    url: str
    history_url: str | None = None
    encryption: Encryption | None = None
    is_local: bool = False
    """Whether something that its processes open is in a file of one node."""

    def open_store(self, namespace: str) -> SessionStore:
        """Return a store for this process: of its own, or the namespace's shared one for `memory://`."""
        if self.url.startswith("memory:"):
            from turnwise.actors.store_actor import remote_store

            store = remote_store(self.url, namespace)
        else:
            from turnwise.memory.urls import open_store

            store = open_store(self.url)
        if self.encryption is None:
            return store
        from turnwise.memory.encrypted_store import EncryptedStore

        return EncryptedStore(store, self.encryption)

    def open_history(self) -> HistoryStore | None:
        """Return a history of this process's own, if there is one."""
        if self.history_url is None:
            return None
        from turnwise.memory.urls import open_history

        history = open_history(self.history_url)
        if self.encryption is None:
            return history
        from turnwise.memory.encrypted_history import EncryptedHistory

        return EncryptedHistory(history, self.encryption)


@dataclass(frozen=True, slots=True)
class Making:
    """What the actors of a manager's sessions are made with."""

    place: StorePlace
    engine_id: str
    engine: bytes
