"""Changes of one item in any store: update, pin and supersede."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, Unpack, cast

from turnwise.errors import InvalidMemoryError
from turnwise.memory.longterm.base import ItemChanges, MemoryItem, Scope
from turnwise.memory.longterm.items.base import Change, ItemStore
from turnwise.memory.longterm.items.rules import MAX_SHOWN, checked_item
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall.analyzer import stem, words


async def update(
    store: ItemStore,
    scope: Scope,
    id: str,
    text: str | None = None,
    *,
    at: float,
    type: MemoryType | None = None,
    **changes: Unpack[ItemChanges],
) -> MemoryItem | None:
    """Change the given fields of an item; return it, or None if the scope sees none that is not superseded.

    A superseded item is history and is not changed. A name or topic that occurs only in the old text is removed with
    that text: see `changed`.

    Args:
        at: the time of the change, in seconds since the epoch, stored as `updated_at`.

    Raises:
        InvalidMemoryError: the changed item would be invalid, or no change is given; nothing is written.
    """
    new_type, more = check_change(scope, id, text, type, at=at, changes=changes)

    def change(item: MemoryItem) -> MemoryItem:
        return changed(item, text, new_type, at, more)

    return _valid(await store.change(scope, id, partial(_if_valid, change), at=at))


async def pin(store: ItemStore, scope: Scope, id: str, pinned: bool) -> bool:
    """Pin or unpin an item; return whether the scope sees it and it is not superseded. That counts as no use."""
    change = partial(_if_valid, partial(replace, pinned=pinned))
    return _valid(await store.change(scope, id, change)) is not None


async def supersede(store: ItemStore, scope: Scope, id: str, item: MemoryItem) -> bool:
    """Supersede an item that the scope sees by `item`; return whether `item` supersedes it on return.

    The old item stays as history: it was valid until the creation of the new one, which counts as its last use. Returns
    False, and writes nothing, if the old item does not exist or was superseded by another one, or if the new item was
    deleted before. May be repeated.

    Raises:
        InvalidMemoryError: the new item is invalid, has the old one's id, or has no time; nothing is written.
    """
    item = check_successor(scope, id, item)
    end: dict[str, Any] = {"superseded_at": item.created_at, "superseded_by": item.id}
    change = partial(_if_valid, partial(replace, **end))
    old = await store.change(scope, id, change, at=item.created_at, successor=item)
    return old is not None and old.superseded_by == item.id


def _if_valid(change: Callable[[MemoryItem], MemoryItem], item: MemoryItem | None) -> MemoryItem | None:
    """Return the changed item; the item itself if it is missing or superseded."""
    return item if _valid(item) is None else change(cast(MemoryItem, item))


def _valid(item: MemoryItem | None) -> MemoryItem | None:
    return None if item is None or item.superseded_at is not None else item


def replacement(scope: Scope, id: str, change: Change, old: MemoryItem | None) -> MemoryItem | None:
    """Return the item that `change` makes of one, as it is stored; None if nothing is to be written.

    Raises:
        InvalidMemoryError: it is invalid, or its id or time of creation differs.
    """
    new = change(old)
    if new is None or new == old:
        return None
    new = checked_item(scope, new)
    if new.id != id or (old is not None and new.created_at != old.created_at):
        raise InvalidMemoryError(id[:MAX_SHOWN], "a change must not change its id or its time of creation")
    return new


def check_change(
    scope: Scope, id: str, text: str | None, type: MemoryType | None, *, at: float, changes: ItemChanges
) -> tuple[MemoryType | None, ItemChanges]:
    """Return the new type of an item, None if it stays, and the other changes, as they are stored.

    Raises:
        InvalidMemoryError: the changed item would be invalid, or no change is given.
    """
    more = cast(dict[str, Any], changes)
    try:
        if text is None and type is None and not more:
            raise ValueError("no change was given: pass a text, a type or another field")
        if unknown := more.keys() - ItemChanges.__annotations__.keys():
            raise ValueError(f"{', '.join(sorted(unknown))} cannot be changed")
        item = MemoryItem(
            id="?", text="text" if text is None else text, type=type or MemoryType.GENERAL, updated_at=at, **more
        )
        item = checked_item(scope, item)
    except InvalidMemoryError as error:
        raise InvalidMemoryError(id[:MAX_SHOWN], error.why) from error
    except ValueError as error:
        raise InvalidMemoryError(id[:MAX_SHOWN], str(error)) from error
    checked = cast(ItemChanges, {name: getattr(item, name) for name in more})
    return item.type if type else None, checked


def changed(item: MemoryItem, text: str | None, type: MemoryType | None, at: float, changes: ItemChanges) -> MemoryItem:
    """Return the item with the given changes, made at this time.

    If the old text contains the name or an alias and the new text contains none of them, the name and aliases are
    removed, since the item would still be found by them. The same applies to the topic. Given values stay.
    """
    text = item.text if text is None else text
    names = () if item.name is None else (item.name,)
    removed = dict[str, Any]()
    if _stale((*names, *item.aliases), item.text, text):
        removed.update(name=None, aliases=())
    if item.topic is not None and _stale((item.topic,), item.text, text):
        removed["topic"] = None
    return replace(item, text=text, type=type or item.type, updated_at=at, **{**removed, **changes})


def _stale(names: Collection[str], before: str, after: str) -> bool:
    """Return whether the old text contains one of these names and the new text contains none."""
    old, new = (f" {' '.join(map(stem, words(text)))} " for text in (before, after))
    phrases = [f" {' '.join(map(stem, words(name)))} " for name in names]
    return any(phrase in old for phrase in phrases) and not any(phrase in new for phrase in phrases)


def check_successor(scope: Scope, id: str, item: MemoryItem) -> MemoryItem:
    """Return the item as it is stored when it supersedes the one with this id.

    Raises:
        InvalidMemoryError: the item is invalid, has this id, or has no time.
    """
    item = checked_item(scope, item)
    if item.id == id:
        raise InvalidMemoryError(id[:MAX_SHOWN], "an item cannot supersede itself: use another id, or update()")
    if not item.created_at:
        raise InvalidMemoryError(item.id[:MAX_SHOWN], "created_at is missing: the superseded item is valid until then")
    return item
