"""A turn in which one agent asks another

Equal: the first agent's model asks for a task of 180 characters to be done by a second agent, whose model answers it;
then the first one's model answers the prompt. All models answer at once. Timed is until that answer is stored. Each
library does it in its own way: LangGraph has a node that calls another graph, Google ADK an `AgentTool`, the OpenAI
Agents SDK `as_tool`, and Pydantic AI a tool that runs the other agent. For turnwise, the second agent has a session of
its own, which is stored too, and if sessions are dedicated, a process: so fewer of these turns are timed. Peers take
turns. Each has had one such turn before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from peers.bench import Bench, Table, times_table
from peers.peer import PROMPT, Model, Peer, Team

ROUNDS, QUICK_ROUNDS = 20, 2
FEWER: Mapping[str, int] = {"turnwise, dedicated": 5}


async def turn(peer: Peer) -> float | None:
    """Return the seconds of one turn; None if the peer has no teams."""
    if not isinstance(peer, Team):
        return None
    began = time.perf_counter()
    await peer.team("t", PROMPT)
    return time.perf_counter() - began


def ask(bench: Bench) -> dict[str, Any]:
    durations: dict[str, list[float]] = {name: [] for name in bench.names}
    with bench.all("teams", Model()) as workers:
        for worker in workers.values():
            worker.do("teams.turn")
        for number in range(QUICK_ROUNDS if bench.quick else ROUNDS):
            for name, worker in workers.items():
                if number < FEWER.get(name, ROUNDS) and (seconds := worker.do("teams.turn")) is not None:
                    durations[name].append(seconds)
    return {"taken": durations}


def show(result: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    yield "", times_table(result["taken"])
