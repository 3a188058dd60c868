"""From the start of a program to its first answer

Equal: a new process of Python, with a new SQLite file, imports the library, opens the file, and has a prompt of 180
characters answered by a model that answers at once. Timed is from the start of the process until the answer is there
and stored. turnwise on Ray starts one, unless there is one, so both are shown. Peers take turns.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from peers.bench import Bench, Table, ask_all, times_table
from peers.peer import PROMPT, Model, Peer

ROUNDS, QUICK_ROUNDS = 2, 1


async def first(peer: Peer) -> bool:
    await peer.turn("t", PROMPT)
    return True


def ask(bench: Bench) -> dict[str, Any]:
    durations: dict[str, list[float]] = {}
    with bench.all("started", Model(), bench.ray_envs) as keepers:
        rays = ask_all(keepers, "crash.ray_of")
        for number in range(QUICK_ROUNDS if bench.quick else ROUNDS):
            for name in bench.names:
                durations.setdefault(name, []).append(started(bench, name, f"new-{number}", {}))
                if ray := rays.get(name):
                    durations.setdefault(f"{name}, Ray runs", []).append(started(bench, name, f"runs-{number}", ray))
    return {"taken": durations}


def started(bench: Bench, name: str, place: str, env: Mapping[str, str]) -> float:
    began = time.perf_counter()
    worker = bench.start_one(name, f"starting/{place}", Model(), env)
    try:
        worker.do("starting.first")
        return time.perf_counter() - began
    finally:
        worker.close()


def show(result: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    yield "", times_table(result["taken"])
