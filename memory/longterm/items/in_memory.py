"""`InMemoryItems`: memory items in the memory of this process."""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from turnwise.errors import StoreClosedError
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.items.base import ALL, Change, ItemFilter, StoredItem
from turnwise.memory.longterm.items.changes import replacement
from turnwise.memory.longterm.items.rules import (
    NO_END,
    TOMBSTONE_S,
    check_turn,
    checked_item,
    end_after_deletion,
    matches,
    owner_after,
    owner_of,
    parse_position,
)
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.retention.retention import Use
from turnwise.memory.stores.base import Page, check_limit, cursor_of, parse_cursor
from turnwise.memory.values.ids import digest_of


@dataclass(slots=True)
class _Row:
    order: int
    agent: str | None
    item: MemoryItem
    used: float


class InMemoryItems:
    """Stores items until the process ends. No method awaits anything, so each is atomic on its event loop.

    Pickles while it is empty: a memory of a manager gets a new store in the memory's actor, which exists as long as
    that process.
    """

    def __init__(self) -> None:
        self._users: dict[str, dict[str, _Row]] = {}
        """The rows by user id and item id."""
        self._deleted: OrderedDict[bytes, float] = OrderedDict()
        """The times of deletions by digest, the oldest first."""
        self._order = itertools.count(1)
        self._closed = False

    def __reduce__(self) -> str | tuple[object, ...]:
        if self._users or self._deleted:
            raise TypeError("InMemoryItems that has items cannot be sent to another process: use SQLItems")
        return InMemoryItems, ()

    def __deepcopy__(self, memo: object) -> InMemoryItems:
        raise TypeError("InMemoryItems has its content in one object, which a copy would not share")

    async def put(self, scope: Scope, items: Sequence[MemoryItem], *, at: float | None = None) -> list[str]:
        self._check_open()
        used = time.time() if at is None else at
        return [item.id for item in [checked_item(scope, item) for item in items] if self._add(scope, item, used)]

    async def get(self, scope: Scope, ids: Collection[str]) -> dict[str, MemoryItem]:
        self._check_open()
        return {name: row.item for name in ids if (row := self._visible(scope, name))}

    async def query(
        self, scope: Scope, which: ItemFilter = ALL, *, cursor: str | None = None, limit: int = 100
    ) -> Page[MemoryItem]:
        self._check_open()
        before = None if cursor is None else parse_cursor(cursor)
        entries = sorted(((row.item.created_at, row.order, row.item) for row in self._rows(scope, which)), reverse=True)
        entries = [entry for entry in entries if before is None or entry[:2] < before]
        page = entries[: check_limit(limit)]
        return Page(tuple(item for *_, item in page), cursor_of(*page[-1][:2]) if len(entries) > limit else None)

    async def change(
        self, scope: Scope, id: str, change: Change, *, at: float | None = None, successor: MemoryItem | None = None
    ) -> MemoryItem | None:
        self._check_open()
        after = None if successor is None else checked_item(scope, successor)
        row = self._visible(scope, id)
        if row is None and id in self._users.get(scope.user_id, {}):
            return None
        old = row.item if row else None
        new = replacement(scope, id, change, old)
        if new is None or (after is not None and digest_of(scope.user_id, after.id) in self._deleted):
            return old
        if row is None:
            self._deleted.pop(digest_of(scope.user_id, id), None)
            self._add(scope, new, time.time())
        else:
            row.agent = owner_after(scope, row.agent, row.item.type, new.type)
            row.item, row.used = new, row.used if at is None else max(row.used, at)
        if after is not None:
            self._add(scope, after, time.time())
        return new

    async def delete(
        self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None
    ) -> list[str]:
        self._check_open()
        check_turn(scope.session_id, turn_index, ids)
        rows = self._users.get(scope.user_id, {})
        if ids is None:
            which = ItemFilter(session_id=scope.session_id, turn_index=turn_index, superseded=True)
            deleted = [name for name, row in rows.items() if matches(row.item, which)]
            self._forget(scope.user_id, deleted)
            return deleted
        visible = [name for name in dict.fromkeys(ids) if self._visible(scope, name)]
        self._forget(scope.user_id, [*visible, *(name for name in ids if name not in rows)])
        return visible

    async def touch(self, uses: Sequence[Use]) -> None:
        self._check_open()
        for use in uses:
            rows = self._users.get(use.user_id, {})
            for name in use.ids:
                if (row := rows.get(name)) and row.used < use.at:
                    row.used = use.at
                    row.item = replace(row.item, uses=row.item.uses + use.counts)

    async def sweep(
        self, before: float, *, types: Collection[MemoryType] | None = None, limit: int = 1000
    ) -> dict[str, list[str]]:
        self._check_open()
        which = ItemFilter(types=types, superseded=True)
        unused = sorted(
            (row.used, row.order, user, name)
            for user, rows in self._users.items()
            for name, row in rows.items()
            if row.used < before and matches(row.item, which)
        )
        swept: dict[str, list[str]] = {}
        for _, _, user, name in unused[: check_limit(limit)]:
            swept.setdefault(user, []).append(name)
        for user, ids in swept.items():
            self._forget(user, ids)
        return swept

    async def scan(
        self, user_id: str | None = None, *, cursor: str | None = None, limit: int = 1000
    ) -> Page[StoredItem]:
        self._check_open()
        after = parse_position(cursor)
        users = self._users if user_id is None else {user_id: self._users.get(user_id, {})}
        entries = sorted(
            (row.order, StoredItem(user, row.agent, row.item))
            for user, rows in users.items()
            for row in rows.values()
            if row.order > after
        )
        page = entries[: check_limit(limit)]
        return Page(tuple(stored for _, stored in page), str(page[-1][0]) if len(entries) > limit else None)

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("InMemoryItems()")

    def _visible(self, scope: Scope, id: str) -> _Row | None:
        row = self._users.get(scope.user_id, {}).get(id)
        return row if row and row.agent in (None, scope.agent) else None

    def _rows(self, scope: Scope, which: ItemFilter) -> Sequence[_Row]:
        rows = self._users.get(scope.user_id, {}).values()
        since = float("-inf") if which.used_since is None else which.used_since
        return [
            row for row in rows if row.agent in (None, scope.agent) and row.used >= since and matches(row.item, which)
        ]

    def _add(self, scope: Scope, item: MemoryItem, used: float) -> bool:
        rows = self._users.setdefault(scope.user_id, {})
        if item.id in rows or digest_of(scope.user_id, item.id) in self._deleted:
            return False
        rows[item.id] = _Row(next(self._order), owner_of(scope, item.type), item, used)
        return True

    def _forget(self, user_id: str, ids: Collection[str]) -> None:
        rows = self._users.get(user_id, {})
        deleted = {name: rows.pop(name, None) for name in ids}
        now = time.time()
        for name in deleted:
            self._deleted.setdefault(digest_of(user_id, name), now)
        while self._deleted and next(iter(self._deleted.values())) < now - TOMBSTONE_S:
            self._deleted.popitem(last=False)
        ends = {
            name: (row.item.superseded_at, row.item.superseded_by) if row else NO_END for name, row in deleted.items()
        }
        for name, row in rows.items():
            if row.item.superseded_by in ends:
                superseded_at, by = end_after_deletion(ends, name, row.item.superseded_by)
                row.item = replace(row.item, superseded_at=superseded_at, superseded_by=by)
