"""`ChunkWorker`: replays chunks of a plan in one process, some conversations at once, from all of its chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.actors.client.services.stored_conversations import StoredConversations
from turnwise.actors.inference.attempt import AWAY
from turnwise.errors import CorruptRecordError, SessionNotFoundError
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.growing_pauses import GrowingPauses
from turnwise.replay.recorded import RecordedTurn, recorded_turns
from turnwise.replay.records import TurnReplay
from turnwise.replay.replaying import Replaying, Work
from turnwise.replay.scale.pace import CANCELLED, Permits, Tally
from turnwise.replay.scale.parts import Part, spent_on
from turnwise.replay.scale.plan import Plan, Planned
from turnwise.replay.scale.sums import ChunkSums, Receipt, keep_receipt
from turnwise.replay.selecting import Selection
from turnwise.replay.writing import write_parquet

REPORT_S = 1.0
"""How often a process says what its turns took, in seconds."""

SYNC_S = 1.0
"""How often records are written through to the disk, in seconds. A power loss loses those since; a kill loses none."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""The pauses before a turn is asked again since the provider is away."""


@dataclass(frozen=True, kw_only=True)
class ChunkWork:
    """What a worker does. It pickles if the parts of `work` do."""

    folder: Path
    work: Work
    select: Selection
    at_once: int
    retries: int
    parquet: bool
    keep: int

    @property
    def graders(self) -> list[str]:
        """The names of the graders."""
        return [grader.name for grader in self.work.comparing.graders]


class ChunkWorker:
    """Replays chunks. Use it by `running`, in one event loop.

    Args:
        stored: the store, which is only read.
        permits: by whose leave turns are asked.
    """

    def __init__(self, stored: StoredConversations, job: ChunkWork, permits: Permits) -> None:
        self._stored = stored
        self._job = job
        self._permits = permits
        self._plan = Plan(job.folder)
        self._places = asyncio.Semaphore(job.at_once)
        self._parts: set[Part] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        """The chunks that are being replayed."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the replay was cancelled, or the process that adds up has ended."""
        return self._permits.stopped == CANCELLED

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ChunkWorker]:
        """Report and write through what comes, until the block ends."""
        tasks = [asyncio.create_task(self._keep_reporting()), asyncio.create_task(self._keep_syncing())]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(Exception):  # the process that adds up may be gone
                await self._permits.report()

    async def _keep_reporting(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            try:
                await self._permits.report()
            except Exception:  # noqa: BLE001 - the process that adds up has ended, so this one asks nothing more
                self._permits.stopped = CANCELLED
            if self.is_cancelled:
                for task in self._tasks:
                    task.cancel()

    async def _keep_syncing(self) -> None:
        while True:
            await asyncio.sleep(SYNC_S)
            for part in list(self._parts):
                await asyncio.to_thread(part.sync)

    async def replay(self, number: int) -> Receipt:
        """Replay the turns of a chunk that have no records yet, and return what all of its records amount to.

        If no more turns are asked, or this is cancelled, what has been answered stays.

        Raises:
            StoreError: the store cannot be read, or the folder cannot be written.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in one
        self._tasks.add(task)
        try:
            return await self._replay(number)
        finally:
            self._tasks.discard(task)

    async def _replay(self, number: int) -> Receipt:
        part, planned, sums = await asyncio.to_thread(self._opened, number)
        if not part.is_done:
            self._parts.add(part)
            try:
                await self._conversations(planned, part, sums)
                if all(part.has_all(one.key) for one in planned):
                    await asyncio.to_thread(part.complete, [one.key for one in planned])
            finally:
                self._parts.discard(part)
                await asyncio.to_thread(part.close)
        if self._job.parquet and part.is_done:
            await asyncio.to_thread(write_parquet, part.path, part.path.with_suffix(".parquet"))
        await self._permits.report()
        receipt = sums.receipt(part)
        if part.is_done:
            await asyncio.to_thread(keep_receipt, self._job.folder, receipt, self._job.keep)
        return receipt

    def _opened(self, number: int) -> tuple[Part, list[Planned], ChunkSums]:
        """Return the chunk with its sessions, and with the sums of the records that it has."""
        planned = self._plan.chunk(number)
        part = Part(self._job.folder, number, is_whole=self._job.work.is_whole)
        sums = ChunkSums(number, [one.key for one in planned], self._job.graders, self._job.keep)
        for record in part.records():
            sums.add(record)
        return part, planned, sums

    async def _conversations(self, planned: Sequence[Planned], part: Part, sums: ChunkSums) -> None:
        async def replay(one: Planned) -> None:
            try:
                await self._conversation(one, part, sums)
            finally:
                self._places.release()

        try:
            async with asyncio.TaskGroup() as group:
                for one in planned:
                    if part.has_all(one.key):
                        continue
                    await self._places.acquire()
                    if self._permits.stopped is not None:
                        self._places.release()
                        break
                    group.create_task(replay(one))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _conversation(self, one: Planned, part: Part, sums: ChunkSums) -> None:
        key, work, select = one.key, self._job.work, self._job.select
        replaying = Replaying(work, self._stored.files)
        has_memories = self._stored.has_memories and work.variant.memory is None
        is_complete = True
        try:
            turns = recorded_turns(
                self._stored.store, key, select, one.indexes, is_whole=work.is_whole, has_memories=has_memories
            )
            async for page in turns:
                for turn in page:
                    index = turn.turn.record.index
                    if index >= one.stop or (not work.is_whole and part.has(key, index)):
                        continue
                    records = await self._answered(replaying, turn)
                    if records is None:
                        return  # no more turns are asked
                    for record in records:
                        part.add(key, index, record)
                        sums.add(record)
                        is_complete = is_complete and record.answer.code != AWAY
            if is_complete:
                part.end(key)
        except SessionNotFoundError:
            part.end(key)  # it was deleted since the plan was made
        except CorruptRecordError as error:
            part.end(key, unreadable=str(error))
        finally:
            await replaying.close()

    async def _answered(self, replaying: Replaying, turn: RecordedTurn) -> list[TurnReplay] | None:
        """Return the record of a turn, if it gets one; None if no more turns are asked.

        If the provider is away, the turn is asked again; not in a replay that goes on with its own answers, where the
        whole conversation is, by a later replay.
        """
        if not (turn.is_selected or self._job.work.variant.forward):
            return await replaying.add([turn])  # it asks nothing
        pauses = GrowingPauses(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        retries = 0 if self._job.work.is_whole else self._job.retries
        while True:
            if (permit := await self._permits.take()) is None:
                return None
            records = await replaying.add([turn])
            spent = sum(map(spent_on, records), Usage())
            if all(record.answer.code != AWAY for record in records):
                failed = sum(record.answer.status == "failed" for record in records)
                await self._permits.settle(permit, Tally(len(records), failed, spent))
                return records
            await self._permits.settle(permit, Tally(usage=spent))
            if pauses.failures >= retries:
                return records
            pause_s = pauses.next_s()
            await self._permits.pause(pause_s)
            await asyncio.sleep(pause_s)
