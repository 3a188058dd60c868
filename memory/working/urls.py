"""Opens the note store of a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnwise.memory.stores.urls import is_redis, resolve_own_url

if TYPE_CHECKING:
    from turnwise.memory.working.base import NoteStore


def open_notes(url: str) -> NoteStore:
    """Return a note store for the URL. The URL may also be a fact store's.

    Imports and connects as `open_store` does.

    Raises:
        StoreURLError: the URL's scheme is not known, or its driver is not installed.
    """
    if is_redis(url):
        from turnwise.memory.working.redis import RedisNotes

        return RedisNotes(url)
    url = resolve_own_url(url)
    if url.startswith("memory:"):
        from turnwise.memory.working.base import InMemoryNotes

        return InMemoryNotes()
    from turnwise.memory.working.sql import SQLNotes

    return SQLNotes(url)
