"""A service that is stopped before it answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.by_turns
def test_sigterm_while_a_service_starts_ends_it_in_order(tmp_path: Path) -> None:
    """It reads its configuration from a pipe that gives it nothing, so it has not begun to serve."""
    pipe = tmp_path / "serve.toml"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "turnwise", "serve", "--config", str(pipe)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        with pipe.open("w"):  # returns when the process has opened it, too
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        assert process.stderr and process.stderr.read() == ""
