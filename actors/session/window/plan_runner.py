"""`PlanRunner`: carries out an overflow strategy's plan: prepares it, with retries, and stores the compacted window."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from turnwise.actors.inference.attempt import reason
from turnwise.actors.inference.engine import NewEvent, Suspend
from turnwise.actors.session.engines.spending import Spending
from turnwise.actors.session.state.active_run import ActiveRun
from turnwise.actors.session.state.run_events import about
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor, UnknownOutcome
from turnwise.actors.session.window.compaction_tasks import Compactor, Preparation, Prepared
from turnwise.errors import EngineError, LimitError
from turnwise.memory.conversation.blocks import Block
from turnwise.memory.conversation.events import CompactionFailed, WindowCompacted
from turnwise.memory.conversation.ledger import Spent, SpentOn
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import Spans, begins_with, cut, join, size, to_places
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.growing_pauses import GrowingPauses
from turnwise.memory.longterm.model_usage import billed_to
from turnwise.memory.longterm.turn_items import TurnBlocks
from turnwise.strategies.plan import Plan
from turnwise.strategies.window import Window

PAUSE_S, MOST_PAUSE_S = 1.0, 60.0
"""The first and the longest pause after a failed attempt, in seconds."""

MOST_SKIPPED = 16
"""The maximum number of runs for which compaction is suspended after repeated failures."""


class CompactionBill:
    """Charges the usage of a compaction, and sums the usage that no event has reported.

    Args:
        charge: charges the session.
        run: the run that waits for the compaction and pays for it while it is open; None for a compaction in the
            background, which the session pays for.
    """

    def __init__(
        self,
        price: Callable[[Usage, str | None, float | None], Usage],
        charge: Callable[[Spent], None],
        run: ActiveRun | None,
    ) -> None:
        self._price = price
        self._charge = charge
        self.run = run
        self.unreported: Usage | None = None

    def __call__(self, usage: Usage, model: str | None, kind: SpentOn = "summary") -> None:
        """Add the usage of a model call."""
        try:
            usage = self._price(usage, model, self.run.record.started_at if self.run else None)
        finally:  # count the usage even if it cannot be priced
            self.unreported = self.unreported + usage if self.unreported else usage
            if self.run and not self.run.done.done():
                self.run.spend(usage, kind=kind, model=model or "")
            else:
                engine = self.run.engine_name if self.run else ""
                self._charge(Spent.on(usage, kind=kind, model=model or "", engine=engine))


class PlanRunner:
    """Prepares plans and stores the windows that they make.

    Each method adds the usage of its model calls to a `CompactionBill`; each use is charged exactly once.

    A plan is prepared for one window, without the session's lock, and is applied only to turns that continue that
    window (see `_rebased`). A compaction costs one commit, and one for each attempt that fails.
    """

    def __init__(self, state: SessionState, transactor: Transactor, spending: Spending) -> None:
        self._state = state
        self._journal = state.journal
        self._transactor = transactor
        self._spending = spending
        self._failures = 0
        """How many compactions have failed since the last one that succeeded."""
        self._runs_to_skip = 0
        """For how many more runs compaction is suspended after failures, unless a request would not fit."""

    def bill(self, run: ActiveRun | None = None) -> CompactionBill:
        """Return an empty bill for a compaction of the run's window; without a run, for one in the background."""
        return CompactionBill(self._spending.price, self._transactor.add_unbilled, run)

    @property
    def is_pausing(self) -> bool:
        """Whether plans that call a model or a memory are put off, because the last ones failed."""
        return self._runs_to_skip > 0

    def count_run(self) -> None:
        """Shorten the pause by one run."""
        self._runs_to_skip -= 1

    def count_failure(self) -> None:
        """Begin a pause, which is twice as long after each further failure."""
        self._failures += 1
        self._runs_to_skip = min(2**self._failures, MOST_SKIPPED)

    async def prepare(
        self, compactor: Compactor, plan: Plan, window: Window, bill: CompactionBill
    ) -> tuple[Prepared | None, Exception | None]:
        """Prepare a plan (summaries, memory saves), with retries; return what was prepared, and the last failure.

        Raises:
            LimitError, Suspend: the budget of the run that waits is used up.
        """
        preparation = Preparation(plan, window, compactor, self._state.view(), self._find_turns)
        attempts = compactor.config.compaction_attempts if plan.waits else 1
        check_budget = partial(self._check_budget, bill)
        failure: Exception | None = None
        pauses = GrowingPauses(PAUSE_S, MOST_PAUSE_S)
        for number in range(1, attempts + 1):
            try:
                with billed_to(partial(bill, kind="extraction")):
                    await preparation.attempt(bill, check_budget)
                break
            except Exception as error:
                failure = error
                if bill.run and isinstance(error, LimitError | Suspend):
                    raise
                await self.store_failure(plan.strategy, error, bill, attempt=number, of=attempts)
            if isinstance(failure, LimitError):
                break
            if number < attempts:
                await asyncio.sleep(pauses.next_s())
        if not preparation.is_whole:
            self.count_failure()
        elif plan.waits:
            self._failures = self._runs_to_skip = 0
        return preparation.prepared(), failure

    async def store(self, prepared: Prepared, bill: CompactionBill) -> bool:
        """Store the compacted window in one commit; return False if the conversation no longer continues the window.

        If the bill has a run, the run's input is replaced too; only that, if the run has a strategy of its own.
        """
        run = bill.run
        new = [prepared.summary] if prepared.summary else []
        outcome = prepared.outcome()
        done = False

        async def commit(spent: Usage | None, doubt: UnknownOutcome) -> None:
            nonlocal done
            span, session = self._journal.extend(len(new))
            before, after = prepared.window.spans, prepared.spans(span if new else None)
            head = self._state.head
            if run and run.record.overflow is not None:
                head = None  # later runs continue the whole window
            head = head and (_continued_under(head, before, after) if run else _rebased(head, before, after))
            running = run or self._state.active
            active = running and _rebased(running.turn, before, after)
            if run:
                check_open(run)
                active = active and replace(active, input=active.carried, carried=())
            done = bool(active if run else head or active)
            head = head if done else None
            values: dict[str, Any] = {"strategy": outcome.strategy, "usage": spent}
            if done:
                values |= {"tokens_before": outcome.tokens_before, "tokens_after": outcome.tokens_after}
                values |= {"summary": (span.start, span.stop) if new else None}
                if run and active:
                    values["input"] = to_places(active.input, session.log)
            else:
                values |= {"attempt": 1, "of": 1, "why": "the session's window changed during the compaction"}
                session = self._journal.session
            kind = WindowCompacted if done else CompactionFailed
            stored = new if done else []
            turns = [turn for turn in (head, active) if turn]
            await self._commit(session, (kind, values), run, doubt, blocks=stored, turns=turns)
            if head:
                self._state.continue_from(head)
            if active and running:
                running.turn = active

        await self._commit_once(commit, bill)
        return done

    async def store_failure(
        self, strategy: str, error: Exception, bill: CompactionBill, *, attempt: int = 1, of: int = 1
    ) -> None:
        """Store an event that says why an attempt of a strategy failed, and charge the bill."""

        async def commit(spent: Usage | None, doubt: UnknownOutcome) -> None:
            values = {"strategy": strategy, "attempt": attempt, "of": of, "why": reason(error), "usage": spent}
            await self._commit(self._journal.session, (CompactionFailed, values), bill.run, doubt)

        await self._commit_once(commit, bill)

    async def _commit(
        self,
        session: SessionRecord,
        event: NewEvent,
        run: ActiveRun | None,
        doubt: UnknownOutcome,
        *,
        blocks: Sequence[Block] = (),
        turns: Sequence[TurnRecord] = (),
    ) -> None:
        """Commit an event and charge the usage that is unbilled: the run's while it is open, and the session's."""
        kind, values = event
        if run and not run.done.done():
            record = replace(run.record, usage=run.bill())
            events: list[NewEvent] = [(kind, {**about(record), **values})]
            await self._transactor.commit(
                run.charged(session, record), events, blocks=blocks, turns=turns, runs=[record], doubt=doubt
            )
            run.billed(record)
        else:
            await self._transactor.commit(session, [(kind, values)], blocks=blocks, turns=turns, doubt=doubt)

    async def _commit_once(
        self, commit: Callable[[Usage | None, UnknownOutcome], Awaitable[None]], bill: CompactionBill
    ) -> None:
        """Store a commit that reports the bill's usage, exactly once, even if the store's answer is lost."""
        doubt = UnknownOutcome()

        async def change() -> None:
            if doubt.stored:
                return
            await commit(bill.unreported, doubt)

        await self._transactor.run_with_retries(change)
        bill.unreported = None

    async def _find_turns(self, spans: Spans) -> Sequence[TurnBlocks]:
        return await self._journal.records.find_turns_of_blocks(self._journal.session, spans)

    def _check_budget(self, bill: CompactionBill) -> None:
        """Raise if a budget forbids another model call: the run's budgets, or without a run the session's."""
        if bill.run:
            self._spending.check_run(bill.run)
        else:
            self._spending.check_session(self._transactor.unbilled)


def check_open(run: ActiveRun) -> None:
    """Raise EngineError if the run's outcome is settled, so that nothing may change its turn."""
    if run.done.done() or run.closed:
        raise EngineError("the run has ended: nothing can be added to it")


def _continued_under(turn: TurnRecord, before: Spans, after: Spans) -> TurnRecord | None:
    """Apply a compaction of the running turn's window to its parent `turn`; return the parent with `carried` set.

    The compaction, which was paid for, is then kept even if the running turn is discarded. `before` and `after` are the
    running turn's window before and after it. Returns None if the compaction replaced blocks of the running turn or the
    parent's output, or if the window does not begin with `turn.base`.
    """
    if not begins_with(before, turn.base):
        return None
    turn_spans = cut(before, size(turn.base))[1]
    front, rest_of_window = cut(after, size(after) - size(turn_spans))
    return _rebased(turn, turn.base, front) if rest_of_window == join(turn_spans) else None


def _rebased(turn: TurnRecord, before: Spans, after: Spans) -> TurnRecord | None:
    """Return the turn with `carried` set so that the next turn continues `after` instead of the window `before`.

    What the turn added after the window stays after it; the turn's output stays last. Returns None if the turn does not
    continue the window, or if its output was compacted.
    """
    if not begins_with(turn.base, before):
        return None
    window = join(after, cut(turn.base, size(before))[1])
    if turn.carries_all:
        return replace(turn, carried=window) if window else None
    carried, output = cut(window, size(window) - size(turn.output))
    return replace(turn, carried=carried) if carried and output == join(turn.output) else None
