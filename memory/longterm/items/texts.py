"""What a deletion from a store would delete, and whether its texts are left."""

from __future__ import annotations

from collections.abc import Collection

from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.items.base import ItemFilter, ItemStore, all_stored
from turnwise.memory.longterm.items.rules import check_turn, matches
from turnwise.memory.longterm.retention.deletion import contained_texts, texts_in_item


async def to_delete(
    store: ItemStore, scope: Scope, ids: Collection[str] | None, turn_index: int | None
) -> list[MemoryItem]:
    """Return the items that `delete` would delete with these arguments.

    Raises:
        CorruptRecordError: an item of the user cannot be read; `delete` deletes it all the same.
    """
    check_turn(scope.session_id, turn_index, ids)
    if ids is not None:
        return [*(await store.get(scope, ids)).values()]
    which = ItemFilter(session_id=scope.session_id, turn_index=turn_index, superseded=True)
    stored = [stored.item async for stored in all_stored(store, scope.user_id)]
    return [item for item in stored if matches(item, which)]


async def still_contained(store: ItemStore, texts: Collection[str]) -> set[str]:
    """Return those of these texts that an item of any user contains, whole or as a part: O(all items).

    Raises:
        CorruptRecordError: an item cannot be read.
    """
    remaining = set(texts)
    if remaining:
        async for stored in all_stored(store):
            for text in texts_in_item(stored.item):
                remaining -= contained_texts(text, remaining)
    return set(texts) - remaining
