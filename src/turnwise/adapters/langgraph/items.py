"""What `TurnwiseStore` asks of the database with its items, and the function that opens it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from turnwise.adapters.langgraph.items_sql import SQLGraphItems

Name = tuple[str, str]
"""An item's namespace as it is stored, each label followed by a dot; and its key."""


@dataclass(frozen=True)
class Found:
    """Which items a search wants."""

    prefix: str
    limit: int | None
    """None for all."""
    offset: int


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What one transaction does: it reads, then refreshes what it read, then writes."""

    now: float
    gets: Sequence[Name]
    searches: Sequence[Found]
    namespaces: bool
    puts: Mapping[Name, Mapping[str, Any] | None]
    """Columns; None for an item that goes."""


def open_items(url: str) -> SQLGraphItems:
    """Return a store of items for the URL. Imports and connects as `open_store` does.

    Raises:
        StoreURLError: the URL's scheme is not known, or its driver is not installed.
        ConfigError: the URL names no SQLite or PostgreSQL.
    """
    from turnwise.memory.stores.urls import SQL_SCHEMES, redact, resolve_own_url

    url = resolve_own_url(url)
    if url.partition("://")[0] not in SQL_SCHEMES:
        raise ConfigError("store", redact(url), "does not keep LangGraph's items: use sqlite:/// or postgresql://")
    from turnwise.adapters.langgraph.items_sql import SQLGraphItems

    return SQLGraphItems(url)
