"""The stages of the soak: placement, store and killers of each."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from processes.large_settings import orphan
from processes.local_cluster import HEALTH, NODE
from servers.postgres_server import PostgresServer
from servers.webhook_receiver import Receiver
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import Dedicated, Packed, Placement
from turnwise.actors.inference.tools.agent_tool import agent_tool
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.memory.config import MemoryConfig
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import SessionNotFoundError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.longterm.items.base import all_stored
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.stores.reading import TURN_INDEX, pages
from turnwise.memory.stores.urls import open_store
from turnwise.testing.acknowledged import Acknowledged
from turnwise.testing.chaos import Bounds, chaos
from turnwise.testing.faults import FaultPlan, Faults, Kind
from turnwise.testing.faulty_engine import FaultyEngine, look
from turnwise.testing.faulty_url import faulty_url
from turnwise.testing.killers import ActorKiller, Doing, Killer, SessionKiller, WriteLock
from turnwise.testing.report import Report
from turnwise.testing.workload import Workload
from webhook_calls import ToldRuns

NAMESPACE = "soak"

RATES: dict[Kind, float] = {
    "raise": 0.1,
    "cut": 0.1,
    "dangling": 0.1,
    "nothing": 0.05,
    "malformed": 0.05,
    "thoughts": 0.05,
    "exit": 0.02,
    "hang": 0.01,
    "stubborn": 0.02,
    "crash": 0.002,
}

STORE = FaultPlan(
    rates={"fence": 0.02, "error": 0.04, "unanswered": 0.04, "delay": 0.04, "crash": 0.001}, points=("store.commit *",)
)
"""Faults of commits, which only session processes make; so the process that runs the soak does not crash."""

MEMORY_S = 120.0
"""The time limit for a session's memory to save all turns at the end, in seconds."""

HELPER = agent_tool("helper", description="Does a part of the work.", timeout_s=30.0)

CALLS_S = 120.0
"""The time limit for all calls of webhooks to arrive at the end, in seconds."""

Killers = Callable[[AsyncSessionManager, Sequence[str]], Iterator[tuple[Killer, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The length of a stage, and its folder."""

    folder: Path
    seed: int
    seconds: float
    sessions: int


class OrphanKiller:
    """Kills the session's and the memory's process of a program with large settings that has ended; waits for them."""

    kind = "kill of processes with large settings whose program has ended"

    def __init__(self, url: str, folder: Path, placement: str) -> None:
        self._url = url
        self._folder = folder
        self._placement = placement
        self._number = itertools.count()

    async def strike(self, dice: random.Random) -> bool:
        name = f"orphan-{next(self._number)}"
        return await orphan(self._url, name, self._folder / name, self._placement) == "came back"


@contextlib.contextmanager
def one_node() -> Iterator[None]:
    ray.init("local", num_cpus=4, include_dashboard=False, configure_logging=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def dedicated_on_sqlite(setting: Setting) -> Report:
    """Run a third of the sessions in dedicated processes; kill these and the memory's process, and lock the file."""
    setting = replace(setting, sessions=max(1, setting.sessions // 3))
    database = setting.folder / "chats.db"

    def killers(manager: AsyncSessionManager, session_ids: Sequence[str]) -> Iterator[tuple[Killer, float]]:
        yield SessionKiller(manager, session_ids), 2.0
        yield ActorKiller("kill of the memory's process", NAMESPACE, "turnwise/memory/"), 20.0
        yield WriteLock(database), 2.0
        yield OrphanKiller(f"sqlite:///{database}", setting.folder, "dedicated"), 15.0

    with one_node():
        return _run(setting, f"sqlite:///{database}", Dedicated(), killers, "Dedicated sessions, SQLite, one node")


def packed_on_postgres(setting: Setting) -> Report:
    """Run the sessions in packed hosts; kill these, the memory's process and the store's server."""
    server = PostgresServer(setting.folder)

    def crash() -> None:
        server.restart("immediate")

    def freeze() -> None:
        with server.frozen():
            signal.sigtimedwait([], 1.0)

    def killers(manager: AsyncSessionManager, session_ids: Sequence[str]) -> Iterator[tuple[Killer, float]]:
        yield SessionKiller(manager, session_ids), 4.0
        yield ActorKiller("kill of the memory's process", NAMESPACE, "turnwise/memory/"), 20.0
        yield Doing("crash and restart of PostgreSQL", crash), 20.0
        yield Doing("PostgreSQL frozen for a second", freeze), 20.0
        yield OrphanKiller(server.url(), setting.folder, "packed"), 15.0

    try:
        with one_node():
            return _run(setting, server.url(), Packed(hosts=2), killers, "Two packed hosts, PostgreSQL, one node")
    finally:
        server.stop("immediate")


def nodes_on_postgres(setting: Setting) -> Report:
    """Run the sessions in packed hosts on three nodes; repeatedly kill a node and start another."""
    server, cluster = PostgresServer(setting.folder), Cluster()
    workers: list[Any] = []

    async def lose_a_node() -> None:  # on the main thread, since a node sets up signals
        worker = workers.pop(0)
        os.kill(worker.all_processes["raylet"][0].process.pid, signal.SIGKILL)
        cluster.worker_nodes.discard(worker)
        workers.append(cluster.add_node(wait=False, **NODE))

    def killers(manager: AsyncSessionManager, session_ids: Sequence[str]) -> Iterator[tuple[Killer, float]]:
        yield SessionKiller(manager, session_ids), 4.0  # of those on the node of this process
        yield Doing("death of a node", lose_a_node), 25.0
        yield OrphanKiller(server.url(), setting.folder, "packed"), 15.0

    try:
        cluster.add_node(include_dashboard=False, _system_config=HEALTH, **NODE)
        ray.init(address=cluster.address, configure_logging=False, log_to_driver=False)
        workers += [cluster.add_node(wait=False, **NODE) for _ in range(2)]
        cluster.wait_for_nodes()
        return _run(setting, server.url(), Packed(hosts=3), killers, "Three packed hosts, PostgreSQL, three nodes")
    finally:
        ray.shutdown()
        for node in workers:
            node.kill_all_processes(check_alive=False, allow_graceful=False)
        cluster.shutdown()
        server.stop("immediate")


def _run(setting: Setting, url: str, placement: Placement, killers: Killers, title: str) -> Report:
    journal, acknowledged = setting.folder / "faults.jsonl", Acknowledged(setting.folder / "receipts.jsonl")
    facts_url = url if url.startswith("postgresql") else f"sqlite:///{setting.folder}/facts.db"
    workload = Workload(sessions=setting.sessions, callers=3, calls=0.3, agents=0.05, tag=f"soak-{setting.seed}")

    async def run(receiver: Receiver) -> Report:
        faults = Faults(FaultPlan(rates=RATES), journal=journal)
        async with AsyncSessionManager(
            faulty_url(url, STORE, seed=setting.seed, journal=journal),
            engine=FaultyEngine(faults, tools=ToolRegistry(look, HELPER), late_s=3.0, for_real=True),
            memory=[LexicalMemory(SQLItems(facts_url))],
            config=SessionConfig(cancel_grace_s=0.2, memory=MemoryConfig(recall=False)),
            placement=placement,
            namespace=NAMESPACE,
        ) as manager:
            await manager.webhook(receiver.url, events=["run.completed"], allow_private=True)
            report = await chaos(
                manager,
                lambda: open_store(url),
                acknowledged,
                killers=lambda *of: [*killers(*of), (Doing("receiver of webhooks away", away), 20.0)],
                workload=workload,
                bounds=Bounds(seconds=setting.seconds, most_s=setting.seconds, settle_s=300.0),
                seed=setting.seed,
                journal=journal,
                title=title,
            )
            counts, broken = await _audit_memory(manager, facts_url, acknowledged)
            broken += await _audit_webhooks(url, receiver, acknowledged, counts)
        counts.update(report.audit.counts)
        return replace(report, audit=replace(report.audit, counts=counts), unsettled=(*report.unsettled, *broken))

    receiver = Receiver()

    def away() -> None:
        receiver.status = 503
        signal.sigtimedwait([], 1.0)
        receiver.status = 200

    try:
        return asyncio.run(run(receiver))
    finally:
        receiver.close()


async def _audit_webhooks(url: str, receiver: Receiver, acknowledged: Acknowledged, counts: Counter[str]) -> list[str]:
    """Check that the receiver is told of each run that completed, by calls with one id each; return violations."""
    store = open_store(url)
    run_ids = [
        run.run_id
        for session_id in acknowledged.session_ids
        async for runs in pages(partial(store.runs, SessionKey(session_id)), -1, TURN_INDEX)
        for run in runs
        if run.state == "completed" and not run.leads_to
    ]
    await store.close()
    until = time.monotonic() + CALLS_S
    while ToldRuns(list(receiver.requests)).missing(run_ids) and time.monotonic() < until:
        await asyncio.sleep(1.0)
    receipts = ToldRuns(list(receiver.requests))
    counts["run of which a receiver was told"] = len({*run_ids})
    return [
        *(f"a webhook's receiver was not told that run {run_id} completed" for run_id in receipts.missing(run_ids)),
        *(f"a webhook's receiver got several calls of run {run_id}" for run_id in receipts.doubled(run_ids)),
        *receipts.broken,
    ]


async def _audit_memory(
    manager: AsyncSessionManager, url: str, acknowledged: Acknowledged
) -> tuple[Counter[str], list[str]]:
    """Check that the memory has each completed turn exactly once; return counts and violations."""
    broken: list[str] = []
    for session_id in acknowledged.session_ids:
        try:
            session = await manager.get(session_id)
        except SessionNotFoundError:
            broken.append(f"session {session_id!r} is not there")
            continue
        if not await session.memory.wait(MEMORY_S):
            broken.append(f"the memory of session {session_id!r} does not catch up")
    completed = {note.run_id for note in acknowledged if note.kind == "end" and note.state == "completed"}
    prompts = {str(note.prompt): note.run_id in completed for note in acknowledged if note.kind == "prompt"}
    facts = SQLItems(url)
    remembered: Counter[str] = Counter()
    async for fact in all_stored(facts, None):
        remembered.update(re.findall(r"^user: (.*)$", fact.item.text, re.MULTILINE))
    await facts.close()
    broken += [f"prompt {prompt!r} is remembered {count} times" for prompt, count in remembered.items() if count > 1]
    broken += [
        f"prompt {prompt!r} is not remembered" for prompt, ended in prompts.items() if ended and not remembered[prompt]
    ]
    return Counter({"remembered prompt": len(remembered)}), broken


STAGES: tuple[tuple[Callable[[Setting], Report], float], ...] = (
    (dedicated_on_sqlite, 0.25),
    (packed_on_postgres, 0.5),
    (nodes_on_postgres, 0.25),
)
"""The stages, each with its share of the time."""
