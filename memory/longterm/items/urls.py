"""Opens the fact store of a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnwise.memory.stores.urls import is_redis, resolve_own_url

if TYPE_CHECKING:
    from turnwise.memory.longterm.items.base import FactStore


def open_facts(url: str) -> FactStore:
    """Return a store of facts for the URL, which may be that of a session store, or of a Redis.

    Imports and connects as `open_store` does.

    Raises:
        StoreURLError: the URL is of no known scheme, or its driver is not installed.
    """
    if is_redis(url):
        from turnwise.memory.longterm.items.redis import RedisFacts

        return RedisFacts(url)
    url = resolve_own_url(url)
    if url.startswith("memory:"):
        from turnwise.memory.longterm.items.in_memory import InMemoryFacts

        return InMemoryFacts()
    from turnwise.memory.longterm.items.sql import SQLFacts

    return SQLFacts(url)
