"""Chooses the nodes of actors: those that open a local file start on this node, others on any node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from turnwise.actors.hosting.store_spec import StoreSpec, is_file
from turnwise.errors import ConfigError
from turnwise.memory.longterm.base import is_local

ANYWHERE: dict[str, Any] = {"scheduling_strategy": "SPREAD", "memory": 1}
"""Options of actors that may run on any node. Ray places actors that need no resources at random, so several may share
a node; actors that need one byte of memory are spread over the nodes in turn."""


def here() -> dict[str, Any]:
    """Return the options of actors that open files of this node: here, or nowhere. Nodes that join change nothing."""
    node_id = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False)}


def nodes_for(place: StoreSpec) -> dict[str, Any]:
    """Return the options of actors that open a store: here if it is a local file, on any node if not."""
    return here() if place.is_local else ANYWHERE


def check_files(stores: Sequence[object], notes: object) -> None:
    """Refuse what is in a file, and would be opened on each of several nodes: everywhere another file.

    Args:
        stores: the store and the history store.
        notes: the working memory.

    Raises:
        ConfigError: says which argument, and what to use in its place.
    """
    if sum(node["Alive"] for node in ray.nodes()) == 1:
        return
    reason = "a SQLite file belongs to one node and this cluster has several; use"
    for name, setting in zip(("store", "history_store"), stores, strict=True):
        if is_file(setting):
            raise ConfigError(name, setting, f"{reason} postgresql://user@host/name")
    if is_local(notes):
        raise ConfigError("working_memory", "WorkingMemory", f"{reason} postgresql://user@host/name")
