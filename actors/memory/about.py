"""`AboutMemories`: finds and deletes what the memories and notes of a session have about something."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias, cast

from turnwise.actors.inference.attempt import reason
from turnwise.actors.memory.attached import MemorySlot
from turnwise.errors import InvalidInputError, NotForgottenError, shown
from turnwise.memory.longterm.base import MemoryItem, Reminding, Scope, TurnPlace, is_read_only, is_turn_item
from turnwise.memory.longterm.retention.about import (
    About,
    Mention,
    ids_of,
    mention_of,
    mentions,
    places_in,
    select,
    turn_of,
)
from turnwise.memory.longterm.retention.subject import Subject
from turnwise.memory.working.memory import WorkingMemory

SIMILAR = 10
"""How many items of each memory a recall adds as similar."""

NOTES = "notes"
"""What reports and errors call the working memory."""

Unsaved: TypeAlias = Callable[[], Awaitable[Mapping[str, Sequence[MemoryItem]]]]
"""Returns the items of turns that memories have not got yet, by the memory's name."""


async def nothing_unsaved() -> Mapping[str, Sequence[MemoryItem]]:
    """Return that memories have all turns."""
    return {}


@dataclass(frozen=True)
class SessionMemories:
    """All memories and notes of a session, and what memories are to be given later."""

    slots: Sequence[MemorySlot]
    """All memories, also those that only an overflow strategy writes to."""
    working: WorkingMemory | None = None
    unsaved: Unsaved = nothing_unsaved

    @property
    def writable(self) -> list[MemorySlot]:
        """The memories that can be written."""
        return [slot for slot in self.slots if not is_read_only(slot.memory)]


class AboutMemories:
    """Finds what a session's memories and notes have about a subject, and deletes it.

    A deletion goes step by step, each in all memories at once: first it has memories refuse the turns that they may
    still be given, then it deletes the items that were found by their turns, and last those that say the subject, by
    which the others were found. So a deletion that a kill or a failing memory cuts off is completed by the same call:
    what leads to a remaining item remains, too.

    Args:
        scope: the user, session and agent whose items are used.
        memories: the memories and notes. Read-only memories are left alone.
    """

    def __init__(self, scope: Scope, memories: SessionMemories) -> None:
        self._scope = scope
        self._slots = {slot.name: slot for slot in memories.writable}
        self._working = memories.working
        self._unsaved = memories.unsaved

    async def find(self, text: str) -> About:
        """Return what memories and notes have about the subject of a text.

        Raises:
            InvalidInputError: the text has no content word.
        """
        subject = Subject(text)
        unsaved = await self._unsaved()
        items, failed = await self._search(text)
        saying = [*chain.from_iterable(items.values()), *_saying(unsaved, subject)]
        turns = {turn for item in saying if (turn := turn_of(item))}
        of_turns, more_failed = await self._search(turns=turns, names=items)
        failed |= more_failed
        for name, turn_items in of_turns.items():
            to_come = [item for item in unsaved.get(name, ()) if turn_of(item) in turns - _saved_turns(turn_items)]
            items[name] = list({item.id: item for item in (*items[name], *turn_items, *to_come)}.values())
        searched = {name: memory_items for name, memory_items in items.items() if name not in failed}
        selected, others = select(subject, searched)
        recalled, profile, notes = await asyncio.gather(
            self._recall(text, searched), self._profile(searched), self._notes_about(subject, failed)
        )
        known = {(mention.memory, mention.id) for mention in (*selected, *others)}
        others += [mention for mention in recalled if (mention.memory, mention.id) not in known]
        return About(mentions=_marked(selected, profile), notes=notes, similar=_marked(others, profile), failed=failed)

    async def forget(self, what: str | About) -> About:
        """Delete what `find` returns for a text, or what an `About` has; return what was deleted.

        Raises:
            InvalidInputError: the text has no content word, or the session has no writable memory of this name.
            NotForgottenError: a memory failed. If it could not be searched for the text, nothing was deleted.
        """
        about = await self.find(what) if isinstance(what, str) else what
        for mention in about.mentions:
            if mention.memory not in self._slots:
                names = ", ".join(self._slots) or "none"
                raise InvalidInputError("memory", shown(mention.memory), f"must be one of {names}")
        notes: dict[str, list[str]] = {NOTES: []} if about.notes else {}
        if isinstance(what, str) and about.failed:
            left = {**about.ids, **notes, **{name: [] for name in about.failed}}
            raise NotForgottenError(_listed(about.failed), left, {})
        gone, left, failed = await self._delete_in_steps(about.mentions)
        if error := await self._remove_notes(about.notes):
            failed, notes = {**failed, NOTES: error}, {}
        if failed:
            raise NotForgottenError(_listed(failed), {name: [] for name in failed} | left, ids_of(gone) | notes)
        return replace(about, mentions=tuple(gone))

    async def _delete_in_steps(
        self, all_mentions: Sequence[Mention]
    ) -> tuple[list[Mention], dict[str, list[str]], dict[str, str]]:
        """Delete items as the class says; return those deleted, the ids of those left, and why memories failed.

        What comes from a turn of which a step could not delete something is left by the later steps.
        """
        refused, failed = await self._to_refuse(all_mentions)
        stuck = {mention.turn for mention in all_mentions if failed and mention.is_turn}
        found_by_turn = [mention for mention in all_mentions if mention.why in ("turn", "sentence")]
        others = [mention for mention in all_mentions if mention.why not in ("turn", "sentence")]
        gone: list[Mention] = []
        left: list[Mention] = []
        for step in (refused, found_by_turn, others):
            ready = [mention for mention in step if mention.turn is None or mention.turn not in stuck]
            errors = await self._delete(ids_of(ready))
            failed |= errors
            stuck |= {mention.turn for mention in ready if mention.memory in errors}
            gone += [mention for mention in ready if mention.memory not in errors and step is not refused]
            left += [mention for mention in step if mention not in ready or mention.memory in errors]
        return gone, ids_of(left), failed

    async def _remove_notes(self, parts: Sequence[str]) -> str | None:
        """Remove parts of the notes; return why that failed."""
        try:
            if parts and self._working is not None:
                await self._working.remove(self._scope, parts)
        except Exception as error:  # noqa: BLE001 - it is reported together with what became of the memories
            return reason(error)
        return None

    async def turns_of(self, ids: Collection[str]) -> set[TurnPlace]:
        """Return the turns from which the items with these ids come, as far as memories can be asked."""
        items, _ = await self._search(ids=ids)
        return {turn for item in chain.from_iterable(items.values()) if (turn := turn_of(item))}

    async def left_of(self, turns: Collection[TurnPlace]) -> About:
        """Return the items that memories have of whole turns."""
        items, failed = await self._search(turns=turns) if turns else ({}, {})
        named = [(name, item) for name, turn_items in items.items() for item in turn_items if is_turn_item(item)]
        return About(mentions=tuple(mention_of(name, item, "turn") for name, item in named), failed=failed)

    async def _search(
        self,
        text: str | None = None,
        *,
        turns: Collection[TurnPlace] = (),
        ids: Collection[str] = (),
        names: Iterable[str] | None = None,
    ) -> tuple[dict[str, Sequence[MemoryItem]], dict[str, str]]:
        """Return what `mentions` returns for each memory, or for those of these names, and why others failed."""
        slots = [self._slots[name] for name in (self._slots if names is None else names)]
        results = await asyncio.gather(
            *(mentions(slot.memory, self._scope, text, turns=turns, ids=ids) for slot in slots), return_exceptions=True
        )
        items: dict[str, Sequence[MemoryItem]] = {}
        failed: dict[str, str] = {}
        for slot, result in zip(slots, results, strict=True):
            if isinstance(result, BaseException):
                failed[slot.name] = reason(result)
            else:
                items[slot.name] = result
        return items, failed

    async def _to_refuse(self, all_mentions: Sequence[Mention]) -> tuple[list[Mention], dict[str, str]]:
        """Return the turns that memories may still be given, as a mention in each of these memories.

        That is a memory without any item made of a turn's blocks: it may have made none, or not have got the turn.
        Deleting the turn's id there keeps it from coming later.
        """
        turn_mentions = [mention for mention in all_mentions if mention.is_turn and mention.turn]
        turns = {mention.turn for mention in turn_mentions if mention.turn}
        if not turns:
            return [], {}
        items, failed = await self._search(turns=turns)
        refused = {
            (name, mention.id): replace(mention, memory=name)
            for name, turn_items in items.items()
            for mention in turn_mentions
            if mention.memory != name and mention.turn not in _saved_turns(turn_items)
        }
        return list(refused.values()), failed

    async def _delete(self, ids: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Delete items of memories; return why memories failed, by their names."""
        results = await asyncio.gather(
            *(self._slots[name].memory.forget(self._scope, ids_of_memory) for name, ids_of_memory in ids.items()),
            return_exceptions=True,
        )
        return {
            name: reason(error) for name, error in zip(ids, results, strict=True) if isinstance(error, BaseException)
        }

    async def _recall(self, text: str, names: Iterable[str]) -> list[Mention]:
        """Return what memories recall for a text; nothing of one that fails, since they were searched already."""
        searched = [*names]
        searches = [self._slots[name].memory.recall(self._scope, text, limit=SIMILAR) for name in searched]
        results = await asyncio.gather(*searches, return_exceptions=True)
        return [
            mention_of(name, item, "similar")
            for name, result in zip(searched, results, strict=True)
            if not isinstance(result, BaseException)
            for item in result
        ]

    async def _profile(self, names: Iterable[str]) -> set[tuple[str, str]]:
        """Return the items of the user's profile, each by its memory's name and its id."""
        profiled = [name for name in names if self._slots[name].has_profiles]
        searches = [cast(Reminding, self._slots[name].memory).remind(self._scope, "", limit=1) for name in profiled]
        results = await asyncio.gather(*searches, return_exceptions=True)
        return {
            (name, item.id)
            for name, result in zip(profiled, results, strict=True)
            if not isinstance(result, BaseException)
            for item in result.profile
        }

    async def _notes_about(self, subject: Subject, failed: dict[str, str]) -> tuple[str, ...]:
        if self._working is None:
            return ()
        try:
            return await self._working.about(self._scope, subject)
        except Exception as error:  # noqa: BLE001 - it is reported together with the memories
            failed[NOTES] = reason(error)
            return ()


def _saved_turns(items: Iterable[MemoryItem]) -> set[TurnPlace | None]:
    """Return the turns of which a memory has made these items; what a tool saved during a turn has no blocks of it."""
    return {turn_of(item) for item in items if item.source.spans}


def _saying(unsaved: Mapping[str, Sequence[MemoryItem]], subject: Subject) -> list[MemoryItem]:
    items = {item.id: item for item in chain.from_iterable(unsaved.values())}
    return [item for item in items.values() if places_in(item, subject)]


def _marked(mentions: Iterable[Mention], profile: Collection[tuple[str, str]]) -> tuple[Mention, ...]:
    """Return mentions that say whether they are in the profile."""
    return tuple(
        replace(mention, in_profile=mention.in_profile or (mention.memory, mention.id) in profile)
        for mention in mentions
    )


def _listed(failed: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in failed.items())
