"""Measures replays at scale: how fast an instant model is replayed, compared with reading the turns; and memory."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from harness import Samples, Table
from replaying.many_sessions import make_store
from turnwise import EchoEngine, InProcess, SessionManager
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.replay import AtScale, Progress, Replay, Selection, recorded_turns, replay
from turnwise.replay.selecting import sessions_of

TURNS = 10
"""Of each session."""

GOAL_SPEED, GOAL_MEMORY = 0.5, 1.2
"""The least speed of a replay, compared with reading; and by how much memory may grow from a tenth of the way on."""

CORES = 2

POINTS = (0.1, 0.5, 1.0)
"""How far the replay is when its memory is measured."""


async def read(path: Path, sessions: int) -> float:
    """Read turns of the first sessions as a replay does, in one process; return how many in a second."""
    store, select, count = SQLStore(f"sqlite:///{path}"), Selection(), 0
    keys = [session.key async for session in sessions_of(store, select)][:sessions]
    began = time.perf_counter()
    for key in keys:
        async for page in recorded_turns(store, key, select):
            count += len(page)
    took = time.perf_counter() - began
    await store.close()
    return count / took


class Memory:
    """The most memory of this process and of a worker so far, when the replay has come to some points."""

    def __init__(self) -> None:
        self.at: dict[float, int] = {}
        self._most = 0

    def __call__(self, progress: Progress) -> None:
        self._most = max(self._most, _memory_bytes())
        share = progress.turns / progress.expected_turns
        for point in POINTS:
            if share >= point and point not in self.at:
                self.at[point] = self._most


def _memory_bytes() -> int:
    """Return the resident memory of this process and of the largest worker: workers do not begin at the same time."""
    pids = [path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if _is_worker(path)]
    return _resident_bytes("self") + max(map(_resident_bytes, pids), default=0)


def _is_worker(path: Path) -> bool:
    try:
        return path.read_bytes().startswith(b"ray::MapWorker")
    except OSError:
        return False  # it has ended


def _resident_bytes(pid: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _replay(path: Path, out: Path, scale: AtScale) -> tuple[float, Replay]:
    with SessionManager(f"sqlite:///{path}", engine=EchoEngine(), placement=InProcess()) as manager:
        began = time.perf_counter()
        result = replay(manager, engine=EchoEngine(), out=out, keep=300, at_scale=scale)
        return time.perf_counter() - began, result


def measure(table: Table, folder: Path, cache: Path, *, sessions: int) -> None:
    """Measure and print all of it."""
    path = make_store(cache, sessions, TURNS)
    title, sample = f"{sessions:,} sessions of {TURNS} turns", min(sessions, 2000)

    def speed(work: Callable[[], tuple[float, Replay]]) -> float:
        took, result = work()
        assert result.summary.turns == sessions * TURNS, result.summary.turns
        return result.summary.turns / took

    floors = [asyncio.run(read(path, sample))]
    memory = Memory()
    on_ray = speed(lambda: _replay(path, folder / "on-ray", AtScale(on_ray=True, workers=CORES, progress=memory)))
    floors.append(asyncio.run(read(path, sample)))
    floor = sum(floors) / len(floors)
    table.line(f"{title}: read by one process", result=f"{floor:,.0f} turns/s")
    table.line(f"{title}: replayed on {CORES} cores by Ray Data", result=f"{on_ray:,.0f} turns/s")
    table.judge("  speed, compared with reading", on_ray / floor, GOAL_SPEED, bound="least")
    if POINTS[0] in memory.at:
        table.judge("  memory at the end, to that at a tenth", memory.at[1.0] / memory.at[0.1], GOAL_MEMORY)
    table.line("  memory", result=", ".join(f"{at:.0%}: {size / 1e6:,.0f} MB" for at, size in memory.at.items()))
    again, result = _replay(path, folder / "on-ray", AtScale(on_ray=True, workers=CORES))
    assert result.left == 0
    table.line("  once more, with nothing left to ask", Samples([again]))
