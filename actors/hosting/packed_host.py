"""`PackedHost`: the body of a packed host's Ray actor, with many sessions. A plain class, so tests need no Ray."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Protocol

from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.engine_override import EngineOverride
from turnwise.actors.hosting.placement import Packed
from turnwise.actors.hosting.session_service import SaveOverride, SessionService
from turnwise.actors.hosting.waits import Waits
from turnwise.actors.hosting.wire import HostLoad, Message, Refused, SessionRef
from turnwise.actors.hosting.worker_resources import WorkerResources
from turnwise.actors.inference.attempt import reason
from turnwise.actors.wire_version import packed, unpacked, unpacked_answer
from turnwise.errors import (
    ConfigError,
    CorruptRecordError,
    EncryptionError,
    EngineLimitError,
    OverloadedError,
    SessionFencedError,
    SessionLostError,
    SessionNotFoundError,
    TurnwiseError,
    WireVersionError,
)
from turnwise.memory.background import log_failure, retry, shielded
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.growing_pauses import GrowingPauses
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.reading import pages_by_cursor

RECOVERIES = 16
"""How many sessions of a lost process are recovered concurrently."""

MAX_PAUSE_S = 30.0
"""The longest pause between two attempts to recover sessions, in seconds."""

GATHER_S = 0.002
"""How long an answer waits for others, to be sent together, in seconds."""

RECENT = 100
"""How many sessions `PackedHost.current_load` names."""

DRAIN_S = 0.05
"""The first pause before a replaced host looks again for sessions to give up, in seconds; the next ones are longer."""

MOST_DRAIN_S = 0.25
"""The longest such pause while nothing fails, in seconds."""

HAND_OVER_S = 5.0
"""How long a host whose time is over waits until the next hosts have the engines of a session, in seconds."""

_Asks = Callable[[SessionRecord], Awaitable[bool]]

_log = logging.getLogger(__name__)


class PreviousHost(Protocol):
    """A host of an earlier layout, as hosts of later layouts see it."""

    async def release(self, key: SessionKey) -> bool:
        """Give up the session unless it is in use; return whether that host does not have it any more."""

    async def call(self, request: bytes, key: SessionKey) -> bytes:
        """Carry out a request on that host."""


class NextHosts(Protocol):
    """The hosts of the newest layout, as hosts of an earlier layout see them."""

    async def adopt(self, key: SessionKey, override: EngineOverride, engines: Mapping[str, bytes]) -> None:
        """Give them the engines of a session's waiting runs and deliveries, by id, before it leaves for there.

        Raises:
            TurnwiseError: that failed, so the session stays for now.
        """

    async def warm(self, key: SessionKey) -> None:
        """Load the session there, so that its runs are recovered.

        Raises:
            TurnwiseError: that failed; try again.
        """


class PackedHost:
    """Many sessions on one event loop; `call` takes one request, `calls` takes many at once.

    Each session is a `SessionCore` with its own lock, so no session waits for another's turn. The first request for a
    session loads it, which costs one read of the store. A session is unloaded when it has been idle for
    `SessionConfig.idle_s`, or when another needs its place and it is the least recently used idle one. A session that
    runs, compacts or saves, or for which a caller waits, stays. A request for a session that is being unloaded waits,
    and loads it again.

    Args:
        limits: how many sessions, calls and waits the host accepts.
        overrides: the engines that sessions had switched to before the process was lost, by session.
        previous_hosts: the hosts of earlier layouts. A session that is in use there stays there until its run ends;
            requests for it are forwarded to that host.
        next_hosts: the hosts of the newest layout, which get the sessions when this host is replaced.
        save_override, drop_override: save the engines that a session switched to; drop them once no run waits.
        leave: ends this process without restart; called when the host was replaced and its last session has left.
    """

    def __init__(
        self,
        resources: WorkerResources,
        limits: Packed,
        *,
        node_id: str | None,
        save_override: SaveOverride,
        drop_override: Callable[[SessionKey], object],
        leave: Callable[[], None],
        overrides: dict[SessionKey, EngineOverride] | None = None,
        previous_hosts: Sequence[PreviousHost] = (),
        next_hosts: NextHosts | None = None,
    ) -> None:
        self._resources = resources
        self._limits = limits
        self._node_id = node_id
        self._save_override = save_override
        self._drop_override = drop_override
        self._leave = leave
        self._overrides = overrides or {}
        """The engines of sessions that are not loaded and had switched to another engine than the process's own."""
        resources.in_use = self._engines_in_use
        self._previous_hosts = previous_hosts
        self._next_hosts = next_hosts
        self._residents: OrderedDict[SessionKey, SessionService] = OrderedDict()
        """The loaded sessions by id, least recently called first."""
        self._leaving: dict[SessionKey, asyncio.Task[bool]] = {}
        self._calls = 0
        self._waits = Waits("max_waits", limits.max_waits)
        self._is_replaced = False
        self._ends_at = math.inf
        """When the time is over in which the runs of a host that is drained may end, by the clock of the event loop."""
        self._handing_over: set[asyncio.Task[None]] = set()
        """Sessions with queued runs, or with runs that had to end, which the newest hosts load."""
        self._is_recovering = False
        self._sweeping: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[bytes]] = set()

    def has_loaded(self, key: SessionKey) -> bool:
        """Return whether a session is resident. May be called from any thread."""
        return key in self._residents

    @property
    def residents(self) -> list[SessionKey]:
        """The loaded sessions, least recently called first."""
        return list(self._residents)

    @property
    def current_load(self) -> HostLoad:
        """The host's current load: its sessions, calls and waits."""
        recent = islice(reversed(self._residents), RECENT)
        waits = self._waits.count
        return HostLoad(sessions=len(self._residents), recent=tuple(recent), calls=self._calls - waits, waits=waits)

    @property
    def is_replaced(self) -> bool:
        """Whether newer hosts replace this one, so that it accepts no more sessions."""
        return self._is_replaced

    @property
    def has_runs(self) -> bool:
        """Whether a run is active, or sessions of a lost process are recovered."""
        return self._is_recovering or any(session.core.ownership.has_runs for session in self._residents.values())

    async def open(self) -> None:
        """Load the engines, and open the stores. The first call does so otherwise."""
        await self._resources.open()

    async def call(self, request: bytes) -> bytes:
        """Carry out a verb, by a pickled `Message`; return its answer, or `Refused`, pickled."""
        try:
            message: Message = unpacked(request)
        except WireVersionError as error:
            return _dumps(Refused(error))
        key = message.session.key
        if self._calls - self._waits.count >= self._limits.max_calls:
            refusal = OverloadedError(key.session_id, "max_calls", self._limits.max_calls)
            return _dumps(self._resources.refused(refusal))
        self._calls += 1
        try:
            while True:
                if previous := await self._previous_host_of(key):
                    answer = await previous.call(request, key)
                    if not isinstance(refused := unpacked_answer(answer), Refused) or not isinstance(
                        refused.error, SessionFencedError
                    ):
                        return answer
                else:
                    if self._is_replaced and self._next_hosts:
                        await self._try_to_release(key)
                    return _dumps(await self._carry_out(message))
        except TurnwiseError as error:
            return _dumps(self._resources.refused(error))
        finally:
            self._calls -= 1

    async def calls(self, requests: Sequence[bytes]) -> AsyncIterator[list[tuple[int, bytes]]]:
        """Carry out requests concurrently; yield their answers as they are ready, each with its request's index.

        Answers that are ready within `GATHER_S` of each other are yielded together. A failed request is answered with
        its error, so it does not affect the others.
        """
        tasks = {asyncio.create_task(self.answer(request)): place for place, request in enumerate(requests)}
        pending = set(tasks)
        self._tasks |= pending  # they continue even if the caller stops reading answers
        for task in tasks:
            task.add_done_callback(self._tasks.discard)
        while pending:
            ready, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if pending:
                more, pending = await asyncio.wait(pending, timeout=GATHER_S)
                ready |= more
            yield [(tasks[task], task.result()) for task in ready]

    async def answer(self, request: bytes) -> bytes:
        """Carry out a request as `call` does; an unexpected error is logged, and is the answer."""
        try:
            return await self.call(request)
        except Exception as error:  # noqa: BLE001 - logged, and returned to the caller
            message: Message = unpacked(request)
            key, verb = message.session.key, message.verb
            _log.exception("%s failed for session %s", verb, key.full_name)
            return _dumps(Refused(SessionLostError(key.session_id, f"{verb} failed there: {error!r}")))

    async def retire(self) -> None:
        """Accept no more sessions, since newer hosts replace this one; give up each session once it is idle."""
        if not self._is_replaced:
            self._is_replaced = True
            for resident in self._residents.values():
                ownership = resident.core.ownership
                (ownership.hold_queue if self._next_hosts else ownership.leave_failed_saves)()
            if self._sweeping:
                self._sweeping.cancel()
            self._sweeping = asyncio.create_task(self._drain())

    async def drain(self, timeout_s: float, why: str) -> None:
        """Retire, and after `timeout_s` have the newest hosts take over what still runs; return when nothing is left.

        The process ends then. Runs that were taken over are ended or resumed there, as after a crash. May be called
        again: the shortest time counts.

        Args:
            why: what the records of these runs say.
        """
        self._ends_at = min(self._ends_at, asyncio.get_running_loop().time() + timeout_s)
        await self.retire()
        sweeping = self._sweeping
        if sweeping is not None:
            await asyncio.wait({sweeping}, timeout=timeout_s)
        while self._residents:
            leaving = [self._abandon(key, resident, why) for key, resident in list(self._residents.items())]
            await asyncio.gather(*leaving)
        if sweeping is not None:
            await asyncio.wait({sweeping})

    async def _abandon(self, key: SessionKey, resident: SessionService, why: str) -> None:
        await resident.core.ownership.abandon(why)
        self._forget(key, resident)
        with suppress(TimeoutError):  # who loads the session asks `release` first, which tries again
            await asyncio.wait_for(self._hand_engines(key), HAND_OVER_S)
        self._hand_over(key)

    def _hand_over(self, key: SessionKey) -> None:
        """Have the newest hosts load a session, so that its runs go on; retried until that succeeds. Does not wait."""
        if self._next_hosts:
            name = f"session {key.full_name!r}: handing it over"
            task = asyncio.create_task(retry(partial(self._next_hosts.warm, key), name, until=_is_final))
            self._handing_over.add(task)
            task.add_done_callback(self._handing_over.discard)

    async def release(self, key: SessionKey) -> bool:
        """Give a session up to a newer host; return whether this host does not have it any more.

        A session that cannot leave because the store fails stays.
        """
        await self.retire()
        await self._try_to_release(key)
        if key in self._overrides:
            await self._hand_engines(key)
        return key not in self._residents

    async def _hand_engines(self, key: SessionKey) -> bool:
        """Give the newest hosts the engines of a session that is not loaded, and has waiting runs or deliveries.

        Returns whether nothing failed that may succeed later.
        """
        override = self._overrides.get(key)
        if override is None or self._next_hosts is None:
            return True
        engines = {engine_id: self._resources.find(engine_id) for engine_id in override.engine_ids}
        known = {engine_id: engine for engine_id, engine in engines.items() if engine is not None}
        try:
            await self._next_hosts.adopt(key, override, known)
        except (ConfigError, EngineLimitError) as error:  # the session then has the engine of its next host
            log_failure(f"session {key.full_name!r}: handing its engines over", error)
        except Exception as error:  # noqa: BLE001 - logged, and tried again
            log_failure(f"session {key.full_name!r}: handing its engines over", error, ", so they stay")
            return False
        if self._overrides.get(key) is override:
            del self._overrides[key]
        return True

    async def _try_to_release(self, key: SessionKey) -> None:
        """Give a session up unless it is in use. Callers who only wait are sent on."""
        resident = self._residents.get(key)
        if resident and not resident.in_use:
            await self._try_to_unload(key)

    async def adopt(self, key: SessionKey, override: EngineOverride, engines: Mapping[str, bytes]) -> None:
        """Take the engines of a session that an earlier host is about to give up; see `NextHosts.adopt`.

        Raises:
            ConfigError: this process cannot load one of them.
            EngineLimitError: open runs use as many as a process may cache.
            SessionFencedError: newer hosts have replaced this one: they are to have the engines.
        """
        self._check_not_replaced(key)
        await self._resources.open()
        for engine_id, engine in engines.items():
            await self._resources.load(key.session_id, engine_id, engine)
        await self._save_override(key, override, engines)
        self._check_not_replaced(key)  # meanwhile: it may have looked already which engines it has to hand on
        self._overrides[key] = override

    def _check_not_replaced(self, key: SessionKey) -> None:
        if self._is_replaced:
            raise SessionFencedError(key.session_id, 0)

    async def recover(self, is_mine: Callable[[SessionKey], bool], is_of_others: _Asks | None = None) -> None:
        """Load the sessions of a lost process, so that interrupted runs are ended or resumed, and turns saved.

        Failures are tried again. Which sessions are behind with saving is found among those that were used lately.
        Sessions that cannot be read, such as those of a user whose key was deleted, are skipped. If newer hosts have
        replaced this one, they load the sessions. This process does not leave before that is done.

        Args:
            is_of_others: returns whether hosts of another namespace have the session; if omitted, none have.
        """
        self._is_recovering = True
        pauses = GrowingPauses(0.5, MAX_PAUSE_S)
        try:
            while failed := await self._recover(is_mine, is_of_others):
                pause_s = pauses.next_s()
                _log.warning(
                    "%d sessions of a lost process could not be recovered, next attempt in %.1f s: %s",
                    len(failed),
                    pause_s,
                    reason(failed[0]),
                )
                await asyncio.sleep(pause_s)
        finally:
            self._is_recovering = False

    async def _recover(self, is_mine: Callable[[SessionKey], bool], is_of_others: _Asks | None) -> list[Exception]:
        failed: list[Exception] = []
        at_once = asyncio.Semaphore(RECOVERIES)

        async def recover_one(key: SessionKey) -> None:
            async with at_once:
                try:
                    if is_of_others and await is_of_others(await store.get(key)):
                        return
                    await self._warm(key)
                except SessionNotFoundError:
                    return  # it was deleted
                except (CorruptRecordError, EncryptionError) as error:
                    _log.warning("lost session %s is not recovered, since it cannot be read: %s", key.full_name, error)
                except TurnwiseError as error:
                    failed.append(error)
                except Exception as error:  # noqa: BLE001 - it is logged, and the session is tried again
                    log_failure(f"recovery of session {key.full_name!r}", error)
                    failed.append(error)

        try:
            store = await self._resources.open()
            async for keys in self._lost(store):
                await asyncio.gather(*(recover_one(key) for key in keys if is_mine(key)))
            return failed
        except TurnwiseError as error:
            return [error]
        except Exception as error:  # noqa: BLE001 - it is logged, and tried again
            log_failure("the search for lost sessions", error)
            return [error]

    async def _lost(self, store: SessionStore) -> AsyncIterator[Sequence[SessionKey]]:
        """Yield the sessions of a lost process that have open runs, or turns that memories may lack.

        A session that has not been used for `idle_s` was given up, and has stored that all is saved.
        """
        async for page in pages_by_cursor(store.unsettled):
            yield page.items
        if not self._resources.saves:
            return
        since = -math.inf
        async for sessions in pages_by_cursor(partial(store.query, order_by="updated_at")):
            since = max([since, *(session.updated_at - self._resources.config.idle_s for session in sessions)])
            recent = [session for session in sessions if session.updated_at >= since]
            yield [session.key for session in recent if session.saved < session.next_index - 1]
            if len(recent) < len(sessions):
                return

    async def _warm(self, key: SessionKey) -> None:
        if not self._is_replaced:
            try:
                if not await self._previous_host_of(key):
                    await self._carry_out(verbs.warm().to(SessionRef(key)))
                return
            except SessionFencedError:
                if not self._is_replaced:
                    return  # another process recovers it
        if self._next_hosts:
            await self._next_hosts.warm(key)

    async def _previous_host_of(self, key: SessionKey) -> PreviousHost | None:
        """Return the host of an earlier layout on which the session is in use, or None."""
        if key not in self._residents:
            for previous in self._previous_hosts:
                if not await previous.release(key):
                    return previous
        return None

    async def _carry_out(self, message: Message) -> Any:
        key = message.session.key
        while True:
            resident = await self._resident(key)
            if resident.calls - resident.waits.count >= (most := self._limits.max_session_calls):
                raise OverloadedError(key.session_id, "max_session_calls", most)
            resident.calls += 1
            self._touch(key, resident)
            try:
                return await resident.carry_out(message)
            except SessionNotFoundError as error:
                if error.session_id != key.session_id:
                    raise
                if resident.core.ownership.is_active:
                    raise  # the caller means an earlier session with this id
                if not resident.is_deleted:
                    self._forget(key, resident)
                    raise  # otherwise load it again, since the id may exist again
            finally:
                resident.calls -= 1
                self._touch(key, resident)
                if resident.is_deleted or resident.core.ownership.is_lost:
                    self._forget(key, resident)

    async def _resident(self, key: SessionKey) -> SessionService:
        """Return the session; load it if it is not resident.

        Raises:
            OverloadedError: there is no free place, and no session can be unloaded.
            SessionFencedError: newer hosts have replaced this one.
        """
        if not self._resources.is_open:
            await self._resources.open()
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep(self._resources.config.idle_s))
        while True:
            if task := self._leaving.get(key):
                await asyncio.wait({task})
            elif resident := self._residents.get(key):
                return resident
            elif self._is_replaced:
                raise SessionFencedError(key.session_id, 0)
            elif len(self._residents) < self._limits.max_resident:
                return self._admit(key)
            else:
                await self._make_room(key)

    def _admit(self, key: SessionKey) -> SessionService:
        override = self._overrides.pop(key, None)
        if override and not override.is_for_runs and not self._resources.has(override.engine_id):
            self._drop_override(key)  # more managers' engines came by than a process caches
            override = None
        is_chosen = override is not None
        override = override or EngineOverride(self._resources.engine_id)
        core = self._resources.make_core(key, override)
        save = partial(self._save_override, key)
        waits = Waits("max_session_waits", self._limits.max_session_waits, self._waits)
        resident = SessionService(
            core, override, self._resources, save, self._node_id, waits=waits, is_chosen=is_chosen
        )
        self._residents[key] = resident
        return resident

    async def _make_room(self, key: SessionKey) -> None:
        """Unload the idle session that was used least recently.

        Callers who need room at the same time each unload one of their own, so these leave together.

        Raises:
            OverloadedError: all sessions are in use.
            StoreError: no session can leave, since the store fails.
        """
        attempted: set[SessionKey] = set()
        while len(self._residents) >= self._limits.max_resident:
            if (idle := self._least_recently_used(attempted)) is not None:
                attempted.add(idle)
                if await self._unload(idle):
                    return
            elif self._leaving:
                await asyncio.wait(self._leaving.values(), return_when=asyncio.FIRST_COMPLETED)
            else:
                raise OverloadedError(key.session_id, "max_resident", self._limits.max_resident)

    def _least_recently_used(self, attempted: set[SessionKey]) -> SessionKey | None:
        """Return the idle session that was used least recently; none that leaves or was attempted. None if all are."""
        return next(
            (
                name
                for name, resident in self._residents.items()
                if name not in self._leaving and name not in attempted and resident.is_idle
            ),
            None,
        )

    async def _unload(self, key: SessionKey) -> bool:
        """Unload a session; return whether it left. Concurrent callers share one attempt, which is never cancelled."""
        task = self._leaving.get(key)
        if task is None:
            task = asyncio.create_task(self._leave_session(key, self._residents[key]))
            self._leaving[key] = task
        return await shielded(task, f"session {key.full_name!r}: leaving")

    async def _leave_session(self, key: SessionKey, resident: SessionService) -> bool:
        try:
            # Without a note of waiting runs: this process stays, and `_forget` keeps their engines in its memory.
            save, is_handed_over = resident.save_switched, False
            if self._is_replaced and self._next_hosts:
                save, is_handed_over = partial(resident.hand_over, partial(self._next_hosts.adopt, key)), True
            if not await resident.core.ownership.leave(save):
                self._touch(key, resident)
                return False
            self._forget(key, resident, is_handed_over=is_handed_over)
            if resident.core.ownership.left_queue:
                self._hand_over(key)
            return True
        finally:
            del self._leaving[key]

    def _touch(self, key: SessionKey, resident: SessionService) -> None:
        resident.last_call_s = asyncio.get_running_loop().time()
        if self._residents.get(key) is resident:
            self._residents.move_to_end(key)

    def _forget(self, key: SessionKey, resident: SessionService, *, is_handed_over: bool = False) -> None:
        if self._residents.get(key) is resident:
            del self._residents[key]
            if not is_handed_over and (override := resident.left_override):  # its runs keep their engines
                self._overrides[key] = override
            elif resident.is_saved:
                self._drop_override(key)

    def _engines_in_use(self) -> set[str]:
        """Return the ids of the engines of runs that have not ended."""
        needed = (override for override in self._overrides.values() if override.is_for_runs)
        from_overrides = {engine_id for override in needed for engine_id in override.engine_ids}
        of_residents = (resident.core.engines.ids().values() for resident in self._residents.values())
        return from_overrides.union(*of_residents)

    async def _sweep(self, idle_s: float) -> None:
        """Unload sessions that have been idle for `idle_s`; checked every quarter of that time."""
        while True:
            await asyncio.sleep(idle_s / 4)
            await self._unload_idle(asyncio.get_running_loop().time() - idle_s)

    async def _unload_idle(self, since: float) -> bool:
        """Try to unload each session idle since that time, also after a failure; return whether none failed."""
        has_succeeded = True
        for key, resident in list(self._residents.items()):
            if resident.last_call_s > since:
                break
            is_idle = not resident.in_use if self._is_replaced else resident.is_idle
            if is_idle and self._residents.get(key) is resident and key not in self._leaving:
                has_succeeded = await self._try_to_unload(key) and has_succeeded
        return has_succeeded

    async def _try_to_unload(self, key: SessionKey) -> bool:
        """Unload a session, or log why it stays; return whether nothing failed."""
        try:
            await self._unload(key)
        except Exception as error:  # noqa: BLE001 - logged; this session is retried later, the others go on
            log_failure(f"session {key.full_name!r}: leaving", error, ", so it stays")
            return False
        return True

    async def _drain(self) -> None:
        pauses, failures = GrowingPauses(DRAIN_S, MOST_DRAIN_S), GrowingPauses(MOST_DRAIN_S, MAX_PAUSE_S)
        loop = asyncio.get_running_loop()
        while True:
            has_succeeded = await self._unload_idle(loop.time())
            for key in list(self._overrides):
                has_succeeded = await self._hand_engines(key) and has_succeeded
            if not self._has_anything:
                break
            if has_succeeded:
                failures.reset()
                await asyncio.sleep(pauses.next_s())
            else:
                await asyncio.sleep(min(failures.next_s(), max(MOST_DRAIN_S, self._ends_at - loop.time())))
        self._leave()

    @property
    def _has_anything(self) -> bool:
        """Whether a replaced host has anything left to give up, in the time that it has."""
        has_engines = bool(self._overrides) and self._next_hosts is not None
        is_over = asyncio.get_running_loop().time() >= self._ends_at
        return bool(self._residents or self._is_recovering or self._handing_over or (has_engines and not is_over))


def _is_final(error: BaseException) -> bool:
    return isinstance(error, SessionNotFoundError | CorruptRecordError | EncryptionError)


def _dumps(answer: Any) -> bytes:
    return packed(answer)
