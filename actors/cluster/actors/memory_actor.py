"""`MemoryActor`: a long-term memory's Ray actor, and `MemoryActorProcess`, by which others ask it."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, cast

import ray
from ray.exceptions import ActorUnschedulableError, RayActorError, RayError

from turnwise.actors.cluster.actor_settings import ActorSettings, SettingsLostError, read_settings
from turnwise.actors.cluster.actors.shutdown import FILES, Shutdown, where
from turnwise.actors.cluster.calls import local_calls
from turnwise.actors.cluster.node_choice import ANYWHERE, here
from turnwise.actors.hosting.identity import identity, pickled
from turnwise.actors.hosting.memory.memory_host import MemoryHost
from turnwise.actors.hosting.process_memory import collect_rarely
from turnwise.actors.hosting.reach import Reach
from turnwise.actors.wire_version import unpacked, unpacked_settings
from turnwise.errors import ConfigError, LongTermMemoryError, WireVersionError
from turnwise.memory.longterm.base import LongTermMemory, is_local, label_of

MAX_CALLS = 1000
"""How many calls the actor answers at once."""


class MemoryActor:
    """`MemoryHost` on Ray. Undecorated: `MemoryActorProcess` makes it an actor.

    Args:
        start: the memory with its settings, pickled, or their key: see `ActorSettings`.
    """

    def __init__(self, start: bytes) -> None:
        self._start = start
        self._host = MemoryHost(self._load)
        self._is_misfit = False
        """Whether its settings do not fit this version, or are lost."""
        self._listening: asyncio.Task[asyncio.Server | None] | None = None
        self._calls: set[asyncio.Task[bytes]] = set()
        """The calls that are carried out."""
        self._leave = Shutdown(lambda: None)
        self._draining: asyncio.Task[None] | None = None

    async def call(self, request: bytes) -> bytes:
        """See `MemoryHost.call`."""
        if self._listening is None:
            self._listening = asyncio.create_task(local_calls.listen(self._call))
        return await self._call(request)

    async def _call(self, request: bytes) -> bytes:
        task = asyncio.ensure_future(self._host.call(request))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        answer = await task
        if self._is_misfit:  # the next call makes another actor, perhaps on a node with another version
            self._leave()
        return answer

    async def where(self) -> tuple[str, int, int | None]:
        """Return the id of this process's node, the process id, and its memory in bytes."""
        return where()

    async def drain(self, timeout_s: float, why: str) -> str:
        """End this process; Ray starts the next one elsewhere, which gets later calls. Returns before that.

        Calls that are under way end first, if they do within `timeout_s`; Ray repeats the others.

        Returns why it stays instead: its files are on this node; empty if it goes. May be repeated.
        """
        if is_local(await asyncio.to_thread(self._load)):
            return FILES
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain(timeout_s))
        return ""

    async def _drain(self, timeout_s: float) -> None:
        if self._calls:
            await asyncio.wait(set(self._calls), timeout=timeout_s)
        self._leave.move()

    async def warm(self, request: bytes) -> None:
        """Carry out a request whose answer nobody waits for; then tune the process for long life."""
        await self.call(request)
        collect_rarely()

    def _load(self) -> LongTermMemory:
        try:
            (settings,) = unpacked(self._start)
            memory: LongTermMemory = unpacked_settings(read_settings(settings))
        except (SettingsLostError, WireVersionError):
            self._is_misfit = True
            raise
        return memory


class MemoryActorProcess:
    """The `MemoryProcess` that is an actor: the same settings are the same actor, for all of a namespace.

    A recall by a process on the actor's machine goes over its socket (see `local_calls`).

    The actor of a memory in files stays on the node of the manager that made it. If that node is lost, each request
    raises LongTermMemoryError: nobody finds an empty memory elsewhere in the place of a full one.

    Raises:
        ConfigError: the memory cannot be pickled.
    """

    def __init__(self, memory: LongTermMemory, namespace: str) -> None:
        self._name = label_of(memory).name or type(memory).__name__
        try:
            self._pickled = pickled(memory)
            self.id = identity(memory)[:16]
        except Exception as error:
            reason = f"it cannot be pickled ({error}): hold settings in it and open files when they are needed"
            raise ConfigError("memory", self._name, reason) from error
        self._namespace = namespace
        self._is_local = is_local(memory)
        self._may_make = True
        self._actor: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        settings: dict[str, Any] = {"id": self.id, "namespace": self._namespace, "is_local": self._is_local}
        return partial(_elsewhere, name=self._name, pickled=self._pickled, **settings), ()

    def __identity__(self) -> tuple[object, ...]:
        """See `identity`."""
        return self.id, self._namespace

    @property
    def actor_name(self) -> str:
        """What the actor is called, within the namespace."""
        return f"turnwise/memory/{self.id}"

    async def ask(self, request: bytes, *, is_recall: bool) -> bytes:
        """See `MemoryProcess.ask`."""
        try:
            if is_recall and self._actor is not None:
                answer = await local_calls.ask(self._actor, request, Reach(time.monotonic()))
                if answer is not None:
                    return answer
            return await self._call(request)
        except RayError as error:
            raise LongTermMemoryError(f"{self._name}: its process cannot be reached ({error})") from error

    def warm(self, request: bytes) -> None:
        """See `MemoryProcess.warm`."""
        if self._actor is None:
            self._actor = self._make_actor()
        self._actor.warm.remote(request)

    async def _call(self, request: bytes) -> bytes:
        while True:
            if self._actor is None:
                self._actor = await asyncio.to_thread(self._make_actor)
            try:
                return cast(bytes, await self._actor.call.remote(request))
            except ActorUnschedulableError as error:
                self._actor = None
                raise LongTermMemoryError(f"{self._name}: {_FILES_LOST}") from error
            except RayActorError as error:
                self._actor = None
                if error.actor_init_failed:
                    raise
                await asyncio.sleep(0.05)

    def _make_actor(self) -> Any:
        if not self._may_make:
            try:
                return ray.get_actor(self.actor_name, namespace=self._namespace)
            except ValueError as error:
                raise LongTermMemoryError(f"{self._name}: {_FILES_LOST}") from error
        return ActorSettings(self._pickled).actor(
            MemoryActor,
            self.actor_name,
            self._namespace,
            max_restarts=-1,
            max_task_retries=3,  # a call of which processes die is not repeated for ever
            max_concurrency=MAX_CALLS,
            **(here() if self._is_local else ANYWHERE),
        )


def _elsewhere(name: str, pickled: bytes, id: str, namespace: str, is_local: bool) -> MemoryActorProcess:
    """Return what was made in another process. The actor of a memory in files is made by who has these, alone."""
    process = object.__new__(MemoryActorProcess)
    values = {"_name": name, "_pickled": pickled, "id": id, "_namespace": namespace, "_is_local": is_local}
    vars(process).update(values, _may_make=not is_local, _actor=None)
    return process


_FILES_LOST = "the node with its files is lost: open a manager with it where they are, or keep it in a database"
