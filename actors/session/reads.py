"""What a session can be asked without changing it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from turnwise.actors.session.journal import settled
from turnwise.actors.session.state import SessionState
from turnwise.actors.session.summary_expansion import find, originals
from turnwise.errors import InvalidInputError, RunNotFoundError, SessionRevertedError, shown
from turnwise.memory.conversation.blocks import AnyBlock, Summary, ToolUse
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.frozen_json import FrozenDict
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import join, union
from turnwise.memory.conversation.tool_calls import PendingCall, decode_calls
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.stores.base import SessionStore


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `turn` is what was kept of it."""

    run: RunRecord
    turn: Turn | None


class SessionReads:
    """The reads of a session. They take no lock and never wait for a change.

    Args:
        load: returns when the state is to be read; see `Transactor.loaded`.
    """

    def __init__(self, state: SessionState, load: Callable[[], Awaitable[None]]) -> None:
        self.session_id = state.session_id
        self._state = state
        self._journal = state.journal
        self._load = load

    async def wait(self, run_id: str, timeout_s: float | None = None) -> Outcome | None:
        """Return how the run ended, when it has; None after `timeout_s`. Waiting and giving up change nothing.

        Raises:
            RunNotFoundError: the session has no such run.
            StoreError: the run's end could not be stored.
        """
        await self._load()
        while True:
            if run := self._state.open_run(run_id):
                if not await settled(run.done, timeout_s):
                    return None
                run.done.result()
            if ended := self._state.ended_run(run_id):
                record, turn = ended
                return Outcome(record, (await self._journal.read_turns([turn]))[0] if turn else None)
            record = await self.stored_run(run_id)
            if not record.is_open:
                turn = await self._journal.find_turn_of(record)
                return Outcome(record, (await self._journal.read_turns([turn]))[0] if turn else None)
            if not self._state.open_run(run_id):
                await self._load()  # it was lost with an earlier activation, which has yet to be settled

    async def run(self, run_id: str) -> RunRecord:
        """Return where the run stands; its usage is up to now."""
        await self._load()
        if run := self._state.open_run(run_id):
            return replace(run.record, usage=run.spent)
        ended = self._state.ended_run(run_id)
        return ended[0] if ended else await self.stored_run(run_id)

    async def stored_run(self, run_id: str) -> RunRecord:
        """Return a run of this session.

        Raises:
            RunNotFoundError: it has none of this id.
            SessionRevertedError: likewise, and the store once went back, so it may have had one.
        """
        try:
            return await self._journal.find_run(run_id)
        except RunNotFoundError as error:
            if await self._journal.has_reverted():
                raise SessionRevertedError(self.session_id) from error
            raise

    async def pending(self, run_id: str) -> list[PendingCall]:
        """Return the calls of the run that wait for a decision, in the order in which they were made."""
        record = await self.run(run_id)
        run = self._state.open_run(run_id)
        uses = {block.call_id: block for block in run.output.blocks if isinstance(block, ToolUse)} if run else {}
        return [
            PendingCall(
                call_id=call_id,
                name=state.name,
                input=FrozenDict(uses[call_id].input) if call_id in uses else FrozenDict(),
                wants=state.wants,
                why=state.why,
            )
            for call_id, state in decode_calls(record.calls).items()
            if record.is_open and state.is_waiting and state.wants
        ]

    async def session(self) -> SessionRecord:
        """Return the session's row as of its last commit."""
        await self._load()
        return self._journal.session

    @property
    def stores(self) -> tuple[SessionStore, HistoryStore | None]:
        """Where it is kept."""
        return self._journal.store, self._journal.feed.history if self._journal.feed else None

    @property
    def is_activated(self) -> bool:
        """Whether this process has, or had, the session."""
        return self._journal.session.epoch > 0

    @property
    def active_run_id(self) -> str | None:
        """The run that has the session's claim."""
        return self._state.active.run_id if self._state.active else None

    def is_ending(self, run_id: str) -> bool:
        """Return whether the run's outcome is decided, whether or not it is stored yet."""
        run = self._state.open_run(run_id)
        return run is None or run.closed

    @property
    def queued_run_ids(self) -> list[str]:
        """The runs that wait behind it, in order."""
        return [run.run_id for run in self._state.run_queue.queue]

    async def latest(self) -> Turn | None:
        """Return the newest turn: pending prompts on top of all before them, else the last queued, running or ended."""
        await self._load()
        active, head = self._state.active, self._state.head
        if waiting := self._state.run_queue.turns:
            base = active.turn.input if active else head.base if head else ()
            turn = replace(waiting[-1], input=join(base, *(turn.prompt for turn in waiting)))
            return self._journal.turn(turn)
        newest = active.turn if active else head
        return self._journal.turn(newest) if newest else None

    async def turns(self, after: int = -1, limit: int = 100) -> list[Turn]:
        """Return up to `limit` turns with an index above `after`, by index."""
        await self._load()
        found = await self._journal.store.turns(self.session_id, after=after, limit=limit)
        return await self._journal.read_turns(found)

    async def turn(self, index: int) -> Turn:
        """Return the turn.

        Raises:
            TurnNotFoundError: there is none of this index.
        """
        await self._load()
        return (await self._journal.read_turns([await self._journal.find_turn(index)]))[0]

    async def runs(self, after: int = -1, limit: int = 100) -> list[RunRecord]:
        """Return up to `limit` runs with a turn index above `after`, by turn index."""
        await self._load()
        return await self._journal.store.runs(self.session_id, after=after, limit=limit)

    async def events(
        self, after: int = 0, limit: int = 1000, *, run_id: str | None = None, timeout_s: float = 0.0
    ) -> tuple[list[Event], int, bool]:
        """Return events with a number above `after`, where to go on from, and whether `run_id` has no more to come.

        Looks at up to `limit` events, of the run only if one is named; waits up to `timeout_s` for the first. Events
        that have left memory come from the store, without the live ones among them.
        """
        await self._load()
        if run_id is not None:
            after = max(after, (await self.run(run_id)).first_seq - 1)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            in_doubt = self._journal.stale or self._journal.lost  # a run that is not open may not have ended
            ended = run_id is not None and self._state.open_run(run_id) is None and not in_doubt
            events = await self._journal.events(after, limit)
            after = events[-1].seq if events else after
            chosen = [event for event in events if run_id in (None, event.run_id)]
            done = ended and len(events) < limit
            left = deadline - asyncio.get_running_loop().time()
            if self._journal.lost and not chosen:
                raise self._journal.lost  # what has not ended here goes on elsewhere
            if chosen or done or left <= 0:
                return chosen, after, done or any(event.terminal for event in chosen if run_id)
            if not events:
                await self._journal.log.news(left)

    async def expand(self, summary: Summary) -> tuple[AnyBlock, ...]:
        """Return what a summary stands for, in order, with that in place of the summaries folded into it.

        The summary is one that the session goes on with, or that was folded into one of these.

        Raises:
            InvalidInputError: it is none of them.
        """
        await self._load()
        active, head = self._state.active, self._state.head
        turns = [turn for turn in (head, active and active.turn) if turn]
        held = union(*(part for turn in turns for part in (turn.spans, turn.base)))
        if not await find(summary, held, self._journal.read):
            why = f"it is none of session {self.session_id!r}: pass one of a turn's blocks"
            raise InvalidInputError("summary", shown(summary.text), why)
        return await self._journal.read(await originals(summary, self._journal.read))
