"""Runs an MCP server, and ends it with all that it has started when the process that wanted it is gone.

A program of its own: `python guard.py PARENT COMMAND [ARGUMENT...]`, where PARENT is the id of that process. It imports
nothing of turnwise, since one runs beside each server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

POLL_S = 0.5
"""How often it is looked whether the parent is there, in seconds."""

GRACE_S = 1.0
"""How long a server has to end by itself after its standard input was closed, and again after SIGTERM, in seconds."""


def guard(parent: int, command: Sequence[str]) -> int:
    """Run the command until it ends, and return its exit code. If the parent ends first, kill the process group."""
    try:
        server = subprocess.Popen(command)  # noqa: S603 - the user's own command
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]!r}: {error.strerror}\n")
        return 127
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):  # so that the ends of the pipes are the server's alone
        os.dup2(nothing, descriptor)
    ended = threading.Event()

    def wait() -> None:
        server.wait()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    while os.getppid() == parent:
        if ended.wait(POLL_S):
            return server.returncode if server.returncode >= 0 else 128 - server.returncode
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not ended.wait(GRACE_S):
        os.killpg(0, signal.SIGTERM)
        ended.wait(GRACE_S)
    os.killpg(0, signal.SIGKILL)
    return 1


if __name__ == "__main__":
    sys.exit(guard(int(sys.argv[1]), sys.argv[2:]))
