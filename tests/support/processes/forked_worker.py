"""Ray starts this for each worker in tests: it has the fork server fork the worker, and ends.

It starts that server if there is none. For another job or environment than the server's, it becomes the worker, as
Ray's own program does.
"""

import array
import json
import os
import socket
import sys
import time

ENVIRONMENT, LANGUAGE = "--serialized-runtime-env-context=", "--language="

WAIT_S = 30
"""For so long a worker waits for a server that starts."""


def is_forked(address: str, arguments: list[str]) -> bool:
    """Ask for a fork with these arguments; return whether there is one."""
    folder = os.getcwd()  # noqa: PTH109 - to import pathlib takes longer than all else here
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": folder}
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(address)
            files = socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2])
            server.sendmsg([json.dumps(request).encode() + b"\n"], [files])
            return server.recv(1) == b"+"
    except OSError:
        return False


def start_server(address: str) -> None:
    """Start a server in a session of its own, unless somebody else does so at the moment."""
    try:
        os.close(os.open(f"{address}.starting", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    import subprocess

    program = os.path.join(os.path.dirname(__file__), "fork_server.py")  # noqa: PTH118, PTH120
    subprocess.Popen([sys.executable, program, address], stdin=subprocess.DEVNULL, start_new_session=True)


def main() -> None:
    environments = [argument for argument in sys.argv if argument.startswith(ENVIRONMENT)]
    if any(argument != f"{ENVIRONMENT}{{}}" for argument in environments):
        from ray._private.workers import setup_worker  # which prepares that environment

        os.execv(sys.executable, [sys.executable, setup_worker.__file__, *sys.argv[1:]])
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith((ENVIRONMENT, LANGUAGE))]
    deadline = time.monotonic() + WAIT_S
    while os.environ.get("RAY_JOB_ID") == os.environ["TURNWISE_FORK_JOB"] and time.monotonic() < deadline:
        if is_forked(os.environ["TURNWISE_FORK_SERVER"], arguments):
            return
        start_server(os.environ["TURNWISE_FORK_SERVER"])
        time.sleep(0.01)
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main()
