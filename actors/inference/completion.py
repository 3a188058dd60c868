"""Asks an engine for a single completion outside of any run, such as a summary or a list of facts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

from turnwise.actors.inference.attempt import checked, leave_behind
from turnwise.actors.inference.engine import ASIDE, Closable, EngineBuilder, NewEvent, SessionView, Structured
from turnwise.errors import EngineError, SummaryRefusedError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import Block, Text
from turnwise.memory.conversation.calls.tool_calls import CallState
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.output_type import OutputType
from turnwise.memory.conversation.turns import Turn, TurnRecord
from turnwise.memory.conversation.usage import Usage, unreported
from turnwise.memory.longterm.memory_access import MemoryAccess
from turnwise.memory.longterm.model_usage import Bill
from turnwise.memory.tokens.counter import RoughCounter
from turnwise.memory.values.frozen_json import freeze

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


async def ask(
    builder: EngineBuilder,
    request: Sequence[Block],
    context: CompletionContext,
    off_loop: Callable[..., Awaitable[Any]],
    grace_s: float,
    *,
    schema: Mapping[str, Any] | None = None,
) -> list[Block]:
    """Return the engine's answer to a request. Builds a runner and closes it; use `within` for a timeout.

    Args:
        schema: the JSON schema of the answer, which is not checked. An engine that is not `Structured` does not get it.

    Raises:
        Exception: any error of the engine.
    """
    if schema is not None and isinstance(builder, Structured):
        builder, context.output_type = builder.answering(schema), OutputType(schema=freeze(schema), retries=None).record
    shown = Turn(context.session.session_id, TurnRecord(index=0), BlockCache()).showing(request)
    return await ask_turn(builder, shown, context, off_loop, grace_s)


async def ask_turn(
    builder: EngineBuilder,
    turn: Turn,
    context: CompletionContext,
    off_loop: Callable[..., Awaitable[Any]],
    grace_s: float,
) -> list[Block]:
    """Return the engine's answer to a turn; see `ask`."""
    runner, request = await off_loop(builder.build, context.session), turn.blocks
    answer: list[Block] | None = None
    try:
        answer = await checked(lambda: runner.run(turn, context))
        return answer
    except asyncio.CancelledError:
        context.count(request, context.output, is_whole=False)
        raise
    finally:
        if answer is not None or context.output:
            context.count(request, answer or context.output, is_whole=answer is not None)
        context.count_call()
        if isinstance(runner, Closable):
            await _close(runner, grace_s)


class CompletionContext:
    """The context of an engine that is asked for one completion: it counts usage and ignores events."""

    def __init__(self, session: SessionView, bill: Bill) -> None:
        self.session = session
        self.run_id = ASIDE
        self.prefix_key = ""
        self.labels: Mapping[str, str] = {}
        self.model: str | None = None
        self.params: Mapping[str, Any] = {}
        self.output_type: Mapping[str, Any] | None = None
        self.instructions: str | None = None
        self.tools: Mapping[str, Mapping[str, Any]] = {}
        self.calls: Mapping[str, CallState] = {}
        self.memory: MemoryAccess | None = None
        self.stop_reason: str | None = None
        self.output: list[Block] = []
        """What was emitted of the answer."""
        self._reported = Usage()
        self._model: str | None = None
        self._is_counted = False
        self._bill = bill
        self._is_billed = False
        """Whether the model call is billed."""

    def emit(self, part: str | Block) -> None:
        """Keep it for `count`: a completion has no followers."""
        self.output.append(Text(text=part) if isinstance(part, str) else part)

    def count(self, request: Sequence[Block], answer: Sequence[Block], *, is_whole: bool) -> None:
        """Bill the tokens that the provider has not reported, once; see `unreported`."""
        if self._is_counted:
            return
        self._is_counted, counter = True, RoughCounter()
        input_tokens, output_tokens = (sum(map(counter.count, blocks)) for blocks in (request, answer))
        usage = unreported(self._reported, (input_tokens, output_tokens), is_whole=is_whole)
        if usage.counted_tokens:
            with suppress(EngineError):  # without a price, it has no cost
                self._bill(replace(usage, calls=self._uncounted_calls()), self._model)

    def report(
        self,
        *,
        usage: Usage | None = None,
        stop_reason: str | None = None,
        model: str | None = None,
        tool: str | None = None,
    ) -> None:
        self.stop_reason = stop_reason or self.stop_reason
        self._model = model or self._model
        if usage:
            self._reported += usage
            self._bill(replace(usage, calls=self._uncounted_calls()), model)

    def count_call(self) -> None:
        """Bill the model call, if no report has billed it, since it failed before the first one."""
        if calls := self._uncounted_calls():
            self._bill(Usage(calls=calls), self._model)

    def _uncounted_calls(self) -> int:
        calls, self._is_billed = int(not self._is_billed), True
        return calls

    def publish(self, kind: type[Event], **values: Any) -> None:
        """Ignore it: a completion has no followers."""

    def begin_call(self, limit: int | None = None) -> None:
        """Do nothing: without tools there is only one model call."""

    def end_call(self, answer: Sequence[Block] = ()) -> NoReturn:
        raise SummaryRefusedError("tool_call", "the model called a tool instead of answering with text")

    async def record(
        self,
        *blocks: Block,
        events: Sequence[NewEvent] = (),
        calls: Mapping[str, CallState | None] | None = None,
        suspends: bool = False,
    ) -> NoReturn:
        self.end_call()

    async def store_input(self, blocks: Sequence[Block]) -> None:
        """Do nothing: the request belongs to no conversation."""

    async def make_room(self, *, too_long: bool = False) -> NoReturn:
        self.end_call()


async def within(work: Callable[[], Awaitable[Result]], timeout_s: float, grace_s: float) -> Result:
    """Return the result of `work` within `timeout_s`; if it does not stop then, abandon it after `grace_s`.

    Args:
        work: not called if the caller is cancelled before it begins.

    Raises:
        TimeoutError: no result within `timeout_s`.
        EngineError: the work cancelled itself, or raised SystemExit or KeyboardInterrupt.
    """
    task = asyncio.ensure_future(_guarded(work))
    try:
        await asyncio.wait({task}, timeout=timeout_s)
        if task.cancelled():
            raise EngineError("the call cancelled itself")
        if task.done():
            return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=grace_s)
        if not task.done():
            leave_behind(task)
    raise TimeoutError(f"no result within {timeout_s:g} s")


async def _guarded(work: Callable[[], Awaitable[Result]]) -> Result:
    try:
        return await work()
    except (SystemExit, KeyboardInterrupt) as error:
        raise EngineError(f"the call raised {type(error).__name__}") from error


async def _close(runner: Closable, grace_s: float) -> None:
    """Close the runner. An error is logged, not raised, since the answer is complete."""
    try:
        await within(runner.close, grace_s, grace_s)
    except Exception:  # noqa: BLE001 - logged; the answer is complete
        _log.exception("%s could not be closed after a completion", type(runner).__name__)
