"""Clusters: several nodes on this machine, of which one joins late and one dies."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from memories.vector_memories import free_port
from processes.ray_nodes import own_ray, running, started

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(900)]

MOST_S = 880
"""How long all checks may take together, in seconds; they take some 50."""


@pytest.fixture(scope="module")
def checks(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `local_cluster.py` found, by check. It has a Ray of its own, so it is a process of its own."""
    with psycopg.connect(postgres.format("postgres"), autocommit=True) as connection:
        for namespace in ("d", "p", "away"):
            connection.execute(f"CREATE DATABASE cluster_{namespace}".encode())
    folder = tmp_path_factory.mktemp("cluster")
    command = [
        sys.executable,
        str(Path(__file__).parents[1] / "support/processes/local_cluster.py"),
        postgres.format("cluster_{}"),
        str(folder),
    ]
    with (folder / "errors").open("w+") as errors, own_ray() as env:
        with started(command, env, stdout=subprocess.PIPE, stderr=errors) as process:
            output, _ = process.communicate(timeout=MOST_S)
        errors.seek(0)
        assert process.returncode == 0, f"{output}\n{errors.read()[-4000:]}"
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {line["check"]: line for line in lines}


def outcome_of(checks: dict[str, Any], name: str) -> dict[str, Any]:
    report = checks[name]
    assert "error" not in report, report["error"]
    outcome: dict[str, Any] = report["found"]
    return outcome


def test_files_are_used_on_the_node_that_has_them_also_when_others_have_joined(checks: dict[str, Any]) -> None:
    """Sessions of a SQLite file, killed or new, and a memory in one, stay where the manager was opened."""
    outcome = outcome_of(checks, "a_node_joins")
    assert outcome["is_all_on_head"]
    assert outcome["texts"] == ["done: again"] * 4 and outcome["lost"] == "interrupted"
    assert outcome["recalled"] == ["Ada keeps bees."]


@pytest.mark.parametrize("argument", ["store", "history_store", "working_memory"])
def test_on_several_nodes_a_file_of_sessions_events_or_notes_is_refused_with_the_remedy(
    checks: dict[str, Any], argument: str
) -> None:
    refused = outcome_of(checks, "a_node_joins")["refused"][argument]
    assert refused.startswith(f"{argument}=") and "belongs to one node" in refused and "postgresql://" in refused


def test_packed_hosts_and_sessions_of_their_own_are_on_all_nodes(checks: dict[str, Any]) -> None:
    assert outcome_of(checks, "placement") == {"hosts": 3, "sessions": 3}


def test_under_load_a_nodes_death_loses_and_doubles_nothing_and_leaves_no_run_without_outcome(
    checks: dict[str, Any],
) -> None:
    """Case 47, with a node in the place of a process: callers append, run, cancel and follow on both placements."""
    outcome = outcome_of(checks, "a_node_dies")
    assert outcome["broken"] == []
    assert outcome["faults"] == [1, 0]
    assert outcome["prompts"][0] > 0 and outcome["prompts"][1] > 0 and outcome["followers"][0] > 0, "there was a load"


def test_what_was_on_a_node_that_died_comes_back_elsewhere_and_its_runs_go_on_or_end(checks: dict[str, Any]) -> None:
    """One session with `on_lost="resume"`, one of a packed host without; each with a follower and one queued."""
    outcome = outcome_of(checks, "a_node_dies")
    assert outcome["left"]
    assert outcome["states"] == ["completed", "interrupted"] and outcome["after"] == ["completed"] * 2
    assert outcome["resumed"] == [1, 0] and outcome["ends"] == ["run_completed", "run_interrupted"]
    for report in outcome["audit"]:
        assert report["violations"] == [] and report["counts"]["acknowledged followed"] == 1


def test_a_memory_in_a_database_comes_back_elsewhere_and_one_in_files_says_that_they_are_lost(
    checks: dict[str, Any],
) -> None:
    outcome = outcome_of(checks, "a_node_dies")
    assert outcome["memory_moved"] and outcome["recalled"] == ["Ada keeps bees."]
    before, reason = outcome["kept_in_files"]
    assert before == ["Ada fears wasps."]
    assert "LexicalMemory: the node with its files is lost: open a manager with it where they are" in reason


def test_runs_go_on_when_their_driver_ends_or_is_killed_and_are_found_by_id_and_by_handle(
    checks: dict[str, Any],
) -> None:
    outcome = outcome_of(checks, "drivers_leave")
    assert outcome["codes"] == [0, -9, 0]
    assert outcome["before"] == outcome["attached"] == ["running"] * 4
    assert outcome["texts"] == ["done: hold leave"] * 4 and outcome["seen"] == [["done: hold leave", True]] * 4


def test_another_number_of_hosts_interrupts_no_run_and_loses_and_doubles_nothing(checks: dict[str, Any]) -> None:
    outcome = outcome_of(checks, "hosts_change")
    assert outcome["unmoved"], "each stays where it runs, whoever asks"
    assert outcome["kept"] and set(outcome["kept"]) == {"completed"}
    assert outcome["after"] == outcome["last"] == ["completed"] * 9
    assert (outcome["hosts"], outcome["old"]) == (2, 0), "then they have moved, and the three have left"
    assert outcome["audit"]["violations"] == [] and outcome["audit"]["counts"]["acknowledged prompt"] == 27


def test_a_host_that_dies_after_others_have_followed_leaves_no_run_without_outcome(checks: dict[str, Any]) -> None:
    """Nobody asks for its sessions: only the store was looked at."""
    outcome = outcome_of(checks, "hosts_change")
    assert outcome["lost"] and set(outcome["lost"]) == {"interrupted"}


def test_a_program_with_large_settings_goes_with_its_node_and_processes_come_back(checks: dict[str, Any]) -> None:
    assert outcome_of(checks, "a_program_goes_with_its_node") == {"dedicated": "came back", "packed": "came back"}


def test_the_job_runs_on_nodes_that_ray_start_has_joined(database: str, tmp_path: Path) -> None:
    """`ray job submit` needs what ray[default] brings, so the same script is a driver here, as the guide says."""
    ray, port = Path(sys.executable).with_name("ray"), free_port()
    common = ["--num-cpus=1", "--object-store-memory=80000000", "--include-log-monitor=false", "--block"]
    with contextlib.ExitStack() as stack:
        env = stack.enter_context(own_ray())
        env |= {"RAY_ADDRESS": f"127.0.0.1:{port}"}
        head = ["--head", "--node-ip-address=127.0.0.1", f"--port={port}", "--include-dashboard=false"]
        for number, arguments in enumerate((head, [f"--address=127.0.0.1:{port}", "--node-ip-address=127.0.0.1"])):
            stack.enter_context(running([ray, "start", *arguments, *common], env, tmp_path / f"node{number}"))
        script = Path(__file__).parents[2] / "examples/cluster_job.py"
        report: dict[str, Any] = {}
        for options, turns in ((["--chats", "2"], 2), (["--chats", "2", "--packed", "2"], 4)):
            ran = subprocess.run(
                [sys.executable, script, database, *options],
                env=env,
                capture_output=True,
                text=True,
                timeout=200,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr
            report = json.loads(ran.stdout.splitlines()[-1])
            assert report["turns"] == [turns] * 2, "sessions that had processes of their own move to the hosts"
        assert report["sessions by node"]


def test_conversations_of_the_tutorial_outlive_the_second_node(database: str, tmp_path: Path) -> None:
    port, program = free_port(), Path(__file__).parents[2] / "examples/tutorial/step6_cluster.py"
    with contextlib.ExitStack() as stack:
        env = stack.enter_context(own_ray())
        env |= {"RAY_ADDRESS": f"127.0.0.1:{port}"}
        head = ["--head", f"--port={port}", "--include-dashboard=false"]
        common = ["--num-cpus=2", "--node-ip-address=127.0.0.1", "--block"]
        start = [Path(sys.executable).with_name("ray"), "start", *common]
        stack.enter_context(running([*start, *head], env, tmp_path / "first"))
        second = stack.enter_context(contextlib.ExitStack())
        second.enter_context(running([*start, f"--address=127.0.0.1:{port}"], env, tmp_path / "second"))
        command = [sys.executable, "-u", program, database]
        process = stack.enter_context(started(command, env, stdout=subprocess.PIPE))
        assert process.stdout
        words, _, counts = process.stdout.readline().partition(": ")
        assert words == "Conversations on each node" and len(counts.split()) == 2
        second.close()
        assert process.stdout.read().startswith("Answers: Counter({'Count with me: one two three four")
        assert process.wait(60) == 0
