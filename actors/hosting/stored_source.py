"""`StoredSource`: a session in its store, read without activating it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from turnwise.actors.session.state.active_run import ActiveRun
from turnwise.actors.session.state.event_log import EventLog
from turnwise.actors.session.state.journal import Journal
from turnwise.actors.session.state.recorded_output import RecordedOutput
from turnwise.actors.session.state.state import SessionState
from turnwise.errors import SessionNotFoundError
from turnwise.memory.conversation.branches import shown_among
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import union
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.encrypted.records import check_session
from turnwise.memory.stores.reading import read_runs, read_turns
from turnwise.memory.stores.store_owner import rivals

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


class StoredSource:
    """A `ReadSource`: the session in its store. Nothing is activated, so no run is interrupted.

    The store has no live events, and no usage since a run's last commit. One read at a time uses a source.

    Args:
        log: the log of the session that is meant; any session with this key if empty.
        raises_unattended: if true, a wait raises UnattendedError when no other Ray has the store open; if false, it
            continues.
    """

    def __init__(
        self,
        key: SessionKey,
        store: SessionStore,
        history: HistoryStore | None,
        *,
        log: str = "",
        raises_unattended: bool = True,
    ) -> None:
        self._key = key
        self._journal = Journal(key, store, time.time, history)
        self._log = log
        self._raises_unattended = raises_unattended
        self.state = SessionState(key, self._journal)

    async def look(self) -> None:
        """Read the session's row, and forget the runs that an earlier read has found. All events are in the store.

        Raises:
            SessionNotFoundError: there is no such session, or the one of this key has another log.
        """
        journal = self._journal
        session = check_session(await journal.store.get(self._key))
        if self._log not in ("", session.log):
            raise SessionNotFoundError(self._key.session_id)
        journal.read_row(session)
        # No event is held, so all are read from the store: also those above the row's number, which come meanwhile.
        journal.log = EventLog(_ABOVE_ALL)
        journal.log.published = session.seq
        self.state.set_active(None)
        self.state.replace_backlog()

    async def wait_for_run(self, deadline: float | None) -> bool:
        """Wait until the store is to be asked again; return whether there is time to.

        Raises:
            UnattendedError: no other Ray can be running the run.
        """
        if self._raises_unattended and not await rivals(self._journal.store):
            raise UnattendedError
        left_s = POLL_S if deadline is None else min(POLL_S, deadline - asyncio.get_running_loop().time())
        await asyncio.sleep(max(0.0, left_s))
        return left_s > 0

    async def wait_for_events(self, deadline: float) -> None:
        """Wait until the store is to be asked again, and load the session.

        Raises:
            UnattendedError: no other Ray can be running the session.
        """
        await self.wait_for_run(deadline)
        await self.load()

    async def stored_events(self, after: int, limit: int) -> Sequence[Event]:
        """Return up to `limit` stored events with a number above `after`; reads only the session's row and these."""
        await self.look()
        return await self._journal.events(after, limit)

    async def load(self) -> None:
        """Read where the session stands: its row, its last turns, and their runs that are open."""
        await self.look()
        journal = self._journal
        journal.mark_loaded()
        turns = await self._last_turns()
        heads = [turn for turn in turns if not turn.is_open][-1:]
        self.state.continue_from(heads[0] if heads else None)
        opened = [turn for turn in turns if turn.is_open]
        await journal.blocks.load(
            union(*(part for turn in (*heads, *opened) for part in (turn.prompt, turn.spans, turn.base)))
        )
        self.state.replace_backlog(opened)
        waiting = {turn.index: turn for turn in opened if turn.status != "pending"}
        if not waiting:
            return
        first_index, last_index = min(waiting), max(waiting)
        for record in await read_runs(partial(journal.store.runs, self._key), first_index, last_index + 1):
            if record.is_open and record.turn_index in waiting:
                run = ActiveRun(self.state.view(), record, waiting[record.turn_index], _NO_RESOURCES)
                run.output = RecordedOutput.read(run.turn.output, journal.blocks.cache)
                if record.state == "queued":
                    self.state.run_queue.add(run)
                else:
                    self.state.set_active(run)

    async def _last_turns(self) -> Sequence[TurnRecord]:
        """Return the last shown turns, by index, the last one that has ended among them if there is one."""
        count = TAIL
        while True:
            stop = self._journal.session.next_index
            start = max(0, stop - count)
            stored = await read_turns(partial(self._journal.store.turns, self._key), start, stop)
            is_among = shown_among(self._journal.session.branches)
            turns = [turn for turn in stored if is_among(turn.index)]
            if start == 0 or any(not turn.is_open for turn in turns):
                return turns
            count *= 2
