"""`Additions`: events that callers add to a session or to a run, from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.actors.inference.timeline import custom_event
from turnwise.actors.session.acting import check_acting, check_own
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.state.reads import SessionReads
from turnwise.actors.session.state.run_events import about_added
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.errors import DuplicateKeyError, SessionEndedError
from turnwise.memory.conversation.events import CustomEvent
from turnwise.memory.conversation.runs import RunRecord


class Additions:
    """Stores events of callers' own, each in one commit.

    While an addition awaits its commit, reads and streaming go on; a crash leaves the event stored or not.
    """

    def __init__(
        self, state: SessionState, transactor: Transactor, engines: SessionEngines, reads: SessionReads
    ) -> None:
        self._state = state
        self._engines = engines
        self._journal = state.journal
        self._transactor = transactor
        self._reads = reads

    async def add_event(
        self,
        name: str,
        data: Mapping[str, Any] | None,
        key: str,
        *,
        run_id: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> int:
        """Store a `CustomEvent` of a run, or of the session; return its number. Durable on return.

        For a merged run, the event is of the run that has its prompts. An event of a run that has ended comes after the
        run's terminal event.

        Args:
            key: identifies this call; repeating the key stores nothing and returns the same number.

        Raises:
            RunNotFoundError: the session has no such run.
            InvalidInputError: the name, the data or the labels cannot be stored.
            SessionEndedError: the session has ended, and the run, if one was named; nothing was stored.
        """
        leading = None if run_id is None else await self._reads.leading(run_id)
        self._engines.config.check_labels(labels or {})
        values: dict[str, Any] = {**custom_event(name, data, labels), "key": key}

        async def change() -> int:
            session, store = self._journal.session, self._journal.store
            run = None if leading is None else self._state.open_run(leading)
            record = None
            if leading is None:
                await check_acting(session, store, "owner")
            else:
                record = run.record if run else await self._journal.records.find_run(leading)
                await check_own(session, store, record)
            if run is None and session.status == "ended":
                if event := await store.event_of_key(self._state.key, key):
                    return event.seq
                raise SessionEndedError(self._state.session_id)
            if run:
                fields = about_added(run.record, values)
            elif record:
                fields = await self._about_ended(record, values)
            else:
                fields = values
            seq = self._journal.log.next_seq()
            await self._transactor.commit(self._journal.session, [(CustomEvent, fields)])
            return seq

        try:
            return await self._transactor.run(change)
        except DuplicateKeyError:
            event = await self._journal.store.event_of_key(self._state.key, key)
            if event is None:
                raise
            return event.seq

    async def _about_ended(self, record: RunRecord, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of an event of a run that has ended, whose turn may have been dropped."""
        turn = await self._journal.records.find_turn_of(record)
        return {"turn_id": turn.turn_id if turn else None, **about_added(record, values)}
