"""The hosts of this process: one for each store and namespace that a manager has open, shared by these managers."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from turnwise.actors.dispatch.dispatcher import Dispatcher, DispatchSettings
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.engine_override import EngineOverride
from turnwise.actors.hosting.packed_host import PackedHost
from turnwise.actors.hosting.placement import InProcess, Packed
from turnwise.actors.hosting.wire import EngineWanted, HostLoad, Message, Refused, SessionRef
from turnwise.actors.hosting.worker_resources import WorkerResources
from turnwise.actors.in_process.threads import EventLoop
from turnwise.actors.wire_version import unpacked_answer
from turnwise.memory.background import log_failure, retry
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.stores.store_owner import RivalWatch, StoreOwner, are_processes, rivals

LOOK_S = 0.01
"""How often a manager that closes looks whether its host still has something to end, in seconds."""

DISPATCH = DispatchSettings()
"""How hosts hand over deliveries."""

CLOSE_S = 10.0
"""How long a manager that closes waits for what its sessions save, in seconds."""

_log = logging.getLogger(__name__)

LOOP = EventLoop("turnwise-sessions")
"""The event loop of all sessions of this process."""


class Host:
    """The sessions of one store in this process.

    It belongs to the managers that have opened it. When the last of them has closed, each session leaves as soon as it
    is idle; then the host closes its stores. A session that is used later is taken over by the store's next host.

    As long as a manager has it open, the host hands the deliveries of the store to their sessions when they are due. Of
    several processes that have the store open, the one with the lease does. None takes the lease while a Ray has the
    store open, which would lose its sessions and their runs, and the dispatcher of a Ray takes it from a process.

    Args:
        resources: the stores and setups.
        store_id: names the host in the lease of the deliveries, with the address of this process.
        earlier: the store's hosts that have not closed yet.
        forget: called once the host has closed.
    """

    def __init__(
        self,
        resources: WorkerResources,
        placement: InProcess,
        store_id: str,
        earlier: tuple[Host, ...],
        forget: Callable[[Host], None],
    ) -> None:
        self.managers = 0
        """How many managers have it open."""
        self.is_leaving = False
        """Whether it takes no more sessions."""
        self._resources = resources
        self._store_id = store_id
        self._has_dispatcher = False
        self._dispatching: asyncio.Task[None] | None = None
        self._dispatcher: Dispatcher | None = None
        resources.alarm = self
        self._forget = forget
        self._earlier = earlier
        self._closed: Future[None] = Future()
        waits = placement.max_session_waits
        self._sessions = PackedHost(
            resources,
            Packed(hosts=1, max_resident=placement.max_resident, max_session_waits=waits),
            node_id=None,
            save_override=_keep_nothing,
            drop_override=lambda key: None,
            leave=self._leave,
            previous_hosts=earlier,
        )
        if placement.resume_lost:
            LOOP.submit(self._resume_lost())

    @property
    def load(self) -> HostLoad:
        """Its sessions, calls and waits at this moment."""
        return self._sessions.current_load

    def has_loaded(self, key: SessionKey) -> bool:
        """Return whether a session is resident here, or in an earlier host that has not closed. For any thread."""
        return self._sessions.has_loaded(key) or any(host.has_loaded(key) for host in self._earlier)

    def dispatch(self) -> None:
        """Hand over deliveries until the host leaves. May be repeated."""
        if not self._has_dispatcher:
            self._has_dispatcher = True
            LOOP.submit(self._dispatch())

    namespace: str | None = None
    """See `Alarm.namespace`."""

    async def expect(self, engine_ids: Collection[str] = ()) -> None:
        """See `Alarm.expect`: it runs already, or whoever opens the store next carries out what is due."""

    def tell(self, due_at: float) -> None:
        """See `Alarm.tell`."""
        if self._dispatcher:
            self._dispatcher.tell(due_at)

    def hand_over(self, deliveries: Sequence[Delivery]) -> None:
        """See `Alarm.hand_over`."""
        if self._dispatcher:
            self._dispatcher.hand_over(deliveries)

    async def wake(self) -> None:
        """Look for what is due at once, as the store's clock was set."""
        if self._dispatcher:
            self._dispatcher.wake()

    def announce_quotas(self) -> None:
        """Hold quotas as they are in the store now. Does not wait; what is asked of the host later comes after it."""
        LOOP.submit(self._forget_quotas())

    async def _forget_quotas(self) -> None:
        self._resources.forget_quotas()

    def announce_webhooks(self) -> None:
        """Tell webhooks as they are in the store now, and send what is due. Does not wait."""
        LOOP.submit(self._announce_webhooks())

    async def _announce_webhooks(self) -> None:
        self._resources.forget_webhooks()
        await self.wake()

    def submit(self, request: bytes) -> Future[bytes]:
        """Begin a request; return the future of its answer. Cancelling the future does not cancel the request."""
        return LOOP.submit(self._answer(request))

    async def release(self, key: SessionKey) -> bool:
        """See `PreviousHost.release`."""
        return await self._sessions.release(key)

    async def call(self, request: bytes, key: SessionKey) -> bytes:
        """See `PreviousHost.call`."""
        return await self._sessions.call(request)

    async def close(self) -> None:
        """Let sessions leave once they have saved what memories are to have, and return when they have.

        If runs are active, or it takes longer than `CLOSE_S`, return at once: it goes on beside the caller.
        """
        await asyncio.wrap_future(LOOP.submit(self._close()))

    async def _answer(self, request: bytes) -> bytes:
        try:
            return await self._sessions.answer(request)
        finally:
            if HOSTS.leaves(self):
                await self._retire()

    async def _close(self) -> None:
        await self._retire()
        closed = asyncio.wrap_future(self._closed)
        until = time.monotonic() + CLOSE_S
        while not closed.done() and not self._sessions.has_runs and time.monotonic() < until:
            await asyncio.wait({closed}, timeout=LOOK_S)

    async def _retire(self) -> None:
        dispatching, self._dispatching = self._dispatching, None
        if dispatching:
            dispatching.cancel()
            await asyncio.wait({dispatching}, timeout=CLOSE_S)
        await self._sessions.retire()

    async def _dispatch(self) -> None:
        self._dispatching = asyncio.current_task()
        await retry(self._dispatch_from_store, f"store {self._store_id}: opening it for deliveries")

    async def _dispatch_from_store(self) -> None:
        holder = f"{StoreOwner.of_this_process().short_address}/{self._store_id}"
        store = await self._resources.open()
        watch = RivalWatch(store)

        async def outranks(rival: str) -> bool:
            others = await watch.look()
            return are_processes(others) and (not rival or watch.has_ended(rival.rpartition("/")[0]))

        self._dispatcher = Dispatcher(store, self._deliver, holder, outranks=outranks, settings=DISPATCH)
        await self._dispatcher.run()

    async def _deliver(self, delivery: Delivery) -> None:
        """Have a session carry out a delivery. If the dispatcher stops waiting, the session goes on."""
        call, ref = verbs.deliver(delivery), SessionRef(delivery.addressee)
        answer = await self._ask(call.to(ref, delivery.engine_id or ""))
        if isinstance(answer, EngineWanted):  # another process has sent it, or this one caches it no longer
            answer = await self._ask(call.to(ref))
        if isinstance(answer, Refused):
            raise answer.error

    async def _ask(self, message: Message) -> Any:
        answer: bytes = await asyncio.wrap_future(self.submit(message.pickled()))
        return unpacked_answer(answer)

    def _leave(self) -> None:
        LOOP.submit(self._close_stores())

    async def _close_stores(self) -> None:
        try:
            await self._resources.close()
        except Exception as error:  # noqa: BLE001 - it is logged; nothing uses them any more
            log_failure("closing the stores of this process", error)
        self._forget(self)
        self._closed.set_result(None)

    async def _resume_lost(self) -> None:
        """Go on with the runs of a process that was killed, unless another one that lives has the store open."""
        try:
            others = await rivals(await self._resources.open())
        except Exception as error:  # noqa: BLE001 - the first caller is told
            _log.debug("lost runs are not looked for: %s", error)
            return
        if not others and not self.is_leaving:
            await self._sessions.recover(lambda key: True)


async def _keep_nothing(session: SessionKey, override: EngineOverride, engines: Mapping[str, bytes]) -> None:
    """Note no engines for a next process: there is none that could use them."""


class Hosts:
    """The hosts of this process, by store. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hosts: dict[str, list[Host]] = {}
        """Those that have not closed, the newest last."""

    def open(self, store_id: str, make_resources: Callable[[], WorkerResources], placement: InProcess) -> Host:
        """Return the store's host for one more manager, which closes it by `close`."""
        with self._lock:
            host = self._taking(store_id, make_resources, placement)
            host.managers += 1
            if placement.resume_lost:
                host.dispatch()
            return host

    def reopen(self, store_id: str, make_resources: Callable[[], WorkerResources], placement: InProcess) -> Host:
        """Return the store's host for one request of a manager that is closed."""
        with self._lock:
            return self._taking(store_id, make_resources, placement)

    def find(self, store_id: str) -> Host | None:
        """Return the store's newest host, or None."""
        with self._lock:
            hosts = self._hosts.get(store_id)
            return hosts[-1] if hosts else None

    async def close(self, host: Host) -> None:
        """Note that one of its managers is closed; if it was the last one, see `Host.close`."""
        with self._lock:
            host.managers -= 1
        if self.leaves(host):
            await host.close()

    def leaves(self, host: Host) -> bool:
        """Return whether a host takes no more sessions, since no manager has it open."""
        with self._lock:
            host.is_leaving = host.is_leaving or not host.managers
            return host.is_leaving

    def _taking(self, store_id: str, make_resources: Callable[[], WorkerResources], placement: InProcess) -> Host:
        hosts = self._hosts.setdefault(store_id, [])
        if not hosts or hosts[-1].is_leaving:
            forget = partial(self._forget, store_id)
            hosts.append(Host(make_resources(), placement, store_id, tuple(hosts), forget))
        return hosts[-1]

    def _forget(self, store_id: str, host: Host) -> None:
        with self._lock:
            hosts = self._hosts[store_id]
            hosts.remove(host)
            if not hosts:
                del self._hosts[store_id]

    def wake(self) -> None:
        """Have all hosts look for what is due, as a clock of a store was set."""
        with self._lock:
            hosts = [host for hosts in self._hosts.values() for host in hosts]
        for host in hosts:
            LOOP.submit(host.wake())

    def forget_all(self) -> None:
        """Forget all hosts, in a process that was forked: their event loop runs in its parent only."""
        self._lock = threading.Lock()
        self._hosts = {}


HOSTS = Hosts()
os.register_at_fork(after_in_child=HOSTS.forget_all)
