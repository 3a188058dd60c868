"""`RayRuntime`: sessions, memories and stores in memory of managers whose placement is `Dedicated` or `Packed`.

Processes of sessions use it too, to open their stores. So its methods import what only managers need.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import ray

from turnwise.actors.cluster.ray_runtime import connect, interruptible, this_ray, will_start
from turnwise.actors.hosting.identity import identity, pickled
from turnwise.actors.hosting.placement import Dedicated, Packed
from turnwise.actors.hosting.runtime import DeliveryLook, MemoryProcess, SessionProcesses
from turnwise.actors.hosting.store_spec import StoreSpec, check_folders
from turnwise.actors.hosting.wire import DrainReport, HostInfo
from turnwise.actors.wire_version import unpacked_settings
from turnwise.memory.longterm.base import LongTermMemory
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.store_owner import StoreOwner

if TYPE_CHECKING:
    from turnwise.actors.cluster.actor_spec import ActorSpec
    from turnwise.actors.hosting.worker_resources import SessionSetup


class RayRuntime:
    """The `Runtime` that is the Ray cluster of this process, connected or started by `connect`.

    Args:
        namespace: Ray's namespace of all actors.
        placement: which actor hosts which session.
    """

    def __init__(self, namespace: str, placement: Dedicated | Packed = Dedicated()) -> None:
        self._namespace = namespace
        self._placement = placement

    @property
    def owner(self) -> StoreOwner:
        """See `Runtime.owner`."""
        return this_ray()

    def connect(self, stores: Sequence[object], notes: object) -> None:
        """See `Runtime.connect`."""
        from turnwise.actors.cluster.node_choice import check_files

        if will_start():  # otherwise, the files may be on another node
            check_folders(*stores)
        connect()
        check_files(stores, notes)

    def starting(self) -> AbstractContextManager[None]:
        """See `Runtime.starting`."""
        return interruptible()

    def identity(self, value: object) -> str:
        """See `Runtime.identity`."""
        return identity(value)

    def setup_of(self, setup: SessionSetup) -> tuple[str, bytes]:
        """See `Runtime.setup_of`."""
        data = pickled(setup)
        return identity(setup), data

    def dumps(self, value: object) -> bytes:
        """See `Runtime.dumps`."""
        return pickled(value)

    def loads(self, data: bytes) -> Any:
        """See `Runtime.loads`."""
        return unpacked_settings(data)

    def processes(self, store_id: str, place: StoreSpec, setup: tuple[str, bytes]) -> SessionProcesses:
        """See `Runtime.processes`."""
        from turnwise.actors.cluster.actor_lookup import make_lookup

        return make_lookup(self._namespace, store_id, self._placement, _spec_of(place, setup))

    def look_for_deliveries(self, store_id: str, place: StoreSpec, setup: tuple[str, bytes]) -> DeliveryLook:
        """See `Runtime.look_for_deliveries`."""
        from turnwise.actors.cluster.dispatcher_process import DispatcherProcess, StoreLook

        spec = _spec_of(place, setup)
        return StoreLook(DispatcherProcess(self._namespace, store_id, self._placement, spec), store_id)

    def announce_quotas(self, store_id: str) -> None:
        """See `Runtime.announce_quotas`. Actors notice by themselves."""

    def announce_webhooks(self, store_id: str) -> None:
        """See `Runtime.announce_webhooks`. Actors notice by themselves."""

    def live_processes(self, store_id: str) -> SessionProcesses:
        """See `Runtime.live_processes`."""
        from turnwise.actors.cluster.actor_lookup import LiveLookup

        return LiveLookup(self._namespace, store_id)

    def memory_process(self, memory: LongTermMemory) -> MemoryProcess:
        """See `Runtime.memory_process`."""
        from turnwise.actors.cluster.actors.memory_actor import MemoryActorProcess

        return MemoryActorProcess(memory, self._namespace)

    def open_shared_store(self, url: str) -> SessionStore:
        """See `Runtime.open_shared_store`."""
        from turnwise.actors.cluster.actors.store_actor import remote_store

        return remote_store(url, self._namespace)

    def has_shared_store(self, url: str) -> bool:
        """See `Runtime.has_shared_store`."""
        from turnwise.actors.cluster.actors.store_actor import is_there

        return is_there(url, self._namespace)

    async def hosts(self, store_id: str) -> list[HostInfo]:
        """See `Runtime.hosts`. Finds none if this process is not connected to Ray."""
        from turnwise.actors.cluster.hosts import find_hosts

        return await find_hosts(self._namespace, store_id) if ray.is_initialized() else []

    async def drain(self, node_id: str | None, timeout_s: float) -> DrainReport:
        """See `Runtime.drain`."""
        from turnwise.actors.cluster.draining import drain_node

        return await drain_node(node_id, timeout_s)


def _spec_of(place: StoreSpec, setup: tuple[str, bytes]) -> ActorSpec:
    from turnwise.actors.cluster.actor_spec import ActorSpec
    from turnwise.actors.hosting.logs import LogSettings

    return ActorSpec(place, *setup, LogSettings.of_this_process())
