"""Middleware: wraps each call of a model, to log it or to change its request."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from turnwise.actors.inference.engine import InferenceRunner, StepContext
from turnwise.memory.conversation.blocks import AnyBlock, Block, System, ToolResult, ToolUse
from turnwise.memory.conversation.turns import Turn


@runtime_checkable
class Middleware(Protocol):
    """Wraps each call of the model. Travels to the session's process with its engine, so it pickles."""

    async def run(self, turn: Turn, context: StepContext, runner: InferenceRunner) -> Sequence[AnyBlock]:
        """Return the answer of `runner.run(turn, context)`, which is the rest of the chain, or another in its place.

        `turn.showing(blocks)` is the turn with other blocks: the model sees them, the history does not change. Let
        asyncio's cancellation through. Raising fails the run.
        """


class _Link:
    """A middleware with the rest of the chain: a runner like any other."""

    def __init__(self, middleware: Middleware, runner: InferenceRunner) -> None:
        self._middleware = middleware
        self._runner = runner

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        return await self._middleware.run(turn, context, self._runner)


def wrap(runner: InferenceRunner, middleware: Sequence[Middleware]) -> InferenceRunner:
    """Return the runner within the middleware; the first listed is outermost."""
    for outer in reversed(middleware):
        runner = _Link(outer, runner)
    return runner


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """Shows the model a system prompt: one, at the head. Doing so twice is doing so once."""

    text: str
    if_present: Literal["replace", "keep"] = "replace"
    """What becomes of one that the conversation has."""

    async def run(self, turn: Turn, context: StepContext, runner: InferenceRunner) -> Sequence[AnyBlock]:
        """See `Middleware`."""
        present = [block for block in turn.blocks if isinstance(block, System)]
        prompt = present[-1] if present and self.if_present == "keep" else System(text=self.text)
        rest = [block for block in turn.blocks if not isinstance(block, System)]
        return await runner.run(turn.showing([prompt, *rest]), context)


@dataclass(frozen=True, slots=True)
class LogCalls:
    """Logs each call of the model: ids, sizes and times, never what is said."""

    logger: str = "turnwise.calls"
    level: int = logging.INFO

    async def run(self, turn: Turn, context: StepContext, runner: InferenceRunner) -> Sequence[AnyBlock]:
        """See `Middleware`."""
        log, began = logging.getLogger(self.logger), time.monotonic()
        about = (context.session.session_id, context.run_id, len(turn.blocks))
        try:
            answer = await runner.run(turn, context)
        except BaseException as error:
            took = time.monotonic() - began
            log.log(self.level, "session %s run %s: %d blocks, %s after %.3f s", *about, type(error).__name__, took)
            raise
        took = time.monotonic() - began
        log.log(self.level, "session %s run %s: %d blocks, %d back in %.3f s", *about, len(answer), took)
        return answer


@dataclass(frozen=True, slots=True)
class ReorderResults:
    """Shows the model each tool result right behind the message that made its call, in the order of declaration.

    For histories that came from elsewhere: a session's own are in this order. Where a result is missing, doubled or
    nobody's, the blocks stay as they are, and the validator names the fault.
    """

    async def run(self, turn: Turn, context: StepContext, runner: InferenceRunner) -> Sequence[AnyBlock]:
        """See `Middleware`."""
        return await runner.run(turn.showing(_reordered(turn.blocks)), context)


def _reordered(blocks: Sequence[Block]) -> Sequence[Block]:
    uses = [block.call_id for block in blocks if isinstance(block, ToolUse)]
    found = [block for block in blocks if isinstance(block, ToolResult)]
    results = {block.call_id: block for block in found}
    if len(set(uses)) < len(uses) or len(results) < len(found) or set(uses) != set(results):
        return blocks
    reordered: list[Block] = []
    waiting: list[Block] = []
    for block in blocks:
        if block.role != "assistant":
            reordered, waiting = [*reordered, *waiting], []
        if not isinstance(block, ToolResult):
            reordered.append(block)
        if isinstance(block, ToolUse):
            waiting.append(results[block.call_id])
    return [*reordered, *waiting]
