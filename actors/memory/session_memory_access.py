"""`SessionMemoryAccess`: a session's memories, as tools and `session.memory` use them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import chain, zip_longest
from typing import Any, Unpack

from turnwise.actors.inference.attempt import reason
from turnwise.actors.memory.about import AboutMemories, SessionMemories
from turnwise.actors.memory.attached import MemorySlot
from turnwise.errors import (
    InvalidInputError,
    LongTermMemoryError,
    MemoryOverheardError,
    NoMemoryError,
    ReadOnlyMemoryError,
    shown,
)
from turnwise.memory.conversation.ledger import SpentOn
from turnwise.memory.longterm.base import (
    DegradedRecall,
    ItemChanges,
    MemoryItem,
    Pinning,
    Scope,
    Source,
    can_list,
    has_profiles,
    is_read_only,
    trouble_of,
)
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall.recalled_content import RecalledContent
from turnwise.memory.longterm.retention.about import About, Deleted
from turnwise.memory.stores.base import Page
from turnwise.memory.values.ids import new_id
from turnwise.memory.working.memory import WorkingMemory


class SessionMemoryAccess:
    """See `MemoryAccess`. Texts are saved in the first writable memory; all memories are searched.

    Args:
        scope: the user, session and agent whose items are used.
        is_reading: if true, nothing may be saved, changed or deleted.
        is_overheard: if true, nothing that memories and notes have may be read, since others would see it too: it is
            for the tools of a shared session, whose results are part of the conversation.
        all_memories: where `forget_about` deletes; if left out, in `slots` and `working`, which have got everything.
        billed: returns a context in which the model calls of memories are charged, under a kind.
    """

    def __init__(
        self,
        scope: Scope,
        slots: Sequence[MemorySlot],
        working: WorkingMemory | None,
        *,
        turn_index: int | None = None,
        is_reading: bool = False,
        is_overheard: bool = False,
        all_memories: SessionMemories | None = None,
        billed: Callable[[SpentOn], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        self._scope = scope
        self._slots = slots
        self._working = working
        self._source = Source(session_id=scope.session_id, turn_index=turn_index)
        self._is_reading = is_reading
        self._is_overheard = is_overheard
        self._billed = billed
        self._all_memories = all_memories or SessionMemories(slots, working)

    async def save(
        self,
        text: str,
        *,
        type: MemoryType = MemoryType.GENERAL,
        topic: str | None = None,
        id: str | None = None,
        name: str | None = None,
        aliases: Sequence[str] = (),
        expires_at: float | None = None,
        memory: str | None = None,
    ) -> str:
        """See `MemoryAccess.save`."""
        slot = self._writable("remember", memory)[0]
        item = MemoryItem(
            id=id or new_id(),
            text=text,
            type=type,
            topic=topic,
            name=name,
            aliases=tuple(aliases),
            source=self._source,
            created_at=time.time(),
            expires_at=expires_at,
        )
        with self._billed("extraction"):
            saved = await slot.memory.remember(self._scope, [item])
        if item.id not in saved:
            raise LongTermMemoryError(f"{slot.name} did not save {item.id!r}")
        return item.id

    async def recall(
        self, query: str, *, limit: int = 10, types: Collection[MemoryType] | None = None, as_of: float | None = None
    ) -> list[MemoryItem]:
        """See `MemoryAccess.recall`. The best items of all memories come first, then the second best, and so on.

        Items with a score of 0 come last. Each item names its memory.
        """
        self._check_private("recall")
        if not self._slots:
            raise self._no_memory()
        searches = [
            slot.memory.recall(self._scope, query, limit=limit, types=types, as_of=as_of) for slot in self._slots
        ]
        with self._billed("recall"):
            results = await asyncio.gather(*searches, return_exceptions=True)
        failed = [result for result in results if isinstance(result, BaseException)]
        if len(failed) == len(results):
            names = zip(self._slots, failed, strict=True)
            raise LongTermMemoryError("; ".join(f"{slot.name}: {reason(error)}" for slot, error in names))
        named = [
            [replace(item, memory=slot.name) for item in result]
            for slot, result in zip(self._slots, results, strict=True)
            if not isinstance(result, BaseException)
        ]
        ranked = [item for item in chain.from_iterable(zip_longest(*named)) if item is not None]
        ranked.sort(key=lambda item: item.score == 0)
        by_text: dict[str, MemoryItem] = {}
        for item in ranked:
            by_text.setdefault(item.text, item)
        troubles = [
            f"{slot.name}: {trouble}"
            for slot, result in zip(self._slots, results, strict=True)
            if not isinstance(result, BaseException) and (trouble := trouble_of(result))
        ]
        best = list(by_text.values())[:limit]
        return DegradedRecall(best, "; ".join(troubles)) if troubles else best

    async def recall_apart(self, query: str, *, limit: int = 10) -> RecalledContent:
        """Return up to `limit` items of each memory that are relevant to the query, by kinds of memories.

        For programs, not for tools.
        """
        searches = [slot.memory.recall(self._scope, query, limit=limit) for slot in self._slots]
        with self._billed("recall"):
            results = await asyncio.gather(*searches, return_exceptions=True)
        by_section: dict[str, list[MemoryItem]] = {}
        failed: dict[str, str] = {}
        for slot, result in zip(self._slots, results, strict=True):
            if isinstance(result, BaseException):
                failed[slot.name] = reason(result)
            else:
                by_section.setdefault(slot.section or "", []).extend(replace(item, memory=slot.name) for item in result)
        static, vector = (tuple(by_section.pop(section, ())) for section in ("static", "vector"))
        extracted = tuple(item for items in by_section.values() for item in items)
        return RecalledContent(static=static, extracted=extracted, vector=vector, failed=failed)

    async def list_items(
        self,
        *,
        types: Collection[MemoryType] | None = None,
        limit: int = 100,
        cursor: str | None = None,
        memory: str | None = None,
    ) -> Page[MemoryItem]:
        """See `MemoryAccess.list_items`.

        Reads one memory after another; once the page is full, asks the next one whether it has any items.
        """
        self._check_private("list_items")
        slots = [slot for slot in self._find_slots(memory) if memory is not None or not is_read_only(slot.memory)]
        listing = {slot.name: slot.memory for slot in slots if can_list(slot.memory)}
        if not listing:
            raise NoMemoryError(self._scope.session_id or "", "memory that can list its items")
        name, _, inner = (cursor or f"{next(iter(listing))}:").partition(":")
        if name not in listing or (cursor is not None and ":" not in cursor):
            raise InvalidInputError("cursor", shown(cursor), "pass the cursor of the previous page, unchanged")
        names = [*listing]
        items: list[MemoryItem] = []
        for memory_name in names[names.index(name) :]:
            listing_memory: Any = listing[memory_name]
            page = await listing_memory.list_items(
                self._scope, types=types, cursor=inner or None, limit=limit - len(items) or 1
            )
            if page.items and len(items) == limit:
                return Page(tuple(items), f"{memory_name}:")
            items += [replace(item, memory=memory_name) for item in page]
            if page.cursor is not None:
                return Page(tuple(items), f"{memory_name}:{page.cursor}")
            inner = ""
        return Page(tuple(items), None)

    async def update(
        self, id: str, text: str | None = None, *, type: MemoryType | None = None, **changes: Unpack[ItemChanges]
    ) -> bool:
        """See `MemoryAccess.update`. Memories are tried in order until one has the item; failures are skipped."""
        failure: Exception | None = None
        for slot in self._writable("update"):
            try:
                if await slot.memory.update(self._scope, id, text, type=type, **changes):
                    return True
            except Exception as error:  # noqa: BLE001 - another memory may have the item; the error is raised if none has it
                failure = failure or error
        if failure:
            raise failure
        return False

    async def pin(self, id: str, pinned: bool) -> bool:
        """Pin an item to the user's profile, or unpin it; return whether it exists and is valid.

        For programs, not for tools. Memories are tried in order until one has the item.
        """
        memories = [slot.memory for slot in self._writable("pin") if has_profiles(slot.memory)]
        if not memories:
            raise NoMemoryError(self._scope.session_id or "", "memory with profiles")
        for memory in memories:
            if isinstance(memory, Pinning) and await memory.pin(self._scope, id, pinned):
                return True
        return False

    async def delete(self, ids: Collection[str]) -> Deleted:
        """See `MemoryAccess.delete`. All memories are tried, even if one fails."""
        slots = self._writable("forget")
        if not ids:
            return Deleted(count=0)
        about = AboutMemories(self._scope, SessionMemories(slots))
        turns = await about.turns_of(ids)
        results = await asyncio.gather(
            *(slot.memory.forget(self._scope, ids) for slot in slots), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        count = min(len(set(ids)), sum(map(int, results)))  # type: ignore[arg-type]
        return Deleted(count=count, left=await about.left_of(turns))

    async def find_about(self, text: str) -> About:
        """See `MemoryAccess.find_about`."""
        self._check_private("find_about")
        return await self._about().find(text)

    async def forget_about(self, what: str | About) -> About:
        """See `MemoryAccess.forget_about`."""
        self._check_private("forget_about")
        about = self._about()
        if self._is_reading:
            raise ReadOnlyMemoryError("the session's memory", "forget_about")
        return await about.forget(what)

    async def read_notes(self) -> str:
        """See `MemoryAccess.read_notes`."""
        self._check_private("read_notes")
        return await self._notes().read(self._scope)

    async def replace_notes(self, content: Any) -> str:
        """See `MemoryAccess.replace_notes`."""
        return await self._notes(changes=True).replace(self._scope, content)

    async def merge_notes(self, content: Any) -> str:
        """See `MemoryAccess.merge_notes`."""
        self._check_private("merge_notes")
        return await self._notes(changes=True).merge(self._scope, content)

    async def clear_notes(self) -> bool:
        """See `MemoryAccess.clear_notes`."""
        return await self._notes(changes=True).clear(self._scope)

    def _about(self) -> AboutMemories:
        memories = self._all_memories
        if not (memories.writable or memories.working):
            if not memories.slots:
                raise self._no_memory()
            raise ReadOnlyMemoryError(memories.slots[0].name, "forget_about")
        return AboutMemories(self._scope, memories)

    def _find_slots(self, name: str | None) -> Sequence[MemorySlot]:
        """Return the memory of this name, in a list; all memories if it is None."""
        if not self._slots:
            raise self._no_memory()
        slots = [slot for slot in self._slots if name in (None, slot.name)]
        if not slots:
            names = ", ".join(slot.name for slot in self._slots)
            raise InvalidInputError("memory", shown(name), f"must be one of {names}")
        return slots

    def _writable(self, verb: str, name: str | None = None) -> list[MemorySlot]:
        slots = self._find_slots(name)
        writable = [slot for slot in slots if not is_read_only(slot.memory)]
        if self._is_reading or not writable:
            raise ReadOnlyMemoryError(slots[0].name if not writable else "the session's memory", verb)
        return writable

    def _notes(self, *, changes: bool = False) -> WorkingMemory:
        if self._working is None:
            raise NoMemoryError(self._scope.session_id or "", "working memory")
        if changes and self._is_reading:
            raise ReadOnlyMemoryError("the session's working memory", "replace")
        return self._working

    def _check_private(self, verb: str) -> None:
        if self._is_overheard:
            raise MemoryOverheardError(self._scope.user_id, verb)

    def _no_memory(self) -> NoMemoryError:
        return NoMemoryError(self._scope.session_id or "", "long-term memory")
