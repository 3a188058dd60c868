"""`DedicatedHost`: the body of a dedicated session's Ray actor. A plain class, so tests need no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.engine_override import EngineOverride
from turnwise.actors.hosting.session_service import SaveOverride, SessionService
from turnwise.actors.hosting.waits import Waits
from turnwise.actors.hosting.wire import Message, Refused, SessionRef
from turnwise.actors.hosting.worker_resources import WorkerResources
from turnwise.actors.wire_version import packed, unpacked
from turnwise.errors import (
    CorruptRecordError,
    EncryptionError,
    SessionFencedError,
    SessionNotFoundError,
    TurnwiseError,
)
from turnwise.memory.background import log_failure, retry
from turnwise.memory.conversation.sessions import SessionKey

DRAIN_S = 0.05
"""How often a host that is drained looks whether it may give its session up, in seconds."""


class DedicatedHost:
    """One session on one event loop, which nothing blocks for long; all requests arrive by `call`.

    Calls may start in any order, so none relies on an earlier one. Typed errors are returned as `Refused`. The core is
    created at the first call, while a thread imports the modules of its store.

    Args:
        is_back: whether an earlier process of the session was lost: it may have left runs, which wait until this one or
            the next one recovers them.
        override: the engines that the session's last process saved; if omitted, the session has this process's engine.
        max_waits: see `Dedicated`.
        save_override: saves the engines of the session and of its open runs for the next process: when the session
            switches to a later manager's engine, and when it leaves while a run waits or with deliveries.
        leave: ends this process without restart; called when the session has been idle for `SessionConfig.idle_s`.
        move: ends this process and has the next one started elsewhere, which recovers the session.
    """

    def __init__(
        self,
        key: SessionKey,
        resources: WorkerResources,
        *,
        max_waits: int,
        node_id: str,
        leave: Callable[[], None],
        move: Callable[[], None] = lambda: None,
        save_override: SaveOverride,
        override: EngineOverride | None = None,
        is_back: bool = False,
    ) -> None:
        self._key = key
        self._waits = Waits("max_waits", max_waits)
        self._resources = resources
        self._node_id = node_id
        self._leave = leave
        self._move = move
        self._save_override = save_override
        self._override = override
        self._is_draining = False
        self._is_needed_elsewhere = is_back
        """Whether runs may wait for a process: it has given up an active one, or has not yet recovered a lost one's."""
        self._is_gone = False
        """Whether it ends without having loaded the session."""
        self._resident: SessionService | None = None
        self._calls = 0
        self._last_call_s = 0.0
        self._idle: asyncio.Task[None] | None = None

    async def call(self, request: bytes) -> bytes:
        """Carry out a verb, by a pickled `Message`; return its answer, or `Refused`, pickled.

        The answer is pickled here, since Ray takes 0.1 ms longer to pickle a request and its answer.
        """
        self._calls += 1
        try:
            try:
                message: Message = unpacked(request)
                resident = await self._loaded()
                if self._is_gone:
                    raise SessionFencedError(self._key.session_id, 0)
                if self._is_draining and self._may_leave(self._calls - 1):
                    await self._has_left(resident)  # so the caller is sent on
                answer = await resident.carry_out(message)
            except SessionNotFoundError as error:
                # Another process is to say whether there is a session of this id again.
                answer = Refused(SessionFencedError(self._key.session_id, 0) if self._has_no_session else error)
            except TurnwiseError as error:
                answer = self._resources.refused(error)
                if isinstance(error, SessionFencedError):
                    self._go()  # another activation owns the session, so nothing is left to do here
            if self._has_no_session:
                asyncio.get_running_loop().call_soon(self._go)
            return packed(answer)
        finally:
            self._calls -= 1
            self._last_call_s = asyncio.get_running_loop().time()

    async def open(self) -> None:
        """Load the engines, and open the stores. The first call does so otherwise."""
        await self._resources.open()

    async def drain(self, timeout_s: float, why: str) -> None:
        """Give the session up as soon as no run is active, at the latest after `timeout_s`; return when it is given up.

        The process ends then. If runs are queued, or one had to be taken over, the next process starts at once, and
        ends or resumes the latter as after a crash. Else it starts at the next call. Callers who only wait ask there.
        May be called again: the shortest time counts.

        Args:
            why: what the record of a run that was taken over says.
        """
        self._is_draining = True
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not self._has_no_session:
            resident, is_over = self._resident, asyncio.get_running_loop().time() >= deadline
            if resident is None:
                if is_over or not self._calls:
                    self._is_gone = True
                    self._is_needed_elsewhere = self._is_needed_elsewhere or bool(self._calls)
                    break
            else:
                resident.core.ownership.hold_queue()
                if is_over:
                    self._is_needed_elsewhere = True
                    await resident.core.ownership.abandon(why)
                    break
                if self._may_leave(self._calls) and await self._has_left(resident):
                    break
            await asyncio.sleep(DRAIN_S)
        self._go()

    def _may_leave(self, calls: int) -> bool:
        """Return whether no run is active, and all of so many calls only wait, which they may do elsewhere."""
        resident = self._resident
        return resident is not None and calls <= self._waits.count and not resident.core.ownership.is_in_use

    def _go(self) -> None:
        """End this process; another one starts at once if runs wait for it."""
        has_queue = self._resident is not None and self._resident.core.ownership.left_queue
        (self._move if self._is_needed_elsewhere or has_queue else self._leave)()

    @property
    def _has_no_session(self) -> bool:
        """Whether this process must end: the session was deleted or taken over, or the store was reverted."""
        return self._resident is not None and (self._resident.is_deleted or self._resident.core.ownership.is_lost)

    @property
    def has_left_engine(self) -> bool:
        """Whether it gave up a session with a waiting run or deliveries, whose engine is noted for the next process."""
        return self._override is not None if self._resident is None else self._resident.has_left_engine

    async def recover(self) -> None:
        """Load the session, so that runs of the lost process are ended or resumed and unsaved turns are saved.

        A failed attempt is logged and repeated later, unless the session was deleted or cannot be read.
        """
        await retry(self._warm, f"session {self._key.full_name!r}: recovery", until=_is_final)
        if not self._is_draining:
            self._is_needed_elsewhere = False

    async def _warm(self) -> None:
        answer = unpacked(await self.call(verbs.warm().to(SessionRef(self._key)).pickled()))
        if isinstance(answer, Refused):
            raise answer.error

    async def _loaded(self) -> SessionService:
        if self._resident is None:
            await self._resources.open()
        if self._resident is None:
            override = self._override or EngineOverride(self._resources.engine_id)
            core = self._resources.make_core(self._key, override)
            save = partial(self._save_override, self._key)
            self._resident = SessionService(
                core,
                override,
                self._resources,
                save,
                self._node_id,
                waits=self._waits,
                is_chosen=self._override is not None,
            )
            self._resources.in_use = lambda: core.engines.ids().values()
            self._idle = asyncio.create_task(self._leave_when_idle(self._resident, self._resources.config.idle_s))
        return self._resident

    async def _leave_when_idle(self, resident: SessionService, idle_s: float) -> None:
        while True:
            left_s = self._last_call_s + idle_s - asyncio.get_running_loop().time()
            if left_s > 0:
                await asyncio.sleep(left_s)
            elif self._calls or not await self._has_left(resident):
                await asyncio.sleep(idle_s / 4)
            else:
                return self._go()

    async def _has_left(self, resident: SessionService) -> bool:
        """Give the session up if it is idle; return whether this process no longer owns it."""
        try:
            return resident.core.ownership.is_lost or await resident.core.ownership.leave(resident.save_needed)
        except Exception as error:  # noqa: BLE001 - it is logged, and the process tries again to leave
            log_failure(f"session {self._key.full_name!r}: leaving", error, ", so it stays")
            return resident.core.ownership.is_lost


def _is_final(error: BaseException) -> bool:
    return isinstance(error, SessionFencedError | SessionNotFoundError | CorruptRecordError | EncryptionError)
