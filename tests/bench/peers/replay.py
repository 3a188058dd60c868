"""Stored turns answered anew

No other library here does this, so turnwise stands alone. A SQLite file has conversations of ten turns, each with a
prompt and an answer of some 360 characters. A replay gives each turn's window to a model that answers at once, compares
the answers with the stored ones, and writes a report, all in one process. `make bench ARGS=replay` measures replays of
more conversations on Ray Data.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from peers.bench import Bench, Table
from peers.peer import Model, Peer

SESSIONS, QUICK_SESSIONS, TURNS = 1000, 20, 10
ROUNDS, QUICK_ROUNDS = 3, 1


async def replay(_: Peer, folder: str, sessions: int) -> tuple[int, float]:
    """Return how many turns were replayed, and the seconds."""
    turnwise: Any = importlib.import_module("turnwise")
    replays: Any = importlib.import_module("turnwise.replay")
    file, engine = Path(folder) / "stored.db", turnwise.EchoEngine()
    if not file.exists():
        await importlib.import_module("replaying.many_sessions").fill(file, sessions, TURNS)
    async with turnwise.AsyncSessionManager(
        f"sqlite:///{file}", engine=engine, placement=turnwise.InProcess()
    ) as manager:
        began = time.perf_counter()
        result = await replays.replay(manager, engine=engine, out=Path(folder) / "report", keep=300)
        return result.summary.turns, time.perf_counter() - began


def ask(bench: Bench) -> dict[str, Any]:
    sessions = QUICK_SESSIONS if bench.quick else SESSIONS
    worker = bench.start_one(bench.names[0], "replay", Model())
    try:
        rounds = [
            worker.do("replay.replay", folder=str(worker.folder), sessions=sessions)
            for _ in range(QUICK_ROUNDS if bench.quick else ROUNDS)
        ]
    finally:
        worker.close()
    ((turns, *_), *_) = rounds
    return {"sessions": sessions, "turns": turns, "taken": [seconds for _, seconds in rounds]}


def show(result: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    seconds = statistics.median(result["taken"])
    counts = (f"{result['sessions']:,}", f"{result['turns']:,}", str(len(result["taken"])))
    heading = ("", "conversations", "turns", "replays", "median", "turns a second")
    yield "", [heading, ("turnwise", *counts, f"{seconds:.2f} s", f"{result['turns'] / seconds:,.0f}")]
