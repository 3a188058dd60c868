"""Whether this process has a session, may leave it, and how it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from turnwise.actors.session.memory_ingestion import MemoryIngestion
from turnwise.actors.session.session_engines import SessionEngines
from turnwise.actors.session.state import SessionState
from turnwise.actors.session.transactor import Transactor
from turnwise.actors.session.window_compaction import WindowCompaction
from turnwise.errors import SessionFencedError, SessionNotFoundError

FLUSH_S = 5.0
"""How long a process that leaves waits for its events to reach their history; the next one sees to the rest."""


class Ownership:
    """A process's hold on a session: from its activation until it leaves, is fenced, or the session is deleted.

    | await in leaving | what else may run there | what a kill there leaves |
    |---|---|---|
    | the commit of how far memories are | reads | turns that memories are given again |
    | the note of the engines of runs that wait | reads | the session here, or a note that nobody needs |
    | the event history | nothing: the session is lost here | events that the next process forwards |
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
        """The runs that waited for somebody's word, or behind one that did, when it left, and their engines' ids."""

    @property
    def is_in_use(self) -> bool:
        """Whether something runs or is about to. A run that awaits approval, and what is behind it, does neither."""
        active = self._state.active
        waits = active and active.record.state == "awaiting_approval" and active.is_waiting
        runs = not waits and bool(active or self._state.run_queue.queue)
        return runs or self._compaction.is_under_way or self._ingestion.is_at_work

    @property
    def is_lost(self) -> bool:
        """Whether this process has the session no more: it left, was fenced, or has deleted it."""
        return self._journal.lost is not None

    @property
    def is_active(self) -> bool:
        """Whether this process has the session."""
        return bool(self._journal.session.epoch) and not self.is_lost

    async def check_log(self, log: str) -> None:
        """Raise if the session that this process has is not the one whose log this is. Costs nothing if it is.

        Raises:
            SessionFencedError: the store has another session of this id by now; another core is to look.
            SessionNotFoundError: the session of this log was deleted, or a restore took it; there is another.
        """
        await self._transactor.loaded()
        if self._journal.session.log != log:
            await self._transactor.run(self._journal.check_own)
            raise SessionNotFoundError(self._state.session_id)

    async def check_own(self) -> None:
        """Raise if the store has not the session as this process has left it: for who misses something of it.

        Raises:
            SessionFencedError, SessionNotFoundError, SessionRevertedError: it has not; another core is to look.
        """
        if self._journal.session.epoch:
            await self._transactor.run(self._journal.check_own)

    async def leave(self, note: Callable[[Mapping[str, str]], Awaitable[None]] | None = None) -> bool:
        """Give the session up if it is not `is_in_use`; return whether it has it no more. Later calls are fenced.

        Args:
            note: is told first which engine each run that waits has, by run id. If it fails, the session stays here.
        """
        async with self._transactor.alone:
            if self.is_lost:
                return True
            if self.is_in_use:
                return False
            await self._ingestion.store_mark()
            waiting = self._engines.ids() if self._state.active else {}
            if note:
                await note(waiting)
            self.left_waiting = waiting
            lost = SessionFencedError(self._state.session_id, self._journal.session.epoch)
            self._journal.lose(lost)
        closing = self._engines.remove_all()
        if self._journal.feed:
            await self._journal.feed.settle(FLUSH_S)
        self._transactor.give_up(lost)
        await self._engines.close(closing)
        return True
