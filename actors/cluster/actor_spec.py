"""`StoreSpec` and `ActorSpec`: the store addresses and the engine with which a manager's actors are created.

This module imports nothing heavy, since every new session process waits for its imports.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from turnwise.actors.cluster.logs import LogSettings
from turnwise.actors.cluster.shared_actors.store_object import StoreObject

if TYPE_CHECKING:
    from turnwise.memory.event_store.base import HistoryStore
    from turnwise.memory.stores.base import SessionStore
    from turnwise.memory.stores.encrypted.settings import Encryption


@dataclass(frozen=True)
class StoreSpec:
    """A store and its history store, if any, and the encryption of both."""

    url: str | StoreObject
    """The resolved URL, or the store as an object."""
    history_url: str | StoreObject | None = None
    encryption: Encryption | None = None
    is_local: bool = False
    """Whether its processes open a file, which is on one node."""
    read_only: bool = False
    """Whether it is opened for reading only, while another Ray uses it."""

    def open_store(self, namespace: str) -> SessionStore:
        """Open the store in this process; for `memory://`, return the store that the namespace shares."""
        if isinstance(self.url, StoreObject):
            from turnwise.memory.stores.base import SessionStore

            store: SessionStore = self._owned(self.url.open(SessionStore))
        elif self.url.startswith("memory:"):
            from turnwise.actors.cluster.shared_actors.store_actor import remote_store

            store = remote_store(self.url, namespace)
        else:
            from turnwise.memory.stores.urls import open_store, read_only

            store = self._owned(open_store(read_only(self.url) if self.read_only else self.url))
        if self.encryption is None:
            return store
        from turnwise.memory.stores.encrypted.store import EncryptedStore

        return EncryptedStore(store, self.encryption)

    def _owned(self, store: SessionStore) -> SessionStore:
        """Return the store, which knows this Ray from now on if it tells one from another."""
        from turnwise.memory.stores.cluster_check import Shared

        if isinstance(store, Shared) and not self.read_only:
            from turnwise.actors.cluster.ray_runtime import this_ray

            store.own(this_ray())
        return store

    def open_history(self) -> HistoryStore | None:
        """Open the history store in this process; None if there is none."""
        if self.history_url is None:
            return None
        if isinstance(self.history_url, StoreObject):
            from turnwise.memory.event_store.base import HistoryStore

            history: HistoryStore = self.history_url.open(HistoryStore)
        else:
            from turnwise.memory.event_store.urls import open_history
            from turnwise.memory.stores.urls import read_only

            history = open_history(read_only(self.history_url) if self.read_only else self.history_url)
        if self.encryption is None:
            return history
        from turnwise.memory.event_store.encrypted import EncryptedHistory

        return EncryptedHistory(history, self.encryption)


@dataclass(frozen=True)
class ActorSpec:
    """What the actors of a manager's sessions are created with; see `ActorSettings`."""

    place: StoreSpec
    engine_id: str
    engine: bytes
    logs: LogSettings = field(default_factory=LogSettings)
