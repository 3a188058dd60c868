"""Has Ray prepare processes for the next sessions, so that a dedicated one answers soon after it was opened.

An actor gets a process that Ray has prepared, or a new one, whose start takes most of a session's first turn. Ray prepares
one for each CPU when it starts, and none in the place of those that were taken. So whoever makes an actor of a session has
the node prepare another process.

Ray has this request for its own processes only (`NodeManagerService.PrestartWorkers`). If it fails, as by another version of
Ray, sessions start as slowly as without it.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import ray

DELAY_S = 0.25
"""How long after an actor was made its node is asked: then this program mostly waits for it, and has time."""

KEPT_S = 600
"""How long Ray keeps a process that nobody takes, in seconds; up to its number of CPUs, it keeps them for longer."""

ANSWER_S = 5.0

_log = logging.getLogger(__name__)


class SpareProcesses:
    """Keeps so many processes prepared on this node. Thread-safe; what goes wrong is logged as debug.

    Those count that nobody has taken, of whichever program. A process fits the actors of programs that gave Ray no
    `runtime_env`; for others, nothing is prepared.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def prepare_soon(self) -> None:
        """Have the missing ones started, in a moment; does not wait. Calls until then are one."""
        with self._lock:
            if not self._count or (self._timer is not None and self._timer.is_alive()):
                return
            self._timer = threading.Timer(DELAY_S, self._prepare)
            self._timer.daemon = True
            self._timer.start()

    def _prepare(self) -> None:
        try:
            if ray.is_initialized() and not ray.get_runtime_context().runtime_env:
                missing = self._count - _idle_processes()
                if missing > 0:
                    _prestart(missing)
        except Exception:  # noqa: BLE001 - a private interface may fail in any way
            _log.debug("Ray has prepared no process for the next session", exc_info=True)


def _idle_processes() -> int:
    """Return how many of Ray's processes on this machine have no actor and no task."""
    import psutil  # type: ignore[import-untyped]  # Ray brings it along

    return sum(process.info["name"] == "ray::IDLE" for process in psutil.process_iter(["name"]))


def _prestart(count: int) -> None:
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated.node_manager_pb2 import PrestartWorkersRequest  # type: ignore[attr-defined]
    from ray.core.generated.node_manager_pb2_grpc import NodeManagerServiceStub

    node_id = ray.get_runtime_context().get_node_id()
    (node,) = (one for one in ray.nodes() if one["NodeID"] == node_id)
    channel: Any = init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
    with channel:
        request = PrestartWorkersRequest(num_workers=count, keep_alive_duration_secs=KEPT_S)
        NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=ANSWER_S)
