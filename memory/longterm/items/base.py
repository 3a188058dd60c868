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
from turnwise.memory.longterm.types import MemoryCategory, MemoryType
from turnwise.memory.stores.base import Page


@dataclass(frozen=True, slots=True, kw_only=True)
class FactFilter:
    """A filter of facts. A fact matches if it matches all fields."""

    types: Collection[MemoryType] | None = None
    """The types of facts; all if left out."""
    session_id: str | None = None
    """Facts from this session."""
    turn_index: int | None = None
    """Facts from a turn with this index."""
    as_of: float | None = None
    """Facts that existed at this time, in seconds since the epoch, and were not superseded by then. None for now."""
    superseded: bool = False
    """Whether superseded facts match too."""
    used_since: float | None = None
    """Facts that were put, changed, superseded or touched at this time or later."""
    live_at: float | None = None
    """Facts that have not expired by this time, in seconds since the epoch, and, without `as_of`, are not resolved. If
    None, expired and resolved facts match too."""


ALL = FactFilter()
"""All that holds now."""


@dataclass(frozen=True, slots=True)
class Fact:
    """An item and its owner."""

    user_id: str
    agent: str | None
    """None for items of all of the user's agents, as all semantic items are."""
    item: MemoryItem


@runtime_checkable
class FactStore(Protocol):
    """Durable storage of memory items. `memory/longterm/items/conformance.py` has its laws; run them on your own store.

    An item belongs to a user, and one that is not semantic to the scope's agent if the scope names one. A scope sees
    what is the user's and what is its agent's, nothing of another's; its session plays no part. Every verb is one
    transaction; a cancelled call may have been carried out or not, never in part. Items come out as they went in,
    without blocks and score. Verbs raise `StoreError` if the store cannot be reached, read or written.
    """

    async def put(self, scope: Scope, items: Sequence[MemoryItem], *, at: float | None = None) -> list[str]:
        """Make items durable, all on return or none; return the ids of those that are new, in order.

        The user's items that are there already, and those that were deleted, stay as they are: a call may be repeated,
        also late.

        Args:
            at: when they were last used, in seconds since the epoch; now if left out. See `sweep`.

        Raises:
            InvalidMemoryError: an item cannot be kept; nothing is written.
        """

    async def get(self, scope: Scope, ids: Collection[str]) -> dict[str, MemoryItem]:
        """Return those of these items that the scope sees, superseded ones too, by id."""

    async def query(
        self, scope: Scope, which: FactFilter = ALL, *, cursor: str | None = None, limit: int = 100
    ) -> Page[MemoryItem]:
        """Return up to `limit` items that the scope sees, newest first; equal times by insertion, newest first.

        Raises:
            InvalidInputError: the limit is below 1, or the cursor is not one of a page.
            CorruptRecordError: one cannot be read; names it.
        """

    async def count(self, scope: Scope, which: FactFilter = ALL) -> int:
        """Return how many items the scope sees."""

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
        """Change the given fields of an item that the scope sees; return whether the item exists.

        One that becomes semantic is its user's then, and one that ceases to be the scope's agent's. What was superseded
        is history, and stays. A name or topic that the old text has and the new one does not is taken away: `changed`.

        Args:
            at: the time of it, kept as `updated_at`.

        Raises:
            InvalidMemoryError: it could not be kept, or nothing is given; nothing is written.
        """

    async def pin(self, scope: Scope, id: str, pinned: bool) -> bool:
        """Pin or unpin an item that the scope sees; return whether it exists and is not superseded.

        Changes nothing else of it. What was superseded is history, and stays.
        """

    async def supersede(self, scope: Scope, id: str, item: MemoryItem) -> bool:
        """Replace an item that the scope sees by `item`; return whether it is replaced now.

        The old one is kept: it held until the new one was created, and was used then. False if it is not there, was
        superseded by another, or the new one was deleted; nothing is written then. May be repeated.

        Raises:
            InvalidMemoryError: the item cannot be kept, has the old one's id, or no time; nothing is written.
        """

    async def delete(self, scope: Scope, ids: Collection[str]) -> list[str]:
        """Delete those of these items that the scope sees, superseded ones too; return their ids.

        An id that nobody has yet is deleted too: an item that is given under it later, as by a repeated flush, is not
        kept, for `BURIED_S`. What a deleted item stood in the place of takes over its end, whichever agent's it is: it
        holds again, or was superseded when, and by which, the deleted one was. `purge` and `sweep` see to that too.
        """

    async def purge(self, user_id: str, *, session_id: str | None = None, turn_index: int | None = None) -> list[str]:
        """Delete all of a user's items, or those from a session or a turn of it, of every agent; return their ids.

        Raises:
            InvalidInputError: a turn without its session.
        """

    async def touch(self, user_id: str, ids: Collection[str], at: float, *, counts: bool = False) -> None:
        """Record that the user's items with these ids were used at this time, unless later. Unknown ids are ignored.

        Changes nothing that is read back but `uses`. An item that was used at this time or later is not counted, so a
        call may be repeated.

        Args:
            counts: whether `uses` of each is raised by one.
        """

    async def sweep(self, before: float, *, types: Collection[MemoryType] | None = None, limit: int = 1000) -> int:
        """Delete up to `limit` items, of all users, that were last used before this time; return how many.

        The longest unused first, superseded ones too; as `delete` does, so they do not come back. Again until it
        returns 0.

        Args:
            types: only those; all if left out.
        """

    async def scan(self, user_id: str | None = None, *, cursor: str | None = None, limit: int = 1000) -> Page[Fact]:
        """Return up to `limit` facts of a user, or of all, in the order in which they were put, superseded ones too.

        For those who copy, convert or index everything. What is put meanwhile may be among them or not.
        """

    async def close(self) -> None:
        """Close connections and files. Closing twice is fine; any other call afterwards raises StoreClosedError."""


def owner_of(scope: Scope, type: MemoryType) -> str | None:
    """Return the agent that an item of this type belongs to; None for all of the user's."""
    return None if type.category is MemoryCategory.SEMANTIC else scope.agent


def owner_after(scope: Scope, agent: str | None, before: str, after: MemoryType) -> str | None:
    """Return the agent that an item belongs to after a change of its type, which was that of an agent or of all."""
    stays = before not in SEMANTIC and after not in SEMANTIC
    return agent if stays else owner_of(scope, after)


SEMANTIC = frozenset(kind for kind in MemoryType if kind.category is MemoryCategory.SEMANTIC)


BURIED_S = 90 * 86_400.0
"""How long a store knows the ids of deleted items, so that what is given again under them is not kept, in seconds.

Who gives an item late is a session whose process was lost before it had noted that it gave it: it does so when somebody
next uses the session. After so long nobody is expected to, and what was deleted would else add up for ever.
"""


def holds(item: MemoryItem, which: FactFilter) -> bool:
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

HOLDS: End = (None, None)
"""The end of an item that was not superseded."""


def end_without(ends: Mapping[str, End], id: str, successor: str) -> End:
    """Return the end of an item whose successor is deleted: that of the successor, or of whose end that was.

    Args:
        ends: those of all that is deleted at once, by id.
    """
    at, by = ends[successor]
    for _ in ends:
        if by is None or by not in ends:
            return HOLDS if by == id else (at, by)
        at, by = ends[by]
    return HOLDS  # they stood in each other's places


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


def kept(scope: Scope, item: MemoryItem) -> MemoryItem:
    """Return the item as it is stored: without blocks and score.

    Raises:
        InvalidMemoryError: it cannot be.
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
            raise ValueError("a name of it is blank")
        if item.status not in get_args(Status):
            raise ValueError(f"its status {item.status!r} is none of {', '.join(get_args(Status))}")
        times = (item.created_at, item.updated_at or 0.0, item.superseded_at or 0.0, item.expires_at or 0.0)
        if isinstance(item.uses, bool) or not isinstance(item.uses, int) or item.uses < 0:
            raise ValueError(f"its uses {str(item.uses)[:_SHOWN]} are no number of times")
        if not all(map(math.isfinite, times)):
            raise ValueError("a time of it is not finite")
        if not item.text.strip():
            raise ValueError("its text is blank")
        return replace(item, type=MemoryType(item.type), aliases=aliases, **_OF_RECALL)
    except (InvalidIdError, ValueError, TypeError, AttributeError) as error:
        raise InvalidMemoryError(str(getattr(item, "id", item))[:_SHOWN], str(error)) from error


_OF_RECALL: Mapping[str, Any] = {"blocks": (), "score": None, "words": (), "passage": None, "memory": None}
"""The fields of an item that are not stored: those for `remember`, and those that a recall sets."""


def _list(names: Sequence[str] | str) -> Sequence[str]:
    if isinstance(names, str):
        raise TypeError("its aliases are a text and no list of texts")  # each letter would be one
    return names


def check_change(
    scope: Scope, id: str, text: str | None, type: MemoryType | None, *, at: float, changes: ItemChanges
) -> tuple[MemoryType | None, ItemChanges]:
    """Return the type that an item is to have, if one is given, and what else of it is to be changed, as it is kept.

    Raises:
        InvalidMemoryError: it could not be kept, or nothing is given.
    """
    more = cast(dict[str, Any], changes)
    try:
        if text is None and type is None and not more:
            raise ValueError("nothing is to be changed: give a text, a type or another part of it")
        if unknown := more.keys() - ItemChanges.__annotations__.keys():
            raise ValueError(f"{', '.join(sorted(unknown))} cannot be changed")
        given = "text" if text is None else text
        item = MemoryItem(id="?", text=given, type=type or MemoryType.GENERAL, updated_at=at, **more)
        item = kept(scope, item)
    except InvalidMemoryError as error:
        raise InvalidMemoryError(id[:_SHOWN], error.why) from error
    except ValueError as error:
        raise InvalidMemoryError(id[:_SHOWN], str(error)) from error
    checked = cast(ItemChanges, {name: getattr(item, name) for name in more})
    return item.type if type else None, checked


def changed(item: MemoryItem, text: str | None, type: MemoryType | None, at: float, changes: ItemChanges) -> MemoryItem:
    """Return the item with the given changes, made at a time.

    Its name and aliases go if the old text has one of them and the new text has none, and its topic likewise: they
    were of what the item does not say any more, and it would be found by them still. Those that are given stay.
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
    """Return whether the old text has one of these names and the new text has none."""
    said, says = (f" {' '.join(map(stem, words(text)))} " for text in (before, after))
    phrases = [f" {' '.join(map(stem, words(name)))} " for name in names]
    return any(phrase in said for phrase in phrases) and not any(phrase in says for phrase in phrases)


def check_successor(scope: Scope, id: str, item: MemoryItem) -> MemoryItem:
    """Return the item as it is stored when it replaces another.

    Raises:
        InvalidMemoryError: it cannot be kept, has the other's id, or no time.
    """
    item = kept(scope, item)
    if item.id == id:
        raise InvalidMemoryError(id[:_SHOWN], "it cannot supersede itself: give it an id of its own, or use update()")
    if not item.created_at:
        raise InvalidMemoryError(item.id[:_SHOWN], "what supersedes needs created_at: the other held until then")
    return item


def texts_in(value: object) -> list[str]:
    """Return a list of texts that was read; raises TypeError if it is something else."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise TypeError("what should be a list of texts is not")
    return value


def status_of(value: object) -> Status:
    """Return a status that was read, of which none is that of most; raises ValueError if it is something else."""
    for status in get_args(Status):
        if value == status:
            return cast(Status, status)
    if value is not None:
        raise ValueError(f"{value!r} is no status")
    return "active"


def check_turn(session_id: str | None, turn_index: int | None, ids: Collection[str] | None = None) -> None:
    """Raise InvalidInputError if a turn is given without its session or together with ids."""
    if turn_index is not None and session_id is None:
        raise InvalidInputError("turn_index", turn_index, "pass the session_id of the turn too")
    if turn_index is not None and ids is not None:
        raise InvalidInputError("turn_index", turn_index, "pass either ids or a turn")


def parse_position(cursor: str | None) -> int:
    """Return the position of a cursor of `scan`; 0 for none.

    Raises:
        InvalidInputError: it is not a cursor.
    """
    if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= _POSITION_DIGITS):
        raise InvalidInputError("cursor", shown(cursor), "pass the cursor of the page before, unchanged")
    return int(cursor or 0)


_POSITION_DIGITS = 18
"""The number of values of an 8-byte key."""


_SHOWN = 80
"""The most characters of an id in an error message, since ids may be long."""


def _check_names(*names: str | None) -> None:
    """Raise ValueError if a database could not hold one of them as it is."""
    for name in names:
        if name is not None and ("\0" in name or not name.strip()):
            raise ValueError(f"{name[:_SHOWN]!r} is no id: it is blank, or has a NUL in it")
        if name is not None:
            name.encode()
