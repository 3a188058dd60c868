"""`StoreSpec`: a manager's stores, as each process that uses them opens its own.

This module imports nothing heavy, since every new session process waits for its imports.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnwise.actors.hosting.store_object import StoreObject
from turnwise.memory.longterm.base import is_local

if TYPE_CHECKING:
    from turnwise.actors.hosting.runtime import Runtime
    from turnwise.memory.event_store.base import HistoryStore
    from turnwise.memory.files.base import FileStore
    from turnwise.memory.stores.base import SessionStore
    from turnwise.memory.stores.encrypted.settings import Encryption


NO_FILES = ""
"""The place of files of a store that has none, though it could."""


def store_id_of(namespace: str, store: object, *, is_encrypted: bool = False) -> str:
    """Return the id of a store by which its processes are found; `store` is its resolved URL, or its object.

    Managers with and without encryption cannot read each other's sessions, so they use different processes.
    """
    name = f"{namespace}\n{store}" + ("\nencrypted" if is_encrypted else "")
    return hashlib.sha256(name.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class StoreSpec:
    """A store and its history store, if any, and the encryption of both."""

    url: str | StoreObject
    """The resolved URL, or the store as an object."""
    history_url: str | StoreObject | None = None
    encryption: Encryption | None = None
    is_local: bool = False
    """Whether its processes open a file, which is on one node."""
    files: str | None = None
    """Where the bytes of files are: a folder, or a URL of fsspec; None if nowhere, or in the store itself."""
    read_only: bool = False
    """Whether it is opened for reading only, while another owner uses it."""
    accounts: StoreSpec | None = None
    """The store whose quotas limit this one's runs, and count what they use: see `accounted`; None: its own."""

    def store_id_in(self, namespace: str) -> str:
        """See `store_id_of`."""
        own = self.url.url if isinstance(self.url, StoreObject) else self.url
        return store_id_of(namespace, own, is_encrypted=self.encryption is not None)

    def open_store(self, runtime: Runtime) -> SessionStore:
        """Open the store in this process; for `memory://`, return the store that the runtime's processes share."""
        store = self._open_own(runtime)
        if self.accounts is None:
            return store
        from turnwise.memory.stores.accounted import accounted

        return accounted(store, self.accounts.open_store(runtime))

    def _open_own(self, runtime: Runtime) -> SessionStore:
        if isinstance(self.url, StoreObject):
            from turnwise.memory.stores.base import SessionStore

            store: SessionStore = self._owned(self.url.open(SessionStore, runtime), runtime)
        elif self.url.startswith("memory:"):
            store = runtime.open_shared_store(self.url)
        else:
            from turnwise.memory.stores.urls import open_store, read_only

            store = self._owned(open_store(read_only(self.url) if self.read_only else self.url), runtime)
        if self.encryption is None:
            return store
        from turnwise.memory.stores.encrypted.store import EncryptedStore

        return EncryptedStore(store, self.encryption)

    def _owned(self, store: SessionStore, runtime: Runtime) -> SessionStore:
        """Return the store, which knows its owner from now on if it tells one from another."""
        from turnwise.memory.stores.store_owner import Shared

        if isinstance(store, Shared) and not self.read_only:
            store.own(runtime.owner)
        return store

    def open_history(self, runtime: Runtime) -> HistoryStore | None:
        """Open the history store in this process; None if there is none."""
        if self.history_url is None:
            return None
        if isinstance(self.history_url, StoreObject):
            from turnwise.memory.event_store.base import HistoryStore

            history: HistoryStore = self.history_url.open(HistoryStore, runtime)
        else:
            from turnwise.memory.event_store.urls import open_history
            from turnwise.memory.stores.urls import read_only

            history = open_history(read_only(self.history_url) if self.read_only else self.history_url)
        if self.encryption is None:
            return history
        from turnwise.memory.event_store.encrypted import EncryptedHistory

        return EncryptedHistory(history, self.encryption)

    @property
    def has_files(self) -> bool:
        """Whether `open_files` returns a place for files."""
        in_memory = isinstance(self.url, str) and self.url.startswith("memory:")
        return in_memory if self.files is None else self.files != NO_FILES

    def open_files(self, store: SessionStore) -> FileStore | None:
        """Open what keeps the bytes of files, beside the store that was opened; None if there is no place for them."""
        if not self.has_files:
            return None
        files: FileStore
        if self.files is not None:
            from turnwise.memory.files.fsspec_files import FsspecFiles

            files = FsspecFiles(self.files)
        else:
            from turnwise.memory.files.stored_objects import StoredObjects

            keeper: Any = store if self.encryption is None else getattr(store, "inner", store)
            files = StoredObjects(keeper)
        if self.encryption is None:
            return files
        from turnwise.memory.stores.encrypted.files import EncryptedFiles

        return EncryptedFiles(files, self.encryption)


def is_file(store: object) -> bool:
    """Return whether a store is in a file, so that only processes of its node open the same one.

    Args:
        store: a URL, or an object, whose attribute `is_local` says so.
    """
    return store.startswith("sqlite") if isinstance(store, str) else is_local(store)


def check_folders(*stores: object) -> None:
    """Refuse URLs of SQLite files in folders that do not exist on this machine.

    Raises:
        StoreError: says which folder.
    """
    from turnwise.memory.stores.urls import redact, resolve_url

    for url in stores:
        if isinstance(url, str) and (resolved := resolve_url(url)).startswith("sqlite"):
            import sqlalchemy as sa  # takes 0.15 s

            from turnwise.memory.stores.sql.sqlite_file import path_of
            from turnwise.memory.stores.sql.sqlite_owner import check_folder

            check_folder(path_of(sa.make_url(resolved)), redact(url))
