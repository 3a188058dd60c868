"""Middleware: wraps each model call, for example to log it or to change its request."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from turnwise.actors.inference.engine import ASIDE, InferenceRunner, StepContext
from turnwise.memory.conversation.blocks import AnyBlock, Block, System, ToolResult, ToolUse
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.turns import Turn


@runtime_checkable
class Middleware(Protocol):
    """Wraps each model call. It is pickled to the session's process together with its engine."""

    async def run(self, turn: Turn, context: StepContext, runner: InferenceRunner) -> Sequence[AnyBlock]:
        """Return an answer: that of `runner.run(turn, context)`, which is the rest of the chain, or another one.

        To show the model other blocks, pass `turn.showing(blocks)` to the runner; the history does not change. With
        `turn.showing(blocks, store=True)` it does, before the model is asked: the run's turn and later ones have these
        blocks, and those that are new belong to the turn's prompts. What the run has answered so far must stay at the
        end. A middleware is called for each step, so look whether the turn has the blocks already. Do not suppress
        asyncio's cancellation. An exception fails the run.
        """


class _Link:
    """A middleware with the rest of the chain, as a runner."""

    def __init__(self, middleware: Middleware, runner: InferenceRunner) -> None:
        self._middleware = middleware
        self._runner = runner

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        return await self._middleware.run(turn, context, self._runner)


class _Storing:
    """The innermost link, which stores the blocks of a turn that is to be stored, before the model gets them."""

    def __init__(self, runner: InferenceRunner) -> None:
        self._runner = runner

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        if turn.is_to_store:
            await context.store_input(turn.blocks)
        return await self._runner.run(turn, context)


def wrap(runner: InferenceRunner, middleware: Sequence[Middleware]) -> InferenceRunner:
    """Return the runner within the middleware; the first listed is outermost."""
    if middleware:
        runner = _Storing(runner)
    for outer in reversed(middleware):
        runner = _Link(outer, runner)
    return runner


@dataclass(frozen=True)
class SystemPrompt:
    """Puts one system prompt at the beginning of the request. Idempotent.

    Questions of turnwise's own, such as for a title, a summary or facts, keep their own.
    """

    text: str
    if_present: Literal["replace", "keep"] = "replace"
    """What happens to a system prompt in the conversation."""
    store: bool = False
    """Whether the conversation has it from then on, in place of others."""

    async def run(self, turn: Turn, context: StepContext, runner: InferenceRunner) -> Sequence[AnyBlock]:
        """See `Middleware`."""
        if context.run_id == ASIDE:
            return await runner.run(turn, context)
        present = [block for block in turn.blocks if isinstance(block, System)]
        prompt = present[-1] if present and self.if_present == "keep" else System(text=self.text)
        rest = [block for block in turn.blocks if not isinstance(block, System)]
        return await runner.run(turn.showing([prompt, *rest], store=self.store), context)


@dataclass(frozen=True)
class LogCalls:
    """Logs ids, sizes and duration of each model call, never texts.

    The processes of sessions log from the level on that the logger `turnwise` had in the program that started them, so
    `logging.basicConfig(level=logging.INFO)` there shows these lines, which also have `user_id`,
    `session_id` and `run_id`.
    """

    logger: str = "turnwise.calls"
    level: int = logging.INFO

    async def run(self, turn: Turn, context: StepContext, runner: InferenceRunner) -> Sequence[AnyBlock]:
        """See `Middleware`."""
        log, began = logging.getLogger(self.logger), time.monotonic()
        key = SessionKey(context.session.session_id, context.session.user_id)
        about, ids = (key.full_name, context.run_id, len(turn.blocks)), {**key._asdict(), "run_id": context.run_id}
        try:
            answer = await runner.run(turn, context)
        except BaseException as error:
            took = time.monotonic() - began
            text = "session %s run %s: %d blocks, %s after %.3f s"
            log.log(self.level, text, *about, type(error).__name__, took, extra=ids)
            raise
        took = time.monotonic() - began
        text = "session %s run %s: %d blocks, %d back in %.3f s"
        log.log(self.level, text, *about, len(answer), took, extra=ids)
        return answer


@dataclass(frozen=True)
class ReorderResults:
    """Moves each tool result to directly after the message with its call, in the order of the calls.

    For imported histories; the session's own histories have this order. If a result is missing, repeated or without a
    call, nothing is moved, and the validator reports the error.
    """

    async def run(self, turn: Turn, context: StepContext, runner: InferenceRunner) -> Sequence[AnyBlock]:
        """See `Middleware`."""
        return await runner.run(turn.showing(_reordered(turn.blocks)), context)


def _reordered(blocks: Sequence[Block]) -> Sequence[Block]:
    uses = [block.call_id for block in blocks if isinstance(block, ToolUse)]
    tool_results = [block for block in blocks if isinstance(block, ToolResult)]
    results = {block.call_id: block for block in tool_results}
    if len(set(uses)) < len(uses) or len(results) < len(tool_results) or set(uses) != set(results):
        return blocks
    reordered: list[Block] = []
    waiting: list[Block] = []
    for block in blocks:
        if block.role != "assistant":
            reordered += waiting
            waiting = []
        if not isinstance(block, ToolResult):
            reordered.append(block)
        if isinstance(block, ToolUse):
            waiting.append(results[block.call_id])
    return [*reordered, *waiting]
