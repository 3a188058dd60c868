"""Nodes of a Ray cluster on this machine, each by `ray start` and with an address of its own, that may be killed."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from ray.util import get_node_ip_address

from memories.vector_memories import free_port

RAY = """
from ray._private import services
from ray.scripts.scripts import main

services.find_gcs_addresses = set  # a head that is back finds the nodes of this machine, and takes itself for running
main()
"""
"""The command `ray`, for heads that are started again while their nodes are there."""

START_S = 90
"""How long a node may take to start, in seconds."""


@contextlib.contextmanager
def own_ray() -> Iterator[dict[str, str]]:
    """Yield an environment in which Ray knows of no other cluster, and nobody of this one who has not got its token."""
    with tempfile.TemporaryDirectory(
        prefix="turnwise-", ignore_cleanup_errors=True
    ) as folder:  # names of sockets are short
        env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        yield env | {
            "RAY_TMPDIR": folder,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
        }


@contextlib.contextmanager
def started(command: list[Any], env: dict[str, str], **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process; in the end kill it and all that it has started and left, which Ray does for a part of them."""
    with subprocess.Popen(command, env=env, text=True, start_new_session=True, **settings) as process:
        try:
            yield process
        finally:
            kill_all(process)


def kill_all(process: subprocess.Popen[str]) -> None:
    """SIGKILL a process and all that it has started, as far as they are of its session."""
    for pid in [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]:
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == process.pid:
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def running(command: list[Any], env: dict[str, str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """Run `ray start --block` until its node is up, and end it with all that it has started.

    It is not asked to: it would wait for its actors, which are to go on.
    """
    with log.open("w") as out, started(command, env, stdout=out, stderr=out) as process:
        deadline = time.monotonic() + START_S
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield process


class Nodes:
    """A head, and nodes that join it, each with an address of this machine of its own.

    Args:
        folder: of their logs.
        settings: variables of the head and of all nodes.
    """

    def __init__(self, folder: Path, env: dict[str, str], **settings: str) -> None:
        self._folder = folder
        self._env = env | settings
        self._stack = contextlib.ExitStack()
        self._port = free_port()
        self._count = 0
        self.workers: list[subprocess.Popen[str]] = []
        """The nodes that have joined."""
        self.address = f"{get_node_ip_address()}:{self._port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start_head(self, *options: str) -> subprocess.Popen[str]:
        """Start the head, which runs no sessions of its own unless nothing else is there."""
        return self._start(f"--port={self._port}", "--head", "--include-dashboard=false", *options)

    def join(self, last: int, **settings: str) -> subprocess.Popen[str]:
        """Start a node with the address 127.0.0.`last`, and further variables of its own."""
        node = self._start(f"--address={self.address}", f"--node-ip-address=127.0.0.{last}", **settings)
        self.workers.append(node)
        return node

    def _start(self, *options: str, **settings: str) -> subprocess.Popen[str]:
        self._count += 1
        common = ["--num-cpus=1", "--object-store-memory=80000000", "--include-log-monitor=false", "--block"]
        command = [sys.executable, "-c", RAY, "start", *options, *common]
        log = self._folder / f"node{self._count}"
        return self._stack.enter_context(running(command, self._env | settings, log))
