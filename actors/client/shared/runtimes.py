"""`runtime_of`: the runtime of a placement. Only the one that is needed is imported."""

from __future__ import annotations

from turnwise.actors.hosting.placement import InProcess, Placement
from turnwise.actors.hosting.runtime import Runtime
from turnwise.errors import ConfigError
from turnwise.memory.values.collection_pauses import importing


def runtime_of(placement: Placement, namespace: str) -> Runtime:
    """Return the runtime of a manager's sessions.

    Raises:
        ConfigError: its package is not installed.
    """
    if isinstance(placement, InProcess):
        from turnwise.actors.in_process.runtime import InProcessRuntime

        return InProcessRuntime(namespace, placement)
    try:
        with importing("ray"):
            from turnwise.actors.cluster.runtime import RayRuntime
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        reason = "needs Ray: pip install ray, or pass placement=InProcess()"
        raise ConfigError("placement", type(placement).__name__, reason) from error
    return RayRuntime(namespace, placement)
