"""Stop in the middle of an answer

Equal: a model that says ten words, a twentieth of a second each; the reader has read four of them when it stops.
Timed is from the call that stops until its outcome is known to the caller: where a library has a verb for it, by
that, else by cancelling the task that reads. For turnwise, the stop is a durable record by then, made in another
process. For DBOS it is one too, and the request to the model that is under way ends first. Peers take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from peers.bench import Bench, Table, ask_all, history_text, times_table
from peers.peer import READ, TALKING, Peer

ROUNDS, QUICK_ROUNDS = 20, 3


async def stop(peer: Peer, number: int) -> float:
    return await peer.stop(f"chat-{number % 4}", "count", READ)


async def history(peer: Peer) -> Any:
    await peer.stop("last", "count", READ)
    return await peer.history("last")


def ask(bench: Bench) -> dict[str, Any]:
    durations: dict[str, list[float]] = {name: [] for name in bench.names}
    with bench.all("stopping", TALKING) as workers:
        histories = ask_all(workers, "stopping.history")
        for number in range(QUICK_ROUNDS if bench.quick else ROUNDS):
            for name, worker in workers.items():
                durations[name].append(worker.do("stopping.stop", number=number))
    return {"taken": durations, "left": histories}


def show(result: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    yield "From the call that stops to its outcome", times_table(result["taken"])
    rows = [(name, history_text(history)) for name, history in result["left"].items()]
    yield "What the history holds then", [("", "history"), *rows]
