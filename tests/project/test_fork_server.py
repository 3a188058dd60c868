"""Processes of the tests' own Ray are forks of `fork_server.py`; a program's are started as Ray starts them."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from turnwise.actors.client.blocking.manager import SessionManager

WAIT_S = 60
"""For the processes that Ray started before, for no job, to be used up."""

PROGRAM = """
import sys
import ray
from turnwise import EchoEngine, SessionManager

ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
with SessionManager(sys.argv[2], engine=EchoEngine()) as manager:
    print("pid:", manager.open().info().pid)
    sys.stdin.read()
"""


def parent_of(pid: int) -> str:
    """Return the command of a process's parent."""
    parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    return Path(f"/proc/{parent}/cmdline").read_text().replace("\0", " ")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, processes are started as ever")
def test_the_tests_own_processes_are_forked_and_those_of_programs_are_not(
    make_ray_manager: Callable[..., SessionManager], ray_address: str, tmp_path: Path
) -> None:
    manager, deadline = make_ray_manager(), time.monotonic() + WAIT_S
    while "fork_server.py" not in parent_of(manager.open().info().pid or 0):
        assert time.monotonic() < deadline, "no process was forked"

    command = [sys.executable, "-c", PROGRAM, ray_address, f"sqlite:///{tmp_path}/other.db"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout and program.stdin
        pid = int(program.stdout.readline().removeprefix("pid: "))
        assert "raylet" in parent_of(pid) and "fork_server.py" not in parent_of(pid)
        program.stdin.close()
