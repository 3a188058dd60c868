"""The setups that running sessions switched to, so that restarted actors keep them.

A setup is a `SessionSetup`, pickled; "engine" and "engine id" here mean a setup and its id. Ray restarts an actor with
its original arguments. So later setups are kept in another actor, which is created when a session first switches, or
when its process leaves while a run waits. It is lost with the cluster, as the sessions' processes are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError

from turnwise.actors.cluster.actor_names import detached_actor, find_actor

_log = logging.getLogger(__name__)

_NAME = "turnwise/engine_overrides"


@dataclass(frozen=True, slots=True)
class EngineOverride:
    """The engines of a session: the one of its next runs, and those of open runs that use others."""

    engine_id: str
    runs: Mapping[str, str] = field(default_factory=dict)
    """Engine ids by run id."""

    @property
    def engine_ids(self) -> set[str]:
        """The ids of all these engines."""
        return {self.engine_id, *self.runs.values()}


class EngineOverrides:
    """The body of that actor: the current engines of sessions, by the key of the actor that hosts them.

    The key of a dedicated session's actor is its name, so that the session's next actor finds its engines, whichever
    manager creates it; the key of a packed host is its actor id. Each engine is stored once.
    """

    def __init__(self) -> None:
        self._overrides: dict[str, dict[str, EngineOverride]] = {}
        """By actor key, then by session id."""
        self._engines: dict[str, bytes] = {}

    async def save(self, key: str, session_id: str, override: EngineOverride, engines: Mapping[str, bytes]) -> None:
        """Store the engine ids of a session, and the pickled engines by id."""
        self._overrides.setdefault(key, {})[session_id] = override
        self._engines.update(engines)
        self._drop_unused()

    async def find(self, key: str) -> tuple[dict[str, EngineOverride], dict[str, bytes]]:
        """Return the engine ids of an actor's sessions, by session, and the pickled engines by id."""
        overrides = self._overrides.get(key, {})
        wanted = {engine_id for each in overrides.values() for engine_id in each.engine_ids}
        return overrides, {engine_id: self._engines[engine_id] for engine_id in wanted & self._engines.keys()}

    async def drop(self, key: str, session_id: str | None = None) -> None:
        """Forget an actor that is not started again, or one of its sessions that has left."""
        if session_id is None:
            self._overrides.pop(key, None)
        elif sessions := self._overrides.get(key):
            sessions.pop(session_id, None)
        self._drop_unused()

    def _drop_unused(self) -> None:
        """Drop engines that no session uses, once there are many."""
        if len(self._engines) > _MANY:
            every = [each for sessions in self._overrides.values() for each in sessions.values()]
            used = {engine_id for each in every for engine_id in each.engine_ids}
            self._engines = {engine_id: engine for engine_id, engine in self._engines.items() if engine_id in used}


_MANY = 16
"""How many engines are stored before unused ones are dropped."""


async def save_override(
    namespace: str, key: str, session_id: str, override: EngineOverride, engines: Mapping[str, bytes]
) -> None:
    """Store which engines a session has; after return this survives the session's process."""
    actor = detached_actor(EngineOverrides, _NAME, namespace).remote()
    await actor.save.remote(key, session_id, override, engines)


def find_overrides(namespace: str, key: str) -> tuple[dict[str, EngineOverride], dict[str, bytes]]:
    """Return the engines that an actor's sessions had switched to; see `EngineOverrides.find`. Blocks.

    If the engine actor was lost too, nothing is returned: sessions have the actor's original engine until the next run
    brings another.
    """
    found: tuple[dict[str, EngineOverride], dict[str, bytes]] = {}, {}
    if actor := find_actor(namespace, _NAME):
        try:
            found = ray.get(actor.find.remote(key))
        except RayActorError:
            _log.warning(
                "the engines that sessions had switched to were lost with a node; until their next runs, these sessions"
                " use the engine with which their process was created"
            )
    return found


def drop_overrides(namespace: str, key: str, session_id: str | None = None) -> Any:
    """Forget an actor that leaves, or a session that has left it; return the call, or None if there is nothing."""
    actor = find_actor(namespace, _NAME)
    return actor.drop.remote(key, session_id) if actor else None
