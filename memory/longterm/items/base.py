"""`FactStore`: the protocol of stores that keep memory items, independent of how items are made and searched."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, Unpack, cast, get_args, runtime_checkable

from turnwise.errors import InvalidIdError, InvalidInputError, InvalidMemoryError, shown
from turnwise.memory.conversation.ids import check_id
from turnwise.memory.longterm.base import ItemChanges, MemoryItem, Scope, Status
from turnwise.memory.longterm.search.analyzer import stem, words
from turnwise.memory.longterm.types import MemoryCategory, MemoryType, checked_types
from turnwise.memory.stores.base import Page


@dataclass(frozen=True, kw_only=True)
class FactFilter:
    """A filter of facts. A fact matches if it fits all fields.

    Raises:
        InvalidInputError: one of the types is no type.
    """

    types: Collection[MemoryType] | None = None
    """Only facts of these types; all types if left out."""
    session_id: str | None = None
    """Only facts from this session."""
    turn_index: int | None = None
    """Only facts from a turn with this index."""
    as_of: float | None = None
    """Only facts that existed at this time, in seconds since the epoch, and were not yet superseded. If None, facts
    that are not superseded now."""
    superseded: bool = False
    """Whether superseded facts match as well."""
    used_since: float | None = None
    """Only facts that were put, changed, superseded or touched at this time or later."""
    live_at: float | None = None
    """Only facts that have not expired by this time, in seconds since the epoch, and that, without `as_of`, are not
    resolved. If None, expired and resolved facts match as well."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", checked_types(self.types))


MAX_ID_BYTES = 1500
"""The most bytes of an item's id, in UTF-8: it is indexed with its user's."""

ALL = FactFilter()
"""All facts that are not superseded."""


@dataclass(frozen=True)
class Fact:
    """A stored item and its owner."""

    user_id: str
    agent: str | None
    """The agent that owns the item; None if all of the user's agents see it, as they see every semantic item."""
    item: MemoryItem


@runtime_checkable
class FactStore(Protocol):
    """Durable storage of memory items. `memory/longterm/items/conformance.py` has its laws; run them on your own store.

    A semantic item belongs to the scope's user. Any other item belongs to the scope's agent or, if the scope names no
    agent, to the user. A scope sees the items of its user and of its agent, and no others; its session plays no part.
    Each call is one transaction: a cancelled call was carried out completely or not at all. An item is returned as it
    was put, without blocks and score. All methods raise `StoreError` if the store cannot be reached, read or written.
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
        self, scope: Scope, which: FactFilter = ALL, *, cursor: str | None = None, limit: int = 100
    ) -> Page[MemoryItem]:
        """Return a page of items that the scope sees, the newest first; of equally old items the last inserted first.

        Args:
            cursor: the cursor of the previous page; None for the first page.
            limit: the most items of the page.

        Raises:
            InvalidInputError: the limit is below 1, or the cursor is invalid.
            CorruptRecordError: an item cannot be read; the error names it.
        """

    async def count(self, scope: Scope, which: FactFilter = ALL) -> int:
        """Return how many items match that the scope sees."""

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
        """Change the given fields of an item that the scope sees; return whether it exists and is not superseded.

        A superseded item is history and is not changed. An item whose type becomes semantic belongs to the user from
        then on; one whose type ceases to be semantic belongs to the scope's agent. A name or topic that occurs only in
        the old text is removed with that text: see `changed`.

        Args:
            at: the time of the change, in seconds since the epoch, stored as `updated_at`.

        Raises:
            InvalidMemoryError: the changed item would be invalid, or no change is given; nothing is written.
        """

    async def pin(self, scope: Scope, id: str, pinned: bool) -> bool:
        """Pin or unpin an item that the scope sees; return whether it exists and is not superseded.

        Nothing else of it changes. A superseded item is history and is not changed.
        """

    async def supersede(self, scope: Scope, id: str, item: MemoryItem) -> bool:
        """Supersede an item that the scope sees by `item`; return whether `item` supersedes it on return.

        The old item stays as history: it was valid until the creation of the new one, which counts as its last use.
        Returns False, and writes nothing, if the old item does not exist or was superseded by another one, or if the
        new item was deleted before. A call may be repeated.

        Raises:
            InvalidMemoryError: the new item is invalid, has the old one's id, or has no time; nothing is written.
        """

    async def delete(self, scope: Scope, ids: Collection[str]) -> list[str]:
        """Delete the items with these ids that the scope sees, superseded ones included; return their ids.

        Deleted ids, and ids that do not exist yet, are refused by `put` for `TOMBSTONE_S`, so a repeated flush does not
        bring a deleted item back. An item that a deleted one superseded, of whichever agent, takes over the end of the
        deleted one: it is valid again, or is superseded by what superseded the deleted one. All of this applies to
        `purge` and `sweep` too.
        """

    async def purge(self, user_id: str, *, session_id: str | None = None, turn_index: int | None = None) -> list[str]:
        """Delete all items of a user, or of one session or turn, of all agents; return their ids.

        Raises:
            InvalidInputError: a turn is given without its session.
        """

    async def touch(self, user_id: str, ids: Collection[str], at: float, *, counts: bool = False) -> None:
        """Record that the user's items with these ids were used at this time. Unknown ids are ignored.

        An item that was used at this time or later is not changed, so a call may be repeated.

        Args:
            at: the time of the use, in seconds since the epoch.
            counts: whether `uses` of each item is raised by one.
        """

    async def sweep(self, before: float, *, types: Collection[MemoryType] | None = None, limit: int = 1000) -> int:
        """Delete up to `limit` items of all users that were last used before this time; return how many.

        The longest unused items go first, superseded ones included. Call it until it returns 0. See `delete`.

        Args:
            types: only items of these types; all if left out.
        """

    async def scan(self, user_id: str | None = None, *, cursor: str | None = None, limit: int = 1000) -> Page[Fact]:
        """Return a page of the facts of a user, or of all users, in the order of insertion, superseded ones included.

        For callers that copy, convert or index everything. Facts that are put meanwhile may be missing.
        """

    async def close(self) -> None:
        """Close connections and files. A second call does nothing; any other method then raises StoreClosedError."""


def owner_of(scope: Scope, type: MemoryType) -> str | None:
    """Return the agent that owns a new item of this type; None if all of the user's agents see it."""
    return None if type.category is MemoryCategory.SEMANTIC else scope.agent


def owner_after(scope: Scope, agent: str | None, before: str, after: MemoryType) -> str | None:
    """Return the agent that owns an item after a change of its type, given its agent and type before."""
    stays = before not in SEMANTIC and after not in SEMANTIC
    return agent if stays else owner_of(scope, after)


SEMANTIC = frozenset(kind for kind in MemoryType if kind.category is MemoryCategory.SEMANTIC)


TOMBSTONE_S = 90 * 86_400.0
"""How long a store knows the ids of deleted items and refuses items with these ids, in seconds.

A session whose process was lost may save an item again, when somebody next uses the session. Ids are dropped after this
time, since they would accumulate otherwise.
"""


def matches(item: MemoryItem, which: FactFilter) -> bool:
    """Return whether the item matches the filter."""
    if which.types is not None and item.type not in which.types:
        return False
    if which.session_id not in (None, item.source.session_id) or which.turn_index not in (None, item.source.turn_index):
        return False
    if which.live_at is not None and not _is_live(item, which.live_at, which.as_of):
        return False
    if which.as_of is None:
        return which.superseded or item.superseded_at is None
    held = which.superseded or item.superseded_at is None or item.superseded_at > which.as_of
    return item.created_at <= which.as_of and held


def _is_live(item: MemoryItem, at: float, as_of: float | None) -> bool:
    is_expired = item.expires_at is not None and item.expires_at <= at
    return not is_expired and (as_of is not None or item.status != "resolved")


End: TypeAlias = tuple[float | None, str | None]
"""The time when an item was superseded, and the id of the item that replaced it."""

NO_END: End = (None, None)
"""The end of an item that is not superseded."""


def end_after_deletion(ends: Mapping[str, End], id: str, successor: str) -> End:
    """Return the new end of an item whose successor is deleted: the end of the first successor that stays.

    Args:
        ends: the ends of all items that are deleted together, by id.
    """
    at, by = ends[successor]
    for _ in ends:
        if by is None or by not in ends:
            return NO_END if by == id else (at, by)
        at, by = ends[by]
    return NO_END  # the deleted items superseded each other


async def all_items(facts: FactStore, scope: Scope, which: FactFilter = ALL) -> list[MemoryItem]:
    """Return all items that the scope sees, newest first."""
    page = await facts.query(scope, which, limit=_PAGE)
    found = list(page)
    while page.cursor is not None:
        page = await facts.query(scope, which, cursor=page.cursor, limit=_PAGE)
        found += page
    return found


async def all_facts(facts: FactStore, user_id: str | None = None) -> AsyncIterator[Fact]:
    """Yield all facts of a user, or of all, as `scan` returns them."""
    page = await facts.scan(user_id, limit=_PAGE)
    while True:
        for fact in page:
            yield fact
        if page.cursor is None:
            return
        page = await facts.scan(user_id, cursor=page.cursor, limit=_PAGE)


_PAGE = 1000


def checked_item(scope: Scope, item: MemoryItem) -> MemoryItem:
    """Return the item as it is stored: checked, and without blocks and score.

    Raises:
        InvalidMemoryError: the item is invalid.
    """
    try:
        check_id("user", scope.user_id)
        if scope.agent is not None:
            check_id("agent", scope.agent)
        _check_names(item.id, item.source.session_id, item.superseded_by)
        aliases = tuple(_list(item.aliases))
        for text in (item.text, item.topic or "", item.name or "", *aliases):
            text.encode()
        if not all(name.strip() for name in (*aliases, *([] if item.name is None else [item.name]))):
            raise ValueError("its name or an alias is blank")
        if item.status not in get_args(Status):
            raise ValueError(f"its status is {item.status!r}: must be {' or '.join(get_args(Status))}")
        times = (item.created_at, item.updated_at or 0.0, item.superseded_at or 0.0, item.expires_at or 0.0)
        if isinstance(item.uses, bool) or not isinstance(item.uses, int) or item.uses < 0:
            raise ValueError(f"uses={str(item.uses)[:_SHOWN]}: must be a whole number from 0")
        if not all(map(math.isfinite, times)):
            raise ValueError("a time is not finite")
        if not item.text.strip():
            raise ValueError("its text is blank")
        return replace(item, type=MemoryType(item.type), aliases=aliases, **_OF_RECALL)
    except (InvalidIdError, ValueError, TypeError, AttributeError) as error:
        raise InvalidMemoryError(str(getattr(item, "id", item))[:_SHOWN], str(error)) from error


_OF_RECALL: Mapping[str, Any] = {"blocks": (), "score": None, "words": (), "passage": None, "memory": None}
"""Fields of an item that are not stored: the input of `remember`, and the results of a recall."""


def _list(names: Sequence[str] | str) -> Sequence[str]:
    if isinstance(names, str):
        raise TypeError("its aliases are one text: pass a list of texts")  # each letter would be an alias
    return names


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
        given = "text" if text is None else text
        item = MemoryItem(id="?", text=given, type=type or MemoryType.GENERAL, updated_at=at, **more)
        item = checked_item(scope, item)
    except InvalidMemoryError as error:
        raise InvalidMemoryError(id[:_SHOWN], error.why) from error
    except ValueError as error:
        raise InvalidMemoryError(id[:_SHOWN], str(error)) from error
    checked = cast(ItemChanges, {name: getattr(item, name) for name in more})
    return item.type if type else None, checked


def changed(item: MemoryItem, text: str | None, type: MemoryType | None, at: float, changes: ItemChanges) -> MemoryItem:
    """Return the item with the given changes, made at this time.

    If the old text contains the name or an alias and the new text contains none of them, the name and aliases are
    removed, since the item would still be found by them. The same applies to the topic. Given values stay.
    """
    text = item.text if text is None else text
    names = () if item.name is None else (item.name,)
    gone = dict[str, Any]()
    if _stale((*names, *item.aliases), item.text, text):
        gone.update(name=None, aliases=())
    if item.topic is not None and _stale((item.topic,), item.text, text):
        gone["topic"] = None
    return replace(item, text=text, type=type or item.type, updated_at=at, **{**gone, **changes})


def _stale(names: Collection[str], before: str, after: str) -> bool:
    """Return whether the old text contains one of these names and the new text contains none."""
    said, says = (f" {' '.join(map(stem, words(text)))} " for text in (before, after))
    phrases = [f" {' '.join(map(stem, words(name)))} " for name in names]
    return any(phrase in said for phrase in phrases) and not any(phrase in says for phrase in phrases)


def check_successor(scope: Scope, id: str, item: MemoryItem) -> MemoryItem:
    """Return the item as it is stored when it supersedes the one with this id.

    Raises:
        InvalidMemoryError: the item is invalid, has this id, or has no time.
    """
    item = checked_item(scope, item)
    if item.id == id:
        raise InvalidMemoryError(id[:_SHOWN], "an item cannot supersede itself: use another id, or update()")
    if not item.created_at:
        raise InvalidMemoryError(item.id[:_SHOWN], "created_at is missing: the superseded item is valid until then")
    return item


def check_turn(session_id: str | None, turn_index: int | None, ids: Collection[str] | None = None) -> None:
    """Raise InvalidInputError if a turn is given without its session or together with ids."""
    if turn_index is not None and session_id is None:
        raise InvalidInputError("turn_index", turn_index, "pass the session_id of the turn as well")
    if turn_index is not None and ids is not None:
        raise InvalidInputError("turn_index", turn_index, "pass either ids or a turn")


def parse_position(cursor: str | None) -> int:
    """Return the position that a cursor of `scan` stands for; 0 for None.

    Raises:
        InvalidInputError: the cursor is invalid.
    """
    if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= _POSITION_DIGITS):
        raise InvalidInputError("cursor", shown(cursor), "pass the cursor of the previous page, unchanged")
    return int(cursor or 0)


_POSITION_DIGITS = 18
"""Digits that always fit in an 8-byte key."""


_SHOWN = 80
"""The most characters of an id in an error message."""


def _check_names(*names: str | None) -> None:
    """Raise ValueError if a database could not store one of these ids unchanged."""
    for name in names:
        if name is not None and ("\0" in name or not name.strip()):
            raise ValueError(f"{name[:_SHOWN]!r} is not an id: it is blank or contains NUL")
        if name is not None and (size := len(name.encode())) > MAX_ID_BYTES:
            raise ValueError(f"{name[:_SHOWN]!r}... takes {size} bytes in UTF-8, and an id at most {MAX_ID_BYTES}")
