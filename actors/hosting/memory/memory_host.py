"""`MemoryHost`: the body of the process that has a long-term memory. A plain class, so tests need no Ray."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any, Protocol, Unpack, cast, runtime_checkable

from turnwise.actors.hosting.memory.batcher import Batcher
from turnwise.actors.hosting.wire import GaveUp, Refused
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.inference.text_model import EngineModel
from turnwise.actors.wire_version import misfit, packed, unpacked
from turnwise.errors import LongTermMemoryError, TurnwiseError, WireVersionError
from turnwise.memory.background import log_failure, putting_off_after
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.growing_pauses import GrowingPauses
from turnwise.memory.longterm.base import (
    ItemChanges,
    Listing,
    LongTermMemory,
    MemoryItem,
    Pinning,
    Recall,
    Reminder,
    Reminding,
    Scope,
    TurnPlace,
    first_of_each,
    forget_sessions,
    limits_categories,
    recalled,
    trouble_of,
)
from turnwise.memory.longterm.memory_types import MemoryCategory, MemoryType
from turnwise.memory.longterm.model_usage import billed_to
from turnwise.memory.longterm.recall.loading import LoadsAhead, load_ranking
from turnwise.memory.longterm.retention.about import mentions
from turnwise.memory.longterm.retention.deletion import Erasure, erase
from turnwise.memory.longterm.retention.retention import Sweeping
from turnwise.memory.longterm.text_model import TextModel
from turnwise.memory.stores.base import Page

PATIENCE_S = 0.1
"""How long recalls hold up those that come after them, in seconds: to read all that a user has may take ten."""

INDEXING_SHARE = 0.5
"""Which share of the time that its caller waits a recall may take to bring an index up to date."""

CATCH_UP_S, MOST_PAUSE_S = 1.0, 60.0
"""How long what was left for later waits; and at most, if it fails again and again."""

SWEEP_S = 600.0
"""How often expired items are deleted, in seconds. Expired items are never recalled."""


@runtime_checkable
class Batched(Protocol):
    """Optional protocol of a memory that carries out many requests together faster than one by one."""

    async def remember_many(self, batch: Sequence[tuple[Scope, Sequence[MemoryItem]]]) -> list[Collection[str]]:
        """Carry out every `remember` of the batch, or none of them."""

    async def recall_many(self, batch: Sequence[Recall]) -> list[Sequence[MemoryItem]]:
        """Answer each question of the batch."""


@runtime_checkable
class BatchedReminding(Batched, Protocol):
    """The protocol of a memory that is both `Batched` and `Reminding`."""

    async def answer_many(self, batch: Sequence[Recall]) -> list[Reminder]:
        """Answer each question of the batch, with the profile where it is wanted."""


@runtime_checkable
class Preparing(Protocol):
    """Optional protocol of a memory that is `Batched` and has work to do for one user before a batch answers."""

    async def prepare(self, scope: Scope) -> None:
        """Do what is bounded by what is new of the user, while there is time: see `background.has_time`."""


@runtime_checkable
class CatchingUp(Protocol):
    """Optional protocol of a memory that defers a part of its work."""

    async def catch_up(self) -> int:
        """Do some of the deferred work; return roughly how much is left. Raises if it fails now; nothing is lost."""


class MemoryHost:
    """One memory for all sessions of a cluster, or of a process.

    A `Batched` memory gets its saves in batches, one batch at a time, and its recalls in others, of which a slow one
    may be overtaken; see `Batcher`. All other calls, and all calls of any other memory, are made at once, so that no
    caller waits for another's model. The memory is opened at the first call, and again at the next one if that fails.
    Deferred work is done in the background.

    Args:
        load: returns the memory with its settings. Blocks.
    """

    def __init__(self, load: Callable[[], LongTermMemory]) -> None:
        self._load = load
        self._opening: asyncio.Task[LongTermMemory] | None = None
        self._opened: LongTermMemory | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._has_deferred = False
        """Whether a call may have deferred work since `_catching_up` last asked the memory to do it."""
        self._sweeping: asyncio.Task[None] | None = None
        self._batches_reminders = False
        """Whether the memory, once it is open, is `BatchedReminding`."""
        self._pending_saves: dict[str, set[asyncio.Future[Collection[str]]]] = {}
        """What a memory that is not `Batched` is being given, by user.

        Deletions wait for it. Changes do not: an item that is still being saved does not exist yet.
        """
        self._erasing: dict[Hashable, asyncio.Task[Erasure]] = {}
        """What is being erased, by scope, ids and turn: only who asks for the same three waits for the same answer."""
        self._recalls = Batcher(self._recall_many, patience_s=PATIENCE_S)
        self._writes = Batcher(self._write_many)

    async def call(self, request: bytes) -> bytes:
        """Carry out a pickled verb with its arguments; return its answer, or `Refused`, and what models spent, pickled.

        The arguments go by their names. A request may say for how many seconds its caller waits. It is cancelled then,
        what it does on threads ends, and the answer is `GaveUp`.
        """
        try:
            verb, arguments, waits_s = unpacked(request)
        except WireVersionError as error:
            return packed((Refused(error), []))
        limit, spent = asyncio.timeout(waits_s), list[tuple[Usage, str | None]]()
        try:
            async with limit:
                with (
                    billed_to(lambda *usage: spent.append(usage)),
                    nullcontext() if waits_s is None else putting_off_after(INDEXING_SHARE * waits_s),
                ):
                    answer = await getattr(self, f"do_{verb}")(**arguments)
        except TurnwiseError as error:
            answer = Refused(error)
        except Exception as error:  # noqa: BLE001 - whatever a memory raises, its caller has to know
            reason = f"{type(error).__name__}: {error}"
            answer = GaveUp() if limit.expired() else Refused(LongTermMemoryError(reason))
            if not self._takes(verb, arguments):
                answer = Refused(misfit(request, f"memories here do not know {verb!r} with these arguments"))
        return packed((answer, spent))

    def _takes(self, verb: str, arguments: Mapping[str, Any]) -> bool:
        """Return whether there is such a verb with such arguments; those of a later version may be others."""
        carry_out = getattr(self, f"do_{verb}", None)
        try:
            return carry_out is not None and inspect.signature(carry_out).bind(**arguments) is not None
        except TypeError:
            return False

    async def do_warm(self) -> None:
        """Open the memory, and load what its first recall needs."""
        memory, _ = await asyncio.gather(self._memory(), asyncio.to_thread(load_ranking))
        if isinstance(memory, LoadsAhead):
            await memory.load_ahead()

    async def stop(self) -> None:
        """Stop what is done in the background. Nothing may be called afterwards. The memory stays open."""
        if self._opening is not None:
            with suppress(Exception):  # which those who wait for it are told
                await self._memory()
        for task in (self._sweeping, self._catching_up):
            if task is not None:
                task.cancel()

    async def close(self) -> None:
        """Stop, and close the memory."""
        await self.stop()
        if self._opened is not None:
            await self._opened.close()

    async def do_remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        memory = await self._memory()
        try:
            return await self._saved(memory, scope, items)
        finally:
            self._catch_up_soon(memory)

    async def _saved(self, memory: LongTermMemory, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        if isinstance(memory, Batched):
            return cast(Collection[str], await self._writes.ask((scope, items)))
        save = asyncio.ensure_future(memory.remember(scope, items))
        saves = self._pending_saves.setdefault(scope.user_id, set())
        saves.add(save)
        try:
            return await save
        finally:
            saves.discard(save)
            if not saves:
                self._pending_saves.pop(scope.user_id, None)

    async def do_recall(self, scope: Scope, query: str, **filters: Any) -> Sequence[MemoryItem]:
        memory = await self._memory()
        limit = _widened(memory, filters)
        items = await self._recalled(memory, scope, query, **filters)
        return items if limit is None else _of_each(items, limit)

    async def _recalled(self, memory: LongTermMemory, scope: Scope, query: str, **filters: Any) -> Sequence[MemoryItem]:
        if isinstance(memory, Batched):
            await _prepare(memory, scope)
            request = Recall(scope=scope, query=query, **filters)
            return cast(Sequence[MemoryItem], await self._recalls.ask(request))
        return await memory.recall(scope, query, **filters)

    async def do_remind(self, scope: Scope, prompt: str, **filters: Any) -> Reminder:
        memory = await self._memory()
        limit = _widened(memory, filters)
        reminder = await self._reminder(memory, scope, prompt, **filters)
        return reminder if limit is None else replace(reminder, items=_of_each(reminder.items, limit))

    async def _reminder(self, memory: LongTermMemory, scope: Scope, prompt: str, **filters: Any) -> Reminder:
        if self._batches_reminders:
            await _prepare(memory, scope)
            request = Recall(scope=scope, query=prompt, is_reminder=True, **filters)
            return cast(Reminder, await self._recalls.ask(request))
        if isinstance(memory, Reminding):
            return await memory.remind(scope, prompt, **filters)
        return Reminder(profile=(), items=await self._recalled(memory, scope, prompt, **filters))

    async def do_pin(self, scope: Scope, id: str, pinned: bool) -> bool:
        memory = await self._memory()
        return isinstance(memory, Pinning) and await memory.pin(scope, id, pinned)

    async def do_update(
        self, scope: Scope, id: str, text: str | None, type: MemoryType | None, **changes: Unpack[ItemChanges]
    ) -> bool:
        memory = await self._memory()
        try:
            return await memory.update(scope, id, text, type=type, **changes)
        finally:
            self._catch_up_soon(memory)

    async def do_list_items(
        self, scope: Scope, types: Collection[MemoryType] | None, cursor: str | None, limit: int
    ) -> Page[MemoryItem]:
        memory = await self._memory()
        if not isinstance(memory, Listing):
            raise LongTermMemoryError(f"{type(memory).__name__} cannot list its items: give it a method list_items")
        return await memory.list_items(scope, types=types, cursor=cursor, limit=limit)

    async def do_mentions(
        self, scope: Scope, text: str | None, turns: Collection[TurnPlace], ids: Collection[str]
    ) -> Sequence[MemoryItem]:
        return await mentions(await self._after_saves(scope.user_id), scope, text, turns=turns, ids=ids)

    async def do_forget(self, scope: Scope, ids: Collection[str] | None, turn_index: int | None) -> int:
        memory = await self._after_saves(scope.user_id)
        try:
            return await memory.forget(scope, ids, **_turn(turn_index))
        finally:
            self._catch_up_soon(memory)

    async def do_forget_sessions(self, sessions: Mapping[str, Collection[str]]) -> None:
        memory = await self._after_saves(*sessions)
        try:
            await forget_sessions(memory, sessions)
        finally:
            self._catch_up_soon(memory)

    async def do_erase(self, scope: Scope, ids: Collection[str] | None, turn_index: int | None) -> Erasure:
        key = scope, None if ids is None else frozenset(ids), turn_index
        if (erasing := self._erasing.get(key)) is None:
            erasing = self._erasing[key] = asyncio.create_task(self._erase(scope, ids, turn_index))
            erasing.add_done_callback(lambda _: self._erasing.pop(key))
        return await asyncio.shield(erasing)

    async def _erase(self, scope: Scope, ids: Collection[str] | None, turn_index: int | None) -> Erasure:
        memory = await self._after_saves(scope.user_id)
        try:
            return await erase(memory, scope, ids, **_turn(turn_index))
        finally:
            self._catch_up_soon(memory)

    async def _after_saves(self, *user_ids: str) -> LongTermMemory:
        """Return the memory once it has what it was given of users before, so that what is then forgotten stays so."""
        memory = await self._memory()
        if isinstance(memory, Batched):
            await self._writes.ask(None)
        elif saves := [save for user_id in user_ids for save in self._pending_saves.get(user_id, ())]:
            await asyncio.wait(saves)
        return memory

    async def _write_many(self, batch: Sequence[_Save | None]) -> Sequence[Any]:
        """Give a memory that is `Batched` what it is to remember.

        None stands for a caller that waits until everything before it is written.
        """
        memory = cast(Batched, await self._memory())
        saves = [save for save in batch if save is not None]
        try:
            answers: list[Any] = await memory.remember_many(saves) if saves else []
        except Exception as error:  # noqa: BLE001 - it is for those who gave, and not for those who wait
            answers = [error] * len(saves)
        remaining = iter(answers)
        return [None if save is None else next(remaining) for save in batch]

    async def _recall_many(self, batch: Sequence[Recall]) -> Sequence[Sequence[MemoryItem] | Reminder | BaseException]:
        memory = await self._memory()
        if not self._batches_reminders:
            return await cast(Batched, memory).recall_many(batch)
        answers = await cast(BatchedReminding, memory).answer_many(batch)
        return [answer if recall.is_reminder else answer.items for recall, answer in zip(batch, answers, strict=True)]

    async def _memory(self) -> LongTermMemory:
        if self._opened is not None:
            return self._opened
        if self._opening is None:
            self._opening = asyncio.create_task(asyncio.to_thread(_open, self._load))
        opening = self._opening
        try:
            memory = await asyncio.shield(opening)
        except Exception:
            if self._opening is opening:  # else somebody who learnt it before has begun again
                self._opening = None
            raise
        if self._opened is None:
            self._opened, self._batches_reminders = memory, isinstance(memory, BatchedReminding)
            self._catch_up_soon(memory)  # with what an earlier process left
            if isinstance(memory, Sweeping):
                self._sweeping = asyncio.create_task(self._sweep(memory))
        return memory

    async def _sweep(self, memory: Sweeping) -> None:
        while True:
            try:
                await memory.sweep()
            except Exception as error:  # noqa: BLE001 - it is logged, and tried again whoever's error it is
                log_failure(f"sweeping {memory}", error, f", and is tried again in {SWEEP_S:g} s")
            self._catch_up_soon(memory)
            await asyncio.sleep(SWEEP_S)

    def _catch_up_soon(self, memory: object) -> None:
        """Have the memory do what it deferred. Called after each call that may defer work, also one that failed."""
        self._has_deferred = True
        if isinstance(memory, CatchingUp) and (self._catching_up is None or self._catching_up.done()):
            self._catching_up = asyncio.create_task(self._catch_up(memory))

    async def _catch_up(self, memory: CatchingUp) -> None:
        pauses, pause_s = GrowingPauses(CATCH_UP_S, MOST_PAUSE_S), CATCH_UP_S
        while True:
            await asyncio.sleep(pause_s)
            self._has_deferred = False
            try:
                if not await memory.catch_up() and not self._has_deferred:
                    return
                pauses.reset()
                pause_s = CATCH_UP_S
            except Exception as error:  # noqa: BLE001 - it is logged, and tried again whoever's error it is
                pause_s = pauses.next_s()
                log_failure(f"catching up of {memory}", error, f", and is tried again in {pause_s:.1f} s")


@runtime_checkable
class ModelBound(Protocol):
    """A memory that asks a model has this too: until it is bound its model is an engine."""

    model: Any

    def bind(self, model: TextModel) -> LongTermMemory:
        """Return the memory with the model that is really asked."""


async def _prepare(memory: LongTermMemory, scope: Scope) -> None:
    if isinstance(memory, Preparing):
        await memory.prepare(scope)


def _widened(memory: LongTermMemory, filters: dict[str, Any]) -> int | None:
    """Ask a memory that does not limit categories for enough items of all; return the limit of each category then."""
    if limits_categories(memory) or not filters.pop("per_category", False):
        return None
    limit: int = filters["limit"]
    filters["limit"] = len(MemoryCategory) * limit
    return limit


def _of_each(items: Sequence[MemoryItem], limit: int) -> Sequence[MemoryItem]:
    return recalled(first_of_each(items, limit), trouble_of(items))


def _open(load: Callable[[], LongTermMemory]) -> LongTermMemory:
    memory = load()
    if isinstance(memory, ModelBound) and isinstance(memory.model, EngineBuilder):
        return memory.bind(EngineModel(memory.model))
    return memory


_Save = tuple[Scope, Sequence[MemoryItem]]


def _turn(index: int | None) -> dict[str, Any]:
    """Return the option of verbs that need not know turns."""
    return {} if index is None else {"turn_index": index}
