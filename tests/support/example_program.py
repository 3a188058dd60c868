"""Runs a program of `examples/` as on a bare machine: no key, an empty home, no terminal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
HIDDEN = ("OPENAI_", "RAY_", "TIKTOKEN_", "TURNWISE_")
"""Prefixes of environment variables that the program does not get."""


def run_example(
    folders: pytest.TempPathFactory, program: str, *args: str, timeout_s: float = 280, **env: str
) -> tuple[str, Path]:
    """Return what the program prints, and the empty folder in which it ran. It must succeed and write no stderr."""
    folder = folders.mktemp("elsewhere")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
    ran = subprocess.run(
        [sys.executable, EXAMPLES / program, *args],
        cwd=folder,
        env=inherited | {"HOME": str(folders.mktemp("home")), "PYTHONIOENCODING": "utf-8"} | env,
        capture_output=True,
        encoding="utf-8",
        timeout=timeout_s,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    return ran.stdout, folder
