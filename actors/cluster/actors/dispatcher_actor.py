"""`DispatcherActor`: the Ray actor that hands a store's deliveries to their sessions. It loads little before it works.

This module imports nothing heavy, since session processes import it to start the actor.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from turnwise.actors.cluster.actor_names import dispatcher_name, find_actor
from turnwise.actors.cluster.actor_settings import Kept, drop_notes, keep, note, notes, read_settings
from turnwise.actors.cluster.actors.loading import Loading, StartsInRay
from turnwise.actors.cluster.actors.shutdown import FILES, Shutdown, where
from turnwise.actors.cluster.addressees import Addressees
from turnwise.actors.cluster.calls.actor_waiting import reached
from turnwise.actors.hosting.process_memory import collect_rarely
from turnwise.actors.hosting.reach import NoProcessError
from turnwise.actors.wire_version import packed, unpacked, unpacked_answer, unpacked_settings
from turnwise.errors import WireVersionError
from turnwise.memory.background import log_failure, retry, watch

if TYPE_CHECKING:
    from turnwise.actors.cluster.actor_lookup import DedicatedLookup, PackedLookup
    from turnwise.actors.cluster.actor_spec import ActorSpec
    from turnwise.actors.dispatch.dispatcher import Dispatcher
    from turnwise.actors.hosting.placement import Dedicated, Packed
    from turnwise.memory.deliveries.records import Delivery
    from turnwise.memory.stores.base import SessionStore

LEAVE_S = 300.0
"""For how many seconds nothing has to be due, and nobody to expect the actor, before it leaves. It is above the minute
after which the store is asked again, and above the time that a commit may take."""

STOP_S = 10.0
"""How long a dispatcher may take to give up its lease, in seconds."""


@dataclass(frozen=True)
class DispatcherAssignment:
    """Whose deliveries a dispatcher's actor carries out, and where the sessions are."""

    namespace: str
    store_id: str
    placement: Dedicated | Packed
    """That of the process that started the actor, until a manager registers another."""
    leave_s: float = LEAVE_S


class DispatcherActor:
    """`Dispatcher` on Ray. Undecorated: `DispatcherProcess` makes it an actor.

    Who stores a delivery first has the actor answer `expect`, which keeps it for `leave_s` seconds, and calls `tell`
    after the commit. If it is killed in between, the actor finds the delivery when it asks the store next. Once nothing
    is due for `leave_s` seconds and nobody expects it, it leaves: from that moment `expect` is refused, and the caller
    makes the next actor. Deciding to leave awaits nothing, so no `expect` is accepted by an actor that leaves. After
    a commit that took longer than `leave_s`, `tell` is refused likewise.

    Args:
        start: a pickled `ActorSpec`, or the key of one, with the assignment and the `LogSettings`: see `ActorSettings`.
    """

    _title = "Dispatcher"
    """Ray wants the name of the process also where the constructor has failed."""

    _assignment: DispatcherAssignment

    def __init__(self, start: bytes) -> None:
        collect_rarely()
        self._misfit: WireVersionError | None = None
        """Why it cannot read what it was started with. Callers are told, and it leaves."""
        try:
            self._settings, self._assignment, logs = unpacked(start)
            self._placement = self._assignment.placement
            self._title = f"Dispatcher({self._assignment.store_id})"
            logs.apply()
        except WireVersionError as error:
            self._misfit = error
        self._leave = Shutdown(self._forget)
        self._is_leaving = False
        self._needed_at = time.monotonic()
        """When somebody expected it last."""
        self._dispatcher: Dispatcher | None = None
        self._told_at = math.inf
        """The earliest time that it was told before it had a dispatcher."""
        self._working: asyncio.Task[None] | None = None
        self._addressees: Addressees | None = None
        self._registering = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        context = ray.get_runtime_context()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # raised within Ray
            is_back = context.was_current_actor_reconstructed
            actor_name = str(context.get_actor_name())
        self._loading = Loading(
            self._load,
            actor_name=actor_name,
            starts=StartsInRay(str(context.get_actor_id())) if is_back else None,
            leave=self._end,
        )
        self._leave.actor.begin.remote()

    def __repr__(self) -> str:
        """Return what Ray's dashboard and log lines call the process."""
        return self._title

    async def begin(self) -> None:
        """Begin to work. May be repeated."""
        if self._working is None:
            self._working = asyncio.create_task(retry(self._work, f"{self}: opening the store"))

    async def where(self) -> tuple[str, int, int | None]:
        """Return the id of this process's node, the process id, and its memory in bytes."""
        return where()

    async def drain(self, timeout_s: float, why: str) -> str:
        """End this process; Ray starts the next one elsewhere, which ends its lease. Returns before that.

        Returns why it stays instead: it opens files of this node; empty if it goes. May be repeated.
        """
        if not self._misfit and (await asyncio.to_thread(self._read_spec)).place.is_local:
            return FILES
        self._leave.move()
        return ""

    async def expect(self) -> bool:
        """Stay for `leave_s` seconds; return False if it leaves already, so that another actor has to be made."""
        if self._misfit:
            raise self._misfit
        self._needed_at = time.monotonic()
        return not self._is_leaving

    async def tell(self, due_at: float) -> bool:
        """See `Dispatcher.tell`; return False if it leaves already, so that another actor has to be made.

        If the actor of another namespace has the lease, it passes that on.
        """
        self._needed_at = time.monotonic()
        if self._dispatcher is not None:
            self._dispatcher.tell(due_at)
        else:  # until it has opened the store
            self._told_at = min(self._told_at, due_at)
        return not self._is_leaving

    async def deliver(self, request: bytes) -> bytes:
        """Have a session of this namespace carry out a delivery that another namespace's actor found to be due.

        Returns None, or `Refused` if the session refuses it, pickled as the delivery is.
        """
        from turnwise.actors.hosting.wire import Refused
        from turnwise.errors import TurnwiseError

        self._needed_at = time.monotonic()
        try:
            await self._deliver_here(unpacked(request))
        except TurnwiseError as error:
            return packed(Refused(error))
        return packed(None)

    async def register(self, request: bytes) -> None:
        """Start sessions' processes as this manager does from now on, if its sessions live elsewhere than they did.

        Once it returns, the actor's next process has these settings, too.

        Args:
            request: the settings, or their key, and the placement, pickled.
        """
        settings, placement = unpacked(request)
        async with self._registering:
            await self._loading.host()  # which reads the earlier ones
            if _layout_of(placement) == _layout_of(self._placement):
                return
            await asyncio.to_thread(self._note, settings, placement)
            self._settings, self._placement, self._addressees = settings, placement, None

    async def _work(self) -> None:
        from turnwise.actors.cluster.runtime import RayRuntime
        from turnwise.actors.dispatch.dispatcher import Dispatcher
        from turnwise.memory.stores.store_owner import LABEL, RivalWatch, are_processes

        await self._loading.pause()
        store = await self._loading.host()
        await self._loading.settle()
        owner = RayRuntime(self._assignment.namespace).owner
        of_this_ray = f"{owner.label.removeprefix(LABEL)}-"
        of_this_actor = f"{of_this_ray}{self._assignment.store_id}-"
        holder = of_this_actor + secrets.token_hex(4)
        watch, predecessor = RivalWatch(store), (await store.lease_deliveries("", None)).holder

        async def outranks(rival: str) -> bool:
            if rival.startswith(of_this_ray):
                return rival == predecessor and rival.startswith(of_this_actor)
            address = rival.rpartition("/")[0]
            if not rival or are_processes([address]):
                return True
            await watch.look()
            return watch.has_ended(address)

        dispatcher = self._dispatcher = Dispatcher(
            store, self._deliver, holder, outranks=outranks, pass_on=self._pass_on
        )
        dispatcher.tell(self._told_at)
        running = asyncio.create_task(dispatcher.run())
        try:
            while not self._may_leave(dispatcher):
                await asyncio.wait({running}, timeout=self._assignment.leave_s / 4)
                if running.done():
                    running.result()
            self._is_leaving = True
        finally:
            running.cancel()
            await asyncio.wait({running}, timeout=STOP_S)
        self._end()

    def _may_leave(self, dispatcher: Dispatcher) -> bool:
        if dispatcher.idle_since is None:
            return False
        idle_since = asyncio.get_running_loop().time() - dispatcher.idle_since
        return min(idle_since, time.monotonic() - self._needed_at) >= self._assignment.leave_s

    def _end(self) -> None:
        self._is_leaving = True
        self._leave()

    async def _deliver(self, delivery: Delivery) -> None:
        """Have a session carry out a delivery, in a process of the delivery's namespace while that has a dispatcher.

        A namespace has one as long as something is to be due there, unless somebody ended it.
        """
        from turnwise.actors.hosting.wire import Refused
        from turnwise.errors import SessionLostError

        namespace = delivery.namespace or self._assignment.namespace
        if namespace != self._assignment.namespace and (other := await asyncio.to_thread(self._find_in, namespace)):
            try:
                answer = unpacked_answer(await reached(other, other.deliver.remote(packed(delivery))))
            except (RayError, NoProcessError) as error:
                reason = f"the dispatcher of namespace {namespace!r} cannot be reached ({error})"
                raise SessionLostError(delivery.addressee.session_id, reason) from error
            if isinstance(answer, Refused):
                raise answer.error
        else:
            await self._deliver_here(delivery)

    def _find_in(self, namespace: str) -> Any:
        return find_actor(namespace, dispatcher_name(self._read_spec().place.store_id_in(namespace)))

    def _pass_on(self, leader: str, due_at: float) -> None:
        """Tell the actor of this Ray that has the lease. If there is none, whoever has it asks the store in time."""
        telling = asyncio.create_task(self._tell_leader(leader, due_at))
        watch(telling, f"{self}: telling the dispatcher of another namespace")
        self._tasks.add(telling)
        telling.add_done_callback(self._tasks.discard)

    async def _tell_leader(self, leader: str, due_at: float) -> None:
        store_id = leader.rpartition("-")[0].rpartition("-")[2]
        named_actors = await asyncio.to_thread(ray.util.list_named_actors, all_namespaces=True)
        names = [actor["namespace"] for actor in named_actors if actor["name"] == dispatcher_name(store_id)]
        for namespace in names:
            if actor := await asyncio.to_thread(find_actor, namespace, dispatcher_name(store_id)):
                await reached(actor, actor.tell.remote(due_at))

    async def _deliver_here(self, delivery: Delivery) -> None:
        """See `Addressees.deliver`."""
        async with self._registering:
            addressees = self._addressees = self._addressees or Addressees(
                self._assignment.namespace, self._make_lookup
            )
        await addressees.deliver(delivery)

    def _make_lookup(self) -> DedicatedLookup | PackedLookup:
        from turnwise.actors.cluster.actor_lookup import make_lookup

        namespace, store_id = self._assignment.namespace, self._assignment.store_id
        return make_lookup(namespace, store_id, self._placement, self._read_spec(), joins=True)

    async def _load(self) -> SessionStore:
        return await asyncio.to_thread(self._open)

    def _open(self) -> SessionStore:
        from turnwise.actors.cluster.runtime import RayRuntime

        if self._misfit:
            raise self._misfit
        for noted in notes(f"{self._note_name}/"):
            self._settings, self._placement = unpacked(noted)
        return self._read_spec().place.open_store(RayRuntime(self._assignment.namespace))

    def _read_spec(self) -> ActorSpec:
        spec: ActorSpec = unpacked_settings(read_settings(self._settings))
        return spec

    def _note(self, settings: bytes | Kept, placement: Dedicated | Packed) -> None:
        stored_settings = keep(settings) if isinstance(settings, bytes) else settings
        note(self._note_name, packed((stored_settings, placement)), [stored_settings])

    @property
    def _note_name(self) -> str:
        return f"dispatchers/{_digest(self._assignment)}"

    def _forget(self) -> Future[None] | None:
        return None if self._misfit else _THREAD.submit(_drop, self._note_name)


_THREAD = ThreadPoolExecutor(1, thread_name_prefix="turnwise-dispatcher")


def _drop(note_name: str) -> None:
    try:
        drop_notes(f"{note_name}/")
    except Exception as error:  # noqa: BLE001 - a note that stays takes some bytes
        log_failure("dropping the note of a dispatcher", error)


def _digest(assignment: DispatcherAssignment) -> str:
    return hashlib.sha256(f"{assignment.namespace}\n{assignment.store_id}".encode()).hexdigest()[:32]


def _layout_of(placement: Dedicated | Packed) -> tuple[str, int]:
    """Return what tells placements apart whose sessions live in different processes."""
    return type(placement).__name__, getattr(placement, "hosts", 0)
