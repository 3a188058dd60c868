"""A turn that begins by itself

Equal: a prompt of 180 characters is to be answered in the conversation three tenths of a second later, by a model that
answers at once, and that wish is stored: a schedule of turnwise, and a workflow of DBOS that sleeps first. The others
have no timers. Shown is how late the turn begins, and how late its answer is stored. Each conversation has had one such
turn before: on Ray, the first starts the process that begins the others. Peers take turns.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from peers.bench import Bench, Table, times_table
from peers.peer import PROMPT, Model, Peer, Timer

AHEAD_S = 0.3
"""How long before it is due a turn is scheduled."""

ROUNDS, QUICK_ROUNDS = 20, 2


async def timer(peer: Peer) -> tuple[float, float] | None:
    """Return how late a turn begins and is stored, in seconds; None if the peer has no timers."""
    if not isinstance(peer, Timer):
        return None
    due_at = time.time() + AHEAD_S
    begun_at, stored_at = await peer.timer("t", PROMPT, due_at)
    return begun_at - due_at, stored_at - due_at


def ask(bench: Bench) -> dict[str, Any]:
    began: dict[str, list[float]] = {name: [] for name in bench.names}
    stored: dict[str, list[float]] = {name: [] for name in bench.names}
    with bench.all("timers", Model()) as workers:
        for worker in workers.values():
            worker.do("timers.timer")
        for _ in range(QUICK_ROUNDS if bench.quick else ROUNDS):
            for name, worker in workers.items():
                if late := worker.do("timers.timer"):
                    began[name].append(late[0])
                    stored[name].append(late[1])
    return {"began": began, "stored": stored}


def show(result: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    yield "From the due time to the beginning of the turn", times_table(result["began"])
    yield "From the due time to its stored answer", times_table(result["stored"])
