"""Long-term memory: what outlives a conversation's window."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict, Unpack, runtime_checkable

from turnwise.memory.conversation.blocks import AnyBlock, Block, encode
from turnwise.memory.conversation.spans import Spans
from turnwise.memory.longterm.types import MemoryType

Status = Literal["active", "resolved"]
"""Whether an item still matters. What is resolved, as a goal that was reached, is not recalled any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose memory it is. It comes from the session, never from a model's arguments."""

    user_id: str
    session_id: str | None = None
    """None for what belongs to all of the user's sessions."""
    agent: str | None = None
    """None for what belongs to all of the user's agents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where an item comes from."""

    session_id: str | None = None
    """None for what comes from no session, such as what a program was told."""
    turn_index: int | None = None
    spans: Spans = ()
    """Its blocks, by log and position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryItem:
    """Something to remember, or that is remembered. A user has one item of an `id`."""

    id: str
    text: str
    type: MemoryType = MemoryType.GENERAL
    topic: str | None = None
    """What it is about, in a word or two."""
    name: str | None = None
    """Its own name, as of a person, a pet or a product. A query that has it finds this item before others."""
    aliases: tuple[str, ...] = ()
    """Other names of the same."""
    source: Source = Source()
    blocks: tuple[AnyBlock, ...] = field(default=(), compare=False)
    """What was said, for memories that make more of it than the text; not kept."""
    created_at: float = 0.0
    """Seconds since the epoch, UTC; 0 if nobody knows."""
    updated_at: float | None = None
    """When it was changed last. A pin is no change."""
    superseded_at: float | None = None
    """Since when another holds in its place. It is then found only by a look into the past."""
    superseded_by: str | None = None
    """The id of that other."""
    expires_at: float | None = None
    """From when on it is not recalled, in seconds since the epoch; never if None."""
    status: Status = "active"
    pinned: bool = False
    """Whether it is in its user's profile, whatever its type. See `ProfiledRecall`."""
    uses: int = field(default=0, compare=False)
    """How often it was recalled for what was asked, or said again, where that was counted: at most once a second, and
    only where the profile of its user may not fit a request. See `profile_of`."""
    score: float | None = field(default=None, compare=False)
    """How well it bears on what was asked, for an item that was recalled: higher is better, from 0 to 1. Memories that
    rank by `turnwise.memory.longterm.search.ranking` have one scale."""
    words: tuple[str, ...] = field(default=(), compare=False)
    """The words of what was asked that it has, for an item that was recalled."""
    passage: str | None = field(default=None, compare=False)
    """What of a long text bears on what was asked, for an item that was recalled; the whole text if None."""
    memory: str | None = field(default=None, compare=False)
    """The name of the memory that it was recalled from, if a session recalled it."""


class ItemChanges(TypedDict, total=False):
    """What may be changed of an item beside its text and type. What is left out stays, None and () take away."""

    topic: str | None
    name: str | None
    aliases: Sequence[str]
    status: Status
    expires_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledRecall:
    """What a memory has for every request of a user, and what it has for this one."""

    profile: Sequence[MemoryItem]
    """Who the user is and how they want to be answered: first what matters most, if not all of it fits."""
    found: Sequence[MemoryItem]
    """As `recall` returns it. What is in the profile may be in it too."""


@runtime_checkable
class Profiled(Protocol):
    """A memory that has a profile of each user may also have these."""

    async def recall_with_profile(
        self, scope: Scope, query: str, *, limit: int = 10, types: Collection[MemoryType] | None = None
    ) -> ProfiledRecall:
        """Return the profile, whatever the query says, and what bears on the query, if it says anything."""

    async def pin(self, scope: Scope, id: str, pinned: bool) -> bool:
        """Take an item that the scope sees into the profile, or no longer; return whether it holds now."""


class DegradedRecall(list[MemoryItem]):
    """What a memory recalled where it could not do as well as it should, such as by words without vectors.

    The reason goes with the answer, so that the run which asked is told of it, and no other.

    Args:
        items: what was recalled nevertheless.
        trouble: why it may be less, or ranked worse, than it should be.
    """

    def __init__(self, items: Iterable[MemoryItem], trouble: str) -> None:
        super().__init__(items)
        self.trouble = trouble

    def __reduce__(self) -> tuple[Any, ...]:
        return DegradedRecall, (list(self), self.trouble)


class LongTermMemory(Protocol):
    """Keeps items for those whom a scope names, and finds them again.

    An item of a semantic type is its user's; one of another type is the scope's agent's, or, where none is named, for
    all of the user's agents. Who recalls sees what is the user's and what is the scope's agent's, nobody else's.

    A memory that nobody may write has an attribute `read_only` that is true; see `is_read_only`. One that is kept in
    files has an `is_local` that is true, so that its actor stays on their node. Each verb may raise; one memory's
    failure is no other's.
    """

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        """Keep the items; return the ids of those that are durable now.

        Idempotent by id: an item that is there, also one that was forgotten while it was given, is left as it is.
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
        """Return up to `limit` items that bear on the query, the best first; none if nothing does.

        Filters come first, so there are `limit` items if so many bear on it. The scope's session filters nothing.
        A memory that cannot do as well as it should returns a `DegradedRecall`, and the run says so by an event.

        Args:
            types: only those; all if left out.
            as_of: what held at this time, in seconds since the epoch: neither what came later nor what was superseded
                by then.
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
        """Change what is given of an item: text, type, `ItemChanges`; return whether it was there.

        `created_at` stays. The category goes with the type. What is resolved or expired can be changed by its id still,
        and is recalled again if it is active and does not expire. A topic or name that only the old text has is taken
        away with that text, unless it is given.

        Raises:
            InvalidMemoryError: it could not be kept so, or nothing is given; nothing was changed.
        """

    async def forget(self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None) -> int:
        """Delete these items, or, without ids, all that are from the scope's session, or, without one, the user's.

        Returns how many were there. An id that is not there, or is another's, is no error.

        Args:
            turn_index: only those from this turn of the scope's session. Given without ids only.
        """

    async def close(self) -> None:
        """Let go of what it holds. Closing twice is fine."""


def has_profiles(memory: object) -> bool:
    """Return whether the memory has profiles of users: it is `Profiled`, and no attribute of it says otherwise."""
    return isinstance(memory, Profiled) and bool(getattr(memory, "has_profiles", True))


def is_read_only(memory: object) -> bool:
    """Return whether nobody may write to the memory, as to one of static facts."""
    return bool(getattr(memory, "read_only", False))


def is_local(memory: object) -> bool:
    """Return whether the memory, or what it is kept in, is in a file of one machine.

    One that says nothing of it, by an attribute `is_local`, is not.
    """
    return bool(getattr(memory, "is_local", False))


def trouble_of(items: Sequence[MemoryItem]) -> str | None:
    """Return why a recall was not as good as it should be; None if it was."""
    return items.trouble if isinstance(items, DegradedRecall) else None


def recalled(items: Sequence[MemoryItem], trouble: str | None) -> Sequence[MemoryItem]:
    """Return the answer of a recall, with its trouble if there is one."""
    return items if trouble is None else DegradedRecall(items, trouble)


def item_id(spans: Spans, blocks: Sequence[Block]) -> str:
    """Return the id of an item that is made of these blocks, which stand there: the same each time, and no others'.

    It also says what they hold, since another store numbers its logs likewise.
    """
    held = hashlib.sha256("\n".join(map(encode, blocks)).encode()).hexdigest()[:16]
    return ",".join(f"{log}:{start}-{stop}" for log, start, stop in spans) + f"~{held}"
