"""`Additions`: events that callers add to a session or to a run, from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.actors.inference.timeline import custom_event
from turnwise.actors.session.state.acting import check_acting, check_own
from turnwise.actors.session.state.reads import SessionReads
from turnwise.actors.session.state.run_events import about
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.errors import DuplicateKeyError, InvalidInputError, SessionEndedError, shown
from turnwise.memory.conversation.events import CustomEvent


class Additions:
    """Stores events of callers' own, each in one commit.

    While an addition awaits its commit, reads and streaming go on; a crash leaves the event stored or not.
    """

    def __init__(self, state: SessionState, transactor: Transactor, reads: SessionReads) -> None:
        self._state = state
        self._journal = state.journal
        self._transactor = transactor
        self._reads = reads

    async def add_event(self, name: str, data: Mapping[str, Any] | None, key: str, run_id: str | None = None) -> int:
        """Store a `CustomEvent` of an open run, or of the session; return its number. Durable on return.

        For a merged run, the event is of the run that has its prompts.

        Args:
            key: identifies this call; repeating the key stores nothing and returns the same number.

        Raises:
            RunNotFoundError: the session has no such run.
            InvalidInputError: the run has ended, or the name or the data cannot be stored.
            SessionEndedError: the session has ended, and no run was named; nothing was stored.
        """
        leading = None if run_id is None else await self._reads.leading(run_id)
        values = {**custom_event(name, data), "key": key}

        async def change() -> int:
            if leading is None:
                await check_acting(self._journal.session, self._journal.store, "owner")
                if self._journal.session.status == "ended":
                    raise SessionEndedError(self._state.session_id)
                run_fields = {}
            else:
                run = self._state.open_run(leading)
                if run is None:
                    if event := await self._journal.store.event_of_key(self._state.key, key):
                        return event.seq
                    record = await self._journal.records.find_run(leading)
                    reason = f"the run is {record.state}, and its last event says so: add the event to the session"
                    raise InvalidInputError("run_id", shown(leading), reason)
                await check_own(self._journal.session, self._journal.store, run.record)
                run_fields = about(run.record)
            seq = self._journal.log.next_seq()
            await self._transactor.commit(self._journal.session, [(CustomEvent, {**run_fields, **values})])
            return seq

        try:
            return await self._transactor.run(change)
        except DuplicateKeyError:
            event = await self._journal.store.event_of_key(self._state.key, key)
            if event is None:
                raise
            return event.seq
