"""`ItemIndexes`: holds the indexes of lists of items. Each grows by what is new in its list."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, cast

from turnwise.memory.background import has_time, on_thread
from turnwise.memory.longterm.base import MemoryItem
from turnwise.memory.longterm.items.rows import Revision, Row

if TYPE_CHECKING:
    # They need numpy, which a process that makes a memory for others need not load.
    from turnwise.memory.longterm.recall.index_growth import Growth
    from turnwise.memory.longterm.recall.user_index import UserIndex

HELD_BYTES, HELD_LISTS = 256 << 20, 1_000
"""The most bytes of all indexes in memory, and the most indexes."""


@dataclass(frozen=True)
class Indexed:
    """The index of a list, which may lack some of the list's items."""

    user_index: UserIndex
    missing: int
    """How many items the index still lacks, since there was no time for them."""
    size: int
    """How many items the list has."""

    @property
    def trouble(self) -> str | None:
        """Why items may be missing in a recall; None if all are indexed."""
        if not self.missing:
            return None
        return f"{self.missing} of {self.size} items are not indexed yet and cannot be found: later recalls index them"


class ItemIndexes:
    """The indexes of lists of items, by a key. Each has the items of the last request for its list.

    An index is brought up to date in steps, each on a thread; other work runs between the steps. A step analyses a
    bounded part of the new or changed items. A finished step stays: the next request continues, whether the one before
    was cancelled or had no time left. The least recently used indexes are dropped first.
    """

    def __init__(self, held_bytes: int = HELD_BYTES) -> None:
        self._held_bytes = held_bytes
        self._lists: OrderedDict[tuple[str, Hashable], _IndexedList] = OrderedDict()
        """The least recently used first."""
        self._bytes = 0

    async def of(self, user_id: str, which: Hashable, items: Sequence[MemoryItem]) -> Indexed:
        """Return the index of a list of a user's items. Cancelling ends the work after the current passage.

        Args:
            which: the key of the list among the user's lists.
        """
        key = user_id, which
        listed = self._lists.setdefault(key, _IndexedList())
        self._lists.move_to_end(key)
        async with listed.turn:
            user_index, missing = await on_thread(listed.step, items)
            while missing and has_time():
                user_index, missing = await on_thread(listed.step, items)
        self._count(key, listed, user_index.bytes)
        return Indexed(user_index, missing, len(items))

    async def remove(self, deleted: Mapping[str, Collection[str]]) -> None:
        """Remove items of users from the indexes, since they are deleted: no text of them stays in memory."""
        lists = [(listed, set(deleted[owner])) for (owner, _), listed in self._lists.items() if deleted.get(owner)]

        def remove() -> None:
            for listed, ids in lists:
                listed.remove(ids)

        if lists:
            await on_thread(remove)

    def clear(self) -> None:
        """Drop all indexes."""
        self._lists.clear()
        self._bytes = 0

    def _count(self, key: tuple[str, Hashable], listed: _IndexedList, size: int) -> None:
        if self._lists.get(key) is not listed:
            return  # it was dropped meanwhile
        self._bytes += size - listed.bytes
        listed.bytes = size
        while len(self._lists) > 1 and (self._bytes > self._held_bytes or len(self._lists) > HELD_LISTS):
            _, dropped = self._lists.popitem(last=False)
            self._bytes -= dropped.bytes


class _IndexedList:
    """The index of one list. Its methods run on threads, one at a time."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        """Held while the index is brought up to date."""
        self.index: UserIndex | None = None
        self.bytes = 0
        """How many bytes of memory are counted for it."""
        self._items: Sequence[MemoryItem] | None = ()
        """The list of the index, or of its current growth; None if it is not known."""
        self._growth: Growth | None = None
        """The current growth of the index; None once it is done."""
        self._lock = threading.Lock()
        """A step whose caller was cancelled may still run when the next one begins."""

    def step(self, items: Sequence[MemoryItem]) -> tuple[UserIndex, int]:
        """Take a step towards the index of these items; return it, and how many items it still lacks."""
        from turnwise.memory.longterm.recall.index_growth import growth_between
        from turnwise.memory.longterm.recall.user_index import UserIndex

        with self._lock:
            if self.index is None or self._items != items:
                self.index = self.index or UserIndex()
                self._growth = growth_between(self.index, self._rows(self.index, items), Revision(1, 0, len(items)))
                self._items = items
            if self._growth is None:
                return self.index, 0
            self._growth.step()
            self.index = self._growth.index
            missing = self._growth.missing
            if self._growth.is_done:
                self._growth = None
            return self.index, missing

    def remove(self, ids: set[str]) -> None:
        """Remove items from the index."""
        from turnwise.memory.longterm.recall.index_growth import UNFINISHED

        with self._lock:
            if self.index is None:
                return
            if removed := {row.row for row in self.index.rows if row.item.id in ids}:
                self.index = self.index.changed(UNFINISHED, (), removed)
            if self._growth is None and self._items is not None:
                self._items = [item for item in self._items if item.id not in ids]
            else:
                self._items = self._growth = None

    def _rows(self, user_index: UserIndex, items: Sequence[MemoryItem]) -> list[Row]:
        """Return the items as rows. An item that the index has keeps its number; others get numbers in their order."""
        numbers_by_id = {row.item.id: row.row for row in user_index.rows}
        numbers = numbers_between([numbers_by_id.pop(item.id, None) for item in items])
        return [
            Row(row=number, agent=None, item=item, key=str(number)) for number, item in zip(numbers, items, strict=True)
        ]


def numbers_between(existing: Sequence[int | None]) -> list[int]:
    """Return a number for each item: the existing ones, and new ones that ascend between them if there is room.

    All numbers differ if the existing ones do.
    """
    taken = {number for number in existing if number is not None}
    numbers: list[int] = []
    before: int | None = None
    for is_known, run in groupby(existing, key=lambda number: number is not None):
        if is_known:
            numbers += cast(list[int], existing_run := list(run))
            before = existing_run[-1]
            continue
        count = len(list(run))
        after = existing[len(numbers) + count] if len(numbers) + count < len(existing) else None
        new = _between(before, after, count)
        if not taken.isdisjoint(new):
            new = _between(max(taken), None, count)
        taken.update(new)
        numbers += new
    return numbers


def _between(before: int | None, after: int | None, count: int) -> Sequence[int]:
    """Return ascending numbers after one and before another, as far apart as there is room for."""
    if before is not None and after is not None:
        step = (after - before) // (count + 1)
        return range(before + step, before + step * (count + 1), step) if step > 0 else [before]
    first = _FIRST if after is None else after - count * _APART
    first = first if before is None else before + _APART
    return range(first, first + count * _APART, _APART)


_FIRST, _APART = 1 << 50, 1 << 20
"""The number of the first item of a new list, and the distance between the numbers of two neighbouring items."""
