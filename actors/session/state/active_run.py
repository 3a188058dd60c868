"""`ActiveRun`: the state in memory of a queued, running or waiting run, with its usage and cancel request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from turnwise.actors.inference.attempt import Attempt
from turnwise.actors.inference.engine import NewEvent, SessionView
from turnwise.actors.inference.observing import NO_OPERATION, Operation
from turnwise.actors.session.state.recorded_output import RecordedOutput
from turnwise.actors.session.state.run_events import about_added
from turnwise.memory.conversation.blocks import AnyBlock, Block, Recalled
from turnwise.memory.conversation.calls.tool_calls import CallState, decode_calls
from turnwise.memory.conversation.ledger import Purpose, Spent, SpentOn
from turnwise.memory.conversation.runs import RunRecord, RunState, Until
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import Span, join, prefix_key
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.longterm.memory_access import MemoryAccess
from turnwise.memory.longterm.recall.prompt_sections import Profile
from turnwise.memory.values.growing_text import whole
from turnwise.memory.values.records import replace

if TYPE_CHECKING:
    from turnwise.actors.session.engines.run_resources import RunResources
    from turnwise.actors.session.state.transactor import UnknownOutcome
    from turnwise.actors.session.window.compaction_tasks import Compactor


class ActiveRun:
    """A queued, running or waiting run: its record and turn as of the last commit, and its state since then."""

    front: Recalled | None = None
    """The user's profile, which is added to the run's requests before the conversation; None if there is none."""
    new_profile = Profile()
    """The part of the profile that stands before the prompt, as it is newer than what is before the conversation."""

    def __init__(
        self,
        session: SessionView,
        record: RunRecord,
        turn: TurnRecord,
        run_resources: RunResources,
        *,
        before: ActiveRun | None = None,
    ) -> None:
        self.session = replace(session, author=record.author) if record.author is not None else session
        self.run_resources = run_resources
        """The engine, settings and memories that the run uses until its end."""
        self.turn = turn
        self.output = RecordedOutput()
        loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = loop.create_future()
        """Done when the end is stored and the run is no longer active; has an exception if the end was not stored."""
        self._settled: asyncio.Future[None] = loop.create_future()
        """Done while the run waits for a decision, and from its end on; a new one when it does not any more."""
        self.record = record
        self.cancelled: asyncio.Future[str] = loop.create_future()
        """Set, to the reason, when the run is asked to cancel."""
        self.decided = asyncio.Event()
        """Set when all tool calls of a run that awaits approval have been decided."""
        self.takes_prompts: bool | None = None
        """Whether its engine takes further prompts (see `Joinable`); None if it was not built for this run yet."""
        self.is_accepted_now = False
        """Whether the commit that has begun it has found its quotas not used up, and no model was asked since."""
        self.discard = False
        self.operation: Operation = NO_OPERATION
        """The run as telemetry follows it, until it ends or waits for a decision."""
        self.attempt: Attempt | None = None
        """The current attempt, while an engine works on the run."""
        self.recalled: Recalled | None = None
        """The retrieved memory text that is added to the run's requests before its prompt; None if there is none."""
        self.item_counts: dict[str, int] = {}
        """How many items each memory returned for the run's prompt, by the memory's name."""
        self.profile = Profile()
        """The user's profile, as retrieved for this run."""
        self.search: asyncio.Task[Any] | None = None
        """The memory search, if it was started before the run began."""
        self.query = ""
        """The text with which memories were searched."""
        self.has_searched_memories = False
        self.memory: MemoryAccess | None = None
        """The run's access to the session's memories; None without memories, or if the run uses none."""
        self._own_compactor: Compactor | None = None
        self.metadata = turn.metadata
        """The metadata of its turn, with what the engine has set since the last commit."""
        self.added: list[NewEvent] = []
        """Events that the engine and its tools have added, for the run's next commit."""
        self._last_added: tuple[UnknownOutcome, int] | None = None
        """The outcome of the last commit that was to store them, and how many of them it had."""
        self.unbilled, last = before.unsettled if before else (Spent(), Spent())
        """What was spent since the run's last commit, without its seconds."""
        self.model: str = before.model if before else record.model or ""
        """The model that was last named as the run's; the one its caller has chosen until then."""
        self._since = loop.time()
        self._bill = last, self._since

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def engine_name(self) -> str:
        """The name of its engine, also of a session without one; empty if the manager's only engine has none."""
        return self.record.engine or self.run_resources.first_name

    @property
    def prefix_key(self) -> str:
        """Names the beginning of its requests; see `RunContext.prefix_key`."""
        return prefix_key(self.turn.spans, self.session.key, self.session.inherited_prefix_key)

    @property
    def record(self) -> RunRecord:
        """The record as of the last commit. Setting one that is suspended, and not for agents only, wakes waiters."""
        return self._record

    @record.setter
    def record(self, record: RunRecord) -> None:
        self._record = record
        if record.state == "awaiting_approval" and not record.awaits_agents:
            self._settle()
        elif self._settled.done() and not self.done.done():
            self._settled = self.done.get_loop().create_future()

    @property
    def compactor(self) -> Compactor | None:
        """Makes its requests fit, by its own strategy if it has one; None if there is no strategy."""
        if self.record.overflow is None:
            return self.run_resources.compactor
        self._own_compactor = self._own_compactor or self.run_resources.compactor_of(self.record)
        return self._own_compactor

    def restored(self, turn: TurnRecord, head: TurnRecord | None) -> TurnRecord:
        """Return its ended turn so that the next turn continues all that this one could have: see `RunRecord.overflow`.

        Args:
            head: the turn that it continues.
        """
        whole = join(head.base if head else (), turn.prompt)
        if self.record.overflow is None or turn.carried or turn.input == whole:
            return turn
        return replace(turn, carried=whole)

    @property
    def closed(self) -> bool:
        """Whether the run's outcome is settled, so that nothing its engine does has an effect."""
        return self.attempt is not None and self.attempt.closed

    @property
    def is_working(self) -> bool:
        """Whether an engine works on it. It may do so for a moment after the run was suspended."""
        return self.attempt is not None and not self.attempt.closed

    @property
    def calls(self) -> dict[str, CallState]:
        """The states of the run's tool calls by call id, as of the last commit."""
        return decode_calls(self.record.calls)

    @property
    def is_waiting(self) -> bool:
        """Whether the run waits for a decision about a tool call."""
        return any(state.is_waiting for state in self.calls.values())

    @property
    def spent(self) -> Usage:
        """The run's usage up to now."""
        usage = self.unbilled.total
        if self.record.usage:
            usage = self.record.usage + usage
        if self.record.state != "running":
            return usage
        return replace(usage, seconds=usage.seconds + (asyncio.get_running_loop().time() - self._since))

    @property
    def left_s(self) -> float | None:
        """How many seconds are left of its time limit, of which its agents take a part; None without one."""
        timeout_s = self.record.timeout_s
        if timeout_s is None:
            return None
        return max(0.0, timeout_s - self.spent.seconds - self.record.agents_usage.seconds)

    def bill(self) -> Usage:
        """Return the usage up to now, for the run's next record; call `billed` once that record is stored."""
        self._bill = self.unbilled, asyncio.get_running_loop().time()
        spent = self.spent
        # Rounded as stores round it, so that a record in memory equals the one that is read back.
        return replace(spent, seconds=round(spent.seconds, 6), cost=round(spent.cost, 12))

    def spend(self, usage: Usage, *, kind: SpentOn = "run", model: str | None = None, tool: str = "") -> None:
        """Add what was spent, for the run's next commit. Without a `model`, it counts as the run's own model's."""
        if model and kind == "run":
            self.model = model
        self.unbilled += Spent.on(usage, kind=kind, model=model, tool=tool, engine=self.engine_name)

    def spending(self, record: RunRecord) -> Spent:
        """Return what the ledger gets with the run's next record: what it has spent since its last stored record.

        Call it before `billed` or `last_billed`.
        """
        if record.usage is None or record.usage == self.record.usage:
            return Spent()
        seconds = record.usage.seconds - (self.record.usage.seconds if self.record.usage else 0.0)
        spent = self._bill[0] + Spent.on(Usage(seconds=round(seconds, 6)), engine=self.engine_name)
        return spent.with_model(self.model)

    @property
    def purpose(self) -> Purpose:
        """What the run is counted under in the ledger."""
        return Purpose("run", self.model, engine=self.engine_name)

    @property
    def unsettled(self) -> tuple[Spent, Spent]:
        """What no commit is known to have stored, and the part of it in the last `bill`."""
        return self.unbilled, self._bill[0]

    def left_to_bill(self) -> dict[str, Usage]:
        """Return the `usage` of the run's next record, if there is any that no commit has stored."""
        return {"usage": self.bill()} if self.unbilled else {}

    def billed(self, record: RunRecord) -> None:
        """Set the run's record to the stored one, which has the usage of the last `bill`; count usage from there."""
        self.record = record
        billed, self._since = self._bill
        self.unbilled -= billed

    def last_billed(self, end: RunRecord) -> Spent:
        """Set the stored record of the run's end; return what was spent too late for it."""
        if self.record.usage != end.usage:
            self.billed(end)
        self.record = end
        late, self.unbilled = self.unbilled.with_model(self.model), Spent()
        return late

    def added_events(self, doubt: UnknownOutcome) -> list[NewEvent]:
        """Return the events that the engine has added and no commit has stored, for a commit with this `doubt`.

        Call it within a change, and `drop_added` once the commit has succeeded. If its outcome stays unknown, the
        activation before the next change settles it.
        """
        if self._last_added and self._last_added[0].stored:
            self.drop_added()
        self._last_added = doubt, len(self.added)
        return [(kind, about_added(self.record, values)) for kind, values in self.added]

    def drop_added(self) -> None:
        """Drop the events that the last `added_events` returned, since they are stored."""
        if self._last_added:
            del self.added[: self._last_added[1]]
            self._last_added = None

    def restart_clock(self) -> None:
        """Count the run's seconds from now on."""
        self._since = asyncio.get_running_loop().time()

    def charged(self, session: SessionRecord, record: RunRecord) -> SessionRecord:
        """Return the session's row with its usage increased by what `record` adds to the run's last stored record."""
        spent = record.usage or Usage()
        if self.record.usage:
            spent -= self.record.usage
        return replace(session, usage=session.usage + spent)

    def ended(self, state: RunState, why: str | None, now: float, **more: Any) -> RunRecord:
        """Return the run's record with this final state and end time."""
        if self.record.state == "queued":
            more = {"code": None, **more, "started_at": None}  # it never began
        reason = why and why.replace("\0", "\N{REPLACEMENT CHARACTER}")  # not every database takes null characters
        return replace(self.record, state=state, why=reason, ended_at=now, **more)

    def streamed(self) -> Sequence[AnyBlock]:
        """Return what the engine has answered since the last commit of the run, as far as it goes."""
        if self.attempt is None:
            return ()
        stored = {id(block) for block in self.output.blocks}
        blocks = cast(list[AnyBlock], self.attempt.ledger.blocks())
        rest = [block for block in blocks if id(block) not in stored]
        return rest if len(rest) + len(stored) == len(blocks) else ()  # else a commit is recording its steps

    def with_output(
        self, output: Sequence[Block], session: SessionRecord, **changes: Any
    ) -> tuple[TurnRecord, list[Block], SessionRecord]:
        """Return the turn with this output, the output blocks that are not stored yet, and the session's row with them.

        Args:
            changes: other fields of the turn to change.
        """
        new = self.output.missing(output)
        span = Span(session.log, session.log_size, session.log_size + len(new))
        whole = self.output.with_output(output, span)
        return (
            replace(self.turn, output=whole.spans, metadata=self.metadata, **changes),
            new,
            replace(session, log_size=span.stop),
        )

    async def wait(self, timeout_s: float | None = None, until: Until = "ended") -> bool:
        """Wait until the run has ended, or is suspended; return whether it has, or is now.

        Returns False after `timeout_s` seconds, and if a run that was suspended has resumed before this caller was
        woken. Cancelling a wait does not affect other waiters.

        Raises:
            Exception: the end could not be stored, or this process has lost the session.
        """
        await asyncio.wait([self.done if until == "ended" else self._settled], timeout=timeout_s)
        if not self.done.done():
            is_suspended = self.record.state == "awaiting_approval" and not self.record.awaits_agents
            return until == "settled" and is_suspended
        self.done.result()
        return True

    def wake_waiters(self) -> None:
        """Wake the callers that wait for the run's end, once it is stored and the run is no longer active."""
        if not self.done.done():
            self.done.set_result(None)
            self._settle()

    def follow(self) -> None:
        """Have telemetry follow the run, if it does not yet, and tell it the run's record."""
        if self.operation is NO_OPERATION:
            self.operation = self.run_resources.follow(self.session, self.record)
        self.operation.note(record=self.record)

    def close_operation(self, error: Exception | None = None) -> None:
        """Tell telemetry that the run has ended, or waits for a decision, as its record says."""
        self.follow()
        self.operation.end(error)
        self.operation = NO_OPERATION

    def fail(self, error: Exception) -> None:
        """Make all callers that wait for the run's end raise `error`."""
        self.operation.end(error)
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # mark it as retrieved, since there may be no waiters
            self._settle()

    def _settle(self) -> None:
        if not self._settled.done():
            self._settled.set_result(None)

    def request_cancel(self, reason: str, *, discard: bool) -> None:
        """Ask the run to stop. Later calls do not change the reason; any call with `discard` discards the turn."""
        self.discard = self.discard or discard
        if not self.cancelled.done():
            self.cancelled.set_result(whole(reason))

    def close(self) -> None:
        """Ignore everything that the run's engine does from now on."""
        if self.attempt:
            self.attempt.close()


def count_grants(calls: Iterable[CallState]) -> int:
    """Return how many times a caller approved that the run continues beyond its budget."""
    return sum(state.name == "budget" == state.wants and state.verdict == "approved" for state in calls)
