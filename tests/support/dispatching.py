"""Sessions of a store and dispatchers of it, each in a simulated process that is replaced when it dies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from turnwise.actors.dispatch.dispatcher import Dispatcher
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.stores.base import DeliveryLease
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing.faults import Faults
from turnwise.testing.faulty_store import FaultyStore
from turnwise.testing.process import Process
from turnwise.testing.world import World

LOOK_S = 0.5


class Sessions:
    """Sessions of one store. The process of each begins when something is delivered to it.

    Args:
        settings: of each `World`.
    """

    def __init__(self, faults: Faults, store: InMemoryStore, **settings: Any) -> None:
        self.store = store
        self.worlds: dict[str, World] = {}
        self._faults = faults
        self._settings = settings

    def of(self, session_id: str) -> World:
        if session_id not in self.worlds:
            self.worlds[session_id] = World(self._faults, session_id=session_id, store=self.store, **self._settings)
        return self.worlds[session_id]

    async def deliver(self, delivery: Delivery) -> None:
        world = self.of(delivery.addressee.session_id)
        if delivery.to_session is None:
            await world.ask("admission.deliver", delivery.key, delivery.delivery_id, delivery.revision)
        else:
            await world.ask("inbox.receive", delivery)

    async def come_back(self) -> None:
        """Replace the processes that died, so that their runs go on."""
        for world in list(self.worlds.values()):
            await world.ask("transactor.activate")

    async def audit(self, **settings: Any) -> None:
        for world in self.worlds.values():
            (await world.audit(**settings)).check()


class Supervised:
    """A dispatcher in a process that is replaced when it dies, as Ray replaces an actor."""

    def __init__(
        self,
        faults: Faults,
        store: Any,
        deliver: Callable[[Delivery], Awaitable[None]],
        name: str = "one",
        **options: Any,
    ) -> None:
        self._name = name
        self._store: Any = FaultyStore(store, faults, name="dispatch")
        self._deliver = deliver
        self._options = options
        self._count = 0

    async def run_until(self, is_done: Callable[[], Awaitable[bool]]) -> None:
        while not await is_done():
            self._count += 1
            process = Process(f"dispatcher {self._name} {self._count}")
            dispatcher = Dispatcher(self._store, self._deliver, process.name, **self._options)
            running = asyncio.create_task(process.call(dispatcher.run()))
            while not process.is_dead and not await is_done():
                await asyncio.sleep(LOOK_S)
            process.kill()
            await asyncio.gather(running, return_exceptions=True)


class LeaseForAll:
    """A store that gives each dispatcher the lease, as if the others were frozen: all of them work at once."""

    def __init__(self, inner: InMemoryStore) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def lease_deliveries(self, holder: str, ttl_s: float | None) -> DeliveryLease:
        lease = await self.inner.lease_deliveries("", None)
        return replace(lease, holder=holder, until=lease.now + 90.0)
