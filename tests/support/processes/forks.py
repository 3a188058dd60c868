"""Processes that are forks of this one, so that they need not import what it has imported.

Nothing of theirs may be open when they are forked: neither a file of SQLite nor a connection to the same server.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Self, TextIO

_ENDS: set[TextIO] = set()
"""This process's ends of pipes to others, which none of the next ones is to hold open."""


class Fork:
    """A process that does some work: what it reads comes from `into`, what it prints goes to `out`.

    It is killed at the end of a `with`, if it still runs.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        ends = *os.pipe(), *os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _work(work, *ends)
        os.close(ends[0])
        os.close(ends[3])
        self.into, self.out = os.fdopen(ends[1], "w"), os.fdopen(ends[2])
        _ENDS.update((self.into, self.out))
        self._code: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for end in (self.into, self.out):
            _ENDS.discard(end)
            end.close()

    def poll(self) -> int | None:
        """Return how it ended, None if it still runs."""
        return self._reap(os.WNOHANG)

    def wait(self) -> int:
        """Return how it ended, once it has."""
        return self._reap(0) or 0

    def kill(self) -> None:
        """End it by SIGKILL, and wait until it has."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def _reap(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


def _work(work: Callable[[], object], stdin: int, into: int, out: int, stdout: int) -> None:
    """Be the fork; never return."""
    code = 1
    try:
        gc.freeze()  # what it has not made itself, it does not close
        for end in (into, out, *(end.fileno() for end in _ENDS)):
            os.close(end)
        sys.stdin, sys.stdout = os.fdopen(stdin), os.fdopen(stdout, "w")
        work()
        sys.stdout.flush()
        code = 0
    except SystemExit as end:
        sys.stdout.flush()
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001 - its code says so
        traceback.print_exc()
    finally:
        os._exit(code)
