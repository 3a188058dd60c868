"""The in-memory store as an actor, shared by the processes of a cluster (`memory://name`)."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import ray
from ray.exceptions import RayError

from turnwise.actors.cluster.actor_names import PROCESSES, detached_actor, find_actor
from turnwise.actors.cluster.calls.actor_waiting import reached
from turnwise.actors.hosting.reach import NoProcessError
from turnwise.actors.hosting.wire import Refused
from turnwise.actors.wire_version import packed, unpacked, unpacked_answer
from turnwise.errors import StoreClosedError, StoreError, TurnwiseError
from turnwise.memory.stores.base import SessionStore, verbs_of
from turnwise.memory.stores.in_memory import InMemoryStore

STORES = f"{PROCESSES}store/"
"""What the names of these actors begin with."""


class StoreHost:
    """The body of the actor that has an `InMemoryStore`, which is lost with the actor's process."""

    def __init__(self) -> None:
        self._store = InMemoryStore()

    async def call(self, request: bytes) -> bytes:
        """Call a method of the store, by its pickled name and arguments; return its answer, or `Refused`, pickled."""
        try:
            verb, args, kwargs = unpacked(request)
            return packed(await getattr(self._store, verb)(*args, **kwargs))
        except TurnwiseError as error:
            return packed(Refused(error))


class _RemoteStore:
    """A `SessionStore` each of whose methods is one Ray call to the host."""

    def __init__(self, url: str, actor: Any) -> None:
        self._url = url
        self._actor = actor
        for verb in verbs_of(InMemoryStore):
            setattr(self, verb, partial(self._call, verb))

    async def close(self) -> None:
        self._actor = None

    async def _call(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        if self._actor is None:
            raise StoreClosedError(self._url)
        try:
            call = self._actor.call.remote(packed((verb, args, kwargs)))
            answer = unpacked_answer(await reached(self._actor, call))
        except (RayError, NoProcessError) as error:
            raise StoreError(f"store {self._url} was lost with its process: use a durable store") from error
        if isinstance(answer, Refused):
            raise answer.error
        return answer


def remote_store(url: str, namespace: str) -> SessionStore:
    """Return the store `memory://name` of a namespace: one named, detached actor, created at the first call.

    It outlives the process that created it, and ends with the Ray cluster or with its node.
    """
    actor = detached_actor(StoreHost, _name(url), namespace, max_concurrency=1000)
    return cast(SessionStore, _RemoteStore(url, actor.remote()))


def is_there(url: str, namespace: str) -> bool:
    """Return whether the store `memory://name` of a namespace was created on the Ray of this process."""
    return ray.is_initialized() and find_actor(namespace, _name(url)) is not None


def _name(url: str) -> str:
    return f"{STORES}{url}"
