"""Assigns sessions to packed hosts, and orders the layouts that follow when the number of hosts changes.

The names of the hosts contain the layout: `turnwise/<store id>/hosts/<generation>x<hosts>/<index>`. So every process
can read it from Ray, and no lost process loses it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Self

import ray

from turnwise.actors.cluster.actor_names import processes_of
from turnwise.memory.conversation.sessions import SessionKey


@dataclass(frozen=True, order=True)
class Layout:
    """A number of hosts. A layout replaces those of lower generations; in one generation the larger one wins."""

    generation: int
    hosts: int

    def index_of(self, session: SessionKey) -> int:
        """Return the index of the session's host, from 0.

        A jump consistent hash (Lamping and Veach, 2014): if a host is added to n hosts, one in n + 1 sessions moves.
        """
        name = "\0".join(session).encode("utf-8", "surrogatepass")
        key = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())
        index, jump = 0, 0
        while jump < self.hosts:
            index = jump
            key = (key * 2862933555777941757 + 1) % 2**64
            jump = int((index + 1) * (2**31 / ((key >> 33) + 1)))
        return index

    def actor_name(self, store_id: str, index: int) -> str:
        """Return the actor name of the host with this index."""
        return f"{_prefix(store_id)}{self.generation}x{self.hosts}/{index}"

    def actor_names(self, store_id: str) -> list[str]:
        """Return the actor names of all hosts, by index."""
        return [self.actor_name(store_id, index) for index in range(self.hosts)]

    def next(self, hosts: int) -> Self:
        """Return the layout with another number of hosts that replaces this one."""
        return type(self)(self.generation + 1, hosts)


def find_layouts(namespace: str, store_id: str) -> list[Layout]:
    """Return the layouts of which a host exists, newest first. Lists the names of all actors once."""
    shape = re.compile(re.escape(_prefix(store_id)) + r"(\d+)x(\d+)/\d+")
    names = (
        shape.fullmatch(actor["name"])
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["namespace"] == namespace
    )
    return sorted({Layout(*map(int, name.groups())) for name in names if name}, reverse=True)


def _prefix(store_id: str) -> str:
    return f"{processes_of(store_id)}hosts/"
