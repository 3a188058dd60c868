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


async def read(path: Path, sessions: int) -> tuple[float, float]:
    """Read turns of the first sessions as a replay does, in one process, session by session, as an export does.

    Return how many in a second, and the processor time of one.
    """
    store, select, count = SQLStore(f"sqlite:///{path}"), Selection(), 0
    keys = [session.key async for session in sessions_of(store, select)][:sessions]
    began, used = time.perf_counter(), time.process_time()
    for key in keys:
        async for page in recorded_turns(store, key, select):
            count += len(page)
    took, used = time.perf_counter() - began, time.process_time() - used
    await store.close()
    return count / took, used / count


class Watch:
    """The most memory of this process and of a worker so far, when the replay has come to some points.

    And the processor time of the workers so far, from the first answers on, by process.
    """

    def __init__(self) -> None:
        self.at: dict[float, int] = {}
        self._most = 0
        self._first: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._turns: list[int] = []

    @property
    def processor_s(self) -> float:
        """The workers' processor time for a turn."""
        used = sum(last - self._first[pid] for pid, last in self._last.items())
        return used / max(1, self._turns[-1] - self._turns[0])

    def __call__(self, progress: Progress) -> None:
        if progress.turns:
            times = {pid: used_s for pid in _workers() if (used_s := _processor_s(pid))}
            self._first = {**times, **self._first}
            self._last |= times
            self._turns.append(progress.turns)
        self._most = max(self._most, _memory_bytes())
        share = progress.turns / progress.expected_turns
        for point in POINTS:
            if share >= point and point not in self.at:
                self.at[point] = self._most


def _memory_bytes() -> int:
    """Return the resident memory of this process and of the largest worker: workers do not begin at the same time."""
    return _resident_bytes("self") + max(map(_resident_bytes, _workers()), default=0)


def _workers() -> list[str]:
    return [path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if _is_worker(path)]


def _processor_s(pid: str) -> float:
    """Return the processor time of a process so far, in seconds."""
    try:
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return 0.0  # it has ended
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


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
    memory = Watch()
    on_ray = speed(lambda: _replay(path, folder / "on-ray", AtScale(on_ray=True, workers=CORES, progress=memory)))
    floors.append(asyncio.run(read(path, sample)))
    floor, floor_s = (sum(values) / len(values) for values in zip(*floors, strict=True))
    table.line(f"{title}: read by one process", result=f"{floor:,.0f} turns/s")
    table.line(f"{title}: replayed on {CORES} cores by Ray Data", result=f"{on_ray:,.0f} turns/s")
    table.judge("  speed, compared with reading", on_ray / floor, GOAL_SPEED, bound="least")
    used_s = memory.processor_s
    table.line(
        "  processor time of a turn: read, and replayed by the workers",
        result=f"{floor_s * 1e3:.3f} and {used_s * 1e3:.3f} ms: {CORES * floor_s / used_s:.2f} times as fast",
    )
    if POINTS[0] in memory.at:
        table.judge("  memory at the end, to that at a tenth", memory.at[1.0] / memory.at[0.1], GOAL_MEMORY)
    table.line("  memory", result=", ".join(f"{at:.0%}: {size / 1e6:,.0f} MB" for at, size in memory.at.items()))
    again, result = _replay(path, folder / "on-ray", AtScale(on_ray=True, workers=CORES))
    assert result.left == 0
    table.line("  once more, with nothing left to ask", Samples([again]))
