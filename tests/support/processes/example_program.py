"""Runs programs of `examples/`: on a bare machine, with no key, an empty home and no terminal; or on the tests' Ray."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from processes.late_ray import without_late_start

EXAMPLES = Path(__file__).parents[3] / "examples"
HIDDEN = ("OPENAI_", "RAY_", "TIKTOKEN_", "TURNWISE_")
"""Prefixes of environment variables that the program does not get."""

QUICK = {"RAY_worker_niceness": "0", "REPORTER_UPDATE_INTERVAL_MS": "60000"}
"""Else other tests take the processor from the processes of its sessions."""


def run_example(
    folders: pytest.TempPathFactory,
    program: str,
    *args: str,
    timeout_s: float = 280,
    ray_address: str | None = None,
    **env: str,
) -> tuple[str, Path]:
    """Return what the program prints, and the empty folder in which it ran. It must succeed and write no stderr.

    Args:
        ray_address: the Ray that it joins; if omitted, it starts one.
    """
    folder = folders.mktemp("elsewhere")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
    if ray_address is not None:
        env["RAY_ADDRESS"] = ray_address
    ran = subprocess.run(
        [sys.executable, EXAMPLES / program, *args],
        cwd=folder,
        env=inherited | QUICK | {"HOME": str(folders.mktemp("home")), "PYTHONIOENCODING": "utf-8"} | env,
        capture_output=True,
        encoding="utf-8",
        timeout=timeout_s,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert without_late_start(ran.stderr) == ""
    return ran.stdout, folder


@contextmanager
def started_example(ray_address: str, folder: Path, program: str, *args: str) -> "Iterator[subprocess.Popen[str]]":
    """Start a program in a folder, where it joins a Ray that is there; it is killed if it still runs in the end."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    env |= {"RAY_ADDRESS": ray_address, "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, str(EXAMPLES / program), *args]
    with (
        (folder / "errors").open("w", encoding="utf-8") as errors,
        subprocess.Popen(
            command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=errors, encoding="utf-8"
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def play_example(ray_address: str, folder: Path, program: str, *args: str, timeout_s: float = 150) -> str:
    """Return what the program prints on a Ray that is there. It must succeed."""
    with started_example(ray_address, folder, program, *args) as process:
        printed, _ = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, printed + (folder / "errors").read_text(encoding="utf-8")
    return printed
