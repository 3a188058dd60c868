"""What a turn costs each part, and a simulation of the parts, by events.

A turn goes from a caller's process to the host that has its session, from there to the store and back. A process does
one thing at a time, on one of the machine's cores; so does the writer of a SQLite file. Failures are kills of hosts:
who waits for one waits until another process has taken its place.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import simpy

Steps = Generator[simpy.Event, Any, None]


@dataclass(frozen=True, slots=True)
class Costs:
    """The processor time that a turn takes of each part, in seconds."""

    caller: float
    host: float
    store: float
    """Of PostgreSQL; 0 for SQLite, whose work is done in the host."""
    ray: float
    """Of Ray's own processes."""
    serial: float
    """For how long a turn keeps its host from serving another."""
    connections: int = 4
    """How many turns of a host are in PostgreSQL at once."""

    @property
    def all(self) -> float:
        return self.caller + self.host + self.store + self.ray

    @classmethod
    def of(cls, run: Mapping[str, Any], connections: int = 1) -> Costs:
        """Return the costs as measured at one host, which was busy all the time."""
        cpu = run["cpu_s"]
        serial = min(cpu["host"], 1 / run["rate"])
        return cls(cpu["caller"], cpu["host"], cpu.get("store", 0.0), cpu["ray"], serial, connections)


def costs_with(measured: Mapping[Any, Costs], together: float) -> Costs:
    """Return the costs of a turn, if so many go together: in one call to their host, and in one transaction.

    Args:
        measured: the costs with two other numbers of turns, by these. The part that depends on it is what they share.
    """
    (few, of_few), (many, of_many) = sorted(measured.items())

    def between(dear: float, cheap: float) -> float:
        shared = (dear - cheap) / (1 / few - 1 / many)
        seconds: float = cheap + shared * (1 / together - 1 / many)
        return max(0.0, seconds)

    caller, host, store, ray, serial = (between(getattr(of_few, name), getattr(of_many, name)) for name in TIMES)
    return Costs(caller, host, store, ray, serial, of_many.connections)


TIMES = ("caller", "host", "store", "ray", "serial")


@dataclass(frozen=True, slots=True)
class Load:
    """Who asks whom, and for how long."""

    hosts: int
    callers: int
    """How many turns are under way at once."""
    cores: int
    """Of the machine that all are on."""
    seconds: float = 20.0
    kill_every_s: float | None = None
    """How often a host is killed."""
    recovery_s: float = 0.0
    """How long its sessions wait then, if all cores are free."""
    restart_cpu_s: float = 0.0
    """How much of that is processor time, of the process that takes its place."""


@dataclass(frozen=True, slots=True)
class Outcome:
    rate: float
    """Turns a second."""
    p50_s: float
    p99_s: float


def simulate(costs: Costs, load: Load, seed: int = 0) -> Outcome:
    """Return what comes of a load. The same arguments give the same outcome."""
    chance, env = random.Random(seed), simpy.Environment()
    cores = simpy.Resource(env, load.cores)
    caller = simpy.Resource(env, 1)
    ray = simpy.Resource(env, 1)
    hosts = [simpy.PriorityResource(env, 1) for _ in range(load.hosts)]
    threads = [simpy.Resource(env, 1) for _ in range(load.hosts)]
    connections = [simpy.Resource(env, costs.connections) for _ in range(load.hosts)]
    durations: list[float] = []
    warm_s = load.seconds / 5

    def work(seconds: float) -> Steps:
        """Use a core, in slices, as the system's scheduler gives them."""
        remaining_s = seconds * chance.uniform(0.5, 1.5)
        while remaining_s > 0:
            with cores.request() as core:
                yield core
                part = min(remaining_s, 0.002)
                yield env.timeout(part)
                remaining_s -= part

    def done_by(process: Any, seconds: float, **request: Any) -> Steps:
        """Have a process, which does one thing at a time, do this."""
        with process.request(**request) as granted:
            yield granted
            yield from work(seconds)

    def turn(index: int) -> Steps:
        yield from done_by(caller, costs.caller / 2)
        yield from done_by(hosts[index], costs.serial, priority=1)
        yield from done_by(threads[index], costs.host - costs.serial)
        yield from done_by(connections[index], costs.store)
        yield from done_by(ray, costs.ray)
        yield from done_by(caller, costs.caller / 2)

    def talk(number: int) -> Steps:
        while True:
            began = env.now
            yield from turn(number % load.hosts)
            if env.now > warm_s:
                durations.append(env.now - began)

    def fail() -> Steps:
        while load.kill_every_s:
            yield env.timeout(load.kill_every_s)
            env.process(away(chance.choice(hosts)))

    def away(host: Any) -> Steps:
        with host.request(priority=0) as place:
            yield place
            yield env.timeout(load.recovery_s - load.restart_cpu_s)
            yield from work(load.restart_cpu_s)

    for number in range(load.callers):
        env.process(talk(number))
    env.process(fail())
    env.run(until=load.seconds)
    durations.sort()
    return Outcome(
        len(durations) / (load.seconds - warm_s), durations[len(durations) // 2], durations[len(durations) * 99 // 100]
    )
