"""Chaos runs on Ray: callers use sessions while killers kill processes; then an audit checks the store."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.errors import ConfigError
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.stores.base import SessionStore
from turnwise.testing.acknowledged import Acknowledged
from turnwise.testing.audit import audit
from turnwise.testing.faults import read_faults
from turnwise.testing.killers import Killer
from turnwise.testing.report import Report
from turnwise.testing.workload import Caller, Workload

DUE_S = 600.0
"""What is due within so many seconds after the end, after attempts that failed, is waited for."""

LOOK_S = 0.25
"""The interval in which faults are counted, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """When a chaos run ends: after `seconds`, `faults` and one of each of `kinds`, but at most `most_s` seconds."""

    seconds: float = 0.0
    faults: int = 0
    kinds: Collection[str] = ()
    """The kinds of the killers that must have struck."""
    most_s: float = 3600.0
    settle_s: float = 120.0
    """How long calls and runs may take to end afterwards, in seconds."""


async def chaos(
    manager: AsyncSessionManager,
    open_store: Callable[[], SessionStore],
    acknowledged: Acknowledged,
    *,
    killers: Callable[[AsyncSessionManager, Sequence[str]], Iterable[tuple[Killer, float]]],
    workload: Workload,
    bounds: Bounds,
    seed: int = 0,
    journal: Path | str | None = None,
    open_history: Callable[[], HistoryStore] | None = None,
    none_die: bool = False,
    title: str = "Chaos on Ray",
) -> Report:
    """Run callers and killers concurrently, wait until everything has ended, and audit every session in the store.

    The seed decides the callers' requests and the killers' targets, but not their timing. So, unlike in `schedules`, a
    seed does not replay a run. An unexpected error of a caller or a killer ends the chaos run and is raised.

    Args:
        manager: the manager of the sessions, with any placement. Its engine and store may have faults too.
        open_store: opens the store again for the audit.
        acknowledged: records the acknowledgements. Pass one with a file to inspect it afterwards.
        killers: returns the killers for the manager and the session ids, each with its average pause between two
            strikes, in seconds.
        journal: the file to which `Faults` in other processes append; see `Faults`.
        none_die: whether no fault and no killer ends a session's process or takes a session from it. Then the audit
            also checks that no run was lost.

    Raises:
        ConfigError: the bounds name neither a time nor a number of faults.
    """
    if not bounds.seconds and not bounds.faults:
        raise ConfigError("bounds", bounds, "set seconds, faults or both")
    session_ids = workload.session_ids
    for session_id in session_ids:
        await manager.open(session_id)
    struck: Counter[str] = Counter()
    over = asyncio.Event()
    callers = [
        Caller(
            manager,
            session_id,
            name=f"caller{number}",
            workload=workload,
            acknowledged=acknowledged,
            seed=f"{seed}/{session_id}/{number}",
        )
        for session_id in session_ids
        for number in range(workload.callers)
    ]
    calling = [asyncio.create_task(caller.call(over.is_set)) for caller in callers]
    striking = [
        asyncio.create_task(_strike(killer, pause_s, random.Random(f"{seed}/{number}"), struck))
        for number, (killer, pause_s) in enumerate(killers(manager, session_ids))
    ]
    began = time.monotonic()
    try:
        await until_enough(bounds, began, struck, journal, [*calling, *striking])
    finally:
        over.set()
        for task in striking:
            task.cancel()
        ended = time.monotonic()
        _, late = await asyncio.wait(calling, timeout=bounds.settle_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*striking, *late, return_exceptions=True)
    for task in calling:
        if task not in late:
            task.result()
    unsettled = [
        f"a caller of {callers[index].session_id!r} has no answer" for index, task in enumerate(calling) if task in late
    ]
    store, history = open_store(), open_history() if open_history else None
    try:
        unsettled += await _settled(store, ended + bounds.settle_s)
        settling_s = time.monotonic() - ended
        ids = dict.fromkeys([*session_ids, *acknowledged.session_ids, *await _agents(store)])
        report = await audit(store, ids, acknowledged, history, deaths=dict.fromkeys(ids, ()) if none_die else None)
    finally:
        await store.close()
        if history:
            await history.close()
    refused: Counter[str] = sum((caller.refused for caller in callers), Counter())
    return Report(
        title=title,
        seed=seed,
        seconds=ended - began,
        settling_s=settling_s,
        faults=struck + _in_processes(journal),
        refused=refused,
        audit=report,
        unsettled=tuple(unsettled),
    )


async def _settled(store: SessionStore, until: float) -> list[str]:
    """Wait until sessions, and the agents that they called, have done what was due; return what they have not.

    Args:
        until: a time of the monotonic clock.
    """
    while True:
        now = await store.now()
        due = [delivery for delivery in await store.deliveries() if (delivery.due_at or 0.0) <= now + DUE_S]
        running = (await store.unsettled()).items
        if not due and not running:
            return []
        if time.monotonic() >= until:
            waiting = [
                f"delivery {delivery.key!r} of {delivery.session_id!r} is due: {delivery.why}" for delivery in due
            ]
            return [*waiting, *(f"session {key.session_id!r} has a run that does not end" for key in running)]
        await asyncio.sleep(LOOK_S)


async def _agents(store: SessionStore) -> list[str]:
    """Return the ids of sessions of agents."""
    sessions, cursor = list[str](), None
    while True:
        page = await store.query(cursor=cursor)
        sessions += [session.session_id for session in page if session.called_by is not None]
        if (cursor := page.cursor) is None:
            return sessions


async def until_enough(
    bounds: Bounds, began: float, struck: Counter[str], journal: Path | str | None, tasks: Sequence[asyncio.Task[None]]
) -> None:
    while True:
        done, _ = await asyncio.wait(tasks, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        seconds = time.monotonic() - began
        count = struck.total() + _in_processes(journal).total()
        is_enough = seconds >= bounds.seconds and count >= bounds.faults and all(struck[kind] for kind in bounds.kinds)
        if is_enough or seconds >= bounds.most_s:
            return


async def _strike(killer: Killer, pause_s: float, dice: random.Random, struck: Counter[str]) -> None:
    while True:
        await asyncio.sleep(dice.random() * 2 * pause_s)
        if await killer.strike(dice):
            struck[killer.kind] += 1


def _in_processes(journal: Path | str | None) -> Counter[str]:
    faults = read_faults(journal) if journal else Counter()
    return Counter({f"{fault}, in the session's process": count for fault, count in faults.items()})
