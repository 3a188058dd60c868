"""`RunAdmission`: appends prompts, starts, queues and cancels runs, and ends the session."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Required, TypedDict, Unpack

from turnwise.actors.inference.attempt import storable
from turnwise.actors.inference.engine import NewEvent, Selective, check_answers, check_taken, engine_of_run
from turnwise.actors.inference.named_engines import MissingEngine, NamedEngines
from turnwise.actors.session.active_run import ActiveRun
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.memory_retrieval import MemoryRetrieval
from turnwise.actors.session.reads import SessionReads
from turnwise.actors.session.run_driver import RunDriver
from turnwise.actors.session.run_events import about, end_event, start_event, turn_key
from turnwise.actors.session.run_queue import kept_prompts, with_earlier_prompts
from turnwise.actors.session.run_resources import RunResources
from turnwise.actors.session.session_engines import SessionEngines
from turnwise.actors.session.state import SessionState
from turnwise.actors.session.transactor import Transactor
from turnwise.errors import (
    DuplicateKeyError,
    EmptyTurnError,
    EncryptionError,
    IdempotencyConflictError,
    InvalidInputError,
    InvalidPromptError,
    NoActiveRunError,
    NotFoundError,
    QueueFullError,
    RunNotFoundError,
    SessionBusyError,
    SessionEndedError,
    TurnIdTakenError,
    shown,
)
from turnwise.memory.conversation.blocks import Block, ToolResult, ToolUse
from turnwise.memory.conversation.events import PromptAppended, RunQueued, SessionEnded
from turnwise.memory.conversation.frozen_json import FrozenDict
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.model_params import merged
from turnwise.memory.conversation.prompts import Prompt, accept, check_calls, takes_all
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import Spans, join

IfBusy = Literal["reject", "enqueue", "interrupt", "rollback"]


@dataclass(frozen=True, slots=True)
class Started:
    """What `start` acknowledges."""

    run_id: str
    turn_index: int


class StartOptions(TypedDict, total=False):
    """The options of a run; see `RunAdmission.start`."""

    run_id: Required[str]
    turn_id: str | None
    parent: str | None
    if_busy: IfBusy
    idempotency_key: str | None
    timeout_s: float | None
    labels: Mapping[str, str] | None
    memory: MemoryUse | None
    model: str | None
    params: Mapping[str, Any] | None
    output: Mapping[str, Any] | None
    instructions: str | None
    tools: Mapping[str, Mapping[str, Any]] | None


class _StartRequest:
    """A requested run: its options, its prompts as blocks, and the resources that it will use."""

    def __init__(
        self, options: StartOptions, blocks: list[Block], encoded: list[str], run_resources: RunResources
    ) -> None:
        self.options = options
        self.blocks = blocks
        self.encoded = encoded
        self.run_resources = run_resources
        self.run_id = options["run_id"]
        self.turn_id = options.get("turn_id")
        self.if_busy: IfBusy = options.get("if_busy", "reject")
        self.key = options.get("idempotency_key")
        self.fingerprint = self._fingerprint() if self.key else None
        """A digest of prompts and of all that the model is asked with. A start that repeats a key must have the same
        digest."""

    def _fingerprint(self) -> str:
        said = [self.options.get(name) for name in ("model", "params", "output")]
        own = [self.options.get(name) for name in ("instructions", "tools")]
        said += own if any(own) else []  # digests of older versions stay as they are
        more = [json.dumps(said, sort_keys=True)] if any(said) else []
        return hashlib.sha256("\n".join([*self.encoded, *more]).encode()).hexdigest()


class RunAdmission:
    """Stores prompts and runs, durable on return, and cancels active and queued runs.

    While a start awaits the following, other work may run, and the process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | the store, for an idempotency key or a parent | reads, streaming | nothing of this start |
    | the commit | reads, streaming; the search of memories for the prompt | all of it or nothing |
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
        """Store prompts for the next run; return the index of that run's turn.

        The history has the prompts in the order in which appends return. An active run does not see them.

        Args:
            key: identifies this append; repeating the key appends nothing and returns the same index.

        Raises:
            EmptyTurnError, InvalidPromptError, SessionEndedError: nothing was stored.
        """
        blocks, encoded = await self._accept(prompts)
        if not blocks:
            raise EmptyTurnError(self._state.session_id)

        async def change() -> int:
            self._check_not_ended()
            span, session = self._journal.extend(len(blocks))
            turn = self._state.run_queue.next_turn(session.next_index, self._journal.clock())
            if any(isinstance(block, ToolUse | ToolResult) for block in blocks):
                try:
                    self._check_calls(turn.prompt, blocks, is_whole=False)
                except InvalidPromptError:
                    # Before refusing, look in the store: this may be the second delivery of an append.
                    event = await self._journal.store.event_of_key(self._state.session_id, key)
                    if event is None or event.turn_index is None:
                        raise
                    return event.turn_index
            turn = replace(turn, prompt=join(turn.prompt, (span,)), appended=join(turn.appended, (span,)))
            added = {"span": (span.start, span.stop), "blocks": tuple(blocks)}
            events: list[NewEvent] = [(PromptAppended, {"turn_index": turn.index, "key": key, **added})]
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
        """Start a run with the prompts stored by `append`, followed by `prompts`; durable on return.

        `if_busy` decides what happens while another run is active: `reject` (the default) raises; `enqueue` waits
        behind it and all queued runs, in order of arrival; `interrupt` cancels them all and keeps their turns;
        `rollback` cancels them all and drops their turns; after either, this run is next. Cancelled queued runs pass
        their prompts to the next run (`interrupt`) or drop them (`rollback`); prompts that were stored by `append` are
        never dropped.

        Args:
            run_id: a new id; repeating an id starts nothing and returns the existing run.
            turn_id: the caller's id of the turn. The event that stores the run has it as its key, so the store refuses
                an id that the session has already had.
            parent: the run, of any session of the user, on whose behalf this one is started; costs two more reads.
            idempotency_key: like `run_id`, but chosen by the caller, and valid as long as the session exists; costs one
                more read.
            timeout_s: the run fails after so many seconds, and keeps its output.
            labels: the caller's labels of the run.
            memory: how the run uses long-term memory; the session's setting if omitted.
            model: the model that answers; the session's if omitted.
            params: model parameters, which replace the session's; see `ModelParams`.
            output: the type of the run's answer; see `OutputType`.
            instructions: the system prompt of this run alone.
            tools: the tools of this run alone; see `RunContext.tools`.

        Raises:
            SessionBusyError, QueueFullError, SessionEndedError, EmptyTurnError, InvalidPromptError,
            IdempotencyConflictError, TurnIdTakenError: nothing was stored.
            InvalidInputError: labels or instructions are larger than `SessionConfig` allows, or the engine does not
                support a parameter, a choice of model, typed output, instructions or tools; nothing was stored.
        """
        _check_labels(options.get("labels") or {}, self._engines.config)
        _check_instructions(options.get("instructions"), self._engines.config)
        blocks, encoded = await self._accept(prompts)
        request = _StartRequest(options, blocks, encoded, self._engines.whole)
        try:
            return await self._transactor.run(partial(self._start, request))
        except DuplicateKeyError:
            if found := await self._find_run(request, stored=True):
                return found
            if request.turn_id is not None:
                await self._refuse_taken(request.turn_id)
            raise

    async def _start(self, request: _StartRequest) -> Started:
        """Commit a run as running, or as queued behind the active one; then launch it, or cancel the active one.

        Call it within a change. Returns the existing run if the same run was requested before.
        """
        if found := await self._find_run(request):
            return found
        try:
            record = self._checked_record(request)
        except Exception:
            # Before refusing, look in the store: this may be the second delivery of a start that was acknowledged.
            if found := await self._find_run(request, stored=True):
                return found
            raise
        await self._check_parent(record)
        blocks, if_busy = request.blocks, request.if_busy
        run_queue, now = self._state.run_queue, record.created_at
        busy, preempts, rollback = self._state.active, if_busy in ("interrupt", "rollback"), if_busy == "rollback"
        prompts = (*self._journal.blocks.cache.read(run_queue.next_turn(0, now).prompt), *blocks)
        asked = None if busy else await self._retrieval.ask_early(request.run_resources, record.memory, prompts)
        gone = list(run_queue.queue) if busy and preempts else []
        ends = [run.ended("cancelled", f"{if_busy} by run {record.run_id}", now) for run in gone]
        span, session = self._journal.extend(len(blocks))
        turn = with_earlier_prompts(run_queue.next_turn(session.next_index, now), kept_prompts(gone, discard=rollback))
        try:
            self._check_calls(turn.prompt, blocks, is_whole=True)
        except InvalidPromptError:
            if found := await self._find_run(request, stored=True):
                return found
            raise
        turn = replace(
            turn, run_id=record.run_id, turn_id=request.turn_id, status="queued", prompt=join(turn.prompt, (span,))
        )
        record = replace(record, turn_index=turn.index, first_seq=self._journal.log.next_seq() + len(ends))
        run = ActiveRun(self._state.view(), record, turn, request.run_resources)
        added = {"span": (span.start, span.stop), "blocks": tuple(blocks)} if blocks else {}
        event: NewEvent = RunQueued, {**about(record), **added}
        if busy is None:
            run.asked = asked
            run.record, run.turn = self._driver.begin(record, turn, self._state.head)
            event = start_event(run.record, run.turn, self._state.head, session, prompts)
        if request.turn_id is not None:
            event[1].update({"turn_id": request.turn_id, "key": turn_key(request.turn_id)})
        await self._transactor.commit(
            session,
            [*map(end_event, ends), event],
            blocks=blocks,
            encoded=request.encoded,
            turns=[run.turn],
            dropped_turns=[run.turn.index for run in gone],
            new_run=run.record,
            runs=ends,
            live=True,
        )
        run_queue.clear_pending()
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
        """Cancel a run, by default the active one, and wait for its end; return whether it ended as cancelled.

        Returns None if the run has not ended after `timeout_s` seconds.

        Idempotent: the first reason is kept, and cancelling a run that has ended does nothing. An engine that ignores
        the cancel delays the return by no more than `cancel_grace_s`. A cancelled queued run passes its prompts to the
        next run, or drops them if `on_cancel` is `discard`.

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
        if run is self._state.active:  # it may have become active while the change waited for the lock
            run.request_cancel(reason, discard=self._discards)
        if not await run.wait(timeout_s):
            return None
        return run.record.state == "cancelled"

    async def end_session(self, reason: str, timeout_s: float | None) -> bool:
        """End the session: accept no new runs, and cancel active and queued ones with this reason. Idempotent.

        The session's end is durable before the active run is cancelled. Returns True when that run has ended, or False
        after `timeout_s` seconds.
        """

        async def change() -> None:
            if self._journal.session.status == "active":
                session, queue = replace(self._journal.session, status="ended"), list(self._state.run_queue.queue)
                await self._cancel_queued(queue, storable(reason), session, [(SessionEnded, {})])

        await self._transactor.run(change)
        if run := self._state.active:
            run.request_cancel(reason, discard=self._discards)
            return await run.wait(timeout_s)
        return True

    async def _cancel_queued(
        self, runs: Sequence[ActiveRun], reason: str, session: SessionRecord, more: Sequence[NewEvent] = ()
    ) -> None:
        requeued = self._driver.requeue_prompts(runs, discard=self._discards and session.status == "active")
        now = self._journal.clock()
        ends = [run.ended("cancelled", reason, now) for run in runs]
        dropped = [run.turn.index for run in runs]
        events = [*map(end_event, ends), *more]
        await self._transactor.commit(session, events, turns=requeued, dropped_turns=dropped, runs=ends)
        self._state.run_queue.apply(requeued, runs)
        for run, end in zip(runs, ends, strict=True):
            self._driver.note_end(run, end, None)

    @property
    def _discards(self) -> bool:
        return self._engines.config.on_cancel == "discard"

    # Checks

    async def _check_parent(self, record: RunRecord) -> None:
        """Raise RunNotFoundError if the run's parent is no run of a session of this user."""
        if record.parent is None:
            return
        user_id, store = self._journal.session.user_id, self._journal.store
        try:
            parent = await store.run(record.parent)
            owner = (await store.get(parent.session_id)).user_id
        except (NotFoundError, EncryptionError):
            owner = None
        if owner != user_id:
            raise RunNotFoundError(record.parent, f"user {user_id!r}")

    async def _refuse_taken(self, turn_id: str) -> None:
        """Raise TurnIdTakenError if the session has or had a turn with this id."""
        event = await self._journal.store.event_of_key(self._state.session_id, turn_key(turn_id))
        if event:
            raise TurnIdTakenError(self._state.session_id, turn_id, event.run_id or "")

    async def _accept(self, prompts: Sequence[Prompt]) -> tuple[list[Block], list[str]]:
        """Return the prompts as blocks and as stored text; see `prompts.accept`."""
        if isinstance(self._engines.whole.builder, NamedEngines):
            await self._transactor.loaded()  # the session's row says which engine takes the prompts
        builder = self._engines.current.builder
        refuses = builder.refuses if isinstance(builder, Selective) else takes_all
        return accept(self._state.session_id, prompts, self._engines.config.max_prompt_bytes, refuses)

    def _check_calls(self, before: Spans, blocks: Sequence[Block], *, is_whole: bool) -> None:
        """Check the tool calls and results among a turn's prompts: those stored before, and these blocks."""
        check_calls(self._state.session_id, (*self._journal.blocks.cache.read(before), *blocks), is_whole=is_whole)

    def _check_not_ended(self) -> None:
        if self._journal.session.status == "ended":
            raise SessionEndedError(self._state.session_id)

    def _checked_record(self, request: _StartRequest) -> RunRecord:
        """Return a record, in state `queued` and with no turn yet, of a run that may start now.

        Raises:
            TurnwiseError: the run may not start; the error says why.
        """
        self._check_not_ended()
        state, session, options = self._state, self._journal.session, request.options
        if not request.blocks and state.run_queue.pending is None:
            raise EmptyTurnError(state.session_id)
        if state.active:
            if request.if_busy == "reject":
                raise SessionBusyError(state.session_id, state.active.run_id)
            most = self._engines.config.max_queued
            if request.if_busy == "enqueue" and len(state.run_queue.queue) >= most:
                raise QueueFullError(state.session_id, state.active.run_id, most)
        output = options.get("output")
        request.run_resources = request.run_resources.of_engine(session.engine)
        builder = request.run_resources.builder
        if isinstance(builder, MissingEngine):
            raise builder.error(state.session_id)
        model, params = options.get("model") or session.model, merged(session.params, options.get("params") or {})
        instructions, tools = options.get("instructions"), options.get("tools") or {}
        check_taken(engine_of_run(builder, instructions, tools), model, params)
        check_answers(builder, output, params)
        return RunRecord(
            session_id=state.session_id,
            turn_index=0,
            state="queued",
            first_seq=0,
            created_at=self._journal.clock(),
            run_id=request.run_id,
            idempotency_key=request.key,
            fingerprint=request.fingerprint,
            timeout_s=options.get("timeout_s"),
            parent=options.get("parent"),
            engine=session.engine,
            labels=FrozenDict(options.get("labels") or {}),
            memory=options.get("memory") or session.memory,
            model=model,
            params=params,
            output=FrozenDict(output) if output else None,
            instructions=instructions,
            tools=FrozenDict(tools),
        )

    async def _find_run(self, request: _StartRequest, *, stored: bool = False) -> Started | None:
        """Return the run with this id or idempotency key, or None; with `stored`, look up the id in the store too."""
        open_run, ended = self._state.open_run(request.run_id), self._state.ended_run(request.run_id)
        record = open_run.record if open_run else ended[0] if ended else None
        if record is None and request.key:
            record = await self._journal.store.run_of_key(self._state.session_id, request.key)
            if record and record.fingerprint != request.fingerprint:
                raise IdempotencyConflictError(self._state.session_id, request.key, record.run_id)
        if record is None and stored:
            try:
                record = await self._journal.records.find_run(request.run_id)
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


def _check_instructions(instructions: str | None, config: SessionConfig) -> None:
    """Raise InvalidInputError for instructions that are larger than a prompt may be."""
    if instructions and (size := len(instructions.encode())) > config.max_prompt_bytes:
        why = f"{size} bytes are over max_prompt_bytes={config.max_prompt_bytes}; shorten it or raise the limit"
        raise InvalidInputError("instructions", shown(instructions), why)
