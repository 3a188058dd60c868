"""`GraphItems`: what a store of `TurnwiseStore`'s items can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Name = tuple[str, str]
"""An item's namespace as it is stored, each label followed by a dot; and its key."""


@dataclass(frozen=True, slots=True)
class Found:
    """Which items a search wants."""

    prefix: str
    limit: int | None
    """None for all."""
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one transaction does: it reads, then refreshes what it read, then writes."""

    now: float
    gets: Sequence[Name]
    searches: Sequence[Found]
    namespaces: bool
    puts: Mapping[Name, Mapping[str, Any] | None]
    """Columns; None for an item that goes."""


class GraphItems(Protocol):
    """Durable storage of items. Methods raise `StoreError` if the store cannot be reached, read or written."""

    async def read(self, batch: Batch) -> tuple[dict[Name, Any], list[list[Any]], list[str]]:
        """Return rows by name, the rows of each search, and all namespaces, at one moment.

        A row has an attribute for each column. Those of a search have the latest updated first. Expired items are as if
        deleted.
        """

    async def refresh(self, names: Sequence[Name], now: float) -> None:
        """Let the time of these items begin again."""

    async def write(self, batch: Batch) -> None:
        """Store and delete items, and delete the expired ones, in one transaction."""

    async def sweep(self, now: float) -> int:
        """Delete the expired items; return how many."""

    async def close(self) -> None:
        """Close connections and files. Closing twice is fine; any other call afterwards raises StoreClosedError."""


def open_items(url: str) -> GraphItems:
    """Return a store of items for the URL. Imports and connects as `open_store` does.

    Raises:
        StoreURLError: the URL names no store that keeps items, or its driver is not installed.
    """
    from turnwise.errors import StoreURLError
    from turnwise.memory.stores.urls import SQL_SCHEMES, is_redis, redact

    if is_redis(url):
        from turnwise.adapters.langgraph.items_redis import RedisGraphItems

        return RedisGraphItems(url)
    if url.partition("://")[0] not in SQL_SCHEMES:
        raise StoreURLError(redact(url), "TurnwiseStore keeps items in SQLite, PostgreSQL or Redis")
    from turnwise.adapters.langgraph.items_sql import SQLGraphItems

    return SQLGraphItems(url)
