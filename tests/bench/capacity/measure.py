"""Measures turns of packed sessions, and the processor time of each part: `python -m capacity.measure FILE`.

So many callers in one process each have one turn after the other in sessions of their own, with a model that answers at
once. Measured are the turns of a second, their durations, and the processor time that the callers' process, the hosts'
processes, PostgreSQL and the rest of Ray have used meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

# Ray reads these when it is imported.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}

import psutil  # type: ignore[import-untyped]
import ray
from ray.cluster_utils import Cluster

from harness import prompt_of
from postgres_server import PostgresServer
from turnwise import AsyncSession, AsyncSessionManager, EchoEngine, Packed

CALLERS, SESSIONS_EACH = 64, 4
WARM_UP_S, MEASURED_S = 4.0, 10.0
PROMPT = prompt_of(200)

Find = Callable[[], list[psutil.Process]]


async def turns(url: str, hosts: int, parts: Mapping[str, Find], seconds: float) -> dict[str, Any]:
    """Have callers talk for some seconds; return what it took.

    Args:
        parts: what returns other processes whose time is counted, by name.
    """
    namespace = f"capacity-{time.monotonic_ns()}"
    async with AsyncSessionManager(
        url, engine=EchoEngine(), placement=Packed(hosts=hosts), namespace=namespace
    ) as manager:
        names = [f"session-{number}" for number in range(CALLERS * SESSIONS_EACH)]
        sessions = [await manager.open(name) for name in names]
        processes = {(await session.info()).pid for session in sessions}
        taken: list[float] = []
        ends = asyncio.Event()

        async def talk(mine: Sequence[AsyncSession]) -> None:
            at = 0
            while not ends.is_set():
                began = time.perf_counter()
                await (await mine[at % len(mine)].run(PROMPT)).wait()
                taken.append(time.perf_counter() - began)
                at += 1

        callers = [asyncio.create_task(talk(sessions[at::CALLERS])) for at in range(CALLERS)]
        await asyncio.sleep(WARM_UP_S)
        counted = {"host": [psutil.Process(pid) for pid in processes], "caller": [psutil.Process()]}
        counted |= {name: find() for name, find in parts.items()}
        before, began = {name: spent(of) for name, of in counted.items()}, time.perf_counter()
        taken.clear()
        await asyncio.sleep(seconds)
        done, lasted = list(taken), time.perf_counter() - began
        cpu = {name: (spent(of) - before[name]) / len(done) for name, of in counted.items()}
        ends.set()
        await asyncio.gather(*callers)
        turn_count = sum([info.session.next_index for info in [await session.info() for session in sessions]])
        for process in counted["host"]:
            process.kill()
        began = time.perf_counter()
        await (await sessions[0].run(PROMPT)).wait()
        recovery = time.perf_counter() - began
        psutil.Process((await sessions[0].info()).pid).kill()
    done.sort()
    return {
        "hosts": hosts,
        "rate": len(done) / lasted,
        "p50_s": done[len(done) // 2],
        "p99_s": done[len(done) * 99 // 100],
        "cpu_s": cpu,
        "recovery_s": recovery,
        "bytes": stored(url) / turn_count,
    }


def stored(url: str) -> int:
    """Return the bytes of a SQLite file with its log; 0 for another store."""
    path = Path(url.removeprefix("sqlite:///"))
    return sum(each.stat().st_size for each in (path, Path(f"{path}-wal")) if each.is_file())


def spent(processes: Sequence[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        times = process.cpu_times()
        total += times.user + times.system
    return total


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
    seconds = 1.0 if os.environ.get("QUICK", "0") not in ("", "0") else MEASURED_S
    results: dict[str, Any] = {"cores": os.cpu_count(), "callers": CALLERS, "runs": []}
    with tempfile.TemporaryDirectory(prefix="capacity-") as folder, ExitStack() as stack:
        server = PostgresServer(Path(folder))
        stack.callback(server.stop, "fast")
        postmaster = psutil.Process(int((Path(folder) / "postgres/postmaster.pid").read_text().split()[0]))

        def postgres() -> list[psutil.Process]:
            return [postmaster, *postmaster.children(recursive=True)]

        for nodes in (1, 2, 3):
            with a_cluster(nodes):
                for store in ("sqlite", "postgresql") if nodes == 1 else ("postgresql",):
                    for hosts in (1, 2, 4) if nodes == 1 else (nodes,):
                        parts: dict[str, Find] = {"ray": ray_processes}
                        if store == "postgresql":
                            parts["store"] = postgres
                        url = f"sqlite:///{folder}/{hosts}.db" if store == "sqlite" else server.url()
                        ran = asyncio.run(turns(url, hosts, parts, seconds))
                        results["runs"].append({"store": store, "nodes": nodes, **ran})
                        print(results["runs"][-1], file=sys.stderr, flush=True)
    Path(sys.argv[1]).write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
