"""What a turn costs, and what is stored, as a conversation grows

Equal: one conversation in one SQLite file on the same disk; a prompt and an answer of 180 characters each; a model
that answers at once; the whole history is given to the model at each turn; a turn is timed from the call until its
answer is there and stored. Peers take turns, 20 turns at a time, so that the machine's drift is in all of them. Who
has taken more than the time limit stops there, and the tables say so. Each has had five turns of another conversation
before. The first turn of this one still starts the process of a dedicated session, and that of a packed one's host if
it is not the host of the other: that is turnwise's p99 of the first turns, and a column of the last table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from peers.bench import Bench, Table, megabytes, ms, stored_in, times_table
from peers.peer import PROMPT, Model, Peer

AT_ONCE = 20
"""The turns of a peer in each round."""

TURNS, QUICK_TURNS = 2000, 120
LIMIT_S, QUICK_LIMIT_S = 100, 15
"""The time that the turns of one peer may take."""


async def turns(peer: Peer, count: int, chat: str) -> list[float]:
    durations = []
    for _ in range(count):
        began = time.perf_counter()
        await peer.turn(chat, PROMPT)
        durations.append(time.perf_counter() - began)
    return durations


def ask(bench: Bench) -> dict[str, Any]:
    limit, count = (QUICK_LIMIT_S, QUICK_TURNS) if bench.quick else (LIMIT_S, TURNS)
    durations: dict[str, list[float]] = {name: [] for name in bench.names}
    sizes: dict[str, list[int]] = {name: [] for name in bench.names}
    with bench.all("growth", Model()) as workers:
        for worker in workers.values():
            worker.do("growth.turns", count=5, chat="warm-up")
        for _ in range(count // AT_ONCE):
            for name, worker in workers.items():
                if sum(durations[name]) < limit:
                    durations[name] += worker.do("growth.turns", count=AT_ONCE, chat="t")
                    sizes[name].append(stored_in(worker))
    return {"taken": durations, "stored": sizes, "turns": count, "limit_s": limit}


def window_of(result: Mapping[str, Any]) -> int:
    return 100 if result["turns"] >= 1000 else AT_ONCE


def show(result: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    turns, window = result["turns"], window_of(result)
    late = f" (stopped after {result['limit_s']} s)"
    for end in (window, turns // 2, turns):
        last_values = {
            name: values[end - window : end] for name, values in result["taken"].items() if len(values) >= end
        }
        stopped_names = [name for name, values in result["taken"].items() if len(values) < end]
        stopped = (
            f", before which {' and '.join(stopped_names)} stopped after {result['limit_s']} s" if stopped_names else ""
        )
        yield f"Turns {end - window + 1:,} to {end:,}{stopped}", times_table(last_values)
    yield (
        f"Growth: the last {window} turns, to the first {window}",
        [
            ("", "turns", "the first turn", "last to first", "stored", "a turn"),
            *(
                (
                    name,
                    f"{len(values):,}{late if len(values) < turns else ''}",
                    ms(values[0]),
                    f"{middle(values[-window:]) / middle(values[:window]):.2g}",
                    megabytes(result["stored"][name][-1]),
                    f"{result['stored'][name][-1] / len(values):,.0f} bytes",
                )
                for name, values in result["taken"].items()
            ),
        ],
    )


def middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
