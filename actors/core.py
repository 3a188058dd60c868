"""A session's state machine, without a cluster."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from turnwise.actors.active_run import ActiveRun
from turnwise.actors.backlog import left_by, with_given
from turnwise.actors.config import SessionConfig
from turnwise.actors.gear import Gear
from turnwise.actors.inference.attempt import reason, storable
from turnwise.actors.inference.engine import CallChecker, EngineBuilder, NewEvent, Selective, check_answers, check_taken
from turnwise.actors.journal import Journal, settled
from turnwise.actors.memory_slot import MemorySlot
from turnwise.actors.originals import reach
from turnwise.actors.output import Output
from turnwise.actors.run_events import about, end_event
from turnwise.actors.running import RunningSession
from turnwise.errors import (
    CallDecidedError,
    CallNotFoundError,
    CorruptRecordError,
    DuplicateKeyError,
    EmptyTurnError,
    EngineError,
    IdempotencyConflictError,
    InvalidInputError,
    NoActiveRunError,
    QueueFullError,
    RunNotFoundError,
    SessionBusyError,
    SessionChangedError,
    SessionEndedError,
    SessionExistsError,
    SessionFencedError,
    SessionNotFoundError,
    TurnNotFoundError,
    shown,
)
from turnwise.memory.blocks import Block, ToolResult, ToolUse, encode
from turnwise.memory.calls import CallState, Verdict, decode_calls, encode_calls
from turnwise.memory.erasing import Verify
from turnwise.memory.events import CallDecided, PromptAppended, RunQueued, RunResumed, RunStarted, SessionEnded
from turnwise.memory.forgotten import Forgotten
from turnwise.memory.frozen import FrozenDict, freeze
from turnwise.memory.history import HistoryStore
from turnwise.memory.memory_use import MemoryUse
from turnwise.memory.own_names import get_of_user, other_id
from turnwise.memory.params import merged
from turnwise.memory.prompts import Prompt, accept, takes_all
from turnwise.memory.runs import RunRecord, RunState
from turnwise.memory.sessions import SessionRecord
from turnwise.memory.spans import cut, join, size, subtract, union
from turnwise.memory.store import SessionStore
from turnwise.memory.transcript import Ledger
from turnwise.memory.working import WorkingMemory
from turnwise.strategies.strategy import OverflowStrategy

FLUSH_S = 5.0
"""How long a process that leaves waits for its events to reach their history; the next one sees to the rest."""

IfBusy = Literal["reject", "enqueue", "interrupt", "rollback"]


@dataclass(frozen=True, slots=True)
class Started:
    """What `start` acknowledges."""

    run_id: str
    turn_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What somebody decided about a call.

    `input`: for an approved call, arguments in place of the model's. `text`: why it was rejected, or the result that is
    provided, which `is_error` marks as one of a failure.
    """

    verdict: Verdict
    input: Mapping[str, Any] | None = None
    text: str = ""
    is_error: bool = False

    @property
    def digest(self) -> str:
        """The same for the same decision."""
        parts = (self.verdict, self.input, self.text, self.is_error)
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def block(self, call_id: str, use: ToolUse | None) -> Block | None:
        """Return what it adds to the transcript: a result, or the edited call; None for a plain approval."""
        if self.verdict == "approved":
            edited = self.input is not None and use is not None
            return use.model_copy(update={"input": freeze(self.input)}) if edited and use else None
        text = storable(self.text)
        if self.verdict == "rejected":
            return ToolResult(call_id=call_id, text=f"rejected: {text}" if text else "rejected", is_error=True)
        return ToolResult(call_id=call_id, text=text, is_error=self.is_error)


class SessionCore(RunningSession):
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
        overflow: OverflowStrategy | None = None,
        memories: Sequence[MemorySlot] = (),
        working: WorkingMemory | None = None,
        history: HistoryStore | None = None,
        clock: Callable[[], float] | None = None,
        off_loop: Callable[..., Awaitable[Any]] = asyncio.to_thread,
        engine_id: str = "",
    ) -> None:
        equipment = (builder, config or SessionConfig(), overflow, memories, working)
        gear = Gear(*equipment, engine_id=engine_id, off_loop=off_loop)
        super().__init__(session_id, Journal(session_id, store, clock, history), gear, off_loop)
        self.left_waiting: dict[str, str] = {}
        """The runs that waited for somebody's word, or behind one that did, when it left, and their engines' ids."""

    def use(
        self,
        builder: EngineBuilder,
        config: SessionConfig,
        overflow: OverflowStrategy | None = None,
        memories: Sequence[MemorySlot] = (),
        working: WorkingMemory | None = None,
        *,
        engine_id: str = "",
        runs: Collection[str] | None = None,
    ) -> None:
        """Take another engine, other settings, another overflow strategy and memories over, from the next run on.

        Runs that are open keep what they have: `activate` first, where it is not known which these are.

        Args:
            engine_id: names all that.
            runs: ids of runs of an earlier process that had this; only they have it again then.
        """
        gear = Gear(builder, config, overflow, memories, working, engine_id=engine_id, off_loop=self._off_loop)
        if runs is None:
            self._equip(gear)
            self._save_soon()
        else:
            self._former.append(gear)
            self._gear_of.update(dict.fromkeys(runs, gear))

    async def append(self, prompts: Sequence[Prompt], key: str) -> int:
        """Store prompts for the next run to take up; return the index of its turn.

        Appends are in the history in the order in which they are acknowledged. A run that is active is not changed.

        Args:
            key: names this append; the same key again appends nothing and returns the same index.

        Raises:
            EmptyTurnError, InvalidPromptError, SessionEndedError: nothing was stored.
        """
        blocks, encoded = self._accept(prompts)
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
        memory: MemoryUse | None = None,
        model: str | None = None,
        params: Mapping[str, Any] | None = None,
        output: Mapping[str, Any] | None = None,
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
            memory: what it does with long-term memory; as the session if left out.
            model: which one it asks; as the session if left out.
            params: what it asks of the model, over the session's; see `ModelParams`.
            output: the type of its answer; see `OutputType`.

        Raises:
            SessionBusyError, QueueFullError, SessionEndedError, EmptyTurnError, InvalidPromptError,
            IdempotencyConflictError: nothing was stored.
            InvalidInputError: there are more or longer labels than `SessionConfig` allows, or the engine does not take
                a parameter, another model or a type of answers; nothing was stored.
        """
        _check_labels(labels or {}, self._config)
        blocks, encoded = self._accept(prompts)
        asked = [json.dumps((model, params, output), sort_keys=True)] if model or params or output else []
        fingerprint = hashlib.sha256("\n".join([*encoded, *asked]).encode()).hexdigest() if idempotency_key else None
        gear = self._gear

        async def change() -> Started:
            if found := await self._find_run(run_id, idempotency_key, fingerprint):
                return found
            session = self._journal.session
            asks_model, asked_params = model or session.model, merged(session.params, params or {})
            try:
                self._check_can_start(blocks, if_busy)
                check_taken(gear.builder, asks_model, asked_params)
                check_answers(gear.builder, output, asked_params)
            except Exception:
                # Refusing costs a read: this may be the second delivery of a start that was acknowledged.
                if found := await self._find_run(run_id, idempotency_key, fingerprint, stored=True):
                    return found
                raise
            return await self._start(
                blocks,
                encoded,
                if_busy,
                gear,
                run_id=run_id,
                idempotency_key=idempotency_key,
                fingerprint=fingerprint,
                timeout_s=timeout_s,
                labels=FrozenDict(labels or {}),
                memory=memory or session.memory,
                model=asks_model,
                params=asked_params,
                output=FrozenDict(output) if output else None,
            )

        try:
            return await self._atomically(change)
        except DuplicateKeyError:
            found = await self._find_run(run_id, idempotency_key, fingerprint, stored=True)
            if found is None:
                raise
            return found

    async def cancel(self, reason: str, run_id: str | None = None, timeout_s: float | None = None) -> bool | None:
        """Cancel a run, or the active one; return whether the run ended as cancelled, when it has ended.

        None after `timeout_s`: it has yet to end.

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

        async def change() -> None:
            if run in self._backlog.queue:
                await self._cancel_queued([run], storable(reason), self._journal.session)

        if run is not self._active:
            await self._atomically(change)
        if run is self._active:  # or has become it while the change waited for its turn
            run.request_cancel(reason, discard=self._discards)
        if not await settled(run.done, timeout_s):
            return None
        run.done.result()
        return run.record.state == "cancelled"

    async def decide(self, run_id: str, call_id: str, decision: Decision) -> None:
        """Decide about a call that waits; durable on return. The run goes on when nothing is left to decide.

        Idempotent: the same decision again changes nothing, whatever has become of the run. What a rejection or a
        provided result says is in the run's output at once, so it is kept even if the run is cancelled meanwhile.

        Raises:
            RunNotFoundError: the session has no such run.
            CallNotFoundError: the run has no such call that waits or waited.
            CallDecidedError: it was decided otherwise, or the run has ended.
            InvalidInputError: such a call takes no such decision, or no such arguments; nothing was stored.
            EngineError: the engine, which knows what the call takes, cannot be built; nothing was stored.
        """
        await self._loaded()
        if decision.input is not None:
            await self._check_arguments(run_id, call_id, decision.input)

        async def change() -> None:
            run = self._open_run(run_id)
            record = run.record if run else await self._journal.find_run(run_id)
            calls = decode_calls(record.calls)
            state = calls.get(call_id)
            if state is None or state.wants is None:
                raise CallNotFoundError(self.session_id, run_id, call_id)
            if state.digest == decision.digest:
                return
            if state.verdict or run is None:
                why = f"it was {state.verdict}" if state.verdict else f"the run is {record.state}"
                raise CallDecidedError(self.session_id, run_id, call_id, why)
            _check_decision(state, decision)
            await self._decide(run, call_id, decision, {**calls, call_id: _decided(state, decision)})

        await self._atomically(change)

    async def end(self, reason: str = "session ended", timeout_s: float | None = None) -> bool:
        """Take no more runs; cancel the active and the queued ones with this reason. Ending twice is fine.

        The end is durable before the active run is cancelled; returns when that run has ended, or False after
        `timeout_s`.
        """

        async def change() -> None:
            if self._journal.session.status == "active":
                session = replace(self._journal.session, status="ended")
                await self._cancel_queued(list(self._backlog.queue), storable(reason), session, [(SessionEnded, {})])

        await self._stop_compacting()
        await self._atomically(change)
        if run := self._active:
            run.request_cancel(reason, discard=self._discards)
            if not await settled(run.done, timeout_s):
                return False
            run.done.result()
        return True

    async def refresh(self) -> None:
        """Commit nothing, so that the session is as if it had been used now; durable on return."""

        async def change() -> None:
            await self._commit(self._journal.session, [])

        await self._atomically(change)

    async def delete(
        self, *, memory: bool = True, verify: Verify = False, updated_at: float | None = None
    ) -> Forgotten:
        """Delete the session for good, and what memories have of it; forks keep what they span.

        The memories first, so that a delete that fails can be repeated.

        Args:
            memory: whether memories forget it too.
            verify: see `forget_turn`.
            updated_at: when its last commit is to have been.

        Raises:
            SessionBusyError: a run is active or queued; nothing was deleted.
            SessionChangedError: its last commit was at another time; nothing was deleted.
            LongTermMemoryError: memories failed; the session was not deleted.
        """

        async def change() -> Forgotten:
            if self._active:
                raise SessionBusyError(self.session_id, self._active.run_id)
            if updated_at not in (None, self._journal.session.updated_at):
                raise SessionChangedError(self.session_id)
            await self._stop_compacting()
            done = Forgotten(sessions=1, waiting=await self._stop_saving())
            try:
                if memory:
                    done += await self._forget_in_memories(verify=verify)
                await self._journal.delete()
            except BaseException:
                self._take_up_saving()
                raise
            self._is_deleted()
            return done

        try:
            return await self._atomically(change)
        except CorruptRecordError:
            if not self._journal.stale:
                raise
        async with self._change:
            return await self._delete_unread(updated_at, memory=memory, verify=verify)

    async def _delete_unread(self, updated_at: float | None, *, memory: bool, verify: Verify) -> Forgotten:
        """Delete a session that cannot be loaded, since something of it cannot be read.

        Raises:
            CorruptRecordError: its own record cannot be read, so nobody knows whose it is in memories.
        """
        done = Forgotten(sessions=1)
        try:
            session = await self._journal.store.get(self.session_id)
        except CorruptRecordError:
            if memory and self._gear.all_memories:
                raise
            await self._journal.store.delete(self.session_id)
        else:
            if updated_at not in (None, session.updated_at):
                raise SessionChangedError(self.session_id)
            self._journal.session = session
            if memory:
                done += await self._forget_in_memories(verify=verify)
            await self._journal.delete()
        self._is_deleted()
        return done

    def _is_deleted(self) -> None:
        self._journal.lost = SessionNotFoundError(self.session_id)
        self._journal.log.publish()
        self._give_up(self._journal.lost)

    async def use_memory(self, use: MemoryUse) -> None:
        """Say what later runs do with long-term memory, if they do not say; durable on return."""

        async def change() -> None:
            await self._commit(replace(self._journal.session, memory=use), [])

        await self._atomically(change)

    async def fork(self, at: int | None, session_id: str) -> SessionRecord:
        """Make a session that continues from the turn `at`, or from the last one that ended; this one is untouched.

        The fork starts with that turn, under its index, and shares its blocks. From a turn that is named it goes on
        with what that turn holds, but for what is forgotten; else with what this session would go on with, which may
        have been compacted since.
        `session_id` is the id that the fork is stored under; see `own_names`.
        Forking again under the same id from the same turn returns the fork there is; from the last one that ended also
        if there is a later one by now, as long as nobody has used the fork.

        Raises:
            TurnNotFoundError: there is no such turn, or it has not ended.
            SessionExistsError: the id is taken.
        """
        await self._loaded()
        base = self._head if at is None else await self._journal.find_turn(at)
        if base is None or base.status in ("pending", "queued", "running"):
            raise TurnNotFoundError(self.session_id, at)
        parent = f"{self.session_id}#{base.index}"
        base = base if at is None else await self._as_forked(base)
        spans = union(base.prompt, base.spans, base.base)
        also = await reach(join(base.spans, base.carried), self._journal.read)
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
            memory=session.memory,
            model=session.model,
            params=session.params,
            saved=base.index,
            ttl_s=session.ttl_s,
        )
        if await get_of_user(self._journal.store, other_id(session.user_id, session_id), session.user_id):
            raise SessionExistsError(session_id)
        try:
            return await self._journal.store.create(fork, replace(base, parent=parent), subtract(also, spans))
        except SessionExistsError:
            found = await self._journal.store.get(session_id)
            # One of another user may name the same parent: of that id there was a session of theirs once.
            if found.user_id == session.user_id and found.parent:
                # A call that was delivered twice may find that this session has gone on since the first.
                is_unused = at is None and found.epoch == 0 and found.parent.rpartition("#")[0] == self.session_id
                if found.parent == parent or is_unused:
                    return found
            raise

    @property
    def is_in_use(self) -> bool:
        """Whether something runs or is about to. A run that awaits approval, and what is behind it, does neither."""
        waits = self._active and self._active.record.state == "awaiting_approval" and self._active.is_waiting
        runs = not waits and bool(self._active or self._backlog.queue)
        return runs or self._is_compacting or self._is_saving

    @property
    def is_lost(self) -> bool:
        """Whether this core has the session no more: it left, was fenced, or has deleted it."""
        return self._journal.lost is not None

    @property
    def is_active(self) -> bool:
        """Whether this core has the session."""
        return bool(self._journal.session.epoch) and not self.is_lost

    async def check_log(self, log: str) -> None:
        """Raise if the session that this core has is not the one whose log this is. Costs nothing if it is.

        Raises:
            SessionFencedError: the store has another session of this id by now; another core is to look.
            SessionNotFoundError: the session of this log was deleted, or a restore took it; there is another.
        """
        await self._loaded()
        if self._journal.session.log != log:
            await self._atomically(self._journal.check_own)
            raise SessionNotFoundError(self.session_id)

    async def check_own(self) -> None:
        """Raise if the store has not the session as this core has left it: for who misses something of it.

        Raises:
            SessionFencedError, SessionNotFoundError, SessionRevertedError: it has not; another core is to look.
        """
        if self.is_activated:
            await self._atomically(self._journal.check_own)

    async def leave(self, note: Callable[[Mapping[str, str]], Awaitable[None]] | None = None) -> bool:
        """Give the session up if it is not `is_in_use`; return whether it has it no more. Later calls are fenced.

        Args:
            note: is told first which engine each run that waits has, by run id. If it fails, the session stays here.
        """
        async with self._change:
            if self.is_lost:
                return True
            if self.is_in_use:
                return False
            await self._store_mark()
            waiting = self.engine_ids() if self._active else {}
            if note:
                await note(waiting)
            self.left_waiting = waiting
            self._journal.lost = SessionFencedError(self.session_id, self._journal.session.epoch)
        gears, self._former = (self._gear, *self._former), []
        if self._journal.feed:
            await self._journal.feed.settle(FLUSH_S)
        self._give_up(self._journal.lost)
        await asyncio.gather(*map(self._retire, gears))
        return True

    # Starting

    def _accept(self, prompts: Sequence[Prompt]) -> tuple[list[Block], list[str]]:
        """See `accept`."""
        builder = self._gear.builder
        refuses = builder.refuses if isinstance(builder, Selective) else takes_all
        return accept(self.session_id, prompts, self._config.max_prompt_bytes, refuses)

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
        self, blocks: Sequence[Block], encoded: Sequence[str], if_busy: IfBusy, gear: Gear, **settings: Any
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
        run = self._new_run(record, turn, gear)
        if busy is None:
            run.record, run.turn = self._begin(record, turn, self._head)
            self._ask_early(
                run, (*self._journal.cache.read(cut(turn.prompt, size(turn.prompt) - len(blocks))[0]), *blocks)
            )
        await self._commit(
            session,
            [*map(end_event, ends), (RunQueued if busy else RunStarted, about(record))],
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

    # Cancelling what is queued

    async def _cancel_queued(
        self, runs: Sequence[ActiveRun], reason: str, session: SessionRecord, more: Sequence[NewEvent] = ()
    ) -> None:
        discard = self._discards and session.status == "active"
        given = self._hand_back(runs, discard=discard)
        ends = [self._ended_record(run, "cancelled", reason) for run in runs]
        await self._commit(
            session,
            [*map(end_event, ends), *more],
            turns=given,
            dropped_turns=[run.turn.index for run in runs],
            runs=ends,
        )
        self._backlog.apply(given, runs)
        for run, end in zip(runs, ends, strict=True):
            self._remember(run, end, None)

    def _check_not_ended(self) -> None:
        if self._journal.session.status == "ended":
            raise SessionEndedError(self.session_id)

    # Finding

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

    # Deciding

    async def _check_arguments(self, run_id: str, call_id: str, arguments: Mapping[str, Any]) -> None:
        """Raise InvalidInputError if a call that waits for approval cannot be made with these arguments."""
        run = self._open_run(run_id)
        state = decode_calls(run.record.calls).get(call_id) if run else None
        if run is None or state is None or state.verdict or state.wants != "approval":
            return  # the decision itself is refused, or was made
        try:
            runner = await self._built(run)
        except Exception as error:
            why = f"the engine cannot be built, so the arguments of {state.name!r} cannot be checked: {reason(error)}"
            raise EngineError(why) from error
        refused = runner.check_call(state.name, arguments) if isinstance(runner, CallChecker) else None
        if refused:
            raise InvalidInputError("input", shown(arguments), refused)

    async def _decide(self, run: ActiveRun, call_id: str, decision: Decision, calls: Mapping[str, CallState]) -> None:
        ledger = Ledger(run.output.blocks)
        uses = (block for block in run.output.blocks if isinstance(block, ToolUse) and block.call_id == call_id)
        block = decision.block(call_id, next(uses, None))
        if isinstance(block, ToolUse):
            ledger.replace_use(block)
        elif block and call_id in {use.call_id for use in ledger.uses_without_result()}:
            ledger.append(block)
        turn, new, session = self._with_output(run, ledger.blocks(), self._journal.session)
        goes_on = run.record.state == "awaiting_approval" and not any(state.is_waiting for state in calls.values())
        state: RunState = "running" if goes_on else run.record.state
        record = replace(run.record, state=state, calls=encode_calls(calls), usage=run.bill())
        said = {**about(record), "call_id": call_id, "verdict": decision.verdict}
        if new:
            said |= {"span": (session.log_size - 1, session.log_size), "blocks": tuple(new)}
        events: list[NewEvent] = [(CallDecided, said)]
        if goes_on:
            events.append((RunResumed, {**about(record), "why": "all is decided"}))
        await self._commit(
            self._charged(session, run, record),
            events,
            blocks=[encode(block) for block in new],
            turns=[turn] if new else [],
            runs=[record],
        )
        self._hold(new, session)
        run.turn, run.output = turn, Output.read(turn.output, self._journal.cache)
        run.billed(record)
        if run.attempt and isinstance(block, ToolUse):
            # An attempt that waits to learn whether its call was stored takes the edited one when it does.
            if call_id in {use.call_id for use in run.attempt.ledger.uses_without_result()}:
                run.attempt.ledger.replace_use(block)
        elif run.attempt and block:
            run.attempt.ledger.append(block)
        if goes_on:
            run.decided.set()


def _decided(state: CallState, decision: Decision) -> CallState:
    return replace(state, verdict=decision.verdict, digest=decision.digest)


def _check_labels(labels: Mapping[str, str], config: SessionConfig) -> None:
    """Raise InvalidInputError for more or longer labels than sessions may have."""
    if len(labels) > config.max_labels:
        raise InvalidInputError("labels", shown(labels), f"must be at most {config.max_labels}, not {len(labels)}")
    for text in (*labels, *labels.values()):
        if len(text) > config.max_label_chars:
            why = f"must be at most {config.max_label_chars} characters long, not {len(text)}"
            raise InvalidInputError("labels", shown(text), why)


def _check_decision(state: CallState, decision: Decision) -> None:
    """Raise if a call that waits for this takes no such decision."""
    if state.wants == "result" and decision.verdict == "approved":
        raise InvalidInputError("approve", shown(state.name), "it runs outside: provide() its result, or reject() it")
    if state.wants == "budget" and (decision.verdict == "provided" or decision.input is not None):
        raise InvalidInputError(decision.verdict, shown(state.name), "a budget is approved or rejected, nothing else")
