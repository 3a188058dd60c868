"""Detects that two Ray clusters use one store: they would interrupt each other's runs."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LABEL = "turnwise/"
"""Prefix of the names of connections to a server."""


@dataclass(frozen=True)
class RayId:
    """Identity of a Ray cluster, also of one that a single process has started."""

    address: str
    """The address of its head."""
    session: str
    """Ray's own session name, unique to the cluster."""

    @property
    def label(self) -> str:
        """The name of its connections to a server, in at most 63 characters without blanks."""
        digest = hashlib.sha256(self.session.encode()).hexdigest()[:8]
        return f"{LABEL}{self.address[:45].replace(' ', '')}/{digest}"


def variables_of(address: str) -> dict[str, str]:
    """Return the environment variables by which programs of this machine join a Ray of this machine.

    A Ray asks for the token of the user who started it, once there is one, unless it was told otherwise. It is used for
    a Ray that is found, but not for one that `RAY_ADDRESS` names.
    """
    variables = {"RAY_ADDRESS": address}
    mode = os.environ.get("RAY_AUTH_MODE")  # which Ray sets where it starts one
    if mode == "token" or (mode is None and (Path.home() / ".ray" / "auth_token").exists()):
        variables["RAY_AUTH_MODE"] = "token"
    return variables


def naming(address: str) -> str:
    """Return the variables of `variables_of` as a shell takes them."""
    return " ".join(f"{name}={value}" for name, value in variables_of(address).items())


class Shared(ABC):
    """Base of stores that several Ray clusters may reach, and that know which clusters have them open."""

    @abstractmethod
    def own(self, ray: RayId) -> None:
        """Set the Ray cluster for which this process opens the store. Call it before all other methods. May block.

        Raises:
            ConfigError: another Ray cluster has the store open, and it allows only one; nothing was changed.
        """

    @abstractmethod
    async def rivals(self) -> Sequence[str]:
        """Return the addresses of the other Ray clusters that have the store open now; none if the store does not know.

        Raises:
            StoreError: the store cannot be reached.
        """


async def rivals(store: object) -> Sequence[str]:
    """Return the addresses of the other Ray clusters that have a store open; none if the store does not know."""
    return await store.rivals() if isinstance(store, Shared) else ()


def rivals_among(labels: Sequence[str], ray: RayId | None) -> list[str]:
    """Return the addresses of clusters other than `ray`, from a server's connection names; none without `ray`."""
    labels_of_others = {name for name in labels if ray and name.startswith(LABEL) and name != ray.label}
    return sorted(name.removeprefix(LABEL).rpartition("/")[0] for name in labels_of_others)
