"""`diagnosis`: what Ray is running, and what its workers find where they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from turnwise.actors.hosting.identity import pickled
from turnwise.actors.wire_version import packed, unpacked_answer, unpacked_settings
from turnwise.errors import WireVersionError

ANSWER_S = 60.0
"""How long workers may take to start and to answer, in seconds."""

MOST = 20
"""How many nodes are asked."""


@dataclass(frozen=True, kw_only=True)
class RayFacts:
    """The Ray to which this process is connected."""

    version: str
    address: str
    nodes: int
    """How many are alive."""
    dead_nodes: tuple[str, ...]
    """The addresses of nodes that were lost, and did not come back."""
    resources: Mapping[str, float]
    free: Mapping[str, float]
    has_token: bool
    """Whether its processes prove by a token that they may use it."""


def ray_version() -> str:
    """Return the version of the installed Ray."""
    return str(ray.__version__)


def ray_facts() -> RayFacts:
    """Return what is known about the Ray to which this process is connected."""
    return RayFacts(
        version=ray_version(),
        address=ray.get_runtime_context().gcs_address,
        nodes=len(_nodes()),
        dead_nodes=_dead_nodes(),
        resources=ray.cluster_resources(),
        free=ray.available_resources(),
        has_token=os.environ.get("RAY_AUTH_MODE") == "token",
    )


def ask_workers(question: Callable[..., Any], *args: Any) -> Mapping[str, Any]:
    """Call a function in a new worker on each node; return the answers, or the errors as texts, by node address.

    The workers must be able to import the function, unless it is of a script.
    """
    task = ray.remote(_answered)
    refs = {
        node["NodeManagerAddress"]: task.options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(pickled((question, args)))
        for node in _nodes()[:MOST]
    }
    ray.wait(list(refs.values()), num_returns=len(refs), timeout=ANSWER_S)
    return {address: _answer(ref) for address, ref in refs.items()}


def _answered(request: bytes) -> bytes:
    question, args = unpacked_settings(request)
    return packed(question(*args))


def _answer(ref: Any) -> Any:
    try:
        return unpacked_answer(ray.get(ref, timeout=0.1))
    except (RayError, WireVersionError) as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"


def _nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _dead_nodes() -> tuple[str, ...]:
    addresses = {node["NodeManagerAddress"] for node in ray.nodes() if not node["Alive"]}
    return tuple(sorted(addresses - {node["NodeManagerAddress"] for node in _nodes()}))
