"""Worlds for seeded interleavings of `SessionCore`: a store that takes its time and fails, engines of every kind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from turnwise.actors.inference.engine import RunContext, SessionView
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.memory.conversation.blocks import AnyBlock, Block, Text, Thinking, ToolResult, ToolUse
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing.acknowledged import prompts_of
from turnwise.testing.faults import FaultPlan, Faults
from turnwise.testing.faulty_store import FaultyStore
from turnwise.testing.schedules import explore, inline, pause, spread

__all__ = ["SESSION", "DawdlingStore", "WildEngine", "World", "explore", "inline", "pause", "spread", "texts"]

SESSION = "session"

texts = prompts_of


class DawdlingStore(FaultyStore):
    """A store whose verbs take random time before and after, and may fail before or after they act."""

    def __init__(self, random: random.Random, inner: Any = None) -> None:
        faults = Faults()
        faults.dice = random
        super().__init__(inner or InMemoryStore(), faults, paces=True)

    @property
    def fail_rate(self) -> float:
        return self.faults.plan.rates.get("error", 0.0)

    @fail_rate.setter
    def fail_rate(self, rate: float) -> None:
        self.faults.plan = FaultPlan(rates={"error": rate, "unanswered": min(rate, 1 - rate)})


class WildEngine:
    """Answers, raises, says nothing, thinks only, calls tools that nobody runs, ignores cancels, as the dice fall."""

    def __init__(self, random: random.Random, kinds: Sequence[str] = ("answer",)) -> None:
        self._random = random
        self._kinds = kinds
        self.given: dict[str, tuple[Block, ...]] = {}
        """By run id, what each run was given."""

    def build(self, session: SessionView) -> WildEngine:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        assert context.run_id not in self.given, "a run is given to the engine once"
        self.given[context.run_id] = turn.blocks
        kind = self._random.choice(self._kinds)
        if kind == "nothing":
            return []
        if kind == "thoughts":
            context.emit(Thinking(text="hm"))
            return [Thinking(text="hm")]
        text = f"answer to {context.run_id}"
        for word in text.split(" "):
            try:
                await pause(self._random)
            except asyncio.CancelledError:
                if kind != "stubborn":
                    raise
                await asyncio.sleep(30)
                context.emit("too late")
                return [Text(text="too late")]
            context.emit(f"{word} ")
        if kind == "raise":
            raise ValueError("the engine broke")
        if kind == "tools":
            calls = [ToolUse(call_id=f"{context.run_id}-{n}", name="look") for n in range(self._random.randrange(1, 3))]
            for call in calls:
                context.emit(call)
            await pause(self._random)
            return [Text(text=text), *calls, ToolResult(call_id=calls[0].call_id, text="seen"), Text(text="done")]
        return [Text(text=text)]


class World:
    """One session in one schedule, with the answers that its callers got."""

    def __init__(self, seed: int, *, kinds: Sequence[str] = ("answer",), config: SessionConfig | None = None) -> None:
        self.random = random.Random(seed)
        self.store = DawdlingStore(self.random)
        self.engine = WildEngine(self.random, kinds)
        self.config = config or SessionConfig(cancel_grace_s=0.5, idle_s=1e9)
        self.core = self.new_core()
        self.ids = 0

    def new_core(self) -> SessionCore:
        """Return another core of the same session, as an actor on another node would make it."""
        return SessionCore(
            SessionKey(SESSION),
            self.store,
            self.engine,
            self.config,
            clock=lambda: asyncio.get_running_loop().time(),
            off_loop=inline,
        )

    async def create(self) -> None:
        await self.store.inner.create(SessionRecord(session_id=SESSION))

    def new_id(self, kind: str) -> str:
        self.ids += 1
        return f"{kind}{self.ids}"

    async def pause(self) -> None:
        await pause(self.random)
