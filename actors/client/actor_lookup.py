"""Where a store's sessions live: the way from a session's id to the actor that hosts it."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Any, Protocol

import ray

from turnwise.actors.cluster.actor_names import actor_name, find_actor
from turnwise.actors.cluster.actor_spec import ActorSpec
from turnwise.actors.cluster.nodes import ANYWHERE, here
from turnwise.actors.cluster.placement import Dedicated, Packed
from turnwise.actors.cluster.sharding import Layout, find_layouts
from turnwise.actors.hosting.packed_actor import HostPost, PackedActor
from turnwise.actors.hosting.session_actor import SessionActor
from turnwise.errors import OverloadedError, SessionLostError

MAX_CALLS = 1000
"""How many calls a process answers at once beside those that its placement counts."""

NOTED = 1000
"""How many sessions' actors a process has noted; others are looked up by name again."""

FOLLOW_S = 10.0
"""How long a manager waits for earlier hosts to hear that they were followed, in seconds."""

LOOK_S = 0.1
"""How often it is looked for packed hosts at most, in seconds: thousands may miss one at once."""


class ActorLookup(Protocol):
    """A store's sessions and their actors, as one process sees them."""

    have_many: bool
    """Whether an actor has many sessions."""

    def actor(self, session_id: str) -> Any:
        """Return the actor of a session, made if it is not there; does not wait for it."""

    def miss(self, session_id: str) -> None:
        """Look again at the next call: the actor was lost, or has the session no more."""

    def warm(self, session_id: str, request: bytes) -> None:
        """Let the session's process start and load, if it has one of its own; does not wait for it."""

    def is_live(self, session_id: str) -> bool:
        """Return whether there is an actor that may have the session; one that was noted, until it is missed."""


class _LookupOfOne(ABC):
    """Actors that are looked up for each session, and noted."""

    have_many = False

    def __init__(self, namespace: str, store_id: str) -> None:
        self._namespace = namespace
        self._store_id = store_id
        self._actors: OrderedDict[str, Any] = OrderedDict()
        """The one that was asked for longest ago first."""
        self._lock = threading.Lock()

    def actor(self, session_id: str) -> Any:
        with self._lock:
            if found := self._actors.get(session_id):
                self._actors.move_to_end(session_id)
                return found
        return self._note(session_id, self._look_up(session_id))

    def _note(self, session_id: str, actor: Any) -> Any:
        with self._lock:
            self._actors[session_id] = actor
            if len(self._actors) > NOTED:
                self._actors.popitem(last=False)
        return actor

    def miss(self, session_id: str) -> None:
        self._actors.pop(session_id, None)

    def is_live(self, session_id: str) -> bool:
        if session_id not in self._actors:
            found = self._find(session_id)
            if found is None:
                return False
            self._note(session_id, found)
        return True

    def _find(self, session_id: str) -> Any:
        """Return the actor of the session's own, or None."""
        return find_actor(self._namespace, actor_name(self._store_id, session_id))

    @abstractmethod
    def _look_up(self, session_id: str) -> Any: ...


class DedicatedLookup(_LookupOfOne):
    """An actor for each session, named by it.

    Args:
        where: which nodes they go to, as options of Ray's.
    """

    def __init__(
        self, namespace: str, store_id: str, placement: Dedicated, making: ActorSpec, where: dict[str, Any]
    ) -> None:
        super().__init__(namespace, store_id)
        self._placement = placement
        self._making = making
        self._where = where

    def warm(self, session_id: str, request: bytes) -> None:
        self.actor(session_id).call.remote(request)

    def _look_up(self, session_id: str) -> Any:
        name, most = actor_name(self._store_id, session_id), self._placement.max_live
        if most is not None and not self.is_live(session_id):
            prefix = actor_name(self._store_id, "")
            others = ray.util.list_named_actors(all_namespaces=True)
            live = [one for one in others if one["namespace"] == self._namespace and one["name"].startswith(prefix)]
            if len(live) >= most:
                raise OverloadedError(session_id, "max_live", most)
        making = self._making
        return (
            ray.remote(SessionActor)
            .options(
                name=name,
                namespace=self._namespace,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=-1,
                max_task_retries=-1,
                max_concurrency=self._placement.max_waits + MAX_CALLS,
                **self._where,
            )
            .remote(session_id, self._namespace, making, self._placement.max_waits)
        )


class PackedLookup:
    """A few actors, of which each has the sessions that hash to it. Those of an earlier number are told.

    Args:
        where: which nodes they go to, as options of Ray's.
    """

    have_many = True

    def __init__(self, namespace: str, store_id: str, limits: Packed, making: ActorSpec, where: dict[str, Any]) -> None:
        self._namespace = namespace
        self._store_id = store_id
        self._limits = limits
        self._making = making
        self._where = where
        layouts = find_layouts(namespace, store_id)
        newest = layouts[0] if layouts else Layout(0, 0)
        self._layout = newest if newest.hosts == limits.hosts else newest.next(limits.hosts)
        self._actors = self._make_all()
        self._looked_at = 0.0
        told = []
        for layout in layouts:
            if layout < self._layout:
                actors = [find_actor(namespace, name) for name in layout.actor_names(store_id)]
                told += [actor.follow.options(max_task_retries=0).remote() for actor in actors if actor is not None]
        if told:  # one that has not heard is gone, or starts again, and then sees by itself who has followed
            ray.wait(told, num_returns=len(told), timeout=FOLLOW_S)

    def actor(self, session_id: str) -> Any:
        return self._actors[self._layout.index_of(session_id)]

    def miss(self, session_id: str) -> None:
        now = time.monotonic()
        if now < self._looked_at + LOOK_S:
            return
        self._looked_at = now
        layouts = find_layouts(self._namespace, self._store_id)
        if layouts:
            self._layout = max(layouts[0], self._layout)
        self._actors = self._make_all()

    def warm(self, session_id: str, request: bytes) -> None:
        """A host is there: nothing to wait for."""

    def is_live(self, session_id: str) -> bool:
        return True

    def _make_all(self) -> list[Any]:
        layout, making = self._layout, self._making
        return [
            ray.remote(PackedActor)
            .options(
                name=name,
                namespace=self._namespace,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=-1,
                max_task_retries=-1,
                max_concurrency=self._limits.max_calls + self._limits.max_waits + MAX_CALLS,  # room to refuse in
                **self._where,
            )
            .remote(HostPost(self._namespace, self._store_id, layout, index, self._limits), making)
            for index, name in enumerate(layout.actor_names(self._store_id))
        ]


class LiveLookup(_LookupOfOne):
    """The actors that are live, for a process in which no manager is open: it can make none."""

    def warm(self, session_id: str, request: bytes) -> None:
        """It is live, or cannot be made."""

    def _find(self, session_id: str) -> Any:
        if not ray.is_initialized():  # a manager for reading needs none
            return None
        found = super()._find(session_id)
        for layout in find_layouts(self._namespace, self._store_id)[:1] if found is None else ():
            found = find_actor(self._namespace, layout.actor_name(self._store_id, layout.index_of(session_id)))
        return found

    def _look_up(self, session_id: str) -> Any:
        found = self._find(session_id)
        if found is None:
            why = "no process of it is live: open a SessionManager on its store in this process first"
            raise SessionLostError(session_id, why)
        return found


def make_lookup(namespace: str, store_id: str, placement: Dedicated | Packed, making: ActorSpec) -> ActorLookup:
    """Return the homes of a manager's sessions: where its files are, if they are in some."""
    where = here() if making.place.is_local else ANYWHERE
    if isinstance(placement, Packed):
        return PackedLookup(namespace, store_id, placement, making, where)
    return DedicatedLookup(namespace, store_id, placement, making, where)
