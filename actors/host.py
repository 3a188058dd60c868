"""The process of a session: the body of its Ray actor. Undecorated, so that it is an ordinary class in a test."""

from __future__ import annotations

import asyncio
import os
import pickle
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from turnwise.actors.config import SessionConfig
from turnwise.actors.core import Decision, SessionCore
from turnwise.actors.inference.engine import EngineBuilder, InferenceRunner, SessionView
from turnwise.actors.wire import EngineWanted, PackedOutcome, PackedTurn, Refused, SessionInfo, StartAnswer
from turnwise.errors import ConfigError, SessionFencedError, SessionNotFoundError, TurnwiseError
from turnwise.memory.blocks import Block, Summary
from turnwise.memory.calls import PendingCall
from turnwise.memory.events import Event
from turnwise.memory.history import HistoryStore
from turnwise.memory.runs import RunRecord
from turnwise.memory.sessions import SessionRecord
from turnwise.memory.spans import Spans, union
from turnwise.memory.store import SessionStore
from turnwise.memory.turns import Turn
from turnwise.strategies.compaction import Compaction
from turnwise.strategies.strategy import OverflowStrategy

ENGINE_TICKS = 3
"""How many turns of the event loop an engine has to answer before its start is acknowledged without its end."""

END_COMMIT_S = 0.05
"""How long the acknowledgement of such a start waits for the end to be stored."""


class SessionHost:
    """One session behind one entrance, `call`, on one event loop that nothing blocks.

    Calls may start in any order, so none relies on an earlier one. Typed errors come back as `Refused`. The core is
    made at the first call, and the imports of its store run on a thread meanwhile: a new process answers before it has
    loaded what only a turn needs.

    Args:
        open_store, open_history: make the store and, if events are kept apart, the history; called off the event loop.
        engine: pickled `EngineBuilder`, `SessionConfig` and `OverflowStrategy` or None, and `engine_id` names them.
        keep: notes what is taken over from a later manager, for the next process that Ray makes of this actor.
        leave: ends this process, for good; called when the session has been idle for `SessionConfig.idle_s`.
    """

    def __init__(
        self,
        session_id: str,
        open_store: Callable[[], SessionStore],
        engine_id: str,
        engine: bytes,
        *,
        node_id: str,
        leave: Callable[[], None],
        keep: Callable[[str, bytes], Awaitable[None]],
        open_history: Callable[[], HistoryStore] | None = None,
    ) -> None:
        self._session_id = session_id
        self._open_store = open_store
        self._open_history = open_history
        self._engine_id = engine_id
        self._engine = engine
        self._node_id = node_id
        self._leave = leave
        self._keep = keep
        self._deleted = False
        self._core: asyncio.Task[SessionCore] | None = None
        self._calls = 0
        self._last_call_s = time.monotonic()
        self._idle: asyncio.Task[None] | None = None

    async def call(self, request: bytes) -> bytes:
        """Carry out a pickled verb with its arguments; return its answer, or `Refused`, pickled.

        Pickled here and not by Ray, which takes 0.1 ms longer for the two.
        """
        self._calls += 1
        try:
            verb, *args = pickle.loads(request)
            try:
                answer = await getattr(self, f"do_{verb}")(*args)
            except SessionNotFoundError as error:
                # Another process is to say whether there is a session of this id again.
                answer = Refused(SessionFencedError(self._session_id, 0) if self._deleted else error)
            except TurnwiseError as error:
                answer = Refused(error)
                if isinstance(error, SessionFencedError):
                    self._leave()  # another activation owns the session, so nothing is left to do here
            return pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
        finally:
            self._calls -= 1
            self._last_call_s = time.monotonic()

    async def do_adopt(self, engine_id: str, engine: bytes) -> None:
        core = await self._loaded()
        if engine_id != self._engine_id:
            parts = await asyncio.to_thread(_unpickle, engine)
            await self._keep(engine_id, engine)
            core.use(*parts)
            self._engine_id, self._engine = engine_id, engine

    async def do_warm(self) -> None:
        await (await self._loaded()).activate()

    async def do_append(self, prompts: tuple[Any, ...], key: str) -> int:
        return await (await self._loaded()).append(prompts, key)

    async def do_start(
        self, engine_id: str, prompts: tuple[Any, ...], settings: Mapping[str, Any], held: Spans
    ) -> StartAnswer | EngineWanted:
        core = await self._loaded()
        if engine_id not in ("", self._engine_id):
            return EngineWanted()
        started = await core.start(prompts, **settings)
        # An engine that answers without waiting for anything is done by now: its end goes along and saves a call.
        for _ in range(ENGINE_TICKS):
            await asyncio.sleep(0)
        outcome = None
        if core.is_ending(started.run_id):
            with suppress(TurnwiseError):  # the start stands, whatever becomes of the end: `wait` will tell
                outcome = await core.wait(started.run_id, END_COMMIT_S)
        packed = PackedOutcome.pack(outcome, held) if outcome else None
        return StartAnswer(started.run_id, started.turn_index, packed)

    async def do_wait(self, run_id: str, timeout_s: float | None, held: Spans) -> PackedOutcome | None:
        outcome = await (await self._loaded()).wait(run_id, timeout_s)
        return PackedOutcome.pack(outcome, held) if outcome else None

    async def do_cancel(self, reason: str, run_id: str | None) -> bool:
        return await (await self._loaded()).cancel(reason, run_id)

    async def do_decide(self, run_id: str, call_id: str, decision: Decision) -> None:
        await (await self._loaded()).decide(run_id, call_id, decision)

    async def do_pending(self, run_id: str) -> list[PendingCall]:
        return await (await self._loaded()).pending(run_id)

    async def do_end(self) -> None:
        await (await self._loaded()).end()

    async def do_delete(self) -> None:
        await (await self._loaded()).delete()
        self._deleted = True
        asyncio.get_running_loop().call_soon(self._leave)

    async def do_fork(self, at: int | None, session_id: str) -> SessionRecord:
        return await (await self._loaded()).fork(at, session_id)

    async def do_compact(self, engine_id: str, explain: bool) -> tuple[Compaction | None] | EngineWanted:
        core = await self._loaded()
        if engine_id not in ("", self._engine_id):
            return EngineWanted()
        return (await core.compact(explain=explain),)

    async def do_expand(self, summary: Summary) -> tuple[Block, ...]:
        return await (await self._loaded()).expand(summary)

    async def do_run(self, run_id: str) -> RunRecord:
        return await (await self._loaded()).run(run_id)

    async def do_runs(self, after: int, limit: int) -> list[RunRecord]:
        return await (await self._loaded()).runs(after, limit)

    async def do_latest(self, held: Spans) -> PackedTurn | None:
        turn = await (await self._loaded()).latest()
        return PackedTurn.pack(turn, held) if turn else None

    async def do_turn(self, index: int, held: Spans) -> PackedTurn:
        return PackedTurn.pack(await (await self._loaded()).turn(index), held)

    async def do_turns(self, after: int, limit: int, held: Spans) -> list[PackedTurn]:
        packed = []
        for turn in await (await self._loaded()).turns(after, limit):
            packed.append(PackedTurn.pack(turn, held))
            held = _with(held, turn)
        return packed

    async def do_events(
        self, after: int, limit: int, run_id: str | None, timeout_s: float
    ) -> tuple[list[Event], int, bool]:
        return await (await self._loaded()).events(after, limit, run_id=run_id, timeout_s=timeout_s)

    async def do_info(self) -> SessionInfo:
        core = await self._loaded()
        return SessionInfo(
            session=await core.session(),
            active_run_id=core.active_run_id,
            queued_run_ids=tuple(core.queued_run_ids),
            pid=os.getpid(),
            node_id=self._node_id,
        )

    async def _loaded(self) -> SessionCore:
        if self._core is None:
            self._core = asyncio.create_task(self._load())
        try:
            return await asyncio.shield(self._core)
        except TurnwiseError:
            self._core = None  # the next call tries again
            raise

    async def _load(self) -> SessionCore:
        store = await asyncio.to_thread(self._open_store)
        try:
            builder, config, overflow = await asyncio.to_thread(_unpickle, self._engine)
        except ConfigError as error:
            # The session can be read all the same, and a manager with another engine can go on with it.
            builder, config, overflow = _Unloadable(error), SessionConfig(), None
        history = await asyncio.to_thread(self._open_history) if self._open_history else None
        core = SessionCore(self._session_id, store, builder, config, overflow=overflow, history=history)
        self._idle = asyncio.create_task(self._leave_when_idle(core, config.idle_s))
        return core

    async def _leave_when_idle(self, core: SessionCore, idle_s: float) -> None:
        while True:
            left_s = self._last_call_s + idle_s - time.monotonic()
            if left_s > 0:
                await asyncio.sleep(left_s)
            elif self._calls or not await core.leave():
                await asyncio.sleep(idle_s / 4)
            else:
                return self._leave()


class _Unloadable:
    """Stands for an engine that this process cannot load: its runs fail with the reason."""

    def __init__(self, error: ConfigError) -> None:
        self._error = error

    def build(self, session: SessionView) -> InferenceRunner:
        raise self._error


def _unpickle(engine: bytes) -> tuple[EngineBuilder, SessionConfig, OverflowStrategy | None]:
    try:
        builder, config, overflow = pickle.loads(engine)
    except Exception as error:
        why = f"it cannot be loaded in the session's process ({error}); define it in a module that is installed there"
        raise ConfigError("engine or overflow", type(error).__name__, why) from error
    return builder, config, overflow


def _with(held: Spans, turn: Turn) -> Spans:
    return union(held, turn.record.prompt, turn.record.spans)
