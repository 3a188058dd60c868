"""Opens the history store of a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnwise.errors import ConfigError
from turnwise.memory.stores.urls import SQL_SCHEMES, redact, resolve_url

if TYPE_CHECKING:
    from turnwise.memory.event_store.base import HistoryStore


def check_history_url(url: str) -> str:
    """Return the URL of a history, resolved.

    Raises:
        StoreURLError: the URL is of no known scheme.
        ConfigError: it is of a store that keeps no histories, or of one in memory: a history there would not be shared.
    """
    url = resolve_url(url)
    scheme = url.partition("://")[0]
    if scheme == "memory":
        raise ConfigError("history_store", url, "is no place that processes share: use sqlite:/// or postgresql://")
    if scheme not in SQL_SCHEMES:
        why = "keeps sessions with their events, and no history apart: use sqlite:/// or postgresql://, or go without"
        raise ConfigError("history_store", redact(url), why)
    return url


def open_history(url: str) -> HistoryStore:
    """Return a history for the URL, which may be that of a store. Imports and connects as `open_store` does.

    Raises:
        StoreURLError: the URL is of no known scheme, or its driver is not installed.
        ConfigError: see `check_history_url`.
    """
    url = check_history_url(url)
    from turnwise.memory.event_store.sql import SQLHistory

    return SQLHistory(url)
