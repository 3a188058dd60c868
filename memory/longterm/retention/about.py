"""`About`: what memories and notes have about something, found by what items say and by the turns they come from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, cast

from turnwise.memory.background import on_thread
from turnwise.memory.conversation.views.notebook_display import record_html
from turnwise.memory.longterm.base import (
    Listing,
    LongTermMemory,
    MemoryItem,
    Mentioning,
    Scope,
    TurnPlace,
    can_list,
    is_turn_item,
)
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.retention.subject import Place, Subject, is_from

Reason: TypeAlias = Literal["words", "sentence", "turn", "similar"]
"""Why an item belongs to a subject: it has all its content words; it was made from the sentence that has them; it is
the turn from which such an item came; or a recall found it."""

MOST_CHARS = 600
"""How many characters of a longer text a mention shows, unless those that say the subject are more."""

RECALLED = 200
"""How many items a memory is asked for that neither finds mentions nor lists its items."""

_PAGE, _MOST_OF_PART = 1000, 2000


@dataclass(frozen=True, kw_only=True)
class Mention:
    """An item of a memory that belongs to a subject."""

    memory: str
    """The name of the memory."""
    id: str
    text: str = ""
    """What it says. Of a long text, the sentences that say the subject, or else the beginning."""
    why: Reason = "words"
    type: MemoryType | None = None
    session_id: str | None = None
    turn_index: int | None = None
    """The turn that it comes from."""
    is_turn: bool = False
    """Whether it is all of a turn, what else was said in it included."""
    in_profile: bool = False
    """Whether it is in the user's profile, so that each request has it."""
    created_at: float = 0.0
    """Seconds since the epoch; 0 if unknown."""

    _repr_html_ = record_html

    @property
    def turn(self) -> TurnPlace | None:
        """The turn that it comes from."""
        return None if self.session_id is None or self.turn_index is None else (self.session_id, self.turn_index)


@dataclass(frozen=True, kw_only=True)
class About:
    """What memories and notes have about a subject. `forget_about` deletes its `mentions` and `notes`."""

    mentions: tuple[Mention, ...] = ()
    """The items that belong to it for certain, by memory."""
    notes: tuple[str, ...] = ()
    """The sentences of the notes, or the values of notes in JSON, that say it."""
    similar: tuple[Mention, ...] = ()
    """Items that may belong to it: other facts of the same turns, and what a recall finds."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Why memories could not be searched, by their names; of the notes, as "notes"."""

    @property
    def ids(self) -> dict[str, list[str]]:
        """The ids of `mentions`, by memory."""
        return ids_of(self.mentions)

    def only(self, ids: Collection[str]) -> About:
        """Return this with the mentions that have one of these ids, also those that are merely similar."""
        chosen = tuple(mention for mention in (*self.mentions, *self.similar) if mention.id in ids)
        return replace(self, mentions=chosen, similar=())

    _repr_html_ = record_html


@dataclass(frozen=True, kw_only=True)
class Deleted:
    """What became of items that were to be deleted."""

    count: int
    """How many existed."""
    left: About = About()
    """What memories still have of the turns from which the items came; `forget_about(left)` deletes it, too."""


def ids_of(mentions: Iterable[Mention]) -> dict[str, list[str]]:
    """Return the ids of mentions, by memory."""
    ids: dict[str, list[str]] = {}
    for mention in mentions:
        ids.setdefault(mention.memory, []).append(mention.id)
    return ids


def turn_of(item: MemoryItem) -> TurnPlace | None:
    """Return the turn that an item comes from; None if it comes from none."""
    source = item.source
    return None if source.session_id is None or source.turn_index is None else (source.session_id, source.turn_index)


def places_in(item: MemoryItem, subject: Subject) -> list[Place]:
    """Return the places in an item's text that say the subject. Its name, aliases and topic count as words of each."""
    return subject.places(item.text, [name for name in (item.name, *item.aliases, item.topic) if name])


async def mentions(
    memory: LongTermMemory,
    scope: Scope,
    text: str | None = None,
    *,
    turns: Collection[TurnPlace] = (),
    ids: Collection[str] = (),
) -> Sequence[MemoryItem]:
    """Return what `Mentioning.mentions` returns, also of a memory that is not `Mentioning`.

    Of such a memory, superseded items are not found. If it is not `Listing` either, only the first `RECALLED` items
    that it recalls for the text are.

    Raises:
        InvalidInputError: the text has no content word.
    """
    if isinstance(memory, Mentioning):
        return await memory.mentions(scope, text, turns=turns, ids=ids)
    subject = None if text is None else Subject(text)

    def is_meant(item: MemoryItem) -> bool:
        return item.id in ids or turn_of(item) in turns or (subject is not None and bool(places_in(item, subject)))

    if not can_list(memory):
        recalled = [] if text is None else await memory.recall(scope, text, limit=RECALLED)
        return list(filter(is_meant, recalled))
    listing, items = cast(Listing, memory), list[MemoryItem]()
    cursor: str | None = None
    while True:
        page = await listing.list_items(scope, cursor=cursor, limit=_PAGE)
        items += await on_thread(list, filter(is_meant, page))
        if (cursor := page.cursor) is None:
            return items


def select(subject: Subject, items: Mapping[str, Sequence[MemoryItem]]) -> tuple[list[Mention], list[Mention]]:
    """Return the mentions of a subject, and the items that may belong to it.

    Args:
        items: by memory, the items that say the subject, and those from the same turns.
    """
    places: dict[tuple[str, str], list[Place]] = {}
    saying: dict[TurnPlace, list[tuple[MemoryItem, list[Place]]]] = {}
    named = [(memory, item) for memory, memory_items in items.items() for item in memory_items]
    for memory, item in named:
        if item_places := places_in(item, subject):
            places[memory, item.id] = item_places
            if turn := turn_of(item):
                saying.setdefault(turn, []).append((item, item_places))
    selected: list[Mention] = []
    similar: list[Mention] = []
    for memory, item in named:
        item_places = places.get((memory, item.id), [])
        others_of_turn = saying.get(turn, ()) if (turn := turn_of(item)) else ()
        why: Reason = "words" if item_places else _linked(item, subject, others_of_turn)
        (similar if why == "similar" else selected).append(mention_of(memory, item, why, item_places))
    return selected, similar


def _linked(item: MemoryItem, subject: Subject, saying: Sequence[tuple[MemoryItem, list[Place]]]) -> Reason:
    """Return why an item may belong to a subject that other items of the same turn say."""
    if saying and is_turn_item(item):
        return "turn"
    from_it = any(is_turn_item(other) and is_from(item.text, other.text, places) for other, places in saying)
    return "sentence" if from_it and subject.is_half_said(item.text) else "similar"


def mention_of(memory: str, item: MemoryItem, why: Reason, places: Sequence[Place] = ()) -> Mention:
    """Return the mention of an item of a memory."""
    return Mention(
        memory=memory,
        id=item.id,
        text=_passage(item.text, places),
        why=why,
        type=item.type,
        session_id=item.source.session_id,
        turn_index=item.source.turn_index,
        is_turn=is_turn_item(item),
        in_profile=item.pinned,
        created_at=item.created_at,
    )


def _passage(text: str, places: Sequence[Place]) -> str:
    """Return a text; of a long one the places, joined where they touch, or else the beginning."""
    if len(text) <= MOST_CHARS:
        return text
    joined: list[Place] = []
    for start, stop in places or [(0, MOST_CHARS)]:
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    parts = [text[start : min(stop, start + _MOST_OF_PART)] for start, stop in joined]
    before, after = [""] * (joined[0][0] > 0), [""] * (joined[-1][1] < len(text))
    return " […] ".join([*before, *parts, *after]).strip()
