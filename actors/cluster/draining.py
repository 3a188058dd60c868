"""`drain_node`: has all processes of turnwise leave a node that is about to go."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

import ray
from ray.exceptions import RayError

from turnwise.actors.cluster.actor_names import PROCESSES
from turnwise.actors.cluster.actors.store_actor import STORES
from turnwise.actors.hosting.wire import DrainReport
from turnwise.errors import ConfigError

PAUSE_S = 0.1
"""How often it looks which processes are left, in seconds."""

ASK_S = 5.0
"""How long a process may take to answer that it leaves, in seconds, before it is asked again."""

GRACE_S = 15.0
"""How long after its time a process may take to end, in seconds, before it is killed; another one starts elsewhere."""

WHY = "its node was drained, and the run had not ended when the time for that was over"
"""What the record of a run says that was taken over."""

_HEAD = "node:__internal_head__"
"""The resource that only the head node has."""

_STATES = ("PENDING_CREATION", "ALIVE")
"""The states of actors that have a node."""

_log = logging.getLogger(__name__)


async def drain_node(node_id: str | None, timeout_s: float) -> DrainReport:
    """Have all processes of turnwise, of whichever store and namespace, leave a node; return when they have left.

    From the beginning Ray starts no more actors there, and it ends the node itself once nothing runs there. Each
    process leaves by itself once it is told so, also if this caller dies. May be repeated, also at the same time.

    Args:
        node_id: Ray's id of the node; None for this process's.
        timeout_s: how long runs may go on there. Others then take them over.

    Raises:
        ConfigError: there is no such node, it is the head, or no other node is alive.
    """
    began = time.monotonic()
    node_id = await asyncio.to_thread(_begin, node_id, timeout_s)
    left: set[str] = set()
    leaving: set[str] = set()
    staying: dict[str, str] = {}
    late: tuple[str, ...] = ()
    killed: set[str] = set()
    before: list[str] = []
    while True:
        actors = dict(await asyncio.to_thread(lambda: list(_actors_on(node_id))))
        left |= actors.keys()
        going = actors.keys() - staying.keys()
        spent_s = time.monotonic() - began
        if not going:
            if not late and spent_s > timeout_s:  # its runs may have been taken over since the last look
                late = tuple(sorted(before))
            break
        before = [actors[actor_id].name for actor_id in going]
        if not late and spent_s > timeout_s:
            late = tuple(sorted(actors[actor_id].name for actor_id in going))
        if spent_s > timeout_s + GRACE_S:
            for actor_id in going - killed:
                killed.add(actor_id)
                await asyncio.to_thread(_kill, actors[actor_id])
            if spent_s > timeout_s + 2 * GRACE_S:
                break
        new = [actors[actor_id] for actor_id in going - leaving]
        reasons = await asyncio.gather(*(_tell(record, max(0.0, timeout_s - spent_s)) for record in new))
        for record, reason in zip(new, reasons, strict=True):
            actor_id = record.actor_id.hex()
            if reason:
                staying[actor_id] = reason
            elif reason is not None:
                leaving.add(actor_id)
        await asyncio.sleep(PAUSE_S)
    return DrainReport(
        node_id=node_id,
        processes=len(left - staying.keys()),
        seconds=time.monotonic() - began,
        late=late,
        staying={actors[actor_id].name: reason for actor_id, reason in staying.items() if actor_id in actors},
    )


def _begin(node_id: str | None, timeout_s: float) -> str:
    """Have Ray start nothing more on the node; return its id."""
    from ray.core.generated import autoscaler_pb2

    node_id = node_id or ray.get_runtime_context().get_node_id()
    nodes = {node["NodeID"]: node for node in ray.nodes()}
    if (node := nodes.get(node_id)) is None:
        alive = ", ".join(name for name, each in nodes.items() if each["Alive"])
        raise ConfigError("node", node_id, f"Ray has no such node: name one of {alive}")
    if not node["Alive"]:
        return node_id
    if _HEAD in node["Resources"]:
        raise ConfigError("node", node_id, "it is the head of the cluster, which cannot do without it: drain others")
    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")  # type: ignore[attr-defined]
    until_ms = int((time.time() + timeout_s) * 1000)
    raylet: Any = ray._raylet  # noqa: SLF001 - as `ray drain-node` does
    client = raylet.GcsClient(address=ray.get_runtime_context().gcs_address)
    is_accepted, why_not = client.drain_node(node_id, reason, "turnwise drain", until_ms)
    if not is_accepted:
        raise ConfigError("node", node_id, f"Ray does not drain it: {why_not}")
    return str(node_id)


def _actors_on(node_id: str) -> Iterator[tuple[str, Any]]:
    """Yield the records of turnwise's actors on a node, by actor id. Blocks."""
    from ray.core.generated import gcs_pb2

    accessor: Any = ray._private.state.state._connect_and_get_accessor()  # noqa: SLF001 - the public way needs the dashboard
    for state in _STATES:
        for data in accessor.get_actor_table(None, state):
            record = gcs_pb2.ActorTableData.FromString(data)  # type: ignore[attr-defined]
            if record.name.startswith(PROCESSES) and record.address.node_id.hex() == node_id:
                yield record.actor_id.hex(), record


async def _tell(record: Any, left_s: float) -> str | None:
    """Tell a process to leave; return "", or why it stays; None if it has not answered."""
    if record.name.startswith(STORES):
        return "what it has in memory ends with it: use a store on a server"
    try:
        actor: Any = await asyncio.to_thread(ray.get_actor, record.name, namespace=record.ray_namespace)
        answer = actor.drain.options(max_task_retries=0).remote(left_s, WHY)
        return str(await asyncio.wait_for(asyncio.wrap_future(answer.future()), ASK_S))
    except (ValueError, RayError, TimeoutError) as error:
        _log.info("actor %s does not answer, and is asked again: %s", record.name, error)
        return None


def _kill(record: Any) -> None:
    try:
        ray.kill(ray.get_actor(record.name, namespace=record.ray_namespace), no_restart=False)
    except (ValueError, RayError) as error:
        _log.info("actor %s cannot be killed: %s", record.name, error)
