"""Whether a Redis keeps what it acknowledges, by its settings."""

from __future__ import annotations

import logging
from typing import Any

_log = logging.getLogger(__name__)


class SettingsCheck:
    """Asks a Redis once for the settings that may lose what was acknowledged, and warns of them.

    Args:
        name: of the store, as it may be shown.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.is_done = False

    async def __call__(self, client: Any) -> None:
        """Ask, and warn. A Redis that does not tell is taken as it is."""
        from redis.exceptions import ResponseError

        try:
            settings = await client.config_get("append*") | await client.config_get("maxmemory*")
        except ResponseError as error:  # a user may lack the right, and some hosts have no such command
            _log.debug("store %s does not tell its settings: %s", self._name, error)
            settings = {}
        if self.is_done:  # others came first
            return
        self.is_done = True
        for why in _faults(settings):
            _log.warning("store %s may lose what it has acknowledged: %s", self._name, why)


def _faults(settings: dict[str, str]) -> list[str]:
    """Return why commits could be lost; what is not known is no fault."""
    faults = []
    sync = settings.get("appendfsync", "always")
    if settings.get("appendonly") == "no":
        faults.append("it has appendonly no; set appendonly yes and appendfsync always")
    elif sync != "always":
        faults.append(f"it has appendfsync {sync}, which may lose the last second or more; set appendfsync always")
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy.startswith("allkeys") and settings.get("maxmemory", "0") != "0":
        faults.append(f"it has maxmemory-policy {policy}, which drops sessions; set noeviction")
    return faults
