"""Named actors: their creation and lookup, and the names of dedicated sessions' actors."""

from __future__ import annotations

import hashlib
from typing import Any

import ray


def store_id_of(namespace: str, store: object, *, is_encrypted: bool = False) -> str:
    """Return what stands for a store in the names of its actors; `store` is its resolved URL, or its object.

    Managers with and without encryption cannot read each other's sessions, so they use different actors.
    """
    name = f"{namespace}\n{store}" + ("\nencrypted" if is_encrypted else "")
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def actor_name(store_id: str, session_id: str) -> str:
    """Return the name of a dedicated session's actor."""
    return f"turnwise/{store_id}/{session_id}"


def find_actor(namespace: str, name: str) -> Any:
    """Return the actor of this name, or None."""
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError:
        return None


def detached_actor(body: type, name: str, namespace: str, **options: Any) -> Any:
    """Return the class as a named actor that outlives this process; its `remote()` returns the existing one, if any.

    Args:
        options: further options of Ray.
    """
    return ray.remote(body).options(
        name=name, namespace=namespace, lifetime="detached", get_if_exists=True, num_cpus=0, **options
    )
