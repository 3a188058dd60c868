"""A session's state machine, without a cluster."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, get_args

from turnwise.actors.active_run import ActiveRun
from turnwise.actors.config import SessionConfig
from turnwise.actors.event_log import EventLog
from turnwise.actors.inference.engine import EngineBuilder, InferenceRunner, SessionView
from turnwise.errors import (
    ConfigError,
    DuplicateKeyError,
    EmptyTurnError,
    EngineError,
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
)
from turnwise.memory.block_cache import BlockCache
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
from turnwise.memory.settle import settle
from turnwise.memory.spans import Span, Spans, join, union
from turnwise.memory.store import Commit, SessionStore
from turnwise.memory.turns import Turn, TurnRecord, answer_text

Result = TypeVar("Result")

IfBusy = Literal["reject", "enqueue", "interrupt", "rollback"]

LIVE_NUMBERS = 10_000_000
"""How many live events may follow a commit before the next: a later activation numbers its events from above them."""

REMEMBERED = 128
"""How many ended runs are kept in memory, for waits that come late."""

_END_EVENTS: dict[RunState, type[RunEnded]] = {
    "completed": RunCompleted,
    "cancelled": RunCancelled,
    "failed": RunFailed,
    "interrupted": RunInterrupted,
}


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
        self._off_loop = off_loop
        """How to call what may block."""
        self.session_id = session_id
        self._store = store
        self._builder = builder
        self._config = config or SessionConfig()
        self._clock = clock
        self._change = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._lost: Exception | None = None
        """Why this core owns the session no more."""
        self._stale = True
        """Whether memory must be loaded from the store before the next change."""
        self._runner: InferenceRunner | None = None
        self._session = SessionRecord(session_id=session_id)
        self._log = EventLog(0)
        self._cache = BlockCache()
        self._head: TurnRecord | None = None
        """The last turn that has ended and was kept: what the next one continues."""
        self._pending: TurnRecord | None = None
        self._active: ActiveRun | None = None
        self._queue: deque[ActiveRun] = deque()
        self._ended: OrderedDict[str, tuple[RunRecord, TurnRecord | None]] = OrderedDict()

    # Changes

    async def activate(self) -> None:
        """Take the session over from whoever had it: raise the epoch, end the run that was lost, go on with the queue.

        Runs by itself before the first change or read. Other cores of the session are fenced from here on.
        """
        if self._stale:
            await self._atomically(_nothing)

    def use(self, builder: EngineBuilder, config: SessionConfig) -> None:
        """Take another engine and other settings over, from the next run on."""
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
            span, session = self._extend_log(len(blocks))
            turn = self._pending or TurnRecord(index=session.next_index, created_at=self._clock())
            turn = replace(turn, prompt=join(turn.prompt, (span,)), appended=join(turn.appended, (span,)))
            session = replace(session, next_index=max(session.next_index, turn.index + 1))
            events = self._number([(PromptAppended, {"turn_index": turn.index, "key": key})])
            await self._commit(Commit(session=session, blocks=encoded, turns=[turn], events=events))
            self._cache.add(span.log, span.start, blocks)
            self._pending = turn
            return turn.index

        try:
            return await self._atomically(change)
        except DuplicateKeyError:
            event = await self._store.event_of_key(self.session_id, key)
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
            return (await self._stored_run(run_id)).state == "cancelled"
        discard = self._config.on_cancel == "discard"
        if run is self._active:
            run.request_cancel(reason, discard=discard)
        else:
            await self._atomically(lambda: self._cancel_queued(run, reason, discard=discard))
        await _finished(run)
        return run.record.state == "cancelled"

    async def end(self, reason: str = "session ended") -> None:
        """Take no more runs; cancel the active and the queued ones with this reason. Ending twice is fine.

        The end is durable before the active run is cancelled; returns when that run has ended.
        """

        async def change() -> None:
            if self._session.status == "ended":
                return
            runs = list(self._queue)
            turns, dropped = self._hand_back(runs, discard=False)
            session = self._with_turns(replace(self._session, status="ended"), turns)
            ends = [self._ended_record(run, "cancelled", reason) for run in runs]
            events = self._number([*(self._end_event(end) for end in ends), (SessionEnded, {})])
            commit = Commit(session=session, turns=turns, dropped_turns=dropped, runs=ends, events=events)
            await self._commit(commit)
            self._drop_queued(runs, ends, turns)

        await self._atomically(change)
        if run := self._active:
            run.request_cancel(reason, discard=self._config.on_cancel == "discard")
            await _finished(run)

    async def delete(self) -> None:
        """Delete the session for good; forks keep what they span.

        Raises:
            SessionBusyError: a run is active or queued; nothing was deleted.
        """

        async def change() -> None:
            if run := self._active or (self._queue[0] if self._queue else None):
                raise SessionBusyError(self.session_id, run.run_id)
            await self._store.delete(self.session_id, epoch=self._session.epoch)
            self._lost = SessionNotFoundError(self.session_id)
            self._log.publish()

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
        base = self._head if at is None else await self._turn_record(at)
        if base is None or base.status in ("pending", "queued", "running"):
            raise TurnNotFoundError(self.session_id, at)
        parent = f"{self.session_id}#{base.index}"
        now = self._clock()
        fork = SessionRecord(
            session_id=session_id,
            user_id=self._session.user_id,
            agent=self._session.agent,
            metadata=self._session.metadata,
            created_at=now,
            updated_at=now,
            parent=parent,
            next_index=base.index + 1,
        )
        try:
            return await self._store.create(fork, replace(base, parent=parent))
        except SessionExistsError:
            found = await self._store.get(session_id)
            if found.parent != parent:
                raise
            return found

    async def leave(self) -> bool:
        """Give the session up if nothing runs or waits; return whether it was. Other calls then raise SessionFencedError."""
        async with self._change:
            if self._active or self._queue:
                return False
            self._lost = SessionFencedError(self.session_id, self._session.epoch)
            return True

    # Reads

    async def wait(self, run_id: str, timeout_s: float | None = None) -> Outcome | None:
        """Return how the run ended, when it has; None after `timeout_s`. Waiting and giving up change nothing.

        Raises:
            RunNotFoundError: the session has no such run.
            StoreError: the run's end could not be stored.
        """
        await self._loaded()
        if run := self._open_run(run_id):
            await asyncio.wait([run.done], timeout=timeout_s)
            if not run.done.done():
                return None
            run.done.result()
        if ended := self._ended.get(run_id):
            record, turn = ended
            return Outcome(record, self._turn(turn) if turn else None)
        record = await self._stored_run(run_id)
        if record.is_open:
            return await self.wait(run_id, timeout_s)
        found = await self._store.turns(self.session_id, after=record.turn_index - 1, limit=1)
        kept = [turn for turn in found if turn.run_id == run_id]
        return Outcome(record, (await self._stored_turns(kept))[0] if kept else None)

    async def run(self, run_id: str) -> RunRecord:
        """Return where the run stands."""
        await self._loaded()
        if run := self._open_run(run_id):
            return run.record
        return self._ended[run_id][0] if run_id in self._ended else await self._stored_run(run_id)

    async def session(self) -> SessionRecord:
        """Return the session's row as of its last commit."""
        await self._loaded()
        return self._session

    @property
    def active_run_id(self) -> str | None:
        """The run that has the session's claim."""
        return self._active.run_id if self._active else None

    @property
    def queued_run_ids(self) -> list[str]:
        """The runs that wait behind it, in order."""
        return [run.run_id for run in self._queue]

    async def latest(self) -> Turn | None:
        """Return the newest turn: pending prompts on top of all before them, else the last queued, running or ended."""
        await self._loaded()
        waiting = [run.turn for run in self._queue] + ([self._pending] if self._pending else [])
        if waiting:
            base = self._active.turn.input if self._active else self._head.spans if self._head else ()
            return self._turn(replace(waiting[-1], input=join(base, *(turn.prompt for turn in waiting))))
        turn = self._active.turn if self._active else self._head
        return self._turn(turn) if turn else None

    async def turns(self, after: int = -1, limit: int = 100) -> list[Turn]:
        """Return up to `limit` turns with an index above `after`, by index."""
        await self._loaded()
        return await self._stored_turns(await self._store.turns(self.session_id, after=after, limit=limit))

    async def turn(self, index: int) -> Turn:
        """Return the turn.

        Raises:
            TurnNotFoundError: there is none of this index.
        """
        await self._loaded()
        return (await self._stored_turns([await self._turn_record(index)]))[0]

    async def runs(self, after: int = -1, limit: int = 100) -> list[RunRecord]:
        """Return up to `limit` runs with a turn index above `after`, by turn index."""
        await self._loaded()
        return await self._store.runs(self.session_id, after=after, limit=limit)

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
            events = await self._events(after, limit)
            after = events[-1].seq if events else after
            chosen = [event for event in events if run_id in (None, event.run_id)]
            done = ended and len(events) < limit
            left = deadline - asyncio.get_running_loop().time()
            if chosen or done or left <= 0 or self._lost:
                return chosen, after, done or any(event.terminal for event in chosen if run_id)
            if not events:
                await self._log.news(left)

    # Loading

    async def _loaded(self) -> None:
        if self._stale and self._lost is None:
            await self.activate()
        if self._lost:
            raise self._lost

    async def _load(self) -> None:
        """Take over what the store says, and put in order what a lost owner left."""
        found = await self._store.activate(self.session_id)
        mine = self._active
        self._session = found.session
        if self._log.last_seq:
            missed = await self._store.events(self.session_id, after=self._log.published)
            self._log.publish(missed, upto=found.session.seq)
        else:
            self._log = EventLog(found.session.seq)
        self._head = found.head
        self._pending = next((turn for turn in found.open_turns if turn.status == "pending"), None)
        needed = union(*(turn.spans for turn in (found.head, *found.open_turns) if turn))
        for span in self._cache.missing(needed):
            self._cache.add_spans((span,), await self._store.blocks((span,)))
        turns = {turn.index: turn for turn in found.open_turns}
        records = {run.run_id: run for run in found.open_runs}
        for waiting in (*self._queue, *([mine] if mine else [])):
            if waiting.run_id not in records and not waiting.done.done():
                # Its end was stored, and only the answer of the store was lost.
                await self._adopt_end(waiting)
        if mine and mine.done.done():
            mine = self._active = None
        known = {run.run_id: run for run in self._queue}
        self._queue.clear()
        lost: list[ActiveRun] = []
        for record in found.open_runs:
            if mine and record.run_id == mine.run_id:
                continue
            run = known.get(record.run_id) or self._new_run(record, turns[record.turn_index])
            run.record, run.turn = record, turns[record.turn_index]
            (self._queue if record.state == "queued" else lost).append(run)
        self._stale = False
        if lost or (self._queue and mine is None):
            await self._restart(lost)

    async def _restart(self, lost: Sequence[ActiveRun]) -> None:
        """End the runs whose process was lost and start the next of the queue, in one commit."""
        why = "the session's process was lost while it ran"
        ends = [self._ended_record(run, "interrupted", why) for run in lost]
        turns = [replace(run.turn, status="interrupted") for run in lost]
        kept = turns[-1] if turns else self._head
        queue = list(self._queue)
        if self._session.status == "ended":
            cancelled = [self._ended_record(run, "cancelled", "session ended") for run in queue]
            given, dropped = self._hand_back(queue, discard=False)
            session = self._with_turns(self._session, given)
            ends += cancelled
            nexts: list[ActiveRun] = []
        else:
            cancelled, given, dropped, session = [], [], [], self._session
            nexts = queue[:1] if self._active is None else []
        events = [self._end_event(end) for end in ends]
        started = [self._begin(run, kept) for run in nexts]
        events += [(RunStarted, {"turn_index": run.turn_index, "run_id": run.run_id}) for run, _ in started]
        await self._commit(
            Commit(
                session=session,
                turns=[*turns, *given, *(turn for _, turn in started)],
                dropped_turns=dropped,
                runs=[*ends, *(run for run, _ in started)],
                events=self._number(events),
            ),
            live=bool(started or self._active),
        )
        self._head = kept
        for run, end, turn in zip(lost, ends, turns, strict=False):
            self._remember(run, end, turn)
        self._drop_queued(queue if cancelled else [], cancelled, given)
        self._launch_next(started)

    async def _adopt_end(self, run: ActiveRun) -> None:
        record = await self._store.run(run.run_id)
        turns = await self._store.turns(self.session_id, after=record.turn_index - 1, limit=1)
        kept = next((turn for turn in turns if turn.run_id == run.run_id), None)
        if kept:
            for span in self._cache.missing(kept.spans):
                self._cache.add_spans((span,), await self._store.blocks((span,)))
        self._remember(run, record, kept)

    # Starting

    def _check_can_start(self, blocks: Sequence[Block], if_busy: IfBusy) -> None:
        self._check_not_ended()
        if not blocks and self._pending is None:
            raise EmptyTurnError(self.session_id)
        if self._active:
            if if_busy == "reject":
                raise SessionBusyError(self.session_id, self._active.run_id)
            if if_busy == "enqueue" and len(self._queue) >= self._config.max_queued:
                raise QueueFullError(self.session_id, self._active.run_id, self._config.max_queued)

    async def _start(
        self, blocks: Sequence[Block], encoded: Sequence[str], if_busy: IfBusy, **settings: Any
    ) -> Started:
        """Commit a run as running, or as queued behind the active one, and then launch it or preempt that one."""
        busy = self._active
        preempted = list(self._queue) if busy and if_busy in ("interrupt", "rollback") else []
        rollback = if_busy == "rollback"
        given = self._given_back(preempted, discard=rollback)
        now = self._clock()
        span, session = self._extend_log(len(blocks))
        turn = self._pending or TurnRecord(index=session.next_index, created_at=now)
        appended = join(given, turn.appended)
        turn = replace(
            turn,
            run_id=settings["run_id"],
            status="queued",
            prompt=join(appended, (span,)),
            appended=appended,
        )
        session = replace(session, next_index=max(session.next_index, turn.index + 1))
        ends = [self._ended_record(run, "cancelled", f"{if_busy} by run {turn.run_id}") for run in preempted]
        events = [self._end_event(end) for end in ends]
        first = self._log.last_seq + 1 + len(events)
        record = RunRecord(
            session_id=self.session_id,
            turn_index=turn.index,
            state="queued",
            first_seq=first,
            created_at=now,
            **settings,
        )
        run = self._new_run(record, turn)
        if busy is None:
            run.record, run.turn = self._begin(run, self._head)
        about = {"turn_index": run.turn.index, "run_id": run.run_id}
        events.append((RunQueued if busy else RunStarted, about))
        await self._commit(
            Commit(
                session=session,
                blocks=encoded,
                turns=[run.turn],
                dropped_turns=[preempted_run.turn.index for preempted_run in preempted],
                new_run=run.record,
                runs=ends,
                events=self._number(events),
            ),
            live=True,
        )
        self._cache.add(span.log, span.start, blocks)
        self._pending = None
        self._drop_queued(preempted, ends, [])
        if busy is None:
            self._launch(run)
        else:
            self._queue.append(run)
            if if_busy in ("interrupt", "rollback"):
                busy.request_cancel(f"{if_busy} by run {run.run_id}", discard=rollback)
        return Started(run.run_id, run.turn.index)

    def _begin(self, run: ActiveRun, head: TurnRecord | None, given: Spans = ()) -> tuple[RunRecord, TurnRecord]:
        """Return the run and its turn as running, on top of `head`."""
        prompt = join(given, run.turn.prompt)
        turn = replace(
            run.turn,
            status="running",
            parent=f"{self.session_id}#{head.index}" if head else None,
            prompt=prompt,
            appended=join(given, run.turn.appended),
            input=join(head.spans if head else (), prompt),
        )
        return replace(run.record, state="running", started_at=self._clock()), turn

    def _launch_next(self, started: Sequence[tuple[RunRecord, TurnRecord]]) -> None:
        """Make the head of the queue active, as `_begin` returned it and a commit stored it."""
        for record, turn in started:
            run = self._queue.popleft()
            run.record, run.turn = record, turn
            self._launch(run)

    def _launch(self, run: ActiveRun) -> None:
        self._log.trim(self._oldest_held(run))
        self._active = run
        self._spawn(self._drive(run))

    def _oldest_held(self, run: ActiveRun) -> int:
        """Events are held back to the start of the run before this one, for readers who are behind."""
        before = next(reversed(self._ended.values()), None)
        return min(before[0].first_seq, run.record.first_seq) if before else run.record.first_seq

    # Running

    async def _drive(self, run: ActiveRun) -> None:
        """Run the engine, decide how the run ended, and store that, however often the store has to be asked."""
        state, why, output = await self._infer(run)
        deadline = asyncio.get_running_loop().time() + self._config.store_retry_s
        pause_s = 0.01
        while True:
            try:
                return await self._exclusively(lambda: self._end_run(run, state, why, output))
            except SessionFencedError as error:
                failure: StoreError = error
                break
            except StoreError as error:
                failure = error
                if asyncio.get_running_loop().time() + pause_s > deadline:
                    break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)
        # The store still says that the run is active: whoever activates the session next ends it as interrupted.
        self._stale = True
        if self._active is run:
            self._active = None
        if not run.done.done():
            run.done.set_exception(failure)
            run.done.exception()
        while self._stale and self._lost is None:
            try:
                await self.activate()
            except StoreError:
                await asyncio.sleep(1.0)

    async def _infer(self, run: ActiveRun) -> tuple[RunState, str | None, list[Block]]:
        """Return the run's end, why, and the blocks to keep. Never raises; leaves a late engine behind."""
        engine = self._spawn(self._answer(run))
        timeout_s = run.record.timeout_s
        await asyncio.wait({engine, run.cancelled}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        late = not engine.done() and not run.cancelled.done()
        if not engine.done():
            engine.cancel()
            await asyncio.wait({engine}, timeout=self._config.cancel_grace_s)
        emitted = run.close()
        finished = engine.done() and not engine.cancelled() and engine.exception() is None
        if run.cancelled.done():
            why = run.cancelled.result()
            return "cancelled", why, settle(engine.result() if finished else emitted, why=why, interrupted=True)
        if late:
            why = f"it took longer than timeout_s={timeout_s}"
        elif engine.cancelled():
            why = "the engine cancelled itself"
        elif error := engine.exception():
            why = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
        else:
            return "completed", None, settle(engine.result(), why="no result came", interrupted=False)
        return "failed", why, settle(emitted, why=why, interrupted=True)

    async def _answer(self, run: ActiveRun) -> list[Block]:
        try:
            runner = self._runner
            if runner is None:
                builder = self._builder
                runner = await self._off_loop(builder.build, run.session)
                if builder is self._builder:
                    self._runner = runner
            output = list(await runner.run(self._turn(run.turn), run))
        except (SystemExit, KeyboardInterrupt) as error:
            raise EngineError(f"the engine raised {type(error).__name__}") from error
        if not output or not all(isinstance(block, Block) and block.role in ("assistant", "tool") for block in output):
            raise EngineError("the engine returned no answer: return at least one block, all of an assistant or a tool")
        if not settle(output, why="", interrupted=False):
            raise EngineError("the engine returned thoughts but no answer")
        return output

    async def _end_run(self, run: ActiveRun, state: RunState, why: str | None, output: Sequence[Block]) -> None:
        """Store the run's end and the start of the next in the queue; then free the claim, wake waiters, go on."""
        if run.done.done():
            return
        drop = run.discard and state == "cancelled"
        blocks = [] if drop else output
        span, session = self._extend_log(len(blocks))
        turn = replace(
            run.turn,
            status=state,
            output=join((span,)),
            usage=run.usage,
            stop_reason=run.stop_reason,
        )
        end = self._ended_record(run, state, why)
        head = self._head if drop else turn
        given = run.turn.appended if drop else ()
        turns = [] if drop else [turn]
        begun = [self._begin(next_run, head, given) for next_run in list(self._queue)[:1]]
        pending = self._pending
        if given and not begun:
            pending = self._with_appended(session, given)
            session = self._with_turns(session, [pending])
            turns.append(pending)
        events = [self._end_event(end, text=answer_text(blocks), turn=turn)]
        events += [
            (RunStarted, {"turn_index": next_run.turn_index, "run_id": next_run.run_id}) for next_run, _ in begun
        ]
        await self._commit(
            Commit(
                session=session,
                blocks=[encode(block) for block in blocks],
                turns=[*turns, *(next_turn for _, next_turn in begun)],
                dropped_turns=[turn.index] if drop else [],
                runs=[end, *(next_run for next_run, _ in begun)],
                events=self._number(events),
            ),
            live=bool(begun),
        )
        self._cache.add(span.log, span.start, blocks)
        self._head, self._pending, self._active = head, pending, None
        self._remember(run, end, None if drop else turn)
        self._launch_next(begun)

    # Cancelling what is queued

    async def _cancel_queued(self, run: ActiveRun, reason: str, *, discard: bool) -> None:
        if run is self._active:  # it was started while this waited for its turn to change anything
            run.request_cancel(reason, discard=discard)
            return
        if run.done.done():
            return
        turns, dropped = self._hand_back([run], discard=discard)
        session = self._with_turns(self._session, turns)
        end = self._ended_record(run, "cancelled", reason)
        events = self._number([self._end_event(end)])
        await self._commit(Commit(session=session, turns=turns, dropped_turns=dropped, runs=[end], events=events))
        self._drop_queued([run], [end], turns)

    def _given_back(self, runs: Sequence[ActiveRun], *, discard: bool) -> Spans:
        """Return the prompts that queued runs leave when they are cancelled: all, or those appended on their own."""
        return join(*(run.turn.appended if discard else run.turn.prompt for run in runs))

    def _hand_back(self, runs: Sequence[ActiveRun], *, discard: bool) -> tuple[list[TurnRecord], list[int]]:
        """Return the turns to store and those to drop when queued `runs`, next to each other, are cancelled.

        What they leave goes to the run that follows them, or waits as appended prompts.
        """
        dropped = [run.turn.index for run in runs]
        given = self._given_back(runs, discard=discard)
        if not given:
            return [], dropped
        for run in list(self._queue):
            if run.turn.index > dropped[-1]:
                turn = run.turn
                return [replace(turn, prompt=join(given, turn.prompt), appended=join(given, turn.appended))], dropped
        return [self._with_appended(self._session, given)], dropped

    def _with_appended(self, session: SessionRecord, given: Spans) -> TurnRecord:
        """Return the pending turn with `given` ahead of its prompts."""
        turn = self._pending or TurnRecord(index=session.next_index, created_at=self._clock())
        return replace(turn, prompt=join(given, turn.prompt), appended=join(given, turn.appended))

    def _drop_queued(self, runs: Sequence[ActiveRun], ends: Sequence[RunRecord], turns: Sequence[TurnRecord]) -> None:
        """Apply a commit that cancelled queued runs and stored `turns` for what they left."""
        for turn in turns:
            if turn.status == "pending":
                self._pending = turn
            for run in self._queue:
                if run.turn.index == turn.index:
                    run.turn = turn
        for run, end in zip(runs, ends, strict=True):
            self._queue.remove(run)
            self._remember(run, end, None)

    # Commits

    async def _atomically(self, change: Callable[[], Awaitable[Result]]) -> Result:
        """Carry out one change alone, and to its end even if the caller is cancelled."""
        return await asyncio.shield(self._spawn(self._exclusively(change)))

    async def _exclusively(self, change: Callable[[], Awaitable[Result]]) -> Result:
        async with self._change:
            if self._lost:
                raise self._lost
            if self._stale:
                await self._load()
            return await change()

    async def _commit(self, commit: Commit, *, live: bool | None = None) -> None:
        """Store a commit and publish its events, or do neither.

        Args:
            live: whether a run is active after it, which numbers live events before the next commit; as now if None.
        """
        live = self._active is not None if live is None else live
        seq = self._log.last_seq + (LIVE_NUMBERS if live else 0)
        commit = replace(commit, session=replace(commit.session, seq=seq, updated_at=self._clock()))
        try:
            await self._store.commit(self.session_id, commit.session.epoch, commit)
        except SessionFencedError as error:
            self._log.publish()
            self._lose(error)
            raise
        except DuplicateKeyError:
            self._log.publish()
            raise
        except BaseException:
            # It may be stored or not: its events stay reserved until the store has said which.
            self._stale = True
            raise
        self._session = commit.session
        self._log.publish(commit.events)

    def _lose(self, error: Exception) -> None:
        """Another activation owns the session: stop the engine, answer everybody, change nothing."""
        self._lost = error
        for run in [*([self._active] if self._active else []), *self._queue]:
            run.request_cancel("the session was taken over", discard=False)
            run.close()
            if not run.done.done():
                run.done.set_exception(error)
                run.done.exception()
        self._active = None
        self._queue.clear()

    def _extend_log(self, count: int) -> tuple[Span, SessionRecord]:
        """Return where the next `count` blocks go, and the session's row with them."""
        session = self._session
        span = Span(session.log, session.log_size, session.log_size + count)
        return span, replace(session, log_size=span.stop)

    def _with_turns(self, session: SessionRecord, turns: Sequence[TurnRecord]) -> SessionRecord:
        return replace(session, next_index=max([session.next_index, *(turn.index + 1 for turn in turns)]))

    def _number(self, events: Sequence[tuple[type[Event], dict[str, Any]]]) -> list[Event]:
        first = self._log.reserve(len(events))
        at = self._clock()
        return [
            kind(session_id=self.session_id, seq=seq, at=at, **values)
            for seq, (kind, values) in enumerate(events, first)
        ]

    def _ended_record(self, run: ActiveRun, state: RunState, why: str | None) -> RunRecord:
        return replace(run.record, state=state, why=why, ended_at=self._clock())

    def _end_event(
        self, end: RunRecord, *, text: str = "", turn: TurnRecord | None = None
    ) -> tuple[type[Event], dict[str, Any]]:
        values: dict[str, Any] = {"turn_index": end.turn_index, "run_id": end.run_id, "text": text}
        if end.state == "completed" and turn:
            values |= {"usage": turn.usage, "stop_reason": turn.stop_reason}
        else:
            values["why"] = end.why
        return _END_EVENTS[end.state], values

    def _remember(self, run: ActiveRun, end: RunRecord, turn: TurnRecord | None) -> None:
        """Note the end of a run whose claim is free, and wake its waiters."""
        run.record = end
        self._ended[run.run_id] = (end, turn)
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        if not run.done.done():
            run.done.set_result(None)

    # Finding

    def _check_not_ended(self) -> None:
        if self._session.status == "ended":
            raise SessionEndedError(self.session_id)

    def _open_run(self, run_id: str) -> ActiveRun | None:
        if self._active and self._active.run_id == run_id:
            return self._active
        return next((run for run in self._queue if run.run_id == run_id), None)

    async def _find_run(
        self, run_id: str, key: str | None, fingerprint: str | None, *, stored: bool = False
    ) -> Started | None:
        """Return the run of this id or idempotency key if there is one; `stored` looks for the id in the store too."""
        open_run = self._open_run(run_id)
        record = open_run.record if open_run else self._ended[run_id][0] if run_id in self._ended else None
        if record is None and key:
            record = await self._store.run_of_key(self.session_id, key)
            if record and record.fingerprint != fingerprint:
                raise IdempotencyConflictError(self.session_id, key, record.run_id)
        if record is None and stored:
            try:
                record = await self._stored_run(run_id)
            except RunNotFoundError:
                return None
        return Started(record.run_id, record.turn_index) if record else None

    async def _stored_run(self, run_id: str) -> RunRecord:
        try:
            record = await self._store.run(run_id)
        except RunNotFoundError:
            record = None
        if record is None or record.session_id != self.session_id:
            raise RunNotFoundError(run_id, f"session {self.session_id!r}")
        return record

    async def _turn_record(self, index: int) -> TurnRecord:
        found = await self._store.turns(self.session_id, after=index - 1, limit=1) if index >= 0 else []
        if not found or found[0].index != index:
            raise TurnNotFoundError(self.session_id, index)
        return found[0]

    def _turn(self, record: TurnRecord) -> Turn:
        return Turn(self.session_id, record, self._cache)

    async def _stored_turns(self, records: Sequence[TurnRecord]) -> list[Turn]:
        """Return turns that may span blocks which are not in memory, and shall not stay there."""
        spans = union(*(part for turn in records for part in (turn.prompt, turn.spans)))
        if not self._cache.missing(spans):
            return [self._turn(record) for record in records]
        cache = BlockCache()
        cache.add_spans(spans, await self._store.blocks(spans))
        return [Turn(self.session_id, record, cache) for record in records]

    async def _events(self, after: int, limit: int) -> list[Event]:
        while after < self._log.start - 1:
            start = self._log.start
            stored = await self._store.events(self.session_id, after=after, limit=limit)
            older = await self._with_text([event for event in stored if event.seq < start])
            if self._log.start == start:
                return older + self._log.since(start - 1, limit - len(older))
            if older:
                return older
        return self._log.since(after, limit)

    async def _with_text(self, events: list[Event]) -> list[Event]:
        """Return stored events with the text of the answers that they end, which is in the turns."""
        ends = [event.turn_index for event in events if isinstance(event, RunEnded) and event.turn_index is not None]
        if not ends:
            return events
        first, last = min(ends), max(ends)
        records = await self._store.turns(self.session_id, after=first - 1, limit=last - first + 1)
        texts = {turn.run_id: turn.text for turn in await self._stored_turns(records)}
        return [
            event.model_copy(update={"text": texts.get(event.run_id, "")}) if isinstance(event, RunEnded) else event
            for event in events
        ]

    # Tasks

    def _new_run(self, record: RunRecord, turn: TurnRecord) -> ActiveRun:
        session = SessionView(
            session_id=self.session_id,
            user_id=self._session.user_id,
            agent=self._session.agent,
            metadata=self._session.metadata,
        )
        return ActiveRun(session, record, turn, interval_s=self._config.delta_interval_s, publish=self._publish_delta)

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

        self._log.publish_live(make)

    def _spawn(self, work: Awaitable[Result]) -> asyncio.Task[Result]:
        """Start a task that is held until it ends, and whose error is not lost if nobody waits for it."""
        task: asyncio.Task[Result] = asyncio.ensure_future(work)  # type: ignore[assignment]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task


async def _nothing() -> None:
    return None


async def _finished(run: ActiveRun) -> None:
    """Return when the run has ended; a cancelled caller leaves it alone."""
    await asyncio.wait([run.done])
    run.done.result()
