"""`LongTermMemory`: the protocol of long-term memories, and the items that they keep."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol, TypeAlias, TypedDict, Unpack, runtime_checkable

from pydantic import PlainValidator

from turnwise.memory.conversation.blocks import AnyBlock, Block, encode
from turnwise.memory.conversation.spans import Spans
from turnwise.memory.conversation.views.notebook_display import record_html
from turnwise.memory.longterm.memory_types import MemoryCategory, MemoryType, checked_types
from turnwise.memory.stores.base import Page
from turnwise.memory.values.checked_settings import PositiveCount, checked_settings

Status = Literal["active", "resolved"]
"""Whether an item still matters. A resolved item, such as a goal that was reached, is no longer recalled."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The user, session and agent that own an item. They come from the session, never from a model's arguments."""

    user_id: str
    session_id: str | None = None
    """None for all of the user's sessions."""
    agent: str | None = None
    """None for all of the user's agents."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The place in a conversation that an item comes from."""

    session_id: str | None = None
    """None if the item comes from no session, such as one that a program saved."""
    turn_index: int | None = None
    spans: Spans = ()
    """The spans of its blocks in block logs."""


TurnPlace: TypeAlias = tuple[str, int]
"""A turn: the id of its session, and its index."""


@dataclass(frozen=True, kw_only=True)
class MemoryItem:
    """A piece of memory. A user has at most one item with an `id`."""

    id: str
    text: str
    type: MemoryType = MemoryType.GENERAL
    topic: str | None = None
    """The subject of the item, in a word or two."""
    name: str | None = None
    """A proper name, as of a person, a pet or a product. A query with this name ranks the item before others."""
    aliases: tuple[str, ...] = ()
    """Other names of the same person or thing."""
    source: Source = Source()
    blocks: tuple[AnyBlock, ...] = field(default=(), compare=False)
    """The conversation's blocks, for memories that extract more than the text. They are not stored with the item."""
    created_at: float = 0.0
    """Seconds since the epoch, UTC; 0 if unknown."""
    updated_at: float | None = None
    """The time of the last change, in seconds since the epoch. Pinning does not count as a change."""
    superseded_at: float | None = None
    """When another item replaced it, in seconds since the epoch. A replaced item is found only with `as_of`."""
    superseded_by: str | None = None
    """The id of the item that replaced it."""
    expires_at: float | None = None
    """The time from which it is not recalled, in seconds since the epoch; None for no limit."""
    status: Status = "active"
    pinned: bool = False
    """Whether it is in the user's profile regardless of its type. See `Reminder`."""
    uses: int = field(default=0, compare=False)
    """How often it was recalled for a query or said again. Counted at most once a second, and only if the user's
    profile may be too large for a request. See `profile_of`."""
    score: float | None = field(default=None, compare=False)
    """The relevance of a recalled item to the query, from 0 to 1; higher is better. Scores of all memories that rank by
    `turnwise.memory.longterm.recall.ranking` are comparable."""
    words: tuple[str, ...] = field(default=(), compare=False)
    """The words of the query that a recalled item has."""
    passage: str | None = field(default=None, compare=False)
    """The part of a recalled item's long text that is relevant to the query; None for the whole text."""
    memory: str | None = field(default=None, compare=False)
    """The name of the memory that returned it, if a session recalled it."""

    _repr_html_ = record_html


class ItemChanges(TypedDict, total=False):
    """Changes to an item beside its text and type. Keys left out do not change; None and () remove the value."""

    topic: str | None
    name: str | None
    aliases: Sequence[str]
    status: Status
    expires_at: float | None


@dataclass(frozen=True, kw_only=True)
@checked_settings()
class Recall:
    """A query to a memory.

    Raises:
        InvalidInputError: one of the types is no type.
    """

    scope: Scope
    query: str
    limit: int = 10
    types: Annotated[Collection[MemoryType] | None, PlainValidator(checked_types)] = None
    as_of: float | None = None
    is_reminder: bool = False
    """Whether it is a prompt, not a query: see `Reminding.remind`."""
    per_category: bool = False
    """Whether `limit` is for each category."""


@dataclass(frozen=True, kw_only=True)
class Reminder:
    """What a memory adds to a request without being asked."""

    profile: Sequence[MemoryItem]
    """Items for every request of the user, the most important first, since not all may fit: who the user is and how to
    answer them."""
    items: Sequence[MemoryItem]
    """The items that stand out as relevant to the prompt, the best first. They may include items of the profile."""


@runtime_checkable
class Reminding(Protocol):
    """The method of a memory that tells what a prompt needs from what merely resembles it.

    A session calls it for each prompt. It calls `recall` of a memory that lacks it.
    """

    async def remind(
        self,
        scope: Scope,
        prompt: str,
        *,
        limit: int = 10,
        types: Collection[MemoryType] | None = None,
        as_of: float | None = None,
    ) -> Reminder:
        """Return the user's profile, and the items without which the prompt may be answered worse: for most, none.

        `recall` returns the best items for any query. This returns items only if they stand out. A blank prompt has no
        items.

        Args:
            limit: the most items that are not in the profile. Items of the profile that stand out as much are returned
                too, up to as many again.
            as_of: what it would have been at this time, as in `LongTermMemory.recall`. Sessions ask for the present.
        """


@runtime_checkable
class Pinning(Protocol):
    """The method of a memory with user profiles, to which a program adds items."""

    async def pin(self, scope: Scope, id: str, pinned: bool) -> bool:
        """Pin an item that the scope sees to the profile, or unpin it; return whether it is a valid item."""


def _label_name(name: Any) -> Any:
    if not re.fullmatch(r"\w[\w .-]{0,63}", name):
        raise ValueError("must be up to 64 letters, digits, spaces and _.-")
    return name


@dataclass(frozen=True, kw_only=True)
@checked_settings()
class Label:
    """The name of a memory in sessions, and its share of a request: the attribute `label` of a memory.

    It is no part of what a memory keeps: memories that differ only in their labels have the same actor.

    Raises:
        ConfigError: the name or the number cannot be used.
    """

    name: Annotated[str, PlainValidator(_label_name)] | None = None
    """The name in items, events, lists and `save(memory=...)`: up to 64 letters, digits, spaces and `_.-`. The class's
    name if None."""
    max_tokens: PositiveCount | None = None
    """How many tokens its recalled items may take in a request; None for no limit but that of all memories."""

    def __identity__(self) -> tuple[()]:
        """Return the same for all labels; see `identity`."""
        return ()


def label_of(memory: object) -> Label:
    """Return the memory's label; an empty one if it has none."""
    label = getattr(memory, "label", None)
    return label if isinstance(label, Label) else Label()


@runtime_checkable
class Listing(Protocol):
    """The method of a memory that can list what it keeps."""

    async def list_items(
        self,
        scope: Scope,
        *,
        types: Collection[MemoryType] | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[MemoryItem]:
        """Return a page of the items that the scope sees and that are not superseded, the newest first.

        Resolved items are listed too, and expired ones until they are deleted. The scope's session is not a filter.

        Args:
            types: the types of items to return; all if left out.
            cursor: the cursor of the previous page; None for the first page.
            limit: the most items of the page.

        Raises:
            InvalidInputError: the limit is below 1, or the cursor is invalid.
            CorruptRecordError: an item cannot be read; the error names it.
        """


@runtime_checkable
class Mentioning(Protocol):
    """The method of a memory that can find all that it keeps about something; `forget_about` uses it."""

    async def mentions(
        self,
        scope: Scope,
        text: str | None = None,
        *,
        turns: Collection[TurnPlace] = (),
        ids: Collection[str] = (),
    ) -> Sequence[MemoryItem]:
        """Return the scope's items that say the text, come from one of the turns, or have one of the ids.

        Superseded, resolved and expired items are among them; their order is of no importance. The scope's session is
        not a filter. See `Subject` for what it means that an item says a text.

        Raises:
            InvalidInputError: the text has no content word.
        """


class DegradedRecall(list[MemoryItem]):
    """A recall of reduced quality, such as one by words without vectors.

    The reason is part of the result, so that only the run that asked reports it.

    Args:
        items: the items that were recalled nevertheless.
        trouble: why items may be missing or ranked worse than usual.
    """

    def __init__(self, items: Iterable[MemoryItem], trouble: str) -> None:
        super().__init__(items)
        self.trouble = trouble

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(DegradedRecall, items=list(self), trouble=self.trouble), ()


@runtime_checkable
class LongTermMemory(Protocol):
    """Keeps items for users and agents, and finds them again.

    An item of a semantic type belongs to the user. An item of another type belongs to the scope's agent or, if the
    scope names no agent, to all of the user's agents. A recall returns items of the scope's user and of the scope's
    agent, and never those of other users or agents.

    Each method may raise; the failure of one memory does not affect others. A memory may also be `Listing`,
    `Reminding`, `Pinning` or `Mentioning`, and have these attributes:

    - `label`: a `Label` with its name in sessions and its limit of tokens.
    - `read_only`: if true, it cannot be written; see `is_read_only`.
    - `is_local`: if true, it keeps files, so its actor stays on the node with the files.
    - `limits_categories`: if true, `recall` and `remind` take the argument `per_category`; see
      `base.limits_categories`.
    - `can_list`, `has_profiles`: if false, it does not list or has no profiles, though it has the methods.
    """

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        """Keep the items; return the ids of those that are durable now.

        Idempotent by id: an item that is stored already is not changed, and one that was forgotten, also during this
        call, is not stored. The ids of both are returned as durable. If an id is missing, a session gives the memory
        the items of that turn again later, and `save` raises LongTermMemoryError.
        """

    async def recall(
        self,
        scope: Scope,
        query: str,
        *,
        limit: int = 10,
        types: Collection[MemoryType] | None = None,
        as_of: float | None = None,
    ) -> Sequence[MemoryItem]:
        """Return the `limit` items that are the most relevant to the query, the best first, with their scores.

        An item that shares nothing with the query is not returned. Filters apply before the limit, so `limit` items are
        returned if that many match. The scope's session is not a filter. A memory that can recall only with reduced
        quality returns a `DegradedRecall`, which the run reports by an event.

        Args:
            types: the types of items to return; all if left out.
            as_of: return the items that were valid at this time, in seconds since the epoch: without later items,
                without items that were superseded by then, and without items that were changed later, as what they
                said then is not kept. If there are such, the result is a `DegradedRecall`: a lower bound of what was
                recalled then. What was deleted stays deleted. It counts as no use of the items.
        """

    async def update(
        self,
        scope: Scope,
        id: str,
        text: str | None = None,
        *,
        type: MemoryType | None = None,
        **changes: Unpack[ItemChanges],
    ) -> bool:
        """Change the given fields of an item: text, type, `ItemChanges`; return whether the item exists.

        `created_at` does not change. The category follows from the type. A resolved or expired item can still be
        changed by its id, and is recalled again once it is active and not expired. A topic or name that occurs only in
        the old text is removed with that text, unless it is given.

        Raises:
            InvalidMemoryError: the changed item would be invalid, or no change is given; nothing was changed.
        """

    async def forget(self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None) -> int:
        """Delete items and return how many existed.

        With `ids`, deletes these items. Without, deletes all items of the scope's session, or all items of the user if
        the scope has no session. An id that does not exist or belongs to another user is not an error.

        Deleted ids do not come back: a later `remember` does not store them. The same holds for given ids that are not
        stored yet. Built-in memories ensure this for 90 days. An item that a deleted item superseded is valid again,
        unless it is deleted too, or another item supersedes it.

        Args:
            turn_index: delete only the items of this turn of the scope's session. Not allowed together with `ids`.
        """

    async def close(self) -> None:
        """Close connections and files. Closing twice is fine."""


@runtime_checkable
class SessionsForgetting(Protocol):
    """A `LongTermMemory` that forgets many sessions together faster than one by one."""

    async def forget_sessions(self, sessions: Mapping[str, Collection[str]]) -> None:
        """Delete all items of these sessions, by user, as `forget` does. May be repeated, and is after an error."""


async def forget_sessions(memory: LongTermMemory, sessions: Mapping[str, Collection[str]]) -> None:
    """Have a memory forget sessions, by user; one by one if it is no `SessionsForgetting`."""
    if isinstance(memory, SessionsForgetting):
        await memory.forget_sessions(sessions)
        return
    for user_id, names in sessions.items():
        for name in names:
            await memory.forget(Scope(user_id=user_id, session_id=name))


def limits_categories(memory: object) -> bool:
    """Return whether `recall` and `remind` take `per_category`: the attribute `limits_categories`.

    With `per_category=True`, `limit` is how many items of each category to return, so that those of one category do
    not displace another's. Other memories are asked for more items, of which the first of each category are used.
    """
    return bool(getattr(memory, "limits_categories", False))


def first_of_each(items: Iterable[MemoryItem], limit: int) -> list[MemoryItem]:
    """Return the first `limit` items of each category, in their order."""
    room = dict.fromkeys(MemoryCategory, limit)
    selected = []
    for item in items:
        room[item.type.category] -= 1
        if room[item.type.category] >= 0:
            selected.append(item)
    return selected


def has_profiles(memory: object) -> bool:
    """Return whether the memory has user profiles: it is `Pinning`, and no attribute says that it has none."""
    return isinstance(memory, Pinning) and bool(getattr(memory, "has_profiles", True))


def can_list(memory: object) -> bool:
    """Return whether the memory is `Listing`, and no attribute says that it cannot list."""
    return isinstance(memory, Listing) and bool(getattr(memory, "can_list", True))


def is_read_only(memory: object) -> bool:
    """Return whether the memory is read-only, such as one of static facts."""
    return bool(getattr(memory, "read_only", False))


def is_local(memory: object) -> bool:
    """Return whether the memory or its store is a file on one machine: its attribute `is_local`, False if missing."""
    return bool(getattr(memory, "is_local", False))


def trouble_of(items: Sequence[MemoryItem]) -> str | None:
    """Return why a recall has reduced quality; None if it does not."""
    return items.trouble if isinstance(items, DegradedRecall) else None


def recalled(items: Sequence[MemoryItem], trouble: str | None) -> Sequence[MemoryItem]:
    """Return the recalled items, as a `DegradedRecall` if `trouble` is given."""
    return items if trouble is None else DegradedRecall(items, trouble)


def item_id(spans: Spans, blocks: Sequence[Block]) -> str:
    """Return the id of an item made of these blocks at these positions. It is deterministic and unique.

    It includes a digest of the blocks' content, since logs of another store may have the same numbers.
    """
    content = hashlib.sha256("\n".join(map(encode, blocks)).encode()).hexdigest()[:16]
    return ",".join(f"{log}:{start}-{stop}" for log, start, stop in spans) + f"~{content}"


def is_turn_item(item: MemoryItem) -> bool:
    """Return whether an item is what a session saved of a turn: its id is one that `item_id` makes of its source."""
    spans = ",".join(f"{log}:{start}-{stop}" for log, start, stop in item.source.spans)
    return bool(spans) and item.id.startswith(f"{spans}~")
