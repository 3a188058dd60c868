"""Logging in the processes of sessions: as the calling program logs, since nobody configures it there.

This module imports nothing heavy, since every new session process waits for its imports.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime

ROOT = "turnwise"

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

IDS = ("user_id", "session_id", "run_id")
"""What log records of turnwise have beside their message, as far as they are about a session or a run."""


class JsonFormatter(logging.Formatter):
    """Formats log records as lines of JSON: time, level, logger, message, user_id, session_id, run_id, exception.

    Use it in a handler of the calling program; the processes of its sessions then log as JSON, too.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name in IDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


@dataclass(frozen=True)
class LogSettings:
    """How a program logs what turnwise says: from which level on, and whether as JSON."""

    level: int = logging.WARNING
    as_json: bool = False

    @classmethod
    def of_this_process(cls) -> LogSettings:
        """Return the effective level of the logger `turnwise`, and whether a handler of it formats JSON."""
        logger: logging.Logger | None = logging.getLogger(ROOT)
        level, handlers = logging.getLogger(ROOT).getEffectiveLevel(), list[logging.Handler]()
        while logger:
            handlers += logger.handlers
            logger = logger.parent if logger.propagate else None
        return cls(level, any(isinstance(handler.formatter, JsonFormatter) for handler in handlers))

    def apply(self) -> None:
        """Log so in this process, to stderr, which Ray keeps in its log files and shows to the calling program."""
        if self == LogSettings():
            return
        logger, handler = logging.getLogger(ROOT), logging.StreamHandler()
        handler.setFormatter(JsonFormatter() if self.as_json else logging.Formatter(FORMAT))
        logger.setLevel(self.level)
        logger.addHandler(handler)
        logger.propagate = False
