"""What `make scale` simulates agrees with what can be worked out by hand, and its page says what was measured."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capacity import page
from capacity.model import Costs, Load, costs_with, simulate

COSTS = Costs(caller=0.0006, host=0.001, store=0.0004, ray=0.0002, serial=0.0008)


def test_a_caller_alone_waits_for_each_part_in_turn() -> None:
    prediction = simulate(COSTS, Load(hosts=1, callers=1, cores=2, seconds=4.0))
    assert prediction.rate == pytest.approx(1 / COSTS.all, rel=0.05)
    assert prediction.p50_s == pytest.approx(COSTS.all, rel=0.1)


@pytest.mark.parametrize(
    ("hosts", "cores", "bound"), [(1, 8, 1 / COSTS.serial), (8, 2, 2 / COSTS.all), (8, 32, 1 / COSTS.caller)]
)
def test_the_busiest_part_is_the_bound(hosts: int, cores: int, bound: float) -> None:
    prediction = simulate(COSTS, Load(hosts=hosts, callers=64, cores=cores, seconds=2.0))
    assert prediction.rate == pytest.approx(bound, rel=0.1)


def test_a_killed_host_costs_turns_and_the_same_seed_gives_the_same() -> None:
    load = Load(hosts=2, callers=8, cores=8, seconds=2.0)
    killed = replace(load, kill_every_s=0.4, recovery_s=0.2)
    prediction = simulate(COSTS, killed)
    assert prediction.rate < 0.9 * simulate(COSTS, load).rate
    assert simulate(COSTS, killed) == prediction != simulate(COSTS, killed, seed=1)


def test_a_new_process_in_a_killed_hosts_place_takes_cores_from_the_others() -> None:
    killed = Load(hosts=2, callers=8, cores=2, seconds=4.0, kill_every_s=0.8, recovery_s=0.4)
    assert simulate(COSTS, replace(killed, restart_cpu_s=0.4)).rate < 0.9 * simulate(COSTS, killed).rate


def test_a_turn_costs_less_if_others_go_with_it() -> None:
    measured = {16: replace(COSTS, host=0.002), 64: COSTS}
    assert costs_with(measured, 64) == COSTS and costs_with(measured, 16).host == pytest.approx(0.002)
    assert costs_with(measured, 32).host == pytest.approx(0.001 * 4 / 3)
    assert costs_with(measured, 32).caller == COSTS.caller


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What was measured, as `capacity.measure` writes it."""
    monkeypatch.setattr(page, "SIMULATED_S", 1.0)
    cpu = {"caller": COSTS.caller, "host": COSTS.host, "store": COSTS.store, "ray": COSTS.ray}
    measured = {
        "nodes": 1,
        "hosts": 1,
        "rate": 900.0,
        "p50_s": 0.07,
        "cpu_s": cpu,
        "bytes": 900.0,
        "calls": 5 / 64,
        "callers": 64,
    }
    measured |= {"recovery_s": 2.0, "restart_cpu_s": 1.5}
    server = {**measured, "store": "postgresql", "transactions": 2.5, "connections": 6}
    several = {**server, "hosts": 2, "rate": 2 / (4 / 3 * COSTS.all), "connections": 10}
    killed = {
        **measured,
        "store": "postgresql",
        "hosts": 2,
        "rate": 300.0,
        "kill_every_s": 6.0,
        "interrupted": 3,
        "turns": 1200,
    }
    dear = {
        "cpu_s": {name: 2 * seconds for name, seconds in cpu.items()},
        "calls": 5 / 16,
        "callers": 16,
        "rate": 500.0,
    }
    runs = [
        {**measured, "store": "sqlite"},
        server,
        several,
        killed,
        {**measured, "store": "sqlite", **dear},
        {**server, **dear},
    ]
    return {"cores": 2, "callers": 64, "resident_bytes": 25_600.0, "seconds": 240.0, "runs": runs}


def test_the_page_compares_each_measurement_with_the_model(results: dict[str, Any]) -> None:
    text = page.text_of(results, page.compared(results))
    assert text.count("| postgresql | 1 |") == 4 and "| processor time of the caller's process | 0.60 ms |" in text
    assert re.search(r"\| postgresql \| 1 \| 2 \| 64 \| none \| 682 \| [\d,]+ \| [+-]\d+% \| met \|", text)
    assert re.search(r"\| postgresql \| 1 \| 2 \| 64 \| one every 6 s \| 300 \| [\d,]+ \| \+\d+% \| MISSED \|", text)
    assert text.count("| the constants |") == 4
    assert "takes 25 KB of its host" in text and "3 turns were\ninterrupted, and 1,200 were not" in text
    assert (
        "there were 2.50 for each turn" in text
        and "| connections of a host | - | 4 |" in text
        and "measured for 4 minutes" in text
    )


def test_the_store_is_split_as_its_processor_time_and_its_connections_need(results: dict[str, Any]) -> None:
    """10,000 turns a second need 6.7 cores of PostgreSQL, so 1 of 8; and 14 hosts with 4 connections, below 100."""
    heading, *rows = page.carried(COSTS, results["runs"][1], 25_600.0)
    most = dict(zip(heading, rows[2], strict=True))
    assert (most["hosts"], most["PostgreSQL: cores"], most["connections"]) == ("14", "7", "56")
    assert (most["partitions for the cores"], most["for the connections"]) == ("1", "1")
    slow = replace(COSTS, store=0.004, connections=16)
    most = dict(zip(heading, page.carried(slow, results["runs"][1], 25_600.0)[3], strict=True))
    assert (most["partitions for the cores"], most["for the connections"]) == ("9", "3")


@pytest.mark.parametrize(("costs", "first"), [(COSTS, "host"), (replace(COSTS, caller=0.01), "process that calls")])
def test_the_lowest_limit_comes_first(costs: Costs, first: str) -> None:
    assert page.limits(costs)[0].startswith((f"**The {first}", f"**A {first}"))


def test_a_prediction_that_is_off_by_more_than_a_fifth_fails_and_the_page_is_written(
    results: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "docs/scale.md"
    written.parent.mkdir()
    monkeypatch.setattr(page, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["page", str(tmp_path / "results.json")])
    monkeypatch.delenv("QUICK", raising=False)
    (tmp_path / "results.json").write_text(json.dumps(results), encoding="utf-8")
    assert page.main() == 1
    assert written.read_text(encoding="utf-8").startswith("# Scale")
    assert "more than 20%: postgresql, nodes=1, hosts=2" in capsys.readouterr().err
    del results["runs"][3]["kill_every_s"]
    results["runs"][3] |= {"rate": 2 / (4 / 3 * COSTS.all)}
    assert all(comparison.verdict != "MISSED" for comparison in page.compared(results))


def test_a_quick_run_prints_the_page_and_leaves_the_written_one(
    results: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(page, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["page", str(tmp_path / "results.json")])
    monkeypatch.setenv("QUICK", "1")
    (tmp_path / "results.json").write_text(json.dumps(results), encoding="utf-8")
    assert page.main() == 0
    assert capsys.readouterr().out.startswith("# Scale") and not (tmp_path / "docs").exists()
