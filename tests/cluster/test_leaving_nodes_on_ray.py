"""Nodes that leave a cluster, or die: what goes on, what is taken over, and how long that takes.

`pytest -m soak -s tests/cluster/test_leaving_nodes_on_ray.py` prints the figures that `docs/reliability.md` states.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from processes.ray_nodes import own_ray

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(900)]

LEAVING = Path(__file__).parents[1] / "support/processes/leaving_nodes.py"


def outcome_of(check: str, postgres: str, folder: Path) -> dict[str, Any]:
    """Return what one check has found; it has a cluster and databases of its own."""
    with psycopg.connect(postgres.format("postgres"), autocommit=True) as connection:
        for namespace in "dprc":
            connection.execute(f"CREATE DATABASE {check}_{namespace}".encode())
    with own_ray() as env:
        command: list[Any] = [sys.executable, LEAVING, postgres.format(f"{check}_{{}}"), folder, check]
        ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=880, check=False)
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert lines, ran.stderr[-4000:]
    print(json.dumps(lines[-1]))
    assert "error" not in lines[-1], lines[-1]["error"]
    outcome: dict[str, Any] = lines[-1]["found"]
    return outcome


def test_a_node_that_is_drained_under_load_interrupts_no_run_and_is_empty_then(postgres: str, tmp_path: Path) -> None:
    """Three commands drain it at once, of which one is killed at once."""
    outcome = outcome_of("drained", postgres, tmp_path)
    assert outcome["codes"][1:] == [0, 0], outcome["errors"]
    assert outcome["report"]["is_empty"] and outcome["report"]["processes"] >= 3
    assert outcome["held"] == ["running", "done: hold drain"], "it waits for the run"
    assert outcome["again"] == "done: again" and outcome["left"]
    assert outcome["memory_moved"] and outcome["recalled"] == ["Ada keeps bees."]
    assert outcome["load"]["interrupted"] == [] and outcome["load"]["runs"] > 0


def test_what_does_not_end_in_time_is_taken_over_and_the_command_says_so(postgres: str, tmp_path: Path) -> None:
    outcome = outcome_of("drained_too_late", postgres, tmp_path)
    why = "its node was drained, and the run had not ended when the time for that was over"
    assert outcome["code"] == 3 and not outcome["report"]["staying"]
    late = {name.rpartition("/")[2] for name in outcome["report"]["late"]}
    assert late >= {"alone", "resumed"}, "and perhaps a host whose successor was not up in so short a time"
    assert outcome["interrupted"] == ["interrupted", why]
    assert outcome["resumed"] == ["done: hold late", [why]]
    code, message = outcome["head"]
    assert code == 1 and "it is the head of the cluster" in message


def test_while_the_number_of_hosts_changes_under_load_no_run_is_interrupted(postgres: str, tmp_path: Path) -> None:
    outcome = outcome_of("hosts_change", postgres, tmp_path)
    for change in ("4 to 2", "2 to 4"):
        assert outcome[change]["interrupted"] == [] and outcome[change]["runs"] > 0


@pytest.mark.parametrize("check", ["death", "death_by_default"])
def test_what_was_on_a_node_that_was_killed_answers_again(check: str, postgres: str, tmp_path: Path) -> None:
    """With the settings that the docs recommend, and with those that Ray has by itself."""
    assert outcome_of(check, postgres, tmp_path)


def test_commands_tell_what_is_loaded_and_which_node_is_lost_in_a_store_of_100_000_sessions(
    postgres: str, tmp_path: Path
) -> None:
    outcome = outcome_of("watched", postgres, tmp_path)
    for look in ("top", "top after"):
        assert outcome[look]["sessions"]["active"] == 100_024, "those that nobody has loaded, too"
    assert outcome["top"]["runs"]["running"] == 24 and outcome["top"]["hosts"] == 3
    assert outcome["top after"]["runs"]["running"] == 24 - outcome["on_victim"], "the others end as interrupted"
    assert "ray nodes" not in outcome["doctor"] and "127.0.0.3" in outcome["doctor after"]["ray nodes"]
    assert "100,024 sessions" in outcome["doctor after"]["store"]


def test_with_fault_tolerance_sessions_go_on_when_the_head_is_killed_and_started_again(
    postgres: str, tmp_path: Path
) -> None:
    outcome = outcome_of("head_dies_with_redis", postgres, tmp_path)
    assert outcome["held"] == "done: hold head", "a run elsewhere goes on"


def test_without_it_the_nodes_end_and_another_program_finds_all_that_was_acknowledged(
    postgres: str, tmp_path: Path
) -> None:
    outcome = outcome_of("head_dies_for_good", postgres, tmp_path)
    assert outcome["runs"] == ["interrupted", "completed"], "the second has on_lost='resume'"
    assert outcome["this program"].startswith("SessionLostError") and outcome["this program reads"] == ["running"]
