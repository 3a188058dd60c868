"""A crash in the middle of an answer

Equal: a model that says ten words, a twentieth of a second each; after four of them have been read, the program and
all processes that it started are killed (SIGKILL), as with the machine. A new program, with the same file, asks for
the history two seconds later: DBOS has gone on with its workflows by then, and turnwise with its runs, if its sessions
have `on_lost="resume"`. For turnwise on Ray there is also the case in which the program alone is killed, and its Ray
stays, as one of `ray start --head` does. Nothing is timed.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from peers.bench import Bench, Table, ask_all, history_text
from peers.peer import PROMPT, READ, TALKING, Peer
from peers.worker import RESUMING

RECOVERY_S = 2.0


async def read(peer: Peer) -> AsyncIterator[str]:
    async for word in peer.words("t", "count"):
        yield word


async def history(peer: Peer) -> Any:
    """Return the history, after time to recover."""
    await peer.history("t")  # now the file is open
    await asyncio.sleep(RECOVERY_S)
    return await peer.history("t")


async def ray_of(peer: Peer) -> dict[str, str]:
    """Return the environment variables by which another program finds this one's Ray."""
    await peer.turn("other", PROMPT)
    ray: Any = importlib.import_module("ray")
    return {"RAY_ADDRESS": ray.get_runtime_context().gcs_address, "RAY_AUTH_MODE": "token"}


def ask(bench: Bench) -> dict[str, Any]:
    resuming = [name for name in RESUMING if name.rpartition(", ")[0] in bench.names]
    histories = left_by(bench, "crash", {name: {} for name in [*bench.names, *resuming]})
    with bench.all("keeper", TALKING, bench.ray_envs) as keepers:
        stay = left_by(bench, "stays", ask_all(keepers, "crash.ray_of"))
    return histories | {f"{name}, Ray stays": history for name, history in stay.items()}


def left_by(bench: Bench, place: str, envs: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Kill a reader of each peer, one after the other, and return what new programs find."""
    with bench.all(place, TALKING, envs) as readers:
        for name, reader in readers.items():
            reader.ask("crash.read")
            for _ in range(READ):
                reader.answer()
            reader.kill(all_of_it=not envs[name])
    with bench.all(place, TALKING, envs) as workers:
        return ask_all(workers, "crash.history")


def show(result: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    yield "", [("", "the history then"), *((name, history_text(history)) for name, history in result.items())]
