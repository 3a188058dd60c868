"""`SessionService`: one session in its process: its core, and the verbs that callers request."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from turnwise.actors.hosting.engine_override import EngineOverride
from turnwise.actors.hosting.events_ahead import EventsAhead
from turnwise.actors.hosting.stored_source import StoredSource, UnattendedError
from turnwise.actors.hosting.verb_declaration import Reader, Verb
from turnwise.actors.hosting.verbs import find_verb
from turnwise.actors.hosting.waits import Waits
from turnwise.actors.hosting.wire import EngineWanted, Message
from turnwise.actors.hosting.worker_resources import WorkerResources
from turnwise.actors.memory.session_memory_access import SessionMemoryAccess
from turnwise.actors.session.acting import acting_as, check_member
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.state.reads import SessionReads
from turnwise.errors import CorruptRecordError, TurnwiseError, UnknownVerbError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.longterm.retention.deletion_report import Forgotten

SAVE_S = 5.0
"""How long a process that leaves waits until the engines of waiting runs are saved, in seconds."""

SaveOverride = Callable[[SessionKey, EngineOverride, Mapping[str, bytes]], Awaitable[None]]
"""Saves the engines of a session for its next process: its key, engine ids, pickled engines by id."""

SaveOwnOverride = Callable[[EngineOverride, Mapping[str, bytes]], Awaitable[None]]
"""The same for one session: engine ids, pickled engines by id."""


class EngineMissingError(Exception):
    """The process does not have the caller's engine, which must be sent."""


class SessionService:
    """One session on its process's event loop. Verbs may arrive in any order, so none relies on an earlier one."""

    __slots__ = (
        "_ahead",
        "_engine",
        "_engine_id",
        "_given",
        "_is_chosen",
        "_node_id",
        "_resources",
        "_save_override",
        "_switching",
        "calls",
        "core",
        "has_deliveries",
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
        node_id: str | None,
        *,
        waits: Waits,
        is_chosen: bool = True,
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
        self.has_deliveries = False
        """Whether the session had deliveries when this process gave it up."""
        self.is_saved = bool(override.engine_ids - {resources.engine_id})
        """Whether this or an earlier process has saved an override for the session."""
        self._given = override if self.is_saved else None
        """The override that the session was loaded with. It stays as it is until this process activates the session."""
        self._engine_id = override.engine_id
        self._engine = resources.get(override.engine_id)
        self._is_chosen = is_chosen
        """Whether the session has an engine of its own: one that a caller brought, or an earlier process noted."""
        self._switching = asyncio.Lock()
        """Held while a run starts with its manager's engine, so that no other manager's takes its place."""
        self._ahead = EventsAhead(partial(_reads_of, core))
        self._resources = resources
        self._save_override = save_override
        self._node_id = node_id

    @property
    def left_override(self) -> EngineOverride | None:
        """What waiting runs and deliveries need, once the session left, if it differs from the process's own engine."""
        override = self._needed(self.core.ownership.left_waiting)
        return override if override and override.engine_ids != {self._resources.engine_id} else None

    @property
    def has_left_engine(self) -> bool:
        """Whether the session, once it has left, has waiting runs or deliveries, which need its engines."""
        return self._needed(self.core.ownership.left_waiting) is not None

    async def save_needed(self, waiting: Mapping[str, str]) -> None:
        """Store the engines of waiting runs, by run id, and of deliveries, for the session's next process."""
        await self._look_for_deliveries()
        await self._save(self._needed(waiting))

    async def save_switched(self, waiting: Mapping[str, str]) -> None:
        """Store the engine of deliveries for the next process, if it is not this one's own; runs' engines are saved."""
        if self._engine_id != self._resources.engine_id and not waiting:
            await self._look_for_deliveries()
            await self._save(self._needed(waiting))

    async def hand_over(self, adopt: SaveOwnOverride, waiting: Mapping[str, str]) -> None:
        """Give the engines of waiting runs and of deliveries to the session's next host, if that may lack them."""
        await self._look_for_deliveries()
        override = self._needed(waiting)
        if override and override.engine_ids != {self._resources.engine_id}:
            await asyncio.wait_for(adopt(override, self._engines(override)), SAVE_S)

    async def _look_for_deliveries(self) -> None:
        store, _ = self.core.reads.stores
        try:
            self.has_deliveries = bool(await store.deliveries(**self.core.state.key._asdict(), limit=1))
        except TurnwiseError:
            self.has_deliveries = True  # an engine that is saved in vain takes some bytes

    def _needed(self, waiting: Mapping[str, str]) -> EngineOverride | None:
        if not self.core.reads.is_activated:
            return self._given
        if waiting:
            return _override_of(self._engine_id, waiting)
        return EngineOverride(self._engine_id, is_for_runs=False) if self.has_deliveries else None

    async def _save(self, override: EngineOverride | None) -> None:
        if override:
            await asyncio.wait_for(self._save_override(override, self._engines(override)), SAVE_S)

    @property
    def in_use(self) -> bool:
        """Whether it is not idle, callers who only wait aside: they may wait in the session's next process."""
        return self.calls > self.waits.count or self.core.ownership.is_in_use

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way, and no run, compaction or save is active or about to start."""
        return not self.calls and not self.core.ownership.is_in_use

    async def carry_out(self, message: Message) -> Any:
        """Carry out a verb and return its answer, or raise its error. `EngineWanted` asks for the caller's engine.

        If the message names a log, it means the session with this log; else any session with its key.
        """
        verb, log = find_verb(message), message.session.log
        acting = verb.acting(message.session)
        if acting and not verb.reads:  # before anything else is done for one who may do nothing
            await self.core.transactor.loaded()
            await check_member(self.core.state.journal.session, self.core.reads.stores[0], acting)
        if log and (self.core.reads.is_activated or not verb.reads):
            await self.core.ownership.check_log(log)
        if message.engine:
            await self._resources.load(self.core.session_id, message.engine_id, message.engine)
        try:
            if verb.needs_engine and not verb.holds_engine:
                async with self.engine(message.engine_id):
                    pass
            try:
                return await self._answer(verb, message)
            except UnattendedError:
                await self.core.transactor.activate()  # which ends or resumes the run that the caller waits for
            except CorruptRecordError:
                await self.core.ownership.check_own()  # the store may have been reverted between two reads
            return await self._answer(verb, message)
        except EngineMissingError:
            return EngineWanted()
        except TypeError as error:
            if verb.takes(message):
                raise
            raise UnknownVerbError(self.core.session_id, f"{verb.name} with these arguments") from error

    async def _answer(self, verb: Verb[..., Any], message: Message) -> Any:
        if not verb.waits:
            return await self._call(verb, message, message.arguments)
        name = verb.names[0]
        return await self.waits.wait(
            self.core.session_id,
            message.arguments[name],
            lambda slice_s: self._call(verb, message, message.arguments | {name: slice_s}),
        )

    async def _call(self, verb: Verb[..., Any], message: Message, arguments: Mapping[str, Any]) -> Any:
        acting = verb.acting(message.session)
        if not verb.reads:
            first = (self, message.engine_id) if verb.holds_engine else (self,)
            with acting_as(acting):
                return await verb.carry_out(*first, **arguments)
        core = self.core
        if not core.reads.is_activated:
            answer = await self._reader(_reads_of(core, message.session.log)).read(verb, acting, **arguments)
            if not (verb.waits and core.reads.is_activated):
                return answer
            # A run may have started meanwhile, whose deltas the store does not have.
        return await self._reader(core.reads).read(verb, acting, **arguments)

    def _reader(self, reads: SessionReads) -> Reader:
        return Reader(reads, os.getpid(), self._node_id, self._ahead)

    async def delete(
        self, *, memory: bool, verify: bool, updated_at: float | None, keeps_events: bool = False
    ) -> Forgotten:
        """Delete the session; see `Forgetting.delete`."""
        report = await self.core.forgetting.delete(
            memory=memory, verify=verify, updated_at=updated_at, keeps_events=keeps_events
        )
        self.is_deleted = True
        return report

    async def memory_access(self) -> SessionMemoryAccess:
        """Return access to the memories of the session's user."""
        await self.core.transactor.activate()
        return self.core.retrieval.memory_access()

    @asynccontextmanager
    async def engine(self, engine_id: str) -> AsyncIterator[None]:
        """Switch the session to a caller's engine; until the context ends, no other caller's takes its place.

        Raises:
            EngineMissingError: the process does not have it.
        """
        async with self._switching:
            await self._use(engine_id)
            yield

    @asynccontextmanager
    async def engine_of_sender(self, engine_id: str) -> AsyncIterator[None]:
        """Switch the session to the engine of a delivery's sender, if it has none of its own yet; see `engine`."""
        async with self._switching:
            await self._use("" if self._is_chosen else engine_id)
            yield

    async def _use(self, engine_id: str) -> None:
        if not await self._switch(engine_id):
            raise EngineMissingError
        self._is_chosen = self._is_chosen or bool(engine_id)

    async def _switch(self, engine_id: str) -> bool:
        if engine_id in ("", self._engine_id):
            if not self._resources.has(self._engine_id):  # it made room for others' while the session was idle
                self._resources.cache(self.core.session_id, self._engine_id, *self._engine)
            return True
        if not self._resources.has(engine_id):
            return False
        setup, engine = self._resources.get(engine_id)
        await self.core.transactor.activate()  # so that open runs keep their engines
        override = _override_of(engine_id, self.core.engines.ids())
        self.is_saved = True
        await self._save_override(override, self._engines(override))
        self.core.use(*setup, engine_id=engine_id)
        self._engine_id, self._engine = engine_id, (setup, engine)
        return True

    def _engines(self, override: EngineOverride) -> dict[str, bytes]:
        own = {self._engine_id: self._engine[1]}  # others may have taken its place in the process
        return {engine_id: own.get(engine_id) or self._resources.get(engine_id)[1] for engine_id in override.engine_ids}


def _reads_of(core: SessionCore, log: str = "") -> SessionReads:
    """Return what reads a session: its core if that is activated, else its store. A read activates nothing."""
    if core.reads.is_activated:
        return core.reads
    return SessionReads(StoredSource(core.state.key, *core.reads.stores, log=log))


def _override_of(engine_id: str, runs: Mapping[str, str]) -> EngineOverride:
    return EngineOverride(
        engine_id, {run_id: run_engine_id for run_id, run_engine_id in runs.items() if run_engine_id != engine_id}
    )
