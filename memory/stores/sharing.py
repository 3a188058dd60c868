"""Which Rays have a store open: two would take its sessions from each other, and interrupt their runs."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

LABEL = "turnwise/"
"""What the names of connections to a server begin with."""


@dataclass(frozen=True, slots=True)
class RayId:
    """A Ray: a cluster, or what one process has started."""

    address: str
    """Of its head."""
    session: str
    """Its name for itself, which no other Ray has."""

    @property
    def label(self) -> str:
        """What its connections to a server are called, in at most 63 characters without blanks."""
        digest = hashlib.sha256(self.session.encode()).hexdigest()[:8]
        return f"{LABEL}{self.address[:45].replace(' ', '')}/{digest}"


class Shared(ABC):
    """Base of stores that several Rays may reach, and that can tell which of them have it open."""

    @abstractmethod
    def own(self, ray: RayId) -> None:
        """Say for which Ray this process opens the store; before the first verb. May block.

        Raises:
            ConfigError: another Ray has it open, and two cannot; nothing was changed.
        """

    @abstractmethod
    async def rivals(self) -> Sequence[str]:
        """Return the addresses of the other Rays that have the store open now; none where that cannot be told.

        Raises:
            StoreError: the store cannot be reached.
        """


async def rivals(store: object) -> Sequence[str]:
    """Return the addresses of the other Rays that have a store open; none if it cannot tell."""
    return await store.rivals() if isinstance(store, Shared) else ()


def rivals_among(labels: Sequence[str], ray: RayId | None) -> list[str]:
    """Return the addresses of Rays other than `ray`, by the names of a server's connections; none without `ray`."""
    others = {name for name in labels if ray and name.startswith(LABEL) and name != ray.label}
    return sorted(name.removeprefix(LABEL).rpartition("/")[0] for name in others)
