"""`RunAdmission`: appends prompts, starts, queues and cancels runs, and ends the session."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from typing import Any, NamedTuple, Required, TypedDict, Unpack, cast

from turnwise.actors.inference.engine import NewEvent, Selective, check_answers, check_taken, engine_of_run
from turnwise.actors.inference.named_engines import MissingEngine, NamedEngines
from turnwise.actors.inference.observing import NO_OPERATION, within
from turnwise.actors.session.acting import acting_member, check_acting, check_own
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.engines.run_resources import RunResources
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.history.versions import Replacement, Versions
from turnwise.actors.session.memory.memory_retrieval import MemoryRetrieval
from turnwise.actors.session.runs.quota_checks import QuotaChecks
from turnwise.actors.session.runs.run_driver import RunDriver
from turnwise.actors.session.session_files import SessionFiles
from turnwise.actors.session.state.active_run import ActiveRun
from turnwise.actors.session.state.reads import SessionReads
from turnwise.actors.session.state.run_events import about, end_event, merged_into, start_event, turn_key
from turnwise.actors.session.state.run_queue import kept_prompts, with_earlier_prompts
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.actors.session.window.window_compaction import WindowCompaction
from turnwise.errors import (
    DeliveryChangedError,
    DuplicateKeyError,
    EmptyTurnError,
    IdempotencyConflictError,
    InvalidInputError,
    InvalidPromptError,
    NoActiveRunError,
    QueueFullError,
    QuotaExceededError,
    RunNotFoundError,
    SessionBusyError,
    SessionEndedError,
    TooManyError,
    TurnIdTakenError,
    shown,
)
from turnwise.memory.conversation.blocks import Block, Document, Image, Text, ToolResult, ToolUse, User, encode
from turnwise.memory.conversation.events import PromptAppended, RunQueued, SessionEnded
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.model_params import merged
from turnwise.memory.conversation.prompts import Prompt, accept, check_calls
from turnwise.memory.conversation.runs import REPLACED, IfBusy, RunOrigin, RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import Spans, join, size
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.deliveries.payload import read_run_payload
from turnwise.memory.deliveries.records import Delivery, DeliveryChange
from turnwise.memory.files.attachments import stand_in
from turnwise.memory.stores.reading import deliveries_of
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.memory.values.growing_text import whole
from turnwise.memory.values.limits import MAX_BLOCKS, MAX_WAITING_BLOCKS, check_count
from turnwise.memory.values.records import replace

_CLEARS_QUEUE = ("interrupt", "rollback", "latest")
"""The policies that end all queued runs."""

_ENDS_ACTIVE = ("interrupt", "rollback")
"""The policies that cancel the active run."""

_DISCARDS = ("rollback", "latest")
"""The policies that drop the prompts of the runs that they end."""


@dataclass(frozen=True)
class Started:
    """What `start` acknowledges."""

    run_id: str
    turn_index: int
    """The index of the run's turn; for a merged run, of the turn of the run that has its prompts."""
    dropped: bool = False
    """Whether nothing was stored, by `if_busy="drop"`; then `run_id` is the active run."""


class Received(NamedTuple):
    """What became of a delivery of another session."""

    started: Started | None
    """Its run; None if it begins none."""
    is_removed: bool
    """Whether the commit that stored the run has removed the delivery."""


class StartOptions(TypedDict, total=False):
    """The options of a run; see `RunAdmission.start`."""

    run_id: Required[str]
    turn_id: str | None
    parent: str | None
    if_busy: IfBusy
    debounce_s: float | None
    idempotency_key: str | None
    timeout_s: float | None
    labels: Mapping[str, str] | None
    memory: MemoryUse | None
    model: str | None
    params: Mapping[str, Any] | None
    output: Mapping[str, Any] | None
    instructions: str | None
    tools: Mapping[str, Mapping[str, Any]] | None
    overflow: Mapping[str, Any] | None
    says: str | None
    trace: Mapping[str, str] | None
    author: str | None


@dataclass(frozen=True)
class _Rerun:
    """Which turn a run answers anew."""

    at: int | None
    """Its index; None for the last turn that ended."""
    keeps_prompt: bool
    """Whether the run has the prompt of that turn."""


class _StartRequest:
    """A requested run: its options, its prompts as blocks, and the resources that it will use."""

    def __init__(
        self,
        options: StartOptions,
        blocks: list[Block],
        encoded: list[str],
        run_resources: RunResources,
        rerun: _Rerun | None = None,
    ) -> None:
        self.options = options
        self.blocks = blocks
        self.encoded = encoded
        self.run_resources = run_resources
        self.rerun = rerun
        self.replacement: Replacement | None = None
        """What the run stores in place of the turn that it answers anew."""
        self.run_id = options["run_id"]
        self.turn_id = options.get("turn_id")
        self.if_busy: IfBusy = options.get("if_busy", "reject")
        self.key = options.get("idempotency_key")
        self.operation = NO_OPERATION
        """The run as telemetry follows it."""
        self.delivery: Delivery | None = None
        """The delivery of which the run is an occurrence; None for a run that a caller starts."""
        self.has_parent = False
        """Whether it is known that its parent exists."""
        self.author = acting_member() or options.get("author")
        """The member who asks; None for the session's user."""
        fingerprint = self._fingerprint() if self.key else ""
        self.origin = RunOrigin(key=self.key, fingerprint=fingerprint, author=self.author)

    def delivery_changes(self, now: float) -> list[DeliveryChange]:
        """Return what becomes of the delivery with the commit that stores the run."""
        return [DeliveryChange(self.delivery, self.delivery.after_occurrence(now))] if self.delivery else []

    def _fingerprint(self) -> str:
        """Return a digest of the prompts and of the options of the model call."""
        options = [self.options.get(name) for name in _FINGERPRINTED]
        return hashlib.sha256("\n".join([*self.encoded, json.dumps(options, sort_keys=True)]).encode()).hexdigest()


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
        compaction: WindowCompaction,
        reads: SessionReads,
        versions: Versions,
        quotas: QuotaChecks,
        files: SessionFiles,
    ) -> None:
        self._state = state
        self._journal = state.journal
        self._transactor = transactor
        self._engines = engines
        self._driver = driver
        self._retrieval = retrieval
        self._compaction = compaction
        self._reads = reads
        self._versions = versions
        self._quotas = quotas
        self._files = files

    async def append(self, prompts: Sequence[Prompt], key: str) -> int:
        """Store prompts for the next run; return the index of that run's turn.

        The history has the prompts in the order in which appends return. An active run does not see them.

        Args:
            key: identifies this append; repeating the key appends nothing and returns the same index.

        Raises:
            EmptyTurnError, InvalidPromptError, TooManyError, SessionEndedError: nothing was stored.
        """
        blocks, encoded = await self._accept(prompts)
        if not blocks:
            raise EmptyTurnError(self._state.session_id)

        async def change() -> int:
            self._check_not_ended()
            signed, texts = await self._sign(blocks, encoded, acting_member())
            span, session = self._journal.extend(len(blocks))
            turn = self._state.run_queue.next_turn(session.next_index, self._journal.clock())
            try:
                self._check_waiting(self._state.run_queue.turns, len(blocks))
                if any(isinstance(block, ToolUse | ToolResult) for block in blocks):
                    self._check_calls(turn.prompt, blocks, is_whole=False)
            except (InvalidPromptError, TooManyError):
                # Before refusing, look in the store: this may be the second delivery of an append.
                index = await self._index_of_append(key)
                if index is None:
                    raise
                return index
            turn = replace(turn, prompt=join(turn.prompt, (span,)), appended=join(turn.appended, (span,)))
            added = {"span": (span.start, span.stop), "blocks": tuple(signed)}
            events: list[NewEvent] = [(PromptAppended, {"turn_index": turn.index, "key": key, **added})]
            await self._transactor.commit(session, events, blocks=signed, encoded=texts, turns=[turn])
            self._state.run_queue.apply([turn])
            return turn.index

        try:
            return await self._transactor.run(change)
        except DuplicateKeyError:
            index = await self._index_of_append(key)
            if index is None:
                raise
            return index

    async def _index_of_append(self, key: str) -> int | None:
        """Return the index of the turn to which an append with this key added; None if none did."""
        event = await self._journal.store.event_of_key(self._state.key, key)
        return event.turn_index if event else None

    async def start(self, prompts: Sequence[Prompt], **options: Unpack[StartOptions]) -> Started:
        """Start a run with the prompts stored by `append`, followed by `prompts`; durable on return.

        `if_busy` decides what happens while another run is active: `reject` (the default) raises; `enqueue` waits
        behind it and all queued runs, in order of arrival; `interrupt` cancels them all and keeps their turns;
        `rollback` cancels them all and drops their turns; after either, this run is next. `latest` ends the queued runs
        alone, with the code `replaced`, so this run is next after the active one. Cancelled queued runs pass their
        prompts to the next run (`interrupt`) or drop them (`rollback`, `latest`); prompts that were stored by `append`
        are never dropped. `merge` makes this run and those at the end of the queue that ask in the same way (see
        `asks_alike`) one run, the first of them; the others and this one end at once, with the code `merged`. `inject`
        waits as `enqueue` does, and ends with the code `merged` when the active run takes the prompts: see
        `PromptJoining`. A run with options of its own (`_OWN_OPTIONS`) does not join. `drop` stores nothing, and
        returns the active run. `debounce` begins `debounce_s` seconds later, also if no run is active; if the last
        queued run waits for silence too and asks in the same way, that one gets the prompts and waits anew. A session
        whose first queued run waits for silence is busy.

        Args:
            run_id: a new id; repeating an id starts nothing and returns the existing run.
            debounce_s: the seconds of silence before a run with `if_busy="debounce"` begins, by the store's clock.
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
            overflow: the overflow strategy of this run alone; see `strategies/of_run`.
            says: the run's answer; no model is asked. See `say`.
            author: of a run that a delivery begins, the member for whom it was added. Of others it is the caller.
            trace: the W3C trace context of the caller.

        Raises:
            SessionBusyError, QueueFullError, SessionEndedError: the session takes no run now; nothing was stored.
            EmptyTurnError, InvalidPromptError: there are neither prompts nor instructions, or a prompt cannot be
                stored; nothing was stored.
            IdempotencyConflictError, TurnIdTakenError: the key or the id is in use; nothing was stored.
            QuotaExceededError: a quota is used up; nothing was stored.
            TooManyError: there are more prompts than one call may bring, or than may wait for runs; nothing was stored.
            InvalidInputError: labels or instructions are larger than `SessionConfig` allows, or the engine does not
                support a parameter, a choice of model, typed output, instructions or tools; nothing was stored.
        """
        return await self._start_once(await self._make_request(prompts, options))

    async def rerun(self, prompts: Sequence[Prompt] | None, at: int | None, **options: Unpack[StartOptions]) -> Started:
        """Start a run that answers a turn anew, with other prompts or its own; durable on return.

        One commit stores the run and its turn, which is shown in place of the other one from then on. The other one,
        and what was answered after it, stay as they are: see `Versions`. The turn's own prompts are stored again, so
        that each block belongs to one turn. If the new turn is dropped, what was shown before is shown again.

        Args:
            prompts: None for those of the turn.
            at: the index of the turn, which must be shown; None for the last one that has ended.
            options: see `start`; `if_busy` is `reject`.

        Raises:
            TurnNotFoundError: the session has no such turn; nothing was stored.
            TurnReplacedError: another version of it is shown, for example since it was answered anew meanwhile; nothing
                was stored.
            SessionInUseError: a run is active or queued; nothing was stored.
            InvalidInputError: prompts that were stored by `append` wait for a run; nothing was stored.
            TooManyVersionsError: the session has `MAX_BRANCHES` branches; nothing was stored.
            EmptyTurnError: the turn has no prompts, or they were forgotten or removed; nothing was stored.
            TurnwiseError: see `start`.
        """
        return await self._start_once(await self._make_request(prompts or (), options, _Rerun(at, prompts is None)))

    async def _start_once(self, request: _StartRequest) -> Started:
        """Store a run; return the existing run if the same run was requested before."""
        try:
            return await self._transactor.run(partial(self._start, request))
        except DuplicateKeyError as error:
            request.operation.end(error)
            if started := await self._find_run(request, stored=True):
                return started
            if request.turn_id is not None:
                await self._check_turn_id(request.turn_id)
            raise
        except Exception as error:
            request.operation.end(error)
            raise

    async def say(
        self, text: str, *, run_id: str, key: str | None = None, trace: Mapping[str, str] | None = None
    ) -> Started:
        """Store a text as the assistant's answer to the prompts stored by `append`, if any; durable on return.

        It is a run that asks no model. In a free session one commit begins and ends the run. In a busy one the run is
        queued, as with `enqueue`: a cancel takes the text along while the run waits, and comes too late afterwards.

        Args:
            run_id, key, trace: `key` is the `idempotency_key`; see `start`.

        Raises:
            QueueFullError, SessionEndedError: the session takes no run now; nothing was stored.
            InvalidPromptError: the text is blank or cannot be stored, or a tool call among the appended prompts has no
                result; nothing was stored.
            IdempotencyConflictError: the key is in use for another run; nothing was stored.
        """
        if not text.strip():
            raise InvalidPromptError(self._state.session_id, "the text to say is blank")
        accept(self._state.session_id, [Text(text=text)], self._engines.config.max_prompt_bytes)
        return await self.start((), run_id=run_id, if_busy="enqueue", idempotency_key=key, says=text, trace=trace)

    async def deliver(self, key: str, delivery_id: str, revision: int) -> Started | None:
        """Carry out the next occurrence of a delivery: start its run, by its `if_busy`; durable on return.

        One commit stores the run and moves the delivery to its next occurrence, or removes it after the last. So the
        occurrence is carried out once: for the same revision again, this returns the same run, unless attempts had
        failed before, and changes nothing.

        Returns None if there is nothing to carry out: the delivery was changed or cancelled since, the occurrence was
        missed and is to be left out, the session has ended, or the member for whom it was added may start no runs any
        more. All but the first move or remove the delivery.

        While it awaits the following, other work may run, and the process may crash:

        | awaited | what else may run | what a crash leaves |
        |---|---|---|
        | the store, for the delivery | everything; a change of the delivery, which the commit notices | the delivery |
        | the store, for its time | the same | the delivery |
        | the commit | reads, streaming | the delivery, or its run |

        Args:
            key, delivery_id, revision: which delivery, as it was when it was found to be due.

        Raises:
            SessionBusyError, QueueFullError: the session takes no run now; nothing was stored. Try again later.
            QuotaExceededError: a quota is used up; nothing was stored. Try again in its next period.
            InvalidInputError: the delivery can never be carried out; nothing was stored.
        """
        await self._transactor.loaded()
        delivery = await self._journal.store.delivery(self._state.key, key)
        if delivery is None or (delivery.delivery_id, delivery.revision) != (delivery_id, revision):
            return await self.started(f"{delivery_id}-{revision}")
        if delivery.schedule or delivery.missed == "skip":
            await self._journal.set_clock()  # what is late, and the next time, are by the clock that found it due
        prompts, options = read_run_payload(delivery)
        options |= {"run_id": delivery.run_id, "if_busy": delivery.if_busy}
        request = await self._make_request(prompts, cast(StartOptions, options))
        request.delivery = delivery
        try:
            return await self._transactor.run(partial(self._carry_out, request, delivery))
        except (DeliveryChangedError, DuplicateKeyError) as error:
            request.operation.end(error)
            return await self.started(delivery.run_id)
        except Exception as error:
            request.operation.end(error)
            raise

    async def receive(self, delivery: Delivery, is_wanted: Callable[[], Awaitable[bool]] | None = None) -> Received:
        """Start the run of a delivery of another session, whose id the run has; durable on return.

        One commit stores the run and removes the delivery. A run that was started for it before is returned.

        Args:
            is_wanted: returns whether the run is to start, whose parent exists then. No other change of this session
                comes between its answer and the start. If omitted, the run is wanted.

        Raises:
            DeliveryChangedError: the delivery was changed, cancelled or carried out since; nothing was stored.
            TurnwiseError: see `start`; nothing was stored.
        """
        prompts, options = read_run_payload(delivery)
        options |= {"run_id": delivery.run_id, "if_busy": delivery.if_busy}
        request = await self._make_request(prompts, cast(StartOptions, options))
        request.delivery, request.has_parent = delivery, is_wanted is not None

        async def change() -> Received:
            revision = self._journal.session.revision
            started = await self._start(request) if is_wanted is None or await is_wanted() else None
            return Received(started, self._journal.session.revision > revision)  # as each commit of a start removes it

        try:
            return await self._transactor.run(change)
        except DuplicateKeyError as error:
            request.operation.end(error)
            if started := await self.started(delivery.run_id):
                return Received(started, is_removed=False)
            raise
        except Exception as error:
            request.operation.end(error)
            raise

    async def _carry_out(self, request: _StartRequest, delivery: Delivery) -> Started | None:
        """Store the run of a delivery, or leave the occurrence out. Call it within a change."""
        now, session = self._journal.clock(), self._journal.session
        if session.status == "ended" or session.role_of(request.author) in (None, "reader"):
            await self._transactor.commit(session, deliveries=[DeliveryChange(delivery, None)])
        elif delivery.is_missed(now):
            await self._transactor.commit(session, deliveries=request.delivery_changes(now))
        else:
            started = await self._start(request)
            if observer := self._engines.whole.observer:
                observer.delivered(self._state.view(), max(0.0, now - delivery.occurs_at))
            return started
        return None

    async def started(self, run_id: str) -> Started | None:
        """Return the run with this id, open or ended; None if the session has none."""
        record = self._known_record(run_id)
        if record is None:
            try:
                record = await self._journal.records.find_run(run_id)
            except RunNotFoundError:
                return None
        return Started(record.run_id, await self._turn_of(record))

    def _known_record(self, run_id: str) -> RunRecord | None:
        """Return the record of a run that is open, or ended recently; None for other runs."""
        open_run, ended = self._state.open_run(run_id), self._state.ended_run(run_id)
        return open_run.record if open_run else ended[0] if ended else None

    async def check_start(self, prompts: Sequence[Prompt], **options: Unpack[StartOptions]) -> str | None:
        """Raise what `start` would raise if no run were active or queued. Stores nothing.

        Returns the id of the run that was started with the same idempotency key; None if there is none.
        """
        request = await self._make_request(prompts, options, stores=False)
        await self._transactor.loaded()
        if started := await self._find_run(request):
            return started.run_id
        await self._check_parent(self._checked_record(request, is_free=True))
        if request.turn_id is not None:
            await self._check_turn_id(request.turn_id)
        if request.options.get("says") is None:
            await self._quotas.check_start()
        return None

    async def _make_request(
        self, prompts: Sequence[Prompt], options: StartOptions, rerun: _Rerun | None = None, *, stores: bool = True
    ) -> _StartRequest:
        """Return the request of a run, whose prompts and options can be stored."""
        self._engines.config.check_labels(options.get("labels") or {})
        _check_instructions(options.get("instructions"), self._engines.config)
        _check_debounce(options)
        blocks, encoded = await self._accept(prompts, stores=stores)
        return _StartRequest(options, blocks, encoded, self._engines.whole, rerun)

    async def _start(self, request: _StartRequest) -> Started:
        """Store a run, unless it is dropped. Call it within a change.

        Returns the existing run if the same run was requested before.
        """
        await self._check_policy(request)
        if started := await self._find_run(request):
            self._preempt(started.run_id, request.if_busy)
            return started
        try:
            if request.rerun:
                await self._replace(request, request.rerun)
            if not (request.rerun and request.rerun.keeps_prompt):  # whose prompts are signed already
                request.blocks, request.encoded = await self._sign(request.blocks, request.encoded, request.author)
            record = self._checked_record(request)
            merging = self._mergeable_runs(request, record)
            self._check_room(request, merging)
        except Exception:
            # Before refusing, look in the store: this may be the second delivery of a start that was acknowledged.
            if started := await self._find_run(request, stored=True):
                return started
            raise
        if not request.has_parent:
            await self._check_parent(record)
        if (busy := self._state.busy) and request.if_busy == "drop":
            started = await self._find_run(request, stored=True)
            if changes := [] if started else request.delivery_changes(record.created_at):
                await self._transactor.commit(self._journal.session, deliveries=changes)
            return started or Started(busy.run_id, busy.turn.index, dropped=True)
        record = self._with_trace(request, record)
        return await (self._merge(request, record, merging) if merging else self._accept_run(request, record))

    async def _accept_run(self, request: _StartRequest, record: RunRecord) -> Started:
        """Store a run as quotas allow it: as it is, as one that waits for a quota, or for a decision about one.

        Raises:
            QuotaExceededError: a quota is used up that refuses runs; nothing was stored.
        """
        while True:
            try:
                return await self._store(request, record)
            except QuotaExceededError as error:
                record = await self._quotas.admitted(record, error)

    async def _replace(self, request: _StartRequest, rerun: _Rerun) -> None:
        """Find what the run stores in place of a turn; if it keeps the turn's prompts, take them. See `Versions`.

        A member may replace the newest turn only, and only the own one.
        """
        if acting_member():
            head = self._state.head
            is_newest = head is not None and rerun.at in (None, head.index)
            await self._check_own(await self._reads.run(head.run_id) if head and is_newest and head.run_id else None)
        request.replacement = replacement = await self._versions.replacement(rerun.at)
        if rerun.keeps_prompt:
            max_bytes = self._engines.config.max_prompt_bytes
            request.blocks, request.encoded = accept(
                self._state.session_id, replacement.prompt, max_bytes, self._refusal
            )

    def _with_trace(self, request: _StartRequest, record: RunRecord) -> RunRecord:
        """Have telemetry follow the run; return its record with the trace context."""
        depth, caller = len(self._state.open_runs), request.options.get("trace")
        operation = request.run_resources.follow(self._state.view(), record, caller or {}, depth)
        if operation is NO_OPERATION:
            return record
        operation.note(prompts=request.blocks)
        request.operation = operation
        return replace(record, trace=FrozenDict(operation.trace))

    async def _store(self, request: _StartRequest, record: RunRecord) -> Started:
        """Commit a run as running, or as queued behind the active one; then launch it, or cancel the active one."""
        active, if_busy, operation = self._state.active, request.if_busy, request.operation
        replacement, head = request.replacement, self._state.head
        begins = not (if_busy == "debounce" or record.waits_for_quota) and (
            self._state.busy is None or not (active or if_busy not in _CLEARS_QUEUE)
        )
        blocks, run_queue, now = request.blocks, self._state.run_queue, record.created_at
        cancelled = list(run_queue.queue) if if_busy in _CLEARS_QUEUE else []
        reason = f"{if_busy} by run {record.run_id}"
        end_fields = {"code": REPLACED, "successor": record.run_id} if if_busy == "latest" else {}
        ends = [run.ended("cancelled", reason, now, **end_fields) for run in cancelled]
        span, session = self._journal.extend(len(blocks))
        if replacement:
            session, head = replace(session, branches=replacement.branches), replacement.head
        moved_prompts = kept_prompts(cancelled, discard=if_busy in _DISCARDS)
        turn = with_earlier_prompts(run_queue.next_turn(session.next_index, now), moved_prompts)
        try:
            self._check_waiting([*(run.turn for run in run_queue.queue if run not in cancelled), turn], len(blocks))
            self._check_calls(turn.prompt, blocks, is_whole=True)
        except (InvalidPromptError, TooManyError):
            if started := await self._find_run(request, stored=True):
                return started
            raise
        prompts, search = (*self._journal.blocks.cache.read(turn.prompt), *blocks), None
        if begins and record.says is None and not replacement:  # its query depends on the turn that it continues
            with within(operation):
                search = await self._retrieval.search_early(
                    request.run_resources, record.memory, prompts, record.author
                )
        turn = replace(
            turn, run_id=record.run_id, turn_id=request.turn_id, status="queued", prompt=join(turn.prompt, (span,))
        )
        before = [*map(end_event, ends), *([replacement.event] if replacement else [])]
        record = replace(record, turn_index=turn.index, first_seq=self._journal.log.next_seq() + len(before))
        run = ActiveRun(self._state.view(), record, turn, request.run_resources)
        run.operation = operation
        added = {"span": (span.start, span.stop), "blocks": tuple(blocks)} if blocks else {}
        event: NewEvent = RunQueued, {**about(record), **added}
        if begins:
            run.search = search
            run.record, run.turn = self._driver.begin(record, turn, head)
            run.turn = replacement.continued(run.turn) if replacement else run.turn
            event = start_event(run.record, run.turn, head, session, prompts, names_input=replacement is not None)
        if request.turn_id is not None:
            event[1]["key"] = turn_key(request.turn_id)
        if begins and record.says is not None:
            return await self._store_said(request, run, record.says, event, session)
        await self._transactor.commit(
            session,
            [*before, event],
            blocks=blocks,
            encoded=request.encoded,
            turns=[*(replacement.turns if replacement else ()), run.turn],
            dropped_turns=[run.turn.index for run in cancelled],
            new_run=run.record,
            runs=ends,
            live=begins or active is not None,
            deliveries=request.delivery_changes(now),
        )
        self._state.continue_from(head)
        run_queue.clear_pending()
        run_queue.apply((), cancelled)
        for preempted, end in zip(cancelled, ends, strict=True):
            self._driver.note_end(preempted, end, None)
        if begins:
            self._driver.launch(run, is_accepted_now=not record.calls)
        else:
            run_queue.add(run)
        self._driver.watch_queue()
        self._preempt(run.run_id, if_busy)
        return Started(run.run_id, turn.index)

    async def _store_said(
        self, request: _StartRequest, run: ActiveRun, text: str, event: NewEvent, session: SessionRecord
    ) -> Started:
        """Commit a run that says a text as ended."""
        ended = self._driver.said(run, text, session)
        await self._transactor.commit(
            ended.session,
            [event, ended.event],
            blocks=ended.blocks,
            turns=[ended.turn],
            new_run=ended.record,
            live=False,
            deliveries=request.delivery_changes(run.record.created_at),
        )
        self._state.run_queue.clear_pending()
        self._driver.note_said(run, ended)
        return Started(run.run_id, ended.turn.index)

    def _preempt(self, run_id: str, if_busy: IfBusy) -> None:
        """Cancel the active run if this run is stored to come after it, and by its policy ends it. Idempotent."""
        active = self._state.active
        if active and if_busy in _ENDS_ACTIVE and self._state.run_queue.find(run_id):
            active.request_cancel(f"{if_busy} by run {run_id}", discard=if_busy in _DISCARDS)

    async def _merge(self, request: _StartRequest, record: RunRecord, merging: Sequence[ActiveRun]) -> Started:
        """Add the prompts of this run to the first of these queued runs, behind those of the others, in one commit."""
        first, *later_runs = merging
        blocks, run_queue, now = request.blocks, self._state.run_queue, record.created_at
        span, session = self._journal.extend(len(blocks))
        turn = run_queue.next_turn(session.next_index, now)
        prompt = join(kept_prompts(merging, discard=False), turn.prompt)
        try:
            self._check_waiting(run_queue.turns, len(blocks))
            self._check_calls(prompt, blocks, is_whole=True)
        except (InvalidPromptError, TooManyError):
            if started := await self._find_run(request, stored=True):
                return started
            raise
        appended = join(kept_prompts(merging, discard=True), turn.appended)
        grown = replace(first.turn, prompt=join(prompt, (span,)), appended=appended)
        restarted = [replace(first.record, started_at=record.started_at)] if record.started_at else []
        end_fields = merged_into(first.run_id)
        ends = [run.ended(now=now, **end_fields) for run in later_runs]
        record = replace(record, turn_index=turn.index, first_seq=self._journal.log.next_seq() + len(ends))
        run = ActiveRun(self._state.view(), record, turn, request.run_resources)
        run.operation, end = request.operation, run.ended(now=now, **end_fields)
        added = {"span": (span.start, span.stop), "blocks": tuple(blocks)} if blocks else {}
        turnless = [*later_runs, *([run] if run_queue.pending else [])]
        await self._transactor.commit(
            replace(session, next_index=max(session.next_index, turn.index + 1)),
            [*map(end_event, ends), (RunQueued, {**about(record), **added}), end_event(end)],
            blocks=blocks,
            encoded=request.encoded,
            turns=[grown],
            dropped_turns=[turnless_run.turn.index for turnless_run in turnless],
            new_run=end,
            runs=[*ends, *restarted],
            deliveries=request.delivery_changes(now),
        )
        run_queue.clear_pending()
        run_queue.apply([grown], later_runs)
        first.record = next(iter(restarted), first.record)
        self._driver.watch_queue()
        for merged_run, run_end in zip([*later_runs, run], [*ends, end], strict=True):
            self._driver.note_end(merged_run, run_end, None)
        return Started(run.run_id, grown.index)

    async def cancel(self, reason: str, run_id: str | None = None, timeout_s: float | None = None) -> bool | None:
        """Cancel a run, by default the active one, and wait for its end; return whether it ended as cancelled.

        Returns None if the run has not ended after `timeout_s` seconds.

        Idempotent: the first reason is kept, and cancelling a run that has ended does nothing. An engine that ignores
        the cancel delays the return by no more than `cancel_grace_s`. A cancelled queued run passes its prompts to the
        next run, or drops them if `on_cancel` is `discard`. Instead of a merged run, the run that has its prompts is
        cancelled.

        Raises:
            NoActiveRunError: no run was named and none is active.
            RunNotFoundError: the session has no such run.
        """
        await self._transactor.loaded()
        run = self._state.active if run_id is None else self._state.open_run(run_id)
        if run is None:
            if run_id is None:
                raise NoActiveRunError(self._state.session_id)
            record = await self._reads.run(run_id)
            await self._check_own(record)
            if record.run_id != run_id:
                return await self.cancel(reason, record.run_id, timeout_s)
            return record.state == "cancelled"
        await self._check_own(run.record)

        async def change() -> None:
            if run in self._state.run_queue.queue:
                await self._cancel_queued([run], whole(reason), self._journal.session)

        if run is not self._state.active:
            await self._transactor.run(change)
        if run is self._state.active:  # it may have become active while the change waited for the lock
            run.request_cancel(reason, discard=self._discards)
        if not await run.wait(timeout_s):
            return None
        if run.record.leads_to:  # it was merged meanwhile
            return await self.cancel(reason, run.record.leads_to, timeout_s)
        return run.record.state == "cancelled"

    async def prove_ownership(self) -> None:
        """Store an empty commit. What another process has not committed to this session until then, it never will.

        Raises:
            SessionFencedError: another process owns the session.
        """
        await self._transactor.run(lambda: self._transactor.commit(self._journal.session))

    async def end_session(self, reason: str = "session ended", timeout_s: float | None = None) -> bool:
        """End the session: accept no new runs, and cancel active and queued ones with this reason. Idempotent.

        Its deliveries are removed with the same commit, since no run can begin for them any more. Those to other
        sessions stay.

        The compaction that is under way is cancelled first. The session's end is durable before the active run is
        cancelled. Returns True when that run has ended, or False after `timeout_s` seconds.
        """
        await self._compaction.stop()

        async def change() -> None:
            if self._journal.session.status == "active":
                session, queue = replace(self._journal.session, status="ended"), list(self._state.run_queue.queue)
                deliveries = deliveries_of(self._journal.store, self._state.key)
                removals = [
                    DeliveryChange(delivery, None) async for delivery in deliveries if delivery.to_session is None
                ]
                await self._cancel_queued(queue, whole(reason), session, [(SessionEnded, {})], removals)

        while True:
            try:
                await self._transactor.run(change)
                break
            except DeliveryChangedError:  # after it was read, so it is read again
                continue
        if run := self._state.active:
            run.request_cancel(reason, discard=self._discards)
            return await run.wait(timeout_s)
        return True

    async def _cancel_queued(
        self,
        runs: Sequence[ActiveRun],
        reason: str,
        session: SessionRecord,
        more: Sequence[NewEvent] = (),
        deliveries: Sequence[DeliveryChange] = (),
    ) -> None:
        requeued = self._driver.requeue_prompts(runs, discard=self._discards and session.status == "active")
        now = self._journal.clock()
        ends = [run.ended("cancelled", reason, now) for run in runs]
        dropped = [run.turn.index for run in runs]
        events = [*map(end_event, ends), *more]
        await self._transactor.commit(
            session, events, turns=requeued, dropped_turns=dropped, runs=ends, deliveries=deliveries
        )
        self._state.run_queue.apply(requeued, runs)
        for run, end in zip(runs, ends, strict=True):
            self._driver.note_end(run, end, None)
        self._driver.watch_queue()

    @property
    def _discards(self) -> bool:
        return self._engines.config.on_cancel == "discard"

    # Checks

    async def _check_own(self, run: RunRecord | None) -> None:
        """Raise NotAllowedError if a member asks for what only owners may do, and the run is not the member's own."""
        await check_own(self._journal.session, self._journal.store, run)

    async def _check_policy(self, request: _StartRequest) -> None:
        """Raise NotAllowedError if a member's run would end runs of others."""
        active, queue = self._state.active, self._state.run_queue.queue
        ended = [*([active] if active and request.if_busy in _ENDS_ACTIVE else [])]
        ended += queue if request.if_busy in _CLEARS_QUEUE else []
        for run in ended:
            await self._check_own(run.record)

    async def _sign(
        self, blocks: Sequence[Block], encoded: Sequence[str], author: str | None
    ) -> tuple[list[Block], list[str]]:
        """Return the prompts with their author, and as stored text. Call it within a change.

        The prompts of the session's user name their author only if the session is shared.

        Raises:
            NotAllowedError: a member, who is no owner, adds what is no prompt, such as instructions or answers.
            InvalidPromptError: a prompt names another author than its caller.
        """
        session = self._journal.session
        if not all(isinstance(block, User | Image | Document) for block in blocks):
            await check_acting(session, self._journal.store, "owner")
        name = author or (session.user_id if session.members else None)
        named = {block.author for block in blocks if isinstance(block, User)} - {None, author or session.user_id}
        if named:
            reason = (
                f"it names the author {shown(min(map(str, named)))}: leave it out, and open the session with as_user"
            )
            raise InvalidPromptError(self._state.session_id, reason)
        if name is None and not any(isinstance(block, User) and block.author for block in blocks):
            return list(blocks), list(encoded)
        signed = [block.model_copy(update={"author": name}) if isinstance(block, User) else block for block in blocks]
        return signed, [encode(block) for block in signed]

    async def _check_parent(self, record: RunRecord) -> None:
        """Raise RunNotFoundError if the run's parent is no run of a session of this user."""
        if record.parent is None:
            return
        user_id, store = self._journal.session.user_id, self._journal.store
        try:
            await store.run(record.parent, user_id)
        except RunNotFoundError:
            raise RunNotFoundError(record.parent, f"user {user_id!r}") from None

    async def _check_turn_id(self, turn_id: str) -> None:
        """Raise TurnIdTakenError if the session has or had a turn with this id."""
        event = await self._journal.store.event_of_key(self._state.key, turn_key(turn_id))
        if event:
            raise TurnIdTakenError(self._state.session_id, turn_id, event.run_id or "")

    async def _accept(self, prompts: Sequence[Prompt], *, stores: bool = True) -> tuple[list[Block], list[str]]:
        """Return the prompts as blocks and as stored text; see `prompts.accept`.

        Args:
            stores: whether large attachments are stored as files.
        """
        if isinstance(self._engines.whole.builder, NamedEngines):
            await self._transactor.loaded()  # the session's row says which engine takes the prompts
        check_count("prompts", len(prompts), "MAX_BLOCKS", MAX_BLOCKS)  # before any is looked at
        named, max_bytes = await self._files.named(prompts, stores=stores), self._engines.config.max_prompt_bytes
        blocks, encoded = accept(self._state.session_id, named, max_bytes, self._refusal)
        return await self._files.moved_prompts(blocks, encoded, stores=stores)

    def _refusal(self, block: Image | Document) -> str | None:
        """Return why the session's engine refuses an image or a document; None if it takes the block."""
        builder = self._engines.current.builder
        return builder.refuses(stand_in(block)) if isinstance(builder, Selective) else None

    def _check_calls(self, before: Spans, blocks: Sequence[Block], *, is_whole: bool) -> None:
        """Check the tool calls and results among a turn's prompts: those stored before, and these blocks."""
        check_calls(self._state.session_id, (*self._journal.blocks.cache.read(before), *blocks), is_whole=is_whole)

    def _check_waiting(self, turns: Iterable[TurnRecord], count: int) -> None:
        """Refuse `count` more prompts if more prompts would then wait than one run may take.

        Prompts of the active run that `append` stored count too: they return to the queue if the run is discarded.

        Raises:
            TooManyError: they are too many.
        """
        if count:
            back = self._state.active.turn.appended if self._state.active else ()
            waiting = size(back) + sum(size(turn.prompt) for turn in turns)
            check_count("prompts that wait for runs", waiting + count, "MAX_WAITING_BLOCKS", MAX_WAITING_BLOCKS)

    def _check_not_ended(self) -> None:
        if self._journal.session.status == "ended":
            raise SessionEndedError(self._state.session_id)

    def _check_room(self, request: _StartRequest, merging: Sequence[ActiveRun]) -> None:
        """Raise QueueFullError if the run would wait and the queue is full."""
        busy, max_queued = self._state.busy, self._engines.config.max_queued
        waiting = 0 if request.if_busy == "latest" else len(self._state.run_queue.queue)
        is_added = request.if_busy not in ("interrupt", "rollback", "drop") and not merging
        if busy and is_added and waiting >= max_queued:
            raise QueueFullError(self._state.session_id, busy.run_id, max_queued)

    def _mergeable_runs(self, request: _StartRequest, record: RunRecord) -> list[ActiveRun]:
        """Return the runs at the end of the queue that are to become one with this run.

        Only the first of them may have a turn id, or wait for silence, since it alone keeps its turn and its time.
        """
        if request.if_busy not in ("merge", "debounce") or request.turn_id is not None:
            return []
        used, queue = request.run_resources, self._state.run_queue.queue
        alike = takewhile(lambda run: run.run_resources is used and asks_alike(run.record, record), reversed(queue))
        if request.if_busy == "debounce":
            return [run for run in islice(alike, 1) if run.record.started_at]
        runs: list[ActiveRun] = []
        for run in alike:
            runs.insert(0, run)
            if run.turn.turn_id is not None or run.record.started_at:
                break
        return runs

    def _checked_record(self, request: _StartRequest, *, is_free: bool = False) -> RunRecord:
        """Return a record, in state `queued` and with no turn yet, of a run that may start now.

        Args:
            is_free: whether the session will be free when it starts, whatever runs are active now.

        Raises:
            TurnwiseError: the run may not start; the error says why.
        """
        self._check_not_ended()
        state, session, options = self._state, self._journal.session, request.options
        if state.busy and request.if_busy == "reject" and not is_free:
            raise SessionBusyError(state.session_id, state.busy.run_id)
        has_prompts = request.blocks or state.run_queue.pending or (state.busy and request.if_busy == "drop")
        says, instructions, tools = options.get("says"), options.get("instructions"), options.get("tools") or {}
        if not (has_prompts or says or (instructions and instructions.strip())):
            raise EmptyTurnError(state.session_id)
        output = options.get("output")
        labels = FrozenDict(options.get("labels") or {})
        engine, request.run_resources = self._engines.of_next(request.run_resources, labels)
        builder = request.run_resources.builder
        model, params = options.get("model") or session.model, merged(session.params, options.get("params") or {})
        if says is None:
            if isinstance(builder, MissingEngine):
                raise builder.error(state.session_id)
            check_taken(engine_of_run(builder, instructions, tools), model, params)
            check_answers(builder, output, params)
        else:
            model, params, output = None, FrozenDict(), {"says": says}
        now, silence_s = self._journal.clock(), options.get("debounce_s")
        record = RunRecord(
            **state.key._asdict(),
            turn_index=0,
            state="queued",
            first_seq=0,
            created_at=now,
            started_at=now + silence_s if silence_s else None,
            run_id=request.run_id,
            origin=replace(request.origin, joins=self._may_join(request)),
            timeout_s=options.get("timeout_s"),
            parent=options.get("parent"),
            engine=engine,
            labels=labels,
            memory=options.get("memory") or session.memory,
            model=model,
            params=params,
            output=FrozenDict(output) if output else None,
            instructions=instructions,
            tools=FrozenDict(tools),
            overflow=FrozenDict(options.get("overflow") or {}) or None,
        )
        request.run_resources.compactor_of(record)  # refuses a strategy that this session's window does not allow
        return record

    def _may_join(self, request: _StartRequest) -> bool:
        return bool(
            self._state.busy and request.if_busy == "inject" and not any(map(request.options.get, _OWN_OPTIONS))
        )

    async def _find_run(self, request: _StartRequest, *, stored: bool = False) -> Started | None:
        """Return the run with this id or idempotency key, or None; with `stored`, look up the id in the store too."""
        record = self._known_record(request.run_id)
        if record is None and request.key:
            record = await self._journal.store.run_of_key(self._state.key, request.key)
            if record and replace(record.origin, joins=False) != request.origin:
                raise IdempotencyConflictError(self._state.session_id, request.key, record.run_id)
        if record is None and stored:
            try:
                record = await self._journal.records.find_run(request.run_id)
            except RunNotFoundError:
                return None
        return Started(record.run_id, await self._turn_of(record)) if record else None

    async def _turn_of(self, record: RunRecord) -> int:
        """Return the index of the turn that has the run's prompts: its own, or for a merged run the leading run's."""
        index, leads_to = record.turn_index, record.leads_to
        while leads_to:
            try:
                leading = self._known_record(leads_to) or await self._journal.records.find_run(leads_to)
            except RunNotFoundError:  # it was cleared
                break
            index, leads_to = leading.turn_index, leading.leads_to
        return index


def _check_debounce(options: StartOptions) -> None:
    """Raise InvalidInputError if there are seconds without the policy, or the policy without seconds."""
    silence_s, if_busy = options.get("debounce_s"), options.get("if_busy")
    if (silence_s is None) == (if_busy == "debounce"):
        reason = "pass if_busy='debounce' and the seconds of silence together, such as debounce_s=2.0"
        raise InvalidInputError("debounce_s", shown(silence_s), reason)


def asks_alike(first: RunRecord, second: RunRecord) -> bool:
    """Return whether one run can answer the prompts of both: labels apart, they ask in the same way."""
    return all(getattr(first, name) == getattr(second, name) for name in _COMPARED)


_FINGERPRINTED = ("model", "params", "output", "instructions", "tools", "overflow", "says")
"""The options of the model call, which are the same in a repeated request."""

_OWN_OPTIONS = (
    *("turn_id", "parent", "timeout_s", "memory", "model", "params", "output", "instructions", "tools", "overflow"),
)
"""The options that keep a run from joining another one, since it would lose them."""

_COMPARED = ("author", "engine", *_OWN_OPTIONS[1:], "joins")


def _check_instructions(instructions: str | None, config: SessionConfig) -> None:
    """Raise InvalidInputError for instructions that are larger than a prompt may be."""
    if instructions and (size := len(instructions.encode())) > config.max_prompt_bytes:
        reason = f"{size} bytes are over max_prompt_bytes={config.max_prompt_bytes}; shorten it or raise the limit"
        raise InvalidInputError("instructions", shown(instructions), reason)
