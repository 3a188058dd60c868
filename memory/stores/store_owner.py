"""Detects that a store has two owners, such as two Ray clusters: they would interrupt each other's runs."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turnwise.memory.values.ids import new_id

LABEL = "turnwise/"
"""Prefix of the names of connections to a server."""


@dataclass(frozen=True)
class StoreOwner:
    """Who has a store open and runs its sessions: a Ray cluster, or a single process without Ray."""

    address: str
    """The address of the cluster's head; of a process without Ray, `process <id> on <host>`."""
    session: str
    """The cluster's session name by Ray, or a random id of the process. No other owner has it, then or later."""

    @classmethod
    def of_this_process(cls) -> StoreOwner:
        """Return the owner that this process is by itself, without Ray."""
        return cls(f"{_PROCESS}{os.getpid()} on {socket.gethostname()}", _RANDOM_IDS.setdefault(os.getpid(), new_id()))

    @property
    def is_process(self) -> bool:
        """Whether it is a single process without Ray."""
        return self.address.startswith(_PROCESS)

    @property
    def is_running_process(self) -> bool:
        """Whether it is a process without Ray that runs; one of another machine is taken to run."""
        shape = re.fullmatch(rf"{_PROCESS}(\d+) on (.*)", self.address)
        if shape is None or shape[2] != socket.gethostname():
            return shape is not None
        try:
            os.kill(int(shape[1]), 0)
        except ProcessLookupError:
            return False
        except OSError:
            pass  # it is another user's
        return True

    @property
    def name(self) -> str:
        """What errors call it."""
        return self.address if self.is_process else f"the Ray cluster at {self.address}"

    @property
    def short_address(self) -> str:
        """Its address as `rivals` has those of others: in at most 45 characters without blanks."""
        return self.address[:45].replace(" ", "-")

    @property
    def label(self) -> str:
        """The name of its connections to a server, in at most 63 characters without blanks."""
        digest = hashlib.sha256(self.session.encode()).hexdigest()[:8]
        return f"{LABEL}{self.short_address}/{digest}"


_PROCESS = "process "
_RANDOM_IDS: dict[int, str] = {}
"""The random id of this process, by its process id: a process that was forked gets its own."""


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
    """Base of stores that several owners may reach, and that know which of them have them open."""

    @abstractmethod
    def own(self, owner: StoreOwner) -> None:
        """Set the owner for which this process opens the store. Call it before all other methods. May block.

        Raises:
            ConfigError: another owner has the store open, and it allows only one; nothing was changed.
        """

    @abstractmethod
    async def rivals(self) -> Sequence[str]:
        """Return the addresses of the other owners that have the store open now; none if the store does not know.

        Raises:
            StoreError: the store cannot be reached.
        """


async def rivals(store: object) -> Sequence[str]:
    """Return the addresses of the other owners that have a store open; none if the store does not know."""
    return await store.rivals() if isinstance(store, Shared) else ()


class RivalWatch:
    """Tells which other owners of a store have ended: those that it saw, and those that it is asked about first.

    Others that it does not see may live, such as those whose connections the store does not show.
    """

    def __init__(self, store: object) -> None:
        self._store = store
        self._others: Sequence[str] = ()
        self._seen: set[str] = set()
        self._unseen: set[str] = set()
        """Those that were taken to have ended without having been seen."""

    async def look(self) -> Sequence[str]:
        """Return the addresses of the other owners that have the store open now.

        Raises:
            StoreError: the store cannot be reached.
        """
        self._others = await rivals(self._store)
        self._seen.update(self._others)
        return self._others

    def has_ended(self, address: str) -> bool:
        """Return whether an owner had ended by the last look. One that was never seen has so once."""
        if address in self._others or address in self._unseen - self._seen:
            return False
        self._unseen.add(address)
        return True


def are_processes(addresses: Sequence[str]) -> bool:
    """Return whether all of these rivals are single processes without Ray."""
    prefix = _PROCESS.replace(" ", "-")
    return all(address.startswith(prefix) for address in addresses)


def rivals_among(labels: Sequence[str], owner: StoreOwner | None) -> list[str]:
    """Return the addresses of owners other than this one, from a server's connection names; none without an owner."""
    labels_of_others = {name for name in labels if owner and name.startswith(LABEL) and name != owner.label}
    return sorted(name.removeprefix(LABEL).rpartition("/")[0] for name in labels_of_others)
