"""Measures turns of packed sessions, and what they need of each part: `python -m capacity.measure FILE`.

So many callers in one process each have one turn after the other in a session of their own, with a model that answers
at once. Measured are the turns of a second, their durations, and, meanwhile, the processor time of the callers'
process, the hosts' processes, PostgreSQL and the rest of Ray; actor calls; and transactions, connections and bytes of
PostgreSQL. In one more run hosts are killed again and again, and one says what a resident session takes of memory.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Ray reads these when it is imported.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}

import psutil  # type: ignore[import-untyped]
import psycopg
import ray
from ray.cluster_utils import Cluster

from harness import counted_calls
from packing import hosts_of, in_batches, one_turn, pss_of, retire
from servers.postgres_server import PostgresServer
from turnwise import AsyncSession, AsyncSessionManager, EchoEngine, Packed
from turnwise.errors import TurnwiseError

CALLERS, FEW = 64, 4
"""How many turns are under way at once, and how many in the runs that say what a turn costs when there are fewer."""
WARM_UP_S, MEASURED_S, QUICK_S = 4.0, 10.0, 2.0
KILL_EVERY_S, KILLS, QUICK_KILLS = 6.0, 4, 1
RESIDENT, QUICK_RESIDENT = 2000, 100

Find = Callable[[], list[psutil.Process]]
Count = Callable[[], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Site:
    """A store, and what is counted of it and of Ray beside the callers and the hosts."""

    url: str
    processes: Mapping[str, Find]
    """What returns other processes whose time is counted, by name."""
    count: Count
    """Returns the store's counters: transactions, connections and bytes."""


async def turns(site: Site, hosts: int, seconds: float, callers: int = CALLERS, kills: int = 0) -> dict[str, Any]:
    """Have callers talk for some seconds, or while so many hosts are killed; return what it took."""
    namespace = f"capacity-{time.monotonic_ns()}"
    placement = Packed(hosts=hosts)
    async with AsyncSessionManager(site.url, engine=EchoEngine(), placement=placement, namespace=namespace) as manager:
        sessions = [await manager.open(f"session-{number}") for number in range(callers)]
        await in_batches(one_turn, sessions)  # which starts the hosts
        durations: list[float] = []
        errors: list[TurnwiseError] = []
        ends = asyncio.Event()

        async def talk(session: AsyncSession) -> None:
            while not ends.is_set():
                began = time.perf_counter()
                try:
                    await one_turn(session)
                    durations.append(time.perf_counter() - began)
                except TurnwiseError as error:  # its host was killed meanwhile
                    errors.append(error)

        talks = [asyncio.create_task(talk(session)) for session in sessions]
        await asyncio.sleep(WARM_UP_S)
        counted = {"host": await processes_of(manager), "caller": [psutil.Process()]}
        counted |= {name: find() for name, find in site.processes.items()}
        before, at_first, began = {name: spent(of) for name, of in counted.items()}, site.count(), time.perf_counter()
        durations.clear()
        with counted_calls() as calls:
            await (kill_hosts(manager, kills) if kills else asyncio.sleep(seconds))
        done, lasted, at_last = sorted(durations), time.perf_counter() - began, site.count()
        result: dict[str, Any] = {
            "hosts": hosts,
            "callers": callers,
            "rate": len(done) / lasted,
            "p50_s": done[len(done) // 2],
            "p99_s": done[len(done) * 99 // 100],
            "calls": (calls.local + calls.by_ray) / len(done),
        }
        if kills:
            result |= {"kill_every_s": KILL_EVERY_S, "interrupted": len(errors), "turns": len(done)}
        else:
            result["cpu_s"] = {name: sum(spent(of, before[name]).values()) / len(done) for name, of in counted.items()}
            result |= {
                name: (at_last[name] - at_first[name]) / len(done)
                for name in ("transactions", "bytes")
                if name in at_last
            }
            result |= {name: at_last[name] for name in ("connections",) if name in at_last}
        ends.set()
        await asyncio.gather(*talks)
        if hosts == 1:
            result |= await recovered(sessions[0])
        await retire(manager)
    if errors and not kills:
        raise errors[0]
    return result


async def kill_hosts(manager: AsyncSessionManager, times: int) -> None:
    """Kill one host after the other, each in the middle of its part of the time."""
    for number in range(times):
        await asyncio.sleep(KILL_EVERY_S / 2)
        hosts = await processes_of(manager)
        hosts[number % len(hosts)].kill()
        await asyncio.sleep(KILL_EVERY_S / 2)


async def processes_of(manager: AsyncSessionManager) -> list[psutil.Process]:
    """Return the hosts' processes."""
    return [psutil.Process(pid) for pid in await asyncio.gather(*(host.ready.remote() for host in hosts_of(manager)))]


async def recovered(session: AsyncSession) -> dict[str, float]:
    """Kill a session's host while nothing else is to do; return how long it takes until the session answers again."""
    psutil.Process((await session.info()).pid).kill()
    began = time.perf_counter()
    await one_turn(session)
    lasted = time.perf_counter() - began
    computed = sum(spent([psutil.Process((await session.info()).pid)]).values())
    return {"recovery_s": lasted, "restart_cpu_s": min(lasted, computed)}


async def resident_bytes(url: str, count: int) -> float:
    """Return how much memory a session adds to its host, with one turn."""
    async with AsyncSessionManager(
        url, engine=EchoEngine(), placement=Packed(hosts=1), namespace="resident"
    ) as manager:
        sizes = []
        for first, last in itertools.pairwise((0, count // 10, count + count // 10)):
            sessions = [await manager.open(f"session-{number}") for number in range(first, last)]
            await in_batches(one_turn, sessions)
            sizes.append(pss_of((await processes_of(manager))[0].pid))
        await retire(manager)
    return (sizes[1] - sizes[0]) / count


def of_postgres(url: str) -> Mapping[str, float]:
    """Return the counters of a database, without this connection."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT xact_commit + xact_rollback, pg_database_size(current_database()), (SELECT count(*)"
            " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid())"
            " FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert row
    return dict(zip(("transactions", "bytes", "connections"), map(int, row), strict=True))


def of_sqlite(url: str) -> Mapping[str, float]:
    """Return the bytes of a SQLite database, of which a part may still be in its log."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return {"bytes": pages * size}


def spent(processes: Sequence[psutil.Process], since: Mapping[int, float] | None = None) -> dict[int, float]:
    """Return the processor seconds of each process that still runs, by its id, less those in `since`."""
    seconds_of = {}
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # such as one that PostgreSQL has for a while
            times = process.cpu_times()
            seconds_of[process.pid] = times.user + times.system - (since or {}).get(process.pid, 0.0)
    return seconds_of


def ray_processes() -> list[psutil.Process]:
    """Return the processes of Ray that are no workers."""
    below = psutil.Process().children(recursive=True)
    return [process for process in below if process.name() in ("raylet", "gcs_server")]


@contextmanager
def a_cluster(nodes: int) -> Iterator[None]:
    """A Ray with so many nodes on this machine."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_log_monitor": False})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(num_cpus=2, include_log_monitor=False)
        ray.init(cluster.address, log_to_driver=False)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def main() -> None:
    quick, began = os.environ.get("QUICK", "0") not in ("", "0"), time.monotonic()
    seconds, kills, resident = (QUICK_S, QUICK_KILLS, QUICK_RESIDENT) if quick else (MEASURED_S, KILLS, RESIDENT)
    results: dict[str, Any] = {"cores": os.cpu_count(), "callers": CALLERS, "runs": []}
    with tempfile.TemporaryDirectory(prefix="capacity-") as folder, ExitStack() as stack:
        server = PostgresServer(Path(folder))
        stack.callback(server.stop, "fast")
        postmaster = psutil.Process(int((Path(folder) / "postgres/postmaster.pid").read_text().split()[0]))

        def postgres() -> list[psutil.Process]:
            return [postmaster, *postmaster.children(recursive=True)]

        def site_of(store: str) -> Site:
            if store == "sqlite":
                url = f"sqlite:///{folder}/{len(results['runs'])}.db"
                return Site(url, {"ray": ray_processes}, lambda: of_sqlite(url))
            url = server.url()
            return Site(url, {"ray": ray_processes, "store": postgres}, lambda: of_postgres(url))

        def measure(store: str, nodes: int, hosts: int, callers: int = CALLERS, kills: int = 0) -> None:
            ran = asyncio.run(turns(site_of(store), hosts, seconds, callers, kills))
            results["runs"].append({"store": store, "nodes": nodes, **ran})
            print(results["runs"][-1], file=sys.stderr, flush=True)

        for nodes in (1, 2, 3):
            with a_cluster(nodes):
                for store in ("sqlite", "postgresql") if nodes == 1 else ("postgresql",):
                    for hosts in (1, 2, 4) if nodes == 1 else (nodes,):
                        measure(store, nodes, hosts)
                    if nodes == 1:
                        measure(store, nodes, 1, FEW)
                if nodes == 1:
                    measure("postgresql", nodes, 2, kills=kills)
                    results["resident_bytes"] = asyncio.run(resident_bytes(f"sqlite:///{folder}/resident.db", resident))
    results["seconds"] = time.monotonic() - began
    Path(sys.argv[1]).write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
