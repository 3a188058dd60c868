"""What a drain reports of processes that end about when their time is over."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from turnwise.actors.cluster import draining, ray_runtime
from turnwise.actors.cluster.draining import drain_node
from turnwise.actors.hosting.wire import DrainReport
from turnwise.cli import app, drain as drain_command


def test_the_command_gives_way_to_hosts_before_it_joins_their_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Any] = []

    async def drained(node_id: str | None, timeout_s: float) -> DrainReport:
        steps.append("drains")
        return DrainReport(node_id=str(node_id), processes=1, seconds=0.1)

    monkeypatch.setattr(drain_command, "starts_own_ray", lambda: False)
    monkeypatch.setattr(os, "nice", steps.append)
    monkeypatch.setattr(ray_runtime, "connect", lambda **_: steps.append("joins"))
    monkeypatch.setattr(draining, "drain_node", drained)
    assert CliRunner().invoke(app, ["drain", "--node", "node"]).exit_code == 0
    assert steps == [19, "joins", "drains"]


@pytest.mark.virtual_time
@pytest.mark.parametrize(("ends_after_s", "late"), [(0.5, ()), (1.05, ("turnwise/p",)), (3.0, ("turnwise/p",))])
async def test_a_process_that_ends_when_its_time_is_over_is_reported(
    ends_after_s: float, late: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    began, record = loop.time(), SimpleNamespace(name="turnwise/p", actor_id=b"1")

    times_told: list[float] = []

    async def tell(*_: Any) -> str:
        times_told.append(loop.time())
        return ""

    async def in_line(work: Any, *arguments: Any) -> Any:
        return work(*arguments)

    monkeypatch.setattr(draining, "_begin", lambda node_id, _: node_id)
    monkeypatch.setattr(draining, "_tell", tell)
    monkeypatch.setattr(
        draining, "_actors_on", lambda _: [(b"1".hex(), record)] if loop.time() < began + ends_after_s else []
    )
    monkeypatch.setattr(asyncio, "to_thread", in_line)
    monkeypatch.setattr(draining, "time", SimpleNamespace(monotonic=loop.time))
    report = await drain_node("node", 1.0)
    assert report.late == late and report.is_empty == (not late) and report.processes == 1
    assert len(times_told) == 1, "who has said that it leaves is told once"
