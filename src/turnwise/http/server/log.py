"""`configure_logging`: the log of a server, in which clients can neither forge lines nor fill the disk."""

from __future__ import annotations

import logging
import sys
import threading
from dataclasses import dataclass
from typing import TextIO

INTERVAL_S = 60.0
"""A message that repeats is written once in this time, and then how often it came."""

_MOST_KINDS = 1000
"""How many kinds of messages are told apart at a time."""

_FIRST = 300
"""How many characters of a message are written again when it is said how often it came."""


def escaped(text: str) -> str:
    """Return a text with every character as an escape that is not printed as itself, such as a line break."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def indented(text: str) -> str:
    """Return the lines of a traceback so that none of them looks like a record's."""
    return "\n".join(f"  {escaped(line)}" for line in text.split("\n"))


class OneLine(logging.Formatter):
    """Writes a record as one line. The lines of a traceback follow, indented, so none of them looks like a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        text = f"{record.levelname} {record.name}: {escaped(record.getMessage())}"
        parts = [self.formatException(record.exc_info)] if record.exc_info else []
        parts += [self.formatStack(record.stack_info)] if record.stack_info else []
        return "\n".join([text, *map(indented, parts)])


@dataclass(slots=True)
class _Repeated:
    """The messages of one kind within an interval: the first one's text, and how many more there were."""

    text: str
    count: int = 0
    timer: threading.Timer | None = None


class SparseHandler(logging.Handler):
    """Writes the first message of a kind; when `interval_s` is over, how often that kind came meanwhile.

    Messages are of one kind if the same line of code logs them about the same class of error. Those below WARNING must
    also have the same text.
    """

    def __init__(self, stream: TextIO | None = None, interval_s: float = INTERVAL_S) -> None:
        super().__init__()
        self.setFormatter(OneLine())
        self._stream = stream
        self._interval_s = interval_s
        self._kinds: dict[tuple[object, ...], _Repeated] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or count it."""
        kind = _kind_of(record)
        if repeated := self._kinds.get(kind):
            repeated.count += 1
            return
        if len(self._kinds) >= _MOST_KINDS:
            self._tell(next(iter(self._kinds)))
        try:
            lines = self.format(record)
        except Exception:  # noqa: BLE001 - a message that does not fit its arguments
            self.handleError(record)
            return
        repeated = self._kinds[kind] = _Repeated(lines.partition("\n")[0][:_FIRST])
        repeated.timer = threading.Timer(self._interval_s, self._end, (kind,))
        repeated.timer.daemon = True
        repeated.timer.start()
        self._write(lines)

    def _end(self, kind: tuple[object, ...]) -> None:
        self.acquire()
        try:
            self._tell(kind)
        finally:
            self.release()

    def _tell(self, kind: tuple[object, ...]) -> None:
        repeated = self._kinds.pop(kind, None)
        if repeated and repeated.timer:
            repeated.timer.cancel()
        if repeated and repeated.count:
            self._write(f"{repeated.text} [{repeated.count} more of this kind in {self._interval_s:g} s or less]")

    def close(self) -> None:
        """Say what has not been said yet."""
        self.acquire()
        try:
            for kind in list(self._kinds):
                self._tell(kind)
        finally:
            self.release()
        super().close()

    def _write(self, lines: str) -> None:
        stream = self._stream or sys.stderr
        try:
            stream.write(f"{lines.encode('utf-8', 'backslashreplace').decode()}\n")
            stream.flush()
        except (OSError, ValueError):
            pass  # it is closed, or its disk is full: nobody else can be told


def _kind_of(record: logging.LogRecord) -> tuple[object, ...]:
    args = record.args if isinstance(record.args, tuple) else ()
    errors = [type(value) for value in (*args, record.msg) if isinstance(value, BaseException)]
    errors += [record.exc_info[0]] if record.exc_info and record.exc_info[0] else []
    text = record.getMessage() if record.levelno < logging.WARNING else None
    return record.name, record.levelno, record.pathname, record.lineno, *errors, text


def configure_logging() -> None:
    """Log warnings of all, and what turnwise says about itself, to stderr, if nothing else was configured."""
    own, root = logging.getLogger("turnwise"), logging.getLogger()
    for handler in list(own.handlers):  # of a command, which prints warnings in its own form
        own.removeHandler(handler)
    if all(isinstance(handler, logging.NullHandler) for handler in root.handlers):
        root.addHandler(SparseHandler())
        root.setLevel(logging.WARNING)
    own.setLevel(logging.INFO)
