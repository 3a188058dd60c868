"""Opens the fact store of a URL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.memory.stores.urls import REDIS_SCHEMES, resolve_own_url

if TYPE_CHECKING:
    from turnwise.memory.longterm.items.base import FactStore


def open_facts(url: str) -> FactStore:
    """Return the fact store for a URL, which may be a session store's.

    Imports the driver, so call it off the event loop. The store connects at first use.

    Raises:
        StoreURLError: the scheme is unknown, or its driver is not installed.
    """
    url = resolve_own_url(url)
    scheme = url.partition("://")[0]
    if scheme in REDIS_SCHEMES:
        from turnwise.memory.longterm.items.redis import RedisFacts

        return RedisFacts(url)
    if scheme == "memory":
        from turnwise.memory.longterm.items.in_memory import InMemoryFacts

        return InMemoryFacts()
    from turnwise.memory.longterm.items.sql import SQLFacts

    return SQLFacts(url)


def facts_at(place: FactStore | str | Path) -> FactStore:
    """Return the store itself, or that of a URL or of the path of a SQLite file.

    Raises:
        StoreURLError: the scheme is unknown, or its driver is not installed.
    """
    if isinstance(place, str) and "://" in place:
        return open_facts(place)
    if isinstance(place, str | Path):
        return open_facts(f"sqlite:///{Path(place).expanduser().absolute()}")
    return place
