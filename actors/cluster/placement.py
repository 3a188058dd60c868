"""`Dedicated` and `Packed`: one actor for each session, or a few actors with many sessions each."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Dedicated:
    """One actor, so one process, for each session; it leaves when the session is idle and comes back at the next call.

    Strongest isolation: an engine that burns CPU or crashes takes no other session along. Costs a process of some 60 MB
    for every session that is not idle. On a cluster the actors are spread over its nodes.
    """

    max_live: int | None = None
    """How many sessions may have a process at once, over the namespace; one more is refused with OverloadedError. Two
    that are opened at the same moment may both get the last place. No limit if left out."""

    max_waits: int = 1_000
    """How many may wait in a session's process at once, for its runs, events and memories. For others `wait` asks again
    and again, and raises OverloadedError if that does not help. Other verbs do not count, so they always get through.
    A process that lives keeps the limit it was made with."""

    def __post_init__(self) -> None:
        if self.max_live is not None and self.max_live < 1:
            raise ConfigError("max_live", self.max_live, "must be 1 or more, or None for no limit")
        if self.max_waits < 1:
            raise ConfigError("max_waits", self.max_waits, "must be 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Many sessions in each of a few actors, for those who have more sessions than a machine has room for processes.

    A session's host follows from its id. It is active there from the first verb that asks for it, which costs one read
    of the store, until it is idle or the least lately used of too many; it comes back at the next verb. Its neighbours
    share the host's event loop, so an engine or a coroutine tool that computes without awaiting delays them: let tools
    that compute be plain functions, which run on threads, or Ray functions.

    A manager that comes with another number of hosts moves the sessions: each goes on where it runs until its run ends,
    and is taken over by its new host, under a new epoch, with the next verb. If a host's process or node is lost, Ray
    starts it again, elsewhere if need be, and it sees to the runs that were lost.
    """

    hosts: int = 4
    """How many actors, spread over the cluster's nodes. Each is a process of one thread that computes and some 150 MB:
    about one for each core is enough."""

    max_resident: int = 10_000
    """How many sessions one host keeps active. If all of them run, one more is refused with OverloadedError."""

    max_calls: int = 20_000
    """How many verbs one host carries out at once, beside those that wait. More are refused with OverloadedError."""

    max_session_calls: int = 1_000
    """Likewise of one session, so that none takes all."""

    max_waits: int = 20_000
    """How many may wait in one host at once, for runs, events and memories; see `Dedicated.max_waits`."""

    max_session_waits: int = 1_000
    """Likewise for one session, so that none takes all."""

    def __post_init__(self) -> None:
        for name in ("hosts", "max_resident", "max_calls", "max_session_calls", "max_waits", "max_session_waits"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "must be 1 or more")


Placement = Dedicated | Packed
