"""Many conversations at once

Equal: so many conversations, of few turns each, get a prompt of 180 characters at the same moment, from one program;
a model that answers at once; one SQLite file. Timed is until the last of them has its answer stored, and shown is
what that is for one turn. Peers take turns. Dedicated sessions have a process each, so more of them than 10 are not
tried on so small a machine: that is what packed ones are for. A turn that raised an error is counted as failed.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from peers.bench import Bench, Table, times_table
from peers.peer import PROMPT, Model, Peer

ROUNDS: Mapping[int, int] = {1: 30, 10: 15, 100: 4, 1000: 1}
"""For each number of conversations, how often."""
QUICK_ROUNDS: Mapping[int, int] = {1: 3, 10: 2}
MOST: Mapping[str, int] = {"turnwise, dedicated": 10}


async def at_once(peer: Peer, count: int) -> tuple[float, dict[str, int]]:
    """Return how long a turn of each of so many conversations takes, and which errors were raised, how often."""
    began = time.perf_counter()
    turns = (peer.one_of_many(f"chat-{number}", PROMPT) for number in range(count))
    done = await asyncio.gather(*turns, return_exceptions=True)
    return time.perf_counter() - began, Counter(type(error).__name__ for error in done if error is not None)


def ask(bench: Bench) -> dict[str, Any]:
    durations: dict[str, dict[str, list[float]]] = {}
    failed: dict[str, Counter[str]] = {name: Counter() for name in bench.names}
    with bench.all("many", Model()) as workers:
        for count, rounds in (QUICK_ROUNDS if bench.quick else ROUNDS).items():
            names = [name for name in bench.names if count <= MOST.get(name, count)]
            durations[str(count)] = {name: [] for name in names}
            for name in names:
                workers[name].do("many.at_once", count=count)  # the first time, conversations are made
            for _ in range(rounds):
                for name in names:
                    seconds, errors = workers[name].do("many.at_once", count=count)
                    durations[str(count)][name].append(seconds / count)
                    failed[name].update(errors)
    return {"taken": durations, "failed": failed}


def show(result: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    for count, durations in result["taken"].items():
        yield f"{int(count):,} at once: time for one turn", times_table(durations)
    if any(result["failed"].values()):
        yield (
            "Errors",
            [("", "errors"), *((name, counts_text(errors)) for name, errors in result["failed"].items() if errors)],
        )


def counts_text(errors: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} `{error}`" for error, count in errors.items())
