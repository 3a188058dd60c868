"""The cluster on one machine: two replicas of a model on the CPU, sessions, memory, the service, a lost replica."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from processes.example_program import EXAMPLES


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_demo_of_a_cluster_does_what_it_says() -> None:
    command = [sys.executable, str(EXAMPLES / "cluster/cluster_demo.py")]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "RAY_ADDRESS"))}
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=580, check=False, env=env)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    expected = [
        "two replicas",
        "three sessions",
        "recalled: ",
        "a fork",
        "OpenAI's client",
        "a replica dies",
        "all of it",
    ]
    positions = [ran.stdout.find(words) for words in expected]
    assert -1 not in positions and positions == sorted(positions), ran.stdout
