"""`find_hosts`: the processes that host a store's sessions, and their current load."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from turnwise.actors.cluster.actor_names import actor_name, actors_of, find_actor, processes_of, session_of
from turnwise.actors.cluster.sharding import find_hosts as find_packed, find_layouts
from turnwise.actors.hosting.placement import Dedicated, Packed, Placement
from turnwise.actors.hosting.store_spec import store_id_of
from turnwise.actors.hosting.wire import HostInfo, HostLoad
from turnwise.actors.wire_version import unpacked_answer
from turnwise.errors import ConfigError, WireVersionError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.stores.urls import redact, resolve_url

ANSWER_S = 3.0
"""How long a process may take to answer, in seconds; all are asked at once."""

MOST = 1_000
"""How many dedicated processes are asked."""


async def find_hosts(namespace: str, store_id: str) -> list[HostInfo]:
    """Return the processes that host the store's sessions: packed hosts, newest first, then dedicated ones by name."""
    hosts: list[HostInfo] = await asyncio.gather(*await asyncio.to_thread(_find, namespace, store_id))
    return hosts


def placement_in_use(namespace: str, store: str, session: SessionKey | None = None) -> Placement:
    """Return the placement of the processes that this Ray has for a store, by its URL, or for one of its sessions.

    A manager with this placement uses those processes, and so takes no session from them. `Dedicated()` if none has
    packed hosts. Blocks; the process must be connected to Ray.
    """
    store_id = store_id_of(namespace, resolve_url(store))
    if session is None or find_actor(namespace, actor_name(store_id, session)) is None:
        for layout in find_layouts(namespace, store_id):
            return Packed(hosts=layout.hosts)
    return Dedicated()


def namespace_in_use(store: str, named: str | None) -> str | None:
    """Return the namespace in which this Ray has processes for a store, by its URL; the named one if it has none.

    So a command reaches the processes that have the sessions, rather than takes these from them. Blocks; the process
    must be connected to Ray.

    Args:
        named: the namespace that the user named, if any.

    Raises:
        ConfigError: the processes are in another namespace than the named one, or in several.
    """
    url = resolve_url(store)
    actors = ray.util.list_named_actors(all_namespaces=True)
    used = sorted(
        {
            actor["namespace"]
            for actor in actors
            if actor["name"].startswith(processes_of(store_id_of(actor["namespace"], url)))
        }
    )
    if not used or named in used:
        return named
    if named is None and len(used) == 1:
        return str(used[0])
    where = ", ".join(map(repr, used))
    raise ConfigError("--namespace", named, f"processes of {redact(store)} are in the namespace {where}: name that")


def _find(namespace: str, store_id: str) -> list[Any]:
    """Return a coroutine for each process, which asks it."""
    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    layouts = find_packed(namespace, store_id)
    newest = layouts[0].newest_names(store_id) if layouts else []
    packed = [
        _ask(actor, HostInfo(name=name, is_packed=True, is_replaced=name not in newest), nodes)
        for layout in layouts
        for name in layout.names(store_id)
        if (actor := find_actor(namespace, name)) is not None
    ]
    prefix = actors_of(store_id)
    named_actors = ray.util.list_named_actors(all_namespaces=True)
    names = sorted(entry["name"] for entry in named_actors if entry["namespace"] == namespace)
    own = [name for name in names if name.startswith(prefix)]
    dedicated = [
        _ask(actor, HostInfo(name=name, is_packed=False), nodes, session_of(store_id, name))
        for name in own[:MOST]
        if (actor := find_actor(namespace, name)) is not None
    ]
    return [*packed, *dedicated]


async def _ask(actor: Any, host: HostInfo, nodes: dict[str, str], session: SessionKey | None = None) -> HostInfo:
    """Return what the process says; of a dedicated one, its session is known."""
    calls = [actor.where.options(max_task_retries=0).remote()]
    if session is None:
        calls.append(actor.load.options(max_task_retries=0).remote())
    try:
        answers = asyncio.gather(*(asyncio.wrap_future(call.future()) for call in calls))
        ((node_id, pid, *memory), *loads) = await asyncio.wait_for(answers, ANSWER_S)
        load = unpacked_answer(loads[0]) if loads else None
    except (RayError, TimeoutError, WireVersionError):
        return host
    load = load or HostLoad(sessions=1, recent=(session,) if session else ())
    return replace(
        host, node_id=node_id, pid=pid, node=nodes.get(node_id), load=load, memory_bytes=next(iter(memory), None)
    )
