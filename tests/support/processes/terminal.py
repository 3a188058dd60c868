"""`Terminal`: a program on a terminal of its own, whose keys a test presses and whose screen it reads."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping
from typing import Self

import pyte

CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"
PATIENCE_S = 120.0


class Terminal:
    """Runs a program until its end; a `with` block kills it if it has not ended.

    Args:
        argv: the program, with its arguments.
        env: variables beside those of the test.
    """

    def __init__(
        self, *argv: str, env: Mapping[str, str | None] | None = None, columns: int = 100, lines: int = 60
    ) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._changed = threading.Condition()
        variables = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "", "LINES": "", **(env or {})}
        environ = {name: value for name, value in variables.items() if value}
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], argv, environ)
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._code: int | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._code is None:
            self.kill()
        os.close(self._file)

    @property
    def text(self) -> str:
        """What the screen shows, without the blanks at the ends of lines."""
        with self._changed:
            return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def press(self, keys: str) -> None:
        """Type keys; `\\n` is Enter."""
        os.write(self._file, keys.replace("\n", "\r").encode())

    def say(self, line: str) -> None:
        """Type a line."""
        self.press(f"{line}\n")

    def wait_for(self, shown: str | Callable[[str], object]) -> str:
        """Wait until the screen shows a text, or until a condition of its text holds; return the screen's text."""
        holds = shown if callable(shown) else lambda text: shown in text.replace("\n", "")
        until = time.monotonic() + PATIENCE_S
        while not holds(text := self.text):
            assert time.monotonic() < until and self._reader.is_alive(), f"{shown!r} is not shown:\n{self.text}"
            with self._changed:
                self._changed.wait(0.2)
        return text

    def wait(self) -> int:
        """Wait for the end of the program; return its exit code."""
        until = time.monotonic() + PATIENCE_S
        while self._code is None:
            assert time.monotonic() < until, f"it has not ended:\n{self.text}"
            ended_pid, status = os.waitpid(self.pid, os.WNOHANG)
            if ended_pid:
                self._code = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.02)
        self._reader.join(PATIENCE_S)
        return self._code

    def kill(self) -> None:
        """Kill the program by SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def _read(self) -> None:
        while True:
            try:
                select.select([self._file], [], [])
                data = os.read(self._file, 65_536)
            except (OSError, ValueError):  # all that had the terminal have ended
                data = b""
            if not data:
                return
            with self._changed:
                self._stream.feed(data)
                self._changed.notify_all()


def turnwise(*words: str) -> tuple[str, ...]:
    """Return the command line of the command `turnwise`."""
    return sys.executable, "-m", "turnwise", *words
