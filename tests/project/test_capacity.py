"""What `make scale` simulates agrees with what can be worked out by hand, and its page says what was measured."""

from __future__ import annotations

import pytest

from capacity import page
from capacity.model import Costs, Load, simulate

COSTS = Costs(caller=0.0006, host=0.001, store=0.0004, ray=0.0002, serial=0.0008)


def test_a_caller_alone_waits_for_each_part_in_turn() -> None:
    found = simulate(COSTS, Load(hosts=1, callers=1, cores=2, seconds=4.0))
    assert found.rate == pytest.approx(1 / COSTS.all, rel=0.05)
    assert found.p50_s == pytest.approx(COSTS.all, rel=0.1)


@pytest.mark.parametrize(
    ("hosts", "cores", "bound"), [(1, 8, 1 / COSTS.serial), (8, 2, 2 / COSTS.all), (8, 32, 1 / COSTS.caller)]
)
def test_the_busiest_part_is_the_bound(hosts: int, cores: int, bound: float) -> None:
    found = simulate(COSTS, Load(hosts=hosts, callers=64, cores=cores, seconds=4.0))
    assert found.rate == pytest.approx(bound, rel=0.1)


def test_a_killed_host_costs_turns_and_the_same_seed_gives_the_same() -> None:
    load = Load(hosts=2, callers=8, cores=8, seconds=6.0)
    killed = Load(hosts=2, callers=8, cores=8, seconds=6.0, kill_every_s=1.0, recovery_s=0.5)
    assert simulate(COSTS, killed).rate < 0.9 * simulate(COSTS, load).rate
    assert simulate(COSTS, killed, seed=1) == simulate(COSTS, killed, seed=1)


def test_the_page_compares_each_measurement_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "SIMULATED_S", 2.0)
    cpu = {"caller": COSTS.caller, "host": COSTS.host, "store": COSTS.store, "ray": COSTS.ray}
    run = {"nodes": 1, "hosts": 1, "rate": 900.0, "p50_s": 0.07, "cpu_s": cpu, "recovery_s": 2.0, "bytes": 900.0}
    runs = [{"store": "sqlite", **run}, {"store": "postgresql", **run}, {"store": "postgresql", **run, "hosts": 2}]
    text = page.text_of({"cores": 2, "callers": 64, "runs": runs})
    assert text.count("| postgresql | 1 |") == 2 and "| processor time of the caller's process | 0.60 ms |" in text
    assert "| 10,000 |" in text and "one each 10 s" in text
