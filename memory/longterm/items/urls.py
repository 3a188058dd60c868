"""Opens the item store of a URL."""

from __future__ import annotations

from pathlib import Path

from turnwise.errors import ConfigError
from turnwise.memory.longterm.items.base import SPACE, ItemStore
from turnwise.memory.stores.urls import REDIS_SCHEMES, resolve_own_url


def open_items(url: str, *, space: str = SPACE) -> ItemStore:
    """Return the item store for a URL, which may be a session store's.

    Imports the driver, so call it off the event loop. The store connects at first use.

    Args:
        space: stores with different spaces in one database do not see each other's items.

    Raises:
        StoreURLError: the scheme is unknown, or its driver is not installed.
        ConfigError: the space is no name.
    """
    url = resolve_own_url(url)
    scheme = url.partition("://")[0]
    if scheme in REDIS_SCHEMES:
        from turnwise.memory.longterm.items.redis import RedisItems

        return RedisItems(url, space=space)
    if scheme == "memory":
        from turnwise.memory.longterm.items.in_memory import InMemoryItems

        return InMemoryItems()
    from turnwise.memory.longterm.items.sql import SQLItems

    return SQLItems(url, space=space)


def items_at(place: ItemStore | str | Path, *, space: str = SPACE) -> ItemStore:
    """Return the store itself, or that of a URL or of the path of a SQLite file.

    Raises:
        StoreURLError: the scheme is unknown, or its driver is not installed.
        ConfigError: it is none of these.
    """
    if isinstance(place, str) and "://" in place:
        return open_items(place, space=space)
    if isinstance(place, str | Path):
        return open_items(f"sqlite:///{Path(place).expanduser().absolute()}", space=space)
    if not isinstance(place, ItemStore):
        raise ConfigError("items", place, "pass the path of a SQLite file, the URL of a store, or an ItemStore")
    return place
