"""An engine without a provider, which fails in the ways that models fail."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import cast

from turnwise.actors.inference.engine import InferenceRunner, SessionView, StepContext
from turnwise.actors.inference.tools.loop import ToolLoop
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.memory.conversation.blocks import AnyBlock, Text, Thinking, ToolUse, User
from turnwise.memory.conversation.transcript import messages_of
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.providers.validation import ANTHROPIC, CHAT, RESPONSES, check
from turnwise.testing.crash import crash
from turnwise.testing.faults import Faults, Kind
from turnwise.testing.schedules import pause

KINDS: tuple[Kind, ...] = (
    *("raise", "hang", "cut", "malformed", "nothing", "thoughts", "dangling", "stubborn", "exit", "crash"),
)
"""The faults of an engine."""

_CALL = re.compile(r"\bcall:(\w+)")


class FaultyEngine:
    """Streams `answer to <prompt>`, word by word. With tools, a prompt that says `call:name` has it called first.

    Each call of the model is a point of faults, `engine.run`. A conversation that a provider would refuse is refused.

    Args:
        faults: what goes wrong. Travels to the session's process with the engine: give it a journal to count there.
        tools: the tools it may call.
        late_s: how long it works on after a cancel that it ignores, in seconds.
        word_s: the time between words, in seconds; random, up to 0.02 s, if left out.
        for_real: a crash kills this operating system process, if no process is simulated here.
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
        said = "".join(block.text for block in turn.new_blocks[-1:] if isinstance(block, User))
        if self._tools and (wanted := _CALL.search(said)):
            return [ToolUse(call_id=f"{context.run_id}-1", name=wanted[1], input={})]
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
                raise ConnectionError("injected: the stream broke off behind a call")
            case "crash":
                await crash(for_real=self._for_real)

    async def _between_words(self) -> None:
        if self._word_s is None:
            await pause(self.faults.dice)
        else:
            await asyncio.sleep(self._word_s)


def _prompts(turn: Turn) -> list[str]:
    return [block.text for block in turn.new_blocks if isinstance(block, User)]
