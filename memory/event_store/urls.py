"""Opens the event store of a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnwise.errors import ConfigError
from turnwise.memory.stores.urls import SQL_SCHEMES, redact, resolve_url

if TYPE_CHECKING:
    from turnwise.memory.event_store.base import HistoryStore


def check_history_url(url: str) -> str:
    """Return the resolved URL of an event store.

    Raises:
        StoreURLError: the URL's scheme is not known.
        ConfigError: no event store has this scheme, or it is in memory, where processes would not share it.
    """
    url = resolve_url(url)
    scheme = url.partition("://")[0]
    if scheme == "memory":
        raise ConfigError("history_store", url, "is not shared by processes: use sqlite:/// or postgresql://")
    if scheme not in SQL_SCHEMES:
        reason = "has events with its sessions only: use sqlite:/// or postgresql://, or leave it out"
        raise ConfigError("history_store", redact(url), reason)
    return url


def open_history(url: str) -> HistoryStore:
    """Return an event store for the URL, which may be a session store's. Imports and connects as `open_store` does.

    Raises:
        StoreURLError: the URL's scheme is not known, or its driver is not installed.
        ConfigError: see `check_history_url`.
    """
    url = check_history_url(url)
    from turnwise.memory.event_store.sql import SQLHistory

    return SQLHistory(url)
