"""`FaultyEngine`: an engine without a model, which fails in the ways that models fail."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import cast

from turnwise.actors.inference.engine import InferenceRunner, SessionView, StepContext
from turnwise.actors.inference.tools.loop import ToolLoop
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import tool
from turnwise.memory.conversation.blocks import AnyBlock, Text, Thinking, ToolUse, User
from turnwise.memory.conversation.transcript import messages_of
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.providers.validation import ANTHROPIC, CHAT, RESPONSES, check
from turnwise.testing.faults import Faults, Kind
from turnwise.testing.process import crash
from turnwise.testing.schedules import pause

KINDS: tuple[Kind, ...] = (
    *("raise", "hang", "cut", "malformed", "nothing", "thoughts", "dangling", "stubborn", "exit", "crash"),
)
"""The faults of an engine."""

_CALL = re.compile(r"\bcall:(\w+)")


@tool
async def look() -> str:
    """Look around."""
    await asyncio.sleep(0.02)
    return "seen"


class FaultyEngine:
    """Streams `answer to <prompt>`, word by word. If it has tools, a prompt with `call:name` makes it call that tool.

    An agent gets a task.

    Each model call is a point of faults, `engine.run`. It raises if a provider would refuse the conversation.

    Args:
        faults: the faults. They are pickled to the session's process with the engine, so count them by a journal.
        tools: the tools that it may call.
        late_s: how long it continues after a cancel that it ignores, in seconds.
        word_s: the pause between words, in seconds; if omitted, random, up to 0.02 s.
        for_real: whether a crash without a simulated process kills this operating system process.
    """

    def __init__(
        self,
        faults: Faults,
        *,
        tools: ToolRegistry | None = None,
        late_s: float = 30.0,
        word_s: float | None = None,
        for_real: bool = False,
    ) -> None:
        self.faults = faults
        self._tools = tools
        self._late_s = late_s
        self._word_s = word_s
        self._for_real = for_real

    def build(self, session: SessionView) -> InferenceRunner:
        return ToolLoop(self, self._tools) if self._tools else self

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        messages = messages_of(turn.blocks)
        for rules in (CHAT, RESPONSES, ANTHROPIC):
            check(messages, rules)
        kind = self.faults.strike("engine.run", *KINDS)
        match kind:
            case "raise":
                raise ValueError("injected: the engine broke")
            case "exit":
                raise SystemExit(3)
            case "hang":
                await asyncio.Event().wait()
            case "nothing":
                return []
            case "malformed":
                return cast(Sequence[AnyBlock], ["no block", None])
            case "thoughts":
                return [Thinking(text="hm")]
        prompt = "".join(block.text for block in turn.new_blocks[-1:] if isinstance(block, User))
        if self._tools and (call := _CALL.search(prompt)):
            called = self._tools.find(call[1])
            task = {"task": f"the task of {context.run_id}"} if called and called.agent else {}
            return [ToolUse(call_id=f"{context.run_id}-1", name=call[1], input=task)]
        return await self._answer(" ".join(["answer to", *_prompts(turn)]), context, kind)

    async def _answer(self, text: str, context: StepContext, kind: Kind | None) -> Sequence[AnyBlock]:
        words = text.split(" ")
        for number, word in enumerate(words):
            context.emit(f"{word} " if number + 1 < len(words) else word)
            if number == 1:
                await self._break(kind, context)
            try:
                await self._between_words()
            except asyncio.CancelledError:
                if kind != "stubborn":
                    raise
                await asyncio.sleep(self._late_s)
                context.emit("too late")
                return [Text(text="too late")]
        return [Text(text=text)]

    async def _break(self, kind: Kind | None, context: StepContext) -> None:
        match kind:
            case "cut":
                raise ConnectionError("injected: the stream broke off")
            case "dangling":
                context.emit(ToolUse(call_id=f"{context.run_id}-open", name="look", input={}))
                raise ConnectionError("injected: the stream broke off after a call")
            case "crash":
                await crash(for_real=self._for_real)

    async def _between_words(self) -> None:
        if self._word_s is None:
            await pause(self.faults.dice)
        else:
            await asyncio.sleep(self._word_s)


def _prompts(turn: Turn) -> list[str]:
    return [block.text for block in turn.new_blocks if isinstance(block, User)]
