"""Chooses the nodes of actors: those that open a local file start on this node, others on any node."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from turnwise.errors import ConfigError
from turnwise.memory.longterm.base import is_local
from turnwise.memory.stores.urls import redact, resolve_url
from turnwise.memory.working.memory import WorkingMemory

ANYWHERE: dict[str, Any] = {"scheduling_strategy": "SPREAD", "memory": 1}
"""Options of actors that may run on any node. Ray places actors that need no resources at random, so several may share
a node; actors that need one byte of memory are spread over the nodes in turn."""


def is_file(store: object) -> bool:
    """Return whether a store is in a file, so that only processes of its node open the same one.

    Args:
        store: a URL, or an object, whose attribute `is_local` says so.
    """
    return store.startswith("sqlite") if isinstance(store, str) else is_local(store)


def here() -> dict[str, Any]:
    """Return the options of actors that open files of this node: here, or nowhere. Nodes that join change nothing."""
    node_id = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False)}


def check_folders(*stores: object) -> None:
    """Refuse URLs of SQLite files in folders that do not exist on this node.

    Raises:
        StoreError: says which folder.
    """
    for url in stores:
        if isinstance(url, str) and (resolved := resolve_url(url)).startswith("sqlite"):
            import sqlalchemy as sa  # takes 0.15 s

            from turnwise.memory.stores.sql.sqlite_file import path_of
            from turnwise.memory.stores.sql.sqlite_owner import check_folder

            check_folder(path_of(sa.make_url(resolved)), redact(url))


def check_files(store: object, history_store: object, working_memory: WorkingMemory | None) -> None:
    """Refuse what is in a file, and would be opened on each of several nodes: everywhere another file.

    Raises:
        ConfigError: says which argument, and what to use in its place.
    """
    if sum(node["Alive"] for node in ray.nodes()) == 1:
        return
    reason = "a SQLite file belongs to one node and this cluster has several; use"
    for name, setting in (("store", store), ("history_store", history_store)):
        if is_file(setting):
            raise ConfigError(name, setting, f"{reason} postgresql://user@host/name")
    if is_local(working_memory):
        raise ConfigError("working_memory", "WorkingMemory", f"{reason} postgresql://user@host/name")
