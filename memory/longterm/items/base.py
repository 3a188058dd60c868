"""`ItemStore`: the protocol of stores that keep memory items, independent of how items are made and searched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.memory_types import MemoryType, checked_types
from turnwise.memory.longterm.retention.retention import Use
from turnwise.memory.stores.base import Page


@dataclass(frozen=True, kw_only=True)
class ItemFilter:
    """A filter of items. An item matches if it fits all fields.

    Raises:
        InvalidInputError: one of the types is no type.
    """

    types: Collection[MemoryType] | None = None
    """Only items of these types; all types if left out."""
    session_id: str | None = None
    """Only items from this session."""
    turn_index: int | None = None
    """Only items from a turn with this index."""
    as_of: float | None = None
    """Only items that existed at this time, in seconds since the epoch, and were not yet superseded. If None, items
    that are not superseded now."""
    superseded: bool = False
    """Whether superseded items match as well."""
    used_since: float | None = None
    """Only items that were put, changed, superseded or touched at this time or later."""
    live_at: float | None = None
    """Only items that have not expired by this time, in seconds since the epoch, and that, without `as_of`, are not
    resolved. If None, expired and resolved items match as well."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", checked_types(self.types))


MAX_ID_BYTES = 1500
"""The most bytes of an item's id, in UTF-8: it is indexed with its user's."""

ALL = ItemFilter()
"""All items that are not superseded."""

SPACE = "items"
"""The space of a store that is opened without a name. See `ItemStore`."""


@dataclass(frozen=True)
class StoredItem:
    """A stored item and its owner."""

    user_id: str
    agent: str | None
    """The agent that owns the item; None if all of the user's agents see it, as they see every semantic item."""
    item: MemoryItem


Change: TypeAlias = Callable[[MemoryItem | None], MemoryItem | None]
"""Takes an item, None if there is none; returns the item to store, or its argument if nothing changes. Must be pure,
since it may be called again, and on another thread."""


@runtime_checkable
class ItemStore(Protocol):
    """Durable storage of memory items. `memory/longterm/items/conformance.py` has its laws; run them on your own store.

    A semantic item belongs to the scope's user. Any other item belongs to the scope's agent or, if the scope names no
    agent, to the user. A scope sees the items of its user and of its agent, and no others; its session plays no part,
    except in `delete`. Stores of one database with different *spaces* do not see each other's items.

    Each call is one transaction, if it does not say otherwise: a cancelled call was carried out completely or not at
    all. An item is returned as it was put, without blocks and score. All methods raise `StoreError` if the store cannot
    be reached, read or written.
    """

    async def put(self, scope: Scope, items: Sequence[MemoryItem], *, at: float | None = None) -> list[str]:
        """Store all of these items or none; return the ids of the new ones, in order. They are durable on return.

        An item whose id the user has, or has deleted, is not changed. So a call may be repeated at any later time.

        Args:
            at: the time of their last use, in seconds since the epoch; now if left out. See `sweep`.

        Raises:
            InvalidMemoryError: an item is invalid; nothing is written.
        """

    async def get(self, scope: Scope, ids: Collection[str]) -> dict[str, MemoryItem]:
        """Return the items with these ids that the scope sees, superseded ones included, by id."""

    async def query(
        self, scope: Scope, which: ItemFilter = ALL, *, cursor: str | None = None, limit: int = 100
    ) -> Page[MemoryItem]:
        """Return a page of items that the scope sees, the newest first; of equally old items the last inserted first.

        Args:
            cursor: the cursor of the previous page; None for the first page.
            limit: the most items of the page.

        Raises:
            InvalidInputError: the limit is below 1, or the cursor is invalid.
            CorruptRecordError: an item cannot be read; the error names it.
        """

    async def scan(
        self, user_id: str | None = None, *, cursor: str | None = None, limit: int = 1000
    ) -> Page[StoredItem]:
        """Return a page of the items of a user, or of all users, of all agents, superseded ones included.

        Those of one user come in the order of insertion; users come in any order. For callers that copy, convert or
        index everything. Items that are put meanwhile may be missing.
        """

    async def change(
        self, scope: Scope, id: str, change: Change, *, at: float | None = None, successor: MemoryItem | None = None
    ) -> MemoryItem | None:
        """Replace an item that the scope sees by what `change` makes of it; return it as it is then, None if missing.

        If the scope sees no such item, `change` is given None, and what it returns is stored as a new item, even if one
        with this id was deleted before. An item of another agent is left alone. The id and `created_at` stay. The owner
        follows from the types: an item whose type becomes semantic belongs to the user from then on; one whose type
        ceases to be semantic belongs to the scope's agent. If `change` raises, nothing is written. See `changes.py` for
        updates, pins and supersessions.

        Args:
            at: the time of the change, in seconds since the epoch, if it counts as a use; see `sweep`.
            successor: an item to store together with the change, unless the user has it. If it was deleted before,
                nothing is written.

        Raises:
            InvalidMemoryError: the new item or the successor is invalid, or the id differs; nothing is written.
        """

    async def delete(
        self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None
    ) -> list[str]:
        """Delete items, superseded ones included; return their ids.

        With `ids`, deletes those that the scope sees. Without, deletes all items of the scope's session or, without a
        session, of its user, of all agents; these are deleted in transactions of some hundred items, between which
        others read and write. After an error, call it again.

        Deleted ids, and given ids that do not exist yet, are refused by `put` for `TOMBSTONE_S`, so a repeated flush
        does not bring a deleted item back. An item that a deleted one superseded, of whichever agent, takes over the
        end of the deleted one: it is valid again, or is superseded by what superseded the deleted one. All of this
        applies to `sweep` too.

        Args:
            turn_index: only items of this turn of the scope's session.

        Raises:
            InvalidInputError: a turn is given without its session, or together with ids.
        """

    async def touch(self, uses: Sequence[Use]) -> None:
        """Record uses of items; `counts` raises their `uses` by one. Unknown ids are ignored. Each use is atomic.

        An item that was used at this time or later is not changed, so a call may be repeated.
        """

    async def sweep(
        self, before: float, *, types: Collection[MemoryType] | None = None, limit: int = 1000
    ) -> dict[str, list[str]]:
        """Delete up to `limit` items of all users that were last used before this time; return their ids by user.

        The longest unused items go first, superseded ones included. Call it until it returns none. See `delete`.

        Args:
            types: only items of these types; all if left out.
        """

    async def close(self) -> None:
        """Close connections and files. A second call does nothing; any other method then raises StoreClosedError."""


@runtime_checkable
class SessionsDeletion(Protocol):
    """An `ItemStore` that can delete the items of many sessions, of many users, in few transactions."""

    async def delete_sessions(self, sessions: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
        """Delete all items of these sessions, by user, as `delete` does; return their ids by user."""


async def delete_sessions(store: ItemStore, sessions: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """Delete all items of these sessions, by user; return their ids by user. After an error, call it again."""
    if isinstance(store, SessionsDeletion):
        return await store.delete_sessions(sessions)
    scopes = [Scope(user_id=user_id, session_id=name) for user_id, names in sessions.items() for name in names]
    deleted: dict[str, list[str]] = {}
    for scope, ids in zip(scopes, await asyncio.gather(*map(store.delete, scopes)), strict=True):
        deleted.setdefault(scope.user_id, []).extend(ids)
    return deleted


async def all_items(store: ItemStore, scope: Scope, which: ItemFilter = ALL) -> list[MemoryItem]:
    """Return all items that the scope sees, newest first."""
    page = await store.query(scope, which, limit=_PAGE)
    items = list(page)
    while page.cursor is not None:
        page = await store.query(scope, which, cursor=page.cursor, limit=_PAGE)
        items += page
    return items


async def all_stored(store: ItemStore, user_id: str | None = None) -> AsyncIterator[StoredItem]:
    """Yield all items of a user, or of all, as `scan` returns them."""
    page = await store.scan(user_id, limit=_PAGE)
    while True:
        for stored in page:
            yield stored
        if page.cursor is None:
            return
        page = await store.scan(user_id, cursor=page.cursor, limit=_PAGE)


_PAGE = 1000
