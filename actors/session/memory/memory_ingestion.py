"""`MemoryIngestion`: saves a session's ended turns in its long-term memories, in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from turnwise.actors.inference.attempt import reason
from turnwise.actors.inference.engine import NewEvent
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.memory.config import scope_of
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.engines.side_bill import SideBill
from turnwise.actors.session.memory.group_saves import is_of_group, recipients, words_for
from turnwise.actors.session.memory.unsaved_turns import SavingProgress, use_of
from turnwise.actors.session.state.session_tasks import SessionTasks
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.errors import CorruptRecordError, ExtractionError, InvalidMemoryError, LongTermMemoryError
from turnwise.memory.background import ended, log_failure, retry
from turnwise.memory.conversation.blocks import Block
from turnwise.memory.conversation.events import MemoryBehind, MemoryCaughtUp, PlannerNote, TurnNotSaved
from turnwise.memory.conversation.spans import Spans
from turnwise.memory.growing_pauses import GrowingPauses
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.turn_items import TurnBlocks, forgets, note_items, turn_item
from turnwise.memory.stores.reading import SEQ, pages, read_runs

AT_ONCE = 16
"""The maximum number of turns that are sent to a memory in one call."""

DELAY_S = 0.05
"""How many seconds saving waits after a turn, so that it does not slow an immediate next prompt's search."""

PAGE = 100
"""How many unsaved turns of an earlier process are read at once."""

EVENTS = 1000
"""How many events are read at once to find the notes of a run."""

ATTEMPTS = 3
"""How many times saving a turn is tried if a memory's model returns unusable answers."""

SOON_S = 5.0
"""How long a search for what is unsaved waits for saves to end, in seconds."""

PAUSE_S, MOST_PAUSE_S = 1.0, 60.0
"""The first and the longest pause after a memory's failure, in seconds."""


class MemoryIngestion:
    """Saves each ended turn in each writable memory, in order, in the background.

    `SavingProgress` tracks which turns each memory has. Its mark is stored with the session's next commit, at the
    latest when the process gives the session up. Turns that were saved but not marked when a process died are sent
    again, with the same ids, which changes nothing.

    A memory that fails delays no run and no other memory. Its turns are sent again with growing pauses, and events say
    that it is behind and when it has caught up. A turn that a memory cannot keep is skipped, and an event says so.

    While saving awaits the following, other work may run, and the process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | a read of the store | everything; a turn that is forgotten meanwhile is not sent | an unsaved turn |
    | a memory | everything; a forget waits for it, a cancel does not stop it | a turn that is sent again |
    """

    def __init__(
        self,
        state: SessionState,
        transactor: Transactor,
        engines: SessionEngines,
        tasks: SessionTasks,
        progress: SavingProgress,
        *,
        bill: SideBill,
    ) -> None:
        self._state = state
        self._journal = state.journal
        self._transactor = transactor
        self._engines = engines
        self._tasks = tasks
        self._progress = progress
        self._bill = bill
        self._is_paused = False
        """Whether saving is paused."""
        self._find_task: asyncio.Task[None] | None = None
        self._save_tasks: dict[str, asyncio.Task[None]] = {}
        self._pausing: set[str] = set()
        """The memories that have failed, and are tried again after a pause."""
        self._leaves_failed = False
        self._unreadable: set[int] = set()
        """Turns above the mark that are corrupt."""
        self._in_flight: set[asyncio.Task[Any]] = set()
        """The calls to memories that have not returned."""

    @property
    def is_saving(self) -> bool:
        """Whether a turn is being saved, or is about to be; see `leave_failed`."""
        tasks = self._running_tasks
        if self._leaves_failed:
            tasks = [task for task in tasks if task not in [self._save_tasks.get(name) for name in self._pausing]]
        return bool(tasks)

    def leave_failed(self) -> None:
        """From now on, count a turn as not being saved while a memory that has failed is not tried again.

        For a process that is to end: the next one saves what memories lack.
        """
        self._leaves_failed = True

    @property
    def _running_tasks(self) -> list[asyncio.Task[None]]:
        tasks = [*self._save_tasks.values(), *([self._find_task] if self._find_task else [])]
        return [task for task in tasks if not task.done()]

    def restart(self) -> None:
        """Restart saving with the current memories, after the session switched engine and settings."""
        self._cancel_saves()
        self._progress.restart()
        self.save_soon()

    def load(self) -> None:
        """Load the memories' progress from the session's row, after an activation."""
        self._cancel_saves()
        self._is_paused = False
        self._progress.load(self._journal.session, self._state.head)
        self.save_soon()

    def _cancel_saves(self) -> None:
        for save_task in self._save_tasks.values():
            save_task.cancel()
        self._save_tasks = {}
        self._pausing.clear()

    # Finding unsaved turns

    def save_soon(self) -> None:
        """Start saving the turns that memories lack. Does not wait."""
        if not self._progress.writable or self._is_paused or (self._find_task and not self._find_task.done()):
            return
        if self._progress.is_behind:
            self._find_task = self._spawn_retried(self._find_unsaved, "finding unsaved turns")
            return
        for slot in self._progress.writable:
            save_task = self._save_tasks.get(slot.name)
            if self._progress.lacking(slot) and (save_task is None or save_task.done()):
                save = partial(self._save_to, slot)
                self._save_tasks[slot.name] = self._spawn_retried(save, f"saving in {slot.name}")

    def _spawn_retried(self, work: Callable[[], Awaitable[None]], description: str) -> asyncio.Task[None]:
        """Start background work that is restarted after any error."""
        return self._tasks.spawn(retry(work, self._tasks.name(description), until=self._transactor.is_final))

    async def _find_unsaved(self) -> None:
        """Read the turns that an earlier process did not save, one page per change, so that runs can start in between.

        A corrupt turn, or one whose run is corrupt, is skipped, and an event says so.
        """
        after = self._progress.saved

        async def change() -> CorruptRecordError | None:
            nonlocal after
            try:
                try:
                    last = await self._note_page(after, PAGE)
                except CorruptRecordError:
                    last = await self._note_page(after, 1)
            except CorruptRecordError as error:
                after += 1
                self._progress.set_behind(after + 1 < self._journal.session.next_index)
                return error
            self._progress.set_behind(last is not None)
            after = after if last is None else last
            return None

        while True:
            if error := await self._transactor.run_until_stored(change):
                await self._report_unreadable(after, error)
            if not self._progress.is_behind:
                break
        self._find_task = None
        self.save_soon()

    async def _note_page(self, after: int, limit: int) -> int | None:
        """Add the next ended turns to the progress; return the index of the last turn read, None if there is none."""
        page = await self._journal.store.turns(self._state.key, after=after, limit=limit)
        if not page:
            return None
        runs = await read_runs(partial(self._journal.store.runs, self._state.key), after + 1, page[-1].index + 1)
        run_of = {run.run_id: run for run in runs}
        for turn in page:
            if not turn.is_open and turn.index > self._progress.saved:
                run = run_of.get(turn.run_id or "")
                origin = (run.first_seq, run.author) if run else (0, None)
                self._progress.add(turn, run.memory if run else use_of(turn), *origin)
        return page[-1].index

    async def _report_unreadable(self, index: int, error: CorruptRecordError) -> None:
        """Log and store events, once per turn, that a turn is not saved, since it cannot be read."""
        if index in self._unreadable:
            return
        self._unreadable.add(index)
        log_failure(self._tasks.name(f"saving turn {index}"), error, ", so no memory gets it")
        for slot in self._progress.writable:
            values = {"turn_index": index, "memory": slot.name, "why": f"corrupt record {error.key}"}
            await self._store_event((TurnNotSaved, values))

    # Saving

    async def _save_to(self, slot: MemorySlot) -> None:
        refused, pauses = 0, GrowingPauses(PAUSE_S, MOST_PAUSE_S)
        alone = -1  # turns up to this index are sent one by one
        await asyncio.sleep(DELAY_S)
        while not self._journal.lost and (turns := self._progress.lacking(slot)[:AT_ONCE]):
            turns = turns[:1] if turns[0].index <= alone else turns
            try:
                await self._send(slot, turns)
            except (InvalidMemoryError, ExtractionError, CorruptRecordError) as error:
                refused += 1
                alone = max(alone, turns[-1].index)
                if len(turns) == 1 and (refused >= ATTEMPTS or not isinstance(error, ExtractionError)):
                    about = {"turn_index": turns[0].index, "turn_id": turns[0].turn_id}
                    await self._store_event((TurnNotSaved, {**about, "memory": slot.name, "why": reason(error)}))
                    self._progress.add_saved(slot, turns)
                    refused = 0
                elif len(turns) > 1:
                    refused = 0
            except Exception as error:  # noqa: BLE001 - any error of a memory is reported, and the call repeated
                if not pauses.failures:
                    await self._store_event((MemoryBehind, {"memory": slot.name, "why": reason(error)}))
                self._pausing.add(slot.name)
                await asyncio.sleep(pauses.next_s())
                self._pausing.discard(slot.name)
            else:
                self._progress.add_saved(slot, turns)
                refused = 0
                if pauses.failures:
                    pauses.reset()
                    await self._store_event((MemoryCaughtUp, {"memory": slot.name}))
            await self._bill.store()

    async def _send(self, slot: MemorySlot, turns: Sequence[TurnBlocks]) -> None:
        read = [(turn, await self._items(turn)) for turn in turns]
        # A turn that was forgotten during the read is private now, so it is not to be saved.
        current = [turn_items for turn, turn_items in read if self._progress.is_current(turn)]
        for person in dict.fromkeys(person for turn_items in current for person in turn_items):
            await self._send_for(slot, person, [item for items in current for item in items.get(person, ())])

    async def _send_for(self, slot: MemorySlot, person: str | None, items: Sequence[MemoryItem]) -> None:
        """Send items to the memory of a person, None for the session's user; see `recipients`."""
        if not items:
            return
        scope = scope_of(self._journal.session, self._engines.config.memory, person)
        with self._bill.of("extraction"):
            call = self._tasks.spawn(_remember(slot, scope, items))
        self._in_flight.add(call)
        call.add_done_callback(self._in_flight.discard)
        await ended(call, self._tasks.name(f"saving in {slot.name}"))
        if call.cancelled():
            raise LongTermMemoryError("the memory's call was cancelled")
        has = call.result()
        if unsaved := sum(item.id not in has for item in items):
            raise LongTermMemoryError(f"{unsaved} of {len(items)} items were not saved")

    async def _items(self, turn: TurnBlocks) -> dict[str | None, list[MemoryItem]]:
        """Return what memories get of a turn, by the person: an item of its blocks and, by the settings, planner notes.

        They get nothing of a private turn, nor of one in which the model forgot something.
        """
        if turn.is_private:
            return {}
        session, config = self._journal.session, self._engines.config.memory
        blocks = await self._journal.blocks.read(turn.spans)
        if forgets(blocks):
            return {}
        notes = await self._notes(turn) if config.planner_notes else []
        items: dict[str | None, list[MemoryItem]] = {}
        for person in recipients(session, turn.author, blocks, config.group_saves):
            session_id = str(scope_of(session, config, person).session_id)
            own: tuple[Spans, Sequence[Block]] = (turn.spans, blocks)
            if is_of_group(turn.author, blocks):
                own = words_for(person, session.user_id, *own, whole=config.group_saves != "author")
            item = turn_item(session_id, turn, *own)
            items[person] = [*([item] if item else []), *note_items(session_id, session.log, turn, notes)]
        return items

    async def _notes(self, turn: TurnBlocks) -> list[PlannerNote]:
        """Return the planner notes of the turn's run; an imported turn has none."""
        if turn.run_id is None:
            return []
        notes: list[PlannerNote] = []
        async for events in pages(partial(self._journal.bare_events, limit=EVENTS), turn.first_seq - 1, SEQ):
            run_events = [event for event in events if event.run_id == turn.run_id]
            notes += [event for event in run_events if isinstance(event, PlannerNote)]
            if any(event.terminal for event in run_events):
                break
        return notes

    async def _store_event(self, event: NewEvent) -> None:
        async def commit() -> None:
            await self._transactor.commit(self._journal.session, [event])

        await self._transactor.run_until_stored(commit)

    async def store_mark(self) -> None:
        """Store the memories' progress, if the stored one is older. Call it within a change."""
        if not self._journal.stale and self._progress.saved > self._journal.session.saved:
            await self._transactor.commit(self._journal.session)

    async def wait_for_memory(self, timeout_s: float | None = None) -> bool | None:
        """Wait until saving has ended; return whether every memory now has every ended turn that it should have.

        Returns None if `timeout_s` seconds pass first.

        Raises:
            SessionFencedError, SessionNotFoundError: another process took the session, or it was deleted.
        """
        await self._transactor.loaded()
        self.save_soon()
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        while tasks := self._running_tasks:
            left_s = None if deadline is None else deadline - asyncio.get_running_loop().time()
            if left_s is not None and left_s <= 0:
                return None
            await asyncio.wait(tasks, timeout=left_s)
        await self._transactor.loaded()
        return not (self._progress.is_behind or self._unreadable or self._progress.missing)

    async def unsaved_items(self, person: str | None = None) -> dict[str, list[MemoryItem]]:
        """Return the items of ended turns that the memories of a person lack, by the memory's name.

        Waits for saves that end soon. A memory may get the items meanwhile. Turns that cannot be read are left out.
        """
        await self.wait_for_memory(SOON_S)
        lacking = {slot.name: self._progress.lacking(slot) for slot in self._progress.writable}
        items: dict[int, list[MemoryItem]] = {}
        for turn in (turn for turns in lacking.values() for turn in turns):
            if turn.index not in items:
                with suppress(CorruptRecordError):
                    items[turn.index] = (await self._items(turn)).get(person, [])
        return {name: [item for turn in turns for item in items.get(turn.index, ())] for name, turns in lacking.items()}

    async def stop(self) -> int:
        """Stop saving, and wait for calls in flight; return how many turns at least one memory lacks."""
        lacking = {turn.index for turn in self._progress.missing if not turn.is_private}
        self._is_paused = True
        self._cancel_saves()
        await self.wait_for_saves()
        return len(lacking)

    async def wait_for_saves(self) -> None:
        """Wait until the calls to memories that are in flight have returned or failed."""
        if self._in_flight:
            await asyncio.wait(set(self._in_flight))


async def _remember(slot: MemorySlot, scope: Scope, items: Sequence[MemoryItem]) -> set[str]:
    return set(await slot.memory.remember(scope, items))
