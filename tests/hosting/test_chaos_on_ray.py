"""Chaos in short: real kills, a locked file and a model that fails, while callers are at work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.session.config import SessionConfig
from turnwise.memory.longterm.static import StaticMemory
from turnwise.memory.stores.urls import open_store
from turnwise.testing.acknowledged import Acknowledged
from turnwise.testing.chaos import Bounds, chaos
from turnwise.testing.faults import FaultPlan, Faults
from turnwise.testing.faulty_engine import FaultyEngine, look
from turnwise.testing.faulty_url import faulty_url
from turnwise.testing.killers import ActorKiller, Doing, Killer, SessionKiller, WriteLock
from turnwise.testing.workload import Workload

STORE = FaultPlan(
    rates={"fence": 0.06, "error": 0.1, "unanswered": 0.1, "delay": 0.06, "crash": 0.02}, points=("store.commit *",)
)
LOST = FaultPlan(rates={"unanswered": 0.2}, points=("store.commit *",))
MEMORY_KILL = "SIGKILL of the memory's process"
RATES = {"raise": 0.05, "hang": 0.02, "cut": 0.05, "dangling": 0.03, "nothing": 0.02, "exit": 0.01, "crash": 0.02}


@pytest.mark.usefixtures("make_ray_manager")
async def test_sixty_faults_among_real_processes_lose_and_double_nothing(tmp_path: Path) -> None:
    """Cases 15 and 47."""
    journal, url = tmp_path / "faults.jsonl", f"sqlite:///{tmp_path}/chats.db"
    faults = Faults(FaultPlan(rates=RATES), journal=journal)  # type: ignore[arg-type]
    engine = FaultyEngine(faults, tools=ToolRegistry(look), for_real=True)
    config = SessionConfig(cancel_grace_s=0.2)
    namespace = f"test-{tmp_path.name}"  # whose actors end with the test

    def killers(manager: AsyncSessionManager, session_ids: Sequence[str]) -> Iterator[tuple[Killer, float]]:
        yield SessionKiller(manager, session_ids), 0.4
        yield WriteLock(tmp_path / "chats.db"), 0.5
        yield ActorKiller(MEMORY_KILL, namespace, "turnwise/memory/"), 0.5
        yield Doing("what a test does", [].clear), 2.0

    memory = StaticMemory(["It rains."])
    async with AsyncSessionManager(
        faulty_url(url, STORE, journal=journal), engine=engine, memory=[memory], config=config, namespace=namespace
    ) as manager:
        report = await chaos(
            manager,
            lambda: open_store(url),
            Acknowledged(tmp_path / "told.jsonl"),
            killers=killers,
            workload=Workload(sessions=3, callers=2, calls=0.4),
            bounds=Bounds(faults=60, kinds=(SessionKiller.kind, MEMORY_KILL), most_s=100.0, settle_s=120.0),
            journal=journal,
        )
    report.check()
    assert any("store.commit" in kind and "in the session's process" in kind for kind in report.faults)
    assert report.faults[SessionKiller.kind] > 0 and report.faults[MEMORY_KILL] > 0
    assert report.audit.counts["acknowledged prompt"] > 0


@pytest.mark.usefixtures("make_ray_manager")
async def test_lost_answers_in_processes_that_live_lose_no_run(tmp_path: Path) -> None:
    journal, url = tmp_path / "faults.jsonl", f"sqlite:///{tmp_path}/chats.db"
    async with AsyncSessionManager(
        faulty_url(url, LOST, journal=journal),
        engine=FaultyEngine(Faults(), tools=ToolRegistry(look)),
        config=SessionConfig(cancel_grace_s=0.2, on_lost="resume"),
        namespace=f"test-{tmp_path.name}",
    ) as manager:
        report = await chaos(
            manager,
            lambda: open_store(url),
            Acknowledged(tmp_path / "told.jsonl"),
            killers=lambda _manager, _ids: (),
            workload=Workload(sessions=3, callers=2, calls=0.4),
            bounds=Bounds(faults=60, most_s=100.0, settle_s=120.0),
            journal=journal,
            none_die=True,
        )
    report.check()
    assert set(report.faults) == {"unanswered store.commit after, in the session's process"}
    assert report.audit.counts["acknowledged prompt"] > 0
