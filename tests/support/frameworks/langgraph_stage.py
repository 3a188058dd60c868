"""A session whose engine is a graph, without Ray, for the tests of LangGraph."""

from __future__ import annotations

import asyncio
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver

from schedules import SESSION, inline
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.memory.conversation.blocks import AnyBlock
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Outcome
from turnwise.memory.stores.in_memory import InMemoryStore


class Stage:
    """A store with one session, and the cores that own it one after the other."""

    def __init__(self, engine: Any, **settings: Any) -> None:
        self.store: Any = InMemoryStore()
        self.engine = engine
        self.config = SessionConfig(**settings)
        self.core: SessionCore
        self.new_core()

    def new_core(self, user_id: str = DEFAULT_USER) -> SessionCore:
        now = asyncio.get_running_loop().time
        self.core = SessionCore(
            SessionKey(SESSION, user_id), self.store, self.engine, self.config, clock=now, off_loop=inline
        )
        return self.core

    async def begin(self, prompt: str = "go", *, run_id: str = "run", **settings: Any) -> None:
        if run_id == "run":
            await self.store.create(SessionRecord(session_id=SESSION))
        await self.core.admission.start([prompt], run_id=run_id, **settings)

    async def run(self, prompt: str = "go", *, run_id: str = "run", **settings: Any) -> Outcome:
        await self.begin(prompt, run_id=run_id, **settings)
        return await self.outcome(run_id)

    async def outcome(self, run_id: str = "run") -> Outcome:
        return await self.core.reads.wait(run_id)

    async def events(self) -> list[Event]:
        return (await self.core.reads.events())[0]

    async def until_it_waits(self, run_id: str = "run") -> list[Any]:
        """Wait for calls to decide; return them."""
        while (run := await self.core.reads.run(run_id)).state != "awaiting_approval":
            assert run.is_open, run.why
            await asyncio.sleep(0.005)
        return list(await self.core.reads.pending(run_id))

    async def decide(self, call_id: str, verdict: Any, run_id: str = "run", **decision: Any) -> None:
        await self.core.approvals.decide(run_id, call_id, ApprovalDecision(verdict=verdict, **decision))


def output(outcome: Outcome) -> tuple[AnyBlock, ...]:
    assert outcome.run.state == "completed", outcome.run.why
    assert outcome.turn
    return outcome.turn.output


def copied(saver: InMemorySaver) -> InMemorySaver:
    """Return a saver with the same checkpoints, which the process that goes on does not reach."""
    twin = InMemorySaver()
    for thread, spaces in saver.storage.items():
        for space, checkpoints in spaces.items():
            twin.storage[thread][space] = dict(checkpoints)
    twin.writes.update({key: dict(checkpoints) for key, checkpoints in saver.writes.items()})
    twin.blobs.update(saver.blobs)
    return twin
