"""`InMemoryFacts`: facts in the memory of this process."""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from turnwise.errors import StoreClosedError
from turnwise.memory.conversation.ids import digest_of
from turnwise.memory.longterm.base import ItemChanges, MemoryItem, Scope
from turnwise.memory.longterm.items.base import (
    ALL,
    NO_END,
    TOMBSTONE_S,
    Fact,
    FactFilter,
    changed,
    check_change,
    check_successor,
    check_turn,
    checked_item,
    end_after_deletion,
    matches,
    owner_after,
    owner_of,
    parse_position,
)
from turnwise.memory.longterm.types import MemoryType
from turnwise.memory.stores.base import Page, check_limit, cursor_of, parse_cursor


@dataclass(slots=True)
class _Row:
    order: int
    agent: str | None
    item: MemoryItem
    used: float


class InMemoryFacts:
    """Stores facts until the process ends. No method awaits anything, so each is atomic on its event loop.

    Pickles while it is empty: the memory of a manager has one of its own, in the memory's actor, which lasts as long as
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
            raise TypeError("InMemoryFacts that has facts cannot be sent to another process: use SQLFacts")
        return InMemoryFacts, ()

    async def put(self, scope: Scope, items: Sequence[MemoryItem], *, at: float | None = None) -> list[str]:
        self._check_open()
        used = time.time() if at is None else at
        return [item.id for item in [checked_item(scope, item) for item in items] if self._add(scope, item, used)]

    async def get(self, scope: Scope, ids: Collection[str]) -> dict[str, MemoryItem]:
        self._check_open()
        return {name: row.item for name in ids if (row := self._seen(scope, name))}

    async def query(
        self, scope: Scope, which: FactFilter = ALL, *, cursor: str | None = None, limit: int = 100
    ) -> Page[MemoryItem]:
        self._check_open()
        before = None if cursor is None else parse_cursor(cursor)
        found = sorted(((row.item.created_at, row.order, row.item) for row in self._rows(scope, which)), reverse=True)
        found = [entry for entry in found if before is None or entry[:2] < before]
        page = found[: check_limit(limit)]
        return Page(tuple(item for *_, item in page), cursor_of(*page[-1][:2]) if len(found) > limit else None)

    async def count(self, scope: Scope, which: FactFilter = ALL) -> int:
        self._check_open()
        return len(self._rows(scope, which))

    async def update(
        self,
        scope: Scope,
        id: str,
        text: str | None = None,
        *,
        at: float,
        type: MemoryType | None = None,
        **changes: Unpack[ItemChanges],
    ) -> bool:
        self._check_open()
        kind, more = check_change(scope, id, text, type, at=at, changes=changes)
        row = self._seen(scope, id)
        if row is None or row.item.superseded_at is not None:
            return False
        agent = row.agent if kind is None else owner_after(scope, row.agent, row.item.type, kind)
        item, used = changed(row.item, text, kind, at, more), max(row.used, at)
        row.agent, row.item, row.used = agent, item, used
        return True

    async def pin(self, scope: Scope, id: str, pinned: bool) -> bool:
        self._check_open()
        row = self._seen(scope, id)
        if row is None or row.item.superseded_at is not None:
            return False
        row.item = replace(row.item, pinned=pinned)
        return True

    async def supersede(self, scope: Scope, id: str, item: MemoryItem) -> bool:
        self._check_open()
        item = check_successor(scope, id, item)
        row = self._seen(scope, id)
        if row is None or digest_of(scope.user_id, item.id) in self._deleted:
            return False
        if row.item.superseded_at is not None:
            return row.item.superseded_by == item.id
        self._add(scope, item, time.time())
        row.item = replace(row.item, superseded_at=item.created_at, superseded_by=item.id)
        row.used = max(row.used, item.created_at)
        return True

    async def delete(self, scope: Scope, ids: Collection[str]) -> list[str]:
        self._check_open()
        rows = self._users.get(scope.user_id, {})
        seen = [name for name in dict.fromkeys(ids) if self._seen(scope, name)]
        self._forget(scope.user_id, [*seen, *(name for name in ids if name not in rows)])
        return seen

    async def purge(self, user_id: str, *, session_id: str | None = None, turn_index: int | None = None) -> list[str]:
        self._check_open()
        check_turn(session_id, turn_index)
        which = FactFilter(session_id=session_id, turn_index=turn_index, superseded=True)
        found = [name for name, row in self._users.get(user_id, {}).items() if matches(row.item, which)]
        self._forget(user_id, found)
        return found

    async def touch(self, user_id: str, ids: Collection[str], at: float, *, counts: bool = False) -> None:
        self._check_open()
        rows = self._users.get(user_id, {})
        for name in ids:
            if (row := rows.get(name)) and row.used < at:
                row.used = at
                row.item = replace(row.item, uses=row.item.uses + counts)

    async def sweep(self, before: float, *, types: Collection[MemoryType] | None = None, limit: int = 1000) -> int:
        self._check_open()
        which = FactFilter(types=types, superseded=True)
        unused = sorted(
            (row.used, row.order, user, name)
            for user, rows in self._users.items()
            for name, row in rows.items()
            if row.used < before and matches(row.item, which)
        )
        gone: dict[str, list[str]] = {}
        for _, _, user, name in unused[: check_limit(limit)]:
            gone.setdefault(user, []).append(name)
        for user, ids in gone.items():
            self._forget(user, ids)
        return sum(map(len, gone.values()))

    async def scan(self, user_id: str | None = None, *, cursor: str | None = None, limit: int = 1000) -> Page[Fact]:
        self._check_open()
        after = parse_position(cursor)
        users = self._users if user_id is None else {user_id: self._users.get(user_id, {})}
        found = sorted(
            (row.order, Fact(user, row.agent, row.item))
            for user, rows in users.items()
            for row in rows.values()
            if row.order > after
        )
        page = found[: check_limit(limit)]
        return Page(tuple(fact for _, fact in page), str(page[-1][0]) if len(found) > limit else None)

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("InMemoryFacts()")

    def _seen(self, scope: Scope, id: str) -> _Row | None:
        row = self._users.get(scope.user_id, {}).get(id)
        return row if row and row.agent in (None, scope.agent) else None

    def _rows(self, scope: Scope, which: FactFilter) -> Sequence[_Row]:
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
        gone = {name: rows.pop(name, None) for name in ids}
        now = time.time()
        for name in gone:
            self._deleted.setdefault(digest_of(user_id, name), now)
        while self._deleted and next(iter(self._deleted.values())) < now - TOMBSTONE_S:
            self._deleted.popitem(last=False)
        ends = {name: (row.item.superseded_at, row.item.superseded_by) if row else NO_END for name, row in gone.items()}
        for name, row in rows.items():
            if row.item.superseded_by in ends:
                at, by = end_after_deletion(ends, name, row.item.superseded_by)
                row.item = replace(row.item, superseded_at=at, superseded_by=by)
