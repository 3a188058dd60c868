"""A run that has not ended: where it stands, and who wants it stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from turnwise.actors.inference.attempt import Attempt, storable
from turnwise.actors.inference.engine import SessionView
from turnwise.actors.session.recorded_output import RecordedOutput
from turnwise.memory.conversation.blocks import Block, Recalled
from turnwise.memory.conversation.runs import RunRecord, RunState
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.tool_calls import CallState, decode_calls
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.longterm.prompt_sections import Profile
from turnwise.memory.longterm.session_memory import MemoryAccess

if TYPE_CHECKING:
    from turnwise.actors.session.run_resources import RunResources


class ActiveRun:
    """A queued, running or waiting run in memory: its record and turn as of the last commit, and what came since."""

    def __init__(self, session: SessionView, record: RunRecord, turn: TurnRecord, run_resources: RunResources) -> None:
        self.session = session
        self.run_resources = run_resources
        """What it works with, to its end."""
        self.record = record
        self.turn = turn
        self.output = RecordedOutput()
        loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = loop.create_future()
        """Set when the end is in the store and the session's claim is free; an exception if it could not be stored."""
        self.cancelled: asyncio.Future[str] = loop.create_future()
        """Set to the reason."""
        self.decided = asyncio.Event()
        """Set when nothing is left to decide, for a run that awaits approval."""
        self.discard = False
        self.attempt: Attempt | None = None
        """The engine at work on it."""
        self.recalled: Recalled | None = None
        """What long-term memory has about its prompt."""
        self.found: dict[str, int] = {}
        """How many items each memory returned for it, by the name of the memory."""
        self.profile = Profile()
        """What of it is for every request of the user."""
        self.asked: asyncio.Task[Any] | None = None
        """What memories say of it, if they were asked before it began."""
        self.query = ""
        """What memories were asked about its prompt."""
        self.has_asked_memories = False
        self.memory: MemoryAccess | None = None
        """What the session's memories do for it; None if there are none, or it goes without."""
        self.unbilled = Usage()
        """What it has spent since its last commit, time aside."""
        self._since = loop.time()
        self._bill = self.unbilled, self._since

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def closed(self) -> bool:
        """Whether its outcome is decided."""
        return self.attempt is not None and self.attempt.closed

    @property
    def calls(self) -> dict[str, CallState]:
        """What became of its tool calls, as of the last commit."""
        return decode_calls(self.record.calls)

    @property
    def is_waiting(self) -> bool:
        """Whether somebody has to decide before it can go on."""
        return any(state.is_waiting for state in self.calls.values())

    @property
    def spent(self) -> Usage:
        """What it has spent up to now."""
        usage = self.record.usage + self.unbilled if self.record.usage else self.unbilled
        if self.record.state != "running":
            return usage
        return replace(usage, seconds=usage.seconds + (asyncio.get_running_loop().time() - self._since))

    def bill(self) -> Usage:
        """Return what it has spent up to now, for its next record. `billed` follows if that is stored."""
        self._bill = self.unbilled, asyncio.get_running_loop().time()
        spent = self.spent
        # Rounded as stores keep it, so that what is in memory and what is read back are equal.
        return replace(spent, seconds=round(spent.seconds, 6), cost=round(spent.cost, 12))

    def billed(self, record: RunRecord) -> None:
        """Take over the record of the last bill, and count from there."""
        self.record = record
        billed, self._since = self._bill
        self.unbilled -= billed

    def restart_clock(self) -> None:
        """Let the time that it spends count from now."""
        self._since = asyncio.get_running_loop().time()

    def charged(self, session: SessionRecord, record: RunRecord) -> SessionRecord:
        """Return the session's row with what `record` has been billed since the last one."""
        spent = record.usage or Usage()
        if self.record.usage:
            spent -= self.record.usage
        return replace(session, usage=session.usage + spent)

    def ended(self, state: RunState, why: str | None, at: float, **more: Any) -> RunRecord:
        """Return its record as it has ended `at` this time."""
        said = why and why.replace("\0", "\N{REPLACEMENT CHARACTER}")  # not every database takes null characters
        return replace(self.record, state=state, why=said, ended_at=at, **more)

    def with_output(
        self, output: Sequence[Block], session: SessionRecord, **changes: Any
    ) -> tuple[TurnRecord, list[Block], SessionRecord]:
        """Return its turn with this output, those of the blocks that are to be stored, and the session's row with them.

        Args:
            changes: of the turn.
        """
        new = self.output.missing(output)
        span = Span(session.log, session.log_size, session.log_size + len(new))
        grown = self.output.grown(output, span)
        return replace(self.turn, output=grown.spans, **changes), new, replace(session, log_size=span.stop)

    def wake_waiters(self) -> None:
        """Answer those who wait for its end: it is in the store, and the session's claim is free."""
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        """Give those who wait an error in place of its end."""
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # there need not be any

    def request_cancel(self, reason: str, *, discard: bool) -> None:
        """Ask the run to stop. The first reason stands; once asked to discard, it discards."""
        self.discard = self.discard or discard
        if not self.cancelled.done():
            self.cancelled.set_result(storable(reason))

    def close(self) -> None:
        """Let nothing that its engine does from now on reach anything."""
        if self.attempt:
            self.attempt.close()


def grants(calls: Iterable[CallState]) -> int:
    """Return how often somebody let a run go on above its limits."""
    return sum(state.wants == "budget" and state.verdict == "approved" for state in calls)
