"""Ray starts this for each worker in tests: it has the fork server fork the worker, and ends.

Without a server, or for another job or environment than the server's, it becomes the worker, as Ray's own program does.
"""

import array
import json
import os
import socket
import sys

ENVIRONMENT, LANGUAGE = "--serialized-runtime-env-context=", "--language="


def is_forked(arguments: list[str]) -> bool:
    """Ask for a fork with these arguments; return whether there is one."""
    folder = os.getcwd()  # noqa: PTH109 - to import pathlib takes longer than all else here
    asked = {"arguments": arguments, "environment": dict(os.environ), "folder": folder}
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(f"{os.environ['TURNWISE_FORK_SERVER']}-{os.environ['RAY_JOB_ID']}")
            files = socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2])
            server.sendmsg([json.dumps(asked).encode() + b"\n"], [files])
            return server.recv(1) == b"+"
    except OSError:
        return False


def main() -> None:
    environments = [each for each in sys.argv if each.startswith(ENVIRONMENT)]
    if any(each != f"{ENVIRONMENT}{{}}" for each in environments):
        from ray._private.workers import setup_worker  # which prepares that environment

        os.execv(sys.executable, [sys.executable, setup_worker.__file__, *sys.argv[1:]])
    arguments = [each for each in sys.argv[1:] if not each.startswith((ENVIRONMENT, LANGUAGE))]
    if not is_forked(arguments):
        os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main()
