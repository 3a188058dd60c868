"""Finds what a store keeps about something: by what items say, by the turns that they come from, or by their ids."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from turnwise.memory.background import check_awaited, on_thread
from turnwise.memory.longterm.base import MemoryItem, Scope, TurnPlace
from turnwise.memory.longterm.items.base import ItemFilter, ItemStore
from turnwise.memory.longterm.retention.about import places_in, turn_of
from turnwise.memory.longterm.retention.subject import Subject

FEW = 16
"""So many turns are looked up one by one; of more, all items of the user are read once."""

_PAGE = 1000


async def mentions_in(
    store: ItemStore,
    scope: Scope,
    text: str | None = None,
    *,
    turns: Collection[TurnPlace] = (),
    ids: Collection[str] = (),
) -> list[MemoryItem]:
    """Return what `Mentioning.mentions` returns, from a store. With a text, it reads all items that the scope sees.

    Raises:
        InvalidInputError: the text has no content word.
        CorruptRecordError: an item cannot be read; the error names it.
    """
    items = await store.get(scope, ids) if ids else {}
    if text is None and len(turns) <= FEW:
        for session_id, turn_index in dict.fromkeys(turns):
            which = ItemFilter(session_id=session_id, turn_index=turn_index, superseded=True)
            items |= await _matching(store, scope, which, lambda items: items)
        return list(items.values())
    subject, places = None if text is None else Subject(text), frozenset(turns)

    def matching(page: Sequence[MemoryItem]) -> list[MemoryItem]:
        return [item for item in page if _is_meant(item, subject, places)]

    return list((items | await _matching(store, scope, ItemFilter(superseded=True), matching)).values())


async def _matching(
    store: ItemStore,
    scope: Scope,
    which: ItemFilter,
    matching: Callable[[Sequence[MemoryItem]], Sequence[MemoryItem]],
) -> dict[str, MemoryItem]:
    items: dict[str, MemoryItem] = {}
    cursor: str | None = None
    while True:
        page = await store.query(scope, which, cursor=cursor, limit=_PAGE)
        items |= {item.id: item for item in await on_thread(matching, page.items)}
        cursor = page.cursor
        if cursor is None:
            return items


def _is_meant(item: MemoryItem, subject: Subject | None, turns: Collection[TurnPlace]) -> bool:
    check_awaited()
    if turn_of(item) in turns:
        return True
    return subject is not None and bool(places_in(item, subject))
