"""`LexicalMemory`: a long-term memory that keeps items unchanged and finds them by the words of a query."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from turnwise.memory.background import on_thread
from turnwise.memory.longterm.base import (
    ItemChanges,
    Label,
    MemoryItem,
    Reminder,
    Scope,
    TurnPlace,
    is_local,
    recalled,
    trouble_of,
)
from turnwise.memory.longterm.items.base import ALL, ItemFilter, ItemStore, all_items, delete_sessions
from turnwise.memory.longterm.items.changes import pin, update
from turnwise.memory.longterm.items.mentions import mentions_in
from turnwise.memory.longterm.items.rules import is_of_later, matches, trouble_of_past
from turnwise.memory.longterm.items.texts import still_contained, to_delete
from turnwise.memory.longterm.items.urls import items_at
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall.embedding_function import portable
from turnwise.memory.longterm.recall.item_indexes import Indexed, ItemIndexes
from turnwise.memory.longterm.recall.ranking import FACTS, Weights
from turnwise.memory.longterm.recall.similarity import Similarity
from turnwise.memory.longterm.retention.deletion import Scrubbing, texts_of
from turnwise.memory.longterm.retention.retention import Retention, Uses
from turnwise.memory.stores.base import Page
from turnwise.memory.values.required_arguments import needs

if TYPE_CHECKING:
    from turnwise.memory.longterm.recall.user_index import UserIndex


@needs(items="pass where the items are kept, such as SQLItems('sqlite:///items.db') or a path")
class LexicalMemory:
    """Keeps items unchanged in an item store. Each recall reads all items that the scope sees.

    Needs no model and no download. It is meant for some thousands of items per user. Their words are indexed in memory,
    each item once: of an item the first `item_words.MOST_WORDS` different words in the first `passages.MOST_PASSAGES`
    passages, which is all of a text of 50 KB. If a user has many new items, they are indexed in steps. A recall that
    has no time for all steps finds the indexed items, as a `DegradedRecall`, and the next recall continues.

    With `embedding` it also ranks by vectors; while those fail, it ranks by words alone and returns a
    `DegradedRecall`. A pickle has the settings only.

    Args:
        items: the store, or its URL, or the path of a SQLite file; it is closed with the memory.
        weights: the weights of the ranking.
        embedding: one of Chroma's embedding functions, by whose vectors items are found too; see `Similarity`.
        query_s: how long it may take for one query, in seconds; after that the query is answered by words.
        retention: how long unused items are kept; without it, they never expire. It applies to everything in the store,
            so the store should hold no other memory's items.
        clock: returns the time in seconds since the epoch, for uses, updates, and items without a time.
        name: its name in sessions, see `Label`; `max_tokens` likewise.
    """

    def __init__(
        self,
        items: ItemStore | str | Path,
        *,
        weights: Weights = FACTS,
        embedding: Any = None,
        query_s: float = 1.0,
        retention: Retention | None = None,
        clock: Callable[[], float] = time.time,
        name: str | None = None,
        max_tokens: int | None = None,
    ) -> None:
        self.label = Label(name=name, max_tokens=max_tokens)
        """Its name and limit in sessions."""
        self._embedding = embedding
        self._query_s = query_s
        self._similarity = None if embedding is None else Similarity(embedding, limit_s=query_s)
        self._store = items_at(items)
        self._weights = weights
        self._indexes = ItemIndexes()
        """Indexes of users' items as of their last recall."""
        self._retention = retention
        self._clock = clock
        self._uses = Uses(self._store.touch)

    limits_categories = True
    """See `base.limits_categories`."""

    @property
    def is_local(self) -> bool:
        """Whether the items are in a file on one machine."""
        return is_local(self._store)

    def __repr__(self) -> str:
        return f"LexicalMemory({self._store!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        settings: dict[str, Any] = {
            "weights": self._weights,
            "embedding": portable(self._embedding),
            "query_s": self._query_s,
            "retention": self._retention,
            "clock": self._clock,
        }
        return functools.partial(type(self), **settings), (self._store,), self.label

    def __setstate__(self, label: Label) -> None:
        self.label = label

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> list[str]:
        now = self._clock()
        dated = [item if item.created_at else replace(item, created_at=now) for item in items]
        new = await self._store.put(scope, dated, at=now)
        ids = [item.id for item in items]
        self.use(scope, set(ids).difference(new))
        return ids

    async def recall(
        self,
        scope: Scope,
        query: str,
        *,
        limit: int = 10,
        types: Collection[MemoryType] | None = None,
        as_of: float | None = None,
        per_category: bool = False,
    ) -> Sequence[MemoryItem]:
        which = ItemFilter(types=types, as_of=as_of)
        items, changed = await self.items_then(scope, which)
        indexed = await self.indexed(scope, items, which)
        ranked = await self._ranked(indexed, query, limit=max(limit, 0), per_category=per_category)
        best = list(ranked)
        if as_of is None:  # who looks at the past uses nothing
            self.use(scope, [item.id for item in best], recalled=True)
        return recalled(best, trouble_of(ranked) or trouble_of_past(changed))

    async def remind(
        self,
        scope: Scope,
        prompt: str,
        *,
        limit: int = 10,
        types: Collection[MemoryType] | None = None,
        as_of: float | None = None,
        profile: Collection[MemoryType] = (),
        per_category: bool = False,
    ) -> Reminder:
        """See `Reminding`. The profile has pinned items and standing wishes. Reads the store once for both parts.

        Args:
            profile: the types of items that are in the profile in addition.
        """
        which = ItemFilter(types=types, as_of=as_of)
        items, changed = await self.items_then(scope, which)
        indexed = await self.indexed(scope, items, which)
        profile_items = with_wishes(profile_of(items, profile), indexed.user_index.wishes(scope, which))
        most = max(limit, 0) + len(profile_items)
        ranked: Sequence[MemoryItem] = []
        if prompt:
            ranked = await self._ranked(indexed, prompt, limit=most, per_category=per_category, is_reminder=True)
        recalled_items = within_limits(profile_items, ranked, limit, per_category=per_category)
        if as_of is None:
            self.use_profile(scope, profile_items, recalled_items)
        trouble = trouble_of(ranked) or trouble_of_past(changed)
        return Reminder(profile=profile_items, items=recalled(recalled_items, trouble))

    async def pin(self, scope: Scope, id: str, pinned: bool) -> bool:
        """See `Pinning.pin`."""
        return await pin(self._store, scope, id, pinned)

    async def ranked(
        self,
        scope: Scope,
        query: str,
        items: Sequence[MemoryItem],
        which: ItemFilter = ALL,
        *,
        limit: int,
    ) -> Sequence[MemoryItem]:
        """Return the `limit` of the scope's items that are the most relevant to the query, the best first.

        Args:
            items: what `items` returned for the scope and `which`.
        """
        return await self._ranked(await self.indexed(scope, items, which), query, limit=limit)

    async def _ranked(
        self, indexed: Indexed, query: str, *, limit: int, per_category: bool = False, is_reminder: bool = False
    ) -> Sequence[MemoryItem]:
        ranked, trouble = await on_thread(self._rank, indexed.user_index, query, limit, per_category, is_reminder)
        return recalled(ranked, indexed.trouble or trouble)

    async def indexed(self, scope: Scope, items: Sequence[MemoryItem], which: ItemFilter = ALL) -> Indexed:
        """Return the index of what `items` returned for the scope and `which`."""
        types = None if which.types is None else frozenset(which.types)
        return await self._indexes.of(scope.user_id, (scope.agent, types, which.as_of is None), items)

    def _rank(
        self, user_index: UserIndex, query: str, limit: int, per_category: bool, is_reminder: bool
    ) -> tuple[list[MemoryItem], str | None]:
        """Return the best items, and why only words were ranked (None if vectors worked)."""
        from turnwise.memory.longterm.recall.user_index import find_near

        options: dict[str, Any] = {"per_category": per_category, "is_reminder": is_reminder}
        return find_near(user_index, self._similarity, query, limit=limit, weights=self._weights, **options)

    async def update(
        self,
        scope: Scope,
        id: str,
        text: str | None = None,
        *,
        type: MemoryType | None = None,
        **changes: Unpack[ItemChanges],
    ) -> bool:
        return await update(self._store, scope, id, text, type=type, at=self._clock(), **changes) is not None

    async def list_items(
        self,
        scope: Scope,
        *,
        types: Collection[MemoryType] | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[MemoryItem]:
        """See `Listing.list_items`."""
        return await self._store.query(scope, ItemFilter(types=types), cursor=cursor, limit=limit)

    async def mentions(
        self,
        scope: Scope,
        text: str | None = None,
        *,
        turns: Collection[TurnPlace] = (),
        ids: Collection[str] = (),
    ) -> list[MemoryItem]:
        """See `Mentioning.mentions`."""
        return await mentions_in(self._store, scope, text, turns=turns, ids=ids)

    async def forget(self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None) -> int:
        deleted = await self._store.delete(scope, ids, turn_index=turn_index)
        await self.unindex(scope.user_id, deleted)
        return len(deleted)

    async def forget_sessions(self, sessions: Mapping[str, Collection[str]]) -> None:
        """See `SessionsForgetting`."""
        await self._indexes.remove(await delete_sessions(self._store, sessions))

    async def unindex(self, user_id: str, ids: Collection[str]) -> None:
        """Remove deleted items of a user from the index in memory."""
        await self._indexes.remove({user_id: ids})

    async def close(self) -> None:
        self._indexes.clear()
        if self._similarity is not None:
            self._similarity.close()
        await self._uses.close()
        await self._store.close()

    # Erasing

    async def to_delete(self, scope: Scope, ids: Collection[str] | None, turn_index: int | None) -> list[MemoryItem]:
        """Return the items that `forget` would delete with these arguments."""
        return await to_delete(self._store, scope, ids, turn_index)

    async def texts(
        self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None
    ) -> list[str]:
        """Return texts and topics of the items that `forget` would delete with these arguments, superseded ones too."""
        return texts_of(await self.to_delete(scope, ids, turn_index))

    async def still_contains(self, texts: Collection[str]) -> set[str]:
        """Return those of these texts that an item of any user still contains, whole or as a part of its text."""
        return await still_contained(self._store, texts)

    async def scrub(self, files: Collection[str] | None = None) -> None:
        """Rewrite the files of the store, if it supports that."""
        if isinstance(self._store, Scrubbing):
            await self._store.scrub()

    def paths(self) -> Sequence[Path]:
        """Return the files of the store; none if it does not list them."""
        return self._store.paths() if isinstance(self._store, Scrubbing) else []

    # Retention

    async def items(self, scope: Scope, which: ItemFilter = ALL) -> list[MemoryItem]:
        """Return all items that the scope sees and that are neither expired nor resolved, newest first.

        With `as_of`, those that were not changed after that time.
        """
        return (await self.items_then(scope, which))[0]

    async def items_then(self, scope: Scope, which: ItemFilter) -> tuple[list[MemoryItem], int]:
        """Return what `items` returns, and how many items are missing there because they were changed later."""
        items = await self._stored(scope, which)
        unchanged = [item for item in items if not is_of_later(item, which.as_of)]
        return unchanged, len(items) - len(unchanged)

    async def _stored(self, scope: Scope, which: ItemFilter) -> list[MemoryItem]:
        which = replace(which, live_at=self._clock() if which.as_of is None else which.as_of)
        if self._retention is None:
            return await all_items(self._store, scope, which)
        since = self._retention.since(self._clock())
        expiring = self._retention.expiring(which.types)
        lasting = frozenset(MemoryType if which.types is None else which.types) - expiring
        noted = self._uses.noted(scope.user_id, since)
        items_by_id: dict[str, MemoryItem] = {}
        if expiring:
            expiring_filter = replace(which, types=expiring)
            items_by_id = {
                item.id: item
                for item in await all_items(self._store, scope, replace(expiring_filter, used_since=since))
            }
            if late_ids := noted.difference(items_by_id):
                late_items = await self._store.get(scope, late_ids)
                items_by_id |= {name: item for name, item in late_items.items() if matches(item, expiring_filter)}
        if lasting:
            more = await all_items(self._store, scope, replace(which, types=lasting))
            items_by_id |= {item.id: item for item in more}
        return sorted(items_by_id.values(), key=lambda item: -item.created_at)

    def use(self, scope: Scope, ids: Collection[str], *, recalled: bool = False) -> None:
        """Record that these items are used now, or were recalled, if retention depends on it."""
        if self._retention is not None and (self._retention.refresh or not recalled):
            self._uses.note(scope.user_id, ids, self._clock())

    def use_profile(self, scope: Scope, profile: Sequence[MemoryItem], items: Sequence[MemoryItem]) -> None:
        """Record the use of recalled and profile items. If the profile is long, count the recalls of its items."""
        self.use(scope, [item.id for item in (*profile, *items)], recalled=True)
        if len(profile) > COUNTED:
            profile_ids = {item.id for item in profile}
            self._uses.note(
                scope.user_id, [item.id for item in items if item.id in profile_ids], self._clock(), counts=True
            )

    def use_again(self, scope: Scope, ids: Collection[str]) -> None:
        """Record and count that the user said these items' facts again."""
        self._uses.note(scope.user_id, ids, self._clock(), counts=True)

    async def sweep(self) -> int:
        """Delete the expired items of all users for good, in batches; return how many.

        Raises:
            StoreError: the store fails. Items deleted before that stay deleted; the next sweep deletes the rest.
        """
        if self._retention is None:
            return 0
        since = self._retention.since(self._clock())
        await self._uses.write()
        swept = 0
        while deleted := await self._store.sweep(since, types=self._retention.types):
            swept += sum(map(len, deleted.values()))
        return swept


def profile_of(items: Sequence[MemoryItem], types: Collection[MemoryType]) -> list[MemoryItem]:
    """Return the items of the profile: pinned items, then alternately the most used and the newest of these types.

    They alternate so that new facts have a place beside those that are often used. Of equally used items the newest
    comes first; a changed item counts as new. Returns the first `PROFILED` items, since more fit no request.
    """
    chosen = [item for item in items if item.pinned or item.type in types]
    newest = sorted(chosen, key=lambda item: (max(item.created_at, item.updated_at or 0.0), item.id), reverse=True)
    used = sorted(newest, key=lambda item: -item.uses)
    by_turns = {item.id: item for pair in zip(used, newest, strict=True) for item in pair}
    return sorted(by_turns.values(), key=lambda item: not item.pinned)[:PROFILED]


def with_wishes(profile: Sequence[MemoryItem], wishes: Sequence[MemoryItem]) -> list[MemoryItem]:
    """Return the profile with the wishes of items that it does not have, up to `PROFILED` items."""
    ids = {item.id for item in profile}
    return [*profile, *(wish for wish in wishes if wish.id not in ids)][:PROFILED]


def within_limits(
    profile: Sequence[MemoryItem], ranked: Sequence[MemoryItem], limit: int, *, per_category: bool = False
) -> list[MemoryItem]:
    """Return the ranked items: up to `limit` in the profile and up to `limit` outside it, the best first.

    With `per_category`, the limit is for each category.

    Args:
        ranked: the best items, `limit` more than the profile has.
    """
    ids, counts, selected = {item.id for item in profile}, Counter[tuple[bool, str]](), list[MemoryItem]()
    for item in ranked:
        group = item.id in ids, item.type.category.value if per_category else ""
        counts[group] += 1
        if counts[group] <= limit:
            selected.append(item)
    return selected


COUNTED = 20
"""Recalls are counted only for profiles with more items than this. Smaller ones mostly fit a request in any order, so
for most users no counts are written."""

PROFILED = 200
"""The most items of a profile that a session gets."""
