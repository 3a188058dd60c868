"""`StoredSession`: reads a session from its store without activating it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from turnwise.actors.session.active_run import ActiveRun
from turnwise.actors.session.event_log import EventLog
from turnwise.actors.session.journal import Journal
from turnwise.actors.session.reads import SessionReads
from turnwise.actors.session.recorded_output import RecordedOutput
from turnwise.actors.session.state import SessionState
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.runs import Until, has_reached
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import union
from turnwise.memory.conversation.turns import Outcome, TurnRecord
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.encrypted.records import check_session
from turnwise.memory.stores.reading import read_runs, read_turns
from turnwise.memory.stores.sharing import rivals

POLL_S = 0.5
"""How often the store is asked about a run that another Ray runs, in seconds."""

TAIL = 64
"""How many turns are read to find the last one that has ended; twice as many each further time."""


_ABOVE_ALL = 2**63 - 2
"""No event has a number as high."""

_NO_RESOURCES: Any = None
"""The run resources of a session that is only read: its runs are not run here."""


class UnattendedError(Exception):
    """No other Ray has the store open, so the awaited run ends or resumes only when the session is activated."""


class StoredSession:
    """Reads a session from its store. Nothing is activated, so no run is interrupted.

    Each read queries the store again. The store has no live events, and no usage since a run's last commit.

    Args:
        raises_unattended: if true, a wait raises UnattendedError when no other Ray has the store open; if false, it
            continues.
    """

    def __init__(
        self, key: SessionKey, store: SessionStore, history: HistoryStore | None, *, raises_unattended: bool = True
    ) -> None:
        self._key = key
        self._journal = Journal(key, store, time.time, history)
        self._state = SessionState(key, self._journal)
        self._raises_unattended = raises_unattended
        self.reads = SessionReads(self._state, self._load)
        """The reads that wait for nothing; `wait` and `events` below wait for others, who have the session."""

    async def wait(self, run_id: str, timeout_s: float | None = None, until: Until = "ended") -> Outcome:
        """See `SessionReads.wait`.

        Raises:
            UnattendedError: the run is not as awaited, and no other Ray can be running it.
        """
        await self._look()
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while not has_reached((record := await self._journal.records.find_run(run_id)).state, until) or record.leads_to:
            run_id = record.leads_to or run_id
            if record.is_open and not await self._poll(deadline):
                return Outcome(record, None)
        turn = await self._journal.records.find_turn_of(record)
        return Outcome(record, (await self._journal.blocks.read_turns([turn]))[0] if turn else None)

    async def events(
        self, after: int = 0, limit: int = 1000, *, run_id: str | None = None, timeout_s: float = 0.0
    ) -> tuple[list[Event], int, bool]:
        """See `SessionReads.events`.

        Raises:
            UnattendedError: there are none, the run has not ended, and no other Ray can be running it.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            found, after, done = await self.reads.events(after, limit, run_id=run_id)
            if found or done or timeout_s <= 0 or not await self._poll(deadline):
                return found, after, done

    async def stored_events(self, after: int, limit: int) -> Sequence[Event]:
        """Return up to `limit` stored events with a number above `after`; reads only the session's row and these."""
        await self._look()
        self._journal.log = EventLog(_ABOVE_ALL)
        return await self._journal.events(after, limit)

    async def _poll(self, deadline: float | None) -> bool:
        """Wait until the store is to be asked again; return whether there is time to."""
        if self._raises_unattended and not await rivals(self._journal.store):
            raise UnattendedError
        left_s = POLL_S if deadline is None else min(POLL_S, deadline - asyncio.get_running_loop().time())
        await asyncio.sleep(max(0.0, left_s))
        return left_s > 0

    async def _look(self) -> None:
        """Read the session's row."""
        journal = self._journal
        journal.read_row(check_session(await journal.store.get(self._key)))

    async def _load(self) -> None:
        """Read where the session stands: its row, its last turns, and their runs that are open."""
        await self._look()
        journal = self._journal
        # No event is held, so all are read from the store: also those above the row's number, which come meanwhile.
        journal.log = EventLog(_ABOVE_ALL)
        journal.log.published = journal.session.seq
        journal.mark_loaded()
        turns = await self._tail()
        heads = [turn for turn in turns if not turn.is_open][-1:]
        self._state.continue_from(heads[0] if heads else None)
        opened = [turn for turn in turns if turn.is_open]
        await journal.blocks.load(
            union(*(part for turn in (*heads, *opened) for part in (turn.prompt, turn.spans, turn.base)))
        )
        self._state.set_active(None)
        self._state.replace_backlog(opened)
        waiting = {turn.index: turn for turn in opened if turn.status != "pending"}
        if not waiting:
            return
        first, last = min(waiting), max(waiting)
        for record in await read_runs(partial(journal.store.runs, self._key), first, last + 1):
            if record.is_open and record.turn_index in waiting:
                run = ActiveRun(self._state.view(), record, waiting[record.turn_index], _NO_RESOURCES)
                run.output = RecordedOutput.read(run.turn.output, journal.blocks.cache)
                if record.state == "queued":
                    self._state.run_queue.add(run)
                else:
                    self._state.set_active(run)

    async def _tail(self) -> Sequence[TurnRecord]:
        """Return the last turns, by index, the last one that has ended among them if there is one."""
        count = TAIL
        while True:
            stop = self._journal.session.next_index
            start = max(0, stop - count)
            turns = await read_turns(partial(self._journal.store.turns, self._key), start, stop)
            if start == 0 or any(not turn.is_open for turn in turns):
                return turns
            count *= 2
