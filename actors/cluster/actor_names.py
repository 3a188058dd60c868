"""Names of dedicated sessions' actors, and lookup of actors by name."""

from __future__ import annotations

from typing import Any

import ray


def actor_name(store_id: str, session_id: str) -> str:
    """Return the name of a dedicated session's actor."""
    return f"turnwise/{store_id}/{session_id}"


def find_actor(namespace: str, name: str) -> Any:
    """Return the actor of this name, or None."""
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError:
        return None
