"""How a session's state changes: one change at a time, each a commit or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from turnwise.actors.active_run import ActiveRun
from turnwise.actors.backlog import Backlog
from turnwise.actors.config import SessionConfig
from turnwise.actors.gear import Gear
from turnwise.actors.inference.engine import NewEvent
from turnwise.actors.journal import Journal
from turnwise.actors.reads import SessionReads
from turnwise.errors import (
    CorruptRecordError,
    DuplicateKeyError,
    EncryptionError,
    NotFoundError,
    SessionFencedError,
    StoreError,
    TurnwiseError,
)
from turnwise.memory.background import shielded, watch
from turnwise.memory.blocks import Block
from turnwise.memory.runs import RunRecord
from turnwise.memory.sessions import SessionRecord
from turnwise.memory.store import Commit
from turnwise.memory.usage import Usage

Result = TypeVar("Result")


@dataclass(slots=True)
class Doubt:
    """A record whose commit has an unknown outcome: the next activation finds out, by the number of its event."""

    seq: int
    stored: bool = False


class SessionChanges(SessionReads):
    """Changes a session's state: every change runs alone, behind one lock, as decide, commit, apply.

    Memory changes only after the commit, so a kill anywhere leaves what the last commit left. After a store error whose
    outcome is unknown, the next change first activates the session anew and takes over what the store says.
    """

    def __init__(self, session_id: str, journal: Journal, gear: Gear, off_loop: Callable[..., Awaitable[Any]]) -> None:
        super().__init__(session_id, journal)
        self._clock = journal.clock
        self._gear = gear
        """What the runs that start next work with."""
        self._off_loop = off_loop
        """How to call what may block."""
        self._change = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._doubt: Doubt | None = None
        self._unsettled: list[ActiveRun] = []
        """Runs that an activation has found to be lost, until a commit has seen to them."""
        self._owed: Usage | None = None
        """What was spent that no commit has told of: the next one does."""

    @property
    def _config(self) -> SessionConfig:
        return self._gear.config

    async def activate(self) -> None:
        """Take the session over from whoever had it: raise the epoch, see to the run that was lost, go on.

        Runs by itself before the first change or read. Other cores of the session are fenced from here on.
        """
        if self._journal.stale:
            await self._atomically(nothing)

    async def _load(self) -> None:
        """Take over what the store says, and put in order what a lost owner left."""
        raise NotImplementedError

    # Changing

    async def _atomically(self, change: Callable[[], Awaitable[Result]]) -> Result:
        """Carry out one change alone, and to its end even if the caller is cancelled."""
        return await shielded(self._spawn(self._exclusively(change)), f"session {self.session_id!r}: a change")

    async def _exclusively(self, change: Callable[[], Awaitable[Result]]) -> Result:
        async with self._change:
            if self._journal.lost:
                raise self._journal.lost
            try:
                if self._journal.stale:
                    await self._load()
                return await change()
            finally:
                if self._journal.lost:
                    self._give_up(self._journal.lost)

    async def _persistently(self, change: Callable[[], Awaitable[Result]], *, shielded: bool = True) -> Result:
        """Carry out one change that bears repetition, however often the store has to be asked.

        Args:
            shielded: a change that has begun ends even if the caller is cancelled; which costs a task.

        Raises:
            StoreError: for `store_retry_s`, or the session is owned by another.
        """
        deadline = asyncio.get_running_loop().time() + self._config.store_retry_s
        pause_s = 0.01
        while True:
            try:
                return await (self._atomically(change) if shielded else self._exclusively(change))
            except CorruptRecordError:
                raise
            except StoreError as error:
                late = asyncio.get_running_loop().time() + pause_s > deadline
                if late or self._journal.lost or isinstance(error, SessionFencedError):
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    async def _commit(
        self, session: SessionRecord, events: Sequence[NewEvent], *, live: bool | None = None, **parts: Any
    ) -> None:
        """Number the events and store the commit of these `parts`; `live` is as now if None."""
        live = self._active is not None if live is None else live
        owed, self._owed = self._owed, None
        if owed:
            session = replace(session, usage=session.usage + owed)
        numbered = self._journal.number(events)
        if self._doubt and numbered:
            self._doubt.seq = numbered[0].seq
        try:
            await self._journal.commit(Commit(session=session, events=numbered, **parts), live=live)
        except DuplicateKeyError:
            self._owe(owed)
            raise
        except TurnwiseError:
            if self._journal.lost:
                self._give_up(self._journal.lost)
            raise

    def _give_up(self, why: Exception) -> None:
        """Stop the engine, answer everybody, change nothing: this process has the session no more."""
        for run in self._known_runs:
            run.request_cancel("the session was taken over", discard=False)
            run.close()
            fail(run, why)
        self._active = None
        self._backlog, self._unsettled = Backlog(), []

    @property
    def _known_runs(self) -> list[ActiveRun]:
        """All runs that somebody may wait for."""
        return [*([self._active] if self._active else []), *self._backlog.queue, *self._unsettled]

    def _owe(self, spent: Usage | None) -> None:
        """Put what no commit has told of on the next one."""
        if spent:
            self._owed = self._owed + spent if self._owed else spent

    def _spawn(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start a task that is held until it ends, and whose result somebody waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _spawn_beside(self, work: Coroutine[Any, Any, Result], what: str) -> asyncio.Task[Result]:
        """Start a task that is held until it ends; its error is logged, since nobody may wait for it.

        Args:
            what: the task, for the log.
        """
        task = self._spawn(work)
        watch(task, f"session {self.session_id!r}: {what}")
        return task

    def _is_final(self, error: BaseException) -> bool:
        """Return whether trying again would meet the same error: the session is lost, or cannot be read."""
        unreadable = isinstance(error, CorruptRecordError | EncryptionError | NotFoundError)
        return self._journal.lost is not None or unreadable

    def _hold(self, blocks: Sequence[Block], session: SessionRecord) -> None:
        """Hold the blocks that a commit stored at the end of the log."""
        self._journal.cache.add(session.log, session.log_size - len(blocks), blocks)

    @staticmethod
    def _charged(session: SessionRecord, run: ActiveRun, record: RunRecord) -> SessionRecord:
        """Return the session's row with what the run has spent since its last commit."""
        spent = record.usage or Usage()
        if run.record.usage:
            spent -= run.record.usage
        return replace(session, usage=session.usage + spent)


async def nothing() -> None:
    return None


def fail(run: ActiveRun, error: Exception) -> None:
    """Give the run's waiters an error in place of its end."""
    if not run.done.done():
        run.done.set_exception(error)
        run.done.exception()  # there need not be any
