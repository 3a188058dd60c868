"""`prepare_worker`: has an idle process of Ray import what a session's process needs, while the manager opens.

This module imports nothing heavy, since Ray's process waits for its imports, too.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import ray

from turnwise.actors.cluster.node_choice import here


def prepare_worker() -> Any:
    """Have a process of Ray on this node import what sessions need, once for each connection of this process to a Ray.

    Does not wait, and needs no resources. Ray takes this process for the next actor that it creates here. If it takes
    another one, or if the task fails, the actor imports the same by itself, and says what fails.

    Returns:
        the reference of the process id.
    """
    context = ray.get_runtime_context()
    return _prepare(context.get_session_name(), context.get_job_id())


@cache
def _prepare(session_name: str, job_id: str) -> Any:
    return ray.remote(_import).options(num_cpus=0, max_retries=0, **here()).remote()


def _import() -> int:
    import turnwise.actors.cluster.actors.packed_actor
    import turnwise.actors.cluster.actors.session_actor
    import turnwise.actors.cluster.dispatcher_process
    import turnwise.actors.cluster.runtime
    import turnwise.actors.hosting.dedicated_host
    import turnwise.actors.hosting.worker_resources
    import turnwise.memory.stores.sql.store  # noqa: F401

    return os.getpid()
