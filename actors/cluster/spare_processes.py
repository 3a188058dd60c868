"""Has Ray prepare processes for the next sessions, so that a dedicated one answers soon after it was opened.

An actor gets a process that Ray has prepared, or a new one, whose start takes most of a session's first turn. Ray
prepares one for each CPU when it starts, and none in the place of those that were taken. So whoever makes an actor of
a session has the node prepare another process.

Ray has this request for its own processes only (`NodeManagerService`). If it fails, as by another version of Ray,
sessions start as slowly as without it.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import Any, Self

import ray

DELAY_S = 0.25
"""How long after an actor was made its node is asked: then this program mostly waits for it, and has time."""

SETTLED_S = 2.0
"""When it is asked once more: a process that an actor is about to get counts as idle until then."""

KEPT_S = 600
"""How long Ray keeps a process that nobody takes, in seconds; up to its number of CPUs, it keeps them for longer."""

ANSWER_S = 5.0
"""How long the node may take to answer, in seconds."""

STARTED_S, LOOK_S = 10.0, 0.5
"""How long a process may take to be ready, and how often that is looked at, in seconds."""

_log = logging.getLogger(__name__)


class SpareProcesses:
    """Keeps so many processes prepared on this node. Thread-safe; what goes wrong is logged as debug.

    Those count that nobody has taken, of whichever program. A process fits the actors of programs that gave Ray no
    `runtime_env`; for others, nothing is prepared.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._last_actor_at = 0.0
        """When an actor was last made, by the monotonic clock."""

    def prepare_soon(self) -> None:
        """Have the missing ones started, in a moment; does not wait. Calls until then are one."""
        with self._lock:
            self._last_actor_at = time.monotonic()
            if self._count and self._thread is None:
                self._thread = threading.Thread(target=self._work, name="turnwise-spare-processes", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        """Ask until the node was asked `SETTLED_S` after the last actor was made."""
        while True:
            time.sleep(DELAY_S)
            self._try_to_prepare()
            time.sleep(SETTLED_S)
            request_at = time.monotonic()
            self._try_to_prepare()
            with self._lock:
                if request_at - self._last_actor_at >= SETTLED_S:
                    self._thread = None
                    return

    def _try_to_prepare(self) -> None:
        try:
            self._prepare()
        except Exception:  # noqa: BLE001 - a private interface may fail in any way
            _log.debug("Ray has prepared no process for the next session", exc_info=True)

    def _prepare(self) -> None:
        """Have the missing ones started, and wait for them, so that none is asked for twice."""
        if not ray.is_initialized() or ray.get_runtime_context().runtime_env:
            return
        with _Node() as node:
            if (missing := self._count - node.count_idle()) <= 0:
                return
            node.prestart(missing)
            give_up_at = time.monotonic() + STARTED_S
            while node.count_idle() < self._count and time.monotonic() < give_up_at:
                time.sleep(LOOK_S)


class _Node:
    """This node's raylet, asked as Ray's own processes ask it."""

    def __init__(self) -> None:
        from ray._private.grpc_utils import init_grpc_channel
        from ray.core.generated.node_manager_pb2_grpc import NodeManagerServiceStub

        node_id = ray.get_runtime_context().get_node_id()
        (node,) = (one for one in ray.nodes() if one["NodeID"] == node_id)
        self._channel: Any = init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
        self._stub = NodeManagerServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def count_idle(self) -> int:
        """Return how many of the node's processes have no actor and no task."""
        import psutil  # type: ignore[import-untyped]  # Ray brings it along
        from ray.core.generated.node_manager_pb2 import GetWorkerPIDsRequest  # type: ignore[attr-defined]

        pids = self._stub.GetWorkerPIDs(GetWorkerPIDsRequest(), timeout=ANSWER_S).pids
        idle = 0
        for pid in pids:
            with suppress(psutil.NoSuchProcess):
                idle += psutil.Process(pid).name() == "ray::IDLE"
        return idle

    def prestart(self, count: int) -> None:
        """Have so many processes started; does not wait for them."""
        from ray.core.generated.node_manager_pb2 import PrestartWorkersRequest  # type: ignore[attr-defined]

        request = PrestartWorkersRequest(num_workers=count, keep_alive_duration_secs=KEPT_S)
        self._stub.PrestartWorkers(request, timeout=ANSWER_S)
