"""A process that has imported Ray and turnwise, and forks itself for each worker of a job: `workers_by_fork`.

Ray starts a process for each actor, which takes 0.7 s of a processor to import what all of them import: two thirds of
what tests of sessions took. Here, Ray starts `forked_worker.py` instead, which asks this server for a fork and gives it
its arguments, environment, folder and standard files. The fork runs Ray's own worker program. The job's first worker
starts the server, which ends with its Ray, or some time after its last fork. It serves one job, since Ray's library
reads which one when it is loaded. Workers of other jobs start as Ray starts them.
"""

import array
import gc
import importlib
import json
import os
import random
import runpy
import select
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ADDRESS, JOB = "TURNWISE_FORK_SERVER", "TURNWISE_FORK_JOB"
"""The environment variables from which workers know where the server listens, and for the workers of which job."""

IDLE_S = 60
"""For so long a server without forks waits for somebody who wants one."""

IMPORTED = [
    "ray._private.workers.default_worker",
    "ray.util.metrics",
    "turnwise.actors.client.manager",
    "turnwise.actors.cluster.actors.session_actor",
    "turnwise.actors.cluster.actors.packed_actor",
    "turnwise.actors.cluster.actors.memory_actor",
    "turnwise.actors.cluster.actors.store_actor",
    "turnwise.actors.inference.openai",
    "turnwise.memory.stores.sql.store",
    "turnwise.memory.longterm.lexical",
    "turnwise.memory.longterm.extraction.memory",
    "openai",
    "psycopg",
    "redis.asyncio",
    "numpy",
]
"""What a fork need not import. None of it may start a thread, as Chroma does: a fork would not have it."""


FORKED_WORKER = str(Path(__file__).with_name("forked_worker.py")) if sys.platform == "linux" else ""
"""What takes the place of `ray._private.ray_constants.SETUP_WORKER_FILENAME`; empty where that is not done."""


@contextmanager
def fork_environment(program: int) -> Iterator[dict[str, str]]:
    """Yield what the environment of a Ray with `FORKED_WORKER` needs besides, as long as it runs.

    Args:
        program: the workers of the first program that connects to it are forked, or of the second.
    """
    with tempfile.TemporaryDirectory(prefix="turnwise-") as folder:
        yield {ADDRESS: f"{folder}/forks", JOB: f"{program:02x}000000"}


@contextmanager
def workers_by_fork(start: Callable[[], object]) -> Iterator[None]:
    """Start a Ray by a function; while this is open, this program's workers on it are forked."""
    from ray._private import ray_constants

    with fork_environment(1) as env:
        usual = ray_constants.SETUP_WORKER_FILENAME
        ray_constants.SETUP_WORKER_FILENAME = FORKED_WORKER or usual
        os.environ |= env
        try:
            start()
        finally:
            ray_constants.SETUP_WORKER_FILENAME = usual
            for name in env:
                del os.environ[name]
        yield


def serve(address: str) -> None:
    """Fork for each connection, as long as the raylet is there, and a fork or somebody who asks for one."""
    raylet = Path("/proc", os.environ["RAY_RAYLET_PID"])
    sys.path[0] = str(Path(importlib.import_module("ray._private.workers.default_worker").__file__ or "").parent)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # else numpy starts some
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"  # else pyarrow starts one
    for name in IMPORTED:
        importlib.import_module(name)
    with suppress(ModuleNotFoundError):  # not each install has it; where it is, Ray imports it in each worker
        importlib.import_module("pyarrow.json")
    threads = len([*Path("/proc/self/task").iterdir()])
    assert threads == 1, f"{threads} threads"
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen(64)
        Path(f"{address}.starting").unlink()
        last_request = time.monotonic()
        while raylet.exists() and time.monotonic() < last_request + IDLE_S:
            if select.select([server], [], [], 1)[0]:
                client, _ = server.accept()
                if os.fork() == 0:
                    server.close()
                    become_worker(client)
                    return
                client.close()
            if has_forks():
                last_request = time.monotonic()
        Path(address).unlink(missing_ok=True)  # a worker that has connected since then is told by the closed connection


def has_forks() -> bool:
    """Return whether a fork is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def become_worker(client: socket.socket) -> None:
    """Take over what the process that has asked was given, and run as the worker until it ends."""
    size = array.array("i").itemsize
    message, ancillary, _, _ = client.recvmsg(1 << 20, socket.CMSG_SPACE(3 * size))
    while not message.endswith(b"\n"):
        message += client.recv(1 << 20)
    request = json.loads(message)
    os.setsid()
    for number, file in enumerate(array.array("i", ancillary[0][2])):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    client.sendall(b"+")
    client.close()
    random.seed()
    sys.argv = request["arguments"]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
