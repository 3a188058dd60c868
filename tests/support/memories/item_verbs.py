"""Shorthands for what tests often do with item stores."""

from collections.abc import Collection
from typing import Any

from turnwise.memory.longterm.base import Scope
from turnwise.memory.longterm.items.base import ALL, ItemFilter, ItemStore, all_items
from turnwise.memory.longterm.retention.retention import Use


async def count(store: ItemStore, scope: Scope, which: ItemFilter = ALL) -> int:
    """Return how many items match that the scope sees."""
    return len(await all_items(store, scope, which))


async def purge(
    store: ItemStore, user_id: str, *, session_id: str | None = None, turn_index: int | None = None
) -> list[str]:
    """Delete all items of a user, or of one session or turn; return their ids."""
    return await store.delete(Scope(user_id=user_id, session_id=session_id), turn_index=turn_index)


async def touch(store: ItemStore, user_id: str, ids: Collection[str], time: float, *, counts: bool = False) -> None:
    """Record one use of a user's items."""
    await store.touch([Use(user_id, tuple(ids), time, counts)])


async def sweep(store: ItemStore, before: float, **options: Any) -> int:
    """Delete items that were not used since a time; return how many."""
    return sum(map(len, (await store.sweep(before, **options)).values()))
