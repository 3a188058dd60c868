"""What `TurnwiseStore` asks of the database with its items, and the function that opens that database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from turnwise.adapters.langgraph.items_sql import SQLGraphItems

ItemKey = tuple[str, str]
"""An item's namespace as it is stored, each label followed by a dot; and its key."""


@dataclass(frozen=True)
class Search:
    """Which items a search wants."""

    prefix: str
    limit: int | None
    """None for all."""
    offset: int


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The reads and writes of one batch: the reads are made at one moment, and the writes in one transaction."""

    now: float
    gets: Sequence[ItemKey]
    searches: Sequence[Search]
    lists_namespaces: bool
    """Whether all namespaces are read."""
    puts: Mapping[ItemKey, Mapping[str, Any] | None]
    """The columns of each item; None for an item that is deleted."""


def open_items(url: str) -> SQLGraphItems:
    """Return a store of items for the URL. Imports its driver, so call it off the event loop. It connects at first use.

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
