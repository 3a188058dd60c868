"""`replay_at_scale`: makes a plan, has its chunks replayed here or on Ray, and puts together what they have found."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from turnwise.actors.client.services.stored_conversations import StoredConversations
from turnwise.actors.hosting.identity import identity
from turnwise.actors.hosting.store_object import StoreObject
from turnwise.actors.wire_version import unpacked_answer
from turnwise.errors import ConfigError, StoreError
from turnwise.replay.records import TurnReplay
from turnwise.replay.replaying import Work
from turnwise.replay.report.overview import Overview
from turnwise.replay.scale.pace import CANCELLED, LocalPace, Pace, PaceCalls, Permits, Tally
from turnwise.replay.scale.parts import (
    TURNS,
    Unreadable,
    clear,
    done_parts,
    drop_finished_journals,
    parquet_of,
    taken_before,
)
from turnwise.replay.scale.plan import PLAN, Plan, lock_of, pending, planned_sessions, write_plan
from turnwise.replay.scale.process import WorkerProcess
from turnwise.replay.scale.settings import AtScale, Progress
from turnwise.replay.scale.sums import Receipt, Totals, kept_receipt
from turnwise.replay.scale.worker import ChunkWork, ChunkWorker
from turnwise.replay.selecting import Selection
from turnwise.replay.statistics import Summary

CHUNKS_AT_ONCE = 2
"""How many chunks a process works on at the same time, so that the end of one does not leave it idle."""

PROGRESS_S = 1.0
"""How often a caller is told how far a replay is, in seconds."""

ENDING_S = 20.0
"""How long a replay on Ray that was cancelled waits for its processes, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a replay at scale has found."""

    summary: Summary
    turns: tuple[TurnReplay, ...]
    overview: Overview
    lines: Path
    """The folder of the records."""
    unreadable: tuple[Unreadable, ...]
    left: int
    """How many sessions have turns that were not asked."""
    stopped: str | None
    """Why."""


async def replay_at_scale(
    stored: StoredConversations,
    *,
    folder: Path,
    work: Work,
    select: Selection,
    at_once: int,
    keep: int,
    seed: int,
    parquet: bool,
    scale: AtScale,
) -> Found:
    """Replay the selected turns that have no records in the folder yet; return what all records amount to.

    If it is cancelled or fails, what has been answered stays, and the same call goes on with it.

    Raises:
        ReplayChangedError: the folder has a replay with other settings.
        ReplayInUseError: another replay writes into the folder.
        ConfigError: the store cannot be opened by processes on Ray, or Ray Data is not installed.
        StoreError: the store cannot be read, or the folder cannot be written.
    """
    settings = await asyncio.to_thread(_settings, stored, work, select)
    folder = await asyncio.to_thread(lambda: folder.expanduser().resolve())
    job = ChunkWork(
        folder=folder,
        work=work,
        select=select,
        at_once=at_once,
        retries=scale.retries,
        parquet=parquet,
        keep=keep,
    )
    if scale.on_ray:
        await asyncio.to_thread(_check_ray, stored)
    async with _held(folder):
        plan = await _plan(stored, folder, select, settings, anew=scale.anew)
        make = _MakePace(replace(scale, progress=None), await asyncio.to_thread(taken_before, folder))
        totals = Totals(job.graders, seed=seed, keep=keep)
        numbers = await asyncio.to_thread(_remaining, len(plan), job, totals)
        if not numbers:
            scale = replace(scale, on_ray=False, workers=None)  # nothing is left to distribute
        if scale.on_ray:
            await asyncio.to_thread(_connect)
        pace = await asyncio.to_thread(_shared, make) if scale.on_ray else LocalPace(make())
        try:
            receipts = (
                _on_ray(stored, job, scale, pace, numbers) if scale.on_ray else _here(stored, job, scale, pace, numbers)
            )
            async with _told(pace, scale.progress, plan.turns), aclosing(receipts) as coming:
                async for receipt in coming:
                    await asyncio.to_thread(totals.add, receipt)
            stopped = await pace.call("why_stopped")
        finally:
            await asyncio.to_thread(pace.end)
        return await asyncio.to_thread(_found, totals, folder, stopped)


def _shared(make: Callable[[], Pace]) -> PaceCalls:
    from turnwise.actors.cluster.data_pipeline import SharedObject

    return SharedObject.host(make)


def _found(totals: Totals, folder: Path, stopped: str | None) -> Found:
    return Found(
        summary=totals.summary(),
        turns=totals.most_different(folder),
        overview=totals.overview,
        lines=folder / TURNS,
        unreadable=tuple(totals.unreadable),
        left=totals.left,
        stopped=stopped if totals.left else None,
    )


@dataclass(frozen=True)
class _MakePace:
    """Makes the `Pace` of a replay, in the process that has it."""

    limits: AtScale
    before: Tally

    def __call__(self) -> Pace:
        return Pace(self.limits, time.monotonic, self.before)


def _settings(stored: StoredConversations, work: Work, select: Selection) -> dict[str, str]:
    """Return digests of the settings on which records depend, by name."""
    variant, comparing = work.variant, work.comparing
    url: Any = stored.place.url if stored.place else ""
    values = {
        "store": url.url if isinstance(url, StoreObject) else url,
        "select": (vars(select) | {"sessions": sorted(select.sessions), "statuses": sorted(select.statuses)}),
        "engine": variant.engine,
        "overflow": variant.overflow,
        "memory": variant.memory,
        "forward": variant.forward,
        "floor": work.floor and work.floor.engine,
        "tools": work.tools,
        "graders": list(comparing.graders),
        "embedding": comparing.embedding,
        "normalise": comparing.normalise,
        "refusal": comparing.refusal,
        "config": work.config,
        "timeout_s": work.timeout_s,
    }
    return {name: identity(value)[:16] for name, value in values.items()}


def _remaining(count: int, job: ChunkWork, totals: Totals) -> list[int]:
    """Return the chunks that have to be worked on; add what is known of the others, which are complete."""
    done = done_parts(job.folder)
    drop_finished_journals(job.folder)
    unknown = []
    for number in done:
        receipt = kept_receipt(job.folder, number, job.graders, job.keep)
        if receipt is None or (job.parquet and not parquet_of(job.folder, number).exists()):
            unknown.append(number)
        else:
            totals.add(receipt)
    known = set(done).difference(unknown)
    return [number for number in pending(count, done) if number not in known]


def _connect() -> None:
    from turnwise.actors.cluster.ray_runtime import connect

    connect()


def _check_ray(stored: StoredConversations) -> None:
    """Raise ConfigError if processes on Ray cannot open the store, or Ray Data is not installed."""
    from turnwise.actors.cluster.data_pipeline import check_ray_data

    check_ray_data()
    url = stored.place.url if stored.place else ""
    if stored.place is None or (isinstance(url, str) and url.startswith("memory:")):
        raise ConfigError("on_ray", True, "the store is in the memory of one process: leave on_ray out")


@asynccontextmanager
async def _held(folder: Path) -> AsyncIterator[None]:
    lock = lock_of(folder)
    await asyncio.to_thread(lock.__enter__)
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


async def _plan(
    stored: StoredConversations, folder: Path, select: Selection, settings: Mapping[str, str], *, anew: bool
) -> Plan:
    """Return the folder's plan, made now if there is none."""
    if (folder / PLAN).exists() and not anew:
        plan = await asyncio.to_thread(Plan, folder)
        plan.check(settings)
        return plan
    (folder / PLAN).unlink(missing_ok=True)
    await asyncio.to_thread(clear, folder)
    return await write_plan(folder, planned_sessions(stored.store, select), settings)


@asynccontextmanager
async def _told(pace: PaceCalls, progress: Callable[[Progress], object] | None, expected: int) -> AsyncIterator[None]:
    """Call a function about once in a second, and at the end, until the block ends."""
    if progress is None:
        yield
        return

    async def tell() -> None:
        tally: Tally = await pace.call("totals")
        turns, failed, spent = tally.turns, tally.failed, tally.usage
        progress(Progress(turns=turns, expected_turns=expected, failed=failed, spent=spent))

    async def keep_telling() -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            await tell()

    task = asyncio.create_task(keep_telling())
    try:
        yield
        await tell()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _here(
    stored: StoredConversations, job: ChunkWork, scale: AtScale, pace: PaceCalls, numbers: Sequence[int]
) -> AsyncGenerator[Receipt, None]:
    """Yield the receipts of chunks that this process replays."""
    permits, remaining = Permits(pace, is_limited=scale.is_limited), iter(numbers)
    async with ChunkWorker(stored, job, permits).running() as worker:
        tasks = {asyncio.create_task(worker.replay(number)) for number in islice(remaining, CHUNKS_AT_ONCE)}
        try:
            while tasks:
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                tasks |= {asyncio.create_task(worker.replay(number)) for number in islice(remaining, len(done))}
                for task in done:
                    yield task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _on_ray(
    stored: StoredConversations, job: ChunkWork, scale: AtScale, pace: PaceCalls, numbers: Sequence[int]
) -> AsyncGenerator[Receipt, None]:
    """Yield the receipts of chunks that processes on Ray replay."""
    from turnwise.actors.cluster.data_pipeline import processors, results_on_ray

    assert stored.place is not None  # noqa: S101 - see `_connect`
    process = WorkerProcess(
        job=job,
        place=stored.place,
        namespace=stored.namespace,
        has_memories=stored.has_memories,
        file_limits=stored.file_limits,
        pace=pace,
        is_limited=scale.is_limited,
    )
    loop, coming = asyncio.get_running_loop(), asyncio.Queue[Receipt | Exception | None]()

    def tell(item: Receipt | Exception | None) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(coming.put_nowait, item)

    def iterate() -> None:
        try:
            for data in results_on_ray(process, numbers, workers=scale.workers or processors()):
                if not data:
                    raise StoreError("the replay's processes lost each other: run it again; no answer is lost")
                tell(unpacked_answer(data))
            tell(None)
        except Exception as error:  # noqa: BLE001 - the loop raises it
            tell(error)

    thread = threading.Thread(target=iterate, name="turnwise-ray-data", daemon=True)
    thread.start()
    try:
        while (item := await coming.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        if thread.is_alive():
            await pace.call("stop", CANCELLED)
            await asyncio.to_thread(thread.join, ENDING_S)
