"""A session's state machine, without a cluster."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, get_args

from turnwise.actors.active_run import ActiveRun
from turnwise.actors.backlog import Backlog, left_by, with_given
from turnwise.actors.config import SessionConfig
from turnwise.actors.inference.attempt import Ending, attempt, storable
from turnwise.actors.inference.engine import Closable, EngineBuilder, InferenceRunner, SessionView
from turnwise.actors.journal import Journal, NewEvent, settled
from turnwise.errors import (
    ConfigError,
    DuplicateKeyError,
    EmptyTurnError,
    IdempotencyConflictError,
    NoActiveRunError,
    QueueFullError,
    RunNotFoundError,
    SessionBusyError,
    SessionEndedError,
    SessionExistsError,
    SessionFencedError,
    SessionNotFoundError,
    StoreError,
    TurnNotFoundError,
    TurnwiseError,
)
from turnwise.memory.blocks import Block, Text, encode
from turnwise.memory.events import (
    Event,
    PromptAppended,
    RunCancelled,
    RunCompleted,
    RunEnded,
    RunFailed,
    RunInterrupted,
    RunQueued,
    RunStarted,
    SessionEnded,
    TextDelta,
    ThinkingDelta,
)
from turnwise.memory.frozen import FrozenDict
from turnwise.memory.prompts import Prompt, accept
from turnwise.memory.runs import RunRecord, RunState
from turnwise.memory.sessions import SessionRecord
from turnwise.memory.spans import join
from turnwise.memory.store import Commit, SessionStore
from turnwise.memory.turns import Turn, TurnRecord

Result = TypeVar("Result")

IfBusy = Literal["reject", "enqueue", "interrupt", "rollback"]

REMEMBERED = 128
"""How many ended runs are kept in memory, for waits that come late."""

_END_EVENTS: dict[RunState, type[RunEnded]] = {
    "completed": RunCompleted,
    "cancelled": RunCancelled,
    "failed": RunFailed,
    "interrupted": RunInterrupted,
}

_Begun = tuple[ActiveRun, RunRecord, TurnRecord]
"""A run, and its record and turn as they are when it has the claim."""


@dataclass(frozen=True, slots=True)
class Started:
    """What `start` acknowledges."""

    run_id: str
    turn_index: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `turn` is what was kept of it."""

    run: RunRecord
    turn: Turn | None


class SessionCore:
    """One session: its history, its one active run, its queue. Plain asyncio; lives on one event loop.

    Invariants, each held by a test:

    1. At most one run is active. The check and the claim are one step; a finished run gives up its claim before any
       waiter wakes.
    2. What a call acknowledged is in the store. A commit (blocks, turns, runs, events) is one transaction, or nothing.
    3. A run has exactly one terminal event, and it is that run's last.
    4. The next request to a provider is always valid, whatever was cancelled, failed or crashed.
    5. A late result (an engine that ignored cancel, a core whose session another has activated) changes nothing: the
       run's context is closed, and the store refuses the stale epoch.

    How: every state change runs alone, behind one lock, as decide, commit, apply. Memory changes only after the commit,
    so a kill anywhere leaves what the last commit left. A change that has begun ends even if its caller is cancelled.
    After a store error whose outcome is unknown, the next change first activates the session anew and takes over what
    the store says. Reads take no lock.

    A turn costs two commits: one that starts the run, one that ends it (and starts the next in the queue).
    """

    def __init__(
        self,
        session_id: str,
        store: SessionStore,
        builder: EngineBuilder,
        config: SessionConfig | None = None,
        *,
        clock: Callable[[], float] = time.time,
        off_loop: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self.session_id = session_id
        self._journal = Journal(session_id, store, clock)
        self._clock = clock
        self._off_loop = off_loop
        """How to call what may block."""
        self._builder = builder
        self._config = config or SessionConfig()
        self._runner: InferenceRunner | None = None
        self._change = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._head: TurnRecord | None = None
        """The last turn that has ended and was kept: what the next one continues."""
        self._active: ActiveRun | None = None
        self._backlog = Backlog()
        self._ended: OrderedDict[str, tuple[RunRecord, TurnRecord | None]] = OrderedDict()

    # Changes

    async def activate(self) -> None:
        """Take the session over from whoever had it: raise the epoch, end the run that was lost, go on with the queue.

        Runs by itself before the first change or read. Other cores of the session are fenced from here on.
        """
        if self._journal.stale:
            await self._atomically(_nothing)

    def use(self, builder: EngineBuilder, config: SessionConfig) -> None:
        """Take another engine and other settings over, from the next run on."""
        self._spawn(_retire(self._runner, self._active))
        self._builder, self._config, self._runner = builder, config, None

    async def append(self, prompts: Sequence[Prompt], key: str) -> int:
        """Store prompts for the next run to take up; return the index of its turn.

        Appends are in the history in the order in which they are acknowledged. A run that is active is not changed.

        Args:
            key: names this append; the same key again appends nothing and returns the same index.

        Raises:
            EmptyTurnError, InvalidPromptError, SessionEndedError: nothing was stored.
        """
        blocks, encoded = accept(self.session_id, prompts, self._config.max_prompt_bytes)
        if not blocks:
            raise EmptyTurnError(self.session_id)

        async def change() -> int:
            self._check_not_ended()
            span, session = self._journal.extend(len(blocks))
            turn = self._backlog.next_turn(session.next_index, self._clock())
            turn = replace(turn, prompt=join(turn.prompt, (span,)), appended=join(turn.appended, (span,)))
            events: list[NewEvent] = [(PromptAppended, {"turn_index": turn.index, "key": key})]
            await self._commit(session, events, blocks=encoded, turns=[turn])
            self._journal.cache.add(span.log, span.start, blocks)
            self._backlog.pending = turn
            return turn.index

        try:
            return await self._atomically(change)
        except DuplicateKeyError:
            event = await self._journal.store.event_of_key(self.session_id, key)
            if event is None or event.turn_index is None:
                raise
            return event.turn_index

    async def start(
        self,
        prompts: Sequence[Prompt],
        *,
        run_id: str,
        if_busy: IfBusy = "reject",
        idempotency_key: str | None = None,
        timeout_s: float | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Started:
        """Start a run of the prompts that were appended and these; durable on return.

        What `if_busy` says happens while a run is active or queued: `reject` raises; `enqueue` waits behind them in
        order of arrival; `interrupt` cancels them all and keeps what they have, `rollback` cancels them all and leaves
        no trace of them; then this run is next. Queued runs that are cancelled give their prompts to the next run
        (`interrupt`) or drop them (`rollback`); prompts that were appended on their own are never dropped.

        Args:
            run_id: a fresh id; the same id again starts nothing and returns the run there is.
            idempotency_key: likewise, chosen by the caller and good for as long as the session; costs one more read.
            timeout_s: the run fails after so long, and keeps what it has.

        Raises:
            SessionBusyError, QueueFullError, SessionEndedError, EmptyTurnError, InvalidPromptError,
            IdempotencyConflictError: nothing was stored.
        """
        if if_busy not in get_args(IfBusy):
            raise ConfigError("if_busy", if_busy, f"must be one of {', '.join(get_args(IfBusy))}")
        if timeout_s is not None and timeout_s <= 0:
            raise ConfigError("timeout_s", timeout_s, "must be more than 0")
        blocks, encoded = accept(self.session_id, prompts, self._config.max_prompt_bytes)
        fingerprint = hashlib.sha256("\n".join(encoded).encode()).hexdigest() if idempotency_key else None

        async def change() -> Started:
            if found := await self._find_run(run_id, idempotency_key, fingerprint):
                return found
            try:
                self._check_can_start(blocks, if_busy)
            except Exception:
                # Refusing costs a read: this may be the second delivery of a start that was acknowledged.
                if found := await self._find_run(run_id, idempotency_key, fingerprint, stored=True):
                    return found
                raise
            return await self._start(
                blocks,
                encoded,
                if_busy,
                run_id=run_id,
                idempotency_key=idempotency_key,
                fingerprint=fingerprint,
                timeout_s=timeout_s,
                labels=FrozenDict(labels or {}),
            )

        try:
            return await self._atomically(change)
        except DuplicateKeyError:
            found = await self._find_run(run_id, idempotency_key, fingerprint, stored=True)
            if found is None:
                raise
            return found

    async def cancel(self, reason: str, run_id: str | None = None) -> bool:
        """Cancel a run, or the active one; return whether the run ended as cancelled, when it has ended.

        Idempotent: the first reason stands, and cancelling a run that has ended does nothing. An engine that ignores
        it delays the return by no more than `cancel_grace_s`. A run that was only queued gives its prompts to the next
        run, or drops them if `on_cancel` is `discard`.

        Raises:
            NoActiveRunError: no run was named and none is active.
            RunNotFoundError: the session has no such run.
        """
        await self._loaded()
        run = self._active if run_id is None else self._open_run(run_id)
        if run is None:
            if run_id is None:
                raise NoActiveRunError(self.session_id)
            return (await self._journal.find_run(run_id)).state == "cancelled"

        async def change() -> None:
            if run in self._backlog.queue:
                await self._cancel_queued([run], storable(reason), self._journal.session)

        if run is not self._active:
            await self._atomically(change)
        if run is self._active:  # or has become it while the change waited for its turn
            run.request_cancel(reason, discard=self._discards)
        await settled(run.done)
        run.done.result()
        return run.record.state == "cancelled"

    async def end(self, reason: str = "session ended") -> None:
        """Take no more runs; cancel the active and the queued ones with this reason. Ending twice is fine.

        The end is durable before the active run is cancelled; returns when that run has ended.
        """

        async def change() -> None:
            if self._journal.session.status == "active":
                session = replace(self._journal.session, status="ended")
                await self._cancel_queued(list(self._backlog.queue), storable(reason), session, [(SessionEnded, {})])

        await self._atomically(change)
        if run := self._active:
            run.request_cancel(reason, discard=self._discards)
            await settled(run.done)
            run.done.result()

    async def delete(self) -> None:
        """Delete the session for good; forks keep what they span.

        Raises:
            SessionBusyError: a run is active or queued; nothing was deleted.
        """

        async def change() -> None:
            if self._active:
                raise SessionBusyError(self.session_id, self._active.run_id)
            await self._journal.store.delete(self.session_id, epoch=self._journal.session.epoch)
            self._journal.lost = SessionNotFoundError(self.session_id)
            self._journal.log.publish()

        await self._atomically(change)

    async def fork(self, at: int | None, session_id: str) -> SessionRecord:
        """Make a session that continues from the turn `at`, or from the last one that ended; this one is untouched.

        The fork starts with that turn, under its index, and shares its blocks. Forking again under the same id from the
        same turn returns the fork there is.

        Raises:
            TurnNotFoundError: there is no such turn, or it has not ended.
            SessionExistsError: the id is taken.
        """
        await self._loaded()
        base = self._head if at is None else await self._journal.find_turn(at)
        if base is None or base.status in ("pending", "queued", "running"):
            raise TurnNotFoundError(self.session_id, at)
        parent = f"{self.session_id}#{base.index}"
        session, now = self._journal.session, self._clock()
        fork = SessionRecord(
            session_id=session_id,
            user_id=session.user_id,
            agent=session.agent,
            metadata=session.metadata,
            created_at=now,
            updated_at=now,
            parent=parent,
            next_index=base.index + 1,
        )
        try:
            return await self._journal.store.create(fork, replace(base, parent=parent))
        except SessionExistsError:
            found = await self._journal.store.get(session_id)
            if found.parent != parent:
                raise
            return found

    async def leave(self) -> bool:
        """Give the session up if nothing runs or waits; return whether that is so. Later calls are fenced."""
        async with self._change:
            if self._active or self._backlog.queue:
                return False
            self._journal.lost = SessionFencedError(self.session_id, self._journal.session.epoch)
        await _retire(self._runner, None)
        return True

    # Reads

    async def wait(self, run_id: str, timeout_s: float | None = None) -> Outcome | None:
        """Return how the run ended, when it has; None after `timeout_s`. Waiting and giving up change nothing.

        Raises:
            RunNotFoundError: the session has no such run.
            StoreError: the run's end could not be stored.
        """
        await self._loaded()
        while True:
            if run := self._open_run(run_id):
                if not await settled(run.done, timeout_s):
                    return None
                run.done.result()
            if ended := self._ended.get(run_id):
                record, turn = ended
                return Outcome(record, self._journal.turn(turn) if turn else None)
            record = await self._journal.find_run(run_id)
            if not record.is_open:
                turn = await self._journal.find_turn_of(record)
                return Outcome(record, (await self._journal.read_turns([turn]))[0] if turn else None)
            if not self._open_run(run_id):
                await self._loaded()  # it was lost with an earlier activation, which has yet to be settled

    async def run(self, run_id: str) -> RunRecord:
        """Return where the run stands."""
        await self._loaded()
        if run := self._open_run(run_id):
            return run.record
        return self._ended[run_id][0] if run_id in self._ended else await self._journal.find_run(run_id)

    async def session(self) -> SessionRecord:
        """Return the session's row as of its last commit."""
        await self._loaded()
        return self._journal.session

    @property
    def active_run_id(self) -> str | None:
        """The run that has the session's claim."""
        return self._active.run_id if self._active else None

    def is_ending(self, run_id: str) -> bool:
        """Return whether the run's outcome is decided, whether or not it is stored yet."""
        run = self._open_run(run_id)
        return run is None or run.closed

    @property
    def queued_run_ids(self) -> list[str]:
        """The runs that wait behind it, in order."""
        return [run.run_id for run in self._backlog.queue]

    async def latest(self) -> Turn | None:
        """Return the newest turn: pending prompts on top of all before them, else the last queued, running or ended."""
        await self._loaded()
        if waiting := self._backlog.turns:
            base = self._active.turn.input if self._active else self._head.spans if self._head else ()
            turn = replace(waiting[-1], input=join(base, *(turn.prompt for turn in waiting)))
            return self._journal.turn(turn)
        newest = self._active.turn if self._active else self._head
        return self._journal.turn(newest) if newest else None

    async def turns(self, after: int = -1, limit: int = 100) -> list[Turn]:
        """Return up to `limit` turns with an index above `after`, by index."""
        await self._loaded()
        found = await self._journal.store.turns(self.session_id, after=after, limit=limit)
        return await self._journal.read_turns(found)

    async def turn(self, index: int) -> Turn:
        """Return the turn.

        Raises:
            TurnNotFoundError: there is none of this index.
        """
        await self._loaded()
        return (await self._journal.read_turns([await self._journal.find_turn(index)]))[0]

    async def runs(self, after: int = -1, limit: int = 100) -> list[RunRecord]:
        """Return up to `limit` runs with a turn index above `after`, by turn index."""
        await self._loaded()
        return await self._journal.store.runs(self.session_id, after=after, limit=limit)

    async def events(
        self, after: int = 0, limit: int = 1000, *, run_id: str | None = None, timeout_s: float = 0.0
    ) -> tuple[list[Event], int, bool]:
        """Return events with a number above `after`, where to go on from, and whether `run_id` has no more to come.

        Looks at up to `limit` events, of the run only if one is named; waits up to `timeout_s` for the first. Events
        that have left memory come from the store, without the live ones among them.
        """
        await self._loaded()
        if run_id is not None:
            after = max(after, (await self.run(run_id)).first_seq - 1)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            ended = run_id is not None and self._open_run(run_id) is None
            events = await self._journal.events(after, limit)
            after = events[-1].seq if events else after
            chosen = [event for event in events if run_id in (None, event.run_id)]
            done = ended and len(events) < limit
            left = deadline - asyncio.get_running_loop().time()
            if chosen or done or left <= 0 or self._journal.lost:
                return chosen, after, done or any(event.terminal for event in chosen if run_id)
            if not events:
                await self._journal.log.news(left)

    # Loading

    async def _loaded(self) -> None:
        if self._journal.stale and self._journal.lost is None:
            await self.activate()
        if self._journal.lost:
            raise self._journal.lost

    async def _load(self) -> None:
        """Take over what the store says, and put in order what a lost owner left."""
        found = await self._journal.activate()
        self._head = found.head
        stored = {record.run_id: record for record in found.open_runs}
        known = {run.run_id: run for run in [*self._backlog.queue, *([self._active] if self._active else [])]}
        for run in known.values():
            if run.run_id not in stored and not run.done.done():
                # Its end was stored, and only the store's answer was lost.
                record = await self._journal.find_run(run.run_id)
                turn = await self._journal.find_turn_of(record)
                await self._journal.hold(turn.spans if turn else ())
                self._remember(run, record, turn)
        if self._active and self._active.done.done():
            self._active = None
        turns = {turn.index: turn for turn in found.open_turns}
        self._backlog = Backlog()
        self._backlog.apply(turn for turn in found.open_turns if turn.status == "pending")
        lost: list[ActiveRun] = []
        for record in found.open_runs:
            if self._active and record.run_id == self._active.run_id:
                continue
            run = known.get(record.run_id) or self._new_run(record, turns[record.turn_index])
            run.record, run.turn = record, turns[record.turn_index]
            (self._backlog.queue if record.state == "queued" else lost).append(run)
        self._journal.stale = False
        if lost or (self._backlog.queue and self._active is None):
            await self._settle(lost)

    async def _settle(self, lost: Sequence[ActiveRun]) -> None:
        """End, in one commit, the runs whose process was lost; the queue goes on or, in an ended session, ends too."""
        ends = [self._ended_record(run, "interrupted", "the session's process was lost while it ran") for run in lost]
        turns = [replace(run.turn, status="interrupted") for run in lost]
        head = turns[-1] if turns else self._head
        session = self._journal.session
        goes_on = session.status == "active"
        gone = [] if goes_on else list(self._backlog.queue)
        given = self._hand_back(gone, discard=False)
        cancelled = [self._ended_record(run, "cancelled", "session ended") for run in gone]
        begun = self._begin_next(head) if goes_on and self._active is None else []
        await self._commit(
            session,
            [*map(_end_event, [*ends, *cancelled]), *map(_start_event, begun)],
            turns=[*turns, *given, *(turn for _, _, turn in begun)],
            dropped_turns=[run.turn.index for run in gone],
            runs=[*ends, *cancelled, *(record for _, record, _ in begun)],
            live=bool(begun or self._active),
        )
        self._head = head
        self._backlog.apply(given, gone)
        for run, end, turn in zip(lost, ends, turns, strict=True):
            self._remember(run, end, turn)
        for run, end in zip(gone, cancelled, strict=True):
            self._remember(run, end, None)
        self._launch_next(begun)

    # Starting

    def _check_can_start(self, blocks: Sequence[Block], if_busy: IfBusy) -> None:
        self._check_not_ended()
        if not blocks and self._backlog.pending is None:
            raise EmptyTurnError(self.session_id)
        if self._active:
            if if_busy == "reject":
                raise SessionBusyError(self.session_id, self._active.run_id)
            if if_busy == "enqueue" and len(self._backlog.queue) >= self._config.max_queued:
                raise QueueFullError(self.session_id, self._active.run_id, self._config.max_queued)

    async def _start(
        self, blocks: Sequence[Block], encoded: Sequence[str], if_busy: IfBusy, **settings: Any
    ) -> Started:
        """Commit a run as running, or as queued behind the active one, and then launch it or preempt that one."""
        busy, preempts, rollback = self._active, if_busy in ("interrupt", "rollback"), if_busy == "rollback"
        gone = list(self._backlog.queue) if busy and preempts else []
        ends = [self._ended_record(run, "cancelled", f"{if_busy} by run {settings['run_id']}") for run in gone]
        span, session = self._journal.extend(len(blocks))
        turn = with_given(self._backlog.next_turn(session.next_index, self._clock()), left_by(gone, discard=rollback))
        turn = replace(turn, run_id=settings["run_id"], status="queued", prompt=join(turn.prompt, (span,)))
        record = RunRecord(
            session_id=self.session_id,
            turn_index=turn.index,
            state="queued",
            first_seq=self._journal.log.last_seq + 1 + len(ends),
            created_at=self._clock(),
            **settings,
        )
        run = self._new_run(record, turn)
        if busy is None:
            run.record, run.turn = self._begin(record, turn, self._head)
        about = {"turn_index": turn.index, "run_id": run.run_id}
        await self._commit(
            session,
            [*map(_end_event, ends), (RunQueued if busy else RunStarted, about)],
            blocks=encoded,
            turns=[run.turn],
            dropped_turns=[run.turn.index for run in gone],
            new_run=run.record,
            runs=ends,
            live=True,
        )
        self._journal.cache.add(span.log, span.start, blocks)
        self._backlog.pending = None
        self._backlog.apply((), gone)
        for preempted, end in zip(gone, ends, strict=True):
            self._remember(preempted, end, None)
        if busy is None:
            self._launch(run)
        else:
            self._backlog.queue.append(run)
            if preempts:
                busy.request_cancel(f"{if_busy} by run {run.run_id}", discard=rollback)
        return Started(run.run_id, turn.index)

    def _begin(self, record: RunRecord, turn: TurnRecord, head: TurnRecord | None) -> tuple[RunRecord, TurnRecord]:
        """Return a run and its turn as running, on top of `head`."""
        turn = replace(
            turn,
            status="running",
            parent=f"{self.session_id}#{head.index}" if head else None,
            input=join(head.spans if head else (), turn.prompt),
        )
        return replace(record, state="running", started_at=self._clock()), turn

    def _begin_next(self, head: TurnRecord | None, given: Sequence[TurnRecord] = ()) -> list[_Begun]:
        """Return the head of the queue as running, in a list; its turn is the first of `given` if there is one."""
        return [
            (run, *self._begin(run.record, next(iter(given), run.turn), head)) for run in list(self._backlog.queue)[:1]
        ]

    def _launch_next(self, begun: Sequence[_Begun]) -> None:
        """Make the head of the queue active, as a commit stored it."""
        for run, record, turn in begun:
            self._backlog.queue.remove(run)
            run.record, run.turn = record, turn
            self._launch(run)

    def _launch(self, run: ActiveRun) -> None:
        # Events are held back to the start of the run before this one, for readers who are behind.
        before = next(reversed(self._ended.values()), None)
        self._journal.log.trim(min(run.record.first_seq, before[0].first_seq if before else run.record.first_seq))
        self._active = run
        self._spawn(self._drive(run))

    # Running

    async def _drive(self, run: ActiveRun) -> None:
        """Run the engine, then store how it ended, however often the store has to be asked."""
        ending = await attempt(
            run,
            lambda: self._answer(run),
            timeout_s=run.record.timeout_s,
            grace_s=self._config.cancel_grace_s,
        )
        deadline = asyncio.get_running_loop().time() + self._config.store_retry_s
        pause_s = 0.01
        while True:
            try:
                await self._exclusively(lambda: self._end_run(run, ending))
                return
            except StoreError as error:
                failure: TurnwiseError = error
                late = asyncio.get_running_loop().time() + pause_s > deadline
                if late or isinstance(error, SessionFencedError):
                    break
            except TurnwiseError as error:  # such as a corrupt row
                failure = error
                break
            except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must not wait for ever
                failure = StoreError(f"the end of run {run.run_id!r} could not be stored: {error!r}")
                break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)
        # The store still says that the run is active: whoever activates the session next ends it as interrupted.
        self._journal.stale = True
        if self._active is run:
            self._active = None
        if not run.done.done():
            _fail(run, failure)
        while self._journal.stale and self._journal.lost is None:
            try:
                await self.activate()
            except StoreError:
                await asyncio.sleep(1.0)

    async def _answer(self, run: ActiveRun) -> Sequence[Block]:
        runner = self._runner
        if runner is None:
            builder = self._builder
            runner = await self._off_loop(builder.build, run.session)
            if builder is self._builder:
                self._runner = runner
        return await runner.run(self._journal.turn(run.turn), run)

    async def _end_run(self, run: ActiveRun, ending: Ending) -> None:
        """Store the run's end and the start of the next in the queue; then free the claim, wake waiters, go on."""
        if run.done.done():
            return
        drop = run.discard and ending.state == "cancelled"
        blocks = [] if drop else ending.output
        span, session = self._journal.extend(len(blocks))
        turn = replace(
            run.turn,
            status=ending.state,
            output=join((span,)),
            usage=run.usage,
            stop_reason=run.stop_reason,
        )
        head = self._head if drop else turn
        given = self._hand_back([run], discard=True) if drop else []
        begun = self._begin_next(head, given)
        end = self._ended_record(run, ending.state, ending.why)
        waiting = [next_turn for _, _, next_turn in begun]
        await self._commit(
            session,
            [_end_event(end, answer_text(blocks), turn), *map(_start_event, begun)],
            blocks=[encode(block) for block in blocks],
            turns=[*([] if drop else [turn]), *(waiting or given)],
            dropped_turns=[turn.index] if drop else [],
            runs=[end, *(record for _, record, _ in begun)],
            live=bool(begun),
        )
        self._journal.cache.add(span.log, span.start, blocks)
        self._backlog.apply(() if begun else given)
        self._head, self._active = head, None
        self._remember(run, end, None if drop else turn)
        self._launch_next(begun)

    # Cancelling what is queued

    async def _cancel_queued(
        self, runs: Sequence[ActiveRun], reason: str, session: SessionRecord, more: Sequence[NewEvent] = ()
    ) -> None:
        discard = self._discards and session.status == "active"
        given = self._hand_back(runs, discard=discard)
        ends = [self._ended_record(run, "cancelled", reason) for run in runs]
        await self._commit(
            session,
            [*map(_end_event, ends), *more],
            turns=given,
            dropped_turns=[run.turn.index for run in runs],
            runs=ends,
        )
        self._backlog.apply(given, runs)
        for run, end in zip(runs, ends, strict=True):
            self._remember(run, end, None)

    def _hand_back(self, runs: Sequence[ActiveRun], *, discard: bool) -> list[TurnRecord]:
        index = self._journal.session.next_index
        return self._backlog.hand_back(runs, discard=discard, index=index, now=self._clock())

    # Changing

    async def _atomically(self, change: Callable[[], Awaitable[Result]]) -> Result:
        """Carry out one change alone, and to its end even if the caller is cancelled."""
        return await asyncio.shield(self._spawn(self._exclusively(change)))

    async def _exclusively(self, change: Callable[[], Awaitable[Result]]) -> Result:
        async with self._change:
            if self._journal.lost:
                raise self._journal.lost
            if self._journal.stale:
                await self._load()
            return await change()

    async def _commit(
        self, session: SessionRecord, events: Sequence[NewEvent], *, live: bool | None = None, **parts: Any
    ) -> None:
        """Number the events and store the commit of these `parts`; `live` is as now if None."""
        live = self._active is not None if live is None else live
        try:
            await self._journal.commit(Commit(session=session, events=self._journal.number(events), **parts), live=live)
        except SessionFencedError as error:
            # Another activation owns the session: stop the engine, answer everybody, change nothing.
            for run in [*([self._active] if self._active else []), *self._backlog.queue]:
                run.request_cancel("the session was taken over", discard=False)
                run.close()
                _fail(run, error)
            self._active = None
            self._backlog = Backlog()
            raise

    @property
    def _discards(self) -> bool:
        return self._config.on_cancel == "discard"

    def _check_not_ended(self) -> None:
        if self._journal.session.status == "ended":
            raise SessionEndedError(self.session_id)

    def _ended_record(self, run: ActiveRun, state: RunState, why: str | None) -> RunRecord:
        return replace(run.record, state=state, why=why, ended_at=self._clock())

    def _remember(self, run: ActiveRun, end: RunRecord, turn: TurnRecord | None) -> None:
        """Note the end of a run whose claim is free, and wake its waiters."""
        run.record = end
        self._ended[run.run_id] = (end, turn)
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        if not run.done.done():
            run.done.set_result(None)

    # Finding

    def _open_run(self, run_id: str) -> ActiveRun | None:
        if self._active and self._active.run_id == run_id:
            return self._active
        return self._backlog.find(run_id)

    async def _find_run(
        self, run_id: str, key: str | None, fingerprint: str | None, *, stored: bool = False
    ) -> Started | None:
        """Return the run of this id or idempotency key if there is one; `stored` looks for the id in the store too."""
        open_run = self._open_run(run_id)
        record = open_run.record if open_run else self._ended[run_id][0] if run_id in self._ended else None
        if record is None and key:
            record = await self._journal.store.run_of_key(self.session_id, key)
            if record and record.fingerprint != fingerprint:
                raise IdempotencyConflictError(self.session_id, key, record.run_id)
        if record is None and stored:
            try:
                record = await self._journal.find_run(run_id)
            except RunNotFoundError:
                return None
        return Started(record.run_id, record.turn_index) if record else None

    # Making

    def _new_run(self, record: RunRecord, turn: TurnRecord) -> ActiveRun:
        session = self._journal.session
        view = SessionView(
            session_id=self.session_id, user_id=session.user_id, agent=session.agent, metadata=session.metadata
        )
        return ActiveRun(view, record, turn, interval_s=self._config.delta_interval_s, publish=self._publish_delta)

    def _publish_delta(self, run: ActiveRun, part: Block) -> None:
        kind = TextDelta if isinstance(part, Text) else ThinkingDelta

        def make(seq: int) -> Event:
            return kind(
                session_id=self.session_id,
                seq=seq,
                at=self._clock(),
                turn_index=run.turn.index,
                run_id=run.run_id,
                text=getattr(part, "text", ""),
            )

        self._journal.log.publish_live(make)

    def _spawn(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start a task that is held until it ends, and whose error is not lost if nobody waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task


async def _nothing() -> None:
    return None


async def _retire(runner: object, user: ActiveRun | None) -> None:
    """Close a runner that can be closed, once the run that may use it has ended."""
    if isinstance(runner, Closable):
        if user:
            await settled(user.done)
        await runner.close()


def _fail(run: ActiveRun, error: Exception) -> None:
    """Give the run's waiters an error in place of its end."""
    if not run.done.done():
        run.done.set_exception(error)
        run.done.exception()  # there need not be any


def _start_event(begun: _Begun) -> NewEvent:
    _, record, _ = begun
    return RunStarted, {"turn_index": record.turn_index, "run_id": record.run_id}


def _end_event(end: RunRecord, text: str = "", turn: TurnRecord | None = None) -> NewEvent:
    values: dict[str, Any] = {"turn_index": end.turn_index, "run_id": end.run_id, "text": text}
    if end.state == "completed" and turn:
        values |= {"usage": turn.usage, "stop_reason": turn.stop_reason}
    else:
        values["why"] = end.why
    return _END_EVENTS[end.state], values
