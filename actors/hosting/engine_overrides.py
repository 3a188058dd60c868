"""Which engines live sessions have, for when their processes are started again.

Ray starts an actor again with what it was made with. So what came later is kept in an actor of its own, which is made
when a session first takes something over, or its process leaves while a run of it waits. It is lost with the cluster,
as the sessions' processes are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError

_log = logging.getLogger(__name__)

_NAME = "turnwise/adoptions"


@dataclass(frozen=True, slots=True)
class EngineOverride:
    """Which engines a session has: the one that its next runs are to have, and those of open runs that have others."""

    engine_id: str
    runs: Mapping[str, str] = field(default_factory=dict)
    """Engine ids by run id."""

    @property
    def engine_ids(self) -> set[str]:
        """All of these."""
        return {self.engine_id, *self.runs.values()}


class EngineOverrides:
    """The body of that actor: the engines that sessions have now, by the key of the actor that has them.

    The key of a dedicated session's actor is its name, so that the next actor of the session finds what was noted,
    whichever manager makes it; that of a packed host is its actor id. Each engine is held once.
    """

    def __init__(self) -> None:
        self._adopted: dict[str, dict[str, EngineOverride]] = {}
        """By session, by actor."""
        self._engines: dict[str, bytes] = {}

    async def keep(self, key: str, session_id: str, adopted: EngineOverride, engines: Mapping[str, bytes]) -> None:
        """Note which engines a session has, and these engines by their ids."""
        self._adopted.setdefault(key, {})[session_id] = adopted
        self._engines.update(engines)
        self._let_go()

    async def find(self, key: str) -> tuple[dict[str, EngineOverride], dict[str, bytes]]:
        """Return which engines the sessions of an actor have, by session, and these engines by their ids."""
        adopted = self._adopted.get(key, {})
        wanted = {engine_id for each in adopted.values() for engine_id in each.engine_ids}
        return adopted, {engine_id: self._engines[engine_id] for engine_id in wanted & self._engines.keys()}

    async def drop(self, key: str, session_id: str | None = None) -> None:
        """Forget an actor that is not started again, or one of its sessions that has left."""
        if session_id is None:
            self._adopted.pop(key, None)
        elif sessions := self._adopted.get(key):
            sessions.pop(session_id, None)
        self._let_go()

    def _let_go(self) -> None:
        """Let go of engines that nobody has, now and then."""
        if len(self._engines) > _MANY:
            every = [each for sessions in self._adopted.values() for each in sessions.values()]
            used = {engine_id for each in every for engine_id in each.engine_ids}
            self._engines = {engine_id: engine for engine_id, engine in self._engines.items() if engine_id in used}


_MANY = 16
"""Engines that are held before it is looked for those that nobody has."""


async def keep_adopted(
    namespace: str, key: str, session_id: str, adopted: EngineOverride, engines: Mapping[str, bytes]
) -> None:
    """Note which engines a session has; on return that survives the process of its actor."""
    actor: Any = (
        ray.remote(EngineOverrides)
        .options(name=_NAME, namespace=namespace, lifetime="detached", get_if_exists=True, num_cpus=0)
        .remote()
    )
    await actor.keep.remote(key, session_id, adopted, engines)


def find_adopted(namespace: str, key: str) -> tuple[dict[str, EngineOverride], dict[str, bytes]]:
    """Return what an actor's sessions had taken over before its process was lost: see `EngineOverrides.find`. Blocks.

    Nothing, if that was lost too: then they have what they were made with, until the next run brings its own.
    """
    found: tuple[dict[str, EngineOverride], dict[str, bytes]] = {}, {}
    if actor := _find(namespace):
        try:
            found = ray.get(actor.find.remote(key))
        except RayActorError:
            _log.warning("what sessions had taken over from later managers is lost with its node")
    return found


def drop_adopted(namespace: str, key: str, session_id: str | None = None) -> Any:
    """Forget an actor that leaves, or a session that has left it; return the call, or None if there is nothing."""
    actor = _find(namespace)
    return actor.drop.remote(key, session_id) if actor else None


def _find(namespace: str) -> Any:
    try:
        return ray.get_actor(_NAME, namespace=namespace)
    except ValueError:
        return None
