"""`runtime_of`: the runtime of a placement. Only the one that is needed is imported."""

from __future__ import annotations

from turnwise.actors.hosting.placement import InProcess, Placement
from turnwise.actors.hosting.runtime import Runtime


def runtime_of(placement: Placement, namespace: str) -> Runtime:
    """Return the runtime of a manager's sessions."""
    if isinstance(placement, InProcess):
        from turnwise.actors.in_process.runtime import InProcessRuntime

        return InProcessRuntime(namespace, placement)
    from turnwise.actors.cluster.runtime import RayRuntime

    return RayRuntime(namespace, placement)
