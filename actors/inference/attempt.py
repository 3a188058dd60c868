"""`Attempt`: one execution of an engine for a run, until it ends, suspends, is cancelled or times out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from turnwise.actors.inference.engine import NewEvent, NoOutput, SessionView, Suspend, ToolStandIn
from turnwise.actors.inference.timeline import MAX_EVENT_BYTES, Timeline
from turnwise.errors import (
    CompactionError,
    ContextOverflowError,
    EngineError,
    GuardrailError,
    LimitError,
    OutputError,
    ProviderAwayError,
    RequestRefusedError,
    StrategyError,
    TurnwiseError,
    UnsupportedBlockError,
    WindowOverflowError,
)
from turnwise.memory.conversation.blocks import Block, Text, Thinking, ToolResult, encode
from turnwise.memory.conversation.calls.tool_calls import CallState
from turnwise.memory.conversation.events import Event, ModelCallEnded, ModelCallStarted, TextDelta, ThinkingDelta
from turnwise.memory.conversation.model_params import of_later_step
from turnwise.memory.conversation.transcript import Ledger, repair
from turnwise.memory.conversation.turns import Turn, TurnRecord
from turnwise.memory.conversation.usage import Usage, unreported
from turnwise.memory.deliveries.schedule_access import ScheduleAccess
from turnwise.memory.files.owned import OwnedFiles
from turnwise.memory.longterm.memory_access import MemoryAccess
from turnwise.memory.values.frozen_json import freeze, plain_json
from turnwise.memory.values.growing_text import WholeCharacters, whole, whole_json
from turnwise.memory.values.records import replace

if TYPE_CHECKING:
    from turnwise.actors.session.state.active_run import ActiveRun


class RunCallbacks(Protocol):
    """The session's side of an attempt: publishes, prices and records what its engine produces."""

    schedules: ScheduleAccess | None
    """See `RunContext.schedules`."""
    stand_in: ToolStandIn | None
    """See `StepContext.stand_in`."""

    def files_of(self, run: ActiveRun) -> OwnedFiles | None:
        """See `RunContext.files`."""

    def publish_live(
        self, run: ActiveRun, kind: type[Event], values: Mapping[str, Any], *, quietly: bool = False
    ) -> None:
        """Publish a live event of the run; `quietly`, with the event after it."""

    def check_budget(self, run: ActiveRun) -> None:
        """See `StepContext.begin_call`."""

    def price(self, run: ActiveRun, usage: Usage, model: str | None) -> Usage:
        """Return the usage with its cost."""

    def count_call(self, run: ActiveRun, turn: TurnRecord, answer: Sequence[Block]) -> tuple[int, int]:
        """Return the tokens of a model call that is given this turn, and those of its answer, as turnwise counts."""

    async def make_room(self, run: ActiveRun, *, too_long: bool) -> Turn:
        """See `StepContext.make_room`."""

    async def store_added(self, run: ActiveRun) -> None:
        """Store the events that the run's engine has added, unless another commit has stored them. Raises nothing."""

    async def store_input(self, attempt: Attempt, blocks: Sequence[Block]) -> None:
        """See `StepContext.store_input`."""

    async def record(
        self,
        attempt: Attempt,
        blocks: Sequence[Block],
        events: Sequence[NewEvent],
        calls: Mapping[str, CallState | None],
        *,
        suspends: bool,
    ) -> Turn:
        """See `StepContext.record`."""


@dataclass(frozen=True)
class Ending:
    """How an attempt ended. `answer` is what the engine returned, in storable form; None if it did not return."""

    state: Literal["completed", "cancelled", "failed", "suspended"]
    why: str | None = None
    code: str | None = None
    answer: list[Block] | None = None
    calls: dict[str, CallState] = field(default_factory=dict)


class Attempt:
    """One execution of an engine for a run, and the `StepContext` that the engine gets.

    It is closed once its ending is decided; later calls of the engine have no effect.
    """

    def __init__(self, run: ActiveRun, callbacks: RunCallbacks, *, interval_s: float) -> None:
        self.run = run
        self.ledger = Ledger(run.output.blocks)
        """The run's output with what the engine has streamed so far."""
        self.stop_reason: str | None = None
        self.closed = False
        """Whether the ending is decided."""
        self._callbacks = callbacks
        self._interval_s = interval_s
        self._unpublished: list[str] = []
        self._parts = 0
        """How many parts of its answer the engine has begun to stream in the current model call."""
        self._part: type[TextDelta | ThinkingDelta] | None = None
        """The kind of deltas of the part that the next one may continue."""
        self._is_shown = False
        """Whether a delta of this part was published."""
        self._characters = WholeCharacters()
        """Those of the part, of which none is cut in two."""
        self._timer: asyncio.TimerHandle | None = None
        self._call = run.spent
        """The run's usage at the start of the last model call."""
        self._turn_of_call: TurnRecord | None = run.turn
        """What the open model call was given; None if no call is open."""
        self._model = run.record.model
        self._limit: int | None = None
        """How many model calls the run may make."""
        self._announces = False
        """Whether the engine announces its model calls, by `begin_call`."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._storing: asyncio.Task[None] | None = None
        """Stores the events that the engine and its tools have added."""

    async def drive(
        self, answer: Callable[[], Awaitable[Sequence[Block]]], *, timeout_s: float | None, grace_s: float
    ) -> Ending:
        """Run the engine and return how it ended. Raises nothing.

        Ends with the answer, with a cancel, or after `timeout_s`, whichever is first. An engine that does not stop then
        is abandoned after `grace_s`. If the cancel and the answer coincide, the run is cancelled and keeps the answer.
        """
        cancelled = self.run.cancelled
        engine = asyncio.ensure_future(checked(answer))

        def stop(_: object) -> None:
            engine.cancel()

        cancelled.add_done_callback(stop)  # the engine has mostly stopped by the time that this task wakes
        first: set[asyncio.Future[Any]] = {engine, cancelled}
        await asyncio.wait(first, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        cancelled.remove_done_callback(stop)
        late = not engine.done() and not cancelled.done()
        if late:
            engine.cancel()
        if not engine.done():
            await asyncio.wait({engine}, timeout=grace_s)
        if not engine.done():
            leave_behind(engine)
        error = engine.exception() if engine.done() and not engine.cancelled() else None
        finished = engine.result() if engine.done() and not engine.cancelled() and error is None else None
        if finished is not None:
            self._count_call(finished, is_whole=True)
        elif self._parts or (self._announces and (late or cancelled.done())):
            self._count_call((), is_whole=isinstance(error, LimitError | OutputError))
        self.close()
        if cancelled.done():
            return Ending("cancelled", cancelled.result(), answer=finished)
        if late:
            return Ending("failed", f"the run took longer than timeout_s={self.run.record.timeout_s}", "timeout")
        if finished is not None:
            return Ending("completed", answer=finished)
        if isinstance(error, Suspend):
            return Ending("suspended", calls=error.calls)
        if error is None:
            return Ending("failed", "the engine cancelled itself")
        return Ending(
            "failed", reason(error), error.code if isinstance(error, LimitError | OutputError) else _code(error)
        )

    @property
    def has_calls_left(self) -> bool:
        """Whether the engine's limit of model calls allows another one."""
        return self._limit is None or self.run.spent.calls < self._limit

    def close(self) -> None:
        """Publish the remaining deltas, and close the context."""
        if not self.closed:
            self._end_part()
            self.closed = True

    def output(self, ending: Ending) -> list[Block]:
        """Return the run's complete output for this ending, repaired so that the next request is valid."""
        ledger, stored = self.ledger, self.run.output.blocks
        if ending.code == GUARDRAIL:
            ledger = Ledger(stored)
        elif ending.answer is not None:
            ledger = Ledger(stored)
            ledger.flush_assistant(ending.answer)
        elif stored:
            blocks = ledger.blocks()
            if not {id(block) for block in stored} <= {id(block) for block in blocks}:
                # The engine was stopped while `record` was committing: only tool results can have arrived since.
                ledger = Ledger([*stored, *(block for block in blocks if isinstance(block, ToolResult))])
        is_whole = ending.state == "completed" or ending.code in _COMPLETE_ANSWER
        return ledger.repaired(ending.why or "no result came", interrupted=not is_whole)

    # The context of the engine

    @property
    def session(self) -> SessionView:
        return self.run.session

    @property
    def run_id(self) -> str:
        return self.run.run_id

    @property
    def prefix_key(self) -> str:
        return self.run.prefix_key

    @property
    def labels(self) -> Mapping[str, str]:
        return self.run.record.labels

    @property
    def model(self) -> str | None:
        return self.run.record.model

    @property
    def params(self) -> Mapping[str, Any]:
        params = self.run.record.params
        return of_later_step(params) if self.run.output.blocks else params

    @property
    def output_type(self) -> Mapping[str, Any] | None:
        return self.run.record.output

    @property
    def instructions(self) -> str | None:
        return self.run.record.instructions

    @property
    def tools(self) -> Mapping[str, Mapping[str, Any]]:
        return self.run.record.tools

    @property
    def memory(self) -> MemoryAccess | None:
        return None if self.closed else self.run.memory

    @property
    def schedules(self) -> ScheduleAccess | None:
        return None if self.closed else self._callbacks.schedules

    @property
    def files(self) -> OwnedFiles | None:
        return None if self.closed else self._callbacks.files_of(self.run)

    @property
    def calls(self) -> Mapping[str, CallState]:
        return self.run.calls

    @property
    def stand_in(self) -> ToolStandIn | None:
        return self._callbacks.stand_in

    def emit(self, part: str | Block) -> None:
        if self.closed:
            return
        self.run.operation.answers()
        if isinstance(part, Text) and not part.interrupted:
            part = part.text
        if isinstance(part, str):
            if part:
                self._continue(TextDelta)
                self._say(self._characters.add(part))
            return
        if isinstance(part, Thinking):
            self._continue(ThinkingDelta)
            is_last = bool(part.signature or part.redacted)  # the next piece begins another thought
            text = self._characters.add(part.text) + (self._characters.end() if is_last else "")
            end = _storable(Thinking(signature=part.signature, redacted=part.redacted))
            self._think(text, end.signature, end.redacted, final=is_last)
            if is_last:
                self._end_part()
        else:
            part = _storable(part)
            self._continue(None)
            self.ledger.append(part)

    def _say(self, text: str) -> None:
        """Add whole characters to the text, and publish them at the end of the interval."""
        if text:
            self.ledger.append_text(text)
            self._unpublished.append(text)
            if self._timer is None:
                self._tick()

    def _think(
        self, text: str, signature: str | None = None, redacted: str | None = None, *, final: bool = False
    ) -> None:
        """Add whole characters to the thought, and publish them."""
        self.ledger.append_thinking(text, signature, redacted)
        if text:
            self._publish(text, final=final)

    def _continue(self, kind: type[TextDelta | ThinkingDelta] | None) -> None:
        """Count a part that begins: of another kind than the one before it, or of a kind that never continues."""
        if kind is None or kind != self._part:
            self._end_part()
            self._parts += 1
        self._part = kind

    def _end_part(self) -> None:
        """Publish the last delta of the part. If that was published, an empty one says so, without waking readers."""
        if rest := self._characters.end():
            (self._think if self._part is ThinkingDelta else self._say)(rest)
        self._flush(final=True)
        if self._is_shown:
            self._publish("", final=True, quietly=True)
        self._part = None

    def _publish(self, text: str, *, final: bool, quietly: bool = False) -> None:
        if self._part:
            values = {"text": text, "index": self._parts - 1, "final": final}
            self._callbacks.publish_live(self.run, self._part, values, quietly=quietly)
            self._is_shown = not final

    @property
    def _timeline(self) -> Timeline:
        return Timeline(self.add_event, self.run.run_id)  # not kept: it would be a reference cycle

    def event(
        self, name: str, data: Mapping[str, Any] | None = None, *, labels: Mapping[str, str] | None = None
    ) -> None:
        self._timeline.event(name, data, labels=labels)

    def note(self, text: str) -> None:
        self._timeline.note(text)

    def step(self, name: str) -> AbstractContextManager[str]:
        return self._timeline.step(name)

    def annotate(self, **values: Any) -> None:
        plain = {name: plain_json(name, value, MAX_EVENT_BYTES) for name, value in values.items()}
        if not self.closed:
            metadata = {**self.run.metadata, **plain}
            self.run.metadata = freeze({name: value for name, value in metadata.items() if value is not None})

    def add_event(self, kind: type[Event], values: Mapping[str, Any]) -> None:
        """Add an event to the run's next commit; call it from any thread. Does nothing after the run's end."""
        if threading.get_ident() != self._thread:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.add_event, kind, values)
        elif not self.closed:
            self.run.added.append((kind, dict(values)))
            if self._storing is None or self._storing.done():
                self._storing = asyncio.create_task(self._callbacks.store_added(self.run))

    def report(
        self,
        *,
        usage: Usage | None = None,
        stop_reason: str | None = None,
        model: str | None = None,
        tool: str | None = None,
    ) -> None:
        if tool is not None and threading.get_ident() != self._thread:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(partial(self.report, usage=usage, tool=tool))
            return
        if self.closed:
            return
        self._model = model or self._model
        if usage:
            usage = replace(usage, calls=0) if self._announces else usage  # `begin_call` counts the calls
            try:
                usage = self._callbacks.price(self.run, usage, model)
            finally:
                self.run.spend(usage, model=model, tool=tool or "")  # also if pricing fails
        self.stop_reason = stop_reason or self.stop_reason

    def publish(self, kind: type[Event], **values: Any) -> None:
        if not self.closed:
            self._flush()
            self._callbacks.publish_live(self.run, kind, values)

    def begin_call(self, limit: int | None = None) -> None:
        if self.closed:
            raise _ended()
        self._callbacks.check_budget(self.run)
        spent = self.run.spent
        if limit is not None and spent.calls >= limit:
            raise LimitError(f"the run has called the model {limit} times: raise max_steps=", "step_limit")
        self._call, self._announces, self._limit = spent, True, limit
        self._turn_of_call = self.run.turn
        self.run.spend(Usage(calls=1))
        self.stop_reason = None
        self._end_part()
        self._parts = 0
        self.ledger.void()
        self.publish(ModelCallStarted, call=spent.calls)

    def end_call(self, answer: Sequence[Block] = ()) -> NewEvent:
        if answer:
            self._count_call(answer, is_whole=True)
        self._turn_of_call = None
        used = self.run.spent - self._call
        seconds, usage = round(used.seconds, 6), replace(used, seconds=0.0)
        values = {"call": self._call.calls, "seconds": seconds, "usage": usage, "stop_reason": self.stop_reason}
        return ModelCallEnded, values

    def _count_call(self, answer: Sequence[Block], *, is_whole: bool) -> None:
        """Close the open model call, and add the tokens that its provider has not reported.

        Args:
            answer: the whole answer; otherwise what was emitted of it.
            is_whole: see `unreported`. An engine that does not announce its calls may have called no model, so its
                whole answers are not counted.
        """
        turn, self._turn_of_call = self._turn_of_call, None
        reported = self.run.spent - self._call
        is_reported = reported.input_tokens or reported.output_tokens
        if turn is None or (is_whole and (is_reported or not self._announces)):
            return
        if not answer:
            stored = {id(block) for block in self.run.output.blocks}
            answer = [block for block in self.ledger.blocks() if id(block) not in stored]
        answer = [block for block in answer if block.role == "assistant"]
        counted = self._callbacks.count_call(self.run, turn, answer)
        usage = unreported(reported, counted, is_whole=is_whole)
        with suppress(EngineError):  # without a price, it has no cost
            usage = self._callbacks.price(self.run, usage, self._model)
        self.run.spend(usage, model=self._model)

    async def record(
        self,
        *blocks: Block,
        events: Sequence[NewEvent] = (),
        calls: Mapping[str, CallState | None] | None = None,
        suspends: bool = False,
    ) -> Turn:
        if self.closed:
            raise _ended()
        self._end_part()
        return await self._callbacks.record(self, list(map(_storable, blocks)), events, calls or {}, suspends=suspends)

    async def store_input(self, blocks: Sequence[Block]) -> None:
        if self.closed:
            raise _ended()
        await self._callbacks.store_input(self, list(map(_storable, blocks)))

    async def make_room(self, *, too_long: bool = False) -> Turn:
        if self.closed:
            raise _ended()
        return await self._callbacks.make_room(self.run, too_long=too_long)

    # Publishing

    def _tick(self) -> None:
        """Publish the collected text, and start the next interval; stop if there was none."""
        self._timer = None
        if self._unpublished:
            self._flush()
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._tick)

    def _flush(self, *, final: bool = False) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unpublished:
            text, self._unpublished = "".join(self._unpublished), []
            self._publish(text, final=final)


_LEFT_BEHIND: set[asyncio.Future[Any]] = set()
"""Abandoned work, referenced here so that it is not garbage-collected while it runs."""


def leave_behind(work: asyncio.Future[Any]) -> None:
    """Abandon work that ignores its cancellation; its result and its errors are dropped."""
    _LEFT_BEHIND.add(work)
    work.add_done_callback(_forget)


def _forget(work: asyncio.Future[Any]) -> None:
    _LEFT_BEHIND.discard(work)
    if not work.cancelled():
        work.exception()  # marks the exception as retrieved, so asyncio does not log it


async def checked(answer: Callable[[], Awaitable[Sequence[Block]]]) -> list[Block]:
    """Return an engine's answer.

    Raises:
        EngineError: the engine returned no answer, or one that cannot be stored; or it raised SystemExit or
            KeyboardInterrupt.
    """
    try:
        blocks = await answer()
        output = list(blocks)
    except (SystemExit, KeyboardInterrupt) as error:
        raise EngineError(f"the engine raised {type(error).__name__}") from error
    if isinstance(blocks, NoOutput):
        return []
    if not output or not all(isinstance(block, Block) and block.role in ("assistant", "tool") for block in output):
        raise EngineError("the engine returned no answer: it must return blocks of the assistant or of tools")
    has_text = any(isinstance(block, Text) for block in output)  # the usual case needs no repair
    if not has_text and not repair(output, why="", interrupted=False):
        raise EngineError("the engine returned thoughts but no answer")
    return list(map(_storable, output))


def _ended() -> EngineError:
    return EngineError("the run has ended: nothing can be added to it")


def reason(error: BaseException) -> str:
    """Return an error as text that can be stored: the message of turnwise's errors, else type and message."""
    return whole(str(error) if isinstance(error, TurnwiseError) else f"{type(error).__name__}: {error}")


def _code(error: BaseException) -> str | None:
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)


REFUSED = "refused"
"""The code of a run whose provider refused the content of the conversation."""

AWAY = "away"
"""The code of a run whose provider cannot be reached, or allows no more requests now."""

GUARDRAIL = "guardrail"
"""The code of a run that a guardrail stopped: the answer that a model was giving is not kept."""

_COMPLETE_ANSWER = ("output_invalid", "output_refused")
"""The codes of runs that failed although the model completed its answer."""

_CODES: Mapping[type[TurnwiseError], str] = {
    WindowOverflowError: "window",
    ContextOverflowError: "window",
    StrategyError: "compaction",
    CompactionError: "compaction",
    GuardrailError: GUARDRAIL,
    RequestRefusedError: REFUSED,
    ProviderAwayError: AWAY,
    UnsupportedBlockError: REFUSED,
}


_Block = TypeVar("_Block", bound=Block)


def _storable(block: _Block) -> _Block:
    """Return the block with `whole` texts. Raises EngineError if it cannot be stored even so."""
    if isinstance(block, Text) and block.text.isascii():
        return block
    with suppress(ValueError):
        encode(block)
        return block
    values = {name: whole_json(value) for name, value in block if name != "kind"}
    if isinstance(block, ToolResult):
        values["blocks"] = tuple(map(_storable, block.blocks))
    try:
        block = block.model_copy(update=values)
        encode(block)
    except ValueError as error:
        raise EngineError(f"the engine returned a {block.kind} block that cannot be stored: {error}") from error
    return block
