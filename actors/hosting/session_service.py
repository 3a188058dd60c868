"""`SessionService`: one session in its process: its core, and the verbs that callers request."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

from turnwise.actors.cluster.wire import READS, EngineWanted, PackedOutcome, PackedTurn, StartAnswer, StillEnding
from turnwise.actors.hosting.engine_overrides import EngineOverride
from turnwise.actors.hosting.reader import Reader, check_stored
from turnwise.actors.hosting.stored_session import StoredSession, UnattendedError
from turnwise.actors.hosting.waits import ENDING_S, Waits
from turnwise.actors.hosting.worker_resources import WorkerResources
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.reads import SessionReads
from turnwise.errors import CorruptRecordError, TurnNotFoundError, TurnwiseError
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.runs import Until, has_reached
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Spans
from turnwise.memory.longterm.retention.deletion_report import Forgotten
from turnwise.strategies.compaction import Compaction

ENGINE_TICKS = 3
"""How many iterations of the event loop an engine may take to answer so that the start is answered with the end."""

END_COMMIT_S = 2.0
"""How long the answer to such a start waits until the end is stored, in seconds."""

SAVE_S = 5.0
"""How long a process that leaves waits until the engines of waiting runs are saved, in seconds."""

SaveOverride = Callable[[SessionKey, EngineOverride, Mapping[str, bytes]], Awaitable[None]]
"""Saves the engines of a session for its next process: its key, engine ids, pickled engines by id."""

SaveOwnOverride = Callable[[EngineOverride, Mapping[str, bytes]], Awaitable[None]]
"""The same for one session: engine ids, pickled engines by id."""


_AS_CORE = frozenset(
    (
        *("add_event", "check_import", "decide", "fork", "import_turns", "refresh", "remove"),
        *("stored_prefix", "update", "use_engine", "use_memory"),
    )
)
"""The verbs that have the arguments and answers of the method of `SessionCore`."""

_WAITS = frozenset(("events", "wait"))
"""The reads that wait, whose callers are counted."""

_WITH_ENGINE = frozenset(
    ("clear", "compact", "delete", "forget_turn", "memory", "use_engine", "wait_for_memory", "window")
)
"""The verbs that use the caller's engine, strategy and memories; their first argument is its id. `start` and
`check_start` are not among them: they switch the engine themselves, so that no other caller's engine is switched to
before the run has begun."""


class SessionService:
    """One session on its process's event loop. Verbs may arrive in any order, so none relies on an earlier one."""

    __slots__ = (
        "_engine",
        "_engine_id",
        "_reader",
        "_resources",
        "_save_override",
        "_switching",
        "calls",
        "core",
        "is_deleted",
        "is_saved",
        "last_call_s",
        "waits",
    )

    def __init__(
        self,
        core: SessionCore,
        override: EngineOverride,
        resources: WorkerResources,
        save_override: SaveOwnOverride,
        node_id: str,
        *,
        waits: Waits,
    ) -> None:
        self.core = core
        self.calls = 0
        """How many verbs are being carried out."""
        self.waits = waits
        """The callers that wait for runs, events or memories."""
        self.last_call_s = 0.0
        """When the last one began or ended, by the clock of the event loop."""
        self.is_deleted = False
        """Whether the session was deleted here; a new core must find out whether its id exists again."""
        self.is_saved = bool(override.engine_ids - {resources.engine_id})
        """Whether this or an earlier process has saved an override for the session."""
        self._engine_id = override.engine_id
        self._engine = resources.get(override.engine_id)
        self._switching = asyncio.Lock()
        """Held while a run starts with its manager's engine, so that no other manager's takes its place."""
        self._resources = resources
        self._save_override = save_override
        self._reader = Reader(partial(_read_source, core), os.getpid(), node_id)

    @property
    def left(self) -> EngineOverride | None:
        """The engines of waiting runs when the session left, if any differs from the process's own engine."""
        waiting = self.core.ownership.left_waiting
        override = _override_of(self._engine_id, waiting)
        return override if waiting and override.engine_ids != {self._resources.engine_id} else None

    async def save_waiting(self, waiting: Mapping[str, str]) -> None:
        """Store the engines of waiting runs, by run id, so that the next process of the session has them."""
        if waiting:
            override = _override_of(self._engine_id, waiting)
            await asyncio.wait_for(self._save_override(override, self._engines(override)), SAVE_S)

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way, and no run, compaction or save is active or about to start."""
        return not self.calls and not self.core.ownership.is_in_use

    async def carry_out(self, verb: str, args: Sequence[Any], log: str = "") -> Any:
        """Carry out a verb and return its answer, or raise its error.

        Args:
            log: the log of the session that the caller means; any session with this id if empty.
        """
        if log and (self.core.reads.is_activated or verb not in READS):
            await self.core.ownership.check_log(log)
        elif log:
            await check_stored(self.core.reads.stores[0], self.core.state.key, log)
        if verb in _WITH_ENGINE:
            engine_id, *args = args
            if not await self._has(engine_id):
                return EngineWanted()
        try:
            return await self._answer(verb, args)
        except UnattendedError:
            await self.core.activate()  # which ends or resumes the run that the caller waits for
        except CorruptRecordError:
            await self.core.ownership.check_own()  # the store may have been reverted between two reads
        return await self._answer(verb, args)

    def _answer(self, verb: str, args: Sequence[Any]) -> Awaitable[Any]:
        if verb in READS and verb not in _WAITS:
            return self._reader.answer(verb, args)
        answer = getattr(self.core, verb) if verb in _AS_CORE else getattr(self, f"do_{verb}")
        return cast(Awaitable[Any], answer(*args))

    async def do_load_engine(self, engine_id: str, engine: bytes, verb: str = "", args: Sequence[Any] = ()) -> Any:
        """Load an engine, then carry out a verb with it, in one call, so that no other manager's engine intervenes."""
        await self._resources.load(self.core.session_id, engine_id, engine)
        return await self.carry_out(verb, (engine_id, *args)) if verb else await self._has(engine_id)

    async def do_warm(self) -> None:
        await self.core.activate()

    async def do_append(self, prompts: tuple[Any, ...], key: str, held: Spans) -> PackedTurn | None:
        index = await self.core.append(prompts, key)
        try:
            return await self._reader.turn(index, held)
        except TurnNotFoundError:  # a repeated call, whose prompts moved on when their run was rolled back
            return await self._reader.latest(held)

    async def do_start(
        self, engine_id: str, prompts: tuple[Any, ...], settings: Mapping[str, Any], held: Spans
    ) -> StartAnswer | EngineWanted:
        async with self._switching:
            if not await self._switch(engine_id):
                return EngineWanted()
            started = await self.core.start(prompts, **settings)
        # If the engine has answered already, return the run's end with its start, which saves the caller a call.
        for _ in range(ENGINE_TICKS):
            await asyncio.sleep(0)
        outcome = None
        with suppress(TurnwiseError):  # the start is stored anyway; `wait` raises the error
            if await self.core.reads.is_ending(started.run_id):
                outcome = await self.core.reads.wait(started.run_id, END_COMMIT_S)
        packed = await PackedOutcome.pack(outcome, held) if outcome and not outcome.run.is_open else None
        return StartAnswer(started.run_id, started.turn_index, packed, started.dropped)

    async def do_check_start(
        self, engine_id: str, prompts: tuple[Any, ...], settings: Mapping[str, Any]
    ) -> tuple[str | None] | EngineWanted:
        async with self._switching:
            if not await self._switch(engine_id):
                return EngineWanted()
            return (await self.core.check_start(prompts, **settings),)

    async def do_wait(self, run_id: str, timeout_s: float | None, held: Spans, until: Until = "ended") -> PackedOutcome:
        return await self.waits.wait(
            self.core.session_id,
            timeout_s,
            lambda slice_s: self._reader.wait(run_id, slice_s, held, until),
            lambda outcome: has_reached(outcome.state, until),
        )

    async def do_cancel(self, reason: str, run_id: str | None) -> bool | StillEnding:
        await self.core.activate()
        run_id = run_id or self.core.reads.active_run_id
        cancelled = await self.core.cancel(reason, run_id, ENDING_S)
        return StillEnding(run_id) if cancelled is None else cancelled

    async def do_end(self) -> bool:
        return await self.core.end(timeout_s=ENDING_S)

    async def do_delete(self, memory: bool, verify: bool, updated_at: float | None) -> Forgotten:
        done = await self.core.delete(memory=memory, verify=verify, updated_at=updated_at)
        self.is_deleted = True
        return done

    async def do_memory(self, verb: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Any]:
        await self.core.activate()
        return (await getattr(self.core.retrieval.memory_access(), verb)(*args, **options),)

    async def do_forget_turn(self, index: int, verify: bool) -> Forgotten:
        return await self.core.forget_turn(index, verify=verify)

    async def do_clear(
        self, keep_last: int, memory: bool, verify: bool, updated_at: float | None, key: str
    ) -> Forgotten:
        return await self.core.clear(keep_last, memory=memory, verify=verify, updated_at=updated_at, key=key)

    async def do_wait_for_memory(self, timeout_s: float | None) -> tuple[bool | None]:
        ask = self.core.wait_for_memory
        return (await self.waits.wait(self.core.session_id, timeout_s, ask, lambda done: done is not None),)

    async def do_compact(self, explain: bool) -> tuple[Compaction | None]:
        return (await self.core.compact(explain=explain),)

    async def do_window(self, held: Spans, message: str | None) -> tuple[PackedTurn | None]:
        turn = await self.core.window(message)
        return (await PackedTurn.pack(turn, held) if turn else None,)

    async def do_events(
        self, after: int, limit: int, run_id: str | None, timeout_s: float
    ) -> tuple[list[Event], int, bool]:
        return await self.waits.wait(
            self.core.session_id,
            timeout_s,
            lambda slice_s: self._reader.events(after, limit, run_id, slice_s),
            lambda page: page[2] or page[1] > after,
        )

    async def _has(self, engine_id: str) -> bool:
        """Switch the session to the caller's engine; return False if the caller must send it first."""
        async with self._switching:
            return await self._switch(engine_id)

    async def _switch(self, engine_id: str) -> bool:
        if engine_id in ("", self._engine_id):
            if not self._resources.has(self._engine_id):  # it made room for others' while the session was idle
                self._resources.cache(self.core.session_id, self._engine_id, *self._engine)
            return True
        if not self._resources.has(engine_id):
            return False
        setup, engine = self._resources.get(engine_id)
        await self.core.activate()  # so that open runs keep their engines
        override = _override_of(engine_id, self.core.engines.ids())
        self.is_saved = True
        await self._save_override(override, self._engines(override))
        self.core.use(*setup, engine_id=engine_id)
        self._engine_id, self._engine = engine_id, (setup, engine)
        return True

    def _engines(self, override: EngineOverride) -> dict[str, bytes]:
        own = {self._engine_id: self._engine[1]}  # others may have taken its place in the process
        return {each: own.get(each) or self._resources.get(each)[1] for each in override.engine_ids}


def _override_of(engine_id: str, runs: Mapping[str, str]) -> EngineOverride:
    return EngineOverride(engine_id, {run_id: other for run_id, other in runs.items() if other != engine_id})


def _read_source(core: SessionCore) -> SessionReads | StoredSession:
    """Return the core's reads if it has activated the session, else the store's: a read activates nothing."""
    reads = core.reads
    return reads if reads.is_activated else StoredSession(core.state.key, *reads.stores)
