"""`StaticMemory`: read-only facts that all users see."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self, Unpack

from turnwise.errors import ConfigError, ReadOnlyMemoryError
from turnwise.memory.longterm.base import ItemChanges, MemoryItem, Scope, is_local
from turnwise.memory.longterm.items.base import (
    FactFilter,
    FactStore,
    all_items,
    checked_item,
    matches,
    parse_position,
)
from turnwise.memory.longterm.search.ranking import FACTS, Weights
from turnwise.memory.longterm.types import MemoryType
from turnwise.memory.stores.base import Page, check_limit

if TYPE_CHECKING:
    from turnwise.memory.longterm.search.user_index import UserIndex

EVERYONE = "everyone"
"""The user id under which a store keeps the facts for everyone."""


class StaticMemory:
    """Read-only facts for all users: a handbook, a policy. `remember`, `update` and `forget` raise.

    Up to `all_up_to` facts are all recalled for every query, the best first; of more facts, those that share words with
    the query. A pickle has the settings: the facts, or the settings of their store.

    Args:
        facts: texts, items, or a store that has them as facts of the user `owner`. A store is read at each recall, so
            changes in it are seen.
        owner: the user whose facts in the store are for everyone.
        all_up_to: the most facts that are all recalled for any query.
        weights: the weights of the ranking.

    Raises:
        InvalidMemoryError: a fact is blank, or of no known type.
        ConfigError: two items have the same id, or a setting is out of range.
    """

    read_only = True

    def __init__(
        self,
        facts: Iterable[str | MemoryItem] | FactStore,
        *,
        owner: str = EVERYONE,
        all_up_to: int = 10,
        weights: Weights = FACTS,
    ) -> None:
        if all_up_to < 0:
            raise ConfigError("StaticMemory.all_up_to", all_up_to, "must be at least 0")
        self._owner = Scope(user_id=owner)
        self._store = facts if isinstance(facts, FactStore) else None
        self._items = () if isinstance(facts, FactStore) else _items(self._owner, facts)
        self._all_up_to = all_up_to
        self._weights = weights
        self._cached: tuple[Sequence[MemoryItem], UserIndex] | None = None
        """The cached index of the facts of the last recall."""

    def __getstate__(self) -> dict[str, object]:
        return vars(self) | {"_cached": None}

    @property
    def is_local(self) -> bool:
        """Whether the facts are in a store that is a file on one machine."""
        return is_local(self._store)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        type: MemoryType = MemoryType.FACTS,
        topic: str | None = None,
        all_up_to: int = 10,
        weights: Weights = FACTS,
    ) -> Self:
        """Return a memory of the facts in a UTF-8 file, which is read once, now.

        A fact is a bullet or a numbered item of Markdown, with the lines that continue it, or a paragraph. In a file
        without blank lines and bullets, each line is a fact. A heading is the topic of the facts below it.

        Args:
            topic: the topic of facts that are under no heading.

        Raises:
            ConfigError: the file cannot be read, or has no facts.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            raise ConfigError("StaticMemory.from_file", str(path), f"cannot be read: {error}") from error
        facts = [
            MemoryItem(id=f"{number}", text=fact, type=type, topic=heading or topic)
            for number, (heading, fact) in enumerate(read_facts(text), 1)
        ]
        if not facts:
            raise ConfigError("StaticMemory.from_file", str(path), "contains no facts")
        return cls(facts, all_up_to=all_up_to, weights=weights)

    def __repr__(self) -> str:
        return f"StaticMemory({self._store!r})" if self._store else f"StaticMemory(<{len(self._items)} facts>)"

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> NoReturn:
        raise ReadOnlyMemoryError(repr(self), "remember")

    async def recall(
        self,
        scope: Scope,
        query: str,
        *,
        limit: int = 10,
        types: Collection[MemoryType] | None = None,
        as_of: float | None = None,
    ) -> list[MemoryItem]:
        which = FactFilter(types=types, as_of=as_of, live_at=time.time() if as_of is None else as_of)
        items = [item for item in self._items if matches(item, which)]
        if self._store:
            items = await all_items(self._store, self._owner, which)
        found = await asyncio.to_thread(self._rank, query, items, max(limit, 0))
        if len(items) <= self._all_up_to:
            bears = {item.id for item in found}
            found += [replace(item, score=0.0) for item in items if item.id not in bears]
        return found[: max(limit, 0)]

    def _rank(self, query: str, items: Sequence[MemoryItem], limit: int) -> list[MemoryItem]:
        from turnwise.memory.longterm.search.user_index import find, index_of

        if self._cached is None or self._cached[0] != items:
            self._cached = items, index_of(items)
        return find(self._cached[1], query, limit=limit, weights=self._weights)

    async def list_items(
        self,
        scope: Scope,
        *,
        types: Collection[MemoryType] | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[MemoryItem]:
        """See `Listing.list_items`. Facts that were passed come in their order."""
        if self._store:
            return await self._store.query(self._owner, FactFilter(types=types), cursor=cursor, limit=limit)
        start = parse_position(cursor)
        stop = start + check_limit(limit)
        found = [item for item in self._items if matches(item, FactFilter(types=types))]
        return Page(tuple(found[start:stop]), str(stop) if stop < len(found) else None)

    async def update(
        self,
        scope: Scope,
        id: str,
        text: str | None = None,
        *,
        type: MemoryType | None = None,
        **changes: Unpack[ItemChanges],
    ) -> NoReturn:
        raise ReadOnlyMemoryError(repr(self), "update")

    async def forget(
        self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None
    ) -> NoReturn:
        raise ReadOnlyMemoryError(repr(self), "forget")

    async def close(self) -> None:
        """Close the store that was passed, if one was."""
        if self._store:
            await self._store.close()


def read_facts(text: str) -> list[tuple[str | None, str]]:
    """Return the facts of a text in order, each with the heading above it."""
    lines = [line.rstrip() for line in text.splitlines()]
    has_blanks = "\n\n" in "\n".join(lines).strip("\n")
    is_list = not has_blanks and not any(_BULLET.match(line) or _HEADING.match(line) for line in lines)
    found: list[tuple[str | None, list[str]]] = []
    heading: str | None = None
    goes_on = False
    for line in lines:
        if title := _HEADING.match(line):
            heading, goes_on = title[1], False
        elif not line.strip() or _RULE.match(line):
            goes_on = False
        elif bullet := _BULLET.match(line):
            found.append((heading, [bullet[1]]))
            goes_on = True
        elif goes_on and not is_list:
            found[-1][1].append(line.strip())
        else:
            found.append((heading, [line.strip()]))
            goes_on = True
    return [(heading, " ".join(parts)) for heading, parts in found]


_HEADING = re.compile(r"#{1,6}\s+(.*?)\s*#*$")
_BULLET = re.compile(r"\s*(?:[-*+•]|\d{1,3}[.)])\s+(\S.*)$")
_RULE = re.compile(r"\s*([-*_=])(\s*\1){2,}\s*$")


def _items(owner: Scope, facts: Iterable[str | MemoryItem]) -> tuple[MemoryItem, ...]:
    if isinstance(facts, str):
        raise ConfigError("StaticMemory.facts", facts[:80], "is one text: pass a list of facts, or use from_file()")
    items = []
    for number, fact in enumerate(facts, 1):
        item = MemoryItem(id=str(number), text=fact, type=MemoryType.FACTS) if isinstance(fact, str) else fact
        items.append(checked_item(owner, item))
    ids = [item.id for item in items]
    if twice := [each for each in ids if ids.count(each) > 1]:
        raise ConfigError("StaticMemory.facts", twice[0], "is the id of two facts: give each fact its own id")
    return tuple(items)
