"""Local calls: an actor's process also answers over a Unix socket, to callers of its user on its machine.

A call of Ray takes both processes most of a millisecond of processor time, a message over a socket a fifth of that.
Ray stays in charge: it starts processes, and says which of them is an actor's. A call may go over a socket only if it
may be repeated: if no answer arrives, the caller asks again by Ray, which waits for the actor's next process.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import ray
from ray.exceptions import GetTimeoutError

from turnwise.actors.cluster.calls.actor_waiting import presence
from turnwise.actors.cluster.calls.unix_socket import Answering, BlockingConnection, Connection, serve
from turnwise.actors.hosting.reach import Reach
from turnwise.memory.background import log_failure

AGAIN_S = 0.25
"""How long a caller asks by Ray after it could not connect to an actor, before it tries again, in seconds."""

MOST_ACTORS = 256
"""To how many actors a process, or an event loop, keeps idle connections."""

MOST_IDLE = 16
"""How many idle connections to one actor the threads of a process keep."""

Pooled = TypeVar("Pooled")
New = TypeVar("New")


async def listen(answer: Answering) -> asyncio.Server | None:
    """Answer requests to this process's actor over a socket, too. Return the server; None if there can be none.

    When the raylet has died, Ray may start the actor in another process. So this one answers no more.
    """
    actor_id = ray.get_runtime_context().get_actor_id() if ray.is_initialized() else None
    if actor_id is None:
        return None
    raylet = os.getppid()
    try:
        return await serve(str(actor_id), answer, may_answer=lambda: os.getppid() == raylet)
    except OSError as error:
        log_failure("listening on a Unix socket", error, "; all calls come by Ray")
        return None


async def ask(actor: Any, request: bytes, reach: Reach) -> bytes | None:
    """Return the answer of an actor's method `call`, over its socket; None if the caller has to ask by Ray.

    Cancelling the wait cancels nothing in the actor.

    Raises:
        GetTimeoutError: the caller's own time is over.
        NoProcessError: see `Reach`.
    """
    connections = _connections_of(asyncio.get_running_loop())
    actor_id = id_of(actor)
    connection = connections.get(actor_id)
    if connection is None or not connection.is_open:
        connection = connections.connect(actor_id, Connection)
        if connection is None:
            return None
        connections.keep(actor_id, connection)
    answer = connection.ask(request)
    try:
        while not answer.done():
            await asyncio.wait((answer,), timeout=reach.pause(time.monotonic()))
            if not answer.done() and not await asyncio.to_thread(_is_process_of, actor, connection.peer_pid, reach):
                connection.close()
        return answer.result() or None
    except ConnectionError:
        return None
    finally:
        answer.cancel()


def ask_blocking(actor: Any, request: bytes, reach: Reach) -> bytes | None:
    """Return the answer of an actor's method `call` as `ask` does. It waits in this thread."""
    actor_id = id_of(actor)
    connection = _idle_connection(actor_id) or _IDLE.connect(actor_id, BlockingConnection)
    if connection is None:
        return None
    answer: bytes | None = None
    try:
        connection.send(request, reach.pause(time.monotonic()))
        while (answer := connection.receive(reach.pause(time.monotonic()))) is None:
            if not _is_process_of(actor, connection.peer_pid, reach):
                break
    except GetTimeoutError:  # an OSError, too
        raise
    except OSError:
        _IDLE.drop(actor_id)
    finally:
        if answer is None:
            connection.close()
        else:
            _keep_idle(actor_id, connection)
    return answer or None


class Connections(Generic[Pooled]):
    """The connections to actors, by actor id. Of idle ones, the least recently used are closed.

    Args:
        close: closes what is kept for one actor.
        is_idle: whether it may be closed.
    """

    def __init__(self, close: Callable[[Pooled], object], is_idle: Callable[[Pooled], bool]) -> None:
        self._close = close
        self._is_idle = is_idle
        self._by_actor: OrderedDict[str, Pooled] = OrderedDict()
        self._again_at: dict[str, float] = {}
        """When to try again to connect, by actor id."""
        self._lock = threading.Lock()

    def all(self) -> list[Pooled]:
        """Return what is kept, the least recently used first."""
        with self._lock:
            return list(self._by_actor.values())

    def get(self, actor_id: str) -> Pooled | None:
        with self._lock:
            if (pooled := self._by_actor.get(actor_id)) is not None:
                self._by_actor.move_to_end(actor_id)
            return pooled

    def keep(self, actor_id: str, pooled: Pooled) -> None:
        with self._lock:
            self._by_actor[actor_id] = pooled
            if len(self._by_actor) > MOST_ACTORS:
                oldest = next((key for key, value in self._by_actor.items() if self._is_idle(value)), None)
                if oldest is not None:
                    self._close(self._by_actor.pop(oldest))

    def drop(self, actor_id: str) -> None:
        with self._lock:
            if (pooled := self._by_actor.pop(actor_id, None)) is not None:
                self._close(pooled)

    def connect(self, actor_id: str, connect: Callable[[str], New]) -> New | None:
        """Return a new connection; None if nobody listens there, or nobody did a moment ago."""
        now = time.monotonic()
        if now < self._again_at.get(actor_id, 0.0):
            return None
        try:
            return connect(actor_id)
        except OSError:
            if len(self._again_at) >= MOST_ACTORS:
                self._again_at.clear()
            self._again_at[actor_id] = now + AGAIN_S
            return None

    def forget(self) -> None:
        """Forget connections that belong to the process from which this one was forked."""
        self._by_actor.clear()
        self._lock = threading.Lock()

    def close(self) -> None:
        while self._by_actor:
            self._close(self._by_actor.popitem()[1])


def _connections_of(loop: asyncio.AbstractEventLoop) -> Connections[Connection]:
    if (connections := _BY_LOOP.get(loop)) is None:
        for closed in [other for other in list(_BY_LOOP) if other.is_closed()]:
            if (left := _BY_LOOP.pop(closed, None)) is not None:  # another thread may have taken it
                left.close()
        connections = _BY_LOOP[loop] = Connections(Connection.close, lambda connection: connection.is_idle)
    return connections


def _idle_connection(actor_id: str) -> BlockingConnection | None:
    connections = _IDLE.get(actor_id)
    try:
        return connections.pop() if connections else None
    except IndexError:  # another thread has taken the last one
        return None


def _keep_idle(actor_id: str, connection: BlockingConnection) -> None:
    connections = _IDLE.get(actor_id)
    if connections is None:
        _IDLE.keep(actor_id, [connection])
    elif len(connections) < MOST_IDLE:
        connections.append(connection)
    else:
        connection.close()


def _close_all(connections: list[BlockingConnection]) -> None:
    for connection in connections:
        connection.close()


def _is_process_of(actor: Any, pid: int, reach: Reach) -> bool:
    """Return whether a process that has not answered yet is still the actor's, as Ray says. Blocks.

    Raises:
        GetTimeoutError, NoProcessError: see `ask`.
    """
    if reach.is_late(time.monotonic()):
        raise GetTimeoutError("the caller's time is over")
    state = presence(actor)
    if not state.is_up or state.pid != pid:
        return False
    reach.note(time.monotonic(), state)
    return True


def id_of(actor: Any) -> str:
    return str(actor._actor_id.hex())  # noqa: SLF001 - no other way


_BY_LOOP: dict[asyncio.AbstractEventLoop, Connections[Connection]] = {}
_IDLE: Connections[list[BlockingConnection]] = Connections(_close_all, lambda _: True)
"""The connections of threads over which no request is under way."""


os.register_at_fork(after_in_child=_BY_LOOP.clear)
os.register_at_fork(after_in_child=_IDLE.forget)
