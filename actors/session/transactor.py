"""How a session's state changes: one change at a time, each a commit or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from turnwise.actors.inference.engine import NewEvent
from turnwise.actors.session.session_engines import SessionEngines
from turnwise.actors.session.session_tasks import SessionTasks
from turnwise.actors.session.state import SessionState
from turnwise.errors import (
    CorruptRecordError,
    DuplicateKeyError,
    EncryptionError,
    NotFoundError,
    SessionFencedError,
    StoreError,
    TurnwiseError,
)
from turnwise.memory.background import MOST_PAUSE_S, shielded
from turnwise.memory.conversation.blocks import Block, encode
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.stores.base import Activation, Commit

Result = TypeVar("Result")


@dataclass(slots=True)
class UnknownOutcome:
    """A commit whose outcome is unknown: the next activation finds out, by the number of its event."""

    seq: int = 0
    stored: bool = False


class CommitMark(Protocol):
    """What goes into the session's row with whichever commit comes next."""

    def stamp(self, session: SessionRecord, turns: Iterable[TurnRecord]) -> SessionRecord:
        """Return the row of a commit that stores these turns, with the mark."""

    def stored(self, session: SessionRecord) -> None:
        """The row with the mark is in the store."""


class Transactor:
    """Changes a session's state: every change runs alone, behind one lock, as decide, commit, apply.

    Memory changes only after the commit, so a kill anywhere leaves what the last commit left. After a store error whose
    outcome is unknown, the next change first activates the session anew and takes over what the store says.

    | await in a change | what else may run there | what a kill there leaves |
    |---|---|---|
    | the lock | reads, streaming, the change before | nothing of this change |
    | the store's commit | reads, streaming; live events wait | all of it or nothing |
    | an activation, after a store error | reads, streaming; live events wait | what the store has |

    Args:
        mark: goes along with each commit.
        recover: takes over what an activation has found; part of the change that comes first.
    """

    def __init__(
        self,
        state: SessionState,
        tasks: SessionTasks,
        engines: SessionEngines,
        mark: CommitMark,
        recover: Callable[[Activation], Awaitable[None]],
    ) -> None:
        self._state = state
        self._journal = state.journal
        self._tasks = tasks
        self._engines = engines
        self._mark = mark
        self._recover = recover
        self._lock = asyncio.Lock()
        self._doubt: UnknownOutcome | None = None
        self._owed: Usage | None = None

    # Changes

    async def run(self, change: Callable[[], Awaitable[Result]]) -> Result:
        """Carry out one change alone, and to its end even if the caller is cancelled."""
        return await shielded(self._tasks.spawn(self.run_here(change)), self._tasks.name("a change"))

    async def run_here(self, change: Callable[[], Awaitable[Result]]) -> Result:
        """Carry out one change alone, in the caller's task, which nobody cancels."""
        async with self._lock:
            if self._journal.lost:
                raise self._journal.lost
            try:
                if self._journal.stale:
                    await self._activate()
                return await change()
            finally:
                if self._journal.lost:
                    self.give_up(self._journal.lost)

    async def run_with_retries(self, change: Callable[[], Awaitable[Result]], *, shielded: bool = True) -> Result:
        """Carry out one change that bears repetition, however often the store has to be asked.

        Args:
            shielded: a change that has begun ends even if the caller is cancelled; which costs a task.

        Raises:
            StoreError: for `store_retry_s`, or the session is owned by another.
        """
        deadline = asyncio.get_running_loop().time() + self._engines.config.store_retry_s
        pause_s = 0.01
        while True:
            try:
                return await (self.run(change) if shielded else self.run_here(change))
            except CorruptRecordError:
                raise
            except StoreError as error:
                late = asyncio.get_running_loop().time() + pause_s > deadline
                if late or self._journal.lost or isinstance(error, SessionFencedError):
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    async def run_until_stored(self, change: Callable[[], Awaitable[Result]]) -> Result:
        """Carry out one change that bears repetition, however long the store is away.

        Raises:
            StoreError: a row is corrupt, or the session is owned by another.
        """
        while True:
            try:
                return await self.run_with_retries(change)
            except CorruptRecordError:
                raise
            except StoreError:
                if self._journal.lost:
                    raise
            await asyncio.sleep(MOST_PAUSE_S)

    @property
    def alone(self) -> asyncio.Lock:
        """Held by the change that is under way; for what is to run between two changes without being one."""
        return self._lock

    # Commits

    async def commit(
        self,
        session: SessionRecord,
        events: Sequence[NewEvent] = (),
        *,
        blocks: Sequence[Block] = (),
        encoded: Sequence[str] | None = None,
        turns: Sequence[TurnRecord] = (),
        dropped_turns: Sequence[int] = (),
        new_run: RunRecord | None = None,
        runs: Sequence[RunRecord] = (),
        live: bool | None = None,
        doubt: UnknownOutcome | None = None,
    ) -> None:
        """Number the events, store all of this, and hold the blocks. Within a change.

        Args:
            session: the row; its log ends with the `blocks`.
            encoded: the blocks as they are stored, where they are encoded already.
            live: whether a run is active after it; as now if None.
            doubt: is told, if the outcome is unknown, once the next activation has found out.

        Raises:
            DuplicateKeyError: nothing was stored.
            TurnwiseError: see `Journal.commit`.
        """
        texts = [encode(block) for block in blocks] if encoded is None else encoded
        live = self._state.active is not None if live is None else live
        unbilled, self._owed = self._owed, None
        if unbilled:
            session = replace(session, usage=session.usage + unbilled)
        session = self._mark.stamp(session, turns)
        numbered = self._journal.number(events)
        self._doubt = doubt
        if doubt and numbered:
            doubt.seq = numbered[0].seq
        commit = Commit(
            session=session,
            events=numbered,
            blocks=texts,
            turns=turns,
            dropped_turns=dropped_turns,
            new_run=new_run,
            runs=runs,
        )
        try:
            await self._journal.commit(commit, live=live)
        except DuplicateKeyError:
            self._doubt = None
            self.add_unbilled(unbilled)
            raise
        except TurnwiseError:
            if self._journal.lost:
                self.give_up(self._journal.lost)
            raise
        self._doubt = None
        self._mark.stored(session)
        if blocks:
            self._journal.cache.add(session.log, session.log_size - len(blocks), blocks)

    @property
    def unbilled(self) -> Usage:
        """What was spent that no commit has told of: the next one does."""
        return self._owed or Usage()

    def add_unbilled(self, spent: Usage | None) -> None:
        """Put what no commit has told of on the next one."""
        if spent:
            self._owed = self._owed + spent if self._owed else spent

    # Owning the session

    async def loaded(self) -> None:
        """Return when this process has the session: activate it first, if the store is to say where it stands.

        Raises:
            TurnwiseError: this process has it no more.
        """
        if self._journal.stale and self._journal.lost is None:
            await self.activate()
        if self._journal.lost:
            raise self._journal.lost

    async def activate(self) -> None:
        """Take the session over from whoever had it: raise the epoch, see to the run that was lost, go on.

        Runs by itself before the first change or read. Other cores of the session are fenced from here on.
        """
        if self._journal.stale:
            await self.run(_nothing)

    async def _activate(self) -> None:
        found = await self._journal.activate()
        if self._doubt:
            self._doubt.stored = self._doubt.seq in self._journal.caught_up
            self._doubt = None
        await self._recover(found)
        self._journal.mark_loaded()  # from here on a run that is not open has ended, and its last event is there

    def give_up(self, why: Exception) -> None:
        """Stop the engine, answer everybody, change nothing: this process has the session no more."""
        self._state.clear(why)
        self._engines.close_all()
        # It leads back to this object: without it the parts are freed at once, not when garbage is looked for.
        self._recover = _recover_nothing

    def is_final(self, error: BaseException) -> bool:
        """Return whether trying again would meet the same error: the session is lost, or cannot be read."""
        unreadable = isinstance(error, CorruptRecordError | EncryptionError | NotFoundError)
        return self._journal.lost is not None or unreadable


async def _nothing() -> None:
    return None


async def _recover_nothing(found: Activation) -> None:
    """A session that is lost is not activated again."""
