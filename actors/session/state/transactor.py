"""`Transactor`: runs a session's changes one at a time; each change is one commit, or has no effect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from turnwise.actors.inference.engine import NewEvent
from turnwise.actors.session.acting import check_acting
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.state.alarm import Alarm
from turnwise.actors.session.state.outbox import NO_OUTBOX, Outbox
from turnwise.actors.session.state.quota_book import QuotaBook
from turnwise.actors.session.state.session_tasks import SessionTasks
from turnwise.actors.session.state.state import SessionState
from turnwise.errors import (
    CorruptRecordError,
    DeliveryChangedError,
    DuplicateKeyError,
    EncryptionError,
    NotFoundError,
    QuotaExceededError,
    SessionFencedError,
    StoreError,
    TurnwiseError,
)
from turnwise.memory.background import MOST_PAUSE_S, retry, shielded
from turnwise.memory.conversation.blocks import Block, encode
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.ledger import LedgerRow, Purpose, Spent, rows_of
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import union
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.deliveries.agent_calls import agent_asks, deliveries_of_ends
from turnwise.memory.deliveries.records import DeliveryChange
from turnwise.memory.deliveries.webhooks import calls_of
from turnwise.memory.growing_pauses import GrowingPauses
from turnwise.memory.quotas.records import QuotaCount, asked_quotas, counts_of
from turnwise.memory.stores.base import Activation, Commit
from turnwise.memory.values.records import replace

Result = TypeVar("Result")


@dataclass(slots=True)
class UnknownOutcome:
    """The outcome of a commit whose answer may be lost: after a store error, the next activation sets `stored`."""

    stored: bool = False


@dataclass(frozen=True)
class _Unanswered:
    """The last commit that the store has not answered, and what depends on whether it was stored."""

    commit: Commit
    doubt: UnknownOutcome | None
    unbilled: Spent
    """What the commit records beside its runs' usage."""
    begins: frozenset[str]
    """The runs that it makes active."""


class CommitMark(Protocol):
    """A value in the session's row that is stored with the next commit, whatever that is."""

    def stamp(self, session: SessionRecord, turns: Iterable[TurnRecord]) -> SessionRecord:
        """Return the session's row, updated with the mark, for a commit that stores these turns."""

    def stored(self, session: SessionRecord) -> None:
        """Called when the row with the mark has been stored."""


class Transactor:
    """Changes a session's state: every change runs alone, behind one lock, as decide, commit, apply.

    The state in memory changes only after the commit, so a crash at any point leaves the state of the last commit.
    After a store error, the commit's outcome is unknown; the next change first activates the session again and loads
    what the store has.

    While a change awaits the following, other work may run, and the process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | the lock | reads, streaming, the previous change | nothing of this change |
    | the store, for the members of an agent's caller | reads, streaming | nothing of this change |
    | the store, for its quotas and tenants, once in a while | reads, streaming | nothing of this change |
    | a block or a run of an older turn, for its texts | reads, streaming | nothing of this change |
    | the outbox, before a commit | reads, streaming; live events wait | nothing of this change |
    | the store's commit | reads, streaming; live events wait | all of it or nothing |
    | an activation, after a store error | reads, streaming; live events wait | what the store has |

    Args:
        mark: is stored along with each commit.
        recover: loads the state that an activation found; runs as part of the change that activates.
        outbox: says which webhooks are told of what is committed. Their calls are part of the commit.
        alarm: is told of deliveries to other sessions, which it hands over.
        committed: is told of the events and runs of each commit that was stored.
        quotas: says which quotas there are, and the tenant of the session's user. What a commit uses of them is part of
            the commit.
    """

    def __init__(
        self,
        state: SessionState,
        tasks: SessionTasks,
        engines: SessionEngines,
        mark: CommitMark,
        *,
        recover: Callable[[Activation, set[str]], Awaitable[None]],
        alarm: Alarm,
        outbox: Outbox = NO_OUTBOX,
        quotas: QuotaBook | None = None,
        committed: Callable[[Sequence[Event], Sequence[RunRecord]], object] | None = None,
    ) -> None:
        self._committed = committed
        self._state = state
        self._journal = state.journal
        self._tasks = tasks
        self._engines = engines
        self._mark = mark
        self._recover = recover
        self._outbox = outbox
        self._alarm = alarm
        self._quotas = quotas
        self._lock = asyncio.Lock()
        self._unanswered: _Unanswered | None = None
        self._begun: set[str] = set()
        """The runs that unanswered commits have made active, until `recover` has launched them."""
        self._launching: asyncio.Task[None] | None = None
        self._unbilled = Spent()

    # Changes

    async def run(self, change: Callable[[], Awaitable[Result]]) -> Result:
        """Run one change exclusively, and to its end even if the caller is cancelled.

        Args:
            change: decides, commits, and then changes the state in memory.
        """
        task = self._tasks.spawn(self.run_here(change), acts=True)
        return await shielded(task, self._tasks.name("a change"))

    async def run_here(self, change: Callable[[], Awaitable[Result]]) -> Result:
        """Run one change exclusively in the caller's task, which must not be cancelled."""
        async with self._lock:
            if self._journal.lost:
                raise self._journal.lost
            try:
                if self._journal.stale:
                    await self._activate()
                await check_acting(self._journal.session, self._journal.store)
                return await change()
            finally:
                if self._journal.lost:
                    self._lose(self._journal.lost)

    async def run_with_retries(self, change: Callable[[], Awaitable[Result]], *, shielded: bool = True) -> Result:
        """Run one idempotent change, and repeat it after store errors for up to `store_retry_s`.

        Args:
            shielded: a change that has begun runs to its end even if the caller is cancelled; this costs a task.

        Raises:
            StoreError: the store failed for `store_retry_s`, or another process owns the session.
        """
        deadline = asyncio.get_running_loop().time() + self._engines.config.store_retry_s
        pauses = GrowingPauses(0.01, 1.0)
        while True:
            try:
                return await (self.run(change) if shielded else self.run_here(change))
            except CorruptRecordError:
                raise
            except StoreError as error:
                pause_s = pauses.next_s()
                late = asyncio.get_running_loop().time() + pause_s > deadline
                if late or self._journal.lost or isinstance(error, SessionFencedError):
                    raise
            await asyncio.sleep(pause_s)

    async def run_until_stored(self, change: Callable[[], Awaitable[Result]]) -> Result:
        """Run one idempotent change, and repeat it after store errors until it succeeds.

        Raises:
            StoreError: a row is corrupt, or another process owns the session.
        """
        while True:
            try:
                return await self.run_with_retries(change)
            except CorruptRecordError:
                raise
            except StoreError:
                if self._journal.lost:
                    raise
            await asyncio.sleep(MOST_PAUSE_S)

    @property
    def alone(self) -> asyncio.Lock:
        """The lock that each change holds; take it to run code between two changes."""
        return self._lock

    # Commits

    async def commit(
        self,
        session: SessionRecord,
        events: Sequence[NewEvent] = (),
        *,
        blocks: Sequence[Block] = (),
        encoded: Sequence[str] | None = None,
        turns: Sequence[TurnRecord] = (),
        dropped_turns: Sequence[int] = (),
        new_run: RunRecord | None = None,
        runs: Sequence[RunRecord] = (),
        live: bool | None = None,
        doubt: UnknownOutcome | None = None,
        forget_turns: int = -1,
        cleared_blocks: Sequence[tuple[int, str]] = (),
        deliveries: Sequence[DeliveryChange] = (),
        joined: Sequence[str] = (),
        left: Sequence[str] = (),
    ) -> None:
        """Number the events, store all arguments in one commit, and cache the blocks. Call it within a change.

        With the end of a run it stores what that means for agents: see `deliveries_of_ends`. With an agent's run whose
        calls wait for other decisions than before, it tells the agent's caller.

        Args:
            session: the new row; its log ends with the `blocks`.
            encoded: the blocks as stored text, if they are encoded already.
            live: whether a run is active after the commit; None if that does not change.
            doubt: if the commit's outcome is unknown, the next activation sets its `stored`.
            deliveries: those of this session that change, and those of others that this commit carries out, which are
                removed. It is refused if one of them has changed.
            joined, left: the users who become members, and those who are members no longer.

        Raises:
            DuplicateKeyError, DeliveryChangedError: nothing was stored.
            QuotaExceededError: it accepts a run, and a quota is used up; nothing was stored.
            TurnwiseError: see `Journal.commit`.
        """
        ends = deliveries_of_ends(session, [*runs, *([new_run] if new_run else [])], self._journal.clock())
        key = self._journal.key
        received = [change.before for change in deliveries if change.before and change.before.session_key != key]
        own = [change for change in deliveries if change.before not in received]
        own = [self._of_namespace(change) for change in [*own, *ends, *self._questions(session, runs)]]
        sent = [change.after for change in own if change.after and change.after.to_session is not None]
        if sent:
            await self._alarm.expect({delivery.engine_id for delivery in sent if delivery.engine_id})
        texts, dropped_texts = await self._journal.searched.changes(
            session,
            blocks,
            turns,
            dropped_turns=dropped_turns,
            runs=[*runs, *([new_run] if new_run else [])],
            next_index=self._journal.session.next_index,
        )
        spent, counts = await self._counts(session, self._ledger_rows(runs, new_run), runs, new_run)
        numbered = self._journal.number(self._with_turn_ids(events, turns))
        calls = await self._calls_of(numbered)
        bodies = [encode(block) for block in blocks] if encoded is None else encoded
        live = self._state.active is not None if live is None else live
        if self._unbilled:
            session = replace(session, usage=session.usage + self._unbilled.charged)
        session = self._mark.stamp(session, turns)
        if session.namespace != self._alarm.namespace:
            session = replace(session, namespace=self._alarm.namespace)
        commit = Commit(
            session=session,
            events=numbered,
            blocks=bodies,
            turns=turns,
            dropped_turns=dropped_turns,
            new_run=new_run,
            runs=runs,
            forget_turns=forget_turns,
            cleared_blocks=cleared_blocks,
            deliveries=[*own, *calls],
            received=received,
            spent=spent,
            counts=counts,
            texts=texts,
            dropped_texts=dropped_texts,
            joined=joined,
            left=left,
        )
        last = self._unanswered = _Unanswered(commit, doubt, self._unbilled, self._begins(commit))
        self._unbilled = Spent()
        try:
            await self._journal.commit(commit, live=live)
        except (DuplicateKeyError, DeliveryChangedError, QuotaExceededError):
            self._unanswered = None
            self.add_unbilled(last.unbilled)
            raise
        except TurnwiseError:
            if sent:
                self._alarm.tell(self._journal.clock())  # they may be stored
            if self._journal.lost:
                self._lose(self._journal.lost)
            elif last.begins and (self._launching is None or self._launching.done()):
                task_name = self._tasks.name("beginning a run, of whose start the store has not answered")
                self._launching = self._tasks.spawn(retry(self._launch_begun, task_name, until=self.is_final))
            raise
        self._unanswered = None
        if self._committed:
            self._committed(numbered, runs)
        self._journal.searched.store(turns, dropped_turns)
        if sent:
            self._alarm.hand_over(sent)
        self._mark.stored(session)
        if calls:
            self._outbox.tell(self._journal.clock())
        if blocks:
            self._journal.blocks.cache.add(session.log, session.log_size - len(blocks), blocks)

    def _with_turn_ids(self, events: Sequence[NewEvent], turns: Sequence[TurnRecord]) -> Sequence[NewEvent]:
        """Return the events of a commit of these turns, each with the id that the caller gave its turn, if any."""
        known = [self._state.head, *(run.turn for run in self._state.known_runs), *turns]
        ids = {turn.index: turn.turn_id for turn in known if turn and turn.turn_id}
        if not ids:
            return events
        return [(kind, {"turn_id": ids.get(values.get("turn_index", -1)), **values}) for kind, values in events]

    def _of_namespace(self, change: DeliveryChange) -> DeliveryChange:
        """Return a change of a delivery of this session, which this process's namespace carries out."""
        namespace = self._alarm.namespace
        if change.after is None or change.after.namespace == namespace:
            return change
        return DeliveryChange(change.before, replace(change.after, namespace=namespace))

    def _questions(self, session: SessionRecord, runs: Sequence[RunRecord]) -> list[DeliveryChange]:
        """Return what tells the caller of this agent that other calls of its run wait for decisions than before."""
        if session.called_by is None:
            return []
        own = [run for run in runs if run.run_id == session.session_id and run.is_open]
        before = {run.run_id: run.record.questions for run in self._state.open_runs}
        asking = [run for run in own if run.questions != before.get(run.run_id, {})]
        return [agent_asks(session, run, self._journal.clock()) for run in asking]

    async def _calls_of(self, events: Sequence[Event]) -> list[DeliveryChange]:
        """Return the calls that tell webhooks of numbered events. Live events wait meanwhile."""
        try:
            webhooks = await self._outbox.webhooks_for([event.kind for event in events])
        except BaseException:
            self._journal.log.publish()
            raise
        return calls_of(webhooks, events) if webhooks else []

    def _ledger_rows(self, runs: Sequence[RunRecord], new_run: RunRecord | None) -> list[LedgerRow]:
        """Return what a commit of these runs adds to the ledger, with what no commit has recorded."""
        spent, ended = self._unbilled, list[Purpose]()
        known = {run.run_id: run for run in self._state.known_runs}
        for record in runs:
            if run := known.get(record.run_id):
                spent += run.spending(record)
                if record.has_run:
                    ended.append(run.purpose)
        if new_run and new_run.has_run:  # it says a text, so it asks no model
            engine = new_run.engine or self._engines.whole.first_name
            spent += Spent.on(new_run.usage or Usage(), model="", engine=engine)
            ended.append(Purpose("run", "", engine=engine))
        return rows_of(spent, ended, self._journal.clock())

    async def _counts(
        self, session: SessionRecord, spent: Sequence[LedgerRow], runs: Sequence[RunRecord], new_run: RunRecord | None
    ) -> tuple[Sequence[LedgerRow], list[QuotaCount]]:
        """Return what a commit adds to the ledger, with the tenant, and to counters of quotas.

        The counters count the run that it accepts, and what was spent, but by candidates. A run is accepted by the
        commit that stores it or, if it has waited for a quota, by the one that begins it.
        """
        if self._quotas is None:
            return spent, []
        waiting = {run.run_id for run in self._state.run_queue.queue if run.record.waits_for_quota}
        accepted = [run for run in runs if run.state == "running" and run.run_id in waiting]
        if new_run and new_run.is_open and new_run.says is None and not new_run.waits_for_quota:
            accepted.append(new_run)
        if not (accepted or spent):
            return spent, []
        quotas, tenant = await self._quotas.quotas(), await self._quotas.tenants.get(session.user_id)
        if tenant:
            spent = [replace(row, tenant=tenant) for row in spent]
        if not quotas:
            return spent, []
        exceeds = {quota_id for run in accepted for quota_id in asked_quotas(run.calls)}
        owner, charged = (session.user_id, session.agent), [row for row in spent if row.kind != "shadow"]
        return spent, counts_of(quotas, *owner, tenant=tenant, admits=len(accepted), spent=charged, exceeds=exceeds)

    def _begins(self, commit: Commit) -> frozenset[str]:
        """Return the runs that a commit makes active: those that it stores as running, but the active one."""
        active = self._state.active and self._state.active.run_id
        stored = (*commit.runs, *([commit.new_run] if commit.new_run else []))
        return frozenset(run.run_id for run in stored if run.state == "running" and run.run_id != active)

    @property
    def may_have_begun(self) -> bool:
        """Whether a commit without an answer may have made a run active, which no activation has launched yet."""
        return bool(self._begun or (self._unanswered and self._unanswered.begins))

    @property
    def unbilled(self) -> Usage:
        """Usage that no commit is known to have recorded; the next commit records it."""
        on_its_way = self._unanswered.unbilled if self._unanswered else Spent()
        return (on_its_way + self._unbilled).charged

    @property
    def has_unbilled(self) -> bool:
        """Whether there is something to store for `store_unbilled`."""
        return bool(self._unbilled)

    def add_unbilled(self, spent: Spent) -> None:
        """Add what was spent and no commit has recorded, for the next commit to record."""
        self._unbilled += spent

    async def store_unbilled(self) -> None:
        """Store the usage that no commit has recorded, if there is any. Call it within a change."""
        if self._unbilled and not self._journal.stale:
            await self.commit(self._journal.session)

    # Owning the session

    async def loaded(self) -> None:
        """Activate the session if its state in memory is stale, so that the caller may read it.

        Raises:
            TurnwiseError: this process no longer owns the session.
        """
        if self._journal.stale and self._journal.lost is None:
            await self.activate()
        if self._journal.lost:
            raise self._journal.lost

    async def activate(self) -> None:
        """Take ownership of the session: raise its epoch, load it, and end or resume the run of a lost process.

        The first change or read does this automatically. Afterwards the store refuses commits of all other processes.
        """
        if self._journal.stale:
            await self.run(_nothing)

    async def _activate(self) -> None:
        read_at = self._quotas.tenants.now() if self._quotas else None
        activation = await self._journal.activate()
        if self._quotas and read_at and activation.tenant != "":  # else it is read when it is needed
            self._quotas.tenants.learn(self._journal.key.user_id, activation.tenant, read_at)
        last, self._unanswered = self._unanswered, None
        commit = self._settled(last) if last else None
        await self._recover(activation, self._begun)
        self._begun.clear()
        if commit and commit.forget_turns >= 0:
            self._journal.drop_cleared(union(*self._state.shown_spans))
        if observer := self._engines.whole.observer:
            observer.activated(self._state.view())
        self._journal.mark_loaded()  # from here on, a run that is not open has ended, and its last event is stored

    def _settled(self, last: _Unanswered) -> Commit | None:
        """Note whether the commit without an answer was stored, as an activation found; return it if so."""
        if last.doubt:
            last.doubt.stored = self._journal.has_advanced
        if not self._journal.has_advanced:
            self.add_unbilled(last.unbilled)
            return None
        self._begun |= last.begins
        self._state.update_ended(last.commit.turns)
        self._state.drop_turns(last.commit.dropped_turns)
        return last.commit

    async def _launch_begun(self) -> None:
        """Activate the session, so that a run begins that only this process can drive, if its start was stored."""
        if self._journal.lost is None:
            await self.activate()

    def _lose(self, error: Exception) -> None:
        observer, is_first = self._engines.whole.observer, self._recover is not _recover_nothing
        if observer and is_first and isinstance(error, SessionFencedError):
            observer.fenced(self._state.view())
        self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Stop all runs, make all callers that wait for them raise `error`, and close the engines.

        Called when this process no longer owns the session.
        """
        self._state.clear(error)
        self._engines.close_all()
        # Break the reference cycle, so that the parts are freed at once, not by the garbage collector.
        self._recover = _recover_nothing

    def is_final(self, error: BaseException) -> bool:
        """Return whether a retry would fail again: the session is lost, or cannot be read."""
        unreadable = isinstance(error, CorruptRecordError | EncryptionError | NotFoundError)
        return self._journal.lost is not None or unreadable


async def _nothing() -> None:
    return None


async def _recover_nothing(activation: Activation, begun: set[str]) -> None:
    """Do nothing: a lost session is not activated again."""
