"""`Dedicated`, `Packed` and `InProcess`: sessions run in an actor each, in a few actors, or in the caller's process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from pydantic import PlainValidator

from turnwise.memory.values.checked_settings import Count, PositiveCount, checked_settings
from turnwise.memory.values.ranges import whole_number


@dataclass(frozen=True)
@checked_settings()
class Dedicated:
    """One actor, so one process, for each session. The process ends when it is idle, and starts at the next call.

    The strongest isolation: an engine that uses much CPU or crashes affects no other session. Costs a process of some
    90 MB for each session that is not idle. On a cluster, the actors are spread over the nodes.
    """

    max_live: PositiveCount | None = None
    """How many sessions of the namespace may have a process at once; one more raises OverloadedError. Two sessions that
    are opened at the same moment may both get the last place. No limit if omitted."""

    max_waits: PositiveCount = 1_000
    """How many callers may wait in a session's process at once, for its runs, events and memories. Further callers
    repeat the call, and get OverloadedError if no place becomes free. Other methods are not counted, so they are always
    answered. A live process keeps the limit that it was created with."""

    spare_processes: Count = 1
    """How many processes without a session a manager has Ray keep ready on its node, some 90 MB each: a session that
    gets one answers half a second earlier. Ray itself prepares one for each CPU when it starts, and replaces none. With
    a `runtime_env` of your own, Ray uses none of them."""


MAX_HOSTS = 10_000
"""The most hosts: each is a process."""


@dataclass(frozen=True, kw_only=True)
@checked_settings()
class Packed:
    """Many sessions in each of a few actors, for those who have more sessions than a machine has room for processes.

    A session's id determines its host. The first call for a session loads it there, which costs one read of the store.
    It is unloaded when it is idle, or when it is the least recently used of too many; the next call loads it again.
    Sessions of a host share its event loop, so an engine or a coroutine tool that computes without awaiting delays the
    others: write tools that compute as plain functions, which run on threads, or as Ray functions.

    If a manager is opened with another number of hosts, sessions move: each continues where it is until its run ends,
    and the next call loads it on its new host, under a new epoch. If a host's process or node is lost, Ray restarts the
    host, on another node if necessary, and the host recovers the runs that were lost.
    """

    hosts: Annotated[int, PlainValidator(partial(whole_number, least=1, most=MAX_HOSTS))] = 4
    """How many actors, spread over the cluster's nodes. Each is a process of some 150 MB with one thread that computes,
    so one for each core is enough."""

    max_resident: PositiveCount = 10_000
    """How many sessions one host keeps loaded. If all of them are in use, one more raises OverloadedError."""

    max_calls: PositiveCount = 20_000
    """How many calls one host answers at once, without those that wait. One more raises OverloadedError."""

    max_session_calls: PositiveCount = 1_000
    """The same limit for one session, so that none uses up the host's."""

    max_waits: PositiveCount = 20_000
    """How many callers may wait in one host at once, for runs, events and memories; see `Dedicated.max_waits`."""

    max_session_waits: PositiveCount = 1_000
    """The same limit for one session, so that none uses up the host's."""


@dataclass(frozen=True, kw_only=True)
@checked_settings()
class InProcess:
    """All sessions, memories and stores in memory in the caller's process, on threads of its own, without Ray.

    For tests, scripts, notebooks, a bot, or a service of one process. It starts at once, and nothing of Ray is
    imported. Sessions are stored as with any other placement, so a program that ran so today runs on a cluster tomorrow
    by another placement. Managers of one store and namespace share its sessions, as on a cluster.

    Sessions and runs end with the process, and handles with them; the store has what was acknowledged. The next process
    that opens the store goes on with the runs that were lost, as after a crash anywhere: see `resume_lost`. A SQLite
    file belongs to one process at a time; another one that opens it gets ConfigError. Tools that are Ray tasks or
    methods of actors cannot be called. Engines, tools and memories need not pickle, and are used as they are: an engine
    that computes without awaiting delays all sessions.

    While a manager has the store open, the process also begins the runs of `Session.schedule` when they are due.
    """

    resume_lost: bool = True
    """Whether this manager carries on what the store has: runs whose process was killed go on, or are ended, as soon as
    it opens the store, unless another process has it open; and schedules begin their runs. If not, a session's lost
    runs go on when the session is first used, and schedules wait for another manager."""

    max_resident: PositiveCount = 10_000
    """How many sessions are kept loaded. If all of them are in use, one more raises OverloadedError."""

    max_session_waits: PositiveCount = 1_000
    """How many callers may wait for one session at once; see `Dedicated.max_waits`."""


Placement = Dedicated | Packed | InProcess
