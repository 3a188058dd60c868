"""What to do about an error of a database."""

from __future__ import annotations

import sqlite3

_ROOM = "make room on its disk, then it goes on: nothing was written, and what is stored can be read"
_AGAIN = "others hold its locks, or it is overloaded: try again"
_OF_SQLITE = {
    sqlite3.SQLITE_FULL: _ROOM,
    sqlite3.SQLITE_BUSY: _AGAIN,
    sqlite3.SQLITE_CORRUPT: "it is damaged: restore it from a backup",
    sqlite3.SQLITE_IOERR: "is its disk full or broken?",
}
_OF_POSTGRES = {"53100": _ROOM, "55P03": _AGAIN, "57014": _AGAIN}
"""By SQLSTATE: disk full; lock not available; statement timeout."""


def remedy(error: object) -> str:
    """Return what the message of a driver's error is to end with."""
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the bits above it say more of the same
    state = getattr(error, "sqlstate", None) or ""
    return _OF_SQLITE.get(primary) or _OF_POSTGRES.get(state) or "is it reachable, writable and a turnwise store?"
