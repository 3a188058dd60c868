"""What live sessions have taken over from later managers, for when their processes are started again.

Ray starts an actor again with what it was made with. So what came later is kept in an actor of its own, which is made
when a session first takes something over; it is lost with the cluster, as the sessions' processes are.
"""

from __future__ import annotations

from typing import Any

import ray

_NAME = "turnwise/adoptions"


class Adoptions:
    """The body of that actor: by the id of a session's actor, the engine that it has now."""

    def __init__(self) -> None:
        self._engines: dict[str, tuple[str, bytes]] = {}

    async def keep(self, actor_id: str, engine_id: str, engine: bytes) -> None:
        """Note what an actor has taken over."""
        self._engines[actor_id] = engine_id, engine

    async def find(self, actor_id: str) -> tuple[str, bytes] | None:
        """Return what it has taken over last."""
        return self._engines.get(actor_id)

    async def drop(self, actor_id: str) -> None:
        """Forget an actor that is not started again."""
        self._engines.pop(actor_id, None)


async def keep_adopted(namespace: str, actor_id: str, engine_id: str, engine: bytes) -> None:
    """Note what an actor takes over; on return it survives the actor's process."""
    actor: Any = (
        ray.remote(Adoptions)
        .options(name=_NAME, namespace=namespace, lifetime="detached", get_if_exists=True, num_cpus=0)
        .remote()
    )
    await actor.keep.remote(actor_id, engine_id, engine)


def find_adopted(namespace: str, actor_id: str) -> tuple[str, bytes] | None:
    """Return what an actor has taken over before its process was lost. Blocks."""
    actor = _find(namespace)
    found: tuple[str, bytes] | None = ray.get(actor.find.remote(actor_id)) if actor else None
    return found


def drop_adopted(namespace: str, actor_id: str) -> None:
    """Forget an actor that leaves; does not wait."""
    if actor := _find(namespace):
        actor.drop.remote(actor_id)


def _find(namespace: str) -> Any:
    try:
        return ray.get_actor(_NAME, namespace=namespace)
    except ValueError:
        return None
