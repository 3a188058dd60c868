"""Actor lookup: finds, or creates, the actor that hosts a session, given its key."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

from turnwise.actors.cluster.actor_names import FOR_EVER, actor_name, actors_of, find_actor
from turnwise.actors.cluster.actor_settings import ActorSettings
from turnwise.actors.cluster.actor_spec import ActorSpec
from turnwise.actors.cluster.actors.packed_actor import MAX_CALLS, HostAssignment, make_host
from turnwise.actors.cluster.actors.session_actor import SessionActor, SessionAssignment
from turnwise.actors.cluster.calls.actor_process import ActorProcess, call_errors
from turnwise.actors.cluster.calls.actor_waiting import reached
from turnwise.actors.cluster.node_choice import nodes_for
from turnwise.actors.cluster.sharding import Layout, LayoutHosts, find_hosts
from turnwise.actors.cluster.spare_processes import SpareProcesses
from turnwise.actors.hosting.identity import pickled
from turnwise.actors.hosting.placement import Dedicated, Packed
from turnwise.actors.hosting.reach import NoProcessError
from turnwise.actors.wire_version import unpacked_answer
from turnwise.errors import OverloadedError, SessionLostError, WireVersionError
from turnwise.memory.conversation.sessions import SessionKey

NOTED = 1000
"""How many sessions' actors a process caches; others are looked up by name again."""

READY_S = 60.0
"""How long a manager waits for hosts to be loaded before they replace others, in seconds."""

RETIRE_S = 10.0
"""How long a manager waits for replaced hosts to acknowledge the newer layout, in seconds."""

ANSWER_S = 10.0
"""How long a packed host may take to say which sessions it has loaded, in seconds."""

LOOK_S = 0.1
"""The shortest time between two searches for packed hosts, in seconds: thousands of calls may miss one at once."""


class _LookupOfOne(ABC):
    """Base of the lookups that look up each session's actor by name, and cache it."""

    def __init__(self, namespace: str, store_id: str) -> None:
        self._namespace = namespace
        self._store_id = store_id
        self._actors: OrderedDict[SessionKey, Any] = OrderedDict()
        """The cached actors by session, least recently used first."""
        self._lock = threading.Lock()
        """Held while the cached actors or their order change."""

    def of(self, key: SessionKey) -> ActorProcess:
        with call_errors():
            return ActorProcess(self._actor(key), is_shared=False)

    def _actor(self, key: SessionKey) -> Any:
        with self._lock:
            if actor := self._actors.get(key):
                self._actors.move_to_end(key)
                return actor
        return self._note(key, self._look_up(key))

    def _note(self, key: SessionKey, actor: Any) -> Any:
        with self._lock:
            self._actors[key] = actor
            if len(self._actors) > NOTED:
                self._actors.popitem(last=False)
        return actor

    def invalidate(self, key: SessionKey) -> None:
        with self._lock:
            self._actors.pop(key, None)

    def is_live(self, key: SessionKey) -> bool:
        if key not in self._actors:
            try:
                actor = self._find(key)
            except RayError:  # Ray is away: the store can still be read
                return False
            if actor is None:
                return False
            self._note(key, actor)
        return True

    async def loaded(self, keys: Collection[SessionKey]) -> Collection[SessionKey]:
        return await asyncio.to_thread(lambda: [key for key in keys if self.is_live(key)])

    async def close(self) -> None:  # noqa: B027 - there is nothing to close in any of them
        """Do nothing: the actors serve others too."""

    def _find(self, key: SessionKey) -> Any:
        """Return the session's dedicated actor, or None."""
        return find_actor(self._namespace, actor_name(self._store_id, key))

    @abstractmethod
    def _look_up(self, key: SessionKey) -> Any: ...


class DedicatedLookup(_LookupOfOne):
    """One actor for each session, named by the session's user and id.

    Args:
        node_options: the nodes on which actors start, as Ray options.
    """

    def __init__(
        self, namespace: str, store_id: str, placement: Dedicated, spec: ActorSpec, node_options: dict[str, Any]
    ) -> None:
        super().__init__(namespace, store_id)
        self._placement = placement
        self._logs = spec.logs
        self._settings = ActorSettings(pickled(spec))
        self._settings.keep()  # now, on the thread that starts the manager
        self._node_options = node_options
        self._spares = SpareProcesses(placement.spare_processes)

    def warm(self, key: SessionKey, request: bytes) -> None:
        self._actor(key).call.remote(request)

    def _look_up(self, key: SessionKey) -> Any:
        name, most = actor_name(self._store_id, key), self._placement.max_live
        if most is not None and not self.is_live(key):
            prefix = actors_of(self._store_id)
            named_actors = ray.util.list_named_actors(all_namespaces=True)
            live = [
                entry
                for entry in named_actors
                if entry["namespace"] == self._namespace and entry["name"].startswith(prefix)
            ]
            if len(live) >= most:
                raise OverloadedError(key.session_id, "max_live", most)
        options = {**FOR_EVER, **self._node_options, "max_concurrency": self._placement.max_waits + MAX_CALLS}
        assignment = SessionAssignment(self._namespace, self._store_id, key, self._placement)
        actor = self._settings.actor(SessionActor, name, self._namespace, assignment, self._logs, **options)
        self._spares.prepare_soon()
        return actor


class PackedLookup:
    """A fixed number of actors; each hosts the sessions whose users and ids hash to it.

    If the number of hosts changed, the hosts of the earlier layout are notified, so that they hand over their sessions.
    Before that, the new hosts are loaded, which may take seconds; until then the earlier hosts answer as before.

    Args:
        node_options: the nodes on which actors start, as Ray options.
        joins: whether it takes the newest layout as it is, if there is one.
    """

    def __init__(
        self,
        namespace: str,
        store_id: str,
        limits: Packed,
        spec: ActorSpec,
        node_options: dict[str, Any],
        *,
        joins: bool = False,
    ) -> None:
        self._namespace = namespace
        self._store_id = store_id
        self._limits = limits
        self._logs = spec.logs
        self._settings = ActorSettings(pickled(spec))
        self._node_options = node_options
        hosts = find_hosts(namespace, store_id)
        newest = hosts[0] if hosts else LayoutHosts(Layout(0, 0), {})
        is_same = newest.layout.hosts == limits.hosts or bool(joins and hosts)
        self._hosts = newest if is_same else LayoutHosts(newest.layout.next(limits.hosts), {})
        self._actors = self._make_all()
        self._looked_at = 0.0
        names = [name for earlier in hosts if earlier.layout < self._hosts.layout for name in earlier.names(store_id)]
        if earlier := [actor for name in names if (actor := find_actor(namespace, name)) is not None]:
            loaded = [actor.open.options(max_task_retries=0).remote() for actor in self._actors]
            ray.wait(loaded, num_returns=len(loaded), timeout=READY_S)  # one that fails is retried by who needs it
            notified = [actor.retire.options(max_task_retries=0).remote() for actor in earlier]
            # One that does not answer has exited, or restarts and then finds the newer layout itself.
            ray.wait(notified, num_returns=len(notified), timeout=RETIRE_S)

    def of(self, key: SessionKey) -> ActorProcess:
        return ActorProcess(self._actors[self._hosts.layout.index_of(key)], is_shared=True)

    def invalidate(self, key: SessionKey) -> None:
        now = time.monotonic()
        if now < self._looked_at + LOOK_S:
            return
        self._looked_at = now
        with suppress(RayError):  # Ray is away: those that are known may answer, or say so
            for hosts in find_hosts(self._namespace, self._store_id)[:1]:
                if hosts.layout >= self._hosts.layout:
                    self._hosts = hosts
            self._actors = self._make_all()

    def warm(self, key: SessionKey, request: bytes) -> None:
        """Do nothing: the hosts are started already."""

    def is_live(self, key: SessionKey) -> bool:
        return True

    async def loaded(self, keys: Collection[SessionKey]) -> Collection[SessionKey]:
        layout, actors = self._hosts.layout, self._actors
        hosts = [(actors[index], own) for index, own in _by_host(layout, keys).items()] + await self._replaced(keys)
        loaded = await asyncio.gather(*(_loaded_by(actor, own) for actor, own in hosts))
        return set().union(*loaded)

    async def _replaced(self, keys: Collection[SessionKey]) -> list[tuple[Any, set[SessionKey]]]:
        """Return the hosts that were replaced and have not left, each with the sessions that it may have."""

        def find() -> list[tuple[Any, set[SessionKey]]]:
            replaced: list[tuple[Any, set[SessionKey]]] = []
            for hosts in find_hosts(self._namespace, self._store_id):
                own = _by_host(hosts.layout, keys)
                for index, numbers in hosts.successors.items():
                    is_newest = hosts.layout == self._hosts.layout
                    for number in numbers:
                        name = hosts.layout.actor_name(self._store_id, index, number)
                        is_replaced = not (is_newest and number == self._hosts.newest(index))
                        if is_replaced and index in own and (actor := find_actor(self._namespace, name)) is not None:
                            replaced.append((actor, own[index]))
            return replaced

        return await asyncio.to_thread(find)

    async def close(self) -> None:
        """Do nothing: the hosts serve others too."""

    def _make_all(self) -> list[Any]:
        layout = self._hosts.layout
        assignments = (
            HostAssignment(self._namespace, self._store_id, layout, index, self._limits, self._hosts.newest(index))
            for index in range(layout.hosts)
        )
        return [make_host(self._settings, host, self._logs, self._node_options) for host in assignments]


def _by_host(layout: Layout, keys: Collection[SessionKey]) -> dict[int, set[SessionKey]]:
    """Return the sessions by the indexes of their hosts."""
    by_host: dict[int, set[SessionKey]] = {}
    for key in keys:
        by_host.setdefault(layout.index_of(key), set()).add(key)
    return by_host


async def _loaded_by(host: Any, keys: set[SessionKey]) -> set[SessionKey]:
    """Return which of a packed host's sessions it has loaded; all of them if it does not answer in time."""
    try:
        async with asyncio.timeout(ANSWER_S):
            answer = await reached(host, host.residents.options(max_task_retries=0).remote())
            return keys.intersection(unpacked_answer(answer))
    except (RayError, NoProcessError, TimeoutError, WireVersionError):
        return keys


class LiveLookup(_LookupOfOne):
    """Finds live actors only, for a process in which no manager is open and which can create no actors."""

    def warm(self, key: SessionKey, request: bytes) -> None:
        """Do nothing: the session is live already, or cannot be started from here."""

    def _find(self, key: SessionKey) -> Any:
        if not ray.is_initialized():  # a read-only manager works without Ray
            return None
        actor = super()._find(key)
        for hosts in find_hosts(self._namespace, self._store_id)[:1] if actor is None else ():
            actor = find_actor(self._namespace, hosts.name_of(self._store_id, key))
        return actor

    def _look_up(self, key: SessionKey) -> Any:
        actor = self._find(key)
        if actor is None:
            reason = "no process of it is live: open a SessionManager on its store in this process first"
            raise SessionLostError(key.session_id, reason)
        return actor


def make_lookup(
    namespace: str, store_id: str, placement: Dedicated | Packed, spec: ActorSpec, *, joins: bool = False
) -> DedicatedLookup | PackedLookup:
    """Return the lookup for a manager's sessions; its actors start on this node if the store is a local file.

    Args:
        joins: see `PackedLookup`.
    """
    node_options = nodes_for(spec.place)
    if isinstance(placement, Packed):
        return PackedLookup(namespace, store_id, placement, spec, node_options, joins=joins)
    return DedicatedLookup(namespace, store_id, placement, spec, node_options)
