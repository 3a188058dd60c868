"""A long-term memory for tests of sessions on virtual time, and a stage for sessions that have some."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from test_tool_loop import Stage

from schedules import SESSION, inline
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.session.core import SessionCore
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.longterm.base import MemoryItem, Scope
from windows.stage import Talker


class Book:
    """Keeps items by id, refuses those whose texts have words of `refuses`, and fails while `fails` is set."""

    def __init__(self, *, read_only: bool = False, delay_s: float = 0.01) -> None:
        self.items: dict[str, MemoryItem] = {}
        self.given: list[str] = []
        self.scopes: set[Scope] = set()
        self.gone: set[str] = set()
        self.fails: Exception | None = None
        self.refuses: dict[str, Exception] = {}
        """By a word of the text."""
        self.read_only = read_only
        self.delay_s = delay_s
        self.held = asyncio.Event()
        self.held.set()

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        assert not self.read_only
        self.scopes.add(scope)
        self.given += [item.id for item in items]
        await asyncio.sleep(self.delay_s)
        await self.held.wait()
        if self.fails:
            raise self.fails
        for item in items:
            for word, error in self.refuses.items():
                if word in item.text:
                    raise error
        for item in items:
            if item.id not in self.gone:
                assert self.items.setdefault(item.id, item) == item, "one id, two items"
        return [item.id for item in items]

    async def recall(self, scope: Scope, query: str, *, limit: int = 10, **filters: Any) -> Sequence[MemoryItem]:
        self.asked = filters
        if self.fails:
            raise self.fails
        words = set(query.split())
        return [item for item in self.items.values() if words & set(item.text.split())][:limit]

    async def update(self, scope: Scope, id: str, text: str | None = None, **changes: Any) -> bool:
        return False

    async def forget(self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None) -> int:
        if self.fails:
            raise self.fails
        sources = {name: item.source for name, item in self.items.items()}
        if ids is None:
            ids = [
                name
                for name, source in sources.items()
                if scope.session_id in (None, source.session_id) and turn_index in (None, source.turn_index)
            ]
        self.gone |= set(ids)
        return sum(self.items.pop(name, None) is not None for name in ids)

    async def close(self) -> None:
        pass

    @property
    def turns(self) -> list[int | None]:
        """Of which turns it has items, in the order in which it got them."""
        return [item.source.turn_index for item in self.items.values()]

    @property
    def said(self) -> str:
        return "\n".join(item.text for item in self.items.values())


class MemoryStage(Stage):
    """A stage whose sessions have memories."""

    def __init__(self, *memories: Any, engine: Any = None, **settings: Any) -> None:
        self.memories = memories
        self.working: Any = None
        super().__init__(engine or Talker(), **settings)

    @classmethod
    async def opened(cls, *memories: Any, agent: str | None = None, **settings: Any) -> MemoryStage:
        stage = cls(*memories, **settings)
        await stage.store.create(SessionRecord(session_id=SESSION, user_id="ada", agent=agent))
        return stage

    @property
    def slots(self) -> list[MemorySlot]:
        return [MemorySlot(memory=memory, name=f"memory {n}", section=None) for n, memory in enumerate(self.memories)]

    def new_core(self) -> SessionCore:
        self.core = SessionCore(
            SessionKey(SESSION, "ada"),
            self.store,
            self.engine,
            self.config,
            overflow=self.overflow,
            memories=self.slots,
            working=self.working,
            clock=asyncio.get_running_loop().time,
            off_loop=inline,
        )
        return self.core

    async def say(self, *prompts: Any, **settings: Any) -> Turn:
        """Run a turn to its end."""
        run_id = f"run-{prompts}-{settings}"
        await self.core.admission.start(prompts, run_id=run_id, **settings)
        outcome = await self.core.reads.wait(run_id)
        assert outcome.turn, outcome
        return outcome.turn

    async def events_of(self, kind: type[Any]) -> list[Any]:
        return [event for event in await self.events() if isinstance(event, kind)]
