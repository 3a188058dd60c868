"""`RemoteMemory`: a long-term memory in a process of its own, as every other process uses it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Unpack, cast

from turnwise.actors.hosting.runtime import MemoryProcess
from turnwise.actors.hosting.wire import GaveUp, Refused
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.wire_version import packed, unpacked_answer
from turnwise.errors import ConfigError, LongTermMemoryError
from turnwise.memory.longterm.base import (
    ItemChanges,
    Label,
    LongTermMemory,
    MemoryItem,
    Reminder,
    Scope,
    TurnPlace,
    can_list,
    has_profiles,
    is_read_only,
    label_of,
)
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.model_usage import bill_model_usage
from turnwise.memory.longterm.retention.deletion import Erasure
from turnwise.memory.stores.base import Page
from turnwise.strategies.flush_to_memory import FlushToMemory
from turnwise.strategies.strategy import OverflowStrategy
from turnwise.strategies.summarize import Summarize

FAILURES, REST_S = 3, 5.0
"""After so many failures in a row, a memory is not called for so many seconds."""

AWAY_S = 1.0
"""A process that takes longer than this to answer at all, in seconds, was away: calls to it failed for that reason."""


class RemoteMemory:
    """A long-term memory in a process of its own: managers that pass the same settings share it.

    Each verb is one request, bounded in time. After repeated failures the memory gets no requests for some seconds, so
    that no run waits for it; the caller keeps what it could not save. If its process was away, as when its node died,
    it gets requests again as soon as that is back.

    Args:
        memory: its settings.
        process: the process that has it.
        deadline_s, recall_s: how long a call, and one to recall, may take, in seconds.
    """

    limits_categories = True
    """See `base.limits_categories`: its host asks a memory that cannot do so for more items."""

    def __init__(
        self, memory: LongTermMemory, process: MemoryProcess, *, deadline_s: float = 60.0, recall_s: float = 5.0
    ) -> None:
        self._set_up(
            type(memory).__name__,
            label_of(memory),
            process,
            read_only=is_read_only(memory),
            has_profiles=has_profiles(memory),
            can_list=can_list(memory),
            deadline_s=deadline_s,
            recall_s=recall_s,
        )

    def _set_up(
        self,
        kind: str,
        label: Label,
        process: MemoryProcess,
        *,
        read_only: bool,
        has_profiles: bool,
        can_list: bool,
        deadline_s: float,
        recall_s: float,
    ) -> None:
        self.kind = kind
        """The name of the memory's class."""
        self.label = label
        self.name = label.name or kind
        self.read_only = read_only
        self.has_profiles = has_profiles
        """Whether it has profiles of users, and pins."""
        self.can_list = can_list
        self.process = process
        self._deadline_s = deadline_s
        self._recall_s = recall_s
        self._failures = 0
        self._rests_until = 0.0
        self._watching: asyncio.Task[None] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        attributes = ("kind", "label", "read_only", "has_profiles", "can_list", "process")
        values: dict[str, Any] = {name: getattr(self, name) for name in attributes}
        return partial(_elsewhere, **values, deadline_s=self._deadline_s, recall_s=self._recall_s), ()

    def __repr__(self) -> str:
        return f"<{self.name} in its process>"

    def __identity__(self) -> tuple[object, ...]:
        """See `identity`."""
        return self.process, self._deadline_s, self._recall_s

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        return cast(Collection[str], await self._ask("remember", scope=scope, items=tuple(items)))

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
        filters = {"limit": limit, "types": types, "as_of": as_of}
        if per_category:
            filters["per_category"] = True
        items = await self._ask("recall", scope=scope, query=query, **filters)
        return cast(Sequence[MemoryItem], items)

    async def remind(
        self,
        scope: Scope,
        prompt: str,
        *,
        limit: int = 10,
        types: Collection[MemoryType] | None = None,
        as_of: float | None = None,
        per_category: bool = False,
    ) -> Reminder:
        filters: dict[str, Any] = {"limit": limit, "types": types, "per_category": per_category}
        if as_of is not None:
            filters["as_of"] = as_of
        return cast(Reminder, await self._ask("remind", scope=scope, prompt=prompt, **filters))

    async def pin(self, scope: Scope, id: str, pinned: bool) -> bool:
        return self.has_profiles and bool(await self._ask("pin", scope=scope, id=id, pinned=pinned))

    async def update(
        self,
        scope: Scope,
        id: str,
        text: str | None = None,
        *,
        type: MemoryType | None = None,
        **changes: Unpack[ItemChanges],
    ) -> bool:
        return bool(await self._ask("update", scope=scope, id=id, text=text, type=type, **changes))

    async def list_items(
        self,
        scope: Scope,
        *,
        types: Collection[MemoryType] | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[MemoryItem]:
        return cast(
            "Page[MemoryItem]", await self._ask("list_items", scope=scope, types=types, cursor=cursor, limit=limit)
        )

    async def mentions(
        self,
        scope: Scope,
        text: str | None = None,
        *,
        turns: Collection[TurnPlace] = (),
        ids: Collection[str] = (),
    ) -> Sequence[MemoryItem]:
        """See `about.mentions`."""
        return cast(
            Sequence[MemoryItem],
            await self._ask("mentions", scope=scope, text=text, turns=tuple(turns), ids=tuple(ids)),
        )

    async def forget(self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None) -> int:
        return int(await self._ask("forget", scope=scope, ids=ids, turn_index=turn_index))

    async def forget_sessions(self, sessions: Mapping[str, Collection[str]]) -> None:
        """See `SessionsForgetting`. Ask for some hundred at once, which take less than the deadline."""
        await self._ask("forget_sessions", sessions=sessions)

    async def erase(
        self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None
    ) -> Erasure:
        """See `deletion.erase`.

        A call that takes longer than the deadline goes on; the same call again waits for the same answer.
        """
        return cast(Erasure, await self._ask("erase", scope=scope, ids=ids, turn_index=turn_index))

    def warm(self) -> None:
        """Let its process start and the memory be opened, without waiting for it."""
        self.process.warm(packed(("warm", {}, None)))

    async def close(self) -> None:
        """Do nothing: the process serves others too."""

    async def _ask(self, verb: str, /, **arguments: Any) -> Any:
        if (left_s := self._rests_until - time.monotonic()) > 0:
            raise LongTermMemoryError(f"{self.name} has failed {self._failures} times: left alone for {left_s:.1f} s")
        is_recall = verb in _RECALLS
        waits_s = self._recall_s if is_recall else self._deadline_s
        request = packed((verb, arguments, waits_s if verb in _GIVEN_UP else None))
        try:
            answer, spent = unpacked_answer(await self._bounded(request, waits_s, is_recall))
            for usage, model in spent:
                bill_model_usage(usage, model)
            if isinstance(answer, GaveUp):  # a busy caller may notice the end of its own time last
                raise self._late(waits_s)
        except LongTermMemoryError:
            self._failures += 1
            if self._watching is None or self._watching.done():
                self._watching = asyncio.create_task(self._watch_process())
            if self._failures >= FAILURES:
                self._rests_until = time.monotonic() + REST_S
            raise
        self._failures = 0  # a refusal is an answer, too
        if isinstance(answer, Refused):
            raise answer.error
        return answer

    async def _watch_process(self) -> None:
        """End the rest as soon as the process answers, if it was away. Else the memory itself has failed, and rests."""
        began = time.monotonic()
        with suppress(Exception):  # then it is not back, and the next failure watches it again
            async with asyncio.timeout(self._deadline_s):
                await self.process.ask(packed(("warm", {}, None)), is_recall=False)
            if time.monotonic() - began > AWAY_S:
                self._failures, self._rests_until = 0, 0.0

    async def _bounded(self, request: bytes, timeout_s: float, is_recall: bool) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                return await self.process.ask(request, is_recall=is_recall)
        except TimeoutError as error:
            raise self._late(timeout_s) from error

    def _late(self, timeout_s: float) -> LongTermMemoryError:
        return LongTermMemoryError(f"{self.name} has not answered within {timeout_s:g} s")


def _elsewhere(**settings: Any) -> RemoteMemory:
    """Return what was made in another process."""
    remote = object.__new__(RemoteMemory)
    remote._set_up(**settings)
    return remote


def equip(
    overflow: OverflowStrategy | None,
    memories: Sequence[LongTermMemory],
    config: SessionConfig,
    process_of: Callable[[LongTermMemory], MemoryProcess],
) -> tuple[OverflowStrategy | None, tuple[MemorySlot, ...]]:
    """Return a strategy and memories as sessions use them: each memory in its process, the strategy's the same ones.

    Args:
        process_of: returns the process of a memory.

    Raises:
        ConfigError: a memory is none, or cannot be pickled.
    """

    def remote_of(memory: LongTermMemory) -> RemoteMemory:
        if isinstance(memory, RemoteMemory):
            return memory
        patience = {"deadline_s": config.compaction_timeout_s, "recall_s": config.memory.timeout_s}
        return RemoteMemory(memory, process_of(memory), **patience)

    slots: list[MemorySlot] = []
    if callable(getattr(memories, "recall", None)) or not isinstance(memories, Sequence):
        raise ConfigError("memory", type(memories).__name__, "pass a list of memories: memory=[LexicalMemory(...)]")
    for memory in memories:
        if isinstance(memory, type) or not callable(getattr(memory, "recall", None)):
            raise ConfigError(
                "memory", type(memory).__name__, "pass LongTermMemory objects, such as StaticMemory([...])"
            )
        remote = remote_of(memory)
        slots.append(_slot(remote, slots))
    strategy = _with_remotes(overflow, remote_of, [slot.memory for slot in slots])
    ids = {slot.memory.process.id for slot in slots if isinstance(slot.memory, RemoteMemory)}
    for remote in _remotes_of(strategy):
        if remote.process.id not in ids:
            ids.add(remote.process.id)
            slots.append(_slot(remote, slots, is_used=False))
    return strategy, tuple(slots)


def _slot(remote: RemoteMemory, before: Sequence[MemorySlot], *, is_used: bool = True) -> MemorySlot:
    """Return the slot of a memory, named by its label or class; with a number if others are named by that class.

    Raises:
        ConfigError: another memory has the name.
    """
    name = remote.name
    if remote.label.name is None:
        namesakes = sum(slot.memory.name == name for slot in before if isinstance(slot.memory, RemoteMemory))
        name = f"{name}-{namesakes + 1}" if namesakes else name
    if any(slot.name == name for slot in before):
        raise ConfigError("memory", name, "is the name of two memories: give each its own, as in VectorMemory(name=)")
    section, max_tokens = _SECTIONS.get(remote.kind), remote.label.max_tokens
    return MemorySlot(memory=remote, name=name, section=section, max_tokens=max_tokens, is_used=is_used)


def _remotes_of(strategy: Any) -> list[RemoteMemory]:
    """Return the memories of a strategy and of its `otherwise`."""
    memories: Any = strategy.memories if isinstance(strategy, FlushToMemory) else None
    remotes: list[RemoteMemory] = list(memories or ())
    after = getattr(strategy, "otherwise", None)
    return remotes + (_remotes_of(after) if after is not None else [])


_SECTIONS = {"StaticMemory": "static", "VectorMemory": "vector"}


def _with_remotes(
    strategy: Any, remote_of: Callable[[LongTermMemory], RemoteMemory], own: Sequence[LongTermMemory]
) -> Any:
    """Return a strategy whose memories, and those of its `otherwise`, are in their processes.

    Args:
        own: the manager's memories, which a strategy without any uses.
    """
    changes: dict[str, Any] = {}
    if isinstance(strategy, FlushToMemory):
        changes["memories"] = tuple(map(remote_of, own if strategy.memories is None else strategy.memories))
    if isinstance(strategy, FlushToMemory | Summarize) and strategy.otherwise:
        changes["otherwise"] = _with_remotes(strategy.otherwise, remote_of, own)
    return replace(strategy, **changes) if changes else strategy


_RECALLS = ("recall", "remind")
_GIVEN_UP = (*_RECALLS, "remember", "list_items", "mentions")
"""What the host ends when its caller waits no longer. What deletes or changes an item goes on."""
