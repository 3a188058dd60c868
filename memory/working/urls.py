"""Opens the note store of a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnwise.memory.stores.urls import resolve_non_redis_url

if TYPE_CHECKING:
    from turnwise.memory.working.base import NoteStore


def open_notes(url: str) -> NoteStore:
    """Return a note store for the URL, which may be that of a session or fact store in SQLite or PostgreSQL.

    Imports and connects as `open_store` does.

    Raises:
        StoreURLError: the URL's scheme is not known, or its driver is not installed.
        ConfigError: the URL names a Redis, which keeps sessions and memory items only.
    """
    url = resolve_non_redis_url(url, "notes")
    if url.startswith("memory:"):
        from turnwise.memory.working.base import InMemoryNotes

        return InMemoryNotes()
    from turnwise.memory.working.sql import SQLNotes

    return SQLNotes(url)
