"""From a URL to the store it names."""

from __future__ import annotations

import re
from pathlib import Path

from turnwise.errors import ConfigError, StoreURLError
from turnwise.memory.history import HistoryStore
from turnwise.memory.in_memory import InMemoryStore
from turnwise.memory.store import SessionStore

SQL_SCHEMES = ("sqlite", "sqlite+pysqlite", "postgresql", "postgresql+psycopg")


def redact(url: str) -> str:
    """Return the URL as it may be shown: without its password, also where it is malformed."""
    url = re.sub(r"((?://|^\w+:)[^:/@?]*:).*@", r"\1***@", str(url))
    return re.sub(r"([?&]password=)[^&]*", r"\1***", url)


def resolve_url(url: str) -> str:
    """Return the URL with a SQLite path made absolute, so that it means the same file in every process.

    Raises:
        StoreURLError: the URL is of no known scheme, or names no file.
    """
    scheme, separator, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if not separator or scheme not in ("memory", *SQL_SCHEMES):
        raise StoreURLError(redact(url), "its scheme is not known")
    if scheme.startswith("sqlite"):
        path, _, options = rest.removeprefix("/").partition("?")
        if not path or path == ":memory:" or not rest.startswith("/"):
            why = "it names no file (three slashes for a relative path, four for an absolute one)"
            raise StoreURLError(redact(url), why)
        return f"{scheme}:///{Path(path).expanduser().resolve()}" + (f"?{options}" if options else "")
    return url


def open_store(url: str) -> SessionStore:
    """Return a store for the URL. Imports what it needs and connects at first use, so call it off the event loop.

    Raises:
        StoreURLError: the URL is of no known scheme, or its driver is not installed.
    """
    url = resolve_url(url)
    if url.startswith("memory:"):
        return InMemoryStore()
    from turnwise.memory.sql import SQLStore  # 0.15 s that a process with another store need not pay

    return SQLStore(url)


def check_history_url(url: str) -> str:
    """Return the URL of a history, resolved.

    Raises:
        StoreURLError: the URL is of no known scheme.
        ConfigError: it is of a store in memory: a history there would not be shared.
    """
    url = resolve_url(url)
    if url.startswith("memory:"):
        raise ConfigError("history_store", url, "is no place that processes share: use sqlite:/// or postgresql://")
    return url


def open_history(url: str) -> HistoryStore:
    """Return a history for the URL, which may be that of a store. Imports and connects as `open_store` does.

    Raises:
        StoreURLError: the URL is of no known scheme, or its driver is not installed.
        ConfigError: see `check_history_url`.
    """
    url = check_history_url(url)
    from turnwise.memory.history_sql import SQLHistory

    return SQLHistory(url)
