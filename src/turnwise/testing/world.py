"""`World`: a simulated session with injected faults, and a caller that repeats requests until they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, cast

from turnwise.actors.client.shared.provided_result import provided
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.memory.attached import MemorySlot
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.state.alarm import NO_ALARM, Alarm
from turnwise.actors.session.state.outbox import NO_OUTBOX, WebhookOutbox
from turnwise.actors.session.state.quota_book import QuotaBook
from turnwise.errors import (
    CorruptRecordError,
    SessionFencedError,
    SessionLostError,
    SessionRevertedError,
    StoreClosedError,
    StoreError,
)
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision, PendingCall
from turnwise.memory.conversation.runs import Until
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.strategies.strategy import OverflowStrategy
from turnwise.testing.acknowledged import Acknowledged
from turnwise.testing.audit import Audit, audit
from turnwise.testing.faults import Faults
from turnwise.testing.faulty_engine import FaultyEngine
from turnwise.testing.faulty_store import FaultyStore
from turnwise.testing.process import Process
from turnwise.testing.schedules import inline

AGAIN_S = 0.01
"""The pause before the caller repeats a request, in seconds."""


class World:
    """One session on a `VirtualLoop`: a core in a simulated process, with a store and an engine that have faults.

    Its methods repeat a request with the same ids until it is answered, as callers on Ray do: a dead process is
    replaced, and after a StoreError the request is repeated. `acknowledged` records the acknowledgements, and `audit()`
    checks that the store has them.

    Args:
        faults: the faults of the store and of the default engine.
        engine: the engine; a `FaultyEngine` with these faults if omitted.
        store: the store, which may be shared with other worlds; a new one in memory if omitted.
        tells_webhooks: whether commits have the calls of the store's webhooks, as in processes of sessions.
        has_quotas: whether the store's quotas hold, likewise.
        alarm: hears of the session's deliveries.
        clock: the session's clock; None: it reads the store's when it is loaded. The loop's if omitted.
    """

    def __init__(
        self,
        faults: Faults,
        *,
        session_id: str = "session",
        engine: EngineBuilder | None = None,
        config: SessionConfig | None = None,
        overflow: OverflowStrategy | None = None,
        store: SessionStore | None = None,
        history: HistoryStore | None = None,
        memories: Sequence[MemorySlot] = (),
        tells_webhooks: bool = False,
        has_quotas: bool = False,
        alarm: Alarm = NO_ALARM,
        clock: Callable[[], float] | None = lambda: asyncio.get_running_loop().time(),
    ) -> None:
        self.faults = faults
        self.session_id = session_id
        self.store: Any = FaultyStore(store or InMemoryStore(), faults)
        self.history: Any = FaultyStore(history, faults, name="history") if history else None
        self.engine = engine or FaultyEngine(faults)
        self.config = config or SessionConfig(cancel_grace_s=0.5, idle_s=1e9)
        self.acknowledged = Acknowledged(clock=lambda: asyncio.get_running_loop().time())
        self._overflow = overflow
        self._memories = memories
        self._tells_webhooks = tells_webhooks
        self._has_quotas = has_quotas
        self._alarm = alarm
        self._clock = clock
        self._processes: list[Process] = []
        self.process, self.core = self._begin()

    async def create(self) -> None:
        """Create the session in the store."""
        await self.store.inner.create(SessionRecord(session_id=self.session_id))

    def kill(self) -> None:
        """Kill the session's process; the next request starts another."""
        self.process.kill()

    async def ask(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        """Return the result of a method of a part of the core, such as `admission.start`; repeat the call if needed."""
        while True:
            if self.process.is_dead:
                self.process, self.core = self._begin()
            try:
                return await self.process.call(attrgetter(verb)(self.core)(*args, **kwargs))
            except (CorruptRecordError, StoreClosedError):
                raise  # a repetition would raise it again
            except (SessionFencedError, SessionRevertedError):
                self.process.kill()  # a process that lost its session ends
            except (SessionLostError, StoreError):
                await asyncio.sleep(AGAIN_S)

    async def append(self, prompt: str) -> int:
        """Append a unique prompt; return the index of its turn."""
        called_at = self.acknowledged.clock()
        index = cast(int, await self.ask("admission.append", [prompt], prompt))
        self.acknowledged.stored(self.session_id, [prompt], called_at, turn_index=index)
        return index

    async def start(self, prompt: str, **settings: Any) -> str:
        """Start a run with a unique prompt; return its id, which is the prompt unless `run_id` is given.

        If the prompt is dropped, by `if_busy="drop"`, return the id of the active run.
        """
        called_at = self.acknowledged.clock()
        settings.setdefault("run_id", prompt)
        started = await self.ask("admission.start", [prompt], **settings)
        run_id, turn_index = started.run_id, started.turn_index
        if started.dropped:
            self.acknowledged.dropped(self.session_id, prompt, called_at, run_id)
        else:
            about = {"run_id": run_id, "turn_index": turn_index, "silence_s": settings.get("debounce_s")}
            self.acknowledged.stored(self.session_id, [prompt], called_at, **about)
        return cast(str, run_id)

    async def wait(self, run_id: str, *, until: Until = "ended") -> str:
        """Wait until a run has ended or, with `until="settled"`, waits for a decision; return its state then."""
        outcome = await self.ask("reads.wait", run_id, until=until)
        state = cast(str, outcome.run.state)
        if not outcome.run.is_open:
            self.acknowledged.ended(self.session_id, run_id, state, outcome.turn.blocks if outcome.turn else None)
        return state

    async def cancel(self, run_id: str) -> bool:
        """Cancel a run; return whether it was cancelled."""
        return cast(bool, await self.ask("admission.cancel", "stop", run_id))

    async def pending(self, run_id: str) -> list[PendingCall]:
        """Return the run's tool calls that wait for a decision; see `ExecutionHandle.pending`."""
        return cast(list[PendingCall], await self.ask("reads.pending", run_id))

    async def approve(self, run_id: str, call_id: str, *, input: Mapping[str, Any] | None = None) -> None:
        """Approve a tool call that waits, with other arguments if `input` is given."""
        await self.decide(run_id, call_id, ApprovalDecision(verdict="approved", input=input))

    async def reject(self, run_id: str, call_id: str, reason: str = "") -> None:
        """Reject a tool call that waits, and tell the model why."""
        await self.decide(run_id, call_id, ApprovalDecision(verdict="rejected", text=reason))

    async def provide(self, run_id: str, call_id: str, result: Any, *, is_error: bool = False) -> None:
        """Supply the result of a tool call that waits; see `ExecutionHandle.provide`."""
        await self.decide(run_id, call_id, provided(result, is_error))

    async def decide(self, run_id: str, call_id: str, decision: ApprovalDecision) -> None:
        """Decide about a tool call that waits, as `approve`, `reject` and `provide` do."""
        await self.ask("approvals.decide", run_id, call_id, decision)

    async def fork(self, session_id: str, turn: int | None = None) -> None:
        """Fork the session."""
        await self.ask("forking.fork", turn, session_id)
        self.acknowledged.forked(session_id)

    async def audit(self, **settings: Any) -> Audit:
        """Check this session and its forks without faults: see `audit`. The session's `deaths` are known."""
        history = self.history and self.history.inner
        ids = {self.session_id: None} | dict.fromkeys(self.acknowledged.session_ids)
        deaths = {
            self.session_id: [process.killed_at_s for process in self._processes if process.killed_at_s is not None]
        }
        return await audit(self.store.inner, ids, self.acknowledged, history, **{"deaths": deaths, **settings})

    def _begin(self) -> tuple[Process, SessionCore]:
        core = SessionCore(
            SessionKey(self.session_id),
            self.store,
            self.engine,
            self.config,
            overflow=self._overflow,
            memories=self._memories,
            history=self.history,
            clock=self._clock,
            off_loop=inline,
            alarm=self._alarm,
            outbox=WebhookOutbox(self.store, NO_ALARM) if self._tells_webhooks else NO_OUTBOX,
            quotas=QuotaBook(self.store) if self._has_quotas else None,
        )
        self._processes.append(Process(f"{self.session_id}, process {len(self._processes) + 1}"))
        return self._processes[-1], core
