"""Checks the settings of a Redis for those that may lose acknowledged writes."""

from __future__ import annotations

import logging
from typing import Any

_log = logging.getLogger(__name__)


class SettingsCheck:
    """Reads the settings of a Redis once, and logs a warning for each that may lose acknowledged writes.

    Args:
        name: the store's name in messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.is_done = False

    async def __call__(self, client: Any) -> None:
        """Read the settings and warn. If Redis does not return its settings, there is no warning."""
        from redis.exceptions import ResponseError

        try:
            settings = await client.config_get("append*") | await client.config_get("maxmemory*")
        except ResponseError as error:  # the user may lack the right, and some hosts disable the command
            _log.debug("store %s does not return its settings: %s", self._name, error)
            settings = {}
        if self.is_done:  # a concurrent call was first
            return
        self.is_done = True
        for fault in _faults(settings):
            _log.warning("store %s may lose what it has acknowledged: %s", self._name, fault)


def _faults(settings: dict[str, str]) -> list[str]:
    """Return the reasons why commits could be lost. An unknown setting is no reason."""
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
