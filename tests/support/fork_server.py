"""A process that has imported Ray and turnwise, and forks itself for each worker of a Ray: `workers_by_fork`.

Ray starts a process for each actor, which takes 0.7 s of a processor to import what all of them import: two thirds of
what tests of sessions took. With this server, Ray starts `forked_worker.py` instead, which asks for a fork and gives it
its arguments, environment, folder and standard files. The fork runs Ray's own worker program.
"""

import array
import gc
import importlib
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ADDRESS = "TURNWISE_FORK_SERVER"
"""The environment variable from which workers know where the server listens."""

JOB = "01000000"
"""The job whose workers are forked: a Ray's first, of the program that has started it."""

IMPORTED = [
    "ray._private.workers.default_worker",
    "ray.util.metrics",
    "turnwise.actors.client.manager",
    "turnwise.actors.hosting.session_actor",
    "turnwise.actors.hosting.packed_actor",
    "turnwise.actors.cluster.memory_actor",
    "turnwise.actors.cluster.store_actor",
    "turnwise.actors.inference.openai",
    "turnwise.memory.stores.sql.store",
    "turnwise.memory.longterm.lexical",
    "turnwise.memory.longterm.extraction.memory",
    "openai",
    "psycopg",
    "redis.asyncio",
    "engines",
]
"""What a fork need not import. None of it may start a thread, as Chroma does: a fork would not have it."""


@contextmanager
def workers_by_fork(start: Callable[[], int]) -> Iterator[None]:
    """Start a Ray by a function that returns its raylet's process id; while this is open, its workers are forked.

    Its first workers, and those of other programs, start as ever. This is for Linux; elsewhere it changes nothing.
    """
    if sys.platform != "linux":
        start()
        yield
        return
    from ray._private import ray_constants

    with tempfile.TemporaryDirectory(prefix="turnwise-") as folder:
        address, usual = f"{folder}/forks", ray_constants.SETUP_WORKER_FILENAME
        ray_constants.SETUP_WORKER_FILENAME = str(Path(__file__).with_name("forked_worker.py"))
        os.environ[ADDRESS] = address
        try:
            raylet = start()
        finally:
            ray_constants.SETUP_WORKER_FILENAME = usual
            del os.environ[ADDRESS]
        # Ray's library reads these when it is loaded.
        env = {**os.environ, "RAY_JOB_ID": JOB, "RAY_RAYLET_PID": str(raylet)}
        command = [sys.executable, __file__, f"{address}-{JOB}"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=env) as server:
            assert server.stdin is not None
            try:
                yield
                assert server.poll() is None, "the fork server has ended"
            finally:
                server.stdin.close()  # and with it the server


def serve(address: str) -> None:
    """Fork for each connection, until standard input ends; forks stay."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Linux forgets children that have ended
    for name in IMPORTED:
        importlib.import_module(name)
    threads = len([*Path("/proc/self/task").iterdir()])
    assert threads == 1, f"{threads} threads"
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen(64)
        if os.fork() == 0:
            server.close()
            sys.stdin.buffer.read()
            os.kill(os.getppid(), signal.SIGTERM)
            return
        while True:
            client, _ = server.accept()
            if os.fork() == 0:
                server.close()
                become_worker(client)
                return
            client.close()


def become_worker(client: socket.socket) -> None:
    """Take over what the process that has asked was given, and run as the worker until it ends."""
    size = array.array("i").itemsize
    message, ancillary, _, _ = client.recvmsg(1 << 20, socket.CMSG_SPACE(3 * size))
    while not message.endswith(b"\n"):
        message += client.recv(1 << 20)
    asked = json.loads(message)
    os.setsid()
    for number, file in enumerate(array.array("i", ancillary[0][2])):
        os.dup2(file, number)
        os.close(file)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    client.sendall(b"+")
    client.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    random.seed()
    sys.argv = asked["arguments"]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
