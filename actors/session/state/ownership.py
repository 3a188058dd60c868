"""`Ownership`: whether this process owns a session, whether it may give the session up, and giving it up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial

from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.memory.memory_ingestion import MemoryIngestion
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.actors.session.window.window_compaction import WindowCompaction
from turnwise.errors import SessionFencedError, SessionNotFoundError, TurnwiseError
from turnwise.memory.values.records import replace

_log = logging.getLogger(__name__)

FLUSH_S = 5.0
"""How many seconds a leaving process waits for its events to reach the history store.

The next process forwards the rest."""

NOTE_S = 5.0
"""How many seconds a process that abandons a session waits until the store has the reason."""


class Ownership:
    """A process's ownership of a session, from activation until it leaves, is fenced, or the session is deleted.

    While `leave` awaits the following, other work may run, and the process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | the commit of the memories' progress | reads | turns that memories receive again |
    | the note of the engines needed later | reads | a session that was not given up, and perhaps an unused note |
    | the event history | nothing: the session is given up | events that the next process forwards |
    | the note of `abandon` in the run's record | all; the run may end | a run whose process was lost |
    """

    def __init__(
        self,
        state: SessionState,
        transactor: Transactor,
        engines: SessionEngines,
        compaction: WindowCompaction,
        ingestion: MemoryIngestion,
    ) -> None:
        self._state = state
        self._journal = state.journal
        self._transactor = transactor
        self._engines = engines
        self._compaction = compaction
        self._ingestion = ingestion
        self.left_waiting: dict[str, str] = {}
        """The engine ids, by run id, of the runs that had not ended when this process gave the session up."""
        self.left_queue = False
        """Whether queued runs were to begin when this process gave the session up: somebody has to load it again."""

    @property
    def is_in_use(self) -> bool:
        """Whether it `has_runs`, or a compaction or memory save is active."""
        return self.has_runs or self._compaction.is_under_way or self._ingestion.is_saving

    @property
    def has_runs(self) -> bool:
        """Whether a run is active or about to start.

        A run that awaits approval, and the runs queued behind it, do not count; neither do queued runs that the next
        process is to begin.
        """
        active = self._state.active
        waits = active and active.record.state == "awaiting_approval" and active.is_waiting and not active.is_working
        runs = not waits and bool(active or (self._state.run_queue.queue and not self._state.holds_queue))
        return runs or self._transactor.may_have_begun

    @property
    def is_lost(self) -> bool:
        """Whether this process no longer owns the session: it left, was fenced, or deleted the session."""
        return self._journal.lost is not None

    @property
    def is_active(self) -> bool:
        """Whether this process owns the session."""
        return bool(self._journal.session.epoch) and not self.is_lost

    async def check_log(self, log: str) -> None:
        """Raise if the loaded session's log differs from `log`. Costs nothing if it is the same.

        Raises:
            SessionFencedError: the store has another session with this id by now; create a new `SessionCore` to load
                it.
            SessionNotFoundError: the session with this log was deleted, or removed by a restore; the id belongs to
                another session.
        """
        await self._transactor.loaded()
        if self._journal.session.log != log:
            await self._transactor.run(self._journal.check_own)
            raise SessionNotFoundError(self._state.session_id)

    async def check_own(self) -> None:
        """Raise if the stored session is not as this process last committed it. Call it when a record is missing.

        Raises:
            SessionFencedError, SessionNotFoundError, SessionRevertedError: the stored session differs; create a new
                `SessionCore` to load it.
        """
        if self._journal.session.epoch:
            await self._transactor.run(self._journal.check_own)

    def hold_queue(self) -> None:
        """Begin no queued run from now on, so that the session can be given up as soon as the active run has ended."""
        self._state.hold_queue()

    def leave_failed_saves(self) -> None:
        """Do not keep the session for a memory that has failed: the next process saves what it lacks."""
        self._ingestion.leave_failed()

    async def leave(self, note: Callable[[Mapping[str, str]], Awaitable[None]] | None = None) -> bool:
        """Give the session up unless it `is_in_use`; return whether it was given up.

        Later calls raise SessionFencedError.

        Args:
            note: called first with the engine id of each run that has not ended, by run id. If it raises, this process
                keeps the session.
        """
        async with self._transactor.alone:
            if self.is_lost:
                return True
            if self.is_in_use:
                return False
            await self._ingestion.store_mark()
            await self._transactor.store_unbilled()
            waiting = self._engines.ids()
            if note:
                await note(waiting)
            self.left_waiting = waiting
            self.left_queue = bool(self._state.run_queue.queue) and not self._state.active
            error = SessionFencedError(self._state.session_id, self._journal.session.epoch)
            self._journal.lose(error)
        closing = self._engines.remove_all()
        if self._journal.forwarder:
            await self._journal.forwarder.flush(FLUSH_S)
        self._transactor.give_up(error)
        if unsaved := await self._ingestion.stop():
            name = self._state.key.full_name
            _log.warning("session %r ends, and a memory lacks turns (%d): the next process saves them", name, unsaved)
        await self._engines.close(closing)
        return True

    async def abandon(self, why: str) -> None:
        """Give the session up although it is in use: the next process ends or resumes its run, as after a crash.

        What callers were told is stored. The run's record says why, unless the store fails meanwhile or is slow.
        """
        self.hold_queue()
        with suppress(TurnwiseError, TimeoutError):
            await asyncio.wait_for(self._transactor.run(partial(self._note_why, why)), NOTE_S)
        async with self._transactor.alone:
            if self.is_lost:
                return
            self.left_waiting = self._engines.ids()
            error = SessionFencedError(self._state.session_id, self._journal.session.epoch)
            self._journal.lose(error)
        self._transactor.give_up(error)

    async def _note_why(self, why: str) -> None:
        active = self._state.active
        if active and active.record.state == "running" and not active.done.done():
            record = replace(active.record, why=why)
            await self._transactor.commit(self._journal.session, runs=[record], live=True)
            active.record = record
