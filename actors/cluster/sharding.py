"""Assigns sessions to packed hosts, and orders the layouts that follow when the number of hosts changes.

The names of the hosts contain the layout: `turnwise/<store id>/hosts/<generation>x<hosts>/<index>`. So every process
can read it from Ray, and no lost process loses it. A host that is drained has a successor in its place, whose name ends
with `.1`; that one's successor has `.2`, and so on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
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

    def actor_name(self, store_id: str, index: int, successor: int = 0) -> str:
        """Return the actor name of the host with this index: of the first one, or of a successor, counted from 1."""
        name = f"{_prefix(store_id)}{self.generation}x{self.hosts}/{index}"
        return f"{name}.{successor}" if successor else name

    def actor_names(self, store_id: str) -> list[str]:
        """Return the actor names of all hosts, by index."""
        return [self.actor_name(store_id, index) for index in range(self.hosts)]

    def next(self, hosts: int) -> Self:
        """Return the layout with another number of hosts that replaces this one."""
        return type(self)(self.generation + 1, hosts)


@dataclass(frozen=True)
class LayoutHosts:
    """The hosts of a layout that exist: of each index, which successors do, with 0 for the first host."""

    layout: Layout
    successors: Mapping[int, Sequence[int]]

    def newest(self, index: int) -> int:
        """Return which host has an index now: the last successor; 0 if none exists."""
        return max(self.successors.get(index, (0,)))

    def name_of(self, store_id: str, session: SessionKey) -> str:
        """Return the actor name of the host that has a session now."""
        index = self.layout.index_of(session)
        return self.layout.actor_name(store_id, index, self.newest(index))

    def newest_names(self, store_id: str) -> list[str]:
        """Return the actor names of the hosts that have sessions now, by index."""
        hosts = range(self.layout.hosts)
        return [self.layout.actor_name(store_id, index, self.newest(index)) for index in hosts]

    def names(self, store_id: str) -> list[str]:
        """Return the actor names of all hosts that exist, by index, those that were replaced first."""
        return [
            self.layout.actor_name(store_id, index, successor)
            for index, successors in sorted(self.successors.items())
            for successor in sorted(successors)
        ]


def find_hosts(namespace: str, store_id: str) -> list[LayoutHosts]:
    """Return the hosts that exist, of the newest layout first. Lists the names of all actors once."""
    shape = re.compile(re.escape(_prefix(store_id)) + r"(\d+)x(\d+)/(\d+)(?:\.(\d+))?")
    names = (
        shape.fullmatch(actor["name"])
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["namespace"] == namespace
    )
    hosts: dict[Layout, dict[int, list[int]]] = {}
    for generation, count, index, successor in (map(int, name.groups("0")) for name in names if name):
        hosts.setdefault(Layout(generation, count), {}).setdefault(index, []).append(successor)
    return [LayoutHosts(layout, hosts[layout]) for layout in sorted(hosts, reverse=True)]


def find_layouts(namespace: str, store_id: str) -> list[Layout]:
    """Return the layouts of which a host exists, newest first; see `find_hosts`."""
    return [hosts.layout for hosts in find_hosts(namespace, store_id)]


def _prefix(store_id: str) -> str:
    return f"{processes_of(store_id)}hosts/"
