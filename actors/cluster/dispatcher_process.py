"""`DispatcherProcess`: starts the actor that hands a store's deliveries to their sessions, and tells it what is due."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ray.exceptions import RayActorError, RayError, RayTaskError

from turnwise.actors.cluster.actor_names import FOR_EVER, dispatcher_name, find_actor
from turnwise.actors.cluster.actor_settings import ActorSettings
from turnwise.actors.cluster.actor_spec import ActorSpec
from turnwise.actors.cluster.actors.dispatcher_actor import LEAVE_S, DispatcherActor, DispatcherAssignment
from turnwise.actors.cluster.actors.switched_engines import note_engine
from turnwise.actors.cluster.addressees import Addressees
from turnwise.actors.cluster.calls.actor_waiting import presence, reached
from turnwise.actors.cluster.node_choice import nodes_for
from turnwise.actors.hosting.identity import pickled
from turnwise.actors.hosting.placement import Dedicated, Packed
from turnwise.actors.hosting.reach import NoProcessError
from turnwise.actors.in_process.threads import EventLoop
from turnwise.actors.wire_version import packed
from turnwise.errors import StoreError
from turnwise.memory.background import retry, watch
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.growing_pauses import GrowingPauses

if TYPE_CHECKING:
    from turnwise.actors.cluster.actor_lookup import DedicatedLookup, PackedLookup

MAX_CALLS = 1000
"""How many calls the actor answers at once."""

EXPECTED_SHARE = 0.2
"""For this share of the time for which an actor stays that is expected, it is not told so again."""

ANSWER_S = 2.0
"""How long the actor may take to say that it stays before Ray is asked whether it has a process, in seconds."""

EXPECT_S = 20.0
"""How long whoever stores a delivery waits for an actor that stays, in seconds. Its session changes nothing then."""

HAND_OVER_S = 0.25
"""How long the addressee of a delivery may take before the actor is told of it, too, in seconds."""

AFTER_S = 1.0
"""For how long a manager that opens a store puts off its look into it, in seconds."""

CLOSE_S = 2.0
"""How long a manager that closes waits for its look into the store, in seconds."""

_LOOKS = EventLoop("turnwise-dispatchers")
"""The event loop of the looks of this process's managers."""


def _find_none(engine_id: str) -> None:
    """Find no engine: a manager that opens a store sends nothing."""


class DispatcherProcess:
    """The `Alarm` of a store on Ray: one named, detached actor of the namespace, which Ray restarts wherever it dies.

    Made in a process that can also start sessions' processes, on the node of the store if that is a file. Use it on one
    event loop.

    Args:
        placement, spec: those of the sessions' processes.
        find_engine: returns the pickled engine of an id, if this process has it.
        leave_s: when the actor leaves, if this creates it: see `DispatcherAssignment`.
    """

    def __init__(
        self,
        namespace: str,
        store_id: str,
        placement: Dedicated | Packed,
        spec: ActorSpec,
        *,
        find_engine: Callable[[str], bytes | None] = _find_none,
        leave_s: float = LEAVE_S,
    ) -> None:
        self._find_engine = find_engine
        self._noted: set[str] = set()
        """The engines that this process has noted for others."""
        self._assignment = DispatcherAssignment(namespace, store_id, placement, leave_s)
        self._spec = spec
        self._actor: Any = None
        self._expected_at = -math.inf
        """When the actor was expected last, by a clock that is never set."""
        self._addressees: Addressees | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def namespace(self) -> str:
        """See `Alarm.namespace`."""
        return self._assignment.namespace

    async def expect(self, engine_ids: Collection[str] = ()) -> None:
        """See `Alarm.expect`. An actor that is new, or that Ray starts again, is not waited for: its process will stay.

        One that was just expected is not asked again.

        Raises:
            StoreError: Ray cannot start or reach the actor; nothing was stored.
        """
        for engine_id in set(engine_ids) - self._noted:
            await self._note(engine_id)
        now = time.monotonic()
        if now >= self._expected_at + EXPECTED_SHARE * self._assignment.leave_s:
            await self._expected()
            self._expected_at = now

    async def _note(self, engine_id: str) -> None:
        if engine := self._find_engine(engine_id):
            try:
                async with asyncio.timeout(EXPECT_S):
                    await asyncio.to_thread(note_engine, self.namespace, engine_id, engine)
            except (RayError, TimeoutError) as error:
                reason = f"Ray keeps no note of the engine with which agents and messages are answered ({error})"
                raise StoreError(f"store {self._assignment.store_id}: {reason}; try again") from error
            self._noted.add(engine_id)

    async def _expected(self) -> Any:
        """Return the actor that is expected."""
        pauses = GrowingPauses(0.02, 0.5)
        try:
            async with asyncio.timeout(EXPECT_S):
                while (actor := await self._try_to_expect()) is None:  # noqa: ASYNC110 - Ray sets no event here
                    await asyncio.sleep(pauses.next_s())
        except (RayError, NoProcessError, TimeoutError) as error:
            self._actor = None
            cause = error.cause if isinstance(error, RayTaskError) else error
            why = str(cause) or f"it has not answered within {EXPECT_S:g} s"
            reason = f"the process that begins scheduled runs cannot be reached ({why})"
            remedy = "schedules are stored while it can be: try again"
            raise StoreError(f"store {self._assignment.store_id}: {reason}; {remedy}") from error
        return actor

    def tell(self, due_at: float) -> None:
        """See `Alarm.tell`. If the actor has ended, another one is made, which finds the delivery in the store."""
        self._spawn(self._tell(due_at), "telling when a delivery is due")

    def _spawn(self, work: Coroutine[Any, Any, None], description: str) -> None:
        task = asyncio.create_task(work)
        watch(task, f"store {self._assignment.store_id}: {description}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def hand_over(self, deliveries: Sequence[Delivery]) -> None:
        """See `Alarm.hand_over`.

        Packed hosts ask the addressees themselves, and tell the actor of what is not carried out within `HAND_OVER_S`.
        A dedicated process tells the actor, since it may leave before an addressee's process has started.
        """
        if not isinstance(self._assignment.placement, Packed):
            self.tell(min((delivery.occurs_at for delivery in deliveries), default=math.inf))
            return
        for delivery in deliveries:
            self._spawn(self._hand_over(delivery), f"handing over delivery {delivery.key!r}")

    async def carry_on(self) -> None:
        """Start the actor if something is to be due in the store; register these settings with one that runs.

        Raises:
            StoreError: the store cannot be read.
        """
        self._actor = await asyncio.to_thread(self._find)
        if self._actor is not None:
            settings = await asyncio.to_thread(self._settings().keep)
            request = packed((settings, self._assignment.placement))
            await reached(self._actor, self._actor.register.remote(request))
        elif await self._has_deliveries():
            await self.expect()

    async def _hand_over(self, delivery: Delivery) -> None:
        self._addressees = self._addressees or Addressees(self.namespace, self._make_lookup)
        try:
            async with asyncio.timeout(HAND_OVER_S):
                await self._addressees.deliver(delivery)
        except Exception:  # noqa: BLE001 - the actor tries it again, and notes why it fails
            await self._tell(delivery.occurs_at)

    def _make_lookup(self) -> DedicatedLookup | PackedLookup:
        from turnwise.actors.cluster.actor_lookup import make_lookup

        assignment = self._assignment
        return make_lookup(assignment.namespace, assignment.store_id, assignment.placement, self._spec, joins=True)

    async def _tell(self, due_at: float) -> None:
        actor, is_told = self._actor, False
        while not is_told:
            actor = actor or await self._expected()
            with suppress(RayActorError):
                is_told = await reached(actor, actor.tell.remote(due_at))
            if not is_told:
                self._expected_at = -math.inf
            actor = None  # unless it is told, it leaves or has ended

    async def _try_to_expect(self) -> Any:
        """Return the actor if it runs, or will, and stays; None if it leaves, has left, or does not answer."""
        actor = self._actor or await asyncio.to_thread(self._find)
        if actor is None:
            self._actor = await asyncio.to_thread(self._make)
            return self._actor
        try:
            async with asyncio.timeout(ANSWER_S):
                self._actor = actor if await reached(actor, actor.expect.remote()) else None
        except TimeoutError:
            is_coming = (await asyncio.to_thread(presence, actor)).is_coming
            self._actor = actor if is_coming else None
        except RayActorError as error:
            self._actor = None
            if error.actor_init_failed:
                raise
        return self._actor

    async def _has_deliveries(self) -> bool:
        from turnwise.actors.cluster.runtime import RayRuntime

        store = await asyncio.to_thread(self._spec.place.open_store, RayRuntime(self._assignment.namespace))
        try:
            return (await store.lease_deliveries("", None)).next_due_at is not None
        finally:
            await store.close()

    def _find(self) -> Any:
        return find_actor(self._assignment.namespace, dispatcher_name(self._assignment.store_id))

    def _make(self) -> Any:
        assignment = self._assignment
        return self._settings().actor(
            DispatcherActor,
            dispatcher_name(assignment.store_id),
            assignment.namespace,
            assignment,
            self._spec.logs,
            max_concurrency=MAX_CALLS,
            **FOR_EVER,
            **nodes_for(self._spec.place),
        )

    def _settings(self) -> ActorSettings:
        return ActorSettings(pickled(self._spec))


class StoreLook:
    """The `DeliveryLook` on Ray: `DispatcherProcess.carry_on`, once, beside the manager that opens the store.

    It begins after `AFTER_S`, so as not to delay the first answer, or when the manager closes. A failure is logged and
    repeated, until `close`.
    """

    def __init__(self, dispatcher: DispatcherProcess, store_id: str) -> None:
        self._look: asyncio.Task[None] | None = None
        self._closes = asyncio.Event()
        self._done: Future[None] = _LOOKS.submit(self._run(dispatcher, store_id))

    async def _run(self, dispatcher: DispatcherProcess, store_id: str) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(AFTER_S):
                await self._closes.wait()
        self._look = asyncio.create_task(retry(dispatcher.carry_on, f"store {store_id}: looking for deliveries"))
        await asyncio.wait({self._look})

    async def close(self) -> None:
        """Return once it is done; end it if that takes long. May be called twice."""
        done = asyncio.wrap_future(self._done)
        _LOOKS.submit(self._hurry())
        await asyncio.wait({done}, timeout=CLOSE_S)
        if not done.done():
            _LOOKS.submit(self._cancel())
            await asyncio.wait({done}, timeout=CLOSE_S)

    async def _hurry(self) -> None:
        self._closes.set()

    async def _cancel(self) -> None:
        if self._look is not None:
            self._look.cancel()
