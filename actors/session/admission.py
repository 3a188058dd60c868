"""How prompts and runs get into a session: appended, begun, queued, or in the place of others; and cancelled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Required, TypedDict, Unpack

from turnwise.actors.inference.attempt import storable
from turnwise.actors.inference.engine import NewEvent, Selective, check_answers, check_taken
from turnwise.actors.session.active_run import ActiveRun
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.journal import settled
from turnwise.actors.session.memory_retrieval import MemoryRetrieval
from turnwise.actors.session.reads import SessionReads
from turnwise.actors.session.run_driver import RunDriver
from turnwise.actors.session.run_events import about, end_event
from turnwise.actors.session.run_queue import left_by, with_given
from turnwise.actors.session.run_resources import RunResources
from turnwise.actors.session.session_engines import SessionEngines
from turnwise.actors.session.state import SessionState
from turnwise.actors.session.transactor import Transactor
from turnwise.errors import (
    DuplicateKeyError,
    EmptyTurnError,
    IdempotencyConflictError,
    InvalidInputError,
    NoActiveRunError,
    QueueFullError,
    RunNotFoundError,
    SessionBusyError,
    SessionEndedError,
    shown,
)
from turnwise.memory.conversation.blocks import Block
from turnwise.memory.conversation.events import PromptAppended, RunQueued, RunStarted, SessionEnded
from turnwise.memory.conversation.frozen_json import FrozenDict
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.model_params import merged
from turnwise.memory.conversation.prompts import Prompt, accept, takes_all
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import cut, join, size

IfBusy = Literal["reject", "enqueue", "interrupt", "rollback"]


@dataclass(frozen=True, slots=True)
class Started:
    """What `start` acknowledges."""

    run_id: str
    turn_index: int


class StartOptions(TypedDict, total=False):
    """How a run is started; see `RunAdmission.start`."""

    run_id: Required[str]
    if_busy: IfBusy
    idempotency_key: str | None
    timeout_s: float | None
    labels: Mapping[str, str] | None
    memory: MemoryUse | None
    model: str | None
    params: Mapping[str, Any] | None
    output: Mapping[str, Any] | None


class _Asked:
    """A run that is asked for: its options, its prompts as blocks, what it works with."""

    def __init__(
        self, options: StartOptions, blocks: list[Block], encoded: list[str], run_resources: RunResources
    ) -> None:
        self.options = options
        self.blocks = blocks
        self.encoded = encoded
        self.run_resources = run_resources
        self.run_id = options["run_id"]
        self.if_busy: IfBusy = options.get("if_busy", "reject")
        self.key = options.get("idempotency_key")
        self.fingerprint = self._fingerprint() if self.key else None
        """What the run of the same key is to have been asked with."""

    def _fingerprint(self) -> str:
        said = [self.options.get(name) for name in ("model", "params", "output")]
        more = [json.dumps(said, sort_keys=True)] if any(said) else []
        return hashlib.sha256("\n".join([*self.encoded, *more]).encode()).hexdigest()


class RunAdmission:
    """Stores prompts and runs, durably before it answers, and cancels runs that are active or queued.

    | await in a start | what else may run there | what a kill there leaves |
    |---|---|---|
    | the store, for an idempotency key | reads, streaming | nothing of this start |
    | the commit | reads, streaming; memories are asked about the prompt | all of it or nothing |
    """

    def __init__(
        self,
        state: SessionState,
        transactor: Transactor,
        engines: SessionEngines,
        *,
        driver: RunDriver,
        retrieval: MemoryRetrieval,
        reads: SessionReads,
    ) -> None:
        self._state = state
        self._journal = state.journal
        self._transactor = transactor
        self._engines = engines
        self._driver = driver
        self._retrieval = retrieval
        self._reads = reads

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
            raise EmptyTurnError(self._state.session_id)

        async def change() -> int:
            self._check_not_ended()
            span, session = self._journal.extend(len(blocks))
            turn = self._state.run_queue.next_turn(session.next_index, self._journal.clock())
            turn = replace(turn, prompt=join(turn.prompt, (span,)), appended=join(turn.appended, (span,)))
            events: list[NewEvent] = [(PromptAppended, {"turn_index": turn.index, "key": key})]
            await self._transactor.commit(session, events, blocks=blocks, encoded=encoded, turns=[turn])
            self._state.run_queue.apply([turn])
            return turn.index

        try:
            return await self._transactor.run(change)
        except DuplicateKeyError:
            event = await self._journal.store.event_of_key(self._state.session_id, key)
            if event is None or event.turn_index is None:
                raise
            return event.turn_index

    async def start(self, prompts: Sequence[Prompt], **options: Unpack[StartOptions]) -> Started:
        """Start a run of the prompts that were appended and these; durable on return.

        What `if_busy` says happens while a run is active or queued: `reject` (the default) raises; `enqueue` waits
        behind them in order of arrival; `interrupt` cancels them all and keeps what they have, `rollback` cancels them
        all and leaves no trace of them; then this run is next. Queued runs that are cancelled give their prompts to the
        next run (`interrupt`) or drop them (`rollback`); prompts that were appended on their own are never dropped.

        Args:
            run_id: a fresh id; the same id again starts nothing and returns the run there is.
            idempotency_key: likewise, chosen by the caller and good for as long as the session; costs one more read.
            timeout_s: the run fails after so long, and keeps what it has.
            labels: what the caller calls the run by.
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
        _check_labels(options.get("labels") or {}, self._engines.config)
        blocks, encoded = self._accept(prompts)
        asked = _Asked(options, blocks, encoded, self._engines.current)
        try:
            return await self._transactor.run(partial(self._start, asked))
        except DuplicateKeyError:
            if found := await self._find_run(asked, stored=True):
                return found
            raise

    async def _start(self, asked: _Asked) -> Started:
        """Commit a run as running, or as queued behind the active one, and then launch it or preempt that one.

        Within a change. Returns the run that there is, if it was asked for before.
        """
        if found := await self._find_run(asked):
            return found
        try:
            record = self._checked_record(asked)
        except Exception:
            # Refusing costs a read: this may be the second delivery of a start that was acknowledged.
            if found := await self._find_run(asked, stored=True):
                return found
            raise
        blocks, if_busy = asked.blocks, asked.if_busy
        run_queue, now = self._state.run_queue, record.created_at
        busy, preempts, rollback = self._state.active, if_busy in ("interrupt", "rollback"), if_busy == "rollback"
        gone = list(run_queue.queue) if busy and preempts else []
        ends = [run.ended("cancelled", f"{if_busy} by run {record.run_id}", now) for run in gone]
        span, session = self._journal.extend(len(blocks))
        turn = with_given(run_queue.next_turn(session.next_index, now), left_by(gone, discard=rollback))
        turn = replace(turn, run_id=record.run_id, status="queued", prompt=join(turn.prompt, (span,)))
        record = replace(record, turn_index=turn.index, first_seq=self._journal.log.last_seq + 1 + len(ends))
        run = ActiveRun(self._state.view(), record, turn, asked.run_resources)
        if busy is None:
            run.record, run.turn = self._driver.begin(record, turn, self._state.head)
            waiting = cut(turn.prompt, size(turn.prompt) - len(blocks))[0]
            self._retrieval.ask_early(run, (*self._journal.cache.read(waiting), *blocks))
        await self._transactor.commit(
            session,
            [*map(end_event, ends), (RunQueued if busy else RunStarted, about(record))],
            blocks=blocks,
            encoded=asked.encoded,
            turns=[run.turn],
            dropped_turns=[run.turn.index for run in gone],
            new_run=run.record,
            runs=ends,
            live=True,
        )
        run_queue.take_pending()
        run_queue.apply((), gone)
        for preempted, end in zip(gone, ends, strict=True):
            self._driver.note_end(preempted, end, None)
        if busy is None:
            self._driver.launch(run)
        else:
            run_queue.add(run)
            if preempts:
                busy.request_cancel(f"{if_busy} by run {run.run_id}", discard=rollback)
        return Started(run.run_id, turn.index)

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
        await self._transactor.loaded()
        run = self._state.active if run_id is None else self._state.open_run(run_id)
        if run is None:
            if run_id is None:
                raise NoActiveRunError(self._state.session_id)
            return (await self._reads.stored_run(run_id)).state == "cancelled"

        async def change() -> None:
            if run in self._state.run_queue.queue:
                await self._cancel_queued([run], storable(reason), self._journal.session)

        if run is not self._state.active:
            await self._transactor.run(change)
        if run is self._state.active:  # or has become it while the change waited for its turn
            run.request_cancel(reason, discard=self._discards)
        if not await settled(run.done, timeout_s):
            return None
        run.done.result()
        return run.record.state == "cancelled"

    async def end_session(self, reason: str, timeout_s: float | None) -> bool:
        """Take no more runs; cancel the active and the queued ones with this reason. Ending twice is fine.

        The end is durable before the active run is cancelled; returns when that run has ended, or False after
        `timeout_s`.
        """

        async def change() -> None:
            if self._journal.session.status == "active":
                session, queue = replace(self._journal.session, status="ended"), list(self._state.run_queue.queue)
                await self._cancel_queued(queue, storable(reason), session, [(SessionEnded, {})])

        await self._transactor.run(change)
        if run := self._state.active:
            run.request_cancel(reason, discard=self._discards)
            if not await settled(run.done, timeout_s):
                return False
            run.done.result()
        return True

    async def _cancel_queued(
        self, runs: Sequence[ActiveRun], reason: str, session: SessionRecord, more: Sequence[NewEvent] = ()
    ) -> None:
        given = self._driver.hand_back(runs, discard=self._discards and session.status == "active")
        now = self._journal.clock()
        ends = [run.ended("cancelled", reason, now) for run in runs]
        dropped = [run.turn.index for run in runs]
        events = [*map(end_event, ends), *more]
        await self._transactor.commit(session, events, turns=given, dropped_turns=dropped, runs=ends)
        self._state.run_queue.apply(given, runs)
        for run, end in zip(runs, ends, strict=True):
            self._driver.note_end(run, end, None)

    @property
    def _discards(self) -> bool:
        return self._engines.config.on_cancel == "discard"

    # Checks

    def _accept(self, prompts: Sequence[Prompt]) -> tuple[list[Block], list[str]]:
        """See `accept`."""
        builder = self._engines.current.builder
        refuses = builder.refuses if isinstance(builder, Selective) else takes_all
        return accept(self._state.session_id, prompts, self._engines.config.max_prompt_bytes, refuses)

    def _check_not_ended(self) -> None:
        if self._journal.session.status == "ended":
            raise SessionEndedError(self._state.session_id)

    def _checked_record(self, asked: _Asked) -> RunRecord:
        """Return the record of a run that may start now, as queued at no turn yet.

        Raises:
            TurnwiseError: why it may not.
        """
        self._check_not_ended()
        state, session, options = self._state, self._journal.session, asked.options
        if not asked.blocks and state.run_queue.pending is None:
            raise EmptyTurnError(state.session_id)
        if state.active:
            if asked.if_busy == "reject":
                raise SessionBusyError(state.session_id, state.active.run_id)
            most = self._engines.config.max_queued
            if asked.if_busy == "enqueue" and len(state.run_queue.queue) >= most:
                raise QueueFullError(state.session_id, state.active.run_id, most)
        output = options.get("output")
        model, params = options.get("model") or session.model, merged(session.params, options.get("params") or {})
        check_taken(asked.run_resources.builder, model, params)
        check_answers(asked.run_resources.builder, output, params)
        return RunRecord(
            session_id=state.session_id,
            turn_index=0,
            state="queued",
            first_seq=0,
            created_at=self._journal.clock(),
            run_id=asked.run_id,
            idempotency_key=asked.key,
            fingerprint=asked.fingerprint,
            timeout_s=options.get("timeout_s"),
            labels=FrozenDict(options.get("labels") or {}),
            memory=options.get("memory") or session.memory,
            model=model,
            params=params,
            output=FrozenDict(output) if output else None,
        )

    async def _find_run(self, asked: _Asked, *, stored: bool = False) -> Started | None:
        """Return the run of this id or idempotency key if there is one; `stored` looks for the id in the store too."""
        open_run, ended = self._state.open_run(asked.run_id), self._state.ended_run(asked.run_id)
        record = open_run.record if open_run else ended[0] if ended else None
        if record is None and asked.key:
            record = await self._journal.store.run_of_key(self._state.session_id, asked.key)
            if record and record.fingerprint != asked.fingerprint:
                raise IdempotencyConflictError(self._state.session_id, asked.key, record.run_id)
        if record is None and stored:
            try:
                record = await self._journal.find_run(asked.run_id)
            except RunNotFoundError:
                return None
        return Started(record.run_id, record.turn_index) if record else None


def _check_labels(labels: Mapping[str, str], config: SessionConfig) -> None:
    """Raise InvalidInputError for more or longer labels than sessions may have."""
    if len(labels) > config.max_labels:
        raise InvalidInputError("labels", shown(labels), f"must be at most {config.max_labels}, not {len(labels)}")
    for text in (*labels, *labels.values()):
        if len(text) > config.max_label_chars:
            why = f"must be at most {config.max_label_chars} characters long, not {len(text)}"
            raise InvalidInputError("labels", shown(text), why)
